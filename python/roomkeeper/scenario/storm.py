"""200 rooms are opened and all cancelled at once; then somebody has an ordinary request.

The rooms are opened at the two workers themselves, as a gateway would: a gateway notices that a
client has gone away only when it has something to say to it, so through one no storm reaches a
worker at once. The streams that go on, and the request that follows, come through the gateway. KV
transfers are slow here, so that the storm finds legs in line, held, and waiting for KV.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

from roomkeeper import wire
from roomkeeper.demo.builtin import PACKAGE, channel_to
from roomkeeper.demo.burst import Burst
from roomkeeper.demo.plan import DemoError, Layout, Outcome, Workload
from roomkeeper.demo.ports import HOST
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.site import Site, run_site, until
from roomkeeper.scenario.bursts import all_outcomes
from roomkeeper.scenario.leaks import legs_left, slots_leaked
from roomkeeper.scenario.plan import Finding, Scenario, Setting, table
from roomkeeper.scenario.traces import Leg, read_legs
from roomkeeper.scenario.worker import MODULE, read_aborts
from roomkeeper.statusread import Asker

ROOMS = 200
SURVIVORS = 4
#: The survivors generate for so many steps of 10 ms.
SURVIVOR_TOKENS = 800
STORM_TOKENS = 200
WORKLOAD = Workload(requests=SURVIVORS, concurrency=SURVIVORS, window=16, tokens=SURVIVOR_TOKENS)
NEXT = Workload(requests=1, concurrency=1, tokens=40)
KV_MS = 1500
#: The engines' deadlines are out of the way; the prefill's window is wide enough for everybody.
WORKER_FLAGS = (
    *("--kv-ms", str(KV_MS), "--max-num-seqs", "256"),
    *("--bootstrap-timeout", "120", "--transfer-timeout", "300"),
)
DECODE_FLAGS = ("--max-num-seqs", "16", "--room-waiting", "256")
GUARD_S = 60.0
#: From the client's request until the engine has given it a slot.
AT_ONCE_S = 1.0
STORM, SURVIVOR, FOLLOWER = "storm", "survivor", "next"


@dataclasses.dataclass
class Aborts:
    """What became of the legs that were in an engine when their clients went away."""

    #: Roles and engine ids: told to the engine once; ended with its twin, before there was need
    #: to; told more than once; neither, or still there after a while.
    once: list[str] = dataclasses.field(default_factory=list)
    with_twin: list[str] = dataclasses.field(default_factory=list)
    repeated: list[str] = dataclasses.field(default_factory=list)
    late: list[str] = dataclasses.field(default_factory=list)
    #: Aborts of legs that nobody had cancelled.
    stray: int = 0

    @property
    def submitted(self) -> int:
        """All those legs."""
        return sum(map(len, (self.once, self.with_twin, self.repeated, self.late)))

    @property
    def clean(self) -> bool:
        """Whether each was ended once and soon, and nobody else was."""
        return not self.repeated and not self.late and not self.stray

    def count(self, role: str, leg: Leg, aborts: int, cancelled_s: float) -> None:
        """Takes in a leg of the storm, and how often its engine was told to abort it."""
        name = f"{role} {leg.id}"
        soon = leg.gone_s is not None and leg.gone_s - cancelled_s <= AT_ONCE_S
        if aborts > 1:
            self.repeated.append(name)
        elif not soon:
            self.late.append(name)
        elif aborts == 1:
            self.once.append(name)
        else:
            self.with_twin.append(name)


class Clients:
    """Those who open rooms and go away. One thread."""

    def __init__(self, site: Site) -> None:
        self._wire = wire.load()
        self._bootstrap_port = site.ports.bootstrap
        self._channels = [channel_to(life.address) for life in site.lives]
        self._stubs = [self._wire.stub(channel, wire.TOKENSPEED) for channel in self._channels]
        self._calls: list[Any] = []

    def open(self, number: int) -> None:
        """One room: the same Generate to both workers."""
        request = self._wire.message(PACKAGE + "GenerateRequest")()
        request.request_id = f"{STORM}-{number}"
        request.tokenized.input_ids.extend(range(number, number + 6))
        request.sampling_params.max_new_tokens = STORM_TOKENS
        request.sampling_params.ignore_eos = True
        request.stream = True
        request.kv_bootstrap_info.bootstrap_host = HOST
        request.kv_bootstrap_info.bootstrap_port = self._bootstrap_port
        request.kv_bootstrap_info.bootstrap_room = random.randrange(1, 2**63)
        self._calls += [stub.Generate(request) for stub in self._stubs]

    def cancel(self) -> None:
        """All of them, both legs of each: gRPC core cancels what is open on a closed channel."""
        for channel in self._channels:
            channel.close()


def run(setting: Setting, progress: Progress) -> Finding:
    """The case. DemoError: something does not come up, or the rooms do not arrive."""
    case = setting.case(window_reported=False)
    layout = Layout(
        worker_module=(MODULE,),
        worker_flags=(*case.flags, *WORKER_FLAGS),
        decode_flags=DECODE_FLAGS,
    )
    with run_site(case.title, WORKLOAD, layout, setting.gateway, progress) as site:
        survivors = Burst(site.gateway_ports(), WORKLOAD, SURVIVOR)
        survivors.start()
        _wait(site, lambda: _arrived(site) >= SURVIVORS, "the streams that go on")
        progress.update(f"{case.title}: {ROOMS} rooms are opened")
        clients = Clients(site)
        for number in range(ROOMS):
            clients.open(number)
        _wait(site, lambda: _arrived(site) >= SURVIVORS + ROOMS, f"{ROOMS} rooms")
        cancelled_s = time.monotonic()
        clients.cancel()
        cancel_ms = (time.monotonic() - cancelled_s) * 1e3
        follower = Burst(site.gateway_ports(), NEXT, FOLLOWER)
        follower.start()
        progress.update(f"{case.title}: all were cancelled in {cancel_ms:.1f} ms, one comes")
        until(lambda: follower.over() and survivors.over(), site.children.check, GUARD_S)
        leaked, left = slots_leaked(site), legs_left(site)
        aborts = _aborts(site, cancelled_s)
        slot_s = _slot_after_s(site, follower)
    return _finding(survivors, follower, aborts, cancel_ms, slot_s, leaked, left)


def _wait(site: Site, true: Callable[[], bool], what: str) -> None:
    if not until(true, site.children.check, GUARD_S):
        raise DemoError(f"{what} have not arrived at the decode within {GUARD_S:g} s")


def _arrived(site: Site) -> int:
    (decode,) = site.living("decode")
    asker = Asker(decode.address, GUARD_S)
    try:
        worker = asker.ask()
        return worker.total("arrived") or len(read_legs(decode.trace))
    finally:
        asker.close()


def _aborts(site: Site, cancelled_s: float) -> Aborts:
    """Of both engines."""
    seen = Aborts()
    for life in site.lives:
        counts = collections.Counter(read_aborts(life.trace))
        for leg in read_legs(life.trace):
            told = counts[leg.id]
            if _is_cancelled(leg, cancelled_s):
                seen.count(life.role, leg, told, cancelled_s)
            else:
                seen.stray += told
    return seen


def _is_cancelled(leg: Leg, cancelled_s: float) -> bool:
    is_storm = leg.id.startswith(f"{STORM}-")
    return is_storm and (leg.gone_s is None or leg.gone_s > cancelled_s)


def _slot_after_s(site: Site, follower: Burst) -> float | None:
    """How long after it was sent the next request had a slot; None: it never had."""
    (decode,) = site.living("decode")
    admitted = [
        leg.admitted_s
        for leg in read_legs(decode.trace)
        if leg.id.startswith(f"{FOLLOWER}-") and leg.admitted_s is not None
    ]
    return min(admitted) - follower.started if admitted else None


def _finding(
    survivors: Burst,
    follower: Burst,
    aborts: Aborts,
    cancel_ms: float,
    slot_s: float | None,
    leaked: int,
    left: int,
) -> Finding:
    outcomes: list[Outcome] = [*all_outcomes(survivors), *all_outcomes(follower)]
    ok = sum(outcome.ok for outcome in outcomes)
    at_once = slot_s is not None and slot_s <= AT_ONCE_S
    held = ok == len(outcomes) and at_once and aborts.clean and leaked == left == 0
    slot = "never" if slot_s is None else f"{slot_s:.2f} s"
    rows: list[tuple[str, object]] = [
        ("rooms opened and cancelled", ROOMS),
        ("cancelled within", f"{cancel_ms:.1f} ms"),
        ("legs in an engine then", aborts.submitted),
        ("aborted once", len(aborts.once)),
        ("ended with their twin, without an abort", len(aborts.with_twin)),
        ("aborted more than once", len(aborts.repeated)),
        (f"there after {AT_ONCE_S:g} s", len(aborts.late)),
        ("aborts of others", aborts.stray),
        ("the next request had a slot after", slot),
        ("streams that went on, and the next", f"{ok} of {len(outcomes)} ok"),
        ("slots leaked, legs left", f"{leaked}, {left}"),
    ]
    meaning = (
        f"{ROOMS} rooms were cancelled within {cancel_ms:.1f} ms, with {aborts.submitted} legs in "
        f"an engine: {len(aborts.once)} were aborted once, {len(aborts.with_twin)} ended with "
        f"their twin. The next request had a slot after {slot} ({AT_ONCE_S:g} s may be)."
    )
    return Finding(
        requests=len(outcomes),
        ok=ok,
        wall_s=max(survivors.wall_s, follower.wall_s),
        slots_leaked=leaked,
        held=held,
        table=table(rows),
        meaning=meaning,
        more={
            "cancelled": ROOMS,
            "cancel_ms": round(cancel_ms, 2),
            "legs_submitted": aborts.submitted,
            "aborted_once": len(aborts.once),
            "ended_with_twin": len(aborts.with_twin),
            "aborted_again": aborts.repeated,
            "late": aborts.late,
            "stray_aborts": aborts.stray,
            "next_slot_s": None if slot_s is None else round(slot_s, 3),
            "legs_left": left,
            "seen": dict(collections.Counter(o.seen for o in outcomes)),
        },
    )


SCENARIO = Scenario(
    "200 rooms are opened and all cancelled at once, then comes one ordinary request",
    run,
)
