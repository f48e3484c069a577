"""The servers under test: how to start one, alone, pinned, and how to end it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADGEN = ROOT / "build/loadgen/release/loadgen"
START_TIMEOUT_S = 60


@dataclass(frozen=True)
class Kind:
    """A server by name: its command, without port and step."""

    name: str
    command: tuple[str, ...]
    step_flag: str = "--step-ms"


def kinds() -> list[Kind]:
    """What can be measured here."""
    peers = ROOT / "bench/peers"
    python = sys.executable
    return [
        Kind("roomkeeper", (python, str(peers / "roomkeeper_server.py"), "--engine", "steps")),
        Kind(
            "roomkeeper-asyncllm",
            (python, str(peers / "roomkeeper_server.py"), "--engine", "asyncllm"),
        ),
        Kind("python", (python, str(peers / "python_servicer.py"))),
    ]


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    kind: Kind
    address: str
    pid: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def loadgen(mode: str, server: Running, cpu: int, *options: str) -> dict:
    """One run of the load client, pinned apart from the server."""
    command = ["taskset", "-c", str(cpu), str(LOADGEN), mode, "--address", server.address]
    command += ["--pid", str(server.pid), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"the load client failed: {done.stderr.strip()[:500]}")
    return json.loads(done.stdout)


def _answers(server: Running, cpu: int) -> bool:
    try:
        report = loadgen("generate", server, cpu, "--streams", "1", "--tokens", "1")
    except RuntimeError:
        return False
    return report.get("failed") == 0


@contextlib.contextmanager
def serve(
    kind: Kind, step_ms: float, server_cpu: int, client_cpu: int, log: Path
) -> Iterator[Running]:
    """The server, started and answering, until the block ends."""
    port = free_port()
    command = ["taskset", "-c", str(server_cpu), *kind.command]
    command += ["--port", str(port), kind.step_flag, str(step_ms), "--window", "4096"]
    with log.open("a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=dict(os.environ))
    server = Running(kind, f"127.0.0.1:{port}", process.pid)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(server, client_cpu):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{kind.name} did not start; see {log}")
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
