"""Starts and ends TokenSpeed workers, each a frontend and a scheduler process, behind either servicer.

A worker's flags are TokenSpeed's; what differs is the module that serves. Its log goes to a file whose end is shown
when it does not come up.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as services

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON_SERVICER = "smg_grpc_servicer.tokenspeed"
ROOMKEEPER = "roomkeeper.tokenspeed"
WINDOW = 4
START_TIMEOUT_S = 240
#: The engine takes further ports above its own, at random; and the KV transfer one above its bootstrap port.
PORTS_APART = 1100
_BASES = collections.deque(range(11000, 31000, PORTS_APART))
_BASES.rotate(os.getpid())  # another run may be there at the same time


def free_base() -> int:
    """A port with room above it, below those that the kernel gives to clients; the longest unused one."""
    for _ in range(len(_BASES)):
        _BASES.rotate(-1)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", _BASES[0]))
            return _BASES[0]
    raise RuntimeError("no port is free from 11000 to 31000; end what listens there")


def environment(settings: Mapping[str, object] = {}) -> dict[str, str]:  # noqa: B006
    """The environment of a worker: our sources, the shims, and `settings`."""
    shims = pathlib.Path(__file__).parent / "engine"
    build = os.environ.get("ROOMKEEPER_BUILD", str(ROOT / "build" / "release"))
    return {
        **os.environ,
        "PYTHONPATH": f"{shims}:{ROOT / 'python'}",
        "ROOMKEEPER_BRIDGE_DIR": f"{build}/python/roomkeeper",
        **{name: str(value) for name, value in settings.items()},
    }


def model() -> str:
    """The model's directory: config and tokenizer, no weights."""
    directory = ROOT / "build" / "engines-model"
    if not (directory / "tokenizer_config.json").exists():
        maker = pathlib.Path(__file__).parent / "engine" / "make_model.py"
        subprocess.run([sys.executable, maker, directory], check=True)
    return str(directory)


@dataclasses.dataclass
class Worker:
    """A running worker."""

    process: subprocess.Popen[bytes]
    port: int
    log: pathlib.Path
    bootstrap_port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def stub(self) -> Iterator[services.TokenSpeedSchedulerStub]:
        with grpc.insecure_channel(self.address) as channel:
            yield services.TokenSpeedSchedulerStub(channel)

    def health(self) -> str:
        """SERVING or another status by name; the status code's name when there is no answer."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                request = health_pb2.HealthCheckRequest()
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
            except grpc.RpcError as error:
                return error.code().name
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, word: str) -> list[str]:
        """Lines of roomkeeper's own log that hold `word`."""
        return [
            line for line in self.said().splitlines() if " roomkeeper: " in line and word in line
        ]

    def scheduler(self) -> int:
        """The process id of the scheduler: the child that multiprocessing has spawned."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in children.read_text().split():
            if "spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
        raise AssertionError(f"worker {self.process.pid} has no scheduler process")

    def wait_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.health() != "SERVING":
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = "\n".join(self.said().splitlines()[-30:])
                raise AssertionError(
                    f"the worker did not come up, exit code {self.process.poll()}:\n{end}"
                )
            time.sleep(0.1)

    def wait_end(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> int:
        """SIGTERM, then SIGKILL; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                return self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait(10)


def start(
    module: str,
    log: pathlib.Path,
    *flags: str,
    mode: str = "null",
    settings: Mapping[str, object] = {},  # noqa: B006
    window: int = WINDOW,
) -> Worker:
    """Starts a worker; it serves when `wait_serving` has returned."""
    port = free_base()
    command = [sys.executable, "-m", module, "--model", model(), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--max-num-seqs", str(window), "--max-model-len", "2048"]
    command += ["--chunked-prefill-size", "256", "--skip-tokenizer-init", *flags]
    bootstrap_port = 0
    if mode != "null":
        command += ["--disaggregation-mode", mode]
    if mode == "prefill":
        bootstrap_port = free_base()
        command += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment(settings), cwd=ROOT
        )
    return Worker(process, port, log, bootstrap_port)


@contextlib.contextmanager
def running(*workers: Worker) -> Iterator[Sequence[Worker]]:
    """Waits until they serve, and ends them."""
    try:
        for worker in workers:
            worker.wait_serving()
        yield workers
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.end()
