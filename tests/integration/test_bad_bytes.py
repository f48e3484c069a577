"""Bytes that are no message, or lie about it: each is an answer, none is harm."""

from __future__ import annotations

import os
import random
import struct

import pytest

from harness.byhand import by_hand
from harness.client import GENERATE, Client, request, until
from harness.http2 import DATA, END_STREAM, Connection, grpc_message
from harness.process import c_standin
from roomkeeper import wire

ABORT = f"/{wire.TOKENSPEED}/Abort"
LOADS = f"/{wire.TOKENSPEED}/GetLoads"
SERVER_INFO = f"/{wire.TOKENSPEED}/GetServerInfo"
MODEL_INFO = f"/{wire.TOKENSPEED}/GetModelInfo"
HEALTH_CHECK = f"/{wire.TOKENSPEED}/HealthCheck"
CHECK = "/grpc.health.v1.Health/Check"
EVERY = (GENERATE, ABORT, LOADS, SERVER_INFO, MODEL_INFO, HEALTH_CHECK, CHECK)


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def nested_struct(depth: int) -> bytes:
    """A google.protobuf.Value of lists in lists."""
    value = b""
    for _ in range(depth):
        value = field(6, field(1, value))
    return value


def with_custom_params(value: bytes) -> bytes:
    """A request whose custom_params has this Value under "k"."""
    struct_ = field(1, field(1, b"k") + field(2, value))
    return request("deep").SerializeToString() + field(3, field(21, struct_))


BOOTSTRAP = 11 << 3 | 2
GOOD = request("good").SerializeToString()

#: name -> bytes, and words that the answer has.
BAD = {
    "no protobuf": (b"\xff\xff\xff\xff\xff\xff", ""),
    "a field number of 0": (b"\x00\x01", ""),
    "a group": (GOOD + b"\x0b\x0c", ""),
    "wire type 6": (GOOD + b"\x0e\x00", ""),
    "truncated": (GOOD[:-1], ""),
    "a length beyond the end": (b"\x0a\x7fabc", "byte 0 of its 5"),
    "a length of 2^63": (b"\x0a" + b"\xff" * 8 + b"\x7f", ""),
    "a varint that never ends": (b"\x20" + b"\xff" * 11, ""),
    "a number where a text belongs": (b"\x08\x01", "request_id"),
    "a text where a number belongs": (GOOD + field(8, b"yes"), "stream"),
    "a message where a text belongs": (b"\x0d\x01\x02\x03\x04", "request_id"),
    "a wrong type inside": (GOOD + field(3, varint(8 << 3 | 5) + b"\0\0\0\0"), "max_new_tokens"),
    "invalid UTF-8 in request_id": (field(1, b"\xff\xfe"), "request_id"),
    "overlong UTF-8": (field(1, b"\xc0\xaf"), "request_id"),
    "a surrogate": (field(1, b"\xed\xa0\x80"), "request_id"),
    "invalid UTF-8 in stop": (GOOD + field(3, field(10, b"\xc3")), "stop"),
    "invalid UTF-8 in a bias": (GOOD + field(3, field(16, field(1, b"\xff"))), "logit_bias"),
    "invalid UTF-8 in the host": (GOOD + field(11, field(1, b"\xff\x00")), "bootstrap_host"),
    "input_ids cut in the middle": (field(1, b"x") + field(2, field(1, b"\x05\xff")), "input_ids"),
    "an input id wider than 32 bits": (
        field(1, b"x") + field(2, field(1, varint(2**40))),
        "input_ids",
    ),
    "nesting of 65": (with_custom_params(nested_struct(70)), "64"),
    "nesting of 20000": (with_custom_params(nested_struct(20_000)), "64"),
}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_request_are_refused_and_the_worker_lives(name: str) -> None:
    """grpc/grpc#29011 and its kin."""
    data, words = BAD[name]
    with by_hand() as worker:
        status = worker.client.raw(GENERATE, data)
        assert status.name == "INVALID_ARGUMENT", status
        assert words in status.details
        assert "\n" not in status.details and status.details
        assert worker.engine.legs == []
        stream, leg = worker.admitted("after")
        leg.finish()
        assert stream.end().name == "OK"


@pytest.mark.parametrize("path", EVERY)
def test_every_rpc_refuses_bytes_that_are_no_message(path: str) -> None:
    with by_hand() as worker:
        for data in (b"\xff\xff\xff", b"\x0a\x7f", b"\x00"):
            assert worker.client.raw(path, data).name == "INVALID_ARGUMENT"
        assert worker.client.loads().dp_rank_count == 1


@pytest.mark.parametrize("path", EVERY)
def test_fields_that_nobody_knows_are_skipped(path: str) -> None:
    """A newer client may send them."""
    unknown = (
        varint(1000 << 3) + varint(7) + field(1001, b"\xff\xfe") + varint(1002 << 3 | 1) + b"8" * 8
    )
    with by_hand() as worker:
        data = unknown + (GOOD if path == GENERATE else b"")
        if path == GENERATE:
            stream = worker.client.channel.unary_stream(path)(data)
            worker.engine.leg("good").finish()
            assert list(stream)
        elif path == ABORT:
            assert worker.client.raw(path, data + field(1, b"nobody")).name == "OK"
        else:
            assert worker.client.raw(path, data).name == "OK"


def test_a_room_that_is_too_wide_for_its_field_is_refused_not_narrowed() -> None:
    """sgl-project/sglang#25185: a stock parser would meet in another room."""
    bootstrap = field(1, b"127.0.0.1") + varint(2 << 3) + varint(8998)
    with by_hand("decode") as worker:
        wide = bootstrap + varint(3 << 3) + b"\xff" * 9 + b"\x7f"  # 70 bits
        status = worker.client.raw(GENERATE, GOOD + field(11, wide))
        assert status.name == "INVALID_ARGUMENT" and "kv_bootstrap_info" in status.details
        port = (
            field(1, b"127.0.0.1")
            + varint(2 << 3)
            + varint(2**40 + 8998)
            + varint(3 << 3 | 0)
            + b"\x07"
        )
        status = worker.client.raw(GENERATE, GOOD + field(11, port))
        assert status.name == "INVALID_ARGUMENT" and "bootstrap_port" in status.details
        assert worker.engine.legs == []


def test_a_message_over_the_limit_is_refused_and_the_connection_lives_on() -> None:
    settings: dict[str, object] = {"max_message_bytes": 1 << 20}
    with by_hand(settings=settings) as worker:
        open_stream, leg = worker.admitted("open")
        status = worker.client.raw(GENERATE, b"\0" * ((1 << 20) + 1))
        assert status.name == "RESOURCE_EXHAUSTED"
        leg.finish()
        assert open_stream.end().name == "OK"
        many = worker.generate("many", input_ids=[7] * 500_000)
        worker.engine.leg("many").finish()
        assert many.end().name == "OK"


def test_the_default_limit_lets_a_large_prompt_in() -> None:
    with by_hand() as worker:
        stream = worker.generate("r", input_ids=[70_000] * 2_000_000)
        leg = worker.engine.leg("r")
        assert leg.submission.input_count == 2_000_000
        leg.finish()
        assert stream.end().name == "OK"


def test_a_length_that_lies_is_an_error_and_no_request() -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        for length in (300 << 20, 2**32 - 1, len(GOOD) + 1):
            stream = connection.open(GENERATE)
            connection.data(stream, grpc_message(GOOD, length=length), end=True)
            assert connection.end(stream).status != 0
        assert worker.engine.legs == []
        other = connection.call(LOADS, b"")
        assert connection.end(other).status == 0


@pytest.mark.parametrize("path", [GENERATE, ABORT, LOADS, HEALTH_CHECK, CHECK])
def test_a_half_close_without_a_message_is_refused(path: str) -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        stream = connection.open(path)
        connection.frame(DATA, END_STREAM, stream)
        seen = connection.end(stream)
        assert seen.status == 3
        at_once = connection.open(path, end=True)
        assert connection.end(at_once).status == 3
        assert worker.client.loads().dp_rank_count == 1


def test_headers_and_nothing_more_keep_nobody_waiting() -> None:
    """A call that never sends its message holds its own stream and nothing else."""
    with by_hand() as worker, Connection(worker.address) as connection:
        silent = [connection.open(GENERATE) for _ in range(50)]
        stream, leg = worker.admitted("r")
        leg.finish()
        assert stream.end().name == "OK"
        for number in silent:
            connection.reset(number)
        until(lambda: worker.servicer.open_calls() == 0, "they are gone")


def test_a_message_cut_off_by_the_half_close_is_an_error_and_no_request() -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        stream = connection.open(GENERATE)
        connection.data(stream, grpc_message(GOOD)[:-3], end=True)
        assert connection.end(stream).status > 0
        worker.engine.quiet()
        assert worker.engine.legs == []


def test_a_message_that_claims_a_compression_it_has_not_is_an_error_and_no_request() -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        stream = connection.open(GENERATE, extra={"grpc-encoding": "gzip"})
        connection.data(stream, grpc_message(b"no gzip at all", compressed=1), end=True)
        assert connection.end(stream).status != 0
        worker.engine.quiet()
        assert worker.engine.legs == []
        other = connection.call(LOADS, b"")
        assert connection.end(other).status == 0


@pytest.mark.parametrize("algorithm", [1, 2])
def test_compressed_requests_are_read(algorithm: int) -> None:
    """deflate and gzip, as gRPC's clients send them when told to."""
    import grpc

    with by_hand() as worker:
        compression = grpc.Compression.Deflate if algorithm == 1 else grpc.Compression.Gzip
        made = request("r", input_ids=[7] * 5000)
        call = worker.client.scheduler.Generate(made, compression=compression)
        leg = worker.engine.leg("r")
        assert leg.submission.input_count == 5000
        leg.finish()
        assert list(call)[-1].complete.finish_reason == "length"


def test_two_messages_in_a_call_are_no_reason_to_stumble() -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        stream = connection.open(GENERATE)
        twice = grpc_message(GOOD) + grpc_message(request("second").SerializeToString())
        connection.data(stream, twice, end=True)
        worker.engine.leg("good").finish()
        assert connection.end(stream).status == 0
        assert worker.engine.order == ["good"]


def test_what_is_no_grpc_at_all_is_turned_away() -> None:
    with by_hand() as worker:
        for noise in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            os.urandom(4096),
            b"\0" * 4096,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
        ):
            with Connection(worker.address, preface=False) as connection:
                try:
                    connection.socket.sendall(noise)
                except OSError:
                    pass
                assert connection.wait_closed()
        assert worker.client.loads().dp_rank_count == 1


def test_random_changes_to_a_request_never_bring_the_worker_down() -> None:
    """Against a plain process, so that a crash is seen as one."""
    full = request(
        "fuzz",
        sampling={"temperature": 0.5, "stop": ["a"], "max_new_tokens": 2, "n": 2},
        return_logprob=True,
        token_ids_logprob=[1, 2],
    )
    full.sampling_params.logit_bias["7"] = 1.0
    full.sampling_params.custom_params["k"] = [1, {"x": "y"}]
    base = full.SerializeToString()
    chance = random.Random(20240611)
    with c_standin("--tokens", "2") as (started, address), Client(address) as client:
        generate = client.channel.unary_stream(GENERATE)
        for _ in range(1500):
            data = bytearray(base)
            for _ in range(chance.randint(1, 6)):
                at = chance.randrange(len(data))
                kind = chance.randrange(4)
                if kind == 0:
                    data[at] = chance.randrange(256)
                elif kind == 1:
                    del data[at:]
                elif kind == 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 8))
                else:
                    data[at:at] = data[: chance.randrange(len(data))]
                if not data:
                    data = bytearray(b"\0")
            call = generate(bytes(data), timeout=20)
            try:
                for _ in call:
                    pass
            except Exception:
                assert call.code().name in (
                    "INVALID_ARGUMENT",
                    "ALREADY_EXISTS",
                    "UNIMPLEMENTED",
                    "FAILED_PRECONDITION",
                ), (bytes(data), call.code(), call.details())
        assert started.process.poll() is None
        last = client.generate("last", sampling={"max_new_tokens": 2})
        assert last.end().name == "OK"


def test_the_gateways_floats_may_be_any_bits() -> None:
    with by_hand() as worker:
        for bits in (0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0x7F7FFFFF):
            sampling = varint(1 << 3 | 5) + struct.pack("<I", bits)
            name = f"r{bits}"
            data = request(name).SerializeToString() + field(3, sampling)
            call = worker.client.channel.unary_stream(GENERATE)(data, timeout=20)
            if bits in (0x7FC00000, 0x7F800000, 0xFF800000):
                with pytest.raises(Exception, match="temperature"):
                    list(call)
            else:
                worker.engine.leg(name).finish()
                assert list(call)
