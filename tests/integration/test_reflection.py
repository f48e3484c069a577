"""grpc.reflection.v1 and v1alpha, asked as a generic client asks."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from harness.byhand import by_hand
from harness.client import GUARD_S, WIRE, Client, until
from roomkeeper import wire

VERSIONS = {"v1": wire.REFLECTION, "v1alpha": wire.REFLECTION_ALPHA}


def _ask(client: Client, version: str, *questions: dict[str, Any]) -> list[Any]:
    service = VERSIONS[version]
    stub = WIRE.stub(client.channel, service)
    kind = WIRE.message(f"grpc.reflection.{version}.ServerReflectionRequest")
    made = [kind(**question) for question in questions]
    return list(stub.ServerReflectionInfo(iter(made), timeout=GUARD_S))


def _files(answer: Any) -> list[descriptor_pb2.FileDescriptorProto]:
    return [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_lists_every_service_that_is_served(version: str) -> None:
    with by_hand() as worker:
        (answer,) = _ask(worker.client, version, {"list_services": ""})
        names = {service.name for service in answer.list_services_response.service}
        elsewhere = ("roomkeeper.", "tokenspeed.grpc.encoder.")
        served = {name for name in WIRE.services if not name.startswith(elsewhere)}
        # The room link has a listener of its own; Encode is served by encode workers alone.
        assert names == served


@pytest.mark.parametrize("version", VERSIONS)
def test_what_it_gives_is_enough_to_make_a_call(version: str) -> None:
    """As grpcurl does: find the service, fetch what it needs, build the messages, call."""
    with by_hand(window=9) as worker:
        pool = descriptor_pool.DescriptorPool()
        fetched: set[str] = set()

        def fetch(question: dict[str, Any]) -> None:
            (answer,) = _ask(worker.client, version, question)
            for file in _files(answer):
                if file.name in fetched:
                    continue
                fetched.add(file.name)
                for dependency in file.dependency:
                    if dependency not in fetched:
                        fetch({"file_by_filename": dependency})
                pool.AddSerializedFile(file.SerializeToString())

        fetch({"file_containing_symbol": wire.TOKENSPEED})
        method = pool.FindServiceByName(wire.TOKENSPEED).methods_by_name["GetLoads"]
        answer_class = wire._message_class(pool, method.output_type)
        call = worker.client.channel.unary_unary(f"/{wire.TOKENSPEED}/GetLoads")
        answer = answer_class.FromString(call(b"", timeout=GUARD_S))
        assert answer.loads[0].max_running_requests == 9


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "symbol",
    [
        wire.TOKENSPEED,
        f"{wire.TOKENSPEED}.Generate",
        "tokenspeed.grpc.scheduler.GenerateRequest",
        "tokenspeed.grpc.scheduler.GenerateRequest.request_id",
        "grpc.health.v1.Health",
    ],
)
def test_symbols_are_found_down_to_methods_and_fields(version: str, symbol: str) -> None:
    with by_hand() as worker:
        (answer,) = _ask(worker.client, version, {"file_containing_symbol": symbol})
        assert _files(answer), answer


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_there_is_an_answer_and_the_stream_goes_on(version: str) -> None:
    with by_hand() as worker:
        answers = _ask(
            worker.client,
            version,
            {"file_containing_symbol": "no.such.Symbol"},
            {"file_by_filename": "no/such.proto"},
            {"list_services": ""},
        )
        assert [answer.WhichOneof("message_response") for answer in answers] == [
            "error_response",
            "error_response",
            "list_services_response",
        ]
        assert answers[0].error_response.error_code == 5
        assert answers[0].original_request.file_containing_symbol == "no.such.Symbol"


def test_a_question_that_is_no_message_ends_its_stream_only() -> None:
    with by_hand() as worker:
        path = f"/{wire.REFLECTION}/ServerReflectionInfo"
        call = worker.client.channel.stream_stream(path)(iter([b"\xff\xff"]), timeout=GUARD_S)
        with pytest.raises(Exception, match="INVALID_ARGUMENT"):
            list(call)
        assert _ask(worker.client, "v1", {"list_services": ""})


def test_answers_come_while_the_stream_stays_open_and_a_stop_ends_it() -> None:
    with by_hand() as worker:
        questions: queue.Queue[bytes | None] = queue.Queue()
        kind = WIRE.message("grpc.reflection.v1.ServerReflectionRequest")

        def asked() -> Iterator[Any]:
            while questions.get() is not None:
                yield kind(list_services="")

        stub = WIRE.stub(worker.client.channel, wire.REFLECTION)
        call = stub.ServerReflectionInfo(asked(), timeout=GUARD_S)
        for _ in range(3):
            questions.put(b"")
            assert next(call).list_services_response.service
        worker.servicer.stop()
        with pytest.raises(Exception, match="UNAVAILABLE|CANCELLED"):
            next(call)
        questions.put(None)
        until(lambda: worker.servicer.open_calls() == 0, "nothing is open")
