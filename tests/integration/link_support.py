"""What the link's tests share: pairs of workers, proxies between them, links made by hand, certificates."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.client import GUARD_S, WIRE, Client, Stream, until
from harness.process import Worker, standin

ROOM_LINK = "roomkeeper.peer.v1.RoomLink"
#: Where a worker has its other listeners, from its bootstrap port on: KV transfers, room links.
KV_OFFSET, LINK_OFFSET = 1000, 2000
_rooms = itertools.count(1000)


def new_room() -> int:
    return next(_rooms)


def bootstrap_port() -> int:
    """One whose KV port and link port are free too; below the ports that clients get."""
    while True:
        port = random.randrange(12000, 28000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for offset in (0, KV_OFFSET, LINK_OFFSET):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port + offset))
            return port


# -- pairs --


@dataclasses.dataclass
class Side:
    """A worker and a client to it."""

    worker: Worker
    client: Client

    @property
    def links(self) -> dict[str, Any]:
        """``scheduler_info.roomkeeper.links``."""
        return dict(self.client.rooms()["links"])

    @property
    def peers(self) -> list[dict[str, Any]]:
        return [dict(peer) for peer in self.links["peers"]]

    def peer(self, name: str = "") -> dict[str, Any]:
        """The one peer, or the one of this name."""
        (found,) = [peer for peer in self.peers if not name or peer["name"] == name]
        return found

    def until_links(self, count: int, state: str = "up") -> None:
        def look() -> bool:
            return [peer["state"] for peer in self.peers].count(state) == count

        until(look, f"{count} links {state}; {self.peers}")

    def slots(self) -> tuple[int, int]:
        """Held and releasing, of all ranks."""
        ranks = self.client.rooms()["ranks"]
        return (
            int(sum(rank["held_slots"] for rank in ranks)),
            int(sum(rank["releasing"] for rank in ranks)),
        )

    def legs(self, state: str) -> int:
        return int(self.client.rooms()["legs"].fields[state].number_value)

    def ended(self, cause: str) -> int:
        return int(self.client.rooms()["ended"].fields[cause].number_value)

    def idle(self, guard_s: float = GUARD_S) -> None:
        def free() -> bool:
            return all(
                rank["held_slots"] == rank["releasing"] == rank["running"] == rank["waiting"] == 0
                for rank in self.client.rooms()["ranks"]
            )

        until(free, "the worker is idle", guard_s)

    def said(self, pattern: str) -> list[str]:
        """Lines of the log."""
        return [
            line for line in self.worker.program.output().splitlines() if re.search(pattern, line)
        ]

    def until_said(self, pattern: str, count: int = 1) -> list[str]:
        return list(until(lambda: self._enough(pattern, count), f"{pattern!r} in the log"))

    def _enough(self, pattern: str, count: int) -> list[str]:
        lines = self.said(pattern)
        return lines if len(lines) >= count else []


@contextlib.contextmanager
def side(*flags: str, wait: bool = True) -> Iterator[Side]:
    with standin(*flags, wait=wait) as worker, Client(worker.address) as client:
        yield Side(worker, client)


def role_flags(role: str, port: int, *flags: str) -> tuple[str, ...]:
    return ("--role", role, "--disaggregation-bootstrap-port", str(port), "--step-ms", "10", *flags)


def leg(
    side: Side,
    name: str,
    room: int,
    port: int,
    tokens: int = 4,
    *,
    host: str = "127.0.0.1",
    **fields: Any,
) -> Stream:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    return side.client.generate(name, room=room, host=host, port=port, sampling=sampling, **fields)


@dataclasses.dataclass
class Pair:
    """Both workers, and legs that belong together."""

    prefill_side: Side
    decode_side: Side
    port: int

    @property
    def prefill_worker(self) -> Worker:
        return self.prefill_side.worker

    @property
    def decode_worker(self) -> Worker:
        return self.decode_side.worker

    @property
    def prefill(self) -> Client:
        return self.prefill_side.client

    @property
    def decode(self) -> Client:
        return self.decode_side.client

    def prefill_leg(self, name: str, room: int, tokens: int = 4, **fields: Any) -> Stream:
        return leg(self.prefill_side, name, room, self.port, tokens, **fields)

    def decode_leg(self, name: str, room: int, tokens: int = 4, **fields: Any) -> Stream:
        return leg(self.decode_side, name, room, self.port, tokens, **fields)

    def both(self, name: str, tokens: int = 4, **fields: Any) -> tuple[Stream, Stream]:
        """What a gateway sends: the same request to both, at the same moment."""
        room = new_room()
        prefill = self.prefill_leg(name, room, tokens, **fields)
        return prefill, self.decode_leg(name, room, tokens, **fields)

    def burst(
        self, name: str, count: int, tokens: int = 4, **fields: Any
    ) -> list[tuple[Stream, Stream]]:
        return [self.both(f"{name}-{number}", tokens, **fields) for number in range(count)]

    def serves(self, name: str = "next") -> None:
        """One more pair goes through."""
        prefill, decode = self.both(name)
        assert (prefill.end().name, decode.end().name) == ("OK", "OK"), (
            prefill.status,
            decode.status,
        )

    def idle(self, guard_s: float = GUARD_S) -> None:
        self.prefill_side.idle(guard_s)
        self.decode_side.idle(guard_s)

    def until_linked(self) -> None:
        self.decode_side.until_links(1)
        self.prefill_side.until_links(1)


def names_of(legs: list[tuple[Stream, Stream]]) -> list[tuple[str, str]]:
    return [(prefill.end().name, decode.end().name) for prefill, decode in legs]


@contextlib.contextmanager
def pair(
    *flags: str,
    port: int | None = None,
    prefill_flags: tuple[str, ...] = (),
    decode_flags: tuple[str, ...] = (),
) -> Iterator[Pair]:
    port = port or bootstrap_port()
    with (
        side(*role_flags("prefill", port, *flags, *prefill_flags), wait=False) as prefill,
        side(*role_flags("decode", port, *flags, *decode_flags)) as decode,
    ):
        prefill.worker.wait_serving()
        yield Pair(prefill, decode, port)


def by_proxy(port: int, proxy: Proxy) -> tuple[str, str]:
    """A decode's flag: the links to this prefill go through the proxy."""
    return ("--room-peer", f"127.0.0.1:{port}=127.0.0.1:{proxy.port}")


# -- a proxy --


class Proxy:
    """TCP in front of a port of this host: it forwards, falls silent, or hangs up."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._forwards = threading.Event()
        self._forwards.set()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._forwards.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def silence(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        self._forwards.clear()

    def speak(self) -> None:
        """What has been kept back goes through, and what comes."""
        self._forwards.set()

    def cut(self) -> None:
        """Hangs up on all connections."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), GUARD_S)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while received := source.recv(65536):
                self._forwards.wait()
                sink.sendall(received)
            sink.shutdown(socket.SHUT_WR)


# -- links by hand --


def frame(**fields: Any) -> Any:
    return WIRE.message("roomkeeper.peer.v1.Frame")(**fields)


PREFILL, DECODE = 1, 2
OPENED, ADMITTED, SUBMITTED, HANDED_OFF, ENDED, QUIESCED = range(1, 7)
CLIENT_CANCEL, ENGINE_ERROR = 11, 14


def hello(role: int, **fields: Any) -> Any:
    made = {
        "protocol": 1,
        "instance": secrets.token_bytes(16),
        "role": role,
        "release": "by-hand",
        "window": 4,
        "engine_state": 2,
        "nonce": secrets.token_bytes(32),
        "heartbeat_ms": 500,
    }
    return frame(hello=made | fields)


def rooms(*news: dict[str, Any]) -> Any:
    return frame(rooms={"rooms": list(news)})


def room(
    number: int, state: int, port: int, host: str = "127.0.0.1", **fields: Any
) -> dict[str, Any]:
    return {"host": host, "port": port, "room": number, "state": state, **fields}


_OVER = object()


class HandLink:
    """A decode's end of a stream, made of frames or of bytes."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, reads: bool = True) -> None:
        self._channel = grpc.insecure_channel(f"{host}:{port}", [("grpc.enable_http_proxy", 0)])
        self._frame = WIRE.message("roomkeeper.peer.v1.Frame")
        self._outbox: list[Any] = []
        self._changed = threading.Condition()
        self.frames: list[Any] = []
        self.code: str | None = None
        self.details = ""
        self._call = self._channel.stream_stream(f"/{ROOM_LINK}/Link")(self._sent())
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> HandLink:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._outbox.append(_OVER)
            self._changed.notify_all()
        self._call.cancel()
        self._channel.close()

    def _sent(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox)
                made = self._outbox.pop(0)
            if made is _OVER:
                return
            yield made

    def _read(self) -> None:
        try:
            for received in self._call:
                with self._changed:
                    self.frames.append(self._frame.FromString(received))
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        with self._changed:
            self.code = self._call.code().name
            self.details = self._call.details() or ""
            self._changed.notify_all()

    def send(self, *made: Any) -> None:
        """Frames, or bytes as they are."""
        with self._changed:
            self._outbox += [m if isinstance(m, bytes) else m.SerializeToString() for m in made]
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], Any], what: str) -> Any:
        with self._changed:
            if not self._changed.wait_for(condition, GUARD_S):
                raise AssertionError(f"never happened: {what}; {self.frames}, {self.code}")
            return condition()

    def end(self) -> str:
        """The status's name, once there is one."""
        return str(self._wait(lambda: self.code, "the stream's end"))

    def come_up(self, **fields: Any) -> HandLink:
        """Both hellos and both begins."""
        self.send(hello(DECODE, **fields))
        self._wait(lambda: any(f.HasField("hello") for f in self.frames), "the prefill's hello")
        self.send(frame(begin={}))
        self._wait(lambda: any(f.HasField("begin") for f in self.frames), "the prefill's begin")
        return self

    def heard(self, number: int) -> list[int]:
        """The states that were said of a room so far."""
        with self._changed:
            return [
                news.state for f in self.frames for news in f.rooms.rooms if news.room == number
            ]

    def until_heard(self, number: int, state: int) -> Any:
        def look() -> Any:
            for received in self.frames:
                for news in received.rooms.rooms:
                    if (news.room, news.state) == (number, state):
                        return news
            return None

        return self._wait(look, f"state {state} of room {number}")


class HandPrefill:
    """A prefill's link listener, which answers as the test says."""

    def __init__(self, serve: Callable[[HandPrefill, Iterator[Any]], Iterator[Any]]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.instance = secrets.token_bytes(16)
        self.frames: list[Any] = []
        #: Frames that ``serve`` may take and say.
        self.to_say: list[Any] = []
        self.over = threading.Event()
        frames = WIRE.message("roomkeeper.peer.v1.Frame")

        def link(received: Iterator[Any], _context: Any) -> Iterator[Any]:
            return serve(self, self._noted(received))

        handler = grpc.stream_stream_rpc_method_handler(
            link,
            request_deserializer=frames.FromString,
            response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
        )
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ROOM_LINK, {"Link": handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _noted(self, received: Iterator[Any]) -> Iterator[Any]:
        for one in received:
            self.frames.append(one)
            yield one

    def __enter__(self) -> HandPrefill:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.stop(None)

    def flags(self, port: int) -> tuple[str, str]:
        return ("--room-peer", f"127.0.0.1:{port}=127.0.0.1:{self.port}")


# -- certificates --


@dataclasses.dataclass(frozen=True)
class Identity:
    cert: str
    key: str


class Authority:
    """A CA made for the test."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self.cert = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", self._key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}"),
        )

    def issue(self, name: str, alternative: str) -> Identity:
        stem = self._folder / f"{self._name}-{name}"
        key, asked, cert, more = (f"{stem}.{end}" for end in ("key", "csr", "pem", "ext"))
        Path(more).write_text(f"subjectAltName={alternative}\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", asked, "-subj", f"/CN={name}"),
        )
        _openssl(
            *("x509", "-req", "-in", asked, "-CA", self.cert, "-CAkey", self._key),
            *("-CAcreateserial", "-out", cert, "-days", "2", "-extfile", more),
        )
        return Identity(cert, key)


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command is not installed"
)


# -- times --


def latencies(begun: float, streams: list[Stream]) -> list[float]:
    """Seconds until each had ended, sorted; all are waited for at once."""
    ends: list[float] = []

    def wait(stream: Stream) -> None:
        stream.end()
        ends.append(time.monotonic() - begun)

    threads = [threading.Thread(target=wait, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    assert len(ends) == len(streams)
    return sorted(ends)


def p99(sorted_values: list[float]) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * 0.99))]
