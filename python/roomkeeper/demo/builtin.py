"""The built-in gateway: joins a prefill and a decode, for machines where smg cannot be had.

It does what the demo needs of a gateway and no more: it reads the decode's window once, at the
start, and lets that many requests through at a time (all of them when no window is reported); it
mints a room, sends the same Generate to both workers at the same moment, passes the decode's tokens
on, and starts anew with another room and id while a worker answers RESOURCE_EXHAUSTED or
UNAVAILABLE before anything has gone out.

A thread per HTTP request, one more per leg. Nothing but the standard library, grpcio and protobuf.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc

from roomkeeper.demo.model import words
from roomkeeper.demo.ports import HOST
from roomkeeper.wire import TOKENSPEED, load

PACKAGE = "tokenspeed.grpc.scheduler."
TRIES = 5
BACKOFF_S = 0.05
REGISTRATION_S = 20.0
#: How long a request waits for the decode's window before it is shed.
ADMISSION_S = 30.0
#: A leg that takes longer is ended.
LEG_S = 100.0
RETRIED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
HTTP_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


class Failure(Exception):
    """A request that cannot be answered: an HTTP status, a word for programs, a line for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LegFailed(Exception):
    """A leg ended with a status."""

    def __init__(self, leg: str, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.leg = leg
        self.status = status

    def failure(self) -> Failure:
        """As a client is told."""
        http = HTTP_OF.get(self.status, HTTPStatus.INTERNAL_SERVER_ERROR)
        return Failure(http, f"{self.leg}_{self.status.name.lower()}", str(self))


class Said(NamedTuple):
    """What a leg has said: a message, or its end."""

    leg: str
    message: Any
    end: grpc.RpcError | None


class Pair:
    """The two workers behind the gateway. Any thread."""

    def __init__(self, prefill: str, decode: str, bootstrap: str) -> None:
        self._wire = load()
        self._channels = {"prefill": channel_to(prefill), "decode": channel_to(decode)}
        self._stubs = {
            leg: self._wire.stub(channel, TOKENSPEED) for leg, channel in self._channels.items()
        }
        host, _, port = bootstrap.rpartition(":")
        self._bootstrap = (host, int(port))
        #: Requests that may be under way; None: the decode has told no window.
        self._gate: threading.Semaphore | None = None

    def register(self) -> int:
        """Waits for both workers and reads the decode's window; 0: not told."""
        ask = self._wire.message(PACKAGE + "GetServerInfoRequest")
        window = 0
        for leg, stub in self._stubs.items():
            info = stub.GetServerInfo(ask(), timeout=REGISTRATION_S, wait_for_ready=True)
            if leg == "decode":
                window = _window_in(info.server_args)
        if window > 0:
            self._gate = threading.BoundedSemaphore(window)
        return window

    def answer(self, prompt: list[int], max_tokens: int) -> Generator[Any, None, None]:
        """The decode's messages for one prompt. Raises Failure."""
        if self._gate is None:
            yield from self._with_retries(prompt, max_tokens)
            return
        if not self._gate.acquire(timeout=ADMISSION_S):
            raise Failure(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "window_full",
                f"no slot of the decode's window came free within {ADMISSION_S:g} s",
            )
        try:
            yield from self._with_retries(prompt, max_tokens)
        finally:
            self._gate.release()

    def _with_retries(self, prompt: list[int], max_tokens: int) -> Generator[Any, None, None]:
        for attempt in range(1, TRIES + 1):
            sent = False
            try:
                for message in self._once(prompt, max_tokens):
                    sent = True
                    yield message
                return
            except LegFailed as error:
                if sent or error.status not in RETRIED or attempt == TRIES:
                    raise error.failure() from None
            time.sleep(BACKOFF_S * attempt)

    def _once(self, prompt: list[int], max_tokens: int) -> Generator[Any, None, None]:
        """One room: both legs at once; the decode's messages; LegFailed when either fails."""
        request = self._request(prompt, max_tokens)
        said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        calls = {leg: stub.Generate(request, timeout=LEG_S) for leg, stub in self._stubs.items()}
        for leg, call in calls.items():
            threading.Thread(target=_read, args=(leg, call, said), daemon=True).start()
        open_legs = set(calls)
        try:
            while open_legs:
                what = said.get()
                if what.message is None:
                    open_legs.discard(what.leg)
                    if what.end is not None:
                        raise LegFailed(what.leg, what.end.code(), what.end.details() or "")
                elif what.leg == "decode":
                    yield what.message
        finally:
            for call in calls.values():
                call.cancel()

    def _request(self, prompt: list[int], max_tokens: int) -> Any:
        request = self._wire.message(PACKAGE + "GenerateRequest")()
        request.request_id = f"chat-{uuid.uuid4().hex}"
        request.tokenized.input_ids.extend(prompt)
        request.sampling_params.max_new_tokens = max_tokens
        request.sampling_params.ignore_eos = True
        request.stream = True
        request.kv_bootstrap_info.bootstrap_host = self._bootstrap[0]
        request.kv_bootstrap_info.bootstrap_port = self._bootstrap[1]
        request.kv_bootstrap_info.bootstrap_room = random.randrange(1, 2**63)
        return request


def channel_to(address: str) -> grpc.Channel:
    """One connection to a worker, on this machine and not by a proxy."""
    return grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])


def _window_in(server_args: Any) -> int:
    for key in ("max_num_seqs", "max_running_requests"):
        if key in server_args and isinstance(server_args[key], float):
            return int(server_args[key])
    return 0


def _read(leg: str, call: Any, said: queue.SimpleQueue[Said]) -> None:
    end: grpc.RpcError | None = None
    try:
        for message in call:
            said.put(Said(leg, message, None))
    except grpc.RpcError as error:
        end = error
    said.put(Said(leg, None, end))


class Handler(BaseHTTPRequestHandler):
    """``GET /readiness`` and ``POST /v1/chat/completions``, streamed."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Ready as soon as it listens: it registers before."""
        status = HTTPStatus.OK if self.path == "/readiness" else HTTPStatus.NOT_FOUND
        self._whole(status, {"status": status.phrase})

    def do_POST(self) -> None:
        """One chat request."""
        try:
            body = self._body()  # always: what is left unread would be the next request
            if self.path != "/v1/chat/completions":
                raise Failure(HTTPStatus.NOT_FOUND, "no_such_path", f"no {self.path} here")
            prompt, max_tokens = self.server.prompt_of(body)
            messages = self.server.pair.answer(prompt, max_tokens)
            first = next(messages)
        except Failure as failure:
            self._whole(failure.status, _error(failure))
            return
        with contextlib.closing(messages), contextlib.suppress(ConnectionError):
            self._stream(first, messages)

    def _stream(self, first: Any, rest: Iterator[Any]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._event(self.server.chunk(first))
            for message in rest:
                self._event(self.server.chunk(message))
        except Failure as failure:
            self._event(_error(failure))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _whole(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except ValueError as error:
            raise Failure(HTTPStatus.BAD_REQUEST, "not_json", f"not JSON: {error}") from None
        if not isinstance(body, dict):
            raise Failure(HTTPStatus.BAD_REQUEST, "not_an_object", "the body is no JSON object")
        return body

    def log_message(self, format: str, *args: object) -> None:
        """Only what fails is worth a line."""
        if not (len(args) > 1 and str(args[1]) == "200"):
            sys.stderr.write(f"builtin gateway: {format % args}\n")


class Server(ThreadingHTTPServer):
    """The gateway's HTTP side."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, pair: Pair, model: str) -> None:
        self.pair = pair
        self._model = model
        self._words = words()
        self._ids = {word: number for number, word in enumerate(self._words)}
        super().__init__((HOST, port), Handler)

    def prompt_of(self, body: dict[str, Any]) -> tuple[list[int], int]:
        """Token ids and the number of tokens wanted. Raises Failure."""
        messages = body.get("messages")
        max_tokens = body.get("max_tokens", 16)
        if not isinstance(messages, list) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise Failure(
                HTTPStatus.BAD_REQUEST, "bad_request", "messages and max_tokens (1 or more) please"
            )
        text = " ".join(str(message.get("content", "")) for message in messages)
        unknown = self._ids["<unk>"]
        return [self._ids.get(word, unknown) for word in text.split()] or [unknown], max_tokens

    def chunk(self, message: Any) -> dict[str, Any]:
        """A worker's message as a chunk of a chat completion."""
        whole = message.WhichOneof("response") == "complete"
        tokens = () if whole else message.chunk.token_ids
        content = "".join(f"{self._words[token % len(self._words)]} " for token in tokens)
        choice = {
            "index": 0,
            "delta": {"content": content},
            "finish_reason": message.complete.finish_reason if whole else None,
        }
        return {"object": "chat.completion.chunk", "model": self._model, "choices": [choice]}


def _error(failure: Failure) -> dict[str, Any]:
    return {"error": {"message": str(failure), "code": failure.code}}


def main() -> int:
    parser = argparse.ArgumentParser(description="joins a prefill and a decode worker")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", required=True, help="HOST:PORT")
    parser.add_argument("--decode", required=True, help="HOST:PORT")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT of the prefill's rendezvous")
    parser.add_argument("--model", required=True, help="the name it answers with")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pair = Pair(options.prefill, options.decode, options.bootstrap)
    try:
        window = pair.register()
        server = Server(options.port, pair, options.model)
    except (grpc.RpcError, OSError) as error:
        why = error.details() if isinstance(error, grpc.RpcError) else error
        print(f"builtin gateway: cannot start: {why}", file=sys.stderr)
        return 1
    gate = f"{window} at a time" if window else "no window told, nothing is held back"
    print(f"builtin gateway: port {options.port}, {gate}", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
