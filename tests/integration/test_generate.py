"""What a Generate call carries: to the engine, and back."""

from __future__ import annotations

from typing import Any

import pytest

from harness.byhand import HandWorker, Leg, by_hand
from harness.client import SCHEDULER, WIRE, Stream, request
from roomkeeper.servicer import Choice


def _served(worker: HandWorker, made: Any) -> tuple[Stream, Leg]:
    stream = worker.client.send(made)
    return stream, worker.engine.leg(made.request_id)


def _refused(worker: HandWorker, made: Any) -> str:
    status = worker.client.send(made).end()
    assert status.name == "INVALID_ARGUMENT", status
    return status.details


# -- streaming --


def test_chunks_carry_new_tokens_and_the_complete_carries_all() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", input_ids=[5] * 7)
        leg.output([1, 2])
        leg.output([3])
        leg.output([4], "length")
        assert stream.end().name == "OK"
        assert stream.chunk_ids() == [1, 2, 3, 4]
        complete = stream.complete()
        assert list(complete.output_ids) == [1, 2, 3, 4]
        assert (complete.prompt_tokens, complete.completion_tokens) == (7, 4)
        assert complete.finish_reason == "length"
        assert {m.request_id for m in stream.messages} == {"r"}
        assert [chunk.completion_tokens for chunk in stream.chunks()] == [2, 3, 4]


def test_without_streaming_there_is_one_message() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", stream=False)
        leg.output([1, 2])
        leg.output([3], "stop")
        assert stream.end().name == "OK"
        assert len(stream.messages) == 1
        assert list(stream.complete().output_ids) == [1, 2, 3]
        assert stream.complete().finish_reason == "stop"


def test_a_choices_first_chunk_comes_even_when_it_is_empty_and_later_empty_ones_do_not() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        leg.output([])
        leg.output([])
        leg.output([1])
        leg.output([])
        leg.output([2], "length")
        assert stream.end().name == "OK"
        assert [list(chunk.token_ids) for chunk in stream.chunks()] == [[], [1], [2]]


def test_the_stream_ends_with_the_last_choice_and_does_not_wait_for_the_engine() -> None:
    with by_hand(acknowledge=False) as worker:
        stream, leg = worker.admitted("r", sampling={"n": 2})
        leg.output([1], "length", choice=1)
        assert not stream.ended(0.05)
        leg.output([2], "stop", choice=0)
        assert stream.end().name == "OK"


def test_choices_are_told_apart_by_their_index() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3})
        for round_ in range(4):
            for choice in (2, 0, 1):
                leg.output([choice * 10 + round_], "length" if round_ == 3 else None, choice=choice)
        assert stream.end().name == "OK"
        for choice in range(3):
            expected = [choice * 10 + round_ for round_ in range(4)]
            assert stream.chunk_ids(choice) == expected
            assert list(stream.complete(choice).output_ids) == expected


def test_an_output_of_another_choice_than_asked_for_is_dropped() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        leg.output([9], choice=5)
        leg.finish([1])
        assert stream.end().name == "OK"
        assert list(stream.complete().output_ids) == [1]


def test_a_long_answer_arrives_whole() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        for at in range(0, 100_000, 1000):
            leg.output(list(range(at, at + 1000)))
        leg.output([7], "length")
        assert stream.end().name == "OK"
        assert stream.chunk_ids() == [*range(100_000), 7]
        assert len(stream.complete().output_ids) == 100_001


# -- finish reasons --


def test_a_matched_stop_token_is_named_and_trimmed() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"stop_token_ids": [2]})
        leg.output([1])
        leg.output([2], {"type": "stop", "matched": 2})
        assert stream.end().name == "OK"
        complete = stream.complete()
        assert (complete.finish_reason, complete.matched_token_id) == ("stop", 2)
        assert list(complete.output_ids) == [1] == stream.chunk_ids()
        assert complete.completion_tokens == 2


def test_a_matched_stop_token_stays_with_no_stop_trim() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"no_stop_trim": True})
        leg.output([1, 2], {"type": "stop", "matched": 2})
        assert stream.end().name == "OK"
        assert list(stream.complete().output_ids) == [1, 2] == stream.chunk_ids()


def test_a_matched_stop_string_is_named() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"stop": ["foo"]})
        assert leg.submission.sampling["stop"] == ["foo"]
        leg.output([1, 2], {"type": "stop", "matched": "foo"})
        assert stream.end().name == "OK"
        complete = stream.complete()
        assert complete.WhichOneof("matched_stop") == "matched_stop_str"
        assert complete.matched_stop_str == "foo"
        assert list(complete.output_ids) == [1, 2]


def test_a_stop_without_a_match_names_none() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        leg.output([1], "stop")
        assert stream.end().name == "OK"
        assert stream.complete().WhichOneof("matched_stop") is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"),
        (404, "NOT_FOUND"),
        (408, "DEADLINE_EXCEEDED"),
        (429, "RESOURCE_EXHAUSTED"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
        (500, "INTERNAL"),
        (418, "INTERNAL"),
        (None, "INTERNAL"),
    ],
)
@pytest.mark.parametrize("when", ["before", "amid"])
@pytest.mark.parametrize("streaming", [True, False])
def test_an_engine_abort_is_a_status_with_its_message(
    status: int | None, code: str, when: str, streaming: bool
) -> None:
    """sgl-project/sglang#19972, #22535, vllm-project/vllm#56405: OK, or the wrong code."""
    with by_hand() as worker:
        stream, leg = worker.admitted("r", stream=streaming)
        if when == "amid":
            leg.output([1])
        reason: dict[str, Any] = {"type": "abort", "message": "the pages are out"}
        if status is not None:
            reason["status_code"] = status
        leg.output([], reason)
        ended = stream.end()
        assert (ended.name, ended.details) == (code, "the pages are out")
        assert not any(m.HasField("complete") for m in stream.messages)
        worker.idle()
        worker.engine.quiet(0.02)
        assert leg.aborts == []


def test_an_engine_abort_without_a_message_still_says_what_happened() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        leg.output([], "abort")
        ended = stream.end()
        assert (ended.name, ended.details) == ("INTERNAL", "the engine aborted the request")


def test_an_engines_message_is_made_valid_utf8_in_one_line() -> None:
    """grpc/grpc#29011, protocolbuffers/protobuf#4970: invalid bytes broke the status or its parser."""
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        reason = {"type": "abort", "message": "bad \udc80\udcff\nbytes ü", "status_code": 500}
        leg.output([], reason)
        ended = stream.end()
        assert ended.name == "INTERNAL"
        assert ended.details.startswith("bad ") and ended.details.endswith("bytes ü")
        assert "\n" not in ended.details


def test_an_abort_of_one_choice_ends_the_call_and_the_other_choices() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"n": 3}, stream=False)
        leg.output([1], "length", choice=0)
        leg.output([], {"type": "abort", "message": "full", "status_code": 429}, choice=1)
        ended = stream.end()
        assert (ended.name, ended.details) == ("RESOURCE_EXHAUSTED", "full")
        assert stream.messages == []
        worker.engine.wait_aborts(1)
        assert leg.aborts == [2]
        worker.idle()


# -- to the engine --


def test_every_field_reaches_the_engine() -> None:
    made = request(
        "r",
        input_ids=[1, 2, 3],
        sampling={
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "frequency_penalty": 0.2,
            "presence_penalty": -0.2,
            "repetition_penalty": 1.1,
            "max_new_tokens": 17,
            "min_new_tokens": 3,
            "stop": ["a", "bc"],
            "stop_token_ids": [8, 9],
            "ignore_eos": True,
            "skip_special_tokens": True,
            "spaces_between_special_tokens": True,
            "no_stop_trim": True,
            "regex": "a+",
            "sampling_seed": 42,
        },
        return_logprob=True,
        logprob_start_len=1,
        top_logprobs_num=2,
        token_ids_logprob=[4, 5],
    )
    made.sampling_params.logit_bias["7"] = -1.5
    made.sampling_params.custom_params["k"] = [1, {"x": None}]
    with by_hand() as worker:
        _, leg = _served(worker, made)
        submission = leg.submission
        assert submission.input_ids == [1, 2, 3]
        assert submission.stream and submission.return_logprob
        assert (submission.logprob_start_len, submission.top_logprobs_num) == (1, 2)
        assert submission.token_ids_logprob == [4, 5]
        assert submission.bootstrap is None
        sampling = submission.sampling
        floats = ("temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty")
        assert [round(sampling[name], 6) for name in floats] == [0.5, 0.9, 0.1, 0.2, 1.1]
        assert (sampling["top_k"], sampling["max_new_tokens"]) == (40, 17)
        assert (sampling["min_new_tokens"], sampling["seed"]) == (3, 42)
        assert (sampling["stop"], sampling["stop_token_ids"]) == (["a", "bc"], [8, 9])
        assert sampling["regex"] == "a+"
        assert sampling["logit_bias"] == {"7": -1.5}
        assert sampling["custom_params"] == {"k": [1, {"x": None}]}
        assert all(
            sampling[name]
            for name in (
                "ignore_eos",
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "no_stop_trim",
            )
        )


def test_what_is_not_sent_is_the_engines_default() -> None:
    """smg-project/smg#1071, smg-project/smg#1107, smg-project/smg#1367: an absent field was taken
    for 0, and repetition_penalty 0 divides by zero.
    """
    with by_hand() as worker:
        for name, made in {
            "only": request("only", sampling={"max_new_tokens": 8}),
            "none": request("none"),
        }.items():
            sampling = _served(worker, made)[1].submission.sampling
            for absent in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "frequency_penalty",
                "presence_penalty",
                "repetition_penalty",
                "seed",
            ):
                assert absent not in sampling, (name, sampling)


def test_a_zero_that_is_sent_is_a_zero_where_it_means_something() -> None:
    """smg-project/smg#1071: temperature 0 is greedy, top_k 0 and -1 are off."""
    with by_hand() as worker:
        for top_k in (0, -1):
            made = request(f"r{top_k}", sampling={"temperature": 0.0, "top_k": top_k})
            sampling = _served(worker, made)[1].submission.sampling
            assert sampling["temperature"] == 0
            assert sampling["top_k"] == -1


NAN = float("nan")
INF = float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (-0.1, NAN, INF, -INF)],
        *[("top_p", value) for value in (0.0, -0.5, 1.1, NAN)],
        *[("min_p", value) for value in (-0.1, 1.5, NAN)],
        *[("top_k", value) for value in (-2, -(2**31))],
        *[("repetition_penalty", value) for value in (0.0, -1.0, 2.5, NAN, INF)],
        *[("frequency_penalty", value) for value in (-2.5, 2.5, NAN)],
        *[("presence_penalty", value) for value in (-2.5, 2.5, NAN)],
        ("sampling_seed", 2**63),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name_and_value(field: str, value: Any) -> None:
    """smg-project/smg#1071, #1107, #1367: NaN and negatives, and 0 where it would divide."""
    with by_hand() as worker:
        text = _refused(worker, request("r", sampling={field: value}))
        assert f"sampling_params.{field}" in text
        worker.engine.quiet(0.02)


def test_a_minimum_above_the_maximum_is_refused_with_both() -> None:
    with by_hand() as worker:
        made = request("r", sampling={"min_new_tokens": 9, "max_new_tokens": 8})
        text = _refused(worker, made)
        assert "9" in text and "8" in text


@pytest.mark.parametrize(
    ("input_ids", "words"),
    [
        ([], "input_ids is empty"),
        ([5, 4_000_000_000], "input_ids[1] is 4000000000"),
        ([512], "input_ids[0] is 512"),
        ([5] * 64, "has 64 tokens"),
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_refused(input_ids: list[int], words: str) -> None:
    """vllm-project/vllm#10009: empty, or beyond the vocabulary, and it reached the engine."""
    with by_hand(vocab_size=512, max_context=64) as worker:
        assert words in _refused(worker, request("r", input_ids=input_ids))
        without = request("r2")
        without.ClearField("tokenized")
        assert "input_ids is empty" in _refused(worker, without)
        worker.engine.quiet(0.02)
        worker.admitted("good", input_ids=[511] * 63)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_over_long_prompt_is_refused_on_both_legs_before_submission(role: str) -> None:
    """sgl-project/sglang#30233, #29017: the prefill refused and the decode went on waiting."""
    with by_hand(role, max_context=64) as worker:
        made = request("r", input_ids=[5] * 64, room=1)
        assert "a prompt must be shorter" in _refused(worker, made)
        worker.engine.quiet(0.02)
        assert worker.servicer.counts()["legs"]["admitted"] == 0


@pytest.mark.parametrize("field", ["json_schema", "structural_tag"])
@pytest.mark.parametrize("schema", ["{", "", "{'a': 1}", '{"a": 1} x', "nope", '"\\u12"'])
def test_a_schema_that_is_no_json_is_refused_beside_a_live_stream(schema: str, field: str) -> None:
    """sgl-project/sglang#4574, vllm-project/vllm#47312: a bad schema took the engine down."""
    with by_hand() as worker:
        live, leg = worker.admitted("live")
        leg.output([1])
        made = request("bad")
        setattr(made.sampling_params, field, schema)
        assert f"{field} is not JSON" in _refused(worker, made)
        leg.output([2], "length")
        assert live.end().name == "OK"
        assert len(worker.engine.legs) == 1


def test_what_the_grammar_backend_refuses_harms_no_other_stream() -> None:
    """vllm-project/vllm#47312: valid JSON and no valid schema, or a regex that is none."""
    with by_hand() as worker:
        live, live_leg = worker.admitted("live")
        for name, field, value in (
            ("schema", "json_schema", '{"type":"array","items":3}'),
            ("regex", "regex", "("),
        ):
            made = request(name)
            setattr(made.sampling_params, field, value)
            stream, leg = _served(worker, made)
            assert leg.submission.sampling[field] == value
            leg.output([], {"type": "abort", "message": f"bad {field}", "status_code": 400})
            ended = stream.end()
            assert (ended.name, ended.details) == ("INVALID_ARGUMENT", f"bad {field}")
        empty = request("empty")
        empty.sampling_params.regex = ""
        assert "regex is empty" in _refused(worker, empty)
        live_leg.finish()
        assert live.end().name == "OK"


def test_a_string_stop_without_a_tokenizer_is_the_engines_to_match() -> None:
    """smg-project/smg#1877, smg-project/smg#2223: it is passed on, not refused; and when a gateway
    matches by itself and cancels, the engine is told.
    """
    with by_hand() as worker:
        stream, leg = worker.admitted("r", sampling={"stop": ["foo"]})
        assert leg.submission.sampling["stop"] == ["foo"]
        leg.output([1])
        stream.get(1)
        stream.cancel()
        worker.engine.wait_aborts(1)
        worker.idle()


@pytest.mark.parametrize("request_id", ["", "x" * 513, "a\0b"])
def test_a_request_id_that_is_none_is_refused(request_id: str) -> None:
    with by_hand() as worker:
        assert "request_id" in _refused(worker, request(request_id))
        _served(worker, request("x" * 512))


# -- logprobs --


def _outputs(leg: Leg, choice: Choice, worker: HandWorker, **output: Any) -> None:
    """One output as TokenSpeed's AsyncLLM yields it."""
    meta = {
        "finish_reason": None,
        "prompt_tokens": leg.submission.input_count,
        "cached_tokens": 0,
        **output.pop("meta_info"),
    }
    worker.servicer.push_asyncllm([(choice, {**output, "meta_info": meta})])


@pytest.mark.parametrize("start", [0, -1])
@pytest.mark.parametrize("top", [0, 5])
def test_logprobs_align_with_the_tokens_of_their_message(start: int, top: int) -> None:
    """sgl-project/sglang#11113: the first prompt logprob is None, and building the answer failed."""
    made = request("r", return_logprob=True, logprob_start_len=start, top_logprobs_num=top)
    with by_hand() as worker:
        stream, leg = _served(worker, made)
        choice = Choice(leg.handle, 0)
        alternatives = [[(-0.5 - i, 100 + i, None) for i in range(top)]] if top else []
        _outputs(
            leg,
            choice,
            worker,
            output_ids=[11],
            meta_info={
                "completion_tokens": 1,
                "input_token_logprobs": [(None, 5, None), (-2.0, 6, None)],
                "output_token_logprobs": [(-0.25, 11, None)],
                "output_top_logprobs": alternatives,
            },
        )
        _outputs(
            leg,
            choice,
            worker,
            output_ids=[11, 12],
            meta_info={
                "completion_tokens": 2,
                "finish_reason": {"type": "length", "length": 2},
                "input_token_logprobs": [(None, 5, None), (-2.0, 6, None)],
                "output_token_logprobs": [(-0.25, 11, None), (-0.75, 12, None)],
                "output_top_logprobs": alternatives * 2,
            },
        )
        assert stream.end().name == "OK"
        got = [i for chunk in stream.chunks() for i in chunk.output_logprobs.token_ids]
        assert got == [11, 12] == stream.chunk_ids()
        logprobs = stream.complete().output_logprobs
        assert list(logprobs.token_logprobs) == [-0.25, -0.75]
        assert list(logprobs.token_ids) == [11, 12]
        assert len(logprobs.top_logprobs) == 2
        assert [len(position.values) for position in logprobs.top_logprobs] == [top, top]
        assert [len(position.token_ids) for position in logprobs.top_logprobs] == [top, top]


def test_logprobs_that_nobody_asked_for_do_not_travel() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("r")
        meta = {
            "completion_tokens": 1,
            "finish_reason": {"type": "length", "length": 1},
            "output_token_logprobs": [(-0.25, 11, None)],
        }
        _outputs(leg, Choice(leg.handle, 0), worker, output_ids=[11], meta_info=meta)
        assert stream.end().name == "OK"
        assert not stream.complete().HasField("output_logprobs")


def test_the_response_has_no_field_for_prompt_logprobs() -> None:
    """So a start position other than -1 asks the engine only: said here, lest it be missed."""
    fields = WIRE.message(SCHEDULER + "GenerateComplete").DESCRIPTOR.fields_by_name
    assert "input_logprobs" not in fields
