"""The engine's processes, seen from the process that started them: who is there, who has ended.

Engines start their schedulers as ``multiprocessing`` children and keep them to themselves. One that
dies while the engine starts leaves the launch waiting for its report, one that dies later leaves a
servicer with nothing behind it. Both must end the worker, so a thread looks at them ten times a
second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

__all__ = ["EngineWatch", "descendants", "end_processes"]

_PERIOD_S = 0.1


class EngineWatch(threading.Thread):
    """Tells of the first engine process that ends by itself: ``on_exit(pid, exit code)``, once.

    Children seen until ``freeze`` are the engine's; later ones, a pool's say, are not watched.
    """

    def __init__(self, on_exit: Callable[[int, int], None]) -> None:
        super().__init__(name="rk-engine-watch", daemon=True)
        self._on_exit = on_exit
        self._over = threading.Event()
        self._frozen = False
        self._lock = threading.Lock()
        self._seen: dict[int, BaseProcess] = {}

    def run(self) -> None:
        while not self._over.is_set():
            ended = self._look()
            if ended is not None:
                if not self._over.is_set():
                    self._on_exit(*ended)
                return
            self._over.wait(_PERIOD_S)

    def freeze(self) -> list[int]:
        """The engine is up: no further children are watched. The ids of those that are."""
        self._look()
        with self._lock:
            self._frozen = True
            return list(self._seen)

    def stop(self) -> None:
        """From now on they may end. Any thread; again is fine."""
        self._over.set()

    def _look(self) -> tuple[int, int] | None:
        with self._lock:
            if not self._frozen:
                # Another thread may be starting one right now, which changes the set.
                with contextlib.suppress(RuntimeError):
                    for process in multiprocessing.active_children():
                        if process.pid is not None:
                            self._seen.setdefault(process.pid, process)
            for pid, process in self._seen.items():
                code = process.exitcode
                if code is not None:
                    return pid, code
        return None


class Process(NamedTuple):
    """A process that is not taken for a later one with its number."""

    pid: int
    #: Clock ticks after boot.
    started: int


def descendants() -> list[Process]:
    """The processes below this one, parents before their children.

    Without multiprocessing's resource tracker, which ends with this process and not before.
    """
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _read(int(entry.name))) is not None:
            parent, process = found
            children.setdefault(parent, []).append(process)
    tracker = getattr(resource_tracker, "_resource_tracker", None)
    ignored = getattr(tracker, "_pid", None)
    below: list[Process] = []
    level = [os.getpid()]
    while level:
        next_level = [process for parent in level for process in children.get(parent, ())]
        below.extend(process for process in next_level if process.pid != ignored)
        level = [process.pid for process in next_level]
    return below


def end_processes(grace_s: float) -> None:
    """Ends this process's children and theirs: asks, waits ``grace_s`` at most, then kills.

    Blocks. Any thread.
    """
    below = descendants()
    if grace_s > 0:
        _signal(below, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(map(_is_there, below)) and time.monotonic() < deadline:
            multiprocessing.active_children()  # reaps
            time.sleep(0.05)
    _signal({*below, *descendants()}, signal.SIGKILL)


def _read(pid: int) -> tuple[int, Process] | None:
    """The parent's id, and the process; None when it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # "pid (any name) state parent …"
    if fields[0] in "ZX":
        return None
    return int(fields[1]), Process(pid, int(fields[19]))


def _is_there(process: Process) -> bool:
    found = _read(process.pid)
    return found is not None and found[1] == process


def _signal(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        if _is_there(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
