"""grpcurl and grpc-health-probe, clients of others' making, against a worker; they know nothing of the
contract but what reflection tells them. Run where they are on the PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from harness.client import GUARD_S
from harness.process import Worker, standin
from roomkeeper import wire

GRPCURL = shutil.which("grpcurl")
PROBE = shutil.which("grpc-health-probe") or shutil.which("grpc_health_probe")
needs_grpcurl = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not on the PATH")
needs_probe = pytest.mark.skipif(PROBE is None, reason="grpc-health-probe is not on the PATH")
#: What a call that changes nothing is asked with, and a field its answer must have.
CALLS = {
    "HealthCheck": ("{}", "healthy"),
    "GetModelInfo": ("{}", "servedModelName"),
    "GetServerInfo": ("{}", "serverArgs"),
    "GetLoads": ("{}", "loads"),
    "Abort": ('{"request_id": "nobody"}', "message"),
    "FlushCache": ('{"timeout_s": 5}', "success"),
    "StartProfile": ("{}", "message"),
    "StopProfile": ("{}", "message"),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with standin("--max-num-seqs", "3", "--step-ms", "2", "--served-model-name", "made-up") as made:
        yield made


def run(*command: str | None) -> subprocess.CompletedProcess[str]:
    words = [word for word in command if word is not None]
    return subprocess.run(words, capture_output=True, text=True, timeout=2 * GUARD_S)


def grpcurl(worker: Worker, *words: str, data: str | None = None) -> str:
    """What it prints."""
    sent = () if data is None else ("-d", data)
    done = run(GRPCURL, "-plaintext", *sent, worker.address, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(text: str) -> list[Any]:
    """The JSON objects, one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        answer, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        found.append(answer)
    return found


@needs_grpcurl
def test_it_lists_and_describes_every_service(worker: Worker) -> None:
    listed = grpcurl(worker, "list").split()
    assert {wire.TOKENSPEED, wire.HEALTH, wire.REFLECTION, wire.REFLECTION_ALPHA} <= set(listed)
    for service in listed:
        methods = grpcurl(worker, "list", service).split()
        described = grpcurl(worker, "describe", service)
        assert methods and all(f"rpc {m.rpartition('.')[2]} " in described for m in methods)
    request = grpcurl(worker, "describe", "tokenspeed.grpc.scheduler.GenerateRequest")
    assert "string request_id = 1;" in request


@needs_grpcurl
@pytest.mark.parametrize("method", CALLS)
def test_each_call_is_answered(worker: Worker, method: str) -> None:
    data, field = CALLS[method]
    done = run(
        GRPCURL,
        "-plaintext",
        "-emit-defaults",
        "-d",
        data,
        worker.address,
        f"{wire.TOKENSPEED}/{method}",
    )
    if method.endswith("Profile"):  # the stand-in's engine has no profiler
        assert done.returncode == 0 or "Unimplemented" in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert field in json.loads(done.stdout), done.stdout


@needs_grpcurl
def test_it_streams_a_generate(worker: Worker) -> None:
    request = {
        "request_id": "by-grpcurl",
        "tokenized": {"input_ids": [5, 6]},
        "sampling_params": {"max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
    }
    got = answers(grpcurl(worker, f"{wire.TOKENSPEED}/Generate", data=json.dumps(request)))
    assert got[-1]["complete"]["finishReason"] == "length"
    said = [token for answer in got[:-1] for token in answer["chunk"].get("tokenIds", [])]
    assert said == got[-1]["complete"]["outputIds"] and len(said) == 4


@needs_grpcurl
def test_a_refusal_is_shown_with_its_code_and_words(worker: Worker) -> None:
    name = f"{wire.TOKENSPEED}/Generate"
    done = run(GRPCURL, "-plaintext", "-d", '{"request_id": "x"}', worker.address, name)
    assert done.returncode != 0
    assert "InvalidArgument" in done.stderr and "input_ids is empty" in done.stderr


@needs_probe
def test_the_probe_finds_it_serving_and_an_unknown_service_not(worker: Worker) -> None:
    for service in ("", wire.TOKENSPEED):
        done = run(PROBE, f"-addr={worker.address}", f"-service={service}")
        assert (done.returncode, "SERVING" in done.stderr + done.stdout) == (0, True), done
    assert run(PROBE, f"-addr={worker.address}", "-service=no.Such").returncode == 3
