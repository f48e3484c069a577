"""The servers under test: how to start one, alone, pinned, and how to end it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench/peers"
LOADGEN = ROOT / "build/loadgen/release/loadgen"
START_TIMEOUT_S = 60
LOAD_TIMEOUT_S = 600.0
MAX_LEN = 200_000


@dataclass(frozen=True)
class Start:
    """How a server is to be started."""

    port: int
    step_ms: float
    window: int
    event_log: Path | None
    client_cpu: int


@dataclass(frozen=True)
class Kind:
    """A server by name, and its command."""

    name: str
    command: Callable[[Start], list[str]]
    #: The statement that brings its Python code in, and what must have run before; "": it has none.
    imports: str = ""
    before_import: str = ""
    #: What is not measured of it, because it has no such thing.
    lacks: frozenset[str] = frozenset()
    #: How much slower than the others, so that a repetition takes about as long.
    share: float = 1.0


def _stub_flags(start: Start) -> list[str]:
    flags = ["--port", str(start.port), "--step-ms", str(start.step_ms)]
    flags += ["--window", str(start.window), "--max-len", str(MAX_LEN)]
    if start.event_log is not None:
        flags += ["--event-log", str(start.event_log)]
    return flags


def _ours(engine: str) -> Callable[[Start], list[str]]:
    program = [sys.executable, str(PEERS / "roomkeeper_server.py"), "--engine", engine]
    return lambda start: [*program, *_stub_flags(start)]


def _python(start: Start) -> list[str]:
    return [sys.executable, str(PEERS / "python_servicer.py"), *_stub_flags(start)]


def _rust(start: Start) -> list[str]:
    flags = ["--handshake-port", str(free_port()), "--scheduler-cpu", str(start.client_cpu)]
    return [sys.executable, str(PEERS / "rust_servicer/server.py"), *_stub_flags(start), *flags]


def _c_standin(start: Start) -> list[str]:
    flags = ["--listen", f"127.0.0.1:{start.port}", "--step-us", str(int(start.step_ms * 1000))]
    flags += ["--window", str(start.window)]
    return [str(ROOT / "build/release/engine_bridge/rk-standin"), *flags]


def _bare(start: Start) -> list[str]:
    program = str(ROOT / "build/bench-native/bench/native/rk-bare")
    return [program, "--port", str(start.port), "--step-us", str(int(start.step_ms * 1000))]


def kinds() -> list[Kind]:
    """What can be measured here."""
    no_stub = frozenset({"cancel", "stuck"})
    only_streams = no_stub | {
        "loads",
        "refusals",
        "slow-reader",
        "choices",
        "logprobs",
        "prompts",
        "waiting",
    }
    return [
        Kind("roomkeeper", _ours("steps"), "import roomkeeper.servicer"),
        Kind("roomkeeper-asyncllm", _ours("asyncllm"), "import roomkeeper.asyncllm"),
        Kind(
            "python",
            _python,
            "import smg_grpc_servicer.tokenspeed.server",
            "import engine_modules; engine_modules.install(None)",
            share=0.2,
        ),
        Kind("rust", _rust, "from smg.servicer import TokenSpeedGrpcServer"),
        Kind("c-standin", _c_standin, lacks=no_stub),
        Kind("bare", _bare, lacks=only_streams),
    ]


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    kind: Kind
    address: str
    pid: int
    start_s: float = 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def loadgen(
    mode: str, server: Running, cpu: int, *options: str, timeout_s: float = LOAD_TIMEOUT_S
) -> dict:
    """One run of the load client, pinned apart from the server."""
    command = ["taskset", "-c", str(cpu), str(LOADGEN), mode, "--address", server.address]
    command += ["--pid", str(server.pid), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{server.kind.name}: {mode} took more than {timeout_s:g} s") from None
    if done.returncode != 0:
        raise RuntimeError(
            f"{server.kind.name}: the load client failed: {done.stderr.strip()[:500]}"
        )
    return json.loads(done.stdout)


def must_succeed(server: Running, work: str, report: dict) -> None:
    if report["failed"]:
        raise RuntimeError(
            f"{server.kind.name}: {report['failed']} requests of {work} failed: "
            f"{report['first_error']}"
        )


def _answers(server: Running, cpu: int) -> bool:
    try:
        report = loadgen("generate", server, cpu, "--streams", "1", "--tokens", "1", timeout_s=5)
    except RuntimeError:
        return False
    return report.get("failed") == 0


@dataclass(frozen=True)
class Bench:
    """Where things run and what they leave behind."""

    server_cpu: int
    client_cpu: int
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "servers.log"


@contextlib.contextmanager
def serve(
    bench: Bench,
    kind: Kind,
    step_ms: float,
    window: int = 4096,
    event_log: Path | None = None,
) -> Iterator[Running]:
    """The server, started alone on its core and answering, until the block ends."""
    port = free_port()
    start = Start(port, step_ms, window, event_log, bench.client_cpu)
    command = ["taskset", "-c", str(bench.server_cpu), *kind.command(start)]
    begun = time.monotonic()
    with bench.log.open("a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    server = Running(kind, f"127.0.0.1:{port}", process.pid)
    try:
        while not _answers(server, bench.client_cpu):
            if process.poll() is not None or time.monotonic() > begun + START_TIMEOUT_S:
                raise RuntimeError(f"{kind.name} did not start; see {bench.log}")
            time.sleep(0.02)
        yield dataclasses.replace(server, start_s=time.monotonic() - begun)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and its scheduler, where that is a child
            process.wait()
