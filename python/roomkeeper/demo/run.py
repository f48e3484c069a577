"""One case: a stand-in pair and a gateway come up, the burst runs, everything goes again."""

from __future__ import annotations

import math
from collections.abc import Callable

from roomkeeper.demo.burst import Burst
from roomkeeper.demo.plan import Case, GatewayKind, Layout, Result, Workload
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.site import Site, run_site, until
from roomkeeper.demo.slots import Slots
from roomkeeper.demo.watch import Watch

#: The whole burst, beyond what lost slots can cost: a guard against a run that never ends.
BURST_S = 180.0
AFTERMATH_S = 110.0


def run_case(case: Case, workload: Workload, kind: GatewayKind, progress: Progress) -> Result:
    """Serves the burst as the case says. DemoError when something does not come up or goes."""
    layout = Layout(worker_flags=tuple(case.flags))
    with run_site(case.title, workload, layout, kind, progress) as site:
        (decode,) = site.living("decode")
        slots = Slots(decode.trace)
        with Watch(decode.address) as watch:
            burst = run_burst(case.title, site, workload, slots, progress)
            try:
                # Rooms that nobody waits for any more may still take slots: see how long.
                show = _shower(case.title, site, burst, slots, progress)
                until(lambda: _empty(slots), show, _aftermath_s(workload))
            finally:
                burst.stop()
            seen = watch.seen()
    result = Result(case, kind, burst.wall_s, burst.outcomes, slots.since(burst.started), seen)
    progress.step(
        f"{case.title}: {result.ok} of {workload.requests} answered, {result.failed} failed, "
        f"{result.wall_s:.1f} s"
    )
    return result


def run_burst(
    title: str,
    site: Site,
    workload: Workload,
    slots: Slots,
    progress: Progress,
    meanwhile: Callable[[], None] = lambda: None,
) -> Burst:
    """Sends all requests and waits for their answers; what it has seen."""
    burst = Burst(site.gateway_ports(), workload)
    show = _shower(title, site, burst, slots, progress)

    def both() -> None:
        show()
        meanwhile()

    try:
        burst.start()
        until(burst.over, both, BURST_S)
    finally:
        burst.stop()
    return burst


def _shower(
    title: str, site: Site, burst: Burst, slots: Slots, progress: Progress
) -> Callable[[], None]:
    """Tells how far a burst is; DemoError when a process has ended meanwhile."""

    def show() -> None:
        slots.read()
        site.children.check()
        done, ok = len(burst.outcomes), sum(outcome.ok for outcome in burst.outcomes)
        state = f"{done} of {burst.requests} answered, {done - ok} failed"
        if burst.over():
            state += "; the decode is not free yet"
        progress.update(
            f"{title}: {burst.elapsed_s:.0f} s, {state}; slots: "
            f"{slots.working} generate, {slots.waiting} wait for KV"
        )

    return show


def _aftermath_s(workload: Workload) -> float:
    """The longest that dead rooms can keep the decode busy, were every request dead, or so long
    as anybody would want to watch."""
    rounds = math.ceil(workload.requests / workload.window) + 1
    return min(AFTERMATH_S, rounds * workload.transfer_timeout_s)


def _empty(slots: Slots) -> bool:
    slots.read()
    return slots.working + slots.waiting == 0
