"""Every field of every request: what a bad value gets, or why no value of it is bad.

The descriptors are walked, so a new field fails here until somebody has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from harness.byhand import HandWorker, by_hand
from harness.client import WIRE, request
from roomkeeper import wire

NAN, INFINITE = float("nan"), float("inf")
UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1
#: What the answer names, if it is not the path of the field.
Row = tuple[Any, str]


def _bad(*values: Any, says: str = "") -> list[Row]:
    return [(value, says) for value in values]


def _change(change: Callable[[Any], None], says: str = "") -> list[Row]:
    """A row that changes the request by itself."""
    return [(change, says)]


def _above_the_most(made: Any) -> None:
    made.sampling_params.max_new_tokens = 4
    made.sampling_params.min_new_tokens = 5


def _too_long(made: Any) -> None:
    made.tokenized.input_ids.extend([5] * 5000)


#: Bad values by message and field; each gets INVALID_ARGUMENT with the field's path in the answer.
BAD: dict[str, list[Row]] = {
    "GenerateRequest.request_id": _bad("", "x" * 513, "a\0b"),
    "GenerateRequest.logprob_start_len": _bad(-2, -(2**31)),
    "GenerateRequest.top_logprobs_num": _bad(-1),
    "GenerateRequest.token_ids_logprob": _bad([UINT32_MAX]),
    "GenerateRequest.data_parallel_rank": _bad(-1, 1, 2**31 - 1),
    "TokenizedInput.input_ids": [*_bad([], [UINT32_MAX], [5, 10**6]), *_change(_too_long)],
    "SamplingParams.temperature": _bad(-0.5, NAN, INFINITE, -INFINITE),
    "SamplingParams.top_p": _bad(0.0, -0.5, 1.5, NAN, INFINITE),
    "SamplingParams.top_k": _bad(-2, -(2**31)),
    "SamplingParams.min_p": _bad(-0.5, 1.5, NAN, INFINITE),
    "SamplingParams.frequency_penalty": _bad(-2.5, 2.5, NAN, INFINITE),
    "SamplingParams.presence_penalty": _bad(-2.5, 2.5, NAN, INFINITE),
    "SamplingParams.repetition_penalty": _bad(0.0, -1.0, 2.5, NAN, INFINITE),
    "SamplingParams.min_new_tokens": _change(_above_the_most),
    "SamplingParams.n": _bad(5, UINT32_MAX),
    "SamplingParams.logit_bias": _bad(
        {"": 1.0}, {"a": 1.0}, {"-1": 1.0}, {"1_0": 1.0}, {" 5": 1.0}, {str(2**40): 1.0}, {"5": NAN}
    ),
    "SamplingParams.regex": _bad(""),
    "SamplingParams.json_schema": _bad("", "{", "nope", '{"a": 1} x'),
    "SamplingParams.structural_tag": _bad("", "{", "nope"),
    "SamplingParams.custom_params": _bad({"a": NAN}, {"a\0b": 1}, {"a": {"b": [INFINITE]}}),
    "SamplingParams.sampling_seed": _bad(2**63, UINT64_MAX),
    "KvBootstrapInfo.bootstrap_host": _bad("", "a b", "a\0b", "a\x7f", "h" * 300),
    "KvBootstrapInfo.bootstrap_port": _bad(0, -1, 65536),
    "KvBootstrapInfo.bootstrap_room": _bad(0, -1, -(2**63)),
    "AbortRequest.request_id": _bad("", "x" * 513, "a\0b"),
    "FlushCacheRequest.timeout_s": _bad(-1.0, NAN, INFINITE, -INFINITE),
    "StartProfileRequest.output_dir": _bad("", "a\0b"),
    "StartProfileRequest.start_step": _bad(-1, -(2**31)),
    "StartProfileRequest.num_steps": _bad(0, -1),
    "StartProfileRequest.activities": _bad([""], ["CPU", ""]),
}

FLAG = "either value has a meaning"
#: Why no value of a field is bad. A wrong wire type, and bytes that are no text, are: see test_bad_bytes.
NONE_IS_BAD = {
    "GenerateRequest.return_logprob": FLAG,
    "GenerateRequest.stream": FLAG,
    "TokenizedInput.original_text": "nobody reads it",
    "SamplingParams.max_new_tokens": "the engine cuts it to what the context holds; 0 is for it to judge",
    "SamplingParams.stop": "any text may come in an output",
    "SamplingParams.stop_token_ids": "one beyond the vocabulary never comes, and does no harm",
    "SamplingParams.ignore_eos": FLAG,
    "SamplingParams.skip_special_tokens": FLAG,
    "SamplingParams.spaces_between_special_tokens": FLAG,
    "SamplingParams.no_stop_trim": FLAG,
    "SamplingParams.ebnf_grammar": "only the engine's grammar backend can judge it",
    "AbortRequest.reason": "words for people; nobody reads them",
    "GetLoadsRequest.dp_rank": "a rank that is not there gets an empty list",
    "GetLoadsRequest.include": "a newer gateway may know more parts than we do",
    "StartProfileRequest.with_stack": FLAG,
    "StartProfileRequest.record_shapes": FLAG,
    "StartProfileRequest.profile_by_stage": FLAG,
}
#: Messages whose fields are not looked at one by one, because all of it is answered with this code; and why.
WHOLE = {
    "GenerateRequest.mm_inputs": ("INVALID_ARGUMENT", "test_dialect_media goes through its fields"),
    "GenerateRequest.encode_bootstrap_info": ("INVALID_ARGUMENT", "likewise"),
    "SubscribeKvEventsRequest.start_sequence_number": (
        "UNIMPLEMENTED",
        "this worker has no KV events; any number may be asked for",
    ),
    "SubscribeKvEventsRequest.load_records_before_first_batch": ("UNIMPLEMENTED", "likewise"),
}


def _holds_messages(field: Any) -> bool:
    kind = field.message_type
    return (
        kind is not None
        and kind.full_name != "google.protobuf.Struct"
        and (
            not kind.GetOptions().map_entry or kind.fields_by_name["value"].message_type is not None
        )
    )


def _key(field: Any) -> str:
    return f"{field.containing_type.name}.{field.name}"


def _leaves(descriptor: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for field in descriptor.fields:
        if _holds_messages(field) and _key(field) not in WHOLE:
            yield from _leaves(field.message_type, (*path, field))
        else:
            yield (*path, field)


def _methods() -> list[Any]:
    return list(WIRE.pool.FindServiceByName(wire.TOKENSPEED).methods)


def _fields() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Key of each field of each request, and the call and the path to it."""
    return {
        _key(path[-1]): (method, path)
        for method in _methods()
        for path in _leaves(method.input_type)
    }


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(field.name for field in path)


def _good(method: Any, role: str = "null") -> Any:
    if method.name == "Generate":
        return request("bad-fields", room=None if role == "null" else 10_000)
    return WIRE.message(method.input_type.full_name)(
        **({"request_id": "nobody"} if method.name == "Abort" else {})
    )


def _put(made: Any, path: tuple[Any, ...], value: Any) -> None:
    if callable(value):
        value(made)
        return
    owner = made
    for field in path[:-1]:
        owner = getattr(owner, field.name)
    name = path[-1].name
    owner.ClearField(name)
    if isinstance(value, list):
        getattr(owner, name).extend(value)
    elif isinstance(value, dict):
        getattr(owner, name).update(value)
    else:
        setattr(owner, name, value)


def _call(worker: HandWorker, method: Any, made: Any) -> tuple[str, str]:
    """Code and words of the answer."""
    call = getattr(WIRE.stub(worker.client.channel, wire.TOKENSPEED), method.name)
    try:
        answer = call(made, timeout=10)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def test_every_field_has_a_bad_value_or_a_reason_why_there_is_none() -> None:
    decided = [*BAD, *NONE_IS_BAD, *WHOLE]
    assert len(decided) == len(set(decided)), "a field is decided once"
    assert set(decided) == set(_fields()), "decide about each field of each request, and no other"


@pytest.mark.parametrize("role", ["null", "decode"])
def test_a_bad_value_is_refused_by_name_and_a_good_request_goes_through_after_it(role: str) -> None:
    fields = _fields()
    skipped = 0
    with by_hand(role=role, vocab_size=512, max_context=4096) as worker:
        for number, (key, rows) in enumerate(BAD.items()):
            method, path = fields[key]
            room = key.startswith("KvBootstrapInfo.")
            if room and role == "null":
                skipped += 1
                continue  # a worker without a twin refuses a room as a whole: test_rooms
            for value, says in rows:
                made = _good(method, role)
                _put(made, path, value)
                code, words = _call(worker, method, made)
                assert code == "INVALID_ARGUMENT", (key, value, code, words)
                assert (says or _name(path)) in words and len(words.splitlines()) == 1, (key, words)
            good = {"room": 20_000 + number} if role != "null" else {}
            stream, leg = worker.admitted(f"good-{number}", **good)
            leg.finish()
            assert stream.end().name == "OK", key
        assert len(worker.engine.legs) == number + 1 - skipped, "no bad request reached the engine"
        worker.idle()


def test_what_is_answered_as_a_whole_is_refused() -> None:
    fields = _fields()
    with by_hand() as worker:
        for key, (code, _) in WHOLE.items():
            method, path = fields[key]
            made = _good(method)
            if _holds_messages(path[-1]):
                getattr(made, path[-1].name).SetInParent()
            assert _call(worker, method, made)[0] == code, key
