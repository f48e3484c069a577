"""Rooms of one event loop, round by round, without processes: engine names, no engine."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, NamedTuple

import pytest

from roomkeeper.release import rooms as rooms_module
from roomkeeper.release.rooms import CannotAttach, EngineRooms, Transfers
from standin_support import GUARD_S, until


class Leg(NamedTuple):
    bootstrap_room: int


class Chunk(NamedTuple):
    room: int


class Queue:
    """As the engine's: unbounded, blocking."""

    def __init__(self) -> None:
        self._chunks: collections.deque[Chunk] = collections.deque()
        self._there = threading.Condition()

    def put(self, chunk: Chunk) -> None:
        with self._there:
            self._chunks.append(chunk)
            self._there.notify()

    def get(self) -> Chunk:
        with self._there:
            self._there.wait_for(lambda: self._chunks)
            return self._chunks.popleft()


class Manager:
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.request_status: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}
        self.transfer_queues: list[Queue] = []
        self.errors = 0

    def record_failure(self, room: int, reason: str) -> None:
        self.failure_records[room] = reason

    def update_status(self, room: int, status: int) -> None:
        if self.errors:
            self.errors -= 1
            raise KeyError(room)
        self.request_status[room] = status

    def abort_room(self, room: int, reason: str) -> None:
        self.said.append(("abort", room))
        self.record_failure(room, reason)
        self.update_status(room, 0)


class PrefillManager(Manager):
    def discard_room(self, room: int) -> None:
        self.said.append(("discard", room))
        self.request_status.pop(room, None)


class Transfer:
    """The engine's executor: a failed room's request goes with the round that sees it."""

    def __init__(self, manager: Manager) -> None:
        self.kv_manager = manager
        self.senders: dict[str, Leg] = {}
        self.receivers: dict[str, Leg] = {}

    def generate_events(self) -> list[str]:
        events = []
        for table in (self.senders, self.receivers):
            for request_id, leg in list(table.items()):
                if self.kv_manager.request_status.get(leg.bootstrap_room) == 0:
                    del table[request_id]
                    self.kv_manager.request_status.pop(leg.bootstrap_room)
                    events.append(request_id)
        return events


class Loop:
    def __init__(self, role: str) -> None:
        self.kv_transfer = Transfer(PrefillManager() if role == "prefill" else Manager())
        self.notified = 0
        self.queue_class = type("FollowedQueue", (Queue,), {})
        transfers = Transfers()
        transfers.follow(self.queue_class)
        self.kv_transfer.kv_manager.transfer_queues = [self.queue_class()]
        self.rooms = EngineRooms(self, role, 60.0, transfers, self._notify)

    def _notify(self) -> None:
        self.notified += 1

    @property
    def manager(self) -> Any:
        return self.kv_transfer.kv_manager

    def round(self) -> Any:
        return self.kv_transfer.generate_events()


def test_a_decode_is_over_when_the_round_after_the_failure_is_complete() -> None:
    loop = Loop("decode")
    loop.kv_transfer.receivers["a"] = Leg(9)
    loop.round()
    loop.rooms.end(1, 9, "why")
    assert loop.manager.request_status == {9: 0} and loop.manager.failure_records == {9: "why"}
    assert loop.rooms.take() == []
    assert loop.round() == ["a"]
    assert loop.rooms.take() == []  # the scheduler has not been told yet
    assert loop.round() == []
    assert loop.notified == 1 and loop.rooms.take() == [1]
    assert loop.rooms.outstanding() == 0


def test_a_room_without_a_request_is_over_with_the_second_round_and_not_earlier() -> None:
    """One that was under way during the call proves nothing."""
    loop = Loop("decode")
    loop.rooms.end(1, 9, "")
    loop.round()
    assert loop.rooms.take() == []
    loop.round()
    assert loop.rooms.take() == [1]


def test_a_room_is_not_over_while_a_request_has_it() -> None:
    loop = Loop("decode")
    loop.kv_transfer.receivers["a"] = Leg(9)
    loop.rooms.end(1, 9, "")
    loop.manager.request_status.clear()  # the engine has lost the failure
    for _ in range(5):
        loop.round()
    assert loop.rooms.take() == []
    loop.rooms.insist(0.0)
    for _ in range(3):
        loop.round()
    assert loop.rooms.take() == [1] and not loop.kv_transfer.receivers


def test_a_prefill_is_over_when_no_transfer_of_the_room_is_queued_or_under_way() -> None:
    loop = Loop("prefill")
    (queue,) = loop.manager.transfer_queues
    loop.kv_transfer.senders["a"] = Leg(9)
    may_go_on = threading.Semaphore(0)

    def work() -> None:
        while queue.get().room:
            may_go_on.acquire()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    queue.put(Chunk(8))
    queue.put(Chunk(9))
    loop.rooms.end(1, 9, "")
    for _ in range(2):  # while the thread writes the one, and while it writes the other
        time.sleep(0.1)
        for _ in range(4):
            loop.round()
        assert loop.rooms.take() == []
        may_go_on.release()
    until(lambda: loop.round() == [] and loop.rooms.take() == [1], "the room is over")
    queue.put(Chunk(0))
    worker.join(GUARD_S)
    assert not worker.is_alive()


def test_a_chunk_is_done_when_its_thread_asks_for_another() -> None:
    """Several threads, whose chunks are put and taken in any order."""
    transfers = Transfers()
    queue_class = type("FollowedQueue", (Queue,), {})
    transfers.follow(queue_class)
    queues = [queue_class(), queue_class()]
    taken: list[collections.deque[int]] = [collections.deque(), collections.deque()]
    may_go_on = [threading.Semaphore(0), threading.Semaphore(0)]

    def work(at: int) -> None:
        while (chunk := queues[at].get()).room:
            taken[at].append(chunk.room)
            may_go_on[at].acquire()

    workers = [threading.Thread(target=work, args=(at,), daemon=True) for at in (0, 1)]
    for worker in workers:
        worker.start()
    for at, room in ((0, 1), (1, 2), (1, 1), (0, 3)):
        queues[at].put(Chunk(room))
    until(lambda: list(taken[0]) == [1] and list(taken[1]) == [2], "both are at work")
    assert transfers.rooms() == {1, 2, 3}
    may_go_on[1].release()
    until(lambda: list(taken[1]) == [2, 1], "the second is at its second")
    assert transfers.rooms() == {1, 3}
    may_go_on[0].release()
    until(lambda: list(taken[0]) == [1, 3], "the first is at its second")
    assert transfers.rooms() == {1, 3}  # the second one's
    for at in (0, 1):
        may_go_on[at].release()
    until(lambda: transfers.rooms() == set(), "all is done")
    for at, worker in enumerate(workers):
        queues[at].put(Chunk(0))
        worker.join(GUARD_S)
        assert not worker.is_alive()


def test_a_prefill_tells_the_engine_again_what_it_forgot_with_the_request() -> None:
    loop = Loop("prefill")
    loop.kv_transfer.senders["a"] = Leg(9)
    loop.rooms.end(1, 9, "")
    loop.round()
    loop.round()
    assert 9 not in loop.manager.request_status
    assert loop.rooms.take() == [1]
    assert loop.manager.request_status == {9: 0}


def test_a_prefills_room_is_discarded_after_its_time_unless_a_request_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop("prefill")
    now = time.monotonic()
    for number, room in ((1, 8), (2, 9)):
        loop.rooms.end(number, room, "")
    loop.round()
    loop.round()
    assert sorted(loop.rooms.take()) == [1, 2]
    monkeypatch.setattr(rooms_module.time, "monotonic", lambda: now + 50)
    loop.round()
    assert ("discard", 8) not in loop.manager.said
    loop.manager.request_status.pop(9)
    loop.kv_transfer.senders["a"] = Leg(9)
    monkeypatch.setattr(rooms_module.time, "monotonic", lambda: now + 70)
    loop.round()
    assert loop.manager.said[-1] == ("discard", 8)
    assert ("discard", 9) not in loop.manager.said
    assert loop.manager.failure_records == {9: ""}


def test_a_decode_forgets_a_room_that_no_request_came_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop("decode")
    loop.rooms.end(1, 9, "why")
    loop.round()
    loop.round()
    assert loop.rooms.take() == [1] and loop.manager.request_status == {9: 0}
    later = time.monotonic() + rooms_module.LATE_S + 1
    monkeypatch.setattr(rooms_module.time, "monotonic", lambda: later)
    loop.round()
    assert loop.manager.request_status == {} and loop.manager.failure_records == {}


def test_ended_rooms_are_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms_module, "STONES_MAX", 10)
    loop = Loop("prefill")
    for number in range(30):
        loop.rooms.end(number, 100 + number, "")
    for _ in range(2):
        loop.round()
    assert len(loop.rooms.take()) == 30
    loop.round()
    discarded = [room for verb, room in loop.manager.said if verb == "discard"]
    assert discarded == list(range(100, 120))


def test_rooms_on_their_way_out_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms_module, "OUTSTANDING_MAX", 3)
    loop = Loop("decode")
    for number in range(3):
        loop.rooms.end(number, number, "")
    with pytest.raises(RuntimeError, match="3 rooms are being ended already"):
        loop.rooms.end(3, 3, "")


def test_the_engines_own_races_are_tried_again() -> None:
    loop = Loop("decode")
    loop.manager.errors = 2
    loop.rooms.end(1, 9, "")
    assert loop.manager.request_status == {9: 0}
    loop.manager.errors = 3
    with pytest.raises(RuntimeError, match="the engine does not end the room: KeyError: 9"):
        loop.rooms.end(2, 9, "")


@pytest.mark.parametrize(
    ("role", "owner", "name"),
    [
        ("prefill", "kv_manager", "abort_room"),
        ("prefill", "kv_manager", "discard_room"),
        ("prefill", "kv_manager", "transfer_queues"),
        ("prefill", "kv_transfer", "senders"),
        ("decode", "kv_manager", "record_failure"),
        ("decode", "kv_manager", "update_status"),
        ("decode", "kv_transfer", "receivers"),
        ("decode", "kv_transfer", "generate_events"),
        ("decode", "kv_transfer", "kv_manager"),
        ("decode", "the event loop", "kv_transfer"),
    ],
)
def test_each_name_that_is_missing_is_named(role: str, owner: str, name: str) -> None:
    manager: Any = PrefillManager() if role == "prefill" else Manager()
    transfer: Any = Transfer(manager)
    loop: Any = type("EventLoop", (), {"kv_transfer": transfer})()
    if owner == "kv_manager":
        transfer.kv_manager = Lacking(manager, name)
    elif owner == "kv_transfer":
        loop.kv_transfer = Lacking(transfer, name)
    else:
        loop = Lacking(loop, name)
    with pytest.raises(CannotAttach, match=f"^{owner} has no {name}$"):
        EngineRooms(loop, role, 60.0, Transfers(), lambda: None)


def test_transfers_that_cannot_be_followed_are_named() -> None:
    loop: Any = type("EventLoop", (), {"kv_transfer": Transfer(PrefillManager())})()
    loop.kv_transfer.kv_manager.transfer_queues = [Queue()]
    with pytest.raises(CannotAttach, match="a Queue of transfers cannot be followed"):
        EngineRooms(loop, "prefill", 60.0, Transfers(), lambda: None)


class Lacking:
    """A thing without one of its attributes."""

    def __init__(self, thing: Any, name: str) -> None:
        self._thing, self._name = thing, name

    def __getattr__(self, wanted: str) -> Any:
        if wanted == self._name:
            raise AttributeError(wanted)
        return getattr(self._thing, wanted)
