"""The scheduler processes, seen from their launcher: started, watched, ended.

Started with spawn, so a child has nothing of its launcher but one end of a socket pair. It ends
when the other end closes, and the kernel ends it with the thread that started it, should even that
fail: a dead servicer means dead schedulers. So start them on a thread that stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from roomkeeper.errors import RoomkeeperError
from roomkeeper.standin import messages
from roomkeeper.standin.args import StandinArgs
from roomkeeper.standin.kv import PortTaken
from roomkeeper.standin.kvpublisher import CannotPublish
from roomkeeper.standin.pipe import Pipe

READY_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1

#: What a scheduler process runs: (arguments, rank, its end of the pipe, pid of its launcher).
Entry: TypeAlias = Callable[[StandinArgs, int, socket.socket, int], None]


class LaunchError(RoomkeeperError, RuntimeError):
    """A scheduler process that did not come up; one line."""


def run_event_loop(args: StandinArgs, rank: int, end: socket.socket, launcher_pid: int) -> None:
    """The scheduler process. Ends with its launcher; 1 when it fails."""
    _die_with(launcher_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides
    from roomkeeper.standin.eventloop import EventLoop

    try:
        loop = EventLoop(args, rank, end)
    except (PortTaken, CannotPublish) as error:
        _report_failure(end, str(error))
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda *_: setattr(loop, "stopping", True))
    try:
        loop.run()
    except ValueError as error:  # the scheduler's refusal of an id that it still knows
        print(f"the scheduler process of rank {rank} ends: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _report_failure(end: socket.socket, why: str) -> None:
    """Says so and waits until the launcher has heard it: a watch might see our end first."""
    pipe = Pipe(end, lambda _: None)
    pipe.send(messages.Failed(why))
    end.setblocking(True)
    end.settimeout(READY_TIMEOUT_S)
    with contextlib.suppress(OSError):
        end.recv(1)


def _die_with(launcher_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        sys.exit(1)


class SchedulerProcess:
    """One scheduler process, and our end of the pipe to it."""

    def __init__(self, args: StandinArgs, rank: int, entry: Entry = run_event_loop) -> None:
        self.rank = rank
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        context = multiprocessing.get_context("spawn")
        self.process: BaseProcess = context.Process(
            target=entry,
            args=(args, rank, theirs, os.getpid()),
            name=f"standin-scheduler-{rank}",
            daemon=True,
        )
        with theirs:
            self.process.start()

    def wait_ready(self, pipe: Pipe) -> tuple[messages.Ready, list[messages.FromScheduler]]:
        """The ready report, and the other messages so far. LaunchError: it did not come up."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        others: list[messages.FromScheduler] = []
        ready: messages.Ready | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self.end, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                for message in self._receive(pipe):
                    if isinstance(message, messages.Failed):
                        raise LaunchError(message.why)
                    if isinstance(message, messages.Ready):
                        ready = message
                    else:
                        others.append(message)
                if ready is not None:
                    return ready, others
        raise LaunchError(
            f"the scheduler process of rank {self.rank} was not ready within {READY_TIMEOUT_S:g} s"
        )

    def _receive(self, pipe: Pipe) -> list[messages.FromScheduler]:
        try:
            return pipe.receive()
        except EOFError:
            self.process.join(READY_TIMEOUT_S)
            raise LaunchError(
                f"the scheduler process of rank {self.rank} ended with exit code "
                f"{self.process.exitcode} before it was ready"
            ) from None

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends it: it sees our end close; should it not look, it is killed. Again is fine."""
        with contextlib.suppress(OSError):
            self.end.close()
        self.process.join(timeout_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(timeout_s)
