"""When response headers go out: a gateway takes them for "started", and a silent prefill for wedged.

Seen frame by frame, since gRPC's own clients do not tell a status alone from headers and a status.
"""

from __future__ import annotations

import pytest

from harness.byhand import by_hand
from harness.client import GENERATE, QUIET_S, message, request, until
from harness.http2 import Connection


def _response(data: bytes) -> object:
    return message("GenerateResponse").FromString(data)


def test_a_decodes_headers_come_with_its_admission_and_not_earlier() -> None:
    with by_hand("decode", window=1) as worker, Connection(worker.address) as connection:
        first = connection.call(GENERATE, request("first", room=1).SerializeToString())
        leg = worker.engine.leg("first")
        connection.wait_events(first, 1)
        second = connection.call(GENERATE, request("second", room=2).SerializeToString())
        until(lambda: worker.rank()["waiting"] == 1, "the second waits")
        assert connection.quiet(second, QUIET_S).kinds == []
        leg.finish()
        seen = connection.wait_events(second, 1)
        assert seen.kinds == ["headers"]
        assert seen.headers[":status"] == "200"
        worker.engine.leg("second")
        # Admitted is all that the headers say: no message until the engine has one.
        assert connection.quiet(second, QUIET_S).kinds == ["headers"]
        worker.engine.leg("second").finish()
        assert connection.end(second).status == 0


def test_a_prefill_opens_at_once_with_headers_and_one_empty_chunk() -> None:
    """A prefill that says nothing for 3 s counts as wedged at the gateway."""
    with by_hand("prefill") as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("p", room=1).SerializeToString())
        seen = connection.wait_events(stream, 2)
        assert seen.kinds == ["headers", "data"]
        (first,) = (_response(data) for data in seen.messages())
        assert first.HasField("chunk") and list(first.chunk.token_ids) == []
        assert first.request_id == "p" and first.chunk.index == 0
        worker.engine.leg("p").finish([9])
        seen = connection.end(stream)
        assert [m.WhichOneof("response") for m in map(_response, seen.messages())] == [
            "chunk",
            "chunk",
            "complete",
        ]


def test_a_prefill_that_does_not_stream_still_opens_with_an_empty_chunk() -> None:
    with by_hand("prefill") as worker:
        stream = worker.generate("p", room=1, stream=False)
        (first,) = stream.get(1)
        assert first.HasField("chunk") and list(first.chunk.token_ids) == []
        worker.engine.leg("p").finish([9])
        assert stream.end().name == "OK"
        assert list(stream.complete().output_ids) == [9]


def test_an_aggregated_workers_headers_come_before_the_engine_has_said_anything() -> None:
    with by_hand("null") as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("a").SerializeToString())
        assert connection.wait_events(stream, 1).kinds == ["headers"]
        assert worker.engine.leg("a").given == {}


@pytest.mark.parametrize("role", ["null", "decode", "prefill"])
def test_with_rooms_off_headers_come_with_the_first_message(role: str) -> None:
    """As the engine's own servicer does it."""
    room = None if role == "null" else 1
    with by_hand(role, settings={"rooms": "off"}) as worker:
        with Connection(worker.address) as connection:
            stream = connection.call(GENERATE, request("a", room=room).SerializeToString())
            leg = worker.engine.leg("a")
            assert connection.quiet(stream, QUIET_S).kinds == []
            leg.output([7])
            assert connection.wait_events(stream, 2).kinds == ["headers", "data"]


@pytest.mark.parametrize("rooms", ["on", "off"])
def test_a_refusal_is_a_status_alone(rooms: str) -> None:
    """A gateway retires the other leg at once when the refusal comes before headers."""
    settings: dict[str, object] = {"rooms": rooms}
    with by_hand("decode", settings=settings) as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("", room=1).SerializeToString())
        seen = connection.end(stream)
        assert seen.alone
        assert seen.status == 3


def test_a_full_worker_refuses_with_a_status_alone() -> None:
    with by_hand("decode", window=1, settings={"waiting": 0}) as worker:
        worker.admitted("first", room=1)
        with Connection(worker.address) as connection:
            stream = connection.call(GENERATE, request("second", room=2).SerializeToString())
            seen = connection.end(stream)
            assert seen.alone
            assert seen.status == 8
            assert seen.headers["grpc-retry-pushback-ms"] == "500"


def test_a_leg_that_waited_in_vain_ends_with_a_status_alone() -> None:
    with by_hand("decode", window=1, settings={"wait_seconds": 0.2}) as worker:
        worker.admitted("first", room=1)
        with Connection(worker.address) as connection:
            stream = connection.call(GENERATE, request("second", room=2).SerializeToString())
            seen = connection.end(stream)
            assert seen.alone
            assert seen.status == 8


def test_an_engine_error_before_any_output_comes_behind_the_headers() -> None:
    with by_hand("decode") as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("a", room=1).SerializeToString())
        reason = {"type": "abort", "message": "no pages", "status_code": 503}
        worker.engine.leg("a").output([], reason)
        seen = connection.end(stream)
        assert seen.kinds == ["headers", "headers"]
        assert seen.status == 14
