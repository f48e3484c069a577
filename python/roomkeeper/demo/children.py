"""The processes of a run: started with a log each, watched, and ended whatever happens.

Each child leads a session of its own, so that a Ctrl-C at the terminal reaches the demo alone and
the demo decides who ends when. What a child starts itself stays in its process group and goes with
it. Should the demo be killed outright, the kernel ends the children (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from roomkeeper.demo.plan import DemoError

PR_SET_PDEATHSIG = 1
STOP_S = 3.0
POLL_S = 0.05
TAIL_LINES = 12
TAIL_COLUMNS = 240
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """A signal that would end the program waits until the end of the block. Main thread only."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def folder_of_a_run(prefix: str) -> Iterator[Path]:
    """A new temporary folder, gone in the end whenever a signal comes. Main thread only."""
    with signals_held():
        folder = tempfile.TemporaryDirectory(prefix=prefix)
    try:
        yield Path(folder.name)
    finally:
        with signals_held():
            folder.cleanup()


class Child:
    """One process and its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        #: Killed on purpose: its end is no accident.
        self.killed = False

    def signal_group(self, number: int) -> None:
        """To the child and what it has started; nothing when all of it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def group_is_gone(self) -> bool:
        """Whether nothing is left of it and of what it has started."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        """SIGKILL to the process alone, not to what it has started; returns when it is gone."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The end of its log, without colours and in lines that can be read."""
        text = COLOURS.sub("", self.log.read_text(encoding="utf-8", errors="replace"))
        return "\n".join(line[:TAIL_COLUMNS] for line in text.splitlines()[-lines:])

    def failure(self, what: str) -> DemoError:
        """The error that says what went wrong with it and shows the end of its log."""
        tail = self.tail() or "(it said nothing)"
        return DemoError(f"{self.name} {what}; the last lines of its log:\n{tail}")


class Children:
    """The processes of one run. A context: none is left when it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []
        self._die_with_parent = _die_with_parent()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exception: object) -> None:
        # Half a cleanup would leave processes behind.
        with signals_held():
            self.stop()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Starts a process, its output in ``<name>.log``. Main thread only: it is the parent."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,
                    preexec_fn=self._die_with_parent,
                )
            except OSError as error:
                raise DemoError(f"{name} cannot be started: {command[0]}: {error}") from None
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises when a process has ended by itself."""
        for child in self._children:
            code = child.process.poll()
            if code is not None and not child.killed:
                raise child.failure(f"ended with {_how(code)} in the middle of the run")

    def wait_until(
        self, child: Child, ready: Callable[[], bool], timeout_s: float, waiting: Callable[[], None]
    ) -> None:
        """Waits until ``ready`` says so; ``waiting`` is called meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            code = child.process.poll()
            if code is not None:
                raise child.failure(f"ended with {_how(code)} before it was ready")
            if time.monotonic() > deadline:
                raise child.failure(f"was not ready within {timeout_s:g} s")
            waiting()
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends all of them: SIGTERM, and SIGKILL for who is left after three seconds."""
        for child in self._children:
            if child.process.poll() is None:
                child.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children:
            # The group outlives its leader when the leader left something behind.
            child.signal_group(signal.SIGKILL)
            child.process.wait()
        self._children.clear()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _die_with_parent() -> Callable[[], None]:
    """For the child between fork and exec. The library is opened here, before any fork."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def in_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could ask for it
            os._exit(1)

    return in_child
