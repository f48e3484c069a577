"""SubscribeKvEvents: what a publisher says, numbered as it numbers, to whoever subscribes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import grpc
import pytest

from harness.byhand import by_hand
from harness.client import GUARD_S, WIRE, Client, until
from harness.process import standin
from kv_support import BLOCK, Publisher, Subscription, free_ports, hashes, metric, stored, worker


def test_without_a_publisher_it_is_unimplemented_and_says_how_to_set_one_on() -> None:
    with by_hand() as made:
        call = Subscription(made.client.scheduler)
        code, text = call.error()
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "--kv-events-config" in text


def test_an_endpoint_that_cannot_be_read_from_is_refused_in_one_line() -> None:
    with pytest.raises(Exception, match="--kv-events-config.*port of at most 65535"):
        with by_hand(ranks=2, window=4, kv_endpoint="tcp://*:65535"):
            pass


def test_a_batch_keeps_its_number_its_time_and_its_events() -> None:
    port = free_ports(1)
    publisher = Publisher(port)
    with worker(port) as (_, stub):
        publisher.wait_subscribed()
        call = Subscription(stub)
        publisher.publish(
            ["BlockStored", [7, -2], 5, list(range(2 * BLOCK)), BLOCK],
            ["BlockRemoved", [7, 2**64 - 1]],
            ["AllBlocksCleared"],
        )
        batch = call.next()
    publisher.close()
    assert (batch.sequence_number, batch.timestamp, batch.dp_rank) == (0, 100.0, 0)
    assert batch.HasField("dp_rank") and not batch.HasField("snapshot")
    first, second, third = batch.events
    assert [event.event_id for event in batch.events] == [1, 2, 3]
    assert first.stored.parent_block_hash == 5
    assert [(b.block_hash, list(b.token_ids), b.block_size) for b in first.stored.blocks] == [
        (7, [0, 1, 2, 3], 4),
        (-2, [4, 5, 6, 7], 4),
    ]
    assert (first.stored.tier, first.stored.locality) == (1, 1)
    assert list(second.removed.block_hashes) == [7, -1]
    assert third.WhichOneof("data") == "cleared"


def test_a_start_in_the_past_gives_every_batch_from_there_once() -> None:
    base = free_ports(2)
    publisher = Publisher(base, base + 1)
    publisher.store(21)
    with worker(base, base + 1) as (_, stub):
        batches = Subscription(stub, start=5).take(16)
        publisher.wait_subscribed()
        again = Subscription(stub, start=5)
        assert [b.sequence_number for b in again.take(16)] == list(range(5, 21))
        publisher.store(1)
        assert again.next().sequence_number == 21
    publisher.close()
    assert [b.sequence_number for b in batches] == list(range(5, 21))
    assert not any(b.HasField("snapshot") for b in batches)
    assert [hashes(b) for b in batches] == [[1000 + n] for n in range(5, 21)]


def test_a_start_in_the_future_begins_with_a_snapshot_at_the_publishers_own_number() -> None:
    base = free_ports(2)
    publisher = Publisher(base, base + 1)
    publisher.store(20)
    with worker(base, base + 1) as (_, stub):
        call = Subscription(stub, start=10**9)
        batch = call.next()
        publisher.wait_subscribed()
        publisher.store(1)
        following = call.next()
    publisher.close()
    assert batch.sequence_number == 19
    assert (batch.snapshot.index, batch.snapshot.count, batch.snapshot.blocks) == (0, 1, 20)
    assert batch.snapshot.unknown_before == 0
    assert batch.events[0].WhichOneof("data") == "cleared"
    assert hashes(batch) == [1000 + n for n in range(20)]
    assert (following.sequence_number, hashes(following)) == (20, [1020])


def test_a_servicer_that_begins_anew_knows_the_publishers_numbers_and_blocks() -> None:
    base = free_ports(2)
    publisher = Publisher(base, base + 1)
    publisher.store(8)
    for _ in range(2):
        with worker(base, base + 1) as (_, stub):
            call = Subscription(stub)
            assert [b.sequence_number for b in call.take(8)] == list(range(8))
    publisher.close()


def test_a_servicer_that_comes_late_says_which_batches_it_never_saw() -> None:
    base = free_ports(2)
    publisher = Publisher(base, base + 1, keep=4)
    publisher.store(10)
    with worker(base, base + 1) as (_, stub):
        call = Subscription(stub, start=2)
        first, *rest = call.take(4)
    publisher.close()
    assert (first.sequence_number, first.snapshot.unknown_before, first.snapshot.count) == (6, 6, 1)
    assert hashes(first) == [1006]
    assert [b.sequence_number for b in rest] == [7, 8, 9]


def test_a_gap_is_filled_from_the_replay_without_a_word_to_subscribers() -> None:
    base = free_ports(2)
    publisher = Publisher(base, base + 1)
    with worker(base, base + 1) as (servicer, stub):
        publisher.wait_subscribed()
        call = Subscription(stub)
        publisher.store(3)
        call.take(3)
        publisher.muted = True
        publisher.store(4)
        publisher.muted = False
        publisher.store(1)
        assert [b.sequence_number for b in call.take(5)] == [3, 4, 5, 6, 7]
        assert metric(servicer, "roomkeeper_kv_gaps_total") == 0
    publisher.close()


def test_a_gap_that_cannot_be_filled_is_said_with_a_snapshot() -> None:
    port = free_ports(1)
    publisher = Publisher(port)
    with worker(port) as (servicer, stub):
        publisher.wait_subscribed()
        call = Subscription(stub)
        publisher.store(3)
        call.take(3)
        publisher.publish(stored(9), number=9)
        batch = call.next()
        assert metric(servicer, "roomkeeper_kv_gaps_total") == 1
        assert metric(servicer, "roomkeeper_kv_lost_batches_total") == 6
    publisher.close()
    assert (batch.sequence_number, batch.snapshot.unknown_before, batch.snapshot.count) == (9, 9, 1)
    assert batch.events[0].WhichOneof("data") == "cleared"
    assert hashes(batch) == [1009]


@pytest.mark.parametrize("with_replay", [False, True])
def test_a_publisher_that_begins_anew_is_said_with_a_snapshot(with_replay: bool) -> None:
    base = free_ports(2)
    replay = base + 1 if with_replay else None
    publisher = Publisher(base, replay)
    with worker(base, replay) as (servicer, stub):
        publisher.wait_subscribed()
        call = Subscription(stub)
        publisher.store(5)
        call.take(5)
        publisher.close()
        publisher = Publisher(base, replay)
        publisher.wait_subscribed()
        publisher.publish(stored(50), number=0)
        batch = call.next()
        assert metric(servicer, "roomkeeper_kv_restarts_total") == 1
        publisher.publish(stored(51))
        following = call.next()
    publisher.close()
    assert (batch.sequence_number, batch.snapshot.unknown_before, batch.snapshot.count) == (0, 0, 1)
    assert hashes(batch) == [1050]
    assert (following.sequence_number, following.HasField("snapshot")) == (1, False)


def test_a_publisher_may_come_after_its_subscribers() -> None:
    base = free_ports(2)
    with worker(base, base + 1) as (_, stub):
        call = Subscription(stub)
        publisher = Publisher(base, base + 1)
        publisher.store(2)
        assert [b.sequence_number for b in call.take(2)] == [0, 1]
    publisher.close()


def test_bytes_that_are_no_batch_cost_their_events_and_nothing_else() -> None:
    port = free_ports(1)
    publisher = Publisher(port)
    with worker(port) as (servicer, stub):
        publisher.wait_subscribed()
        call = Subscription(stub)
        publisher.store(1)
        publisher.publish_raw(b"\xdd\xff\xff\xff\xff")
        publisher.send_frames(b"", b"short", b"")
        publisher.send_frames(b"alone")
        partial = ["BlockStored", [1], None, [1, 2, 3], BLOCK]
        unusable = ["BlockStored", [1], None, ["x"], BLOCK]
        publisher.publish(partial, ["Another"], unusable, stored(3))
        batches = call.take(3)
        assert metric(servicer, "roomkeeper_kv_malformed_total") == 4
    publisher.close()
    assert [b.sequence_number for b in batches] == [0, 1, 2]
    assert [hashes(b) for b in batches] == [[1000], [], [1003]]


def test_ranks_are_told_apart_and_have_numbers_of_their_own() -> None:
    base = free_ports(4)
    publishers = [Publisher(base + rank, base + 2 + rank, rank=rank) for rank in range(2)]
    with worker(base, base + 2, ranks=2) as (_, stub):
        call = Subscription(stub)
        for publisher in publishers:
            publisher.wait_subscribed()
            publisher.store(3)
        batches = call.take(6)
    for publisher in publishers:
        publisher.close()
    for rank in range(2):
        assert [b.sequence_number for b in batches if b.dp_rank == rank] == [0, 1, 2]


def test_a_subscriber_that_does_not_read_is_ended_and_costs_the_others_nothing() -> None:
    port = free_ports(1)
    publisher = Publisher(port)
    with worker(port, kv_history_bytes=262144) as (servicer, stub):
        publisher.wait_subscribed()
        slow = Subscription(stub, read=False)
        quick = Subscription(stub)
        until(lambda: metric(servicer, "roomkeeper_kv_subscribers") == 2, "both are there")
        sent = 0
        deadline = time.monotonic() + GUARD_S
        while metric(servicer, "roomkeeper_kv_slow_total") == 0:
            assert time.monotonic() < deadline, "the slow one was never ended"
            publisher.publish(
                ["BlockStored", list(range(sent * 100 + 1, sent * 100 + 101)), None, [1] * 1600, 16]
            )
            assert quick.next().sequence_number == sent
            sent += 1
        with pytest.raises(grpc.RpcError) as raised:
            for _ in slow.call:
                pass
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "kv_history_bytes" in raised.value.details()
        publisher.store(1)
        quick.next()
        assert metric(servicer, "roomkeeper_kv_subscribers") == 1
    publisher.close()


def test_a_client_that_goes_away_is_forgotten() -> None:
    port = free_ports(1)
    with worker(port) as (servicer, stub):
        call = Subscription(stub, load_first=True)
        until(lambda: metric(servicer, "roomkeeper_kv_subscribers") == 1, "it is there")
        call.call.cancel()
        until(lambda: metric(servicer, "roomkeeper_kv_subscribers") == 0, "it is forgotten")


def test_a_stop_ends_subscriptions_with_unavailable() -> None:
    port = free_ports(1)
    with worker(port) as (servicer, stub):
        call = Subscription(stub)
        until(lambda: metric(servicer, "roomkeeper_kv_subscribers") == 1, "it is there")
        servicer.stop()
        code, text = call.error()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in text


def test_loads_come_with_batches_and_before_the_first_one_only_if_asked_for() -> None:
    port = free_ports(1)
    publisher = Publisher(port)
    with worker(port) as (_, stub):
        publisher.wait_subscribed()
        plain = Subscription(stub)
        eager = Subscription(stub, load_first=True)
        first = eager.heartbeats.get(timeout=GUARD_S)
        second = eager.heartbeats.get(timeout=GUARD_S)
        assert plain.heartbeats.empty()
        publisher.store(1)
        batch = eager.next()
        plain.next()
        after = plain.heartbeats.get(timeout=GUARD_S)
    publisher.close()
    assert (first.sequence_number, first.load.max_running_requests, first.load.sample) == (0, 4, 1)
    assert first.load.load_only and not first.events
    assert second.load.sample == 2
    assert batch.load.sample > 2 and not batch.load.load_only
    assert (after.sequence_number, after.load.load_only, after.dp_rank) == (0, True, 0)


def test_a_request_that_is_no_message_is_refused_by_name() -> None:
    port = free_ports(1)
    with by_hand(kv_endpoint=f"tcp://*:{port}") as made:
        path = "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents"
        call = made.client.channel.unary_stream(path)
        with pytest.raises(grpc.RpcError) as raised:
            next(call(b"\x0a\x01x", timeout=GUARD_S))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "start_sequence_number" in raised.value.details()
    assert WIRE is not None


def test_the_standin_publishes_what_its_schedulers_prefix_cache_does(tmp_path: Path) -> None:
    pytest.importorskip("tokenspeed_scheduler", reason="only the C++ scheduler has a prefix cache")
    base = free_ports(2)
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{base}",
        "replay_endpoint": f"tcp://*:{base + 1}",
    }
    flags = ("--kv-events-config", json.dumps(config), "--step-ms", "1", "--tokens", "2")
    with standin(*flags) as process, Client(process.address) as client:
        call = Subscription(client.scheduler)
        client.generate("a", input_ids=list(range(40))).end()
        # Before the cache is flushed: a publisher that is heard only afterwards has an empty record to tell of.
        events = list(call.next().events)
        while not any(event.HasField("stored") for event in events):
            events += call.next().events
        flushed = client.scheduler.FlushCache(
            WIRE.message("smg.grpc.common.FlushCacheRequest")(timeout_s=5), timeout=GUARD_S
        )
        assert flushed.success
        while not events[-1].HasField("cleared"):
            events += call.next().events
    blocks = [block for event in events for block in event.stored.blocks]
    assert [list(b.token_ids) for b in blocks] == [list(range(16)), list(range(16, 32))]
