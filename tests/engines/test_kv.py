"""KV events of the real engine's publisher, a pause, and labels; beside the Python servicer."""

from __future__ import annotations

import os
import pathlib
import signal
import stat
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2

from requests_table import ask, request
from test_calls import call
from workers import PYTHON_SERVICER, ROOMKEEPER, Worker, running, start

PAGE = 16
GUARD_S = 30
OFF = "SMG_TOKENSPEED_SERVICER_KV_EVENTS"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """The Python servicer's worker and ours, neither told of KV events."""
    folder = tmp_path_factory.mktemp("kv")
    labelled = ("--weight-version", "step-7")
    python = start(PYTHON_SERVICER, folder / "python.log", *labelled)
    ours = start(ROOMKEEPER, folder / "ours.log", *labelled)
    with running(python, ours):
        yield python, ours


def subscribe(channel: grpc.Channel, first: int = 0) -> Any:
    method = channel.unary_stream(
        "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents",
        request_serializer=common_pb2.SubscribeKvEventsRequest.SerializeToString,
        response_deserializer=common_pb2.KvEventBatch.FromString,
    )
    return method(common_pb2.SubscribeKvEventsRequest(start_sequence_number=first), timeout=GUARD_S)


def prompting(name: str, tokens: list[int]) -> Any:
    """A request with this prompt."""
    made = request(name)
    del made.tokenized.input_ids[:]
    made.tokenized.input_ids.extend(tokens)
    return made


def blocks_until(batches: Any, tokens: list[int]) -> list[Any]:
    """The stored blocks that have come when those of this prompt's whole pages are among them."""
    wanted = [tuple(tokens[at : at + PAGE]) for at in range(0, len(tokens) - PAGE + 1, PAGE)]
    found: list[Any] = []
    for batch in batches:
        for event in batch.events:
            if event.HasField("stored"):
                parent = event.stored.parent_block_hash
                for block in event.stored.blocks:
                    found.append((tuple(block.token_ids), block.block_hash, parent))
                    parent = block.block_hash
        if set(wanted) <= {block[0] for block in found}:
            return [block for block in found if block[0] in wanted]
    raise AssertionError("the stream has ended")


def test_both_tell_of_the_same_blocks_without_being_asked_to(pair: tuple[Worker, Worker]) -> None:
    prompt = [100 + at for at in range(3 * PAGE)]
    told = []
    for worker in pair:
        with grpc.insecure_channel(worker.address) as channel, worker.stub() as stub:
            batches = subscribe(channel)
            batches.initial_metadata()
            # The Python servicer's SUB connects when somebody asks, and misses what is earlier.
            time.sleep(1)
            assert ask(stub, prompting("kv", prompt)).code == "OK"
            told.append(blocks_until(batches, prompt))
            batches.cancel()
    python, ours = told
    assert len(ours) == 3
    assert ours == python


def test_who_subscribes_later_is_told_what_the_cache_holds(pair: tuple[Worker, Worker]) -> None:
    """The Python servicer has told it once, and does not know it any more."""
    prompt = [200 + at for at in range(2 * PAGE)]
    _, ours = pair
    with grpc.insecure_channel(ours.address) as channel, ours.stub() as stub:
        assert ask(stub, prompting("later", prompt)).code == "OK"
        time.sleep(1)
        batches = subscribe(channel)
        assert len(blocks_until(batches, prompt)) == 2
        batches.cancel()


def test_the_publisher_is_this_users_alone_and_goes_with_the_worker(tmp_path: pathlib.Path) -> None:
    worker = start(ROOMKEEPER, tmp_path / "worker.log")
    with running(worker):
        config = call(worker, "GetServerInfo")["server_args"]["kv_events_config"]
        folder = pathlib.Path(config.split("ipc://")[1].split('"')[0]).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {"events", "replay"} <= {path.name for path in folder.iterdir()}
        assert worker.end() == 0
    assert not folder.exists()


def test_a_variable_leaves_them_off(tmp_path: pathlib.Path) -> None:
    worker = start(ROOMKEEPER, tmp_path / "worker.log", settings={OFF: "off"})
    with running(worker), grpc.insecure_channel(worker.address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            next(subscribe(channel))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert not call(worker, "GetServerInfo")["server_args"].get("kv_events_config")


def test_a_paused_engine_says_so(pair: tuple[Worker, Worker]) -> None:
    for worker in pair:
        assert not call(worker, "GetServerInfo").get("is_paused")
        os.kill(worker.scheduler(), signal.SIGUSR2)
    try:
        time.sleep(0.5)
        assert [call(worker, "GetServerInfo").get("is_paused") for worker in pair] == [True, True]
    finally:
        for worker in pair:
            os.kill(worker.scheduler(), signal.SIGUSR2)
    time.sleep(0.5)
    assert not any(call(worker, "GetServerInfo").get("is_paused") for worker in pair)


def test_the_weights_version_and_the_rl_labels_are_the_python_servicers(
    pair: tuple[Worker, Worker],
) -> None:
    models = [call(worker, "GetModelInfo") for worker in pair]
    assert models[0] == models[1]
    assert models[1]["weight_version"] == "step-7"
    labels = []
    for worker in pair:
        args = call(worker, "GetServerInfo")["server_args"]
        labels.append(
            {k: v for k, v in args.items() if k.startswith("rl.") or k == "weight_version"}
        )
    assert labels[0] == labels[1]
    assert labels[1]["weight_version"] == "step-7"
