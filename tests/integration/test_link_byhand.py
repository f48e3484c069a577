"""Peers made by hand: wrong, greedy, silent, of a later release. The worker refuses, counts and serves on."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from harness.client import until
from harness.process import memory_kib
from link_support import (
    ADMITTED,
    CLIENT_CANCEL,
    DECODE,
    ENDED,
    LINK_OFFSET,
    OPENED,
    PREFILL,
    QUIESCED,
    SUBMITTED,
    HandLink,
    HandPrefill,
    Side,
    bootstrap_port,
    frame,
    hello,
    leg,
    new_room,
    role_flags,
    room,
    rooms,
    side,
)

#: A body, a room state and a field that this release does not know.
LATER_FRAME = b"\x7a\x03abc"
LATER_STATE = 9


@pytest.fixture(scope="module")
def port() -> int:
    return bootstrap_port()


@pytest.fixture(scope="module")
def prefill(port: int) -> Iterator[Side]:
    flags = ("--room-heartbeat-ms", "200", "--max-num-seqs", "4")
    with side(*role_flags("prefill", port, *flags)) as worker:
        yield worker


@pytest.fixture(autouse=True)
def still_serving(prefill: Side) -> Iterator[None]:
    yield
    assert prefill.client.check() == 1
    assert prefill.worker.program.process.poll() is None


def at(port: int, **how: Any) -> HandLink:
    return HandLink(port + LINK_OFFSET, **how)


class Beating:
    """Keeps a link up, beat by beat."""

    def __init__(self, link: HandLink) -> None:
        self.link = link

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def look() -> Any:
            self.link.send(frame(heartbeat={"engine_state": 2}))
            time.sleep(0.02)
            return condition()

        return until(look, what)


# -- a decode by hand --


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ([hello(PREFILL)], "FAILED_PRECONDITION", "the worker that dials is no decode"),
        ([hello(DECODE, protocol=0)], "FAILED_PRECONDITION", "it speaks protocol 0"),
        ([hello(DECODE, instance=b"short")], "INVALID_ARGUMENT", "instance"),
        ([hello(DECODE, nonce=b"")], "INVALID_ARGUMENT", "nonce"),
        ([b"\xff\xff\xff\xff"], "INVALID_ARGUMENT", ""),
        ([frame(begin={})], "FAILED_PRECONDITION", "out of order"),
        ([frame(heartbeat={})], "FAILED_PRECONDITION", "out of order"),
        ([rooms(room(1, OPENED, 1))], "FAILED_PRECONDITION", "out of order"),
        ([frame(goodbye={})], "FAILED_PRECONDITION", "out of order"),
        ([hello(DECODE), hello(DECODE)], "FAILED_PRECONDITION", "out of order"),
        ([hello(DECODE), rooms(room(1, OPENED, 1))], "FAILED_PRECONDITION", "out of order"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else None,
)
def test_a_stream_that_begins_wrong_is_refused_in_one_line(
    prefill: Side, port: int, said: list[Any], code: str, why: str
) -> None:
    before = prefill.links["streams_refused"]
    with at(port) as link:
        link.send(*said)
        assert link.end() == code
        assert why in link.details
        assert "\n" not in link.details
    assert prefill.links["streams_refused"] == before + 1
    assert prefill.links["up"] == 0
    with at(port) as good:
        good.come_up()


def test_a_worker_does_not_link_to_itself(prefill: Side, port: int) -> None:
    with at(port) as link:
        link.come_up()
        (own,) = {f.hello.instance for f in link.frames if f.HasField("hello")}
    with at(port) as mirror:
        mirror.send(hello(DECODE, instance=own))
        assert mirror.end() == "FAILED_PRECONDITION"
        assert mirror.details == "a worker does not link to itself"


@pytest.mark.parametrize("up", [False, True], ids=["at first", "on a link that is up"])
def test_a_frame_over_1_mib_ends_the_stream(prefill: Side, port: int, up: bool) -> None:
    with at(port) as link:
        if up:
            link.come_up()
        link.send(b"\x0a" + b"\xff\xff\x7f" + b"x" * (2 << 20))
        assert link.end() == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("words", [0, 1, 2], ids=["no hello", "a hello", "no heartbeat"])
def test_a_peer_that_falls_silent_is_hung_up_on(prefill: Side, port: int, words: int) -> None:
    with at(port) as link:
        if words == 1:
            link.send(hello(DECODE))
        elif words == 2:
            link.come_up()
        assert link.end() == "UNAVAILABLE"
        assert link.details == ("no heartbeat" if words == 2 else "no hello, or nothing after it")


def test_rooms_of_one_decode_are_not_anothers(prefill: Side, port: int) -> None:
    number = new_room()
    with at(port) as owner, at(port) as other:
        owner.come_up()
        beats = Beating(other.come_up())
        owner.send(rooms(room(number, OPENED, port)))
        stream = leg(prefill, "owned", number, port)
        owner.until_heard(number, OPENED)
        refused = prefill.links["rooms_refused"]
        other.send(
            rooms(
                room(number, ADMITTED, port),
                room(number, ENDED, port, cause=CLIENT_CANCEL),
                room(number, OPENED, port),
            )
        )
        beats.until(lambda: prefill.links["rooms_refused"] == refused + 3, "three are refused")
        assert prefill.legs("held") == 1
        assert other.heard(number) == []
        assert len(prefill.said("speaks of a room that is not of its link")) == 1
        owner.send(rooms(room(number, ADMITTED, port)))
        owner.until_heard(number, SUBMITTED)
        owner.send(rooms(room(number, ENDED, port, cause=CLIENT_CANCEL)))
        assert stream.end().name == "ABORTED"
        owner.until_heard(number, QUIESCED)


def test_announcements_are_remembered_up_to_a_bound(prefill: Side, port: int) -> None:
    with at(port) as link:
        beats = Beating(link.come_up())
        before = prefill.client.rooms()["announced"]
        for first in range(0, 50000, 10000):
            link.send(rooms(*(room(10**9 + first + n, OPENED, port) for n in range(10000))))
        beats.until(lambda: prefill.links["rooms_refused"] >= 50000 - 16384, "the rest is refused")
        assert prefill.client.rooms()["announced"] <= before + 16384
        (row,) = [peer for peer in prefill.peers if peer["state"] == "up"]
        assert (row["heard"], row["refused"]) == (16384, 50000 - 16384)
        number = 10**9 + 1
        stream = leg(prefill, "announced", number, port)
        link.until_heard(number, OPENED)
        link.send(rooms(room(number, ENDED, port, cause=CLIENT_CANCEL)))
        assert stream.end().name == "ABORTED"
    until(lambda: prefill.client.rooms()["announced"] == 0, "they go with the link")


def test_a_peer_that_reads_nothing_is_hung_up_on_before_it_costs_memory(
    prefill: Side, port: int
) -> None:
    """Each end of a room that is not here is answered; a million answers are 30 MB."""
    before = memory_kib(prefill.worker.program.pid)
    ended = rooms(*[room(10**9, ENDED, port, cause=CLIENT_CANCEL)] * 25000).SerializeToString()
    assert len(ended) < 1 << 20
    with at(port, reads=False) as link:
        link.send(hello(DECODE))
        until(lambda: len(prefill.said("a room link")) > 0, "it is heard")
        link.send(frame(begin={}))
        lost = prefill.links["lost"]
        link.send(*[ended] * 60)
        until(lambda: prefill.links["lost"] == lost + 1, "it is given up")
    assert memory_kib(prefill.worker.program.pid) - before < 100 * 1024


def test_what_a_later_release_says_besides_is_skipped(prefill: Side, port: int) -> None:
    number = new_room()
    later_hello = hello(DECODE)
    later_hello.hello.protocol = 7
    with at(port) as link:
        link.send(LATER_FRAME, later_hello.SerializeToString() + LATER_FRAME, LATER_FRAME)
        until(lambda: len(link.frames) == 1, "the prefill's hello")
        link.send(frame(begin={}))
        until(lambda: len(link.frames) == 2, "the prefill's begin")
        link.send(
            LATER_FRAME,
            rooms(room(number, OPENED, port), room(number, LATER_STATE, port)),
            rooms(room(number, LATER_STATE, port, cause=99)),
        )
        stream = leg(prefill, "later", number, port)
        link.until_heard(number, OPENED)
        link.send(rooms(room(number, ENDED, port, cause=99)))
        assert stream.end().name == "INTERNAL"
        assert stream.end().details == "the other leg of this room ended first: engine_error"


def test_workers_beyond_the_limit_are_refused_while_the_others_are_there() -> None:
    port = bootstrap_port()
    with (
        side(*role_flags("prefill", port, "--room-links", "2")) as prefill,
        at(port) as one,
        at(port) as two,
        at(port) as three,
    ):
        one.come_up()
        two.come_up()
        three.send(hello(DECODE), frame(begin={}))
        assert three.end() == "RESOURCE_EXHAUSTED"
        assert three.details == "too many workers are linked here (links)"
        assert (prefill.links["up"], prefill.links["streams_refused"]) == (2, 1)


def test_who_opens_a_link_anew_replaces_the_old_one(prefill: Side, port: int) -> None:
    instance = secrets.token_bytes(16)
    with at(port) as older, at(port) as newer:
        older.come_up(instance=instance)
        newer.come_up(instance=instance)
        assert older.end() == "ABORTED"
        assert prefill.links["up"] == 1


# -- a prefill by hand --


def good(server: HandPrefill, received: Iterator[Any]) -> Iterator[Any]:
    """Comes up, and beats; says ``server.to_say`` when there is something."""
    next(received)
    yield hello(PREFILL, instance=server.instance)
    next(received)
    yield frame(begin={})
    threading.Thread(target=drain, args=(received,), daemon=True).start()
    while not server.over.wait(0.02):
        yield frame(heartbeat={"engine_state": 2})
        while server.to_say:
            yield server.to_say.pop(0)


def drain(received: Iterator[Any]) -> None:
    with contextlib.suppress(grpc.RpcError):
        for _ in received:
            pass


def answers(*said: Any) -> Callable[[HandPrefill, Iterator[Any]], Iterator[Any]]:
    """A first answer, and nothing after it."""

    def serve(server: HandPrefill, received: Iterator[Any]) -> Iterator[Any]:
        next(received)
        yield from said
        server.over.wait()

    return serve


WRONG = {
    "a decode": (answers(hello(DECODE)), "the worker that answers is no prefill"),
    "protocol 0": (answers(hello(PREFILL, protocol=0)), "it speaks protocol 0"),
    "garbage": (answers(b"\xff\xff"), ""),
    "rooms first": (answers(rooms(room(1, OPENED, 1))), "its frames are out of order"),
    "too much": (answers(b"\x0a\xff\xff\x7f" + b"x" * (2 << 20)), "RESOURCE_EXHAUSTED"),
    "no hello": (answers(), "it answers no hello"),
    "no begin": (answers(hello(PREFILL)), "it answers no hello"),
}


def test_a_decode_serves_without_the_link_who_answers_wrong() -> None:
    """All of them at once, beside one that is right."""
    with contextlib.ExitStack() as stack:
        wrong = {
            name: stack.enter_context(HandPrefill(serve)) for name, (serve, _) in WRONG.items()
        }
        right = stack.enter_context(HandPrefill(good))
        ports = {name: 20000 + n for n, name in enumerate([*WRONG, "right"])}
        peers = ",".join(
            f"127.0.0.1:{ports[name]}=127.0.0.1:{server.port}"
            for name, server in [*wrong.items(), ("right", right)]
        )
        flags = ("--room-peer", peers, "--room-heartbeat-ms", "200", "--max-num-seqs", "32")
        decode = stack.enter_context(side(*role_flags("decode", 28000, *flags)))
        for name, (_, why) in WRONG.items():
            peer = f"127.0.0.1:{ports[name]}"
            until(lambda peer=peer: decode.peer(peer)["state"] == "absent", f"{name} is absent")
            assert why in decode.peer(peer)["why"], name
            # A dial that is tried again tells nothing new.
            assert len(decode.said(f"served without.*peer={peer} ")) == 1
        decode.until_links(1)
        assert decode.peer(f"127.0.0.1:{ports['right']}")["state"] == "up"
        the_right_one(decode, right, ports["right"], ports["garbage"])


def the_right_one(decode: Side, right: HandPrefill, port: int, others_port: int) -> None:
    """Its own rooms it may end, in words of a later release too; those of others it may not."""
    own, others = new_room(), new_room()
    mine, theirs = leg(decode, "mine", own, port), leg(decode, "theirs", others, others_port)
    until(lambda: (ADMITTED in said_of(right, own)), "the room is announced and admitted")
    assert said_of(right, own) == [OPENED, ADMITTED]
    right.to_say.append(
        rooms(
            room(others, ENDED, others_port, cause=CLIENT_CANCEL),
            room(own, LATER_STATE, port),
            room(own, SUBMITTED, port),
            room(own, ENDED, port, cause=99, ever_submitted=True),
        )
    )
    right.to_say.append(LATER_FRAME)
    status = mine.end()
    assert status.name == "INTERNAL"
    assert status.details == "the other leg of this room ended first: engine_error"
    assert not theirs.ended(0.1)
    assert decode.links["rooms_refused"] == 1
    assert said_of(right, others) == []
    assert decode.slots() == (1, 1)
    right.to_say.append(rooms(room(own, QUIESCED, port)))
    until(lambda: decode.slots() == (1, 0), "its slot is given back when the prefill is quiet")
    theirs.cancel()


def said_of(server: HandPrefill, number: int) -> list[int]:
    return [n.state for f in list(server.frames) for n in f.rooms.rooms if n.room == number]
