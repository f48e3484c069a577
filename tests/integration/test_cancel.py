"""Clients that go: cancelled, reset, cut off, killed, or no longer reading, in every state of a leg."""

from __future__ import annotations

import os
import signal
import time

import pytest

from harness.byhand import ALL_CHOICES, CALM, by_hand
from harness.client import GENERATE, QUIET_S, Client, request, until
from harness.http2 import Connection
from harness.process import program

# -- before the engine has it --


def test_a_leg_cancelled_in_line_was_never_in_the_engine() -> None:
    with by_hand("decode", window=1) as worker:
        _, first = worker.admitted("first", room=1)
        waiting = worker.waiting("waiting", room=2)
        waiting.cancel()
        until(lambda: worker.rank()["waiting"] == 0, "it has left the line")
        first.finish()
        worker.engine.quiet()
        assert worker.engine.order == ["first"] and worker.engine.aborts == []
        worker.idle()


# -- submitted, no output yet --


@pytest.mark.parametrize("role", ["null", "prefill"])
def test_cancelled_before_the_first_output_the_engine_is_told_at_once(role: str) -> None:
    """sgl-project/sglang#36333, #37833, #35255, #34894."""
    with by_hand(role) as worker:
        stream, leg = worker.admitted("r", room=1 if role == "prefill" else None)
        stream.cancel()
        worker.engine.wait_aborts(1)
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        if role == "prefill":  # its engine has only marked it, and may write still
            assert worker.rank()["running"] == 1
            leg.finish()
        worker.idle()


def test_a_decode_cancelled_before_its_kv_keeps_its_slot_until_the_first_output() -> None:
    """No KV may be written into pages that have been given away: the prefill may still write, so
    the engine is told only when the KV is here.
    """
    with by_hand("decode", window=1) as worker:
        stream, leg = worker.admitted("r", room=1)
        stream.cancel()
        until(lambda: worker.rank()["releasing"] == 1, "its slot is held for the engine")
        worker.engine.quiet()
        assert leg.aborts == []
        waiting = worker.waiting("next", room=2)
        leg.output([1])
        worker.engine.wait_aborts(1)
        worker.engine.leg("next").finish()
        assert waiting.end().name == "OK"
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        worker.idle()


def test_a_decode_whose_kv_never_comes_is_aborted_after_its_bound() -> None:
    settings: dict[str, object] = {"handoff_seconds": 0.2, "transfer_seconds": 0.6}
    with by_hand("decode", window=1, settings=settings) as worker:
        stream, leg = worker.admitted("r", room=1)
        stream.cancel()
        worker.engine.wait_aborts(1)
        # An abort is only a mark on a request that waits for its peer: the slot is not free yet.
        assert worker.rank()["releasing"] == 1
        # The engine's own transfer deadline is what frees it.
        worker.idle()
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]


def test_a_cancelled_decode_that_ends_by_itself_is_not_aborted() -> None:
    with by_hand("decode", window=1) as worker:
        stream, leg = worker.admitted("r", room=1)
        stream.cancel()
        until(lambda: worker.rank()["releasing"] == 1, "its slot is held for the engine")
        leg.output([], {"type": "abort", "message": "transfer failed", "status_code": 500})
        worker.idle()
        worker.engine.quiet()
        assert leg.aborts == []


# -- streaming --


@pytest.mark.parametrize("role", ["null", "prefill", "decode"])
def test_cancelled_while_streaming_the_engine_is_told_once_and_late_outputs_are_dropped(
    role: str,
) -> None:
    """sgl-project/sglang#36333, #37833: the abort was skipped and decoding ran on to its limit."""
    with by_hand(role) as worker:
        stream, leg = worker.admitted("r", room=None if role == "null" else 1)
        leg.output([1])
        stream.get(1)
        stream.cancel()
        worker.engine.wait_aborts(1)
        if role != "prefill":  # whose engine has only marked it: it is over with the last output
            worker.idle()
        for _ in range(3):
            leg.output([2])
        leg.output([3], "length")
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        worker.idle()
        # Life goes on.
        other, leg = worker.admitted("other", room=None if role == "null" else 2)
        leg.finish()
        assert other.end().name == "OK"


def test_an_abort_that_the_engine_does_not_take_keeps_the_slot() -> None:
    with by_hand("decode", window=1, acknowledge=False) as worker:
        stream, leg = worker.admitted("r", room=1)
        leg.output([1])
        stream.get(1)
        stream.cancel()
        worker.engine.wait_aborts(1)
        waiting = worker.waiting("next", room=2)
        worker.engine.quiet()
        assert worker.rank()["releasing"] == 1
        worker.servicer.aborted(leg.handle)
        worker.engine.leg("next").finish()
        assert waiting.end().name == "OK"
        worker.idle()


@pytest.mark.parametrize("when", ["before any output", "amid the output"])
def test_all_choices_of_a_cancelled_call_are_aborted(when: str) -> None:
    """ai-dynamo/dynamo#14262, smg-project/smg#1464, vllm-project/vllm#53936."""
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3})
        if when == "amid the output":
            leg.output([1], choice=1)
            stream.get(1)
        stream.cancel()
        worker.engine.wait_aborts(1)
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        worker.idle()


def test_of_a_cancelled_call_a_finished_choice_is_not_aborted_again() -> None:
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3})
        leg.output([1], "length", choice=1)
        stream.get(2)
        stream.cancel()
        worker.engine.wait_aborts(2)
        worker.engine.quiet()
        assert sorted(leg.aborts) == [0, 2]
        worker.idle()


def test_a_deadline_that_passes_is_a_client_that_goes() -> None:
    with by_hand("null") as worker:
        stream = worker.client.send(request("r"), timeout=0.3)
        leg = worker.engine.leg("r")
        leg.output([1])
        assert stream.end().name == "DEADLINE_EXCEEDED"
        worker.engine.wait_aborts(1)
        worker.idle()


@pytest.mark.parametrize("how", ["a reset", "a closed connection"])
def test_a_client_that_goes_at_the_transports_level_is_noticed(how: str) -> None:
    """sgl-project/sglang#36333, #35255: RST_STREAM, and TCP close."""
    with by_hand("null") as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("r").SerializeToString())
        leg = worker.engine.leg("r")
        leg.output([1])
        connection.wait_events(stream, 2)
        if how == "a reset":
            connection.reset(stream)
        else:
            connection.socket.close()
        worker.engine.wait_aborts(1)
        worker.idle()
        assert leg.aborts == [ALL_CHOICES]


def test_a_client_killed_amid_its_streams_leaves_nothing_behind() -> None:
    """sgl-project/sglang#34894: SIGKILL of the client, with streams in every state."""
    with by_hand("decode", window=2) as worker:
        with program("killed_client", worker.address, "4") as client:
            client.wait_line("open")
            legs = [worker.engine.legs[i] for i in range(2)] if _two(worker) else []
            until(lambda: worker.rank()["waiting"] == 2, "two of four wait")
            legs[0].output([1])
            client.wait_line("message")
            os.kill(client.pid, signal.SIGKILL)
        until(lambda: worker.rank()["waiting"] == 0, "who waited is gone")
        worker.engine.wait_aborts(1)
        assert legs[0].aborts == [ALL_CHOICES]
        # The slot of the first may have gone to one in line before that one's end was seen: then
        # it waits for its KV too, as the second does. Every one of them ends with its output.
        until(lambda: worker.rank()["releasing"] >= 1, "the other one waits for its KV")

        def all_over() -> bool:
            for leg in list(worker.engine.legs):
                if not leg.aborts:
                    leg.output([1])
            return all(leg.aborts == [ALL_CHOICES] for leg in worker.engine.legs)

        until(all_over, "every engine request gets one abort")
        worker.idle()


def _two(worker: object) -> bool:
    engine = worker.engine  # type: ignore[attr-defined]
    return bool(until(lambda: len(engine.legs) == 2, "two of four are admitted"))


# -- readers that do not read --


def test_a_reader_that_stops_is_ended_within_its_bound_and_nobody_else_is() -> None:
    settings: dict[str, object] = {"backlog_bytes": 65536}
    with by_hand("null", settings=settings) as worker:
        # Two connections: on one, the unread stream would take the other's window too.
        with Client(worker.address, options=(("grpc.http2.bdp_probe", 0),)) as slow:
            unread = slow.generate("unread", read=False)
            leg = worker.engine.leg("unread")
            other, other_leg = worker.admitted("other")
            for _ in range(2000):
                leg.output(list(range(1000, 6000)))
                if leg.aborts:
                    break
                time.sleep(0.001)
            worker.engine.wait_aborts(1)
            assert leg.aborts == [ALL_CHOICES]
            # What windows and sockets took in, and 64 KiB, and not the 20 MB that were there.
            assert leg.given[0] < 2000 * 5000
            other_leg.finish([1, 2, 3])
            assert other.end().name == "OK"
            unread.read()
            status = unread.end()
            assert status.name == "RESOURCE_EXHAUSTED"
            assert "65536 (backlog_bytes)" in status.details
        worker.idle()


def test_a_reader_without_any_window_is_told_all_the_same() -> None:
    """The stream is reset, which needs no room in the reader's window; the connection lives on."""
    settings: dict[str, object] = {"backlog_bytes": 4096}
    with by_hand("null", settings=settings) as worker:
        with Connection(worker.address, window=0, reads=False) as connection:
            stream = connection.call(GENERATE, request("r").SerializeToString())
            leg = worker.engine.leg("r")
            connection.wait_events(stream, 1)
            for _ in range(20):
                leg.output(list(range(100)))
            seen = connection.end(stream)
            assert seen.status == 8 or seen.kinds[-1] == "reset"
            assert "data" not in seen.kinds
            worker.engine.wait_aborts(1)
            worker.idle()
            connection.ping(b"alive???")
            until(lambda: connection.step(1) and b"alive???" in connection.pongs, "a pong")


def test_a_slow_reader_gets_fewer_and_longer_chunks_and_every_token() -> None:
    with by_hand("null") as worker:
        with Connection(worker.address, window=0, reads=False) as connection:
            stream = connection.call(GENERATE, request("r").SerializeToString())
            leg = worker.engine.leg("r")
            connection.wait_events(stream, 1)
            for token in range(1000):
                leg.output([token])
            leg.output([1000], "length")
            time.sleep(QUIET_S)
            connection.window(0, 1 << 20)
            connection.window(stream, 1 << 20)
            seen = connection.end(stream)
    from harness.client import message

    parsed = [message("GenerateResponse").FromString(data) for data in seen.messages()]
    chunks = [m.chunk for m in parsed if m.HasField("chunk")]
    assert [i for chunk in chunks for i in chunk.token_ids] == list(range(1001))
    assert list(parsed[-1].complete.output_ids) == list(range(1001))
    assert len(chunks) < 400  # 256 wait one by one here, 128 in gRPC core
    assert [chunk.completion_tokens for chunk in chunks] == sorted(
        chunk.completion_tokens for chunk in chunks
    )


def test_a_thousand_cancelled_calls_leave_nothing_behind() -> None:
    settings = {**CALM, "log_level": "error"}
    with by_hand("decode", window=4, settings=settings) as worker:
        for turn in range(10):
            streams = [worker.generate(f"r{turn}-{i}", room=turn * 100 + i + 1) for i in range(100)]
            for stream in streams:
                stream.cancel()
            for stream in streams:
                stream.end()

            def let_go() -> bool:
                for leg in list(worker.engine.legs):
                    if not leg.given:
                        leg.output([1])
                rank = worker.rank()
                return rank["releasing"] == 0 and rank["held_slots"] == 0

            until(let_go, "all slots are free")
        worker.idle()
        assert worker.servicer.open_calls() == 0
