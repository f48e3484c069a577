"""Multimodal inputs: what our adapter gives TokenSpeed, compared with what the Python servicer gives it.

Objects only, field by field, from the same bytes: the scheduler that would look at them needs a GPU.
"""

from __future__ import annotations

import asyncio
import itertools
import select
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import torch
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as services
from smg_grpc_proto.generated import (
    common_pb2,
    tokenspeed_encoder_pb2,
    tokenspeed_encoder_pb2_grpc,
    tokenspeed_scheduler_pb2,
)
from smg_grpc_servicer.tokenspeed.encoder_servicer import TokenSpeedEncoderServicer
from smg_grpc_servicer.tokenspeed.servicer import TokenSpeedSchedulerServicer

from roomkeeper.encodes import Encodes
from roomkeeper.engine import WorkerInfo
from roomkeeper.multimodal import modalities_of, read
from roomkeeper.servicer import Servicer
from roomkeeper.tokenspeed.media import TokenSpeedMedia

GUARD_S = 20.0
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_numbers = itertools.count(1)


class Frontend:
    """As much of AsyncLLM as multimodal inputs touch."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, mode: str = "null") -> None:
        self.model_config = SimpleNamespace(dtype=dtype)
        self.server_args = SimpleNamespace(
            disaggregation_mode=mode, disaggregation_bootstrap_port=8999
        )
        self.encoded: list[Any] = []

    def submit_encode(self, request: Any) -> None:
        self.encoded.append(request)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Servicer, services.TokenSpeedSchedulerStub]]:
    yield from _serve(WorkerInfo(model_path="m"), services.TokenSpeedSchedulerStub)


@pytest.fixture(scope="module")
def encoding() -> Iterator[tuple[Servicer, Any]]:
    info = WorkerInfo(model_path="m", role="encode")
    yield from _serve(info, tokenspeed_encoder_pb2_grpc.TokenSpeedEncoderStub)


def _serve(info: WorkerInfo, stub: Any) -> Iterator[tuple[Servicer, Any]]:
    servicer = Servicer(info)
    try:
        port = servicer.listen("127.0.0.1:0")
        servicer.start()
        servicer.state("ready")
        with grpc.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            yield servicer, stub(channel)
    finally:
        servicer.stop()


def take(servicer: Servicer) -> Any:
    readable, _, _ = select.select([servicer.fileno()], [], [], GUARD_S)
    assert readable, "no command came"
    (command,) = servicer.take()
    return command


def fill(tensor: Any, value: torch.Tensor, name: str) -> None:
    tensor.shape.extend(value.shape)
    tensor.dtype = name
    tensor.inline = value.reshape(-1).view(torch.uint8).numpy().tobytes()


def sample(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.arange(1, 1 + int(torch.tensor(shape).prod()) if shape else 2)
    return (numbers % 2 if name == "bool" else numbers).to(DTYPES[name]).reshape(shape)


def request_with(*items: dict[str, Any]) -> Any:
    made = tokenspeed_scheduler_pb2.GenerateRequest(request_id=f"r{next(_numbers)}", stream=True)
    made.tokenized.input_ids.extend(range(1, 33))
    for item in items:
        add(made.mm_inputs, **item)
    return made


def add(
    inputs: Any,
    *,
    modality: int = common_pb2.IMAGE,
    content_hash: bytes = bytes(range(32)),
    input: tuple[str, tuple[int, ...]] | None = ("float32", (3, 4)),
    tensors: dict[str, tuple[str, tuple[int, ...]]] | None = None,
    ranges: tuple[tuple[int, int], ...] = ((1, 4),),
    token_id: int | None = None,
) -> None:
    item = inputs.items.add(modality=modality, content_hash=content_hash)
    if input is not None:
        fill(item.encoder_input, sample(*input), input[0])
    for name, kind in (tensors or {}).items():
        fill(item.model_specific_tensors[name], sample(*kind), kind[0])
    for offset, length in ranges:
        item.placeholders.add(offset=offset, length=length)
    if token_id is not None:
        item.placeholder_token_id = token_id


REQUESTS = {
    "an image": request_with({}),
    "an image in the model's dtype": request_with({"input": ("bfloat16", (3, 4))}),
    "an image of whole numbers": request_with({"input": ("uint8", (2, 5))}),
    "an image in half": request_with({"input": ("float16", (5,))}),
    "one number": request_with({"input": ("float32", ())}),
    "grids": request_with(
        {"tensors": {"image_grid_thw": ("int64", (1, 3)), "flags": ("bool", (4,))}}
    ),
    "side tensors keep their dtype": request_with({"tensors": {"times": ("float32", (2,))}}),
    "an empty side tensor": request_with({"tensors": {"none": ("float32", (0, 3))}}),
    "no hash": request_with({"content_hash": b""}),
    "a short hash": request_with({"content_hash": b"ab"}),
    "two ranges": request_with({"ranges": ((0, 2), (30, 2))}),
    "a token": request_with({"token_id": 5}),
    "audio": request_with({"modality": common_pb2.AUDIO, "token_id": 9}),
    "a video and an image": request_with(
        {
            "modality": common_pb2.VIDEO,
            "tensors": {"video_grid_thw": ("int64", (1, 3))},
            "token_id": 7,
        },
        {"ranges": ((8, 4),), "token_id": 5},
    ),
    "two of one hash": request_with({}, {"ranges": ((8, 4),)}),
    "megabytes": request_with({"input": ("float32", (1 << 20,))}),
}


def same(ours: Any, theirs: Any, path: str) -> None:
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor), path
        assert (ours.dtype, tuple(ours.shape)) == (theirs.dtype, tuple(theirs.shape)), path
        assert torch.equal(ours, theirs), path
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            same(ours[key], theirs[key], f"{path}[{key}]")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), path
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, f"{path}[{i}]")
    elif hasattr(theirs, "__struct_fields__"):
        assert type(ours) is type(theirs), path
        for field in theirs.__struct_fields__:
            same(getattr(ours, field), getattr(theirs, field), f"{path}.{field}")
    else:
        assert ours == theirs, path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_engine_is_given_the_same_object(served: Any, name: str, dtype: torch.dtype) -> None:
    servicer, stub = served
    request = REQUESTS[name]
    other = object.__new__(TokenSpeedSchedulerServicer)
    theirs = other._mm_inputs_from_proto(request.mm_inputs, model_dtype=dtype)
    call = stub.Generate(request, timeout=GUARD_S)
    submission = take(servicer)
    ours = TokenSpeedMedia(Frontend(dtype)).inputs(read(submission))
    servicer.push([(submission.handle, 0, [1], "length", 32, 1, 0)])
    assert len(list(call)) == 2
    same(ours, theirs, "inputs")


def test_shared_memory_gives_the_tensor_and_no_segment_is_left(served: Any) -> None:
    servicer, stub = served
    request = request_with({"input": None, "tensors": {"image_grid_thw": ("int64", (1, 3))}})
    value = sample("float32", (64, 64))
    path = Path(f"/dev/shm/roomkeeper-engines-{next(_numbers)}")
    path.write_bytes(value.numpy().tobytes())
    tensor = request.mm_inputs.items[0].encoder_input
    tensor.shape.extend(value.shape)
    tensor.dtype = "float32"
    tensor.shm.name, tensor.shm.nbytes, tensor.shm.owner_id = path.name, value.nbytes, "smg:1"
    call = stub.Generate(request, timeout=GUARD_S)
    submission = take(servicer)
    assert not path.exists()
    ours = TokenSpeedMedia(Frontend(torch.float32)).inputs(read(submission))
    servicer.push([(submission.handle, 0, [1], "length", 32, 1, 0)])
    assert len(list(call)) == 2
    same(ours.mm_items[0].feature, value, "feature")
    # The engine publishes a segment of its own, and ends it: what it does with every tensor.
    ours.publish_shm_features()
    assert ours.has_pending_shm_features()
    ours.attach_shm_features()
    ours.release_shm_features()


@pytest.mark.parametrize("pixel_shm", ["0", "1"])
def test_the_encode_worker_is_given_the_same_item(
    encoding: Any, monkeypatch: pytest.MonkeyPatch, pixel_shm: str
) -> None:
    monkeypatch.setenv("EPD_PIXEL_SHM", pixel_shm)
    servicer, stub = encoding
    request = tokenspeed_encoder_pb2.EncodeRequest(request_id="e")
    add(request.mm_inputs, tensors={"image_grid_thw": ("int64", (1, 3))})
    request.items.add(bootstrap_room=77)
    frontend = Frontend(mode="encode")
    other = object.__new__(TokenSpeedEncoderServicer)
    other.async_llm, other._pixel_shm = frontend, False
    theirs = other._items_from_proto(request.mm_inputs, 77)
    call = stub.Encode.future(request, timeout=GUARD_S)
    encode = take(servicer)

    async def carry_out() -> None:
        encodes = Encodes(frontend, servicer)
        encodes.put(encode)
        await asyncio.gather(*encodes._tasks)

    asyncio.run(carry_out())
    assert call.result(GUARD_S).accepted
    (given,) = frontend.encoded
    assert (given.bootstrap_port, given.bootstrap_room) == (8999, 77)
    assert given.bootstrap_host
    assert given.request_id.startswith("e~")
    (item,) = given.items
    if pixel_shm == "1":
        assert item.feature is None
        item.feature_shm.attach()
        item.feature = torch.frombuffer(
            bytearray(item.feature_shm._segment.buf[: item.feature_shm.nbytes()]),
            dtype=item.feature_shm.dtype,
        ).reshape(item.feature_shm.shape)
        item.feature_shm.release()
        item.feature_shm = None
    same(item, theirs[0], "item")


def test_an_item_that_the_engine_does_not_take_leaves_no_segment(
    encoding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPD_PIXEL_SHM", "1")
    servicer, stub = encoding
    request = tokenspeed_encoder_pb2.EncodeRequest()
    add(request.mm_inputs)
    request.items.add(bootstrap_room=78)
    frontend = Frontend(mode="encode")
    names: list[str] = []

    def fail(given: Any) -> None:
        names.append(given.items[0].feature_shm.shm_name)
        assert Path("/dev/shm", names[0]).exists()
        raise RuntimeError("the engine tripped")

    frontend.submit_encode = fail  # type: ignore[method-assign]
    call = stub.Encode.future(request, timeout=GUARD_S)
    encode = take(servicer)

    async def carry_out() -> None:
        encodes = Encodes(frontend, servicer)
        encodes.put(encode)
        await asyncio.gather(*encodes._tasks)

    asyncio.run(carry_out())
    with pytest.raises(grpc.RpcError) as error:
        call.result(GUARD_S)
    assert error.value.code() == grpc.StatusCode.INTERNAL
    assert names and not Path("/dev/shm", names[0]).exists()


CONFIGS: dict[str, Any] = {
    "text": SimpleNamespace(
        is_multimodal_active=False, hf_config=SimpleNamespace(audio_token_id=1)
    ),
    "images": SimpleNamespace(is_multimodal=True, hf_config=SimpleNamespace(model_type="qwen")),
    "images and videos": SimpleNamespace(
        is_multimodal=True, hf_config=SimpleNamespace(model_type="qwen", video_token_id=3)
    ),
    "a tower for audio": SimpleNamespace(
        is_multimodal=True,
        hf_config=SimpleNamespace(model_type="x", audio_config={"a": 1}, audio_token_id=4),
    ),
    "an audio model": SimpleNamespace(
        is_audio_model=True, hf_config=SimpleNamespace(model_type="x", audio_token_id=4)
    ),
    "an audio model without a token": SimpleNamespace(
        is_audio_model=True, hf_config=SimpleNamespace(model_type="x")
    ),
    "omni": SimpleNamespace(
        hf_config=SimpleNamespace(
            model_type="qwen3_omni_moe",
            thinker_config={"vision_config": {}, "audio_config": {}, "video_token_id": 0},
        )
    ),
    "asr": SimpleNamespace(
        hf_config=SimpleNamespace(
            model_type="qwen3_asr", thinker_config=SimpleNamespace(audio_config={})
        )
    ),
    "inkling": SimpleNamespace(
        hf_config=SimpleNamespace(
            model_type="inkling_mm_model",
            vision_config={"decoder_dmodel": 4},
            audio_config=SimpleNamespace(decoder_dmodel=None),
        )
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_modalities_are_read_as_the_python_servicer_reads_them(name: str) -> None:
    model = CONFIGS[name]
    theirs = TokenSpeedSchedulerServicer._static_supported_modalities(model, model.hf_config)
    assert sorted(modalities_of(model)) == sorted(theirs)
