"""Stands in for the KV transfer between a prefill and a decode worker on one machine.

No KV moves, only the two messages that matter to scheduling. The prefill listens on 127.0.0.1 at
its bootstrap port + 1000. Once the decode's scheduler has admitted a room to its window, the decode
asks for it; once the prefill has computed the prompt, it answers with the first token. Neither side
tells the other of a failure by itself, so a room that dies on one side stays a riddle to the other:
``KvManager.abort_room`` is what would tell it, if somebody called it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from roomkeeper.errors import RoomkeeperError
from roomkeeper.standin.lines import Lines

PORT_OFFSET = 1000
HOST = "127.0.0.1"
#: TransferPoll.Failed in the engine.
FAILED = 0
#: Rooms remembered that no request here has, on either side; the oldest go first.
ROOMS_MAX = 65536
#: Decode workers connected to a prefill at a time.
PEERS_MAX = 256
#: A decode tries again to connect after so long.
RETRY_S = 0.2


class PortTaken(RoomkeeperError):
    """The port where a prefill meets its decodes cannot be listened on; one line."""


class Leg(NamedTuple):
    """A request that has a room, named as on the engine's senders and receivers."""

    bootstrap_room: int


class Arrival(NamedTuple):
    """The KV of a room, as the decode sees it."""

    room: int
    #: The first output token, which the prefill computed.
    token: int = -1
    #: Prompt tokens that the prefill had in its prefix cache.
    cached_tokens: int = 0
    #: The prefill gave the room up and said so.
    failed: bool = False
    #: What the model goes by: the prompt, and what it saw of it. Of an embedding: what was seen.
    checksum: int = 0


class KvManager:
    """The part of the engine's KV manager that ends a room before its deadline.

    Any thread, as in the engine, whose own status thread uses the same calls. A room that has
    failed stays so until ``discard_room``, which the engine calls when the room's request is over.
    ``wake`` makes the scheduler's thread look.
    """

    #: The engine's transfer threads have theirs here. Ours is done on the scheduler's thread.
    transfer_queues: tuple[Any, ...] = ()

    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._wake = wake
        #: Rooms that have failed, oldest first.
        self._failed: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        #: Failures the scheduler's thread has not seen: room -> whether the decode is to be told.
        self._news: dict[int, bool] = {}

    def record_failure(self, room: int, reason: str) -> None:
        """Notes why a room fails; ends nothing."""
        with self._lock:
            self._reasons[room] = reason
            _bound(self._reasons)

    def update_status(self, room: int, status: int) -> None:
        """Fails the room here, when ``status`` is FAILED."""
        if status == FAILED:
            self._fail(room, tell_decode=False)

    def discard_room(self, room: int) -> None:
        """Forgets all of a room."""
        with self._lock:
            self._failed.pop(room, None)
            self._reasons.pop(room, None)
            self._news.pop(room, None)

    def _fail(self, room: int, *, tell_decode: bool) -> None:
        with self._lock:
            reason = self._reasons.get(room, "")
            self._failed[room] = reason
            self._news[room] = tell_decode or self._news.get(room, False)
            _bound(self._failed)
            _bound(self._news)
        self._wake()

    def has_failed(self, room: int) -> bool:
        """Whether the room has failed and has not been discarded."""
        with self._lock:
            return room in self._failed

    def take_news(self) -> list[tuple[int, bool]]:
        """Rooms that have failed since, and whether the decode is to be told. Scheduler thread."""
        with self._lock:
            news, self._news = self._news, {}
        return list(news.items())


class PrefillKvManager(KvManager):
    """A prefill's, which can also tell the decode."""

    def abort_room(self, room: int, reason: str) -> None:
        """Fails the room here and tells the decode, if that has asked for it."""
        self.record_failure(room, reason)
        self._fail(room, tell_decode=True)


class KvTransfer:
    """Named as on the engine's event loop: ``event_loop.kv_transfer.kv_manager``."""

    def __init__(self, selector: selectors.BaseSelector, role: str) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        selector.register(self._event, selectors.EVENT_READ, lambda _: os.eventfd_read(self._event))
        manager = PrefillKvManager if role == "prefill" else KvManager
        self.kv_manager = manager(lambda: os.eventfd_write(self._event, 1))
        #: The requests that have a room, by id: a prefill's, and a decode's.
        self.senders: dict[str, Leg] = {}
        self.receivers: dict[str, Leg] = {}
        self._legs = self.senders if role == "prefill" else self.receivers

    def register(self, request_id: str, room: int) -> None:
        """A request of this room has come. Scheduler thread, as the rest."""
        self._legs[request_id] = Leg(room)

    def drop(self, request_id: str) -> None:
        """It is over."""
        self._legs.pop(request_id, None)

    def generate_events(self) -> list[tuple[int, bool]]:
        """Once a round: the rooms that have failed, and whether the decode is to be told."""
        return self.kv_manager.take_news()


class PrefillEnd:
    """Answers decodes that ask for rooms. Scheduler thread only."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        bootstrap_port: int,
        asked: Callable[[int], None],
    ) -> None:
        self._selector = selector
        self._asked = asked
        self._peers: set[Lines] = set()
        self._peer_of_room: dict[int, Lines] = {}
        self._listener = _listen(bootstrap_port)
        selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError:
            return
        if len(self._peers) >= PEERS_MAX:
            end.close()
            return
        peer = Lines(self._selector, end, self._line, self._lost)
        self._peers.add(peer)

    def _line(self, peer: Lines, line: bytes) -> None:
        room = _read_ask(line)
        if room is None:
            peer.close()
            return
        self._peer_of_room[room] = peer
        _bound(self._peer_of_room)
        self._asked(room)

    def _lost(self, peer: Lines) -> None:
        self._peers.discard(peer)
        self._peer_of_room = {r: p for r, p in self._peer_of_room.items() if p is not peer}

    def is_asked(self, room: int) -> bool:
        """Whether a decode has admitted the room."""
        return room in self._peer_of_room

    def send(self, arrival: Arrival) -> None:
        """To the decode that has asked for the room, if any."""
        peer = self._peer_of_room.get(arrival.room)
        if peer is not None:
            peer.send(json.dumps(arrival._asdict()).encode())

    def forget(self, room: int) -> None:
        """The room is over; who asks for it now asks anew."""
        self._peer_of_room.pop(room, None)


class DecodeEnd:
    """Asks prefills for rooms. Scheduler thread only.

    A prefill that is not there is tried again for as long as somebody waits for a room of it.
    """

    def __init__(
        self, selector: selectors.BaseSelector, arrived: Callable[[Arrival], None]
    ) -> None:
        self._selector = selector
        self._arrived = arrived
        self._peers: dict[int, Lines] = {}  # by bootstrap port
        self._waiting: dict[int, set[int]] = {}  # by bootstrap port: rooms asked for
        self._retry_at: dict[int, float] = {}

    def ask(self, bootstrap_port: int, room: int) -> None:
        """A request of this room has been admitted."""
        self._waiting.setdefault(bootstrap_port, set()).add(room)
        peer = self._peers.get(bootstrap_port)
        if peer is not None:
            peer.send(b'{"room": %d}' % room)
        elif bootstrap_port not in self._retry_at:
            self._connect(bootstrap_port)

    def forget(self, bootstrap_port: int, room: int) -> None:
        """Nobody waits for the room any more; the prefill is not told."""
        rooms = self._waiting.get(bootstrap_port)
        if rooms is not None:
            rooms.discard(room)
            if not rooms:
                del self._waiting[bootstrap_port]

    def retry(self, now: float) -> None:
        """Connects again where a connection was lost."""
        for port, at in list(self._retry_at.items()):
            if port not in self._waiting:
                del self._retry_at[port]
            elif at == 0:
                self._retry_at[port] = now + RETRY_S
            elif at <= now:
                del self._retry_at[port]
                self._connect(port)

    def _connect(self, bootstrap_port: int) -> None:
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        end.setblocking(False)
        error = end.connect_ex((HOST, bootstrap_port + PORT_OFFSET))
        if error not in (0, errno.EINPROGRESS):
            end.close()
            self._retry_at[bootstrap_port] = 0
            return
        peer = Lines(self._selector, end, self._line, lambda peer: self._lost(bootstrap_port, peer))
        self._peers[bootstrap_port] = peer
        for room in self._waiting.get(bootstrap_port, ()):
            peer.send(b'{"room": %d}' % room)

    def _line(self, peer: Lines, line: bytes) -> None:
        try:
            arrival = Arrival(**json.loads(line))
        except (ValueError, TypeError):
            peer.close()
            return
        self._arrived(arrival)

    def _lost(self, bootstrap_port: int, peer: Lines) -> None:
        if self._peers.get(bootstrap_port) is peer:
            del self._peers[bootstrap_port]
            self._retry_at[bootstrap_port] = 0


def check_port(bootstrap_port: int) -> None:
    """Whether a prefill can meet its decodes there. PortTaken: it cannot."""
    _listen(bootstrap_port).close()


def _listen(bootstrap_port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((HOST, bootstrap_port + PORT_OFFSET))
        listener.listen(PEERS_MAX)
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"--disaggregation-bootstrap-port is {bootstrap_port}, but the KV port above it, "
            f"{HOST}:{bootstrap_port + PORT_OFFSET}, cannot be listened on: {error.strerror}; "
            "give another"
        ) from error
    return listener


def _read_ask(line: bytes) -> int | None:
    try:
        room = json.loads(line)["room"]
    except (ValueError, TypeError, KeyError):
        return None
    return room if isinstance(room, int) and not isinstance(room, bool) else None


def _bound(rooms: dict[int, Any]) -> None:
    while len(rooms) > ROOMS_MAX:
        del rooms[next(iter(rooms))]
