"""Workers by hand for gateways, a prefill and a decode that write down what reaches them; and
commands that start processes, with what they leave behind.

Their engine is a script per leg, ``script(worker, request, context)``, which yields what it answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from harness.process import Program
from roomkeeper.demo.model import VOCABULARY
from roomkeeper.demo.plan import MODEL_NAME
from roomkeeper.demo.ports import HOST, Ports
from roomkeeper.wire import TOKENSPEED, load

PACKAGE = "tokenspeed.grpc.scheduler."
GUARD_S = 60.0
MARK = "ROOMKEEPER_DEMO_TEST"

Script = Callable[["FakeWorker", Any, Any], Iterator[Any]]


def message(name: str) -> Any:
    return load().message(PACKAGE + name)()


class Seen(NamedTuple):
    """A Generate as it arrived."""

    request_id: str
    room: int


class FakeWorker:
    """One worker. Any thread."""

    def __init__(self, role: str, ports: Ports, model: Path, window: int | None) -> None:
        self.role = role
        self.script: Script = serve
        self.seen: list[Seen] = []
        self.aborted: list[str] = []
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()
        self._ports = ports
        self._model = model
        self._window = window
        self._server = grpc.server(futures.ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers([self._handlers()])
        port = ports.prefill if role == "prefill" else ports.decode
        assert self._server.add_insecure_port(f"{HOST}:{port}") == port
        self._server.start()

    def forget(self) -> None:
        with self._lock:
            self.seen, self.aborted, self.most_running = [], [], 0

    def close(self) -> None:
        self._server.stop(None).wait()

    def _handlers(self) -> Any:
        handlers = {}
        for method in load().services[TOKENSPEED]:
            answer = getattr(self, method.name, None)
            if answer is None:
                continue
            kind = "unary_stream" if method.server_streaming else "unary_unary"
            handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                answer,
                request_deserializer=load().message(method.request).FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(TOKENSPEED, handlers)

    def HealthCheck(self, _request: Any, _context: Any) -> Any:
        answer = message("HealthCheckResponse")
        answer.healthy = True
        return answer

    def GetModelInfo(self, _request: Any, _context: Any) -> Any:
        answer = message("GetModelInfoResponse")
        answer.served_model_name = MODEL_NAME
        answer.model_path = answer.tokenizer_path = str(self._model)
        answer.vocab_size = VOCABULARY
        answer.max_context_length = answer.max_req_input_len = 32000
        return answer

    def GetServerInfo(self, _request: Any, _context: Any) -> Any:
        answer = message("GetServerInfoResponse")
        answer.server_args.update(
            {
                "disaggregation_mode": self.role,
                "disaggregation_transfer_backend": "mooncake",
                "disaggregation_bootstrap_port": self._ports.bootstrap,
                "max_num_seqs": self._window,
            }
        )
        return answer

    def GetLoads(self, _request: Any, _context: Any) -> Any:
        answer = message("GetLoadsResponse")
        answer.version, answer.dp_rank_count = "tokenspeed", 1
        answer.loads.add().max_running_requests = self._window or 0
        return answer

    def Abort(self, request: Any, _context: Any) -> Any:
        with self._lock:
            self.aborted.append(request.request_id)
        answer = message("AbortResponse")
        answer.success = True
        return answer

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        room = request.kv_bootstrap_info.bootstrap_room
        with self._lock:
            self.seen.append(Seen(request.request_id, room))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield from self.script(self, request, context)
        finally:
            with self._lock:
                self.running -= 1


def chunk(request: Any, tokens: list[int]) -> Any:
    answer = message("GenerateResponse")
    answer.request_id = request.request_id
    answer.chunk.token_ids.extend(tokens)
    answer.chunk.SetInParent()
    return answer


def complete(request: Any, tokens: list[int]) -> Any:
    answer = message("GenerateResponse")
    answer.request_id = request.request_id
    answer.complete.output_ids.extend(tokens)
    answer.complete.finish_reason = "length"
    answer.complete.completion_tokens = len(tokens)
    return answer


def serve(_worker: FakeWorker, request: Any, _context: Any) -> Iterator[Any]:
    """Two tokens."""
    yield chunk(request, [10, 11])
    yield complete(request, [10, 11])


def serve_slowly(worker: FakeWorker, request: Any, context: Any) -> Iterator[Any]:
    time.sleep(0.1)
    yield from serve(worker, request, context)


class Refuse:
    """Refuses so many times, then serves. ``after``: what the leg has said before."""

    def __init__(self, code: grpc.StatusCode, times: int, after: str = "nothing") -> None:
        self._code = code
        self._left = times
        self._after = after

    def __call__(self, worker: FakeWorker, request: Any, context: Any) -> Iterator[Any]:
        if self._left <= 0:
            yield from serve(worker, request, context)
            return
        self._left -= 1
        if self._after == "headers":
            context.send_initial_metadata(())
        elif self._after == "chunk":
            yield chunk(request, [10])
        if self._after != "nothing":
            time.sleep(0.1)  # a gateway acts on it before the status comes
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "500"),))
        context.abort(self._code, "refused by the test")


class Answer(NamedTuple):
    """What a client got."""

    status: int
    text: str

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer, or of a stream that began well; empty when there is none."""
        for line in self.text.splitlines():
            data = line.removeprefix("data: ")
            if data.startswith("{") and "error" in (content := json.loads(data)):
                return dict(content["error"])
        return {}


def ask(port: int, *, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    """One chat request through a gateway, read to its end."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "w1 w2"}],
        "max_tokens": 2,
        "stream": True,
        **more,
    }
    return post(port, json.dumps(body).encode(), headers or {})


def post(port: int, body: bytes, headers: dict[str, str], path: str = "") -> Answer:
    connection = http.client.HTTPConnection(HOST, port, timeout=GUARD_S)
    try:
        everything = {"Content-Type": "application/json", **headers}
        connection.request("POST", path or "/v1/chat/completions", body, everything)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())
    finally:
        connection.close()


def wait_until(true: Callable[[], bool], guard_s: float = GUARD_S) -> None:
    deadline = time.monotonic() + guard_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def processes_with(mark: str) -> list[int]:
    """Who has the mark in the environment it was started with."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


class Marked:
    """A roomkeeper command on the way, its temporary files in a folder of their own."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.program = Program(
            [sys.executable, "-m", "roomkeeper", *command],
            {MARK: self.mark, "TMPDIR": str(self.temporary)},
        )

    def processes(self) -> list[int]:
        return processes_with(self.mark)

    def assert_nothing_is_left(self) -> None:
        assert self.processes() == []
        # A gateway may keep a cache of its own there; ours are all named so.
        assert list(self.temporary.glob("roomkeeper-demo-*")) == []
