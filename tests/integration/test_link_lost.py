"""The other worker is gone, frozen or cut off: legs end, slots come back when nothing can write into them.

No time here is a measurement on a quiet machine; the guards are wide, and what was seen is printed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from harness.client import GUARD_S, Stream, until
from harness.process import SANITIZED
from link_support import (
    LINK_OFFSET,
    Pair,
    Proxy,
    bootstrap_port,
    by_proxy,
    latencies,
    new_room,
    p99,
    pair,
    role_flags,
    side,
)

WINDOW = 8
#: Prompts of LONG take the prefill for ever, so there is no KV.
SLOWLY = ("--max-num-seqs", str(WINDOW), "--prefill-ms", "500", "--chunked-prefill-size", "16")
LONG = [5] * 1600
SLOW = 10.0 if SANITIZED else 1.0


def stranded(workers: Pair, name: str) -> tuple[list[Stream], list[Stream]]:
    """As many pairs as there are slots, submitted on both sides, and four in line."""
    legs = workers.burst(name, WINDOW + 4, input_ids=LONG)
    until(lambda: workers.decode_side.legs("submitted") == WINDOW, "the window is full")
    until(lambda: workers.decode_side.legs("waiting") == 4, "the line has four")
    until(lambda: workers.prefill_side.legs("submitted") == WINDOW, "the prefill has the window's")
    until(lambda: workers.prefill_side.legs("held") == 4, "and holds four")
    return [prefill for prefill, _ in legs], [decode for _, decode in legs]


def handed_off(workers: Pair) -> Stream:
    """A decode that streams, whose prefill has done its part."""
    prefill, decode = workers.both("handed-off", tokens=100000 // 50)
    decode.get(1)
    assert prefill.end().name == "OK"
    return decode


def to_be_retried(
    streams: list[Stream], cause: str = "the worker of the other leg was lost; retry"
) -> None:
    for stream in streams:
        status = stream.end()
        assert status.name == "RESOURCE_EXHAUSTED", status
        assert status.details == cause
        assert int(status.trailing["grpc-retry-pushback-ms"]) > 0


def show(what: str, seconds: list[float]) -> None:
    print(
        f"{what}: median {seconds[len(seconds) // 2] * 1e3:.0f} ms, p99 {p99(seconds) * 1e3:.0f} ms"
    )


def test_a_killed_prefill_ends_its_decodes_and_their_slots_are_free() -> None:
    port = bootstrap_port()
    flags = (*SLOWLY, "--max-model-len", "4096")
    with side(*role_flags("decode", port, *flags)) as decode:
        with side(*role_flags("prefill", port, *flags)) as prefill:
            workers = Pair(prefill, decode, port)
            workers.serves("first")
            workers.until_linked()
            going = handed_off(workers)
            legs = workers.burst("k", WINDOW + 3, input_ids=LONG)
            until(lambda: decode.legs("submitted") == WINDOW - 1, "the window is full")
            until(lambda: prefill.legs("submitted") == WINDOW - 1, "the prefill has them")
            begun = time.monotonic()
            prefill.worker.program.signal(signal.SIGKILL)
            decodes = [leg for _, leg in legs]
            seconds = latencies(begun, decodes)
            to_be_retried(decodes)
            until(lambda: decode.slots() == (1, 0), "their slots are free")
            freed = time.monotonic() - begun
            show("decodes of a killed prefill", seconds)
            print(f"their slots were free after {freed * 1e3:.0f} ms")
            assert p99(seconds) < SLOW
            assert freed < 2 * SLOW
            assert not going.ended()  # it has its KV
            assert len(decode.said("a room link is lost")) == 1
            assert len(decode.said("leg ended.*cause=peer_lost")) == len(decodes)
        until(lambda: "no prefill worker" in decode.peer()["why"], "nobody is there")
        with side(*role_flags("prefill", port, *flags)) as prefill:
            workers = Pair(prefill, decode, port)
            workers.serves("again")
            workers.until_linked()
        assert not going.ended()
        going.cancel()
        decode.idle()


def test_a_killed_decode_ends_its_prefills_and_the_engine_lets_go_of_them() -> None:
    port = bootstrap_port()
    with side(*role_flags("prefill", port, *SLOWLY)) as prefill:
        with side(*role_flags("decode", port, *SLOWLY)) as decode:
            workers = Pair(prefill, decode, port)
            workers.serves("first")
            workers.until_linked()
            prefills, _ = stranded(workers, "k")
            begun = time.monotonic()
            decode.worker.program.signal(signal.SIGKILL)
            seconds = latencies(begun, prefills)
            to_be_retried(prefills)
            show("prefills of a killed decode", seconds)
            assert p99(seconds) < SLOW
            prefill.idle(10 * SLOW)
        with side(*role_flags("decode", port, *SLOWLY)) as decode:
            workers = Pair(prefill, decode, port)
            workers.serves("again")
            workers.until_linked()
            workers.idle()


@pytest.fixture
def frozen_pair() -> Iterator[Pair]:
    with pair(*SLOWLY) as workers:
        workers.serves("first")
        workers.until_linked()
        yield workers


def test_a_frozen_prefill_ends_its_decodes_and_their_slots_wait_for_proof(
    frozen_pair: Pair,
) -> None:
    """Its engine may still write: the launcher is stopped, its scheduler is not."""
    workers = frozen_pair
    prefills, decodes = stranded(workers, "f")
    with stopped(workers.prefill_worker.program.pid):
        begun = time.monotonic()
        seconds = latencies(begun, decodes)
        show("decodes of a frozen prefill", seconds)
        assert p99(seconds) < 6 * SLOW
        to_be_retried(decodes)
        assert workers.decode_side.slots() == (0, WINDOW)
        assert workers.decode_side.peer()["state"] == "lost"
        assert workers.decode_side.peer()["why"] == "three heartbeats missed"
        later = workers.decode_leg("later", new_room())
        time.sleep(0.5)
        assert workers.decode_side.slots() == (0, WINDOW)
        assert workers.decode.rooms()["ranks"][0]["oldest_releasing_ms"] >= 500
        assert not later.ended()
        later.cancel()
    for stream in prefills:
        assert stream.end().name == "RESOURCE_EXHAUSTED"
    workers.idle()
    workers.until_linked()
    for number in range(3):
        workers.serves(f"after-{number}")


def test_a_frozen_scheduler_of_a_prefill_ends_its_decodes_too() -> None:
    """The launcher says over the link that its engine has stalled."""
    with pair(*SLOWLY, "--room-stall-seconds", "1.5") as workers:
        workers.serves("first")
        _, decodes = stranded(workers, "s")
        with stopped(*workers.prefill_worker.scheduler_pids):
            begun = time.monotonic()
            seconds = latencies(begun, decodes)
            show("decodes of a frozen scheduler", seconds)
            assert workers.decode_side.peer()["state"] == "up"
            assert workers.decode_side.peer()["engine"] == "stalled"
            assert workers.decode_side.said("the engine of a linked worker has stalled") != []
        until(lambda: workers.decode_side.peer()["engine"] == "ready", "it is back")
        workers.idle()
        workers.serves("after")


def test_a_connection_that_falls_silent_is_a_link_lost_on_both_sides() -> None:
    """No FIN and no RST: packets that go nowhere."""
    port = bootstrap_port()
    with (
        Proxy(port + LINK_OFFSET) as proxy,
        pair(*SLOWLY, port=port, decode_flags=by_proxy(port, proxy)) as workers,
    ):
        workers.serves("first")
        workers.until_linked()
        going = handed_off(workers)
        legs = workers.burst("p", WINDOW - 1, input_ids=LONG)
        until(lambda: workers.prefill_side.legs("submitted") == WINDOW - 1, "all are under way")
        begun = time.monotonic()
        proxy.silence()
        prefills, decodes = [p for p, _ in legs], [d for _, d in legs]
        seconds = latencies(begun, decodes + prefills)
        show("legs behind a silent connection", seconds)
        assert p99(seconds) < 6 * SLOW
        to_be_retried(decodes + prefills)
        assert workers.decode_side.slots()[1] == WINDOW - 1
        assert not going.ended()
        proxy.speak()
        until(lambda: workers.decode_side.slots() == (1, 0), "the prefill says that it is quiet")
        workers.until_linked()
        workers.serves("after")
        assert workers.decode_side.peer()["links"] == 2
        going.cancel()
        workers.idle()


def test_a_worker_that_is_stopped_in_order_says_goodbye_and_its_legs_twins_are_to_be_retried() -> (
    None
):
    with pair(*SLOWLY, "--room-drain-seconds", "1") as workers:
        workers.serves("first")
        workers.until_linked()
        _, decodes = stranded(workers, "d")
        workers.prefill_worker.program.signal(signal.SIGTERM)
        for decode in decodes:
            status = decode.end()
            assert status.name == "RESOURCE_EXHAUSTED", status
            assert int(status.trailing["grpc-retry-pushback-ms"]) > 0
        assert workers.prefill_worker.program.wait(GUARD_S) == 0
        workers.decode_side.until_said("the other worker has closed the room link.*it shuts down")
        assert workers.decode_side.said("a room link is lost") == []
        workers.decode_side.idle()


def test_a_decode_that_is_stopped_in_order_ends_the_prefills_of_its_line() -> None:
    with pair(*SLOWLY, "--room-drain-seconds", "1") as workers:
        workers.serves("first")
        workers.until_linked()
        prefills, decodes = stranded(workers, "d")
        workers.decode_worker.program.signal(signal.SIGTERM)
        for prefill in prefills:
            status = prefill.end()
            assert status.name == "RESOURCE_EXHAUSTED", status
            assert int(status.trailing["grpc-retry-pushback-ms"]) > 0
        assert {decode.end().name for decode in decodes} == {"UNAVAILABLE"}
        assert workers.decode_worker.program.wait(GUARD_S) == 0
        # Its goodbye may be overtaken by the end of the stream.
        workers.prefill_side.until_said("closed the room link.*it shuts down|a room link is lost")
        workers.prefill_side.idle()


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
