"""TokenSpeed's own `ts serve`: it spawns our launcher and its gateway, and the gateway serves completions through us."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from workers import ROOMKEEPER, ROOT, environment, free_base, model


@contextlib.contextmanager
def ts_serve(
    log: pathlib.Path, settings: dict[str, object]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`ts serve` with one worker; ready, with its gateway's port."""
    port = free_base()
    ts = pathlib.Path(sys.executable).with_name("ts")
    command = [
        ts,
        "serve",
        "--model",
        model(),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-num-seqs",
        "4",
    ]
    command += ["--max-model-len", "2048", "--chunked-prefill-size", "256", "--skip-tokenizer-init"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(settings),
            cwd=ROOT,
            process_group=0,
        )
    try:
        deadline = time.monotonic() + 180
        while "ts serve ready" not in log.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(
                errors="replace"
            )[-3000:]
            time.sleep(0.2)
        yield process, port
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def post(port: int, path: str, **body: object) -> dict:
    made = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps({"model": model(), **body}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(made, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    log = tmp_path_factory.mktemp("ts") / "serve.log"
    with ts_serve(log, {"TS_SERVE_ENGINE_MODULE": ROOMKEEPER}) as (process, port):
        yield process, port, log


def test_the_gateway_serves_a_completion_through_our_worker(served) -> None:
    _, port, log = served
    answer = post(port, "/v1/completions", prompt="the quick brown fox", max_tokens=8)
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["text"] and answer["choices"][0]["finish_reason"] == "length"
    said = log.read_text(errors="replace")
    assert "roomkeeper: serving" in said and "smg_grpc_servicer" not in said


def test_the_gateway_serves_a_chat_completion_with_two_choices(served) -> None:
    _, port, _ = served
    messages = [{"role": "user", "content": "hello"}]
    answer = post(port, "/v1/chat/completions", messages=messages, max_tokens=6, n=2)
    assert len(answer["choices"]) == 2
    assert all(choice["finish_reason"] == "length" for choice in answer["choices"])


def test_the_gateway_streams(served) -> None:
    _, port, _ = served
    body = json.dumps(
        {"model": model(), "prompt": "in a room", "max_tokens": 12, "stream": True}
    ).encode()
    made = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=body,
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(made, timeout=60) as answer:
        events = [
            line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")
        ]
    assert events[-1] == "[DONE]"
    assert len(events) > 3


def test_sigterm_ends_ts_serve_with_its_worker_in_order(tmp_path) -> None:
    log = tmp_path / "serve.log"
    with ts_serve(log, {"TS_SERVE_ENGINE_MODULE": ROOMKEEPER}) as (process, port):
        post(port, "/v1/completions", prompt="a", max_tokens=2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    said = log.read_text(errors="replace")
    # The engine's own HTTP server catches the signal too, and sends it once more when it has closed.
    assert said.count("roomkeeper: SIGTERM") == 1 and "ending now" not in said
    assert "roomkeeper: stopped" in said
    assert "Traceback" not in said
