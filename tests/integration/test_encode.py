"""Encode workers: their own call, what a gateway finds there, and encode, prefill and decode together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2

from media_support import (
    ENCODER,
    add_image,
    encode_request,
    encode_stub,
    pixels,
    refusal,
    segments,
)
from roomkeeper import wire
from standin_support import (
    GUARD_S,
    WIRE,
    StandinWorker,
    complete,
    free_bootstrap_port,
    message,
    new_room,
    standin,
    standin_pair,
)

__all__ = ["segments"]

PROMPT = list(range(10, 20))
TOKENS = 6


@pytest.fixture(scope="module")
def encode_port() -> int:
    return free_bootstrap_port()


@pytest.fixture(scope="module")
def worker(encode_port: int) -> Iterator[StandinWorker]:
    with standin("--role", "encode", "--disaggregation-bootstrap-port", str(encode_port)) as made:
        yield made


# -- Encode --


def test_an_item_is_accepted(worker: StandinWorker, segments: Any) -> None:
    stub = encode_stub(worker)
    assert stub.Encode(encode_request(new_room(), pixels(1)), timeout=GUARD_S).accepted
    segment = segments(pixels(2))
    request = encode_request(0, None, request_id="")
    segment.into(request.mm_inputs.items[0].encoder_input, shape=(3, 4))
    request.mm_inputs.items[0].modality = 0  # an image
    assert stub.Encode(request, timeout=GUARD_S).accepted
    assert not segment.is_there


def _bad() -> dict[str, Any]:
    return {
        "mm_inputs.items has 0 items": lambda r: r.ClearField("mm_inputs"),
        "mm_inputs.items has 2 items": lambda r: add_image(r.mm_inputs, pixels(1)),
        "items has 0 rooms": lambda r: r.ClearField("items"),
        "items has 2 rooms": lambda r: r.items.add(),
        "bootstrap_room is -1": lambda r: setattr(r.items[0], "bootstrap_room", -1),
        "has no encoder_input": lambda r: r.mm_inputs.items[0].ClearField("encoder_input"),
        "placeholders is empty": lambda r: r.mm_inputs.items[0].ClearField("placeholders"),
        "length is 0": lambda r: setattr(r.mm_inputs.items[0].placeholders[0], "length", 0),
        "request_id has 513 bytes": lambda r: setattr(r, "request_id", "x" * 513),
    }


@pytest.mark.parametrize("says", _bad())
def test_what_cannot_be_encoded_is_refused_by_name_and_leaves_no_segment(
    worker: StandinWorker, segments: Any, says: str
) -> None:
    request = encode_request(new_room(), pixels(1))
    segment = segments(pixels(2))
    segment.into(request.mm_inputs.items[0].model_specific_tensors["more"])
    gone = says != "mm_inputs.items has 0 items"  # nothing names it then
    _bad()[says](request)
    error = refusal(lambda: encode_stub(worker).Encode(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.details()
    assert segment.is_there != gone


def test_a_remote_tensor_that_the_engine_cannot_fetch_is_its_refusal(worker: StandinWorker) -> None:
    request = encode_request(new_room(), pixels(1))
    remote = request.mm_inputs.items[0].encoder_input.remote
    remote.descriptor, remote.nbytes = b"where", 48
    error = refusal(lambda: encode_stub(worker).Encode(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "remote" in error.details()


# -- what a gateway finds --


def _reflect(channel: grpc.Channel, **question: str) -> Any:
    made = WIRE.message("grpc.reflection.v1.ServerReflectionRequest")(**question)
    stub = WIRE.stub(channel, wire.REFLECTION)
    (answer,) = stub.ServerReflectionInfo(iter([made]), timeout=GUARD_S)
    return answer


def listed(channel: grpc.Channel) -> set[str]:
    answer = _reflect(channel, list_services="")
    return {service.name for service in answer.list_services_response.service}


def described(channel: grpc.Channel, symbol: str) -> set[str]:
    """The files that come with a symbol."""
    answer = _reflect(channel, file_containing_symbol=symbol)
    files = answer.file_descriptor_response.file_descriptor_proto
    return {descriptor_pb2.FileDescriptorProto.FromString(file).name for file in files}


def test_the_scheduler_service_is_there_to_be_found_and_generates_nothing(
    worker: StandinWorker, segments: Any
) -> None:
    assert worker.is_serving()
    info = worker.stub.GetModelInfo(message("GetModelInfoRequest")(), timeout=GUARD_S)
    assert info.served_model_name and info.supports_vision and info.supports_multimodal
    server = worker.stub.GetServerInfo(message("GetServerInfoRequest")(), timeout=GUARD_S)
    assert server.server_args["disaggregation_mode"] == "encode"
    assert server.scheduler_info["shm_namespace_id"]
    assert server.scheduler_info["roomkeeper"]["role"] == "encode"
    healthy = worker.stub.HealthCheck(message("HealthCheckRequest")(), timeout=GUARD_S)
    assert healthy.healthy
    segment = segments(pixels(1))
    request = worker.request(PROMPT, TOKENS)
    segment.into(add_image(request.mm_inputs).model_specific_tensors["more"])
    error = refusal(lambda: worker.stub.Generate(request, timeout=GUARD_S))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "encode worker" in error.details()
    assert not segment.is_there


@pytest.mark.parametrize("rank", [None, 0, 7])
def test_loads_are_empty_and_well_formed(worker: StandinWorker, rank: int | None) -> None:
    request = message("GetLoadsRequest")()
    if rank is not None:
        request.dp_rank = rank
    loads = worker.stub.GetLoads(request, timeout=GUARD_S)
    assert loads.timestamp and loads.version == "tokenspeed"
    assert loads.dp_rank_count == 0 and not loads.loads
    assert loads.HasField("aggregate") and loads.aggregate.total_reqs == 0


def test_what_needs_a_scheduler_is_refused_without_asking_it(worker: StandinWorker) -> None:
    for name, kind in (("FlushCache", "FlushCacheRequest"), ("StopProfile", "StopProfileRequest")):
        made = WIRE.message(f"smg.grpc.common.{kind}")()
        call = getattr(worker.stub, name)
        error = refusal(lambda call=call, made=made: call(made, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


def test_health_and_reflection_know_the_encoder_where_it_is_served(worker: StandinWorker) -> None:
    check = WIRE.message("grpc.health.v1.HealthCheckRequest")(service=ENCODER)
    assert worker.health.Check(check, timeout=GUARD_S).status == 1
    assert ENCODER in listed(worker.channel)
    assert "tokenspeed_encoder.proto" in described(worker.channel, ENCODER)
    with standin() as other:
        error = refusal(lambda: other.health.Check(check, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert ENCODER not in listed(other.channel)
        error = refusal(
            lambda: encode_stub(other).Encode(encode_request(1, pixels(1)), timeout=GUARD_S)
        )
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


# -- encode, prefill, decode --


def test_three_workers_say_what_one_says_whichever_leg_comes_first(
    worker: StandinWorker, encode_port: int
) -> None:
    with standin("--multimodal", "--step-ms", "1") as aggregated:
        request = aggregated.request(PROMPT, TOKENS)
        add_image(request.mm_inputs, pixels(1))
        add_image(request.mm_inputs, pixels(2), at=(4, 2))
        wanted = list(complete(list(aggregated.stub.Generate(request, timeout=GUARD_S))).output_ids)
    with standin_pair("--multimodal", "--step-ms", "1") as (prefill, decode, port):
        for encode_first in (True, False):
            rooms = [new_room(), new_room()]

            def encode(rooms: list[int] = rooms) -> None:
                for room, seed in zip(rooms, (1, 2), strict=True):
                    assert (
                        encode_stub(worker)
                        .Encode(encode_request(room, pixels(seed)), timeout=GUARD_S)
                        .accepted
                    )

            legs = [prefill.request(PROMPT, TOKENS), decode.request(PROMPT, TOKENS)]
            room = new_room()
            for leg in legs:
                leg.request_id = f"epd-{room}"
                add_image(leg.mm_inputs)
                add_image(leg.mm_inputs, at=(4, 2))
                info = leg.kv_bootstrap_info
                info.bootstrap_host, info.bootstrap_port, info.bootstrap_room = (
                    "127.0.0.1",
                    port,
                    room,
                )
            for index, encode_room in enumerate(rooms):
                legs[0].encode_bootstrap_info.items.add(
                    item_index=index,
                    bootstrap_host="127.0.0.1",
                    bootstrap_port=encode_port,
                    bootstrap_room=encode_room,
                )
            if encode_first:
                encode()
            first = prefill.stub.Generate(legs[0], timeout=GUARD_S)
            answers: list[Any] = []
            second = threading.Thread(
                target=lambda leg=legs[1], into=answers: into.extend(
                    decode.stub.Generate(leg, timeout=GUARD_S)
                )
            )
            second.start()
            if not encode_first:
                encode()
            second.join(GUARD_S)
            assert list(complete(answers).output_ids) == wanted
            assert complete(list(first)).output_ids[0] == wanted[0]


def test_a_prefill_whose_item_is_never_encoded_fails_at_its_own_deadline(
    encode_port: int, worker: StandinWorker
) -> None:
    assert worker.is_serving()
    flags = ("--multimodal", "--bootstrap-timeout", "0.3", "--room-link", "off")
    with standin_pair(*flags) as (prefill, _, port):
        leg = prefill.request(PROMPT, TOKENS)
        add_image(leg.mm_inputs)
        info = leg.kv_bootstrap_info
        info.bootstrap_host, info.bootstrap_port, info.bootstrap_room = (
            "127.0.0.1",
            port,
            new_room(),
        )
        leg.encode_bootstrap_info.items.add(
            bootstrap_host="127.0.0.1", bootstrap_port=encode_port, bootstrap_room=new_room()
        )
        error = refusal(lambda: prefill.stub.Generate(leg, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.INTERNAL
        leg.encode_bootstrap_info.items[0].item_index = 1
        error = refusal(lambda: prefill.stub.Generate(leg, timeout=GUARD_S))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "item_index is 1; mm_inputs has 1 items" in error.details()
