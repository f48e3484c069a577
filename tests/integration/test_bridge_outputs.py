"""Outputs on their way up: from what an engine gives to what the client gets."""

from __future__ import annotations

import math
import struct
import sys
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from bridge_support import Worker, serving, until
from roomkeeper.errors import BadOutputError
from roomkeeper.servicer import Abort, Choice


class Reason:
    """A finish reason as an object of the engine's own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def to_json(self) -> Any:
        return self.value


def ids_of(responses: list[Any]) -> tuple[list[list[int]], list[int]]:
    """The tokens of each Chunk, and those of the Complete."""
    chunks = [list(r.chunk.token_ids) for r in responses if r.HasField("chunk")]
    (complete,) = [list(r.complete.output_ids) for r in responses if r.HasField("complete")]
    return chunks, complete


def begin(worker: Worker, name: str = "r", **fields: Any) -> tuple[Any, int]:
    fields.setdefault("stream", True)
    call = worker.generate(name, [5, 6], **fields)
    return call, worker.take_submission().handle


def output(ids: Any, finish: Any = None, **meta: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"finish_reason": finish, **meta}}


# -- tuples --


def test_tuples_reach_the_client_as_chunks_and_a_complete() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        worker.servicer.push([(handle, 0, [10], None, 2, 1, 1)])
        first = next(call)
        worker.servicer.push([(handle, 0, (11, 12), "length", 2, 3, 1)])
        responses = [first, *call]
        assert ids_of(responses) == ([[10], [11, 12]], [10, 11, 12])
        done = responses[-1].complete
        assert done.finish_reason == "length"
        assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (2, 3, 1)


def test_token_ids_may_be_native_bytes_or_any_sequence() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        worker.servicer.push([(handle, 0, struct.pack("=2I", 10, 2**32 - 1), None, 2, 2, 0)])
        worker.servicer.push([(handle, 0, range(12, 14), "stop", 2, 4, 0)])
        assert ids_of(list(call))[1] == [10, 2**32 - 1, 12, 13]


def test_one_push_serves_many_legs() -> None:
    with serving() as worker:
        begun = [begin(worker, f"r{i}") for i in range(5)]
        worker.servicer.push(
            [(handle, 0, [100 + i], "length", 2, 1, 0) for i, (_, handle) in enumerate(begun)]
        )
        for i, (call, _) in enumerate(begun):
            assert ids_of(list(call))[1] == [100 + i]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([-1], "step[1]: token_ids[0] is -1"),
        ([2**32], "step[1]: token_ids[0] is 4294967296"),
        ([1, "x"], "step[1]: token_ids[1] is 'x'"),
        (b"abc", "step[1]: token_ids are 3 bytes"),
        (None, "step[1]: 'NoneType' object is not iterable"),
    ],
)
def test_a_bad_token_is_named_and_the_rest_goes_through(bad: Any, says: str) -> None:
    with serving() as worker:
        call_a, a = begin(worker, "a")
        call_b, b = begin(worker, "b")
        call_c, c = begin(worker, "c")
        with pytest.raises(BadOutputError) as raised:
            worker.servicer.push(
                [
                    (a, 0, [1], "length", 2, 1, 0),
                    (b, 0, bad, "length", 2, 1, 0),
                    (c, 0, [3], "length", 2, 1, 0),
                ]
            )
        assert str(raised.value).startswith(says)
        assert raised.value.failed == [(b, 0)]
        assert ids_of(list(call_a))[1] == [1]
        assert ids_of(list(call_c))[1] == [3]
        call_b.cancel()


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ((1, 2, 3), "an output is a tuple of 7"),
        ("nonsense", "an output is a tuple of 7"),
        (("x", 0, [1], None, 0, 0, 0), "handle is 'x'"),
        ((-1, 0, [1], None, 0, 0, 0), "handle is -1"),
        ((1, -1, [1], None, 0, 0, 0), "choice is -1"),
        ((1, 0, [1], None, 0, 1.5, 0), "completion_tokens is 1.5"),
        ((1, 0, [1], "wrong", 0, 0, 0), "finish reason 'wrong' is unknown"),
        ((1, 0, [1], {"kind": 1}, 0, 0, 0), "finish reason {'kind': 1} has no type"),
        ((1, 0, [1], 7, 0, 0, 0), "finish reason 7 is neither"),
        ((1, 0, [1], Reason("stop"), 0, 0, 0), "finish reason <"),
    ],
)
def test_a_malformed_output_is_named(item: Any, says: str) -> None:
    with serving() as worker, pytest.raises(BadOutputError) as raised:
        worker.servicer.push([item])
    assert says in str(raised.value)


def test_a_step_that_is_no_list_is_a_type_error() -> None:
    with serving() as worker, pytest.raises(TypeError):
        worker.servicer.push(7)  # type: ignore[arg-type]


def test_an_error_of_the_engines_own_code_is_passed_on_by_name() -> None:
    class Broken:
        def to_json(self) -> Any:
            raise RuntimeError("the engine's own mistake")

    with serving() as worker, pytest.raises(BadOutputError, match="the engine's own mistake"):
        worker.servicer.push([(1, 0, [1], Broken(), 0, 0, 0)])


def test_an_interrupt_is_no_bad_output_and_what_was_read_still_goes() -> None:
    class Interrupted:
        def to_json(self) -> Any:
            raise KeyboardInterrupt

    with serving() as worker:
        call, handle = begin(worker)
        step = [(handle, 0, [9], "length", 2, 1, 0), (handle, 0, [1], Interrupted(), 0, 0, 0)]
        with pytest.raises(KeyboardInterrupt):
            worker.servicer.push(step)
        assert ids_of(list(call))[1] == [9]


def test_outputs_for_nobody_are_dropped() -> None:
    with serving() as worker:
        worker.servicer.push([(999, 0, [1], None, 0, 0, 0)])
        call, handle = begin(worker)
        worker.servicer.push([(handle, 0, [1], "length", 2, 1, 0)])
        list(call)
        worker.servicer.push([(handle, 0, [2], "length", 2, 2, 0)])
        worker.servicer.push([])


# -- finish reasons --


@pytest.mark.parametrize(
    ("finish", "word", "matched"),
    [
        ("stop", "stop", None),
        ({"type": "stop", "matched": 7}, "stop", 7),
        ({"type": "stop", "matched": "END"}, "stop", "END"),
        ({"type": "stop", "matched": "ENDÉ"}, "stop", "ENDÉ"),
        ({"type": "stop", "matched": None}, "stop", None),
        ({"type": "stop", "matched": [7]}, "stop", None),
        ({"type": "stop", "matched": True}, "stop", None),
        ({"type": "stop", "matched": -1}, "stop", None),
        ({"type": "length", "length": 2}, "length", None),
        (Reason({"type": "stop", "matched": 7}), "stop", 7),
    ],
)
def test_a_finish_reason_of_any_shape_is_understood(finish: Any, word: str, matched: Any) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        worker.servicer.push([(handle, 0, [10], finish, 2, 1, 0)])
        done = list(call)[-1].complete
        assert done.finish_reason == word
        which = done.WhichOneof("matched_stop")
        assert (getattr(done, which) if which else None) == matched


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ({"status_code": 400}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"status_code": HTTPStatus.SERVICE_UNAVAILABLE}, grpc.StatusCode.UNAVAILABLE),
        ({"status_code": 429}, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ({"status_code": None}, grpc.StatusCode.INTERNAL),
        ({"status_code": "teapot"}, grpc.StatusCode.INTERNAL),
        ({"err_type": 521}, grpc.StatusCode.INTERNAL),
    ],
)
def test_an_engine_abort_keeps_its_meaning_and_its_words(reason: Any, code: Any) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        finish = {"type": "abort", "message": "because \udcff of é", **reason}
        worker.servicer.push([(handle, 0, [], finish, 0, 0, 0)])
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        assert raised.value.code() == code
        assert "because ? of é" in raised.value.details()


# -- TokenSpeed's dicts --


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Failed to compile json grammar: items", grpc.StatusCode.INVALID_ARGUMENT),
        ("Grammar-based generation (regex) is not supported", grpc.StatusCode.INVALID_ARGUMENT),
        ("Failed to allocate", grpc.StatusCode.INTERNAL),
        ("Failed", grpc.StatusCode.INTERNAL),
    ],
)
def test_a_constraint_that_the_engine_refuses_without_a_status_is_the_clients(
    message: str, code: grpc.StatusCode
) -> None:
    """TokenSpeed's aborts have no status by the time its frontend gives them."""
    with serving() as worker:
        call, handle = begin(worker)
        reason = {"type": "abort", "message": message, "err_type": 522}
        worker.servicer.push_asyncllm([(Choice(handle, 0, False), output([], reason))])
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert (error.value.code(), error.value.details()) == (code, message)


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("cumulative", [True, False], ids=["cumulative", "delta"])
def test_the_client_gets_each_token_once_whatever_the_engine_repeats(
    cumulative: bool, counted: bool
) -> None:
    with serving() as worker:
        call, handle = begin(worker)
        choice = Choice(handle, 0, cumulative)
        tokens = [20, 21, 21, 22]
        for count in range(1, 5):
            ids = tokens[:count] if cumulative else [tokens[count - 1]]
            meta = {"completion_tokens": count} if counted else {}
            finish = {"type": "length"} if count == 4 else None
            worker.servicer.push_asyncllm([(choice, output(ids, finish, **meta))])
            assert choice.pushed_tokens == count
        assert choice.finished
        chunks, complete = ids_of(list(call))
        assert complete == tokens
        assert [token for chunk in chunks for token in chunk] == tokens


def test_a_chat_header_before_the_tokens_is_no_output() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        choice = Choice(handle, 0)
        header = [128009, 128006, 78191, 128007, 271]
        worker.servicer.push_asyncllm([(choice, output([*header, 20], completion_tokens=1))])
        last = output([*header, 20, 21], {"type": "length"}, completion_tokens=2)
        worker.servicer.push_asyncllm([(choice, last)])
        assert ids_of(list(call))[1] == [20, 21]


def test_two_outputs_of_one_choice_may_come_in_one_step() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        choice = Choice(handle, 0)
        worker.servicer.push_asyncllm(
            [
                (choice, output([20], completion_tokens=1)),
                (choice, output([20, 21], {"type": "length"}, completion_tokens=2)),
                (choice, output([20, 21, 22], {"type": "length"}, completion_tokens=3)),
            ]
        )
        assert ids_of(list(call))[1] == [20, 21]  # the third came after the end


def test_a_dict_without_anything_new_says_nothing() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        choice = Choice(handle, 0)
        for nothing in ({}, {"output_ids": None, "meta_info": None}, output([])):
            worker.servicer.push_asyncllm([(choice, nothing)])
        last = output((20,), {"type": "length"}, completion_tokens=1, prompt_tokens=None)
        worker.servicer.push_asyncllm([(choice, last)])
        assert ids_of(list(call))[1] == [20]


def test_counts_and_weight_version_are_passed_on() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        meta = {
            "prompt_tokens": 2,
            "completion_tokens": 1,
            "cached_tokens": 1,
            "spec_accepted_tokens": 3,
            "spec_draft_tokens": 4,
            "weight_version": "v7",
        }
        last = output([20], {"type": "length"}, **meta)
        worker.servicer.push_asyncllm([(Choice(handle, 0), last)])
        done = list(call)[-1].complete
        for name, value in meta.items():
            assert getattr(done, name) == value


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (7, "an output is 7; it must be a dict"),
        ({"meta_info": 7}, "meta_info is 7; it must be a dict"),
        (output([1], completion_tokens=-1), "meta_info['completion_tokens'] is -1"),
        (output([1], prompt_tokens="x"), "meta_info['prompt_tokens'] is 'x'"),
        (output([-5]), "token_ids[0] is -5"),
        (output([1], {"type": "odd"}), "finish reason 'odd' is unknown"),
        (output([1], output_token_logprobs=7), "meta_info['output_token_logprobs'] is 7"),
        (output([1], output_token_logprobs=[("x", 1)]), "a logprob is ('x', 1)"),
        (output([1], output_token_logprobs=[(0.5,)]), "a logprob is (0.5,)"),
        (output([1], output_token_logprobs=[7]), "a logprob is 7"),
        (
            output([1], output_token_logprobs=[(0.5, 1)], output_top_logprobs=[[(0.5, -1)]]),
            "a logprob is (0.5, -1)",
        ),
    ],
)
def test_a_bad_dict_is_named_and_the_choice_is_as_before(bad: Any, says: str) -> None:
    with serving() as worker:
        call, handle = begin(worker, return_logprob=True)
        choice = Choice(handle, 0)
        with pytest.raises(BadOutputError) as raised:
            worker.servicer.push_asyncllm([(choice, bad)])
        assert says in str(raised.value)
        assert raised.value.failed == [(handle, 0)]
        assert (choice.pushed_tokens, choice.finished) == (0, False)
        call.cancel()


def test_a_dict_without_its_choice_is_named() -> None:
    with serving() as worker:
        for item in ((1, {}), ({},), SimpleNamespace()):
            with pytest.raises(BadOutputError, match="a tuple of 2"):
                worker.servicer.push_asyncllm([item])  # type: ignore[list-item]


# -- logprobs --


def logprobs(responses: list[Any]) -> list[tuple[list[float], list[int]]]:
    return [
        (list(r.chunk.output_logprobs.token_logprobs), list(r.chunk.output_logprobs.token_ids))
        for r in responses
        if r.HasField("chunk")
    ]


@pytest.mark.parametrize("all_so_far", [True, False], ids=["all so far", "new ones"])
def test_each_token_has_its_own_logprob(all_so_far: bool) -> None:
    with serving() as worker:
        call, handle = begin(worker, return_logprob=True)
        choice = Choice(handle, 0)
        entries = [(-0.5, 20, None), (-1.5, 21, "b"), (-2.5, 22, None)]
        given: list[Any] = []
        for count in range(1, 4):
            # An engine that keeps one list grows it also after it has given it away.
            given = entries if all_so_far else entries[count - 1 : count]
            last = output(
                [20, 21, 22][:count],
                {"type": "length"} if count == 3 else None,
                completion_tokens=count,
                output_token_logprobs=given,
            )
            worker.servicer.push_asyncllm([(choice, last)])
        responses = list(call)
        chunks = [pair for pair in logprobs(responses) if pair[1]]
        values = [value for pair in chunks for value in pair[0]]
        assert values == [-0.5, -1.5, -2.5]
        assert [i for pair in chunks for i in pair[1]] == [20, 21, 22]
        done = responses[-1].complete.output_logprobs
        assert list(done.token_logprobs) == values


def test_alternatives_stay_with_their_position() -> None:
    with serving() as worker:
        call, handle = begin(worker, return_logprob=True, top_logprobs_num=2)
        last = output(
            [20, 21],
            {"type": "length"},
            completion_tokens=2,
            output_token_logprobs=[(-0.5, 20, None), (-1.5, 21, None)],
            output_top_logprobs=[None, [(-1.5, 21, None), (-2.0, 9, None)]],
        )
        worker.servicer.push_asyncllm([(Choice(handle, 0), last)])
        top = list(call)[-1].complete.output_logprobs.top_logprobs
        assert [list(position.token_ids) for position in top] == [[], [21, 9]]
        assert list(top[1].values) == [-1.5, -2.0]


def test_a_logprob_of_none_is_not_a_number() -> None:
    with serving() as worker:
        call, handle = begin(worker, return_logprob=True)
        last = output(
            [20], {"type": "length"}, completion_tokens=1, output_token_logprobs=[(None, 20, None)]
        )
        worker.servicer.push_asyncllm([(Choice(handle, 0), last)])
        assert math.isnan(list(call)[-1].complete.output_logprobs.token_logprobs[0])


# -- aborts --


def test_an_output_after_the_cancel_is_dropped_silently() -> None:
    with serving() as worker:
        call, handle = begin(worker)
        worker.servicer.push([(handle, 0, [10], None, 2, 1, 0)])
        next(call)
        call.cancel()
        (command,) = worker.take()
        assert isinstance(command, Abort)
        worker.servicer.push([(handle, 0, [11], None, 2, 2, 0)])
        worker.servicer.aborted(handle)
        until(lambda: not worker.servicer.open_calls(), "the call is over")


# -- references --


def test_a_push_keeps_no_reference_to_what_it_was_given() -> None:
    ids, reason, version = [20], {"type": "stop", "matched": 20}, "".join(["v", "7"])
    entry, top = (-0.5, 20, None), [(-0.5, 20, None)]
    meta: dict[str, Any] = {
        "finish_reason": reason,
        "completion_tokens": 1,
        "weight_version": version,
        "output_token_logprobs": [entry],
        "output_top_logprobs": [top],
    }
    good = {"output_ids": ids, "meta_info": meta}
    bad = {"output_ids": ids, "meta_info": {**meta, "cached_tokens": -1}}
    broken = {"output_ids": ids, "meta_info": {**meta, "finish_reason": Reason(reason)}}
    watched = [ids, reason, version, entry, top, meta, good, bad, broken]

    def counts() -> list[int]:
        return [sys.getrefcount(thing) for thing in watched]

    with serving() as worker:
        before = counts()
        for round_ in range(50):
            step = [(Choice(900 + round_, i), given) for i, given in enumerate([good, bad, broken])]
            with pytest.raises(BadOutputError):
                worker.servicer.push_asyncllm(step)
            worker.servicer.push([(900 + round_, 0, ids, reason, 1, 1, 0)])
            with pytest.raises(BadOutputError):
                worker.servicer.push([(900 + round_, 0, ids, {"type": version}, 1, 1, 0)])
            del step
        assert counts() == before
