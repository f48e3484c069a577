"""The launcher's side: starts schedulers with agents, sends rooms to end, gathers the answers.

A thread of its own does all I/O, so answers reach the servicer while the engine's loop is stuck.
The socket's folder exists while the schedulers start, and is gone once all agents are there.
"""

from __future__ import annotations

import collections
import itertools
import logging
import os
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roomkeeper.addresses import socket_folder
from roomkeeper.release import wire
from roomkeeper.release.agent import AgentEntry, ControllerEntry, name_of

if TYPE_CHECKING:
    from roomkeeper.servicer import ReleaseRoom

__all__ = ["ReleaseClient"]

#: Who has connected and does not say what it is goes after so long.
HELLO_S = 10.0
#: Connections that have not said hello, at a time.
STRANGERS_MAX = 16
_READ_BYTES = 1 << 16
_TOO_MANY = (
    f"{wire.OUTSTANDING_MAX} rooms are being ended; further ones wait for the engine's own deadline"
)

_log = logging.getLogger("roomkeeper")


class _Peer:
    """A connection; the agent of one scheduler process once it has said hello."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        end.setblocking(False)
        self.end = end
        self.pid = pid
        self.inbox = wire.Inbox()
        self.unsent = bytearray()
        self.came_at = time.monotonic()
        #: It has said hello.
        self.is_agent = False


class _Asked:
    """A room that is being ended, and who has not answered yet."""

    def __init__(self, handle: int | None, peers: set[_Peer]) -> None:
        #: The servicer's leg; None: nobody is told.
        self.handle = handle
        self.peers = peers


class ReleaseClient:
    """The agents of one engine. Made before its scheduler processes are started.

    ``processes`` is how many there will be on this host. Keep it open until they have ended: they
    end with it. OSError when there is nowhere to listen.
    """

    def __init__(self, role: str, processes: int, tombstone_s: float) -> None:
        self._role = role
        self._processes = processes
        self._tombstone_s = tombstone_s
        self._folder, self._listener = _listen(processes + STRANGERS_MAX)
        self._path = self._listener.getsockname()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        #: Guards what follows; notified when an agent has come or gone.
        self._changed = threading.Condition()
        self._to_send: collections.deque[tuple[int | None, dict[str, Any]]] = collections.deque()
        #: Agents that have come, and those of them that have said how their attaching went.
        self._agents = 0
        self._ready = 0
        self._why_not = ""
        self._lost = False
        self._closed = False
        #: By number. The client's thread only.
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count(1)
        self._complained: set[str] = set()
        self._on_released: Callable[[int], None] | None = None
        self._thread = threading.Thread(target=self._run, name="rk-release", daemon=True)
        self._thread.start()

    # -- any thread --

    def entry(self, entry: Callable[..., Any], event_loop: str, queue: str = "") -> AgentEntry:
        """What a scheduler process is to run in the place of ``entry``.

        ``event_loop`` names the class of its event loop, as ``module:name``; ``queue`` that of a
        prefill's queues of transfers, where it has any.
        """
        return AgentEntry(
            name_of(entry),
            event_loop,
            queue,
            self._role,
            self._path,
            os.getpid(),
            self._tombstone_s,
        )

    def controller(self, entry: Callable[..., Any], start: str, agent: AgentEntry) -> Any:
        """The same for a process that starts the scheduler processes, with ``start``, itself."""
        return ControllerEntry(name_of(entry), start, agent)

    def wait_attached(self, timeout_s: float) -> str:
        """Blocks until every agent has said whether it could attach; empty, or why not all have."""
        with self._changed:
            self._changed.wait_for(lambda: self._why_not or self._all_ready(), timeout_s)
            missing = self._processes - self._ready
            if missing and not self._why_not:
                self._why_not = (
                    f"{missing} of {self._processes} scheduler processes have no agent "
                    f"after {timeout_s:g} s"
                )
            why_not = self._why_not
        self.stop_listening()
        return why_not

    @property
    def attached(self) -> bool:
        """Whether every scheduler process has an agent that can end rooms."""
        with self._changed:
            return self._all_ready() and not self._why_not

    def _all_ready(self) -> bool:
        return self._ready >= self._processes

    def refuse(self, why: str) -> None:
        """The agents see to it that nobody is left behind, but end no rooms."""
        with self._changed:
            self._why_not = self._why_not or why
            self._changed.notify_all()

    def start(self, on_released: Callable[[int], None]) -> None:
        """From now on ``on_released(handle)`` is told, on the client's thread."""
        self._on_released = on_released

    def release(self, command: ReleaseRoom) -> None:
        """Ends a room in every scheduler process. Never blocks.

        ``on_released`` hears of its handle when all have acknowledged; when one cannot, or is
        gone, it does not, and the slot waits for the engine's own deadline.
        """
        message = {"room": command.room, "reason": wire.text(command.reason)}
        self._post(command.handle, {"end": 0, **message})

    def forget(self, room: int) -> None:
        """A room that has been ended need not stay failed any longer. Never blocks."""
        self._post(None, {"forget": 0, "room": room})

    def close(self) -> None:
        """Lets the agents go; processes of theirs that are still there end. Again is fine."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def stop_listening(self) -> None:
        """Removes the socket's folder; who is connected stays. For a start that has failed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _post(self, handle: int | None, message: dict[str, Any]) -> None:
        with self._changed:
            if self._closed:
                return
            full = len(self._to_send) >= wire.OUTSTANDING_MAX
            if not full:
                self._to_send.append((handle, message))
                os.eventfd_write(self._wake, 1)
        if full:
            self._complain(_TOO_MANY)

    def _complain(self, line: str) -> None:
        """Says each thing once."""
        if line not in self._complained:
            self._complained.add(line)
            _log.warning("release agent: %s", line)

    # -- the client's thread --

    def _run(self) -> None:
        while not self._closed:
            for key, mask in self._selector.select(HELLO_S if self._listening() else None):
                self._attend(key.fileobj, mask)
            self._send_what_waits()
            self._drop_strangers()
        self._stop_accepting()
        for peer in list(self._peers.values()):
            peer.end.close()
        self._selector.close()
        os.close(self._wake)

    def _listening(self) -> bool:
        return self._listener.fileno() >= 0

    def _attend(self, file: Any, mask: int) -> None:
        if file is self._listener:
            self._accept()
        elif file == self._wake:
            os.eventfd_read(self._wake)
        elif (peer := self._peers.get(file)) is not None:
            self._serve(peer, mask)

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError:
            return
        pid, uid = wire.peer_of(end)
        strangers = sum(not peer.is_agent for peer in self._peers.values())
        if uid != os.geteuid() or strangers >= STRANGERS_MAX:
            _log.warning("release agent: process %d of user %d is not let in", pid, uid)
            end.close()
            return
        self._peers[end] = _Peer(end, pid)
        self._selector.register(end, selectors.EVENT_READ)

    def _stop_accepting(self) -> None:
        if self._listening():
            self._selector.unregister(self._listener)
            self._listener.close()
            self.stop_listening()

    def _drop_strangers(self) -> None:
        late = time.monotonic() - HELLO_S
        for peer in list(self._peers.values()):
            if not peer.is_agent and peer.came_at < late:
                self._drop(peer, "it has not said what it is")

    def _serve(self, peer: _Peer, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(peer)
            if mask & selectors.EVENT_READ:
                chunk = peer.end.recv(_READ_BYTES)
                if not chunk:
                    raise ConnectionResetError("it is gone")
                for message in peer.inbox.feed(chunk):
                    self._hear(peer, message)
        except BlockingIOError:
            pass
        except (OSError, wire.WireError) as error:
            self._drop(peer, str(error))

    def _drop(self, peer: _Peer, why: str) -> None:
        del self._peers[peer.end]
        self._selector.unregister(peer.end)
        peer.end.close()
        if not peer.is_agent:
            _log.warning("release agent: process %d is dropped: %s", peer.pid, why)
            return
        _log.debug("release agent of process %d: %s", peer.pid, why)
        # What it was asked nobody will ever answer.
        self._asked = {n: asked for n, asked in self._asked.items() if peer not in asked.peers}
        self._lost = True
        with self._changed:
            self._why_not = self._why_not or f"scheduler process {peer.pid} is gone"
            self._changed.notify_all()

    # -- messages --

    def _hear(self, peer: _Peer, message: dict[str, Any]) -> None:
        if not peer.is_agent:
            self._greet(peer, message)
        elif "ready" in message:
            self._note_ready(message)
        elif "done" in message:
            self._done(peer, wire.whole(message, "done", wire.ROOM_MAX))
        else:
            number = wire.whole(message, "failed", wire.ROOM_MAX)
            self._asked.pop(number, None)
            self._complain(f"process {peer.pid} cannot end a room: {wire.text(message.get('why'))}")

    def _greet(self, peer: _Peer, message: dict[str, Any]) -> None:
        version = wire.whole(message, "hello", wire.ROOM_MAX)
        if version != wire.VERSION:
            raise wire.WireError(f"it speaks version {version}, and we version {wire.VERSION}")
        with self._changed:
            if self._agents >= self._processes:
                raise wire.WireError(f"there are {self._processes} agents already")
            peer.is_agent = True
            self._agents += 1
            complete = self._agents == self._processes
        if complete:
            self._stop_accepting()

    def _note_ready(self, message: dict[str, Any]) -> None:
        with self._changed:
            self._ready += 1
            if message["ready"] is not True:
                self._why_not = self._why_not or wire.text(message.get("why")) or "no reason given"
            self._changed.notify_all()

    def _done(self, peer: _Peer, number: int) -> None:
        asked = self._asked.get(number)
        if asked is None:
            return
        asked.peers.discard(peer)
        if asked.peers:
            return
        del self._asked[number]
        if asked.handle is None or self._on_released is None:
            return
        try:
            self._on_released(asked.handle)
        except Exception:
            _log.exception("the servicer does not take the release of leg %d", asked.handle)

    def _send_what_waits(self) -> None:
        with self._changed:
            waiting = list(self._to_send)
            self._to_send.clear()
        agents = [peer for peer in self._peers.values() if peer.is_agent]
        for handle, message in waiting:
            if self._lost or len(agents) < self._processes:
                continue  # not all can acknowledge, and the worker ends anyway
            if len(self._asked) >= wire.OUTSTANDING_MAX:
                self._complain(_TOO_MANY)
                continue
            number = next(self._numbers)
            self._asked[number] = _Asked(handle, set(agents))
            verb = next(iter(message))
            line = wire.write(**{**message, verb: number})
            for peer in agents:
                peer.unsent += line
        for peer in agents:
            self._try_flush(peer)

    def _try_flush(self, peer: _Peer) -> None:
        if not peer.unsent:
            return
        try:
            self._flush(peer)
        except BlockingIOError:
            self._want_write(peer, True)
        except OSError as error:
            self._drop(peer, str(error))

    def _flush(self, peer: _Peer) -> None:
        while peer.unsent:
            with memoryview(peer.unsent) as view:
                sent = peer.end.send(view)
            del peer.unsent[:sent]
        self._want_write(peer, False)

    def _want_write(self, peer: _Peer, wanted: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(peer.end, events)


def _listen(backlog: int) -> tuple[Path, socket.socket]:
    """In a folder that is nobody else's."""
    folder = socket_folder("roomkeeper-", "release")
    path = folder / "release"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(path))
        listener.listen(backlog)
    except OSError:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    listener.setblocking(False)
    return folder, listener
