"""The real smg in front of stand-in workers, and HTTP clients of it that can be watched and cut off."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.client import GUARD_S, Client
from harness.process import Worker, standin
from roomkeeper.demo.children import Children
from roomkeeper.demo.gateway import ENVIRONMENT, READY_S, _ready
from roomkeeper.demo.model import VOCABULARY, words, write_model
from roomkeeper.demo.plan import MODEL_NAME
from roomkeeper.demo.ports import HOST, Ports, free_ports
from roomkeeper.standin import tokens

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "w1 w2"
FIRST_WORD = re.compile(rb'"(content|text)":"[^"]')


class Site(NamedTuple):
    """A gateway and the workers behind it: one, or a prefill and a decode."""

    port: int
    workers: list[Worker]
    ports: Ports
    model: Path
    log: Path


class Reply(NamedTuple):
    """What an HTTP client got, whole."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)

    def events(self) -> list[Any]:
        """The events of a stream, without the word at its end."""
        data = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        assert data and data[-1] == "[DONE]", self.text
        return [json.loads(event) for event in data[:-1]]


def body(path: str, **more: Any) -> bytes:
    prompt: dict[str, Any] = {"prompt": PROMPT}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": PROMPT}]}
    made = {"model": MODEL_NAME, "max_tokens": 8, "ignore_eos": True, **prompt, **more}
    return json.dumps(made).encode()


def ask(port: int, path: str = CHAT, **more: Any) -> Reply:
    """One request through a gateway, read to its end."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2 * GUARD_S)
    try:
        connection.request("POST", path, body(path, **more), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, headers, answer.read().decode())
    finally:
        connection.close()


@contextlib.contextmanager
def streaming(port: int, path: str = CHAT, **more: Any) -> Iterator[None]:
    """A stream whose first token has come; the client goes away with the block."""
    with socket.create_connection((HOST, port), 2 * GUARD_S) as client:
        content = body(path, stream=True, **more)
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        seen = b""
        while not FIRST_WORD.search(seen):
            part = client.recv(65536)
            assert part, f"the stream ended early: {seen!r}"
            seen += part
        yield


def expected(path: str, count: int = 8) -> list[str]:
    """The words the stand-in's model says to the prompt."""
    vocabulary = words()
    text = f"user {PROMPT} assistant" if path == CHAT else PROMPT
    ids = [vocabulary.index(word) for word in text.split()]
    return [vocabulary[token] for token in tokens.output_of(ids, count, VOCABULARY) if token > 3]


def live(worker: Worker) -> int:
    """Requests that are in its engine, hold a slot or wait for one."""
    with Client(worker.address) as client:
        ranks = client.rooms()["ranks"]
        return sum(
            int(max(rank["running"], rank["held_slots"]) + rank["waiting"]) for rank in ranks
        )


def worker_flags(model: Path | str, *more: str) -> list[str]:
    fast = ("--step-ms", "2", "--served-model-name", MODEL_NAME)
    return ["--model", str(model), *fast, *more]


def gateway_command(ports: Ports, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "smg", "launch", "--host", HOST),
        *("--port", str(ports.gateway), "--prometheus-host", HOST),
        *("--prometheus-port", str(ports.metrics_of(0))),
        *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
        *flags,
    ]


@contextlib.contextmanager
def gateway(folder: Path, ports: Ports, *flags: str) -> Iterator[Path]:
    """smg, ready; its log."""
    with Children(folder) as children:
        child = children.start("gateway", gateway_command(ports, *flags), ENVIRONMENT)
        children.wait_until(child, lambda: _ready(ports.gateway), READY_S, lambda: None)
        yield child.log


@contextlib.contextmanager
def aggregated(folder: Path, *flags: str, gateway_flags: tuple[str, ...] = ()) -> Iterator[Site]:
    """One worker behind a gateway that is told the model's folder."""
    model, ports = folder / "model", free_ports()
    write_model(model)
    url = f"grpc://{HOST}:{ports.decode}"
    with (
        standin(*worker_flags(model, *flags), port=ports.decode) as worker,
        gateway(
            folder, ports, "--worker-urls", url, "--model-path", str(model), *gateway_flags
        ) as log,
    ):
        yield Site(ports.gateway, [worker], ports, model, log)


@contextlib.contextmanager
def pair(folder: Path, *flags: str, gateway_flags: tuple[str, ...] = ()) -> Iterator[Site]:
    """A prefill and a decode behind a gateway."""
    model, ports = folder / "model", free_ports()
    write_model(model)
    both = worker_flags(model, "--disaggregation-bootstrap-port", str(ports.bootstrap), *flags)
    with (
        standin("--role", "prefill", *both, port=ports.prefill) as prefill,
        standin("--role", "decode", *both, port=ports.decode) as decode,
        gateway(
            folder,
            ports,
            "--pd-disaggregation",
            *("--prefill", f"grpc://{HOST}:{ports.prefill}", str(ports.bootstrap)),
            *("--decode", f"grpc://{HOST}:{ports.decode}", "--model-path", str(model)),
            *gateway_flags,
        ) as log,
    ):
        yield Site(ports.gateway, [prefill, decode], ports, model, log)
