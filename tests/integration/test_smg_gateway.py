"""The real smg gateway in front of stand-in workers: what its HTTP clients get, aggregated and as a
pair, and what becomes of a client that goes, a worker that is killed, a tokenizer that only the
worker has."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.client import GUARD_S, Client, until
from harness.process import standin
from roomkeeper.demo.model import words, write_model
from roomkeeper.demo.ports import HOST, free_ports
from smg_support import (
    CHAT,
    COMPLETIONS,
    Site,
    aggregated,
    ask,
    expected,
    gateway,
    live,
    pair,
    streaming,
    worker_flags,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("smg") is None, reason="the smg gateway is not installed (no PyPI)"
)
LONG = 4000  # tokens: minutes, at the pace below
SLOW = ("--step-ms", "50", "--max-num-seqs", "1", "--max-model-len", "8192")
MEASURED = ("--policy", "cache_aware")
USAGE = {"stream_options": {"include_usage": True}}
#: Until the gateway has heard what a worker's cache holds.
TOLD_S = 2


@pytest.fixture(scope="module", params=["aggregated", "pair"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    layout = aggregated if request.param == "aggregated" else pair
    with layout(tmp_path_factory.mktemp("smg"), gateway_flags=MEASURED) as made:
        yield made


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_gets_the_models_words_streamed_and_not(site: Site, path: str) -> None:
    whole = ask(site.port, path).json()
    (choice,) = whole["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert text.split() == expected(path)
    assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 8

    events = ask(site.port, path, stream=True).events()
    parts = [choice for event in events for choice in event["choices"]]
    said = [part["delta"].get("content") if path == CHAT else part["text"] for part in parts]
    assert "".join(part or "" for part in said).split() == expected(path)
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]
    assert all(live(worker) == 0 for worker in site.workers)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_three_choices_come_whole(site: Site, stream: bool) -> None:
    answer = ask(site.port, CHAT, n=3, stream=stream)
    said = {0: "", 1: "", 2: ""}
    if stream:
        for choice in (choice for event in answer.events() for choice in event["choices"]):
            said[choice["index"]] += choice["delta"].get("content") or ""
    else:
        for choice in answer.json()["choices"]:
            said[choice["index"]] += choice["message"]["content"]
    assert [text.split() for text in said.values()] == [expected(CHAT)] * 3


@pytest.mark.parametrize("layout", [aggregated, pair])
def test_the_slot_of_a_client_that_goes_is_free_for_the_next(layout, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with layout(tmp_path, *SLOW) as site:
        for path in (CHAT, COMPLETIONS):
            with streaming(site.port, path, max_tokens=LONG):
                assert live(site.workers[-1]) == 1
            for worker in site.workers:
                until(lambda: live(worker) == 0, "its slots free")  # noqa: B023
        assert ask(site.port, max_tokens=2).status == 200


@pytest.mark.parametrize("layout", [aggregated, pair])
def test_a_worker_that_is_killed_and_comes_back_is_served_again(layout, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with layout(tmp_path) as site:
        assert ask(site.port).status == 200
        killed = site.workers[-1]
        command, port = killed.program.command, int(killed.address.rpartition(":")[2])
        killed.program.signal(signal.SIGKILL)
        killed.program.wait()
        assert ask(site.port).status in (502, 503)
        with standin(*command[command.index("--port") + 2 :], port=port) as again:
            until(lambda: ask(site.port).status == 200, "served again", 2 * GUARD_S)
            with Client(again.address) as client:
                assert client.rooms()["arrived"] >= 1


def test_a_gateway_without_the_models_folder_gets_the_tokenizer_from_the_worker(
    tmp_path: Path,
) -> None:
    """The worker names its folder by a relative path, which is nothing where the gateway runs."""
    home, elsewhere = tmp_path / "worker", tmp_path / "gateway"
    elsewhere.mkdir()
    write_model(home / "only-here")
    ports = free_ports()
    url = f"grpc://{HOST}:{ports.decode}"
    with contextlib.ExitStack() as stack:
        flags = worker_flags("only-here", "--room-log-level", "debug")
        worker = stack.enter_context(standin(*flags, port=ports.decode, folder=home))
        log = stack.enter_context(gateway(elsewhere, ports, "--worker-urls", url))
        until(lambda: ask(ports.gateway).status == 200, "a tokenizer in the gateway")
        (choice,) = ask(ports.gateway, COMPLETIONS).json()["choices"]
        assert choice["text"].split() == expected(COMPLETIONS)
        assert live(worker) == 0
        assert log.exists()


def test_a_prompt_goes_to_the_worker_that_has_it_cached(tmp_path: Path) -> None:
    """What the gateway has not sent there itself it can only know from KV events."""
    pytest.importorskip("tokenspeed_scheduler", reason="only the C++ scheduler has a prefix cache")
    for needed in ("zmq", "msgspec"):
        pytest.importorskip(
            needed, reason=f"{needed} is not installed: the stand-in cannot publish"
        )
    model, ports = tmp_path / "model", free_ports()
    write_model(model)
    vocabulary = words()
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(2):
            config = {
                "enable_kv_cache_events": True,
                "endpoint": f"ipc://{tmp_path}/events{number}",
                "replay_endpoint": f"ipc://{tmp_path}/replay{number}",
            }
            flags = worker_flags(model, "--kv-events-config", json.dumps(config))
            worker = stack.enter_context(standin(*flags, port=ports.decode + number))
            clients.append(stack.enter_context(Client(worker.address)))
        urls = [f"grpc://{HOST}:{ports.decode + number}" for number in range(2)]
        command = ("--worker-urls", *urls, "--model-path", str(model), "--policy", "cache_aware")
        stack.enter_context(gateway(tmp_path, ports, *command))
        went = []
        for turn in range(4):
            prompt = [f"w{100 * (turn + 1) + at}" for at in range(80)]
            ids = [vocabulary.index(word) for word in prompt]
            clients[turn % 2].generate(f"direct-{turn}", input_ids=ids).end()
            time.sleep(TOLD_S)
            before = [client.rooms()["arrived"] for client in clients]
            assert ask(ports.gateway, COMPLETIONS, prompt=" ".join(prompt)).status == 200
            after = [client.rooms()["arrived"] for client in clients]
            went.append([int(b - a) for a, b in zip(before, after, strict=True)])
    assert went == [[1, 0], [0, 1]] * 2


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_what_the_gateway_stops_by_a_word_runs_on_in_the_worker(site: Site, stream: bool) -> None:
    """smg looks for stop strings itself, and reads on to the worker's own end: no Abort comes."""
    word, count = expected(CHAT)[2], 60
    answer = ask(
        site.port, max_tokens=count, stop=[word], stream=stream, **(USAGE if stream else {})
    )
    if stream:
        choices = [choice for event in answer.events() for choice in event["choices"]]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        usage = answer.events()[-1]["usage"]
    else:
        (choice,) = answer.json()["choices"]
        reasons, said = [choice["finish_reason"]], choice["message"]["content"]
        usage = answer.json()["usage"]
    assert reasons == ["stop"]
    assert said.split() == expected(CHAT)[:2]
    assert usage["completion_tokens"] == count
    assert all(live(worker) == 0 for worker in site.workers)
