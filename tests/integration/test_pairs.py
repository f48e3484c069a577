"""A prefill and a decode, two processes each with its engine, as a gateway drives them.

What happens without the link between workers is said as it is, with `--room-link off`, beside what the
link makes of it.
"""

from __future__ import annotations

import time

import pytest

from harness.client import Client, Stream, until
from harness.process import has_cpp_scheduler, standin
from link_support import Pair, names_of, new_room, pair

OFF = ("--room-link", "off")
both_ways = pytest.mark.parametrize("link", [(), OFF], ids=["linked", "link off"])


@both_ways
def test_a_pairs_legs_meet_in_their_room_and_both_end_ok(link: tuple[str, ...]) -> None:
    with pair("--max-num-seqs", "4", *link) as workers:
        assert workers.both("r")[1].end().name == "OK"
        prefill, decode = workers.both("again", tokens=7)
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        assert len(decode.complete().output_ids) == 7
        assert prefill.complete().output_ids[:1] == decode.complete().output_ids[:1]
        workers.idle()


def test_a_burst_within_the_prefills_patience_loses_nobody() -> None:
    """lightseekorg/tokenspeed#1427, smg-project/smg#2463: 32 pairs on a window of 4, and the line
    before it is shorter than the prefill's bootstrap deadline. (In a longer one the deadline still
    runs while its decode waits here: without the link the prefill cannot be held back.)
    """
    with pair("--max-num-seqs", "4", "--bootstrap-timeout", "60", *OFF) as workers:
        assert names_of(workers.burst("r", 32)) == [("OK", "OK")] * 32
        workers.idle()


@both_ways
def test_a_burst_beyond_the_prefills_patience_loses_nobody_with_the_link(
    link: tuple[str, ...],
) -> None:
    """The same in a line of 3 s before a bootstrap deadline of 1 s."""
    flags = ("--max-num-seqs", "4", "--bootstrap-timeout", "1", "--transfer-timeout", "2.5")
    with pair(*flags, *link) as workers:
        ends = names_of(workers.burst("r", 32, tokens=30))
        if link == OFF:
            assert ("INTERNAL", "INTERNAL") in ends
        else:
            assert ends == [("OK", "OK")] * 32
        workers.idle()


# The prompt takes its time, so that the cancel comes before any KV.
SLOWLY = ("--prefill-ms", "200", "--chunked-prefill-size", "16")


def test_a_cancelled_prefill_leaves_its_decode_to_the_engines_deadline_without_the_link() -> None:
    """sgl-project/sglang#28651: the decode is not told, and holds its slot for the full wait.

    Without the link so it is here, too: the decode ends at its engine's transfer deadline, with an
    error and not with OK, its slot is counted until then, and who waits for it is told to wait.
    """
    with pair("--max-num-seqs", "1", "--transfer-timeout", "3", *SLOWLY, *OFF) as workers:
        prefill, decode = workers.both("r", input_ids=[5] * 320)
        _cancel_before_kv(workers, prefill)
        next_prefill, waiting = workers.both("next")
        status = decode.end()
        assert status.name == "INTERNAL", status
        assert (next_prefill.end().name, waiting.end().name) == ("OK", "OK")
        workers.idle()


def test_a_cancelled_prefill_ends_its_decode_at_once_with_the_link() -> None:
    """Long before the engine's deadline of 300 s; and its slot goes to who waits for it."""
    with pair("--max-num-seqs", "1", *SLOWLY) as workers:
        prefill, decode = workers.both("r", input_ids=[5] * 320)
        _cancel_before_kv(workers, prefill)
        next_prefill, waiting = workers.both("next")
        status = decode.end()
        assert status.name == "ABORTED", status
        assert status.details == "the other leg of this room ended first: client_cancel"
        assert (next_prefill.end().name, waiting.end().name) == ("OK", "OK")
        workers.idle()


def _cancel_before_kv(workers: Pair, prefill: Stream) -> None:
    prefill.get(1)
    until(lambda: workers.prefill_side.legs("submitted") == 1, "the prefill is under way")
    until(lambda: workers.decode_side.legs("submitted") == 1, "the decode is admitted")
    time.sleep(0.2)
    prefill.cancel()


def test_a_decode_cancelled_before_its_kv_frees_its_slot_when_the_kv_is_there_without_the_link() -> (
    None
):
    """And the prefill's leg, which nobody tells, is served to its end."""
    with pair("--max-num-seqs", "1", *OFF) as workers:
        room = new_room()
        decode = workers.decode_leg("r", room)
        until(lambda: workers.decode.loads().loads[0].num_running_reqs == 1, "it is admitted")
        decode.cancel()
        until(lambda: workers.decode_side.slots() == (0, 1), "its slot is held")
        assert workers.prefill_leg("r", room).end().name == "OK"
        workers.idle()
        workers.serves()


def test_a_decode_cancelled_before_its_kv_frees_its_slot_and_ends_its_late_prefill_with_the_link() -> (
    None
):
    with pair("--max-num-seqs", "1") as workers:
        workers.serves("first")
        room = new_room()
        decode = workers.decode_leg("r", room)
        until(lambda: workers.decode.loads().loads[0].num_running_reqs == 1, "it is admitted")
        decode.cancel()
        workers.idle()
        late = workers.prefill_leg("r", room).end()
        assert late.name == "ABORTED", late
        workers.serves()
        workers.idle()


def test_a_decode_refused_at_the_window_leaves_its_prefill_to_the_engines_deadline_without_the_link() -> (
    None
):
    """What a gateway must cancel itself, as it does when the refusal comes before headers."""
    flags = ("--max-num-seqs", "1", "--bootstrap-timeout", "2", *OFF)
    with pair(*flags, decode_flags=("--room-waiting", "0")) as workers:
        busy = workers.both("busy", tokens=300)
        busy[1].get(1)
        prefill, decode = workers.both("refused")
        assert decode.end().name == "RESOURCE_EXHAUSTED"
        assert prefill.get(1)[0].HasField("chunk")
        assert prefill.end().name == "INTERNAL"
        assert [leg.end().name for leg in busy] == ["OK", "OK"]
        workers.idle()


def test_a_decode_refused_at_the_window_ends_its_prefill_with_the_link() -> None:
    """With the refusal's own code and pushback, and without a call of the engine."""
    with pair("--max-num-seqs", "1", decode_flags=("--room-waiting", "0")) as workers:
        busy = workers.both("busy", tokens=100)
        busy[1].get(1)
        submitted = workers.prefill.rooms()["admitted"]
        prefill, decode = workers.both("refused")
        assert decode.end().name == "RESOURCE_EXHAUSTED"
        status = prefill.end()
        assert status.name == "RESOURCE_EXHAUSTED", status
        assert status.details == "the other leg of this room ended first: full"
        assert int(status.trailing["grpc-retry-pushback-ms"]) > 0
        assert workers.prefill.rooms()["admitted"] == submitted
        assert [leg.end().name for leg in busy] == ["OK", "OK"]
        workers.idle()


@both_ways
@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_an_id_comes_again_right_after_its_abort(
    link: tuple[str, ...],
) -> None:
    """It ends the process with an id that it still knows: Generate A, Abort A, Generate A."""
    with pair("--max-num-seqs", "4", "--bootstrap-timeout", "2", *link) as workers:
        assert workers.decode_worker.scheduler.startswith("tokenspeed-scheduler")
        aborted = workers.decode_leg("a", new_room())
        until(lambda: workers.decode.loads().loads[0].num_running_reqs == 1, "it is admitted")
        assert workers.decode.abort("a").success
        assert aborted.end().name == "OK"
        assert aborted.complete().finish_reason == "abort"
        for _ in range(3):  # while the scheduler still has the first
            prefill, decode = workers.both("a")
            assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        if link == OFF:  # the KV of the first may still come
            assert workers.decode_side.slots() == (0, 1)
        else:
            workers.idle()
        assert workers.decode_worker.program.process.poll() is None


@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_an_id_comes_again_after_its_deadlines() -> None:
    """The same id later, when the engine's own deadlines have passed: 61 s there, 2 s here."""
    flags = ("--max-num-seqs", "2", "--bootstrap-timeout", "1", "--transfer-timeout", "1.2")
    with pair(*flags) as workers:
        lonely = workers.decode_leg("a", new_room())
        assert lonely.end().name == "INTERNAL"
        lonely = workers.prefill_leg("a", new_room())
        assert lonely.end().name == "INTERNAL"
        time.sleep(1.0)
        prefill, decode = workers.both("a")
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        workers.idle()


@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_names_that_look_like_ours_are_harmless() -> None:
    """`abc` with two choices beside `abc-n0`, and a literal `abc~1`."""
    with standin("--step-ms", "10") as worker, Client(worker.address) as client:
        assert worker.scheduler.startswith("tokenspeed-scheduler")
        names = ["abc", "abc-n0", "abc-n1", "abc~1", "abc~2", "abc~1-n0", "abc~2-n1", "~", "~1"]
        for _ in range(3):
            streams = [
                client.generate(
                    name,
                    sampling={"max_new_tokens": 20, "ignore_eos": True, "n": 2 if n == 0 else 1},
                )
                for n, name in enumerate(names)
            ]
            assert [stream.end().name for stream in streams] == ["OK"] * len(names)
            assert len(streams[0].complete(1).output_ids) == 20
        assert worker.program.process.poll() is None


@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_a_flood_of_one_id_leaves_the_engine_alive() -> None:
    """sgl-project/sglang#19035, ai-dynamo/dynamo#8601."""
    with standin("--step-ms", "5") as worker, Client(worker.address) as client:
        for life in range(40):
            stream = client.generate("same", sampling={"max_new_tokens": 50, "ignore_eos": True})
            other = client.generate("same")
            if life % 2:
                stream.cancel()
            else:
                client.abort("same")
            assert stream.end().name in ("OK", "CANCELLED", "ALREADY_EXISTS")
            other.cancel()
            other.end()
        after = client.generate("after", sampling={"max_new_tokens": 3, "ignore_eos": True})
        assert after.end().name == "OK"
        until(lambda: client.loads().loads[0].num_running_reqs == 0, "nothing runs any more")
        assert worker.program.process.poll() is None


@both_ways
def test_aborts_and_cancels_in_every_moment_leave_both_workers_idle(link: tuple[str, ...]) -> None:
    flags = ("--max-num-seqs", "4", "--bootstrap-timeout", "2", "--transfer-timeout", "3", *link)
    with pair(*flags, decode_flags=("--room-handoff-seconds", "1")) as workers:
        workers.serves("first")
        if link != OFF:
            workers.until_linked()
        legs = [workers.both(f"r{i}", tokens=20) for i in range(40)]
        for number, (prefill, decode) in enumerate(legs):
            time.sleep(0.01)
            kind = number % 5
            if kind == 0:
                prefill.cancel()
            elif kind == 1:
                decode.cancel()
            elif kind == 2:
                workers.decode.abort(f"r{number}")
                workers.prefill.abort(f"r{number}")
            elif kind == 3:
                prefill.cancel()
                decode.cancel()
        ends = [leg.end().name for both in legs for leg in both]
        others = {"INTERNAL", "RESOURCE_EXHAUSTED"} if link == OFF else {"ABORTED"}
        assert set(ends) <= {"OK", "CANCELLED"} | others
        workers.idle()
        workers.serves("after")
