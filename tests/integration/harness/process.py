"""Programs under test: started, listened to, ended, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import roomkeeper
from harness.client import GUARD_S

PROGRAMS = Path(__file__).parent / "programs"
#: Under a sanitizer, or valgrind, everything takes its time.
SANITIZED = bool(os.environ.get("ROOMKEEPER_SANITIZED"))


def build_folder() -> Path:
    """Where the build under test is."""
    if given := os.environ.get("ROOMKEEPER_BUILD"):
        return Path(given).absolute()
    from roomkeeper import _bridge

    return Path(_bridge.__file__).absolute().parent.parent.parent


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """A process whose output is read line by line while it runs."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        python_path = [
            str(Path(roomkeeper.__file__).absolute().parent.parent),
            str(PROGRAMS.parent.parent),
        ]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(python_path),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self.command = command
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def output(self) -> str:
        with self._changed:
            return "\n".join(self.lines)

    def find(self, pattern: str) -> re.Match[str] | None:
        with self._changed:
            return next((m for m in (re.search(pattern, line) for line in self.lines) if m), None)

    def wait_line(self, pattern: str, guard_s: float = 2 * GUARD_S) -> re.Match[str]:
        """The first line that matches, once there is one."""
        deadline = time.monotonic() + guard_s
        while (found := self.find(pattern)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                if (found := self.find(pattern)) is not None:
                    return found
                raise AssertionError(f"{self.command} never said {pattern!r}:\n{self.output()}")
            with self._changed:
                self._changed.wait(min(left, 0.05))
        return found

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, guard_s: float = 2 * GUARD_S) -> int:
        """The exit code, once it has ended; its output is complete then."""
        try:
            code = self.process.wait(guard_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} does not end:\n{self.output()}") from None
        self._reader.join(GUARD_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(GUARD_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def program(name: str, *arguments: str) -> Iterator[Program]:
    """One of harness/programs, in a process of its own."""
    with Program(
        [sys.executable, "-X", "dev", str(PROGRAMS / f"{name}.py"), *arguments]
    ) as started:
        yield started


def run(name: str, *arguments: str, guard_s: float = 4 * GUARD_S) -> Program:
    """Runs one of harness/programs to its end."""
    with program(name, *arguments) as started:
        started.wait(guard_s)
    return started


@contextlib.contextmanager
def c_standin(*arguments: str) -> Iterator[tuple[Program, str]]:
    """The C stand-in engine behind the servicer; with its address."""
    binary = build_folder() / "engine_bridge/rk-standin"
    if not binary.exists():
        pytest.skip(f"rk-standin is not built in {build_folder()}")
    flags = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    # A plain program: it has its sanitizer linked in and needs no runtime loaded before it.
    with Program([str(binary), *flags, *arguments], {"LD_PRELOAD": ""}) as started:
        port = started.wait_line(r"listening on 127\.0\.0\.1:\d+, port (\d+)").group(1)
        started.wait_line(r"serving$")
        yield started, f"127.0.0.1:{port}"


class Worker:
    """``python -m roomkeeper standin`` and where to reach it."""

    def __init__(self, started: Program, address: str) -> None:
        self.program = started
        self.address = address

    def wait_serving(self) -> None:
        """Until it says that it is ready, which it does once it is SERVING."""
        self.program.wait_line(r"^ready: ")

    @property
    def scheduler_pids(self) -> list[int]:
        """The engine's scheduler processes, as the worker names them when it is ready."""
        named = self.program.wait_line(r"^ready: .*\(pid ([\d, ]+)\)").group(1)
        return [int(pid) for pid in named.split(", ")]

    @property
    def scheduler(self) -> str:
        """Which scheduler it has."""
        return self.program.wait_line(r"^ready: .* scheduler (.*) \(pid").group(1)


@contextlib.contextmanager
def standin(
    *arguments: str, port: int | None = None, wait: bool = True, folder: Path | None = None
) -> Iterator[Worker]:
    """The Python stand-in engine, serving; or, without ``wait``, on its way there."""
    port = port or free_port()
    command = [sys.executable, "-m", "roomkeeper", "standin", "--host", "127.0.0.1"]
    with Program([*command, "--port", str(port), *arguments], folder=folder) as started:
        worker = Worker(started, f"127.0.0.1:{port}")
        if wait:
            worker.wait_serving()
        try:
            yield worker
        finally:
            if started.process.poll() is None:
                started.signal(signal.SIGTERM)
                with contextlib.suppress(AssertionError):
                    started.wait(GUARD_S)


def has_cpp_scheduler() -> bool:
    """Whether the real scheduler is installed."""
    try:
        import tokenspeed_scheduler  # noqa: F401
    except ImportError:
        return False
    return True


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"no such process: {pid}")


__all__ = [
    "SANITIZED",
    "Program",
    "Worker",
    "build_folder",
    "c_standin",
    "free_port",
    "has_cpp_scheduler",
    "memory_kib",
    "program",
    "run",
    "standin",
]
