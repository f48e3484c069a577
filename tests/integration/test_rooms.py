"""The window, the line before it, and what is refused: by whom, when, with which words."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from harness.byhand import HandWorker, by_hand
from harness.client import QUIET_S, Stream, request, until

ROOM_MAX = 2**63 - 1


def _refused(stream: Stream, code: str) -> str:
    status = stream.end()
    assert status.name == code, status
    assert stream.messages == []
    return status.details


def _numbers(stream: Stream) -> dict[str, int]:
    """The retry metadata of a refusal."""
    trailing = stream.end().trailing
    return {
        key: int(trailing[key])
        for key in (
            "grpc-retry-pushback-ms",
            "roomkeeper-window",
            "roomkeeper-admitted",
            "roomkeeper-waiting",
        )
    }


# -- the window --


def test_a_burst_wider_than_the_window_is_served_to_the_end_and_never_more_at_once() -> None:
    """lightseekorg/tokenspeed#1427, smg-project/smg#2463: rooms that only queue let their prefill's
    deadline expire. Here a burst of 32 on a window of 4 is admitted four at a time.
    """
    with by_hand("decode", window=4) as worker:
        assert worker.client.loads().loads[0].max_running_requests == 4
        streams = [worker.generate(f"r{i}", room=i + 1) for i in range(32)]
        until(lambda: worker.rank()["held_slots"] + worker.rank()["waiting"] == 32, "all are here")
        for done in range(32):
            until(lambda n=done: len(worker.engine.legs) > n, "the next is admitted")
            assert len(worker.engine.legs) <= done + 4
            assert worker.rank()["held_slots"] <= 4
            worker.engine.legs[done].finish()
        assert [stream.end().name for stream in streams] == ["OK"] * 32
        worker.idle()


def test_rooms_past_the_line_are_refused_at_once_and_never_reach_the_engine() -> None:
    """lightseekorg/tokenspeed#1427, smg-project/smg#2463: beyond capacity is an answer."""
    with by_hand("decode", window=4, settings={"waiting": 8}) as worker:
        streams = [worker.generate(f"r{i}", room=i + 1) for i in range(32)]
        until(lambda: sum(stream.ended() for stream in streams) == 20, "20 of 32 are refused")
        refused = [stream for stream in streams if stream.ended()]
        for stream in refused:
            text = _refused(stream, "RESOURCE_EXHAUSTED")
            assert "4 of 4 slots" in text and "8 of 8 places" in text
            assert _numbers(stream)["roomkeeper-window"] == 4
        assert len(worker.engine.legs) == 4
        worker.engine.quiet()


def test_a_freed_slot_is_usable_by_the_very_next_call() -> None:
    """lightseekorg/tokenspeed#1427: the slot is free before the last words are on the wire."""
    with by_hand("decode", window=1, settings={"waiting": 0}) as worker:
        for i in range(20):
            stream, leg = worker.admitted(f"r{i}", room=i + 1)
            leg.finish()
            assert stream.end().name == "OK"


def test_a_window_of_zero_waiting_places_refuses_at_the_window() -> None:
    with by_hand("decode", window=2, settings={"waiting": 0, "pushback_ms": 77}) as worker:
        worker.admitted("a", room=1)
        worker.admitted("b", room=2)
        third = worker.generate("c", room=3)
        assert _numbers(third) == {
            "grpc-retry-pushback-ms": 77,
            "roomkeeper-window": 2,
            "roomkeeper-admitted": 2,
            "roomkeeper-waiting": 0,
        }
        assert "0 of 0 places" in _refused(third, "RESOURCE_EXHAUSTED")


def test_the_refusals_numbers_tell_who_is_in_and_who_waits() -> None:
    with by_hand("decode", window=2, settings={"waiting": 1}) as worker:
        worker.admitted("a", room=1)
        worker.admitted("b", room=2)
        worker.waiting("c", room=3)
        fourth = worker.generate("d", room=4)
        assert _numbers(fourth) == {
            "grpc-retry-pushback-ms": 500,
            "roomkeeper-window": 2,
            "roomkeeper-admitted": 2,
            "roomkeeper-waiting": 1,
        }


def test_who_waits_is_admitted_first_come_first_served() -> None:
    with by_hand("decode", window=1) as worker:
        worker.admitted("r0", room=1)
        streams = [worker.waiting(f"r{i}", room=i + 1) for i in range(1, 12)]
        for i in range(12):
            worker.engine.leg(f"r{i}").finish()
        assert [stream.end().name for stream in streams] == ["OK"] * 11
        assert worker.engine.order == [f"r{i}" for i in range(12)]


def test_one_who_gives_up_in_line_is_passed_over() -> None:
    with by_hand("decode", window=1) as worker:
        _, first = worker.admitted("first", room=1)
        gone = worker.waiting("gone", room=2)
        last = worker.waiting("last", room=3)
        gone.cancel()
        until(lambda: worker.rank()["waiting"] == 1, "the line has closed up")
        first.finish()
        worker.engine.leg("last").finish()
        assert last.end().name == "OK"
        assert worker.engine.order == ["first", "last"]


def test_who_waits_too_long_is_told_so_with_a_time_to_come_back() -> None:
    with by_hand("decode", window=1, settings={"wait_seconds": 0.25}) as worker:
        _, leg = worker.admitted("first", room=1)
        late = worker.generate("late", room=2)
        assert "0.250 s" in _refused(late, "RESOURCE_EXHAUSTED")
        assert _numbers(late)["roomkeeper-admitted"] == 1
        assert worker.rank()["waiting"] == 0
        leg.finish()
        worker.engine.quiet()
        assert worker.engine.order == ["first"]


def test_a_clients_own_deadline_ends_its_wait() -> None:
    with by_hand("decode", window=1) as worker:
        worker.admitted("first", room=1)
        late = worker.client.send(request("late", room=2), timeout=0.3)
        assert late.end().name == "DEADLINE_EXCEEDED"
        until(lambda: worker.rank()["waiting"] == 0, "its place is free")


def test_a_room_may_be_used_again_once_it_is_over() -> None:
    """sgl-project/sglang#40125: reuse after the end works."""
    with by_hand("decode", window=1) as worker:
        for life in range(3):
            stream = worker.generate("again", room=7)
            worker.engine.leg("again", life).finish()
            assert stream.end().name == "OK"
        engine_ids = [leg.submission.engine_id for leg in worker.engine.legs]
        assert len(set(engine_ids)) == 3, "the engine never sees an id twice"


def test_the_window_is_unknown_then_nothing_is_gated_and_it_is_said() -> None:
    with by_hand("decode", window=0) as worker:
        for i in range(20):
            worker.admitted(f"r{i}", room=i + 1)
        load = worker.client.loads().loads[0]
        assert (load.max_running_requests, load.num_running_reqs) == (0, 20)


def test_a_configured_window_wins_over_the_engines_and_is_the_one_reported() -> None:
    with by_hand("decode", window=4, settings={"window": 2, "waiting": 0}) as worker:
        assert worker.client.loads().loads[0].max_running_requests == 2
        assert worker.client.server_info().server_args["max_num_seqs"] == 2
        worker.admitted("a", room=1)
        worker.admitted("b", room=2)
        _refused(worker.generate("c", room=3), "RESOURCE_EXHAUSTED")


def test_kv_tokens_are_claimed_as_slots_are() -> None:
    """Admitted by us must mean admitted by the engine, which needs pages too."""
    info: dict[str, Any] = {"kv_tokens": 64, "page_tokens": 16}
    with by_hand("decode", window=4, **info) as worker:
        _, big = worker.admitted("big", room=1, input_ids=[5] * 30)
        small = worker.waiting("small", room=2, input_ids=[5] * 30)
        assert worker.rank()["claimed_tokens"] == 48
        never = worker.generate("never", room=3, input_ids=[5] * 60)
        text = _refused(never, "INVALID_ARGUMENT")
        assert "80 KV tokens" in text and "64" in text
        big.finish()
        worker.engine.leg("small").finish()
        assert small.end().name == "OK"
        worker.idle()


# -- choices --


def test_more_choices_than_the_window_are_refused_with_both_numbers() -> None:
    """smg-project/smg#2466, vllm-project/vllm#53936: a wait could never admit them."""
    with by_hand("null", window=16, settings={"gate_aggregated": "on"}) as worker:
        text = _refused(worker.generate("r", sampling={"n": 64}), "INVALID_ARGUMENT")
        assert "64" in text and "16" in text
        worker.engine.quiet()


def test_choices_claim_their_slots_together_or_wait_together() -> None:
    """smg-project/smg#2466, vllm-project/vllm#53936: all of them or none, and nobody overtakes."""
    with by_hand("null", window=4, settings={"gate_aggregated": "on"}) as worker:
        _, one = worker.admitted("one", sampling={"n": 2})
        three = worker.waiting("three", sampling={"n": 3})
        small = worker.waiting("small")
        assert worker.rank()["held_slots"] == 2
        worker.engine.quiet()
        one.output([5], "length", choice=0)
        worker.engine.leg("three")
        assert worker.rank()["held_slots"] == 4
        one.output([5], "length", choice=1)
        worker.engine.leg("small")
        assert worker.engine.order == ["one", "three", "small"]
        worker.engine.leg("three").finish()
        worker.engine.leg("small").finish()
        assert (three.end().name, small.end().name) == ("OK", "OK")
        worker.idle()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pairs_worker_takes_one_choice_a_call(role: str) -> None:
    """Two live requests in one room bring an engine down: a room is for one choice."""
    with by_hand(role) as worker:
        text = _refused(worker.generate("r", room=1, sampling={"n": 2}), "INVALID_ARGUMENT")
        assert role in text and "room of its own" in text


# -- duplicates --


@pytest.mark.parametrize("role", ["null", "prefill", "decode"])
def test_a_request_id_that_is_live_is_refused_and_the_first_unharmed(role: str) -> None:
    """sgl-project/sglang#19035, vllm-project/vllm#10583, ai-dynamo/dynamo#8601: two live requests
    of one id hang, crash or cross their output.
    """
    rooms = (None, None) if role == "null" else (1, 2)
    with by_hand(role) as worker:
        first, leg = worker.admitted("same", room=rooms[0])
        leg.output([1])
        text = _refused(worker.generate("same", room=rooms[1]), "ALREADY_EXISTS")
        assert "request_id" in text
        leg.output([2], "length")
        assert first.end().name == "OK"
        assert list(first.complete().output_ids) == [1, 2]
        assert len(worker.engine.legs) == 1


def test_a_request_id_may_come_again_after_its_end() -> None:
    """sgl-project/sglang#19035, ai-dynamo/dynamo#8601: and the engine never sees an id twice."""
    with by_hand("null") as worker:
        for life in range(3):
            stream = worker.generate("again")
            worker.engine.leg("again", life).finish([life])
            assert list(stream.end() and stream.complete().output_ids) == [life]
        assert len({leg.submission.engine_id for leg in worker.engine.legs}) == 3


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_room_that_is_live_is_refused_and_the_first_unharmed(role: str) -> None:
    """sgl-project/sglang#40125: two live requests in one room crash both schedulers."""
    with by_hand(role) as worker:
        first, leg = worker.admitted("first", room=5)
        text = _refused(worker.generate("second", room=5), "ALREADY_EXISTS")
        assert "bootstrap room" in text
        assert worker.engine.order == ["first"]
        leg.finish([3])
        assert first.end().name == "OK"
        again = worker.generate("third", room=5)
        worker.engine.leg("third").finish()
        assert again.end().name == "OK"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_rooms_number_is_its_name_whatever_the_bootstrap_server_is_called(role: str) -> None:
    """Engines keep their rooms by number alone: two legs with one would meet in one room."""
    with by_hand(role, window=8) as worker:
        worker.admitted("a", room=5)
        _refused(worker.generate("b", room=5, port=8999), "ALREADY_EXISTS")
        _refused(worker.generate("c", room=5, host="other"), "ALREADY_EXISTS")
        worker.admitted("d", room=6, host="other")


def test_a_gateways_retry_in_a_new_room_replaces_the_leg_that_still_waits() -> None:
    with by_hand("decode", window=1) as worker:
        _, leg = worker.admitted("first", room=1)
        old = worker.waiting("retried", room=2)
        new = worker.generate("retried", room=3)
        assert _refused(old, "ABORTED") == "the same request_id came again with another room"
        leg.finish()
        retried = worker.engine.leg("retried")
        assert retried.submission.bootstrap == ("127.0.0.1", 8998, 3)
        retried.finish()
        assert new.end().name == "OK"


def test_many_callers_with_one_id_at_once_leave_one_live() -> None:
    with by_hand("null") as worker:
        start = threading.Barrier(16)

        def call() -> Stream:
            start.wait()
            return worker.generate("same")

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            streams = [future.result() for future in [pool.submit(call) for _ in range(16)]]
        until(lambda: sum(stream.ended() for stream in streams) == 15, "15 of 16 are refused")
        worker.engine.leg("same").finish()
        codes = sorted(stream.end().name for stream in streams)
        assert codes == ["ALREADY_EXISTS"] * 15 + ["OK"]
        assert len(worker.engine.legs) == 1


# -- which rooms there are --


@pytest.mark.parametrize("room", [1, 2**31, 2**40 + 7, ROOM_MAX])
def test_rooms_are_exact_in_all_their_63_bits(room: int) -> None:
    """ai-dynamo/dynamo#6276, sgl-project/sglang#25185: a room that is narrowed is another room."""
    with by_hand("decode", window=2) as worker:
        _, leg = worker.admitted("r", room=room)
        assert leg.submission.bootstrap == ("127.0.0.1", 8998, room)
        if room > 2**31:
            worker.admitted("narrowed", room=room % 2**31 + 1)


@pytest.mark.parametrize("room", [0, -1, -(2**63)])
def test_a_room_that_is_none_is_refused(room: int) -> None:
    """ai-dynamo/dynamo#6276: room 0 belongs to the engine's fake host, and none is negative."""
    with by_hand("decode") as worker:
        text = _refused(worker.generate("r", room=room), "INVALID_ARGUMENT")
        assert str(room) in text and str(ROOM_MAX) in text


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pairs_worker_wants_host_port_and_room(role: str) -> None:
    """sgl-project/sglang#6693, #8063, #11727: a leg without them crashed the worker."""
    with by_hand(role) as worker:
        legs = {
            "kv_bootstrap_info is missing": request("a"),
            "bootstrap_host is empty": request("b", room=1, host=""),
            "bootstrap_port is 0": request("c", room=1, port=0),
            "bootstrap_port is 65536": request("d", room=1, port=65536),
            "bootstrap_port is -1": request("e", room=1, port=-1),
        }
        for text, made in legs.items():
            assert text in _refused(worker.client.send(made), "INVALID_ARGUMENT")
        worker.engine.quiet()
        worker.admitted("good", room=1)


def test_room_0_is_the_fake_hosts_and_may_be_live_twice() -> None:
    """sgl-project/sglang#11727: the engine's own warm-up goes by it."""
    with by_hand("decode") as worker:
        for i in range(2):
            _, leg = worker.admitted(f"r{i}", room=0, host="2.2.2.2")
            assert leg.submission.bootstrap == ("2.2.2.2", 8998, 0)


def test_an_aggregated_worker_refuses_a_leg_of_a_pair() -> None:
    with by_hand("null") as worker:
        text = _refused(worker.generate("r", room=1), "FAILED_PRECONDITION")
        assert "aggregated" in text


# -- rooms off --


def test_with_rooms_off_everybody_is_let_in_but_a_live_id() -> None:
    with by_hand("decode", window=2, settings={"rooms": "off"}) as worker:
        for i in range(8):
            worker.admitted(f"r{i}", room=i + 1)
        load = worker.client.loads().loads[0]
        # What is in the engine beyond its window waits there.
        assert (load.num_running_reqs, load.num_waiting_reqs) == (2, 6)
        _refused(worker.generate("r3", room=99), "ALREADY_EXISTS")


def test_the_window_is_not_reported_when_told_so() -> None:
    with by_hand("decode", window=2, settings={"report_window": "off"}) as worker:
        assert worker.client.loads().loads[0].max_running_requests == 0
        assert worker.client.server_info().server_args["max_num_seqs"] is None


# -- ranks --


def test_ranks_have_their_share_of_the_window_and_a_line_each() -> None:
    with by_hand("decode", window=2, ranks=2) as worker:
        assert [load.max_running_requests for load in worker.client.loads().loads] == [1, 1]
        _, first = worker.admitted("first", room=1)
        _, second = worker.admitted("second", room=2)
        assert {first.submission.rank, second.submission.rank} == {0, 1}
        pinned = worker.generate("pinned", room=3, data_parallel_rank=second.submission.rank)
        until(lambda: worker.rank(second.submission.rank)["waiting"] == 1, "it waits for its rank")
        first.finish()
        worker.engine.quiet(QUIET_S)
        second.finish()
        leg = worker.engine.leg("pinned")
        assert leg.submission.rank == second.submission.rank
        leg.finish()
        assert pinned.end().name == "OK"


@pytest.mark.parametrize("rank", [-1, 2, 2**31 - 1])
def test_a_rank_that_is_not_there_is_refused(rank: int) -> None:
    with by_hand("decode", window=2, ranks=2) as worker:
        text = _refused(worker.generate("r", room=1, data_parallel_rank=rank), "INVALID_ARGUMENT")
        assert str(rank) in text


# -- prefill legs --


def test_an_unlinked_prefill_leg_goes_to_the_engine_at_once_however_many_there_are() -> None:
    """No decode announces its rooms in this release, so none is held."""
    with by_hand("prefill", window=1) as worker:
        legs = [worker.admitted(f"p{i}", room=i + 1) for i in range(8)]
        for _, leg in legs:
            leg.finish()
        assert [stream.end().name for stream, _ in legs] == ["OK"] * 8
        worker.idle()


def _worker_numbers(worker: HandWorker) -> Any:
    return worker.client.rooms()


def test_the_worker_says_what_became_of_its_legs() -> None:
    with by_hand("decode", window=1, settings={"waiting": 1}) as worker:
        _, leg = worker.admitted("a", room=1)
        worker.waiting("b", room=2)
        _refused(worker.generate("c", room=3), "RESOURCE_EXHAUSTED")
        numbers = _worker_numbers(worker)
        assert numbers["role"] == "decode" and numbers["window"] == 1
        assert numbers["legs"]["waiting"] == 1 and numbers["legs"]["submitted"] == 1
        assert numbers["refused"]["full"] == 1
        assert numbers["arrived"] == 3 and numbers["admitted"] == 1
        leg.finish()
        worker.engine.leg("b").finish()
        worker.idle()
        assert _worker_numbers(worker)["ended"]["completed"] == 2
