"""A publisher of KV events by hand, for the tests that need one: TokenSpeed's protocol, and faults in it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from harness.byhand import by_hand
from harness.client import GUARD_S, WIRE

msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed: no publisher by hand")
zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: no publisher by hand")

END = b"\xff" * 8
BLOCK = 4


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free.

    They are taken a moment later: tests that run side by side each have a range of their own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    first = 21000 + worker * 1200
    for base in range(first, first + 1200, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    end = stack.enter_context(socket.socket())
                    end.bind(("127.0.0.1", port))
            except OSError:
                continue
        return base
    raise AssertionError("no ports are free")


def number_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")


def stored(number: int, parent: int | None = None) -> list[Any]:
    """One block, whose hash is the batch's number + 1000."""
    return [
        "BlockStored",
        [number + 1000],
        parent,
        [number * BLOCK + i for i in range(BLOCK)],
        BLOCK,
    ]


class Publisher:
    """A rank's publisher: PUB, and a ROUTER that answers replays from what it keeps."""

    def __init__(
        self, port: int, replay: int | None = None, keep: int = 10_000, rank: int = 0
    ) -> None:
        self.rank = rank
        self.sent: list[tuple[int, bytes]] = []
        self.keep = keep
        #: Batches that are numbered and kept, but not sent: as if lost on the way.
        self.muted = False
        self.asked: queue.Queue[int] = queue.Queue()
        self._next = 0
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.linger = 0
        self._pub.bind(f"tcp://127.0.0.1:{port}")
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        if replay is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.linger = 0
            self._router.bind(f"tcp://127.0.0.1:{replay}")
            thread = threading.Thread(target=self._answer)
            thread.start()
            self._threads.append(thread)

    def wait_subscribed(self) -> None:
        assert self._pub.poll(GUARD_S * 1000), "nobody subscribed"
        self._pub.recv()

    def _answer(self) -> None:
        while not self._stop.is_set():
            if not self._router.poll(20):
                continue
            client, empty, start = self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.put(first)
            with self._lock:
                kept = [(n, p) for n, p in self.sent[-self.keep :] if n >= first]
            for number, payload in kept:
                self._router.send_multipart((client, b"", number_bytes(number), payload))
            self._router.send_multipart((client, b"", END, b""))
        self._router.close()

    def publish(self, *events: Any, number: int | None = None) -> int:
        number = self._next if number is None else number
        self.publish_raw(msgspec.msgpack.encode([100.0 + number, list(events), self.rank]), number)
        return number

    def publish_raw(self, payload: bytes, number: int | None = None) -> int:
        number = self._next if number is None else number
        self._next = number + 1
        with self._lock:
            self.sent.append((number, payload))
        if not self.muted:
            self._pub.send_multipart((b"", number_bytes(number), payload))
        return number

    def send_frames(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def store(self, count: int) -> None:
        for _ in range(count):
            self.publish(stored(self._next))

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(GUARD_S)
        self._pub.close()
        self._context.term()


class Subscription:
    """A SubscribeKvEvents call, read on a thread so that waiting has a bound."""

    def __init__(
        self, stub: Any, start: int = 0, *, load_first: bool = False, read: bool = True
    ) -> None:
        request = WIRE.message("smg.grpc.common.SubscribeKvEventsRequest")(
            start_sequence_number=start, load_records_before_first_batch=load_first
        )
        self.call = stub.SubscribeKvEvents(request, timeout=120)
        self.heartbeats: queue.Queue[Any] = queue.Queue()
        self._batches: queue.Queue[Any] = queue.Queue()
        if read:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for batch in self.call:
                only = batch.load.load_only
                (self.heartbeats if only else self._batches).put(batch)
            self._batches.put(None)
        except grpc.RpcError as error:
            self._batches.put(error)

    def next(self) -> Any:
        """The next batch that is no heartbeat."""
        got = self._batches.get(timeout=GUARD_S)
        if isinstance(got, Exception):
            raise got
        assert got is not None, "the stream has ended"
        return got

    def take(self, count: int) -> list[Any]:
        return [self.next() for _ in range(count)]

    def error(self) -> tuple[grpc.StatusCode, str]:
        """How it ended, once what was sent before has been taken."""
        while True:
            got = self._batches.get(timeout=GUARD_S)
            if isinstance(got, grpc.RpcError):
                return got.code(), got.details()
            assert got is not None, "the stream ended with OK"

    @property
    def quiet(self) -> bool:
        return self._batches.empty()


@contextlib.contextmanager
def worker(
    port: int, replay: int | None = None, ranks: int = 1, **settings: object
) -> Iterator[tuple[Any, Any]]:
    """A worker that reads the publisher at that port, and a stub of it."""
    with by_hand(
        window=4 * ranks,
        ranks=ranks,
        settings=settings,
        kv_endpoint=f"tcp://*:{port}",
        kv_replay_endpoint=f"tcp://*:{replay}" if replay else "",
    ) as made:
        yield made.servicer, made.client.scheduler


def metric(servicer: Any, name: str) -> float:
    """The sum over a metric's samples."""
    lines = servicer.metrics().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))
    )


def hashes(batch: Any) -> list[int]:
    return [block.block_hash for event in batch.events for block in event.stored.blocks]
