"""Workers are killed while requests run, one at a time, and are started again.

Whoever has a leg on a killed worker may fail; nobody else, and what is left behind on the others
must not be held for longer than it takes to see that the twin is gone.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Sequence

from roomkeeper.demo.burst import Burst
from roomkeeper.demo.plan import DemoError, Layout, Outcome, Workload
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.run import BURST_S
from roomkeeper.demo.site import WORKER_READY_S, Life, Site, run_site, until
from roomkeeper.scenario.bursts import all_outcomes
from roomkeeper.scenario.classify import LOG_FLAGS, Outage, classify, read_pairs
from roomkeeper.scenario.leaks import legs_left, slots_leaked
from roomkeeper.scenario.plan import Finding, Scenario, Setting, table
from roomkeeper.scenario.traces import Leg, read_legs

#: Waves that are a little wider than the six slots, for about half a minute.
WORKLOAD = Workload(requests=200, concurrency=64, window=2, tokens=50, scale=1, wave=8, wave_s=1.2)
PREFILLS, DECODES = 2, 3
#: The breaker would keep a worker that is back out of use for a minute.
GATEWAY_FLAGS = ("--disable-circuit-breaker", *LOG_FLAGS)
FIRST_KILL_S = 1.5
#: From a worker's being back until the next is killed.
PAUSE_S = 4.0
#: A scheduler has to notice within this time that its launcher is gone.
ORPHANS_S = 10.0
#: A slot may be held so long for a twin that is gone.
STRANDED_S = 1.0
VICTIMS = (("decode", 0), ("prefill", 0), ("decode", 1), ("prefill", 1), ("decode", 2))


class Killer:
    """Kills one worker after the other, and starts each again. ``step`` as often as you like."""

    def __init__(self, site: Site) -> None:
        self.outages: list[Outage] = []
        self._site = site
        self._victims = itertools.cycle(VICTIMS)
        self._due_s = time.monotonic() + FIRST_KILL_S
        self._killed: Life | None = None
        self._restarted: Life | None = None

    @property
    def state(self) -> str:
        """For people."""
        down = self._killed
        return f"{down.role} {down.number} is down" if down else "all workers are up"

    def step(self) -> None:
        """Whatever is due. DemoError: a worker does not go, or does not come back."""
        if self._killed is None:
            self._kill()
        elif self._restarted is None:
            self._restart(self._killed)
        else:
            self._wait(self._killed, self._restarted)

    def finish(self) -> None:
        """Waits until the last victim is back."""
        if self._killed is not None and not until(
            lambda: self._killed is None, self.step, WORKER_READY_S
        ):
            raise DemoError(f"{self.state} and does not come back within {WORKER_READY_S:g} s")

    def _kill(self) -> None:
        if time.monotonic() < self._due_s:
            return
        role, number = next(self._victims)
        self._killed = self._site.living(role)[number]
        self._killed.kill()

    def _restart(self, killed: Life) -> None:
        """Its port is free only when its schedulers are gone."""
        assert killed.killed_s is not None
        if killed.is_gone():
            self._restarted = self._site.start_worker(killed.role, killed.number)
        elif time.monotonic() - killed.killed_s > ORPHANS_S:
            raise DemoError(
                f"a scheduler of {killed.role} {killed.number} outlives its launcher by more "
                f"than {ORPHANS_S:g} s"
            )

    def _wait(self, killed: Life, restarted: Life) -> None:
        assert killed.killed_s is not None
        if not restarted.serves():
            return
        now = time.monotonic()
        self.outages.append(Outage(f"grpc://{killed.address}", killed.killed_s, now))
        self._killed = self._restarted = None
        self._due_s = now + PAUSE_S


def run(setting: Setting, progress: Progress) -> Finding:
    """The case. DemoError: a worker does not come up, go, or come back."""
    case = setting.case(window_reported=False)
    layout = Layout(
        prefills=PREFILLS,
        decodes=DECODES,
        worker_flags=tuple(case.flags),
        gateway_flags=GATEWAY_FLAGS,
    )
    with run_site(case.title, WORKLOAD, layout, setting.gateway, progress) as site:
        burst = Burst(site.gateway_ports(), WORKLOAD, "chaos")
        killer = Killer(site)
        _run(case.title, site, burst, killer, progress)
        leaked, left = slots_leaked(site), legs_left(site)
        outcomes = all_outcomes(burst)
        failures = _failures(site, burst, outcomes, killer.outages)
        stranded_s = longest_stranded_s(site.lives, _ends(burst, outcomes))
    return _finding(burst, outcomes, killer, failures, stranded_s, leaked, left)


def _run(title: str, site: Site, burst: Burst, killer: Killer, progress: Progress) -> None:
    def step() -> None:
        site.children.check()
        killer.step()
        done, ok = len(burst.outcomes), sum(outcome.ok for outcome in burst.outcomes)
        progress.update(
            f"{title}: {burst.elapsed_s:.0f} s, {done} of {burst.requests} answered, {done - ok} "
            f"failed; {len(killer.outages)} killed and back, {killer.state}"
        )

    try:
        burst.start()
        until(burst.over, step, BURST_S)
    finally:
        burst.stop()
    killer.finish()


def _failures(
    site: Site, burst: Burst, outcomes: Sequence[Outcome], outages: Sequence[Outage]
) -> dict[str, list[Outcome]]:
    pairs = read_pairs(site.gateways[0].log)
    failures: dict[str, list[Outcome]] = {"killed_worker": [], "never_dispatched": [], "other": []}
    for outcome in outcomes:
        if not outcome.ok:
            pair = pairs.get(burst.request_id(outcome.number))
            failures[classify(outcome, pair, burst.started, outages)].append(outcome)
    return failures


def _ends(burst: Burst, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """When each request was over for its client, by its id; monotonic seconds."""
    return {burst.request_id(o.number): burst.started + o.sent_s + o.latency_s for o in outcomes}


def longest_stranded_s(lives: Sequence[Life], ends: dict[str, float]) -> float:
    """For how long a decode's slot was held for a room whose prefill was gone, at the most.

    A prefill is gone with its leg's end in its engine or with its last process; where it has never
    been given the leg, with the end of the request.
    """
    now = time.monotonic()
    twin_ends: dict[int, float] = {}
    for life in lives:
        if life.role == "prefill":
            for leg in read_legs(life.trace):
                twin_ends[leg.room] = _first(leg.gone_s, life.gone_s, math.inf)
    held = [
        _first(leg.gone_s, life.gone_s, now) - max(leg.admitted_s, _twin_end(leg, twin_ends, ends))
        for life in lives
        if life.role == "decode"
        for leg in read_legs(life.trace)
        if leg.admitted_s is not None and leg.kv_s is None
    ]
    return max([0.0, *held])


def _first(*times: float | None) -> float:
    return next(at for at in times if at is not None)


def _twin_end(leg: Leg, twin_ends: dict[int, float], ends: dict[str, float]) -> float:
    if leg.room in twin_ends:
        return twin_ends[leg.room]
    return next((end for name, end in ends.items() if leg.id.startswith(f"{name}-")), math.inf)


def _finding(
    burst: Burst,
    outcomes: Sequence[Outcome],
    killer: Killer,
    failures: dict[str, list[Outcome]],
    stranded_s: float,
    leaked: int,
    left: int,
) -> Finding:
    ok = sum(outcome.ok for outcome in outcomes)
    others = failures["other"]
    held = not others and stranded_s <= STRANDED_S and leaked == left == 0
    more = {
        "killed": len(killer.outages),
        **{why: len(failed) for why, failed in failures.items()},
        "longest_stranded_s": round(stranded_s, 3),
        "legs_left": left,
        "seen": dict(collections.Counter(o.seen for o in outcomes).most_common()),
        "other_requests": [burst.request_id(outcome.number) for outcome in others],
    }
    rows: list[tuple[str, object]] = [
        ("requests ok", f"{ok} of {len(outcomes)}"),
        ("workers killed", len(killer.outages)),
        ("failed with a leg on a killed worker", len(failures["killed_worker"])),
        ("failed, never dispatched", len(failures["never_dispatched"])),
        ("failed otherwise", len(others)),
        ("longest hold after the twin was gone", f"{stranded_s:.2f} s"),
        ("slots leaked, legs left", f"{leaked}, {left}"),
    ]
    meaning = (
        f"{len(killer.outages)} workers were killed and came back while {len(outcomes)} requests "
        f"ran. {len(others)} failed without a leg on one of them, and no slot was held for more "
        f"than {stranded_s:.2f} s for a room whose prefill was gone ({STRANDED_S:g} s may be)."
    )
    return Finding(
        requests=len(outcomes),
        ok=ok,
        wall_s=burst.wall_s,
        slots_leaked=leaked,
        held=held,
        table=table(rows),
        meaning=meaning,
        more=more,
    )


SCENARIO = Scenario(
    "three decodes and two prefills, one killed with SIGKILL after the other, and 200 requests",
    run,
    builtin=False,
)
