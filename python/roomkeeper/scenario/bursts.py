"""The cases that are a burst and nothing else: what is different is the workload and its site."""

from __future__ import annotations

import collections
import dataclasses
import functools

from roomkeeper.demo import report
from roomkeeper.demo.burst import Burst
from roomkeeper.demo.command import COLUMNS_MAX
from roomkeeper.demo.plan import Layout, Outcome, Result, Workload
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.run import run_burst
from roomkeeper.demo.site import run_site
from roomkeeper.demo.slots import Slots
from roomkeeper.demo.watch import Watch
from roomkeeper.scenario.leaks import legs_left, slots_leaked
from roomkeeper.scenario.plan import Finding, Scenario, Setting

REFUSED = "429"
#: A refusal is an answer at once; what takes longer has waited for something.
AT_ONCE_S = 1.0


@dataclasses.dataclass(frozen=True)
class Measured:
    """A burst that is over."""

    result: Result
    slots_leaked: int
    legs_left: int


@dataclasses.dataclass(frozen=True)
class BurstCase:
    """The workload of a case, and the site that it meets."""

    workload: Workload
    window_reported: bool
    decode_flags: tuple[str, ...] = ()
    gateway_flags: tuple[str, ...] = ()

    def measure(self, setting: Setting, progress: Progress) -> Measured:
        """Runs it. DemoError: something does not come up, or goes."""
        case = setting.case(self.window_reported)
        layout = Layout(
            worker_flags=tuple(case.flags),
            decode_flags=self.decode_flags,
            gateway_flags=self.gateway_flags,
        )
        with run_site(case.title, self.workload, layout, setting.gateway, progress) as site:
            (decode,) = site.living("decode")
            slots = Slots(decode.trace)
            with Watch(decode.address) as watch:
                burst = run_burst(case.title, site, self.workload, slots, progress)
                seen = watch.seen()
            leaked, left = slots_leaked(site), legs_left(site)
            slots.read()
        holds = slots.since(burst.started)
        outcomes = all_outcomes(burst)
        result = Result(case, setting.gateway, burst.wall_s, outcomes, holds, seen)
        return Measured(result, leaked, left)


def all_outcomes(burst: Burst) -> list[Outcome]:
    """Of every request, also of those that were never answered."""
    seen = {outcome.number: outcome for outcome in list(burst.outcomes)}
    missing = Outcome("no answer", False, 0.0, burst.elapsed_s)
    return [
        seen.get(number, dataclasses.replace(missing, number=number))
        for number in range(burst.requests)
    ]


def nobody_fails(about: str, case: BurstCase, why: str, builtin: bool = True) -> Scenario:
    """A case in which every request must come through. ``why``: what it shows."""
    return Scenario(about, functools.partial(_nobody_fails, case, why), builtin)


def _nobody_fails(case: BurstCase, why: str, setting: Setting, progress: Progress) -> Finding:
    measured = case.measure(setting, progress)
    result = measured.result
    held = result.failed == 0 and measured.slots_leaked == 0
    text = f"{why} {_came_through(measured, case.workload)}"
    return _finding(measured, held, text)


def _came_through(measured: Measured, workload: Workload) -> str:
    result = measured.result
    text = (
        f"{result.ok} of {len(result.outcomes)} came through in {result.wall_s:.1f} s, where the "
        f"slots need {workload.ideal_s:.1f} s at the least"
    )
    if measured.slots_leaked:
        text += f"; {measured.slots_leaked} slots are still held for nobody"
    return text + "."


def refusals_are_clean(about: str, case: BurstCase) -> Scenario:
    """A case that is too much for the decode: who is not served is refused, and at once."""
    return Scenario(about, functools.partial(_refusals_are_clean, case), builtin=False)


def _refusals_are_clean(case: BurstCase, setting: Setting, progress: Progress) -> Finding:
    measured = case.measure(setting, progress)
    result = measured.result
    refused = [outcome for outcome in result.outcomes if outcome.seen.startswith(REFUSED)]
    others = result.failed - len(refused)
    slowest_s = max((outcome.latency_s for outcome in refused), default=0.0)
    held = (
        bool(refused)
        and others == 0
        and slowest_s < AT_ONCE_S
        and measured.slots_leaked == measured.legs_left == 0
    )
    text = (
        f"{result.ok} were served and {len(refused)} refused with 429, the slowest after "
        f"{slowest_s:.2f} s; {others} failed in another way and {measured.legs_left} legs are "
        "still there. The gateway's retries are off (--disable-retries): with them a client sees "
        "429 after five tries in about 0.4 s, each of them a new room at the end of the line."
    )
    more = {
        "refused": len(refused),
        "slowest_refusal_s": round(slowest_s, 3),
        "failed_otherwise": others,
        "legs_left": measured.legs_left,
    }
    return dataclasses.replace(_finding(measured, held, text), more={**_seen(result), **more})


def _finding(measured: Measured, held: bool, meaning: str) -> Finding:
    result = measured.result
    rows = f"{report.table([result], COLUMNS_MAX)}\nslots leaked{measured.slots_leaked:>18}"
    return Finding(
        requests=len(result.outcomes),
        ok=result.ok,
        wall_s=result.wall_s,
        slots_leaked=measured.slots_leaked,
        held=held,
        table=rows,
        meaning=meaning,
        more=_seen(result),
    )


def _seen(result: Result) -> dict[str, object]:
    counts = collections.Counter(outcome.seen for outcome in result.outcomes)
    return {
        "window_reported": result.case.window_reported,
        "most_waiting": result.rooms.most_waiting,
        "seen": dict(counts.most_common()),
    }
