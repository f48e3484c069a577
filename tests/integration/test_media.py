"""Multimodal inputs, from a client through the servicer into the stand-in engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from media_support import add_image, inline, pixels, refusal, segments
from standin_support import (
    GUARD_S,
    StandinWorker,
    complete,
    message,
    new_room,
    standin,
    standin_pair,
    until,
)

__all__ = ["segments"]

PROMPT = list(range(10, 20))
TOKENS = 6


@pytest.fixture(scope="module")
def worker() -> Iterator[StandinWorker]:
    with standin("--multimodal", "--step-ms", "1", "--max-num-seqs", "4") as made:
        yield made


def asked(worker: StandinWorker, **fields: Any) -> Any:
    return worker.request(PROMPT, TOKENS, **fields)


def answered(worker: StandinWorker, request: Any) -> list[int]:
    return list(complete(list(worker.stub.Generate(request, timeout=GUARD_S))).output_ids)


def with_image(worker: StandinWorker, payload: bytes) -> Any:
    request = asked(worker)
    add_image(request.mm_inputs, payload)
    return request


# -- what arrives --


def test_the_engine_sees_every_part_of_an_item(worker: StandinWorker) -> None:
    seen = [answered(worker, asked(worker))]
    seen.append(answered(worker, with_image(worker, pixels(1))))
    assert answered(worker, with_image(worker, pixels(1))) == seen[-1]
    seen.append(answered(worker, with_image(worker, pixels(2))))
    other_hash = with_image(worker, pixels(1))
    other_hash.mm_inputs.items[0].content_hash = b"other"
    seen.append(answered(worker, other_hash))
    other_shape = with_image(worker, pixels(1))
    other_shape.mm_inputs.items[0].encoder_input.shape[:] = [12]
    seen.append(answered(worker, other_shape))
    more = with_image(worker, pixels(1))
    inline(more.mm_inputs.items[0].model_specific_tensors["sizes"], pixels(9, 2))
    seen.append(answered(worker, more))
    two = with_image(worker, pixels(1))
    add_image(two.mm_inputs, pixels(2), at=(4, 2))
    seen.append(answered(worker, two))
    swapped = with_image(worker, pixels(2))
    add_image(swapped.mm_inputs, pixels(1), at=(4, 2))
    seen.append(answered(worker, swapped))
    assert len({tuple(tokens) for tokens in seen}) == len(seen)


def test_each_choice_gets_the_items(worker: StandinWorker) -> None:
    one = answered(worker, with_image(worker, pixels(1)))
    request = with_image(worker, pixels(1))
    request.sampling_params.n = 3
    answers = list(worker.stub.Generate(request, timeout=GUARD_S))
    assert [list(answer.complete.output_ids) for answer in answers] == [one] * 3


def test_shared_memory_says_the_same_as_the_message_and_is_gone(
    worker: StandinWorker, segments: Any
) -> None:
    wanted = answered(worker, with_image(worker, pixels(3)))
    segment = segments(pixels(3))
    request = with_image(worker, pixels(3))
    request.mm_inputs.items[0].encoder_input.Clear()
    segment.into(request.mm_inputs.items[0].encoder_input, shape=(3, 4))
    assert answered(worker, request) == wanted
    assert not segment.is_there


@pytest.mark.parametrize("n", [1, 3])
def test_several_tensors_may_share_a_segment_at_offsets(
    worker: StandinWorker, segments: Any, n: int
) -> None:
    def made() -> Any:
        request = asked(worker)
        request.sampling_params.n = n
        add_image(request.mm_inputs, pixels(5))
        add_image(request.mm_inputs, pixels(6), at=(4, 2))
        return request

    wanted = list(worker.stub.Generate(made(), timeout=GUARD_S))
    segment = segments(b"x" * 8 + pixels(5) + pixels(6))
    request = made()
    for i, item in enumerate(request.mm_inputs.items):
        item.encoder_input.Clear()
        size = len(pixels(0))
        segment.into(item.encoder_input, offset=8 + i * size, nbytes=size, shape=(3, 4))
    request.mm_inputs.items[0].encoder_input.shm.name = f"/{segment.name}"
    answers = list(worker.stub.Generate(request, timeout=GUARD_S))
    assert [a.complete.output_ids for a in answers] == [a.complete.output_ids for a in wanted]
    assert not segment.is_there


def test_a_tensor_of_many_megabytes_arrives(worker: StandinWorker, segments: Any) -> None:
    payload = os.urandom(24 << 20)
    request = with_image(worker, payload)
    wanted = answered(worker, request)
    segment = segments(payload)
    request.request_id = "again"
    request.mm_inputs.items[0].encoder_input.Clear()
    segment.into(request.mm_inputs.items[0].encoder_input, shape=(3, len(payload) // 12))
    assert answered(worker, request) == wanted
    assert not segment.is_there


def test_a_prefill_sees_and_its_decode_says_what_an_aggregated_worker_says(
    worker: StandinWorker,
) -> None:
    wanted = answered(worker, with_image(worker, pixels(4)))
    with standin_pair("--multimodal", "--step-ms", "1") as (prefill, decode, port):
        legs = [with_image(worker, pixels(4)), asked(worker)]
        legs[1].request_id = legs[0].request_id
        add_image(legs[1].mm_inputs)  # as gateways send it: without what the tower sees
        room = new_room()
        for leg in legs:
            leg.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
            leg.kv_bootstrap_info.bootstrap_port = port
            leg.kv_bootstrap_info.bootstrap_room = room
        first = prefill.stub.Generate(legs[0], timeout=GUARD_S)
        assert answered(decode, legs[1]) == wanted
        assert complete(list(first)).output_ids[0] == wanted[0]


# -- what is refused --


def test_a_model_that_reads_text_refuses_them_and_the_segment_is_gone(segments: Any) -> None:
    with standin("--step-ms", "1") as text_only:
        segment = segments(pixels(1))
        request = with_image(text_only, pixels(1))
        segment.into(request.mm_inputs.items[0].model_specific_tensors["more"])
        error = refusal(lambda: text_only.stub.Generate(request, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "text" in error.details()
        assert not segment.is_there
        info = text_only.stub.GetModelInfo(message("GetModelInfoRequest")(), timeout=GUARD_S)
        assert not info.supports_multimodal and not info.supported_modalities


def _bad_fields() -> dict[str, Any]:
    """By what the refusal says: what is done to a request with one image."""
    return {
        "mm_inputs.items is empty": lambda r: r.mm_inputs.ClearField("items"),
        "items[0].modality is 0": lambda r: setattr(r.mm_inputs.items[0], "modality", 0),
        "items[0].placeholders is empty": lambda r: r.mm_inputs.items[0].ClearField("placeholders"),
        "placeholders[0] is 9 to 10": lambda r: setattr(
            r.mm_inputs.items[0].placeholders[0], "offset", 9
        ),
        'dtype is "float3"': lambda r: setattr(
            r.mm_inputs.items[0].encoder_input, "dtype", "float3"
        ),
        "inline has 47 bytes; its shape and dtype make 48": lambda r: setattr(
            r.mm_inputs.items[0].encoder_input, "inline", pixels(1)[:-1]
        ),
        "has no encoder_input and no encode_bootstrap_info": lambda r: r.mm_inputs.items[
            0
        ].ClearField("encoder_input"),
        "temperature is -1": lambda r: setattr(r.sampling_params, "temperature", -1),
        "video_grid_thw": lambda r: inline(
            r.mm_inputs.items[0].model_specific_tensors["video_grid_thw"], pixels(1)
        ),
    }


@pytest.mark.parametrize("says", _bad_fields())
def test_a_refused_request_s_segments_are_gone(
    worker: StandinWorker, segments: Any, says: str
) -> None:
    request = with_image(worker, pixels(1))
    _bad_fields()[says](request)
    segment, other = segments(pixels(7)), segments(pixels(8))
    item = request.mm_inputs.items[0] if request.mm_inputs.items else add_image(request.mm_inputs)
    segment.into(item.model_specific_tensors["more"])
    wanted = says
    if says == "mm_inputs.items is empty":
        request = asked(worker)
        request.mm_inputs.SetInParent()
        segment.remove()
        other.remove()
    else:
        if "encoder_input" not in says and "inline" not in says and "dtype" not in says:
            item.encoder_input.Clear()
            other.into(item.encoder_input, shape=(3, 4))
        else:
            other.remove()
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert wanted in error.details()
    assert not segment.is_there and not other.is_there


@pytest.mark.parametrize("name", ["", "..", "a/b", "../etc/passwd", "a\0b", "/", "x" * 256])
def test_a_name_that_is_no_plain_file_s_is_refused(worker: StandinWorker, name: str) -> None:
    request = with_image(worker, pixels(1))
    tensor = request.mm_inputs.items[0].model_specific_tensors["more"]
    tensor.dtype = "uint8"
    tensor.shape.append(4)
    tensor.shm.name, tensor.shm.nbytes = name, 4
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "shm.name" in error.details()


def _shm_request(worker: StandinWorker, segment: Any, **kinds: Any) -> Any:
    request = with_image(worker, pixels(1))
    segment.into(request.mm_inputs.items[0].model_specific_tensors["more"], **kinds)
    return request


def test_a_segment_is_handed_over_once(worker: StandinWorker, segments: Any) -> None:
    request = _shm_request(worker, segments(pixels(1)))
    answered(worker, request)
    request.request_id = "once more"
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "is not in this worker's /dev/shm" in error.details()


def test_a_segment_that_is_too_short_is_refused_and_gone(
    worker: StandinWorker, segments: Any
) -> None:
    segment = segments(pixels(1))
    request = _shm_request(worker, segment)
    request.mm_inputs.items[0].model_specific_tensors["more"].shm.offset = 4
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "has 48 bytes; offset and nbytes need 52" in error.details()
    assert not segment.is_there


def test_a_link_and_what_is_no_file_are_left_alone(
    worker: StandinWorker, segments: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(pixels(1))
    for make in (lambda path: path.symlink_to(secret), os.mkfifo, os.mkdir):
        segment = segments(pixels(1))
        segment.remove()
        make(segment.path)
        request = _shm_request(worker, segment)
        error = refusal(lambda request=request: worker.stub.Generate(request, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "is no regular file" in error.details()
        assert segment.is_there and secret.exists()
        if segment.path.is_dir() and not segment.path.is_symlink():
            segment.path.rmdir()


def test_remote_tensors_of_unknown_transport_are_refused_by_name(worker: StandinWorker) -> None:
    request = with_image(worker, pixels(1))
    tensor = request.mm_inputs.items[0].encoder_input
    tensor.remote.transport, tensor.remote.descriptor, tensor.remote.nbytes = "pigeon", b"x", 48
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert 'transport is "pigeon"; nixl is the one' in error.details()
    tensor.remote.transport = "nixl"
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "remote" in error.details()


def test_encode_bootstrap_info_needs_items_that_it_is_about(worker: StandinWorker) -> None:
    request = asked(worker)
    request.encode_bootstrap_info.items.add()
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "mm_inputs" in error.details()
    add_image(request.mm_inputs)
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "aggregated" in error.details()


# -- while it waits, and when it is cancelled --


def open_segments(worker: StandinWorker) -> list[str]:
    """Removed files under /dev/shm that the worker still holds."""
    links = []
    for entry in Path(f"/proc/{worker.child.pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return [link for link in links if "roomkeeper-test-" in link]


def test_segments_of_legs_in_line_are_gone_at_once_and_held_until_their_turn(
    segments: Any,
) -> None:
    flags = ("--role", "decode", "--multimodal", "--max-num-seqs", "1", "--step-ms", "1")
    with standin(*flags, "--room-link", "off", "--room-waiting", "1") as decode:

        def leg() -> tuple[Any, Any]:
            segment = segments(pixels(1))
            request = decode.request(PROMPT, TOKENS)
            item = add_image(request.mm_inputs)
            segment.into(item.model_specific_tensors["more"])
            info = request.kv_bootstrap_info
            info.bootstrap_host, info.bootstrap_port = "127.0.0.1", 1
            info.bootstrap_room = new_room()
            return request, segment

        requests = [leg() for _ in range(3)]
        calls = [decode.stub.Generate(requests[0][0], timeout=GUARD_S)]
        calls[0].initial_metadata()  # admitted
        until(lambda: not open_segments(decode), "the admitted leg's segment is read and closed")
        calls.append(decode.stub.Generate(requests[1][0], timeout=GUARD_S))
        until(lambda: len(open_segments(decode)) == 1, "the waiting leg's segment is held")
        error = refusal(lambda: decode.stub.Generate(requests[2][0], timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any(segment.is_there for _, segment in requests)
        until(lambda: len(open_segments(decode)) == 1, "the refused leg holds nothing")
        calls[1].cancel()
        until(lambda: not open_segments(decode), "a cancelled leg holds nothing")
        calls[0].cancel()


def test_what_an_encode_worker_of_the_model_would_take_is_told(worker: StandinWorker) -> None:
    info = worker.stub.GetModelInfo(message("GetModelInfoRequest")(), timeout=GUARD_S)
    assert info.supports_vision and info.supports_multimodal
    assert sorted(info.supported_modalities) == [1, 2, 3]
    assert info.multimodal_encoder_dtype == "float32"


def test_requests_of_many_clients_at_a_time_get_their_own_items(worker: StandinWorker) -> None:
    wanted = {seed: answered(worker, with_image(worker, pixels(seed))) for seed in range(8)}
    got: dict[int, list[int]] = {}

    def ask(seed: int) -> None:
        got[seed] = answered(worker, with_image(worker, pixels(seed)))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    assert got == wanted
