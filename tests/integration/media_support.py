"""Multimodal inputs for tests: items, tensors in a message and in shared memory, encode workers."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from standin_support import WIRE, StandinWorker

IMAGE, AUDIO, VIDEO = 1, 2, 3
SHM = Path("/dev/shm")
ENCODER = "tokenspeed.grpc.encoder.TokenSpeedEncoder"

_numbers = itertools.count(1)


def pixels(seed: int, count: int = 12) -> bytes:
    return struct.pack(f"<{count}f", *(seed + i for i in range(count)))


def describe(
    tensor: Any, payload: bytes, shape: tuple[int, ...] = (), dtype: str = "float32"
) -> None:
    tensor.shape.extend(shape or (len(payload) // 4,))
    tensor.dtype = dtype


def inline(tensor: Any, payload: bytes, **kinds: Any) -> None:
    describe(tensor, payload, **kinds)
    tensor.inline = payload


def add_image(inputs: Any, payload: bytes | None = None, at: tuple[int, int] = (1, 2)) -> Any:
    """An image, its pixels in the message; without any, only what else there is."""
    item = inputs.items.add(modality=IMAGE, content_hash=bytes(range(32)))
    item.placeholders.add(offset=at[0], length=at[1])
    inline(
        item.model_specific_tensors["image_grid_thw"],
        struct.pack("<3q", 1, 2, 6),
        dtype="int64",
        shape=(1, 3),
    )
    if payload is not None:
        inline(item.encoder_input, payload, shape=(3, len(payload) // 12))
    return item


class Segment:
    """A file under /dev/shm, which is gone with the block if nobody has taken it."""

    def __init__(self, payload: bytes, name: str = "") -> None:
        self.name = name or f"roomkeeper-test-{os.getpid()}-{next(_numbers)}"
        self.path = SHM / self.name
        self.payload = payload
        self.path.write_bytes(payload)

    def into(
        self, tensor: Any, *, offset: int = 0, nbytes: int | None = None, **kinds: Any
    ) -> None:
        size = len(self.payload) - offset if nbytes is None else nbytes
        describe(tensor, b"\0" * size, **kinds)
        tensor.shm.name = self.name
        tensor.shm.offset = offset
        tensor.shm.nbytes = size
        tensor.shm.owner_id = f"test:{os.getpid()}"

    @property
    def is_there(self) -> bool:
        return self.path.exists() or self.path.is_symlink()

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


@pytest.fixture
def segments() -> Iterator[Any]:
    made: list[Segment] = []

    def make(payload: bytes, name: str = "") -> Segment:
        made.append(Segment(payload, name))
        return made[-1]

    yield make
    for segment in made:
        segment.remove()


def encode_stub(worker: StandinWorker) -> Any:
    return WIRE.stub(worker.channel, ENCODER)


def encode_request(room: int, payload: bytes | None, request_id: str = "e") -> Any:
    made = WIRE.message("tokenspeed.grpc.encoder.EncodeRequest")(request_id=request_id)
    add_image(made.mm_inputs, payload)
    made.items.add(bootstrap_room=room)
    return made


def refusal(call: Any) -> grpc.RpcError:
    """What a call that must fail fails with."""
    try:
        answer = call()
        answer = list(answer) if hasattr(answer, "__iter__") else answer
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"it was answered: {answer}")
