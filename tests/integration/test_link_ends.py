"""One leg of a linked pair ends, and the other with it: with which code, which metadata, which log line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from harness.client import Status, Stream, until
from link_support import Pair, Side, new_room, pair
from roomkeeper.standin import faults

#: A prompt of this length is computed for 4 s, so there is time before its KV.
LONG = [5] * 320
VOCABULARY = 32000


@pytest.fixture(scope="module")
def workers() -> Iterator[Pair]:
    """A window of one slot and a line of two places, for a second."""
    bounds = ("--room-wait-seconds", "1", "--room-twin-seconds", "1", "--room-waiting", "2")
    slowly = ("--prefill-ms", "200", "--chunked-prefill-size", "16")
    flags = ("--max-num-seqs", "1", "--faults", *slowly, *bounds)
    with pair(*flags, prefill_flags=("--room-held", "1")) as made:
        made.serves("first")
        made.until_linked()
        yield made
        assert made.prefill_side.links["rooms_refused"] == 0
        assert made.decode_side.links["rooms_refused"] == 0


@pytest.fixture(autouse=True)
def nothing_left(workers: Pair) -> Iterator[None]:
    """Slots come back long before the engine's deadlines of 120 and 300 s, and the next is served."""
    yield
    workers.idle()
    workers.serves()


@contextlib.contextmanager
def occupied(workers: Pair) -> Iterator[None]:
    """The decode's one slot is taken, by a pair whose decode goes on for long."""
    prefill, decode = workers.both("busy", tokens=3000)
    decode.get(1)
    assert prefill.end().name == "OK"
    yield
    assert not decode.ended()
    decode.cancel()


def ended(side: Side, name: str, cause: str, code: str, twin_cause: str = "") -> None:
    """The one log line of this leg's end."""
    lines = side.until_said(rf"leg ended.*\brequest={name} ")
    rooms = [re.findall(r"\broom=\S+", line) for line in lines]
    assert len({str(found) for found in rooms}) == len(lines), lines
    line = lines[-1]  # a test that runs again has the same names and new rooms
    (role,) = {side.client.rooms()["role"]}
    words = line.split()
    assert f"role={role}" in words, line
    assert f"cause={cause}" in words, line
    assert f"code={code}" in words, line
    assert any(word.startswith("room=") for word in words), line
    if twin_cause:
        assert f"twin_cause={twin_cause}" in words, line
    if role == "decode":
        assert f"peer={side.peer()['address']}" in words, line


def by_twin(stream: Stream, code: str, cause: str, *, retry: bool) -> Status:
    status = stream.end()
    assert status.name == code, status
    assert status.details == f"the other leg of this room ended first: {cause}"
    assert ("grpc-retry-pushback-ms" in status.trailing) == retry, status
    return status


def under_way(workers: Pair, name: str) -> tuple[Stream, Stream]:
    """Both legs are with their engines, and no KV is there for long."""
    legs = workers.both(name, input_ids=LONG)
    until(lambda: workers.prefill_side.legs("submitted") == 1, "the prefill is with its engine")
    until(lambda: workers.decode_side.legs("submitted") == 1, "the decode is with its engine")
    return legs


def in_line(workers: Pair, name: str) -> tuple[Stream, Stream]:
    """The decode stands in line, the prefill is held."""
    legs = workers.both(name)
    until(lambda: workers.decode_side.legs("waiting") == 1, "the decode is in line")
    until(lambda: workers.prefill_side.legs("held") == 1, "the prefill is held")
    return legs


# -- the prefill ends first --


def test_a_cancelled_prefill_under_way_ends_its_decode(workers: Pair) -> None:
    prefill, decode = under_way(workers, "pc")
    prefill.cancel()
    by_twin(decode, "ABORTED", "client_cancel", retry=False)
    ended(workers.prefill_side, "pc", "client_cancel", "CANCELLED")
    ended(workers.decode_side, "pc", "twin_ended", "ABORTED", "client_cancel")


def test_an_aborted_prefill_under_way_ends_its_decode(workers: Pair) -> None:
    prefill, decode = under_way(workers, "pa")
    assert workers.prefill.abort("pa").success
    assert prefill.end().name == "OK"
    assert prefill.complete().finish_reason == "abort"
    by_twin(decode, "ABORTED", "abort_rpc", retry=False)
    ended(workers.decode_side, "pa", "twin_ended", "ABORTED", "abort_rpc")


def test_a_cancelled_held_prefill_takes_its_decode_out_of_the_line(workers: Pair) -> None:
    with occupied(workers):
        prefill, decode = in_line(workers, "ph")
        prefill.cancel()
        by_twin(decode, "ABORTED", "client_cancel", retry=False)
        assert workers.decode_side.legs("waiting") == 0


def test_a_prefill_that_cannot_be_held_is_refused_and_its_decode_told_to_retry(
    workers: Pair,
) -> None:
    with occupied(workers):
        in_line(workers, "p1")
        prefill, decode = workers.both("p2")
        status = prefill.end()
        assert status.name == "RESOURCE_EXHAUSTED"
        assert "held already" in status.details
        by_twin(decode, "RESOURCE_EXHAUSTED", "held_full", retry=True)


def test_a_prefill_whose_engine_fails_ends_its_decode_with_an_error(workers: Pair) -> None:
    room = new_room()
    decode = workers.decode_leg("pe", room, input_ids=LONG)
    until(lambda: workers.decode_side.legs("submitted") == 1, "the decode is with its engine")
    broken = faults.prompt(VOCABULARY, faults.ABORT, 500, 0)
    prefill = workers.prefill_leg("pe", room, input_ids=broken)
    assert prefill.end().name == "INTERNAL"
    by_twin(decode, "INTERNAL", "engine_error", retry=False)
    ended(workers.prefill_side, "pe", "engine_error", "INTERNAL")
    ended(workers.decode_side, "pe", "twin_ended", "INTERNAL", "engine_error")


# -- the decode ends first --


def test_a_cancelled_decode_under_way_ends_its_prefill(workers: Pair) -> None:
    prefill, decode = under_way(workers, "dc")
    decode.cancel()
    by_twin(prefill, "ABORTED", "client_cancel", retry=False)
    ended(workers.decode_side, "dc", "client_cancel", "CANCELLED")
    ended(workers.prefill_side, "dc", "twin_ended", "ABORTED", "client_cancel")


def test_an_aborted_decode_under_way_ends_its_prefill(workers: Pair) -> None:
    prefill, decode = under_way(workers, "da")
    assert workers.decode.abort("da").success
    assert decode.end().name == "OK"
    assert decode.complete().finish_reason == "abort"
    by_twin(prefill, "ABORTED", "abort_rpc", retry=False)


@pytest.mark.parametrize("how", ["cancel", "abort"])
def test_a_decode_that_leaves_the_line_ends_its_held_prefill(workers: Pair, how: str) -> None:
    with occupied(workers):
        admitted = workers.prefill.rooms()["admitted"]
        prefill, decode = in_line(workers, f"dl-{how}")
        if how == "cancel":
            decode.cancel()
        else:
            assert workers.decode.abort(f"dl-{how}").success
        cause = "client_cancel" if how == "cancel" else "abort_rpc"
        by_twin(prefill, "ABORTED", cause, retry=False)
        assert workers.prefill.rooms()["admitted"] == admitted  # its engine never heard of it


def test_a_decode_that_waits_too_long_ends_its_prefill_to_be_retried(workers: Pair) -> None:
    with occupied(workers):
        prefill, decode = in_line(workers, "dw")
        status = decode.end()
        assert status.name == "RESOURCE_EXHAUSTED"
        assert "wait_seconds" in status.details
        by_twin(prefill, "RESOURCE_EXHAUSTED", "wait_timeout", retry=True)
        ended(workers.decode_side, "dw", "wait_timeout", "RESOURCE_EXHAUSTED")
        ended(workers.prefill_side, "dw", "twin_ended", "RESOURCE_EXHAUSTED", "wait_timeout")


def test_a_decode_that_never_fits_ends_its_prefill_for_good(workers: Pair) -> None:
    def too_much(leg: Callable[..., Stream], room: int) -> Stream:
        return leg("df", room, tokens=1, input_ids=[5] * 4000)

    room = new_room()
    with pair(
        "--max-num-seqs",
        "1",
        decode_flags=("--room-kv-tokens", "64", "--room-reserve-tokens", "16"),
    ) as small:
        small.serves("first")
        small.until_linked()
        prefill = too_much(small.prefill_leg, room)
        decode = too_much(small.decode_leg, room)
        assert decode.end().name == "INVALID_ARGUMENT"
        by_twin(prefill, "INVALID_ARGUMENT", "never_fits", retry=False)
        small.idle()


def test_a_decode_whose_engine_fails_before_the_kv_ends_its_prefill(workers: Pair) -> None:
    room = new_room()
    prefill = workers.prefill_leg("de", room, input_ids=LONG)
    until(lambda: workers.prefill_side.legs("held") == 1, "the prefill is held")
    broken = faults.prompt(VOCABULARY, faults.ABORT, 500, 0)
    decode = workers.decode_leg("de", room, input_ids=broken)
    assert decode.end().name == "INTERNAL"
    by_twin(prefill, "INTERNAL", "engine_error", retry=False)


def test_a_decode_of_an_id_that_comes_again_ends_its_first_prefill(workers: Pair) -> None:
    """A gateway's retry: the same request id in another room."""
    with occupied(workers):
        first_room, second_room = new_room(), new_room()
        first_prefill = workers.prefill_leg("ds", first_room)
        first = workers.decode_leg("ds", first_room)
        until(lambda: workers.decode_side.legs("waiting") == 1, "it is in line")
        until(lambda: workers.prefill_side.legs("held") == 1, "its prefill is held")
        second = workers.decode_leg("ds", second_room)
        assert first.end().name == "ABORTED"
        by_twin(first_prefill, "ABORTED", "superseded", retry=False)
        second.cancel()


# -- one leg alone --


def test_a_decode_whose_prefill_never_comes_is_ended_and_so_is_who_comes_late(
    workers: Pair,
) -> None:
    room = new_room()
    status = workers.decode_leg("dm", room).end()
    assert status.name == "RESOURCE_EXHAUSTED"
    assert "twin_seconds" in status.details
    assert "grpc-retry-pushback-ms" in status.trailing
    ended(workers.decode_side, "dm", "twin_missing", "RESOURCE_EXHAUSTED")
    late = workers.prefill_leg("dm", room).end()
    assert late.name == "RESOURCE_EXHAUSTED", late
    assert late.details == "the other leg of this room ended first: twin_missing"


def test_a_prefill_that_was_cancelled_early_ends_the_decode_that_comes_late(workers: Pair) -> None:
    room = new_room()
    prefill = workers.prefill_leg("pl", room)
    prefill.get(1)
    prefill.cancel()
    until(lambda: workers.prefill_side.legs("held") == 0, "it is gone")
    by_twin(workers.decode_leg("pl", room), "ABORTED", "client_cancel", retry=False)


def test_a_room_that_both_legs_have_left_can_be_used_again(workers: Pair) -> None:
    for _ in range(3):
        room = 77
        prefill, decode = workers.prefill_leg("u", room), workers.decode_leg("u", room)
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")


# -- after the handoff --


def test_after_the_handoff_the_prefills_end_is_not_the_decodes(workers: Pair) -> None:
    prefill, decode = workers.both("h", tokens=60)
    decode.get(1)
    assert prefill.end().name == "OK"
    prefill.cancel()
    workers.prefill.abort("h")
    assert decode.end().name == "OK"
    assert len(decode.complete().output_ids) == 60


def test_after_the_handoff_the_decodes_cancel_leaves_an_ended_prefill_alone(workers: Pair) -> None:
    prefill, decode = workers.both("hc", tokens=3000)
    decode.get(1)
    decode.cancel()
    assert prefill.end().name == "OK"
    assert workers.prefill_side.said(r"leg ended.*\brequest=hc ") == []
