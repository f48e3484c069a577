"""Publishes what the scheduler's prefix cache holds, as TokenSpeed's publisher does.

ZeroMQ PUB, msgpack, numbers from 0, and a ROUTER that answers replays; one per rank, at the rank's
port. Needs pyzmq and msgspec, which TokenSpeed brings. Only the C++ scheduler has a prefix cache
to tell of.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from roomkeeper.errors import RoomkeeperError
from roomkeeper.kvevents import KvEventsConfig

_END = b"\xff" * 8


class CannotPublish(RoomkeeperError):
    """No publisher can be had; one line."""


def rank_endpoint(endpoint: str, rank: int) -> str:
    """The port of rank 0 plus the rank. A Unix socket is one rank's."""
    if endpoint.startswith("ipc://") and rank == 0:
        return endpoint
    base, _, port = endpoint.rpartition(":")
    if not base.startswith("tcp://") or not port.isdigit():
        raise CannotPublish(
            f"--kv-events-config: the endpoint of rank {rank} is {endpoint!r}; "
            "give tcp://host:port, as tcp://*:5557, or with one rank ipc:///path"
        )
    return f"{base}:{int(port) + rank}"


class KvPublisher:
    """``publish`` on the scheduler's thread; replays are answered on one of its own."""

    def __init__(self, config: KvEventsConfig, rank: int) -> None:
        try:
            import msgspec
            import zmq
        except ImportError as error:
            raise CannotPublish(
                f"--kv-events-config: {error.name} is not installed; install pyzmq and msgspec"
            ) from error
        self._encode = msgspec.msgpack.encode
        self._rank = rank
        self._topic = config.topic.encode()
        self._number = 0
        self._kept: collections.deque[tuple[int, bytes]] = collections.deque(
            maxlen=config.buffer_steps
        )
        self._lock = threading.Lock()
        self._again = zmq.Again
        context = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._bind(self._pub, rank_endpoint(config.endpoint, rank), zmq.ZMQError)
        if config.replay_endpoint:
            router = context.socket(zmq.ROUTER)
            self._bind(router, rank_endpoint(config.replay_endpoint, rank), zmq.ZMQError)
            threading.Thread(target=self._answer, args=(router,), daemon=True).start()

    @staticmethod
    def _bind(socket: Any, endpoint: str, failure: type[Exception]) -> None:
        socket.linger = 0
        try:
            socket.bind(endpoint)
        except failure as error:
            raise CannotPublish(
                f"--kv-events-config: {endpoint} cannot be listened on: {error}; give another"
            ) from error

    def publish(self, events: Iterable[Any], *, cleared: bool = False) -> None:
        """The scheduler's own events as one batch; nothing when there are none."""
        wire = [*_on_the_wire(events), *([["AllBlocksCleared"]] if cleared else [])]
        if not wire:
            return
        payload = self._encode([time.time(), wire, self._rank])
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._kept.append((number, payload))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload))

    def _answer(self, router: Any) -> None:
        while True:
            frames = router.recv_multipart()
            if len(frames) != 3:
                continue
            client, empty, start = frames
            first = int.from_bytes(start, "big")
            with self._lock:
                kept = [(number, payload) for number, payload in self._kept if number >= first]
            with contextlib.suppress(self._again):
                for number, payload in kept:
                    router.send_multipart((client, empty, number.to_bytes(8, "big"), payload))
                router.send_multipart((client, empty, _END, b""))


def _on_the_wire(events: Iterable[Any]) -> Iterator[list[Any]]:
    for event in events:
        hashes = [int(one) for one in event.block_hashes]
        if event.kind == "BlockStored":
            parent = event.parent_block_hash
            tokens = [int(token) for token in event.token_ids]
            yield [
                "BlockStored",
                hashes,
                None if parent is None else int(parent),
                tokens,
                int(event.block_size),
            ]
        elif event.kind == "BlockRemoved":
            yield ["BlockRemoved", hashes]
