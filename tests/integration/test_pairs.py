"""A prefill and a decode, two processes each with its engine, as a gateway drives them.

Also what this release does without the link between workers: said as it is, in the tests' names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.client import Client, Stream, until
from harness.process import Worker, has_cpp_scheduler, standin
from roomkeeper.standin.kv import PORT_OFFSET

_rooms = itertools.count(1000)


def _bootstrap_port() -> int:
    """One whose KV port is free too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            if port + PORT_OFFSET > 65535:
                continue
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port + PORT_OFFSET))
                return port


@dataclasses.dataclass
class Pair:
    """Both workers, a client to each, and legs that belong together."""

    prefill_worker: Worker
    decode_worker: Worker
    prefill: Client
    decode: Client
    port: int

    def leg(self, client: Client, name: str, room: int, tokens: int = 4, **fields: Any) -> Stream:
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        return client.generate(name, room=room, port=self.port, sampling=sampling, **fields)

    def both(self, name: str, tokens: int = 4, **fields: Any) -> tuple[Stream, Stream]:
        """What a gateway sends: the same request to both, at the same moment."""
        room = next(_rooms)
        prefill = self.leg(self.prefill, name, room, tokens, **fields)
        return prefill, self.leg(self.decode, name, room, tokens, **fields)

    def idle(self) -> None:
        def free() -> bool:
            return all(
                rank["held_slots"] == rank["releasing"] == rank["running"] == 0
                for client in (self.prefill, self.decode)
                for rank in client.rooms()["ranks"]
            )

        until(free, "both workers are idle")


@contextlib.contextmanager
def _pair(*flags: str, decode_flags: tuple[str, ...] = ()) -> Iterator[Pair]:
    port = _bootstrap_port()
    common = ("--disaggregation-bootstrap-port", str(port), "--step-ms", "10", *flags)
    with (
        standin("--role", "prefill", *common, wait=False) as prefill_worker,
        standin("--role", "decode", *common, *decode_flags) as decode_worker,
        Client(prefill_worker.address) as prefill,
        Client(decode_worker.address) as decode,
    ):
        prefill_worker.wait_serving()
        yield Pair(prefill_worker, decode_worker, prefill, decode, port)


def test_a_pairs_legs_meet_in_their_room_and_both_end_ok() -> None:
    with _pair("--max-num-seqs", "4") as pair:
        assert "OK" == pair.both("r")[1].end().name
        prefill, decode = pair.both("again", tokens=7)
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        assert len(decode.complete().output_ids) == 7
        assert prefill.complete().output_ids[:1] == decode.complete().output_ids[:1]
        pair.idle()


def test_a_burst_within_the_prefills_patience_loses_nobody() -> None:
    """lightseekorg/tokenspeed#1427, smg-project/smg#2463: 32 pairs on a window of 4, and the line
    before it is shorter than the prefill's bootstrap deadline. (In a longer one the deadline still
    runs while its decode waits here: without the link the prefill cannot be held back.)
    """
    with _pair("--max-num-seqs", "4", "--bootstrap-timeout", "60") as pair:
        legs = [pair.both(f"r{i}") for i in range(32)]
        ends = [(prefill.end().name, decode.end().name) for prefill, decode in legs]
        assert ends == [("OK", "OK")] * 32
        pair.idle()


def test_a_cancelled_prefill_leaves_its_decode_to_the_engines_deadline() -> None:
    """sgl-project/sglang#28651: the decode is not told, and holds its slot for the full wait.

    Without the link so it is here, too: the decode ends at its engine's transfer deadline, with an
    error and not with OK, its slot is counted until then, and who waits for it is told to wait.
    """
    # The prompt takes its time, so that the cancel comes before any KV.
    slowly = ("--prefill-ms", "200", "--chunked-prefill-size", "16")
    with _pair("--max-num-seqs", "1", "--transfer-timeout", "3", *slowly) as pair:
        prefill, decode = pair.both("r", input_ids=[5] * 320)
        prefill.get(1)
        until(lambda: pair.decode.rooms()["legs"]["submitted"] == 1, "the decode is admitted")
        time.sleep(0.2)
        prefill.cancel()
        next_prefill, waiting = pair.both("next")
        status = decode.end()
        assert status.name == "INTERNAL", status
        assert (next_prefill.end().name, waiting.end().name) == ("OK", "OK")
        pair.idle()


def test_a_decode_cancelled_before_its_kv_frees_its_slot_when_the_kv_is_there() -> None:
    """And the prefill's leg, which nobody tells, is served to its end."""
    with _pair("--max-num-seqs", "1") as pair:
        room = next(_rooms)
        decode = pair.leg(pair.decode, "r", room)
        until(lambda: pair.decode.loads().loads[0].num_running_reqs == 1, "the decode is admitted")
        decode.cancel()
        until(lambda: pair.decode.rooms()["ranks"][0]["releasing"] == 1, "its slot is held")
        assert pair.leg(pair.prefill, "r", room).end().name == "OK"
        pair.idle()
        prefill, decode = pair.both("next")
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")


def test_a_decode_refused_at_the_window_leaves_its_prefill_to_the_engines_deadline() -> None:
    """What a gateway must cancel itself, as it does when the refusal comes before headers."""
    flags = ("--max-num-seqs", "1", "--bootstrap-timeout", "2")
    with _pair(*flags, decode_flags=("--room-waiting", "0")) as pair:
        busy = pair.both("busy", tokens=300)
        busy[1].get(1)
        prefill, decode = pair.both("refused")
        assert decode.end().name == "RESOURCE_EXHAUSTED"
        assert prefill.get(1)[0].HasField("chunk")
        assert prefill.end().name == "INTERNAL"
        assert [leg.end().name for leg in busy] == ["OK", "OK"]
        pair.idle()


@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_an_id_comes_again_right_after_its_abort() -> None:
    """It ends the process with an id that it still knows: Generate A, Abort A, Generate A."""
    with _pair("--max-num-seqs", "4", "--bootstrap-timeout", "2") as pair:
        assert pair.decode_worker.scheduler.startswith("tokenspeed-scheduler")
        aborted = pair.leg(pair.decode, "a", next(_rooms))
        until(lambda: pair.decode.loads().loads[0].num_running_reqs == 1, "it is admitted")
        assert pair.decode.abort("a").success
        assert aborted.end().name == "OK"
        assert aborted.complete().finish_reason == "abort"
        for _ in range(3):  # while the scheduler still has the first
            prefill, decode = pair.both("a")
            assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        assert pair.decode.rooms()["ranks"][0]["releasing"] == 1
        assert pair.decode_worker.program.process.poll() is None


@pytest.mark.skipif(not has_cpp_scheduler(), reason="tokenspeed-scheduler is not installed")
def test_on_the_real_scheduler_an_id_comes_again_after_its_deadlines() -> None:
    """The same id later, when the engine's own deadlines have passed: 61 s there, 2 s here."""
    flags = ("--max-num-seqs", "2", "--bootstrap-timeout", "1", "--transfer-timeout", "1.2")
    with _pair(*flags) as pair:
        lonely = pair.leg(pair.decode, "a", next(_rooms))
        assert lonely.end().name == "INTERNAL"
        lonely = pair.leg(pair.prefill, "a", next(_rooms))
        assert lonely.end().name == "INTERNAL"
        time.sleep(1.0)
        prefill, decode = pair.both("a")
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")
        pair.idle()


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


def test_aborts_and_cancels_in_every_moment_leave_both_workers_idle() -> None:
    flags = ("--max-num-seqs", "4", "--bootstrap-timeout", "2", "--transfer-timeout", "3")
    with _pair(*flags, decode_flags=("--room-handoff-seconds", "1")) as pair:
        legs = [pair.both(f"r{i}", tokens=20) for i in range(40)]
        for number, (prefill, decode) in enumerate(legs):
            time.sleep(0.01)
            kind = number % 5
            if kind == 0:
                prefill.cancel()
            elif kind == 1:
                decode.cancel()
            elif kind == 2:
                pair.decode.abort(f"r{number}")
                pair.prefill.abort(f"r{number}")
            elif kind == 3:
                prefill.cancel()
                decode.cancel()
        ends = [leg.end().name for both in legs for leg in both]
        assert set(ends) <= {"OK", "CANCELLED", "INTERNAL", "RESOURCE_EXHAUSTED"}
        pair.idle()
        prefill, decode = pair.both("after")
        assert (prefill.end().name, decode.end().name) == ("OK", "OK")
