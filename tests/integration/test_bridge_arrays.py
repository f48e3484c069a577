"""A step as arrays, and messages that come faster than they are written."""

from __future__ import annotations

import ctypes
import time
from array import array
from typing import Any

import grpc
import pytest

from bridge_support import Worker, message, serving
from roomkeeper.errors import BadOutputError
from roomkeeper.servicer import Abort


def begin(worker: Worker, name: str = "r", **fields: Any) -> tuple[Any, int]:
    fields.setdefault("stream", True)
    call = worker.generate(name, [5, 6, 7], **fields)
    return call, worker.take_submission().handle


def chunks_of(responses: list[Any], index: int = 0) -> list[list[int]]:
    chunks = [r.chunk for r in responses if r.HasField("chunk") and r.chunk.index == index]
    return [list(chunk.token_ids) for chunk in chunks]


def complete_of(responses: list[Any], index: int = 0) -> Any:
    (complete,) = [
        r.complete for r in responses if r.HasField("complete") and r.complete.index == index
    ]
    return complete


def test_rows_reach_their_clients_with_counts_of_the_servicers_own() -> None:
    with serving() as worker:
        begun = [begin(worker, f"r{i}") for i in range(5)]
        handles = array("Q", [handle for _, handle in begun])
        worker.servicer.push_tokens(handles, array("I", range(10, 15)))
        ends = [(row, "length") for row in range(5)]
        worker.servicer.push_tokens(handles, array("I", range(20, 25)), ends)
        for row, (call, _) in enumerate(begun):
            responses = list(call)
            done = complete_of(responses)
            assert list(done.output_ids) == [10 + row, 20 + row]
            assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (3, 2, 0)
            assert chunks_of(responses) == [[10 + row], [20 + row]]
            assert [r.chunk.completion_tokens for r in responses[:2]] == [1, 2]


def test_counts_and_choices_say_whose_tokens_these_are() -> None:
    with serving() as worker:
        call, handle = begin(worker, sampling_params=message("SamplingParams")(n=2))
        worker.servicer.push_tokens(
            array("Q", [handle, handle]),
            array("I", [1, 2, 3]),
            [(0, {"type": "stop", "matched": 3}), (1, "length")],
            choices=array("I", [1, 0]),
            counts=array("I", [3, 0]),
        )
        responses = list(call)
        assert list(complete_of(responses, 1).output_ids) == [1, 2]  # the matched one is taken off
        assert complete_of(responses, 1).matched_token_id == 3
        assert list(complete_of(responses, 0).output_ids) == []


def test_logprobs_go_to_those_that_asked() -> None:
    with serving() as worker:
        asked, first = begin(worker, "asked", return_logprob=True)
        plain, second = begin(worker, "plain")
        handles = array("Q", [first, second])
        worker.servicer.push_tokens(
            handles,
            array("I", [1, 2, 3]),
            counts=array("I", [2, 1]),
            logprobs=array("f", [-0.5, -1.5, -2.5]),
        )
        worker.servicer.push_tokens(
            handles,
            array("I", [4, 5]),
            [(0, "length"), (1, "length")],
            logprobs=array("f", [-3.5, -4.5]),
        )
        responses = list(asked)
        told = [
            list(r.chunk.output_logprobs.token_logprobs) for r in responses if r.HasField("chunk")
        ]
        assert told == [[-0.5, -1.5], [-3.5]]
        logprobs = complete_of(responses).output_logprobs
        assert list(logprobs.token_logprobs) == [-0.5, -1.5, -3.5]
        assert list(logprobs.token_ids) == [1, 2, 4]
        assert not complete_of(list(plain)).HasField("output_logprobs")


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "ctypes"])
def test_any_buffer_will_do(kind: str) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        made: dict[str, Any] = {
            "bytes": (array("Q", [handle]).tobytes(), array("I", [9]).tobytes()),
            "bytearray": (bytearray(array("Q", [handle])), bytearray(array("I", [9]))),
            "memoryview": (memoryview(array("Q", [handle])), memoryview(array("I", [9]))),
            "ctypes": ((ctypes.c_uint64 * 1)(handle), (ctypes.c_uint32 * 1)(9)),
        }
        worker.servicer.push_tokens(*made[kind], [(0, "stop")])
        assert list(complete_of(list(call)).output_ids) == [9]


@pytest.mark.parametrize(
    ("arrays", "error", "says"),
    [
        (([1, 2], b""), TypeError, "handles is [1, 2]; it must be a buffer of native uint64"),
        (("text", b""), TypeError, "handles is 'text'"),
        ((b"1234567", b""), ValueError, "handles has 7 bytes; native uint64 take a multiple of 8"),
        ((array("Q", [1]), b"123"), ValueError, "token_ids has 3 bytes"),
        ((array("Q", [1]), array("Q", [1])), ValueError, "token_ids has items of 8 bytes"),
        (
            (array("Q", [1]), array("I", [1, 2])),
            ValueError,
            "token_ids has 2 items and handles has 1",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: tuple[Any, ...], error: Any, says: str) -> None:
    with serving() as worker, pytest.raises(error) as raised:
        worker.servicer.push_tokens(*arrays)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"choices": array("I", [0, 0])}, "choices has 2 items and handles has 1"),
        ({"counts": array("I", [])}, "counts has 0 items and handles has 1"),
        ({"counts": array("I", [2])}, "token_ids has 1 items and counts add up to 2"),
        ({"counts": array("I", [2**32 - 1])}, "counts add up to 4294967295"),
        ({"logprobs": array("f", [])}, "logprobs has 0 items and token_ids has 1"),
        (
            {"logprobs": array("d", [0.5])},
            "logprobs has items of 8 bytes; it must be a buffer of native float32",
        ),
    ],
)
def test_arrays_that_do_not_fit_push_nothing(named: dict[str, Any], says: str) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        with pytest.raises(ValueError, match="has") as raised:
            worker.servicer.push_tokens(
                array("Q", [handle]), array("I", [1]), [(0, "stop")], **named
            )
        assert says in str(raised.value)
        worker.servicer.push_tokens(array("Q", [handle]), array("I", [8]), [(0, "stop")])
        assert list(complete_of(list(call)).output_ids) == [8]


def test_ends_that_cannot_be_iterated_push_nothing() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        with pytest.raises(TypeError, match="not iterable"):
            worker.servicer.push_tokens(array("Q", [handle]), array("I", [1]), 7)
        worker.servicer.push_tokens(array("Q", [handle]), array("I", [8]), [(0, "stop")])
        assert list(complete_of(list(call)).output_ids) == [8]


@pytest.mark.parametrize("end", [(1, "wrong"), (1, {"kind": 1})])
def test_an_end_that_cannot_be_read_leaves_its_row_out(end: Any) -> None:
    with serving() as worker:
        begun = [begin(worker, name) for name in "abc"]
        handles = array("Q", [handle for _, handle in begun])
        with pytest.raises(BadOutputError) as raised:
            worker.servicer.push_tokens(
                handles, array("I", [1, 2, 3]), [(0, "stop"), end, (2, "stop")]
            )
        assert str(raised.value).startswith("ends[1]: finish reason")
        assert raised.value.failed == [(begun[1][1], 0)]
        assert list(complete_of(list(begun[0][0])).output_ids) == [1]
        assert list(complete_of(list(begun[2][0])).output_ids) == [3]
        begun[1][0].cancel()


@pytest.mark.parametrize("end", [(1, "stop"), (-1, "stop"), ("x", "stop"), (0,), None])
def test_an_end_of_no_row_is_named(end: Any) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        with pytest.raises(BadOutputError, match=r"ends\[0\]: it is .*with a row below 1"):
            worker.servicer.push_tokens(array("Q", [handle]), array("I", [1]), [end])
        worker.servicer.push_tokens(array("Q", [handle]), array("I", [2]), [(0, "stop")])
        assert list(complete_of(list(call)).output_ids) == [1, 2]


def test_outputs_of_legs_that_are_over_are_dropped() -> None:
    with serving() as worker:
        worker.servicer.push_tokens(array("Q", [0, 2**64 - 1]), array("I", [1, 2]), [(0, "stop")])
        worker.servicer.push_tokens(b"", b"")


# -- bursts --


def test_messages_that_come_at_once_keep_their_order_and_their_number() -> None:
    with serving() as worker:
        begun = [begin(worker, f"r{i}") for i in range(8)]
        handles = array("Q", [handle for _, handle in begun])
        for token in range(99):
            worker.servicer.push_tokens(handles, array("I", [token] * 8))
        worker.servicer.push_tokens(
            handles, array("I", [99] * 8), [(row, "length") for row in range(8)]
        )
        for call, _ in begun:
            responses = list(call)
            assert chunks_of(responses) == [[token] for token in range(100)]
            assert list(complete_of(responses).output_ids) == list(range(100))


def test_a_message_right_behind_another_is_not_left_waiting() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        handles = array("Q", [handle])
        begun = time.monotonic()
        for token in range(50):
            worker.servicer.push_tokens(handles, array("I", [2 * token]))
            assert list(next(call).chunk.token_ids) == [2 * token]
            worker.servicer.push_tokens(handles, array("I", [2 * token + 1]))
            assert list(next(call).chunk.token_ids) == [2 * token + 1]
        assert time.monotonic() - begun < 10, "each is held for a millisecond or two"
        worker.servicer.push_tokens(handles, array("I", [7]), [(0, "stop")])
        assert len(list(call)) == 2


@pytest.mark.parametrize("how", ["cancel", "abort", "stop"])
def test_a_stream_may_end_in_the_middle_of_a_burst(how: str) -> None:
    with serving() as worker:
        begun = [begin(worker, f"r{i}") for i in range(4)]
        handles = array("Q", [handle for _, handle in begun])
        for token in range(20):
            worker.servicer.push_tokens(handles, array("I", [token] * 4))
        if how == "stop":
            worker.servicer.stop()
        for call, handle in begun:
            if how == "cancel":
                call.cancel()
            elif how == "abort":
                failed = {"type": "abort", "message": "gone", "status_code": 503}
                worker.servicer.push_tokens(
                    array("Q", [handle]), b"", [(0, failed)], counts=bytes(4)
                )
        for call, _ in begun:
            with pytest.raises(grpc.RpcError) as raised:
                list(call)
            expected = grpc.StatusCode.CANCELLED if how == "cancel" else grpc.StatusCode.UNAVAILABLE
            assert raised.value.code() == expected
        if how == "cancel":
            told: list[int] = []
            while len(told) < len(begun):
                told += [command.handle for command in worker.take() if isinstance(command, Abort)]
            assert sorted(told) == sorted(handles)
        if how != "stop":
            call, handle = begin(worker, "after")
            worker.servicer.push_tokens(array("Q", [handle]), array("I", [1]), [(0, "stop")])
            assert list(complete_of(list(call)).output_ids) == [1]
