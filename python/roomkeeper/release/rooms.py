"""The rooms of one event loop: how they are ended, and how it is known that they are over.

Calls on the KV manager are made on the agent's thread, as the engine's own status thread makes
them. What must not meet a request that is just being registered is done on the loop's thread, at
the beginning of a round: ``kv_transfer.generate_events``, which the loop calls once a round, is
wrapped for that. With nothing to end, a round costs one comparison.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from roomkeeper.release.wire import OUTSTANDING_MAX

#: TransferPoll.Failed in the engine.
FAILED = 0
#: The round that sees a failure is complete when the second one after the call begins.
ROUNDS = 2
#: A decode's request may arrive so long after the word to end its room, seconds.
LATE_S = 5.0
#: Rooms kept failed at a time; the oldest are forgotten first.
STONES_MAX = 65536
#: Rooms forgotten in one round at most, so that a round stays short.
_FORGOTTEN_A_ROUND = 256
#: The engine's calls race its own threads, and then raise KeyError; so often they are tried.
_TRIES = 3


class CannotAttach(Exception):
    """This engine's rooms cannot be ended from here; one line."""


class _Ending:
    """A room on its way out."""

    __slots__ = ("asked_at", "reason", "room", "round")

    def __init__(self, room: int, reason: str, asked_at: float) -> None:
        self.room = room
        self.reason = reason
        #: Monotonic time of the latest call.
        self.asked_at = asked_at
        #: The loop's round after the latest call.
        self.round = 0


class Transfers:
    """Which rooms' KV is queued or being written by a prefill's transfer threads. Any thread.

    Such a thread takes a chunk from its queue, writes it and takes the next: it is done with one
    when it asks for another. So the queues' class is followed, from before the first one is made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._class: type | None = None
        #: Chunks that are not done, by room.
        self._chunks: collections.Counter[int] = collections.Counter()
        #: What a thread writes now.
        self._current: dict[int, int] = {}

    def follow(self, queue_class: Any) -> None:
        """Follows all queues of this class; its ``put`` gets chunks that have a ``room``."""
        put, get = queue_class.put, queue_class.get

        @functools.wraps(put)
        def followed_put(queue: Any, chunk: Any) -> Any:
            self._add(chunk.room)
            return put(queue, chunk)

        @functools.wraps(get)
        def followed_get(queue: Any) -> Any:
            self._done()
            chunk = get(queue)
            self._begin(chunk.room)
            return chunk

        queue_class.put, queue_class.get = followed_put, followed_get
        self._class = queue_class

    def follows(self, queue: Any) -> bool:
        """Whether this is one of the queues that are followed."""
        return self._class is not None and isinstance(queue, self._class)

    def rooms(self) -> set[int]:
        """Those with a chunk that is not done."""
        with self._lock:
            return set(self._chunks)

    def _add(self, room: int) -> None:
        with self._lock:
            self._chunks[room] += 1

    def _begin(self, room: int) -> None:
        with self._lock:
            self._current[threading.get_ident()] = room

    def _done(self) -> None:
        with self._lock:
            room = self._current.pop(threading.get_ident(), None)
            if room is None:
                return
            self._chunks[room] -= 1
            if self._chunks[room] <= 0:
                del self._chunks[room]


class EngineRooms:
    """Ends rooms of the engine behind one event loop.

    ``transfers`` follows the class of a prefill's queues. ``on_over`` is called on the loop's
    thread when there is something to ``take``; it must not block. CannotAttach when the event loop
    lacks a name that is needed, or its transfers cannot be followed.
    """

    def __init__(
        self,
        event_loop: Any,
        role: str,
        tombstone_s: float,
        transfers: Transfers,
        on_over: Callable[[], None],
    ) -> None:
        self._prefill = role == "prefill"
        transfer = _need(event_loop, "kv_transfer", "the event loop")
        self._manager = _need(transfer, "kv_manager", "kv_transfer")
        calls = ("abort_room", "discard_room") if self._prefill else _DECODE_CALLS
        for name in calls:
            _need(self._manager, name, "kv_manager")
        table = "senders" if self._prefill else "receivers"
        #: The loop's requests that have a room, by id.
        self._requests: Mapping[str, Any] = _need(transfer, table, "kv_transfer")
        self._transfers = transfers
        queues = _need(self._manager, "transfer_queues", "kv_manager") if self._prefill else ()
        for queue in queues:
            if not transfers.follows(queue):
                raise CannotAttach(f"a {type(queue).__name__} of transfers cannot be followed")
        self._stone_s = tombstone_s if self._prefill else LATE_S
        self._on_over = on_over
        self._lock = threading.Lock()
        self._rounds = 0
        #: By the launcher's number.
        self._endings: dict[int, _Ending] = {}
        self._over: list[tuple[int, _Ending]] = []
        #: Rooms that are failed and have no request: until when, monotonic. The oldest first.
        self._stones: dict[int, float] = {}
        self._generate_events = _need(transfer, "generate_events", "kv_transfer")
        transfer.generate_events = self._round

    # -- the agent's thread --

    def end(self, number: int, room: int, reason: str) -> None:
        """Ends a room; ``take`` gives the number once it is over. RuntimeError: it cannot be."""
        with self._lock:
            if len(self._endings) >= OUTSTANDING_MAX:
                raise RuntimeError(f"{OUTSTANDING_MAX} rooms are being ended already")
        ending = _Ending(room, reason, 0.0)
        self._call(ending)
        with self._lock:
            self._endings[number] = ending

    def forget(self, room: int) -> None:
        """The room need not stay failed any longer. Done with the loop's next round."""
        with self._lock:
            if self._stones.pop(room, None) is not None:
                self._stones = {room: 0.0, **self._stones}

    def insist(self, after_s: float) -> None:
        """Asks again for rooms that are not over ``after_s`` after they were asked for."""
        before = time.monotonic() - after_s
        with self._lock:
            late = [ending for ending in self._endings.values() if ending.asked_at < before]
        for ending in late:
            with contextlib.suppress(RuntimeError):  # it stays outstanding, and is asked for again
                self._call(ending)

    def take(self) -> list[int]:
        """The numbers of the rooms that are over since; they stay failed for their time.

        A prefill engine forgets a failure with its request, so it is told once more: a decode that
        asks for the room from now on is answered at once.
        """
        with self._lock:
            over, self._over = self._over, []
        for _, ending in over:
            if self._prefill:
                with contextlib.suppress(RuntimeError):  # the room is over all the same
                    self._call(ending)
            self._keep(ending.room)
        return [number for number, _ in over]

    def outstanding(self) -> int:
        """Rooms that are not over yet."""
        with self._lock:
            return len(self._endings)

    def _call(self, ending: _Ending) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._fail(ending.room, ending.reason)
                break
            except Exception as error:
                if tries_left == 0:
                    what = f"{type(error).__name__}: {error}"
                    raise RuntimeError(f"the engine does not end the room: {what}") from error
        with self._lock:
            ending.round = self._rounds
            ending.asked_at = time.monotonic()

    def _fail(self, room: int, reason: str) -> None:
        if self._prefill:
            self._manager.abort_room(room, reason)
            return
        self._manager.record_failure(room, reason)
        self._manager.update_status(room, FAILED)

    def _keep(self, room: int) -> None:
        with self._lock:
            self._stones.pop(room, None)
            self._stones[room] = time.monotonic() + self._stone_s

    # -- the loop's thread --

    def _round(self) -> Any:
        """In the place of ``kv_transfer.generate_events``."""
        if self._endings or self._stones:
            self._look()
        else:
            self._rounds += 1
        return self._generate_events()

    def _look(self) -> None:
        with self._lock:
            self._rounds += 1
            seen = {n: e for n, e in self._endings.items() if self._rounds >= e.round + ROUNDS}
            now = time.monotonic()
            old = self._old_stones(now)
            if not seen and not old:
                return
            # Chunks are put by requests that are there, so the requests are looked at first.
            live = {request.bootstrap_room for request in list(self._requests.values())}
            busy = live | self._transfers.rooms()
            over = {n: e for n, e in seen.items() if e.room not in busy}
            for number in over:
                del self._endings[number]
            self._over.extend(over.items())
            for room in old:
                del self._stones[room]
        for room in old:
            if room not in live:
                self._discard(room)
        if over:
            self._on_over()

    def _old_stones(self, now: float) -> list[int]:
        too_many = len(self._stones) - STONES_MAX
        old: list[int] = []
        for room, until in self._stones.items():
            if (until > now and len(old) >= too_many) or len(old) >= _FORGOTTEN_A_ROUND:
                break
            old.append(room)
        return old

    def _discard(self, room: int) -> None:
        """Forgets a failed room that no request has: one that comes later is served."""
        discard = getattr(self._manager, "discard_room", None)
        if discard is not None:
            discard(room)
        # What a decode's manager, which has no such call, keeps of a failed room.
        for name in ("request_status", "failure_records"):
            table = getattr(self._manager, name, None)
            if table is not None:
                table.pop(room, None)


_DECODE_CALLS = ("record_failure", "update_status")


def _need(owner: Any, name: str, what: str) -> Any:
    value = getattr(owner, name, None)
    if value is None:
        raise CannotAttach(f"{what} has no {name}")
    return value
