"""What a scheduler process runs: its own entry point, with an agent beside it.

``AgentEntry`` takes the entry point's place in whatever the launcher starts. It is picklable, and
names what it wraps instead of holding it, so that it can also be put where the original was.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from roomkeeper.release import wire
from roomkeeper.release.rooms import CannotAttach, EngineRooms, Transfers

__all__ = ["AgentEntry", "ControllerEntry", "name_of"]

#: Rooms that are not over are asked for again after so long.
AGAIN_S = 1.0
CONNECT_TIMEOUT_S = 10.0
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


def name_of(thing: Callable[..., Any]) -> str:
    """``module:name`` of a function or class at the top of a module."""
    return f"{thing.__module__}:{thing.__qualname__}"


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclasses.dataclass(frozen=True)
class AgentEntry:
    """A scheduler process's entry point. Called with whatever the engine gives the original."""

    #: What is wrapped, as ``module:name``.
    entry: str
    #: The class whose instance is the event loop; it sets ``kv_transfer`` when it is made.
    event_loop: str
    #: The class of a prefill's queues of transfers, likewise; empty: its loop does them itself.
    queue: str
    #: "prefill" or "decode".
    role: str
    #: Where the launcher listens.
    path: str
    launcher_pid: int
    #: How long a prefill's room stays failed, seconds.
    tombstone_s: float

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        end_with_launcher(self.launcher_pid)
        agent = self._connect()
        if agent is not None:
            agent.follow_transfers(self.queue)
            agent.await_event_loop(self.event_loop)
        return _named(self.entry)(*args, **kwargs)

    def _connect(self) -> Agent | None:
        """None: nobody listens there, and the launcher will say that this agent is missing."""
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(CONNECT_TIMEOUT_S)
        try:
            end.connect(self.path)
            _, uid = wire.peer_of(end)
        except OSError as error:
            end.close()
            _end_without(self.launcher_pid)
            _say(f"no agent: {self.path} cannot be connected to: {error.strerror or error}")
            return None
        if uid != os.geteuid():
            end.close()
            _say(f"no agent: {self.path} belongs to user {uid}, and we are user {os.geteuid()}")
            return None
        end.settimeout(None)
        agent = Agent(end, self.role, self.tombstone_s)
        agent.greet()
        return agent


@dataclasses.dataclass(frozen=True)
class ControllerEntry:
    """The entry point of a process that starts the scheduler processes itself.

    ``start`` names what that process gives to its children as their entry point; the agent's takes
    its place there.
    """

    #: What is wrapped, as ``module:name``.
    entry: str
    start: str
    agent: AgentEntry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        end_with_launcher(self.agent.launcher_pid)
        module, _, attribute = self.start.partition(":")
        setattr(importlib.import_module(module), attribute, self.agent)
        return _named(self.entry)(*args, **kwargs)


class Agent(threading.Thread):
    """Hears the launcher for as long as the process lives; ends the process when it is gone."""

    def __init__(self, end: socket.socket, role: str, tombstone_s: float) -> None:
        super().__init__(name="rk-release-agent", daemon=True)
        self._end = end
        self._role = role
        self._tombstone_s = tombstone_s
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._transfers = Transfers()
        self._rooms: EngineRooms | None = None

    # -- the process's main thread --

    def greet(self) -> None:
        """Says hello, and listens from now on."""
        self._send(wire.write(hello=wire.VERSION))
        self.start()

    def follow_transfers(self, name: str) -> None:
        """Before there are any. Where it cannot be done, attaching will find that out."""
        if name and self._role == "prefill":
            with contextlib.suppress(ImportError, AttributeError):
                self._transfers.follow(_named(name))

    def await_event_loop(self, name: str) -> None:
        """Attaches to the event loop as soon as it has been made."""
        try:
            made = _named(name)
        except (ImportError, AttributeError) as error:
            self._ready(f"there is no event loop {name}: {error}")
            return
        original = made.__init__

        @functools.wraps(original)
        def init(event_loop: Any, *args: Any, **kwargs: Any) -> None:
            original(event_loop, *args, **kwargs)
            self._attach(event_loop)

        made.__init__ = init

    def _attach(self, event_loop: Any) -> None:
        if self._rooms is not None:
            return
        try:
            self._rooms = EngineRooms(
                event_loop, self._role, self._tombstone_s, self._transfers, self._notify
            )
        except CannotAttach as error:
            self._ready(str(error))
        else:
            self._ready()

    def _ready(self, why_not: str = "") -> None:
        self._send(wire.write(ready=not why_not, why=wire.text(why_not)))

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    # -- the agent's thread --

    def run(self) -> None:
        inbox = wire.Inbox()
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._patience())]
                if self._end in ready:
                    self._receive(inbox)
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                self._tell()

    def _patience(self) -> float | None:
        return AGAIN_S if self._rooms is not None and self._rooms.outstanding() else None

    def _receive(self, inbox: wire.Inbox) -> None:
        try:
            chunk = self._end.recv(_READ_BYTES)
        except OSError:
            chunk = b""
        if not chunk:
            _end_now()
        try:
            messages = inbox.feed(chunk)
        except wire.WireError as error:  # what follows cannot be made sense of either
            _say(f"the launcher's word cannot be read: {error}")
            _end_now()
        for message in messages:
            self._obey(message)

    def _obey(self, message: dict[str, Any]) -> None:
        number = message.get("end", message.get("forget"))
        try:
            if self._rooms is None:
                raise RuntimeError("the event loop is not there")
            room = wire.whole(message, "room", wire.ROOM_MAX)
            if "end" in message:
                self._rooms.end(
                    wire.whole(message, "end", wire.ROOM_MAX), room, wire.text(message["reason"])
                )
            else:
                wire.whole(message, "forget", wire.ROOM_MAX)
                self._rooms.forget(room)
                self._send(wire.write(done=number))
        except Exception as error:
            self._send(wire.write(failed=number, why=wire.text(error)))

    def _tell(self) -> None:
        """Answers what is over, and asks again for what is not."""
        if self._rooms is None:
            return
        for number in self._rooms.take():
            self._send(wire.write(done=number))
        self._rooms.insist(AGAIN_S)

    def _send(self, line: bytes) -> None:
        try:
            self._end.sendall(line)
        except OSError:
            _end_now()


def end_with_launcher(launcher_pid: int) -> None:
    """The kernel ends this process with the thread that started it, if that is the launcher's.

    A process in between may start its children on threads that end, so there it must not.
    """
    if os.getppid() == launcher_pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher_pid:  # it went in between
            _end_now()


def _end_without(launcher_pid: int) -> None:
    try:
        os.kill(launcher_pid, 0)
    except ProcessLookupError:
        _end_now()
    except OSError:
        return


def _end_now() -> None:
    """No cleanup: whoever is left behind must not write another byte of KV."""
    os.kill(os.getpid(), signal.SIGKILL)


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"release agent of process {os.getpid()}: {line}", file=sys.stderr, flush=True)
