"""One case: a stand-in pair and a gateway come up, the burst runs, everything goes again."""

from __future__ import annotations

import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from roomkeeper.demo.burst import Burst
from roomkeeper.demo.children import Children
from roomkeeper.demo.gateway import start_gateway
from roomkeeper.demo.model import write_model
from roomkeeper.demo.plan import MODEL_NAME, Case, GatewayKind, Result, Workload
from roomkeeper.demo.ports import HOST, Ports, free_ports
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.slots import Slots
from roomkeeper.demo.watch import Watch, is_serving

WORKER_READY_S = 60.0
POLL_S = 0.05
#: The whole burst, beyond what lost slots can cost: a guard against a run that never ends.
BURST_S = 120.0
AFTERMATH_S = 110.0


def run_case(case: Case, workload: Workload, kind: GatewayKind, progress: Progress) -> Result:
    """Serves the burst as the case says. DemoError when something does not come up or goes."""
    with (
        tempfile.TemporaryDirectory(prefix="roomkeeper-demo-") as folder,
        Children(Path(folder)) as children,
    ):
        directory = Path(folder)
        model = directory / "model"
        write_model(model)
        ports = free_ports()
        started = time.monotonic()

        def starting() -> None:
            progress.update(f"{case.title}: starting, {time.monotonic() - started:.0f} s")

        starting()
        trace = directory / "decode.trace"
        _start_pair(children, case, workload, ports, model, trace, starting)
        for number in range(workload.gateways):
            start_gateway(children, kind, ports, model, starting, number)
        return _measure(children, case, workload, kind, ports, Slots(trace), progress)


def _start_pair(
    children: Children,
    case: Case,
    workload: Workload,
    ports: Ports,
    model: Path,
    trace: Path,
    waiting: Callable[[], None],
) -> None:
    """A prefill wide enough for the whole burst, and a decode with the window."""
    prefill = children.start(
        "prefill",
        [
            *worker_command("prefill", ports.prefill, workload.requests, ports, workload, model),
            *case.flags,
        ],
        {},
    )
    decode = children.start(
        "decode",
        [
            *worker_command("decode", ports.decode, workload.window, ports, workload, model),
            *case.flags,
            *("--trace", str(trace)),
        ],
        {},
    )
    for child, port in ((prefill, ports.prefill), (decode, ports.decode)):
        serving = functools.partial(is_serving, f"{HOST}:{port}")
        children.wait_until(child, serving, WORKER_READY_S, waiting)


def worker_command(
    role: str, port: int, window: int, ports: Ports, workload: Workload, model: Path
) -> list[str]:
    """A stand-in worker, as an operator would start it."""
    return [
        *(sys.executable, "-m", "roomkeeper", "standin"),
        *("--role", role, "--host", HOST, "--port", str(port)),
        *("--model", str(model), "--served-model-name", MODEL_NAME),
        *("--max-num-seqs", str(window)),
        *("--disaggregation-bootstrap-port", str(ports.bootstrap)),
        *("--step-ms", f"{workload.step_ms:g}"),
        *("--bootstrap-timeout", f"{workload.bootstrap_timeout_s:g}"),
        *("--transfer-timeout", f"{workload.transfer_timeout_s:g}"),
        *("--room-wait-seconds", f"{workload.wait_s:g}"),
        *("--room-handoff-seconds", f"{workload.handoff_s:g}"),
    ]


def _measure(
    children: Children,
    case: Case,
    workload: Workload,
    kind: GatewayKind,
    ports: Ports,
    slots: Slots,
    progress: Progress,
) -> Result:
    """The burst, and what is left of it in the decode."""
    burst = Burst([ports.gateway_of(number) for number in range(workload.gateways)], workload)

    def show() -> None:
        slots.read()
        children.check()
        done, ok = len(burst.outcomes), sum(outcome.ok for outcome in burst.outcomes)
        state = f"{done} of {workload.requests} answered, {done - ok} failed"
        if burst.over():
            state += "; the decode is not free yet"
        progress.update(
            f"{case.title}: {time.monotonic() - burst.started:.0f} s, {state}; slots: "
            f"{slots.working} generate, {slots.waiting} wait for KV"
        )

    with Watch(f"{HOST}:{ports.decode}") as watch:
        try:
            burst.start()
            _until(burst.over, show, BURST_S)
            # Rooms that nobody waits for any more may still take slots: see how long.
            _until(lambda: _empty(slots), show, _aftermath_s(workload))
        finally:
            burst.stop()
        seen = watch.seen()
    result = Result(case, kind, burst.wall_s, burst.outcomes, slots.since(burst.started), seen)
    progress.step(
        f"{case.title}: {result.ok} of {workload.requests} answered, {result.failed} failed, "
        f"{result.wall_s:.1f} s"
    )
    return result


def _aftermath_s(workload: Workload) -> float:
    """The longest that dead rooms can keep the decode busy, were every request dead, or so long
    as anybody would want to watch."""
    rounds = math.ceil(workload.requests / workload.window) + 1
    return min(AFTERMATH_S, rounds * workload.transfer_timeout_s)


def _empty(slots: Slots) -> bool:
    slots.read()
    return slots.working + slots.waiting == 0


def _until(done: Callable[[], bool], meanwhile: Callable[[], None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        meanwhile()
        time.sleep(POLL_S)
