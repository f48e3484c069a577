"""What the release agent's tests share: engines with agents, and what scheduler processes run here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path

from roomkeeper.release.client import ReleaseClient
from roomkeeper.servicer import ReleaseRoom
from roomkeeper.standin import process
from roomkeeper.standin.args import parse
from roomkeeper.standin.frontend import StandinLLM, launch
from standin_support import GUARD_S, free_bootstrap_port, until

EVENT_LOOP = "roomkeeper.standin.eventloop:EventLoop"


@dataclasses.dataclass
class Agents:
    """An engine whose scheduler processes have agents, and what these have acknowledged."""

    engine: StandinLLM
    client: ReleaseClient
    released: queue.SimpleQueue[int]

    def release(self, room: int, handle: int = 1) -> None:
        self.client.release(ReleaseRoom((handle, "127.0.0.1", 8998, room, "the test says so")))

    def wait_released(self) -> int:
        return self.released.get(timeout=GUARD_S)

    def pids(self) -> list[int]:
        return [scheduler.pid for scheduler in self.engine.processes]


@contextlib.contextmanager
def with_agents(
    role: str, *flags: str, tombstone_s: float = 60.0, entry: process.Entry = process.run_event_loop
) -> Iterator[Agents]:
    args = parse(["--role", role, "--step-ms", "1", *flags])
    client = ReleaseClient(role, args.ranks, tombstone_s)
    released: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        engine, _ = launch(args, client.entry(entry, EVENT_LOOP))
        try:
            assert client.wait_attached(GUARD_S) == ""
            client.start(released.put)
            yield Agents(engine, client, released)
        finally:
            engine.close()
    finally:
        client.close()


@contextlib.contextmanager
def pair_with_agents(
    *flags: str, tombstone_s: float = 60.0, entry: process.Entry = process.run_event_loop
) -> Iterator[tuple[Agents, Agents, int]]:
    """A prefill, a decode, and their bootstrap port."""
    port = free_bootstrap_port()
    both = ("--disaggregation-bootstrap-port", str(port), *flags)
    with (
        with_agents("prefill", *both, tombstone_s=tombstone_s, entry=entry) as prefill,
        with_agents("decode", *both, tombstone_s=tombstone_s, entry=entry) as decode,
    ):
        yield prefill, decode, port


def is_alive(pid: int) -> bool:
    """A process that only waits to be reaped is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until_gone(*pids: int) -> None:
    until(lambda: not any(map(is_alive, pids)), f"the end of {pids}")


# -- entry points --


class Manager:
    """A decode's KV manager, with nothing behind it."""

    def record_failure(self, room: int, reason: str) -> None:
        pass

    def update_status(self, room: int, status: int) -> None:
        pass


class Transfer:
    def __init__(self) -> None:
        self.kv_manager = Manager()
        self.receivers: dict[str, object] = {}

    def generate_events(self) -> list[object]:
        return []


class IdleLoop:
    """An event loop that does nothing but go round."""

    def __init__(self) -> None:
        self.kv_transfer = Transfer()

    def run(self) -> None:
        while True:
            self.kv_transfer.generate_events()
            time.sleep(0.001)


class BareLoop:
    """The event loop of an engine that has other names."""

    def __init__(self) -> None:
        self.kv_transfer = object()


def run_idle(pid_file: str) -> None:
    loop = IdleLoop()
    Path(pid_file).write_text(str(os.getpid()))
    loop.run()


def run_bare(pid_file: str) -> None:
    BareLoop()
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(1e6)


def run_controller(pid_file: str) -> None:
    """A process that starts the scheduler itself, on a thread that ends."""
    import multiprocessing
    import threading

    import release_support

    context = multiprocessing.get_context("spawn")
    child = context.Process(target=release_support.start_child, args=(pid_file,))
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    child.join()


#: What the controller gives to its children.
start_child = run_idle
