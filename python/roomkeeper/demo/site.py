"""What a run is made of: stand-in workers and the gateways in front of them, started in that order.

One thread. The processes are those of a ``Children``, which ends them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from roomkeeper.demo.children import Child, Children, folder_of_a_run
from roomkeeper.demo.gateway import start_gateway
from roomkeeper.demo.model import write_model
from roomkeeper.demo.plan import MODEL_NAME, GatewayKind, Layout, Workload
from roomkeeper.demo.ports import HOST, Ports, free_ports
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.watch import is_serving

WORKER_READY_S = 60.0
KV_TOKENS = 65536
POLL_S = 0.05


class Life:
    """A worker from its start to its end. One that is started again has another."""

    def __init__(self, role: str, number: int, address: str, child: Child, trace: Path) -> None:
        self.role = role
        self.number = number
        #: For gRPC.
        self.address = address
        self.child = child
        #: What its scheduler writes, see standin/trace.py.
        self.trace = trace
        #: Monotonic seconds at which it was killed and at which its last process was seen to be
        #: gone; None: it was not.
        self.killed_s: float | None = None
        self.gone_s: float | None = None

    def kill(self) -> None:
        """SIGKILL to the launcher; its schedulers have to see to themselves."""
        self.killed_s = time.monotonic()
        self.child.kill()

    def is_gone(self) -> bool:
        """Whether its schedulers are gone too, once it has been killed."""
        if self.gone_s is None and self.child.group_is_gone():
            self.gone_s = time.monotonic()
        return self.gone_s is not None

    def serves(self) -> bool:
        """Whether its health is SERVING."""
        return is_serving(self.address)


class Site:
    """Made by ``run_site``."""

    def __init__(
        self, children: Children, directory: Path, workload: Workload, layout: Layout
    ) -> None:
        self.children = children
        self.ports = free_ports()
        #: Every worker there has been, those that were killed included.
        self.lives: list[Life] = []
        self.gateways: list[Child] = []
        self._directory = directory
        self._model = directory / "model"
        self._workload = workload
        self._layout = layout
        write_model(self._model)

    def start(self, kind: GatewayKind, waiting: Callable[[], None]) -> None:
        """All of it; returns when the gateways have registered the workers. DemoError: it fails."""
        roles = ["prefill"] * self._layout.prefills + ["decode"] * self._layout.decodes
        for at, role in enumerate(roles):
            self.start_worker(role, at if role == "prefill" else at - self._layout.prefills)
        for life in self.lives:
            self.children.wait_until(life.child, life.serves, WORKER_READY_S, waiting)
        for number in range(self._workload.gateways):
            gateway = start_gateway(
                self.children, kind, self.ports, self._model, waiting, number, self._layout
            )
            self.gateways.append(gateway)

    def start_worker(self, role: str, number: int) -> Life:
        """One worker, perhaps where another has been; does not wait for it."""
        life_number = sum((life.role, life.number) == (role, number) for life in self.lives)
        name = f"{role}-{number}" + (f".{life_number}" if life_number else "")
        trace = self._directory / f"{name}.trace"
        program = worker_program(self._layout)
        flags = worker_flags(role, number, self.ports, self._workload, self._model)
        more = [*self._layout.worker_flags, "--trace", str(trace)]
        if role == "decode":
            more += self._layout.decode_flags
        child = self.children.start(name, [*program, *flags, *more], {})
        address = f"{HOST}:{self.ports.worker_of(role, number)}"
        life = Life(role, number, address, child, trace)
        self.lives.append(life)
        return life

    def living(self, role: str) -> list[Life]:
        """The workers of a role that have not been killed, by number."""
        living = (life for life in self.lives if life.role == role and life.killed_s is None)
        return sorted(living, key=lambda life: life.number)

    def gateway_ports(self) -> list[int]:
        """Where clients may send."""
        return [self.ports.gateway_of(number) for number in range(self._workload.gateways)]


@contextlib.contextmanager
def run_site(
    title: str, workload: Workload, layout: Layout, kind: GatewayKind, progress: Progress
) -> Iterator[Site]:
    """A site that serves, and nothing of it afterwards. DemoError when it does not come up."""
    started = time.monotonic()

    def starting() -> None:
        progress.update(f"{title}: starting, {time.monotonic() - started:.0f} s")

    with (
        folder_of_a_run("roomkeeper-demo-") as folder,
        Children(folder) as children,
    ):
        starting()
        site = Site(children, folder, workload, layout)
        site.start(kind, starting)
        yield site


def worker_program(layout: Layout) -> list[str]:
    """What is run as a worker, by this very interpreter."""
    return [sys.executable, "-m", *layout.worker_module]


def worker_flags(
    role: str, number: int, ports: Ports, workload: Workload, model: Path
) -> list[str]:
    """The flags of a stand-in worker, as an operator would give them.

    A prefill is wide enough for the whole burst; a decode has the window.
    """
    decode = role == "decode"
    kv_tokens = workload.kv_tokens if decode and workload.kv_tokens else KV_TOKENS
    return [
        *("--role", role, "--host", HOST, "--port", str(ports.worker_of(role, number))),
        *("--model", str(model), "--served-model-name", MODEL_NAME),
        *("--max-num-seqs", str(workload.window if decode else workload.requests)),
        *("--max-total-tokens", str(kv_tokens)),
        *(
            "--disaggregation-bootstrap-port",
            str(ports.bootstrap_of(0 if decode else number)),
        ),
        *("--step-ms", f"{workload.step_ms:g}"),
        *("--bootstrap-timeout", f"{workload.bootstrap_timeout_s:g}"),
        *("--transfer-timeout", f"{workload.transfer_timeout_s:g}"),
        *("--room-handoff-seconds", f"{workload.handoff_s:g}"),
    ]


def until(done: Callable[[], bool], meanwhile: Callable[[], None], timeout_s: float) -> bool:
    """Waits, and calls ``meanwhile`` now and then; False: the time was up before."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        meanwhile()
        time.sleep(POLL_S)
    return True
