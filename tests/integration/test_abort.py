"""The Abort RPC: by a parent's name, by a child's, late, often, and against everything else at once."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from harness.byhand import ALL_CHOICES, by_hand
from harness.client import Client, request, until


@pytest.mark.parametrize("role", ["null", "prefill", "decode"])
def test_an_aborted_stream_ends_at_once_with_what_it_has(role: str) -> None:
    """smg-project/smg#1099: the mapping was gone, nobody woke the stream, and it never ended."""
    with by_hand(role) as worker:
        stream, leg = worker.admitted("r", room=None if role == "null" else 1)
        leg.output([1, 2])
        until(lambda: stream.chunk_ids() == [1, 2], "the chunk is here")
        answer = worker.client.abort("r")
        assert answer.success, answer
        assert stream.end().name == "OK"
        complete = stream.complete()
        assert complete.finish_reason == "abort"
        assert list(complete.output_ids) == [1, 2]
        worker.engine.wait_aborts(1)
        assert leg.aborts == [ALL_CHOICES]
        if role == "prefill":  # its engine has only marked it
            leg.finish()
        worker.idle()


def test_an_engine_that_is_silent_does_not_keep_an_aborted_stream() -> None:
    """smg-project/smg#1099: silent engine, Abort from another channel."""
    with by_hand("null", acknowledge=False) as worker:
        stream, _ = worker.admitted("r", stream=False)
        assert worker.client.abort("r").success
        assert stream.end().name == "OK"
        assert stream.complete().finish_reason == "abort"
        assert worker.client.server_info().active_requests == 0


def test_an_aborted_leg_in_line_never_reaches_the_engine() -> None:
    with by_hand("decode", window=1) as worker:
        _, first = worker.admitted("first", room=1)
        waiting = worker.waiting("waiting", room=2)
        assert worker.client.abort("waiting").success
        assert waiting.end().name == "OK"
        assert waiting.complete().finish_reason == "abort"
        first.finish()
        worker.engine.quiet()
        assert worker.engine.order == ["first"] and worker.engine.aborts == []
        worker.idle()


def test_a_decode_aborted_before_its_kv_is_over_for_the_client_and_waits_for_the_engine() -> None:
    """sgl-project/sglang#33507: reported as length and OK, before."""
    with by_hand("decode", window=1) as worker:
        stream, leg = worker.admitted("r", room=1)
        assert worker.client.abort("r").success
        assert stream.end().name == "OK"
        assert stream.complete().finish_reason == "abort"
        assert worker.rank()["releasing"] == 1
        worker.engine.quiet()
        leg.output([1])
        worker.engine.wait_aborts(1)
        worker.idle()
        assert leg.aborts == [ALL_CHOICES]


def test_a_prefill_aborted_amid_its_transfer_says_abort_and_never_length() -> None:
    """sgl-project/sglang#33507: what the engine says afterwards is not told any more."""
    with by_hand("prefill") as worker:
        stream, leg = worker.admitted("r", room=1)
        assert worker.client.abort("r").success
        leg.output([1], "length")
        assert stream.end().name == "OK"
        assert stream.complete().finish_reason == "abort"
        assert list(stream.complete().output_ids) == []
        worker.idle()


def test_aborting_a_parent_aborts_all_its_children() -> None:
    """ai-dynamo/dynamo#14262, smg-project/smg#1464, vllm-project/vllm#53936."""
    with by_hand("null", settings={"gate_aggregated": "on"}) as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3})
        leg.output([1], choice=1)
        stream.get(1)
        answer = worker.client.abort("r")
        assert answer.success and "3" in answer.message
        assert stream.end().name == "OK"
        assert [stream.complete(i).finish_reason for i in range(3)] == ["abort"] * 3
        assert [list(stream.complete(i).output_ids) for i in range(3)] == [[], [1], []]
        worker.engine.wait_aborts(1)
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        worker.idle()


@pytest.mark.parametrize("streaming", [True, False])
def test_one_child_is_aborted_by_its_name_and_the_others_go_on(streaming: bool) -> None:
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3}, stream=streaming)
        for choice in range(3):
            leg.output([choice], choice=choice)
        assert worker.client.abort("r-n1").success
        worker.engine.wait_aborts(1)
        assert leg.aborts == [1]
        assert not worker.client.abort("r-n1").success
        leg.output([10], choice=1)
        leg.output([10], "length", choice=0)
        leg.output([12], "length", choice=2)
        assert stream.end().name == "OK"
        assert [stream.complete(i).finish_reason for i in range(3)] == ["length", "abort", "length"]
        assert [list(stream.complete(i).output_ids) for i in range(3)] == [[0, 10], [1], [2, 12]]
        worker.engine.quiet()
        assert leg.aborts == [1]
        worker.idle()


def test_when_the_last_child_is_aborted_the_call_is_over() -> None:
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r", sampling={"n": 2})
        assert worker.client.abort("r-n0").success
        assert worker.client.abort("r-n1").success
        assert stream.end().name == "OK"
        assert [stream.complete(i).finish_reason for i in range(2)] == ["abort", "abort"]
        worker.engine.wait_aborts(2)
        assert sorted(leg.aborts) == [0, 1]
        worker.idle()


@pytest.mark.parametrize(
    "name", ["r-n2", "r-n", "r-n01x", "r-n99999999999", "r-", "-n0", "rr", "r~1"]
)
def test_a_name_that_is_no_live_request_is_not_found_and_no_error(name: str) -> None:
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r", sampling={"n": 2})
        answer = worker.client.abort(name)
        assert not answer.success
        assert "not found" in answer.message
        worker.engine.quiet()
        leg.finish()
        assert stream.end().name == "OK"


def test_a_request_named_like_a_child_is_itself() -> None:
    with by_hand("null") as worker:
        parent, parent_leg = worker.admitted("abc", sampling={"n": 2})
        namesake, namesake_leg = worker.admitted("abc-n0")
        assert worker.client.abort("abc-n0").success
        assert namesake.end().name == "OK"
        worker.engine.wait_aborts(1)
        assert (parent_leg.aborts, namesake_leg.aborts) == ([], [ALL_CHOICES])
        parent_leg.finish()
        assert parent.end().name == "OK"
        worker.idle()


def test_a_hundred_aborts_of_one_request_reach_the_engine_once() -> None:
    """smg-project/smg#2426: late and repeated aborts wedged the scheduler."""
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r")
        leg.output([1])
        stream.get(1)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(worker.client.abort, ["r"] * 100))
        assert sum(answer.success for answer in answers) == 1
        assert all("not found" in answer.message for answer in answers if not answer.success)
        assert stream.end().name == "OK"
        worker.engine.wait_aborts(1)
        worker.engine.quiet()
        assert leg.aborts == [ALL_CHOICES]
        worker.idle()


def test_an_abort_after_the_end_is_not_found() -> None:
    """smg-project/smg#2426."""
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r")
        leg.finish()
        assert stream.end().name == "OK"
        assert not worker.client.abort("r").success
        worker.engine.quiet()
        assert leg.aborts == []


def test_an_abort_and_a_cancel_together_reach_the_engine_once() -> None:
    """smg-project/smg#2426."""
    with by_hand("null") as worker:
        for life in range(30):
            stream, leg = worker.admitted(f"r{life}")
            leg.output([1])
            stream.get(1)
            together = threading.Barrier(2)

            def cancel(together: threading.Barrier = together, call: object = stream) -> None:
                together.wait()
                call.cancel()  # type: ignore[attr-defined]

            other = threading.Thread(target=cancel)
            other.start()
            together.wait()
            worker.client.abort(f"r{life}")
            other.join()
            assert stream.end().name in ("OK", "CANCELLED")
            worker.engine.wait_aborts(life + 1)
            assert leg.aborts == [ALL_CHOICES]
        worker.engine.quiet()
        assert len(worker.engine.aborts) == 30
        worker.idle()


def test_an_abort_and_the_engines_own_end_together_end_the_stream_once() -> None:
    with by_hand("null") as worker:
        for life in range(30):
            stream, leg = worker.admitted(f"r{life}")
            leg.output([1])
            together = threading.Barrier(2)

            def finish(together: threading.Barrier = together, leg: object = leg) -> None:
                together.wait()
                leg.finish([2])  # type: ignore[attr-defined]

            other = threading.Thread(target=finish)
            other.start()
            together.wait()
            worker.client.abort(f"r{life}")
            other.join()
            assert stream.end().name == "OK"
            complete = stream.complete()
            assert complete.finish_reason in ("abort", "length")
            assert stream.chunk_ids() == list(complete.output_ids)[: len(stream.chunk_ids())]
            assert len(leg.aborts) <= 1
        worker.idle()


def test_an_abort_while_an_older_life_of_the_id_is_ending_leaves_the_new_one() -> None:
    with by_hand("decode", window=2) as worker:
        old, old_leg = worker.admitted("r", room=1)
        old.cancel()
        until(lambda: worker.rank()["releasing"] == 1, "the old life is ending")
        new, new_leg = worker.admitted("r", room=2), None
        stream, new_leg = new
        assert worker.client.abort("r").success
        worker.engine.quiet()
        new_leg = worker.engine.leg("r", 1)
        new_leg.output([1], "length")
        assert stream.end().name == "OK"
        assert stream.complete().finish_reason == "length"
        old_leg.output([1])
        worker.engine.wait_aborts(1)
        worker.idle()


def test_the_same_id_may_come_again_right_after_its_abort() -> None:
    """The engine's ids are never reused, so its scheduler never meets one that it still knows."""
    with by_hand("decode", window=4) as worker:
        aborted, _ = worker.admitted("a", room=1)
        assert worker.client.abort("a").success
        assert aborted.end().name == "OK"
        for life in range(1, 4):
            stream = worker.generate("a", room=life + 1)
            worker.engine.leg("a", life).finish()
            assert stream.end().name == "OK"
            assert stream.complete().finish_reason == "length"
        assert worker.rank()["releasing"] == 1
        assert len({leg.submission.engine_id for leg in worker.engine.legs}) == 4


def test_an_abort_is_answered_while_the_worker_drains() -> None:
    with by_hand("null") as worker:
        stream, _ = worker.admitted("r")
        worker.servicer.drain()
        assert worker.client.abort("r").success
        assert stream.end().name == "OK"
        assert worker.client.send(request("new")).end().name == "UNAVAILABLE"


def test_an_aborted_stream_that_was_not_read_has_its_chunks_and_the_choice_that_was_over() -> None:
    """What was waiting to be written was thrown away: Chunks whose tokens only the Complete then had, and the
    Complete of a choice that had come to its end before the abort.
    """
    step = [300] * 16384  # a few of them are more than a connection takes unread
    small = (("grpc.http2.bdp_probe", 0),)
    with by_hand("null") as worker, Client(worker.client.address, options=small) as client:
        stream = client.generate("r", sampling={"n": 2}, read=False)
        leg = worker.engine.leg("r")
        for _ in range(20):
            leg.output(step, choice=1)
        leg.output(step, "length", choice=0)
        assert worker.client.abort("r").success
        stream.read()
        assert stream.end().name == "OK"
        assert stream.complete(0).finish_reason == "length"
        assert stream.complete(1).finish_reason == "abort"
        for choice, steps in ((0, 1), (1, 20)):
            assert list(stream.complete(choice).output_ids) == step * steps
            assert stream.chunk_ids(choice) == step * steps
        worker.idle()
