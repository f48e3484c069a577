"""What the stand-in's tests share: workers as processes, a client, engines without a servicer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import itertools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import roomkeeper
from roomkeeper import wire
from roomkeeper.engine import EngineRequest
from roomkeeper.standin import eventloop, process
from roomkeeper.standin.args import parse
from roomkeeper.standin.firstcome import FirstComeScheduling
from roomkeeper.standin.frontend import StandinLLM, launch
from roomkeeper.standin.kv import FAILED, PORT_OFFSET

#: A wide guard against hangs, not a measurement.
GUARD_S = 30.0
WIRE = wire.load()
READY = re.compile(
    r"ready: (?P<addresses>.*), role (?P<role>\w+), window (?P<window>\d+), "
    r"scheduler (?P<scheduler>.*) \(pid (?P<pids>[\d, ]+)\)"
)

_ids = itertools.count(1)


def message(name: str) -> Any:
    return WIRE.message("tokenspeed.grpc.scheduler." + name)


def new_room() -> int:
    """Rooms are used once."""
    return secrets.randbits(48) + 1


def free_bootstrap_port() -> int:
    """One whose KV port is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port + PORT_OFFSET > 65535:
                continue
            with contextlib.suppress(OSError):
                above.bind(("127.0.0.1", port + PORT_OFFSET))
                return int(port)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition; fails by name when it never holds."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


def environment() -> dict[str, str]:
    """For a child: the very package that the test has imported."""
    root = str(Path(roomkeeper.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root}


def run_cli(*words: str, timeout_s: float = GUARD_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roomkeeper", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment()
    )


# -- workers: processes --


@dataclasses.dataclass
class StandinWorker:
    """A worker that is ready, and a client to it."""

    child: subprocess.Popen[str]
    address: str
    scheduler: str
    scheduler_pids: list[int]
    log: Path
    channel: grpc.Channel
    stub: Any
    health: Any

    def request(self, input_ids: list[int], max_new_tokens: int, **fields: Any) -> Any:
        made = message("GenerateRequest")(request_id=f"request-{next(_ids)}", **fields)
        made.tokenized.input_ids.extend(input_ids)
        made.sampling_params.max_new_tokens = max_new_tokens
        made.sampling_params.ignore_eos = True
        return made

    def generate(self, input_ids: list[int], max_new_tokens: int, **fields: Any) -> list[Any]:
        """All messages of one call."""
        request = self.request(input_ids, max_new_tokens, **fields)
        return list(self.stub.Generate(request, timeout=GUARD_S))

    def is_serving(self) -> bool:
        request = WIRE.message("grpc.health.v1.HealthCheckRequest")()
        return bool(self.health.Check(request, timeout=GUARD_S).status == 1)

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def wait(self) -> int:
        return self.child.wait(GUARD_S)

    def log_text(self) -> str:
        return self.log.read_text()


@contextlib.contextmanager
def standin(*flags: str) -> Iterator[StandinWorker]:
    """A worker on a free port; it ends with the block, whatever happens there."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as written:
            child = subprocess.Popen(
                [sys.executable, "-m", "roomkeeper", "standin", "--port", "0", *flags],
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                env=environment(),
            )
        try:
            ready = _read_ready(child, log)
            address = ready["addresses"].split(", ")[0]
            channel = grpc.insecure_channel(address)
            with channel:
                yield StandinWorker(
                    child,
                    address,
                    ready["scheduler"],
                    [int(pid) for pid in ready["pids"].split(", ")],
                    log,
                    channel,
                    WIRE.stub(channel, wire.TOKENSPEED),
                    WIRE.stub(channel, wire.HEALTH),
                )
        finally:
            _end(child)


def _read_ready(child: subprocess.Popen[str], log: Path) -> dict[str, str]:
    guard = threading.Timer(GUARD_S, child.kill)
    guard.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if found := READY.match(line):
                return found.groupdict()
        raise AssertionError(f"the worker did not come up: {log.read_text()}")
    finally:
        guard.cancel()


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


@contextlib.contextmanager
def standin_pair(*flags: str) -> Iterator[tuple[StandinWorker, StandinWorker, int]]:
    """A prefill, a decode, and their bootstrap port."""
    port = free_bootstrap_port()
    both = ("--disaggregation-bootstrap-port", str(port), *flags)
    with (
        standin("--role", "prefill", *both) as prefill,
        standin("--role", "decode", *both) as decode,
    ):
        yield prefill, decode, port


def chunk_tokens(responses: list[Any]) -> list[int]:
    return [t for r in responses if r.HasField("chunk") for t in r.chunk.token_ids]


def complete(responses: list[Any]) -> Any:
    (last,) = [r.complete for r in responses if r.HasField("complete")]
    return last


# -- engines without a servicer --


def engine_request(
    input_ids: list[int],
    max_new_tokens: int = 5,
    *,
    rid: str | None = None,
    stream: bool = True,
    room: tuple[int, int] | None = None,
    **fields: Any,
) -> EngineRequest:
    """``room``: (bootstrap port, room)."""
    sampling = {"max_new_tokens": max_new_tokens, **fields.pop("sampling", {})}
    made = EngineRequest(input_ids, sampling, stream=stream, **fields)
    made.rid = rid or f"request-{next(_ids)}"
    if room is not None:
        made.bootstrap_host = "127.0.0.1"
        made.bootstrap_port, made.bootstrap_room = room
    return made


async def outputs_of(engine: StandinLLM, request: EngineRequest) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [output async for output in engine.generate_request(request)]

    return await asyncio.wait_for(collect(), GUARD_S)


async def ending(engine: StandinLLM, request: EngineRequest) -> str:
    """How a request ends: "stop", "length", "abort"."""
    reason: dict[str, Any] = (await outputs_of(engine, request))[-1]["meta_info"]["finish_reason"]
    return str(reason["type"])


async def running(engine: StandinLLM) -> int:
    """Slots of the window that are taken, as the scheduler counts."""
    loads = await engine.get_load()
    return sum(load.num_reqs - load.num_waiting_reqs for load in loads)


async def until_running(engine: StandinLLM, count: int) -> None:
    async def look() -> None:
        while await running(engine) != count:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), GUARD_S)


def first_come(args: Any, rank: int, end: socket.socket, launcher_pid: int) -> None:
    """A scheduler process without TokenSpeed's scheduler."""
    eventloop.make_scheduling = FirstComeScheduling
    process.run_event_loop(args, rank, end, launcher_pid)


class CommandedLoop(eventloop.EventLoop):
    """Ends rooms when it is told so at a unix socket, on another thread, as a release agent would."""

    def __init__(self, args: Any, rank: int, end: socket.socket) -> None:
        super().__init__(args, rank, end)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(command_path(os.getppid(), args.role))
        listener.listen()
        threading.Thread(target=self._obey, args=(listener,), daemon=True).start()

    def _obey(self, listener: socket.socket) -> None:
        assert self.kv_transfer is not None
        manager: Any = self.kv_transfer.kv_manager
        while True:
            with listener.accept()[0] as asker:
                verb, room = asker.recv(64).decode().split()
                if verb == "abort":
                    manager.abort_room(int(room), "the test says so")
                elif verb == "fail":
                    manager.record_failure(int(room), "the test says so")
                    manager.update_status(int(room), FAILED)
                else:
                    manager.discard_room(int(room))
                asker.send(b"done")


def command_path(pid: int, role: str) -> str:
    return f"\0roomkeeper-test-{pid}-{role}"


def commanded(args: Any, rank: int, end: socket.socket, launcher_pid: int) -> None:
    eventloop.EventLoop = CommandedLoop  # type: ignore[misc]
    process.run_event_loop(args, rank, end, launcher_pid)


def command(role: str, verb: str, room: int) -> None:
    """To the scheduler process of this role that this process has started: abort, fail, discard."""
    with socket.socket(socket.AF_UNIX) as asker:
        asker.settimeout(GUARD_S)
        asker.connect(command_path(os.getpid(), role))
        asker.send(f"{verb} {room}".encode())
        assert asker.recv(16) == b"done"


@contextlib.contextmanager
def launched(*flags: str, entry: process.Entry = process.run_event_loop) -> Iterator[StandinLLM]:
    engine, _ = launch(parse(flags), entry)
    try:
        yield engine
    finally:
        engine.close()


@contextlib.contextmanager
def launched_pair(
    *flags: str, entry: process.Entry = process.run_event_loop
) -> Iterator[tuple[StandinLLM, StandinLLM, int]]:
    port = free_bootstrap_port()
    both = ("--disaggregation-bootstrap-port", str(port), *flags)
    with (
        launched("--role", "prefill", *both, entry=entry) as prefill,
        launched("--role", "decode", *both, entry=entry) as decode,
    ):
        yield prefill, decode, port


def _schedulers() -> list[Any]:
    """Both schedulers, where both are there."""
    cpp = pytest.param(
        process.run_event_loop,
        id="tokenspeed",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("tokenspeed_scheduler") is None,
            reason="tokenspeed-scheduler is not installed",
        ),
    )
    return [cpp, pytest.param(first_come, id="builtin")]


both_schedulers = pytest.mark.parametrize("entry", _schedulers())
