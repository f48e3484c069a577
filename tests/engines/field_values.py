"""Values to draw for every field of every request: good ones, ones at a border, and bad ones.

Keyed by message and field as the descriptors name them, so that a field which nobody has thought of is a KeyError of
`draw.py`. A value may be a function of the request: it changes the request itself, where more than one field has to
change. Floats are what a float32 holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAN, INFINITE = float("nan"), float("inf")
INT32_MAX, INT64_MAX, UINT32_MAX, UINT64_MAX = 2**31 - 1, 2**63 - 1, 2**32 - 1, 2**64 - 1
#: The model's, see engine/make_model.py and workers.py.
VOCABULARY, CONTEXT = 512, 2048


@dataclass(frozen=True)
class Values:
    """What a field is drawn from."""

    good: tuple[Any, ...] = ()
    #: At the border of what is allowed, on either side; served or not.
    edge: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()


def _near_the_end(request: Any) -> None:
    """Little context is left, so that a request without a limit of its own is short."""
    ids = request.tokenized.input_ids
    ids.extend(20 + i % 400 for i in range(CONTEXT - 10 - len(ids)))


def _limit(tokens: int | None) -> Any:
    def change(request: Any) -> None:
        _near_the_end(request)
        if tokens is None:
            request.sampling_params.ClearField("max_new_tokens")
        else:
            request.sampling_params.max_new_tokens = tokens

    return change


def _prompt(length: int) -> Any:
    def change(request: Any) -> None:
        del request.tokenized.input_ids[:]
        request.tokenized.input_ids.extend(20 + i % 400 for i in range(length))
        request.sampling_params.max_new_tokens = 2

    return change


_ANY_TEXT = ("é ü", "a\0b", "x" * 2000)
_GENERATE = {
    "GenerateRequest.request_id": Values(
        edge=("x" * 512, "drawn é", "drawn 'quoted'\n"), bad=("", "x" * 513, "a\0b")
    ),
    "GenerateRequest.return_logprob": Values(good=(False, True)),
    "GenerateRequest.logprob_start_len": Values(
        good=(-1,), edge=(0, 5, INT32_MAX), bad=(-2, -(2**31))
    ),
    "GenerateRequest.top_logprobs_num": Values(
        good=(0,), edge=(1, 20, INT32_MAX), bad=(-1, -(2**31))
    ),
    "GenerateRequest.token_ids_logprob": Values(
        good=([],), edge=([0], [VOCABULARY - 1]), bad=([VOCABULARY], [1, UINT32_MAX])
    ),
    "GenerateRequest.stream": Values(good=(True, False)),
    "GenerateRequest.data_parallel_rank": Values(edge=(0,), bad=(1, -1, INT32_MAX)),
    "TokenizedInput.input_ids": Values(
        edge=(
            [5],
            [3, VOCABULARY - 1],
            _prompt(CONTEXT - 1),
            _prompt(CONTEXT - 2),
            _prompt(257),  # more than one chunk of prefill
        ),
        bad=([], [VOCABULARY], [5, INT32_MAX], [5, INT32_MAX + 1], [UINT32_MAX], _prompt(CONTEXT)),
    ),
    "TokenizedInput.original_text": Values(good=("",), edge=("the quick brown fox", *_ANY_TEXT)),
    "SamplingParams.temperature": Values(
        good=(0.0, 0.7, 1.0), edge=(1e-7, 100.0, 3e38), bad=(-1.0, -1e-7, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.top_p": Values(
        good=(0.9, 1.0), edge=(1e-7, 0.5), bad=(0.0, -0.5, 1.5, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.top_k": Values(
        good=(-1, 40), edge=(0, 1, 127, 128, INT32_MAX), bad=(-2, -(2**31))
    ),
    "SamplingParams.min_p": Values(
        good=(0.0, 0.05), edge=(1.0,), bad=(-0.5, 1.5, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.frequency_penalty": Values(
        good=(0.0, 0.5), edge=(-2.0, 2.0), bad=(-2.5, 2.5, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.presence_penalty": Values(
        good=(0.0, -0.25), edge=(-2.0, 2.0), bad=(-2.5, 2.5, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.repetition_penalty": Values(
        good=(1.0, 1.125), edge=(2.0, 1e-7), bad=(0.0, -1.0, 2.5, NAN, INFINITE, -INFINITE)
    ),
    "SamplingParams.max_new_tokens": Values(
        good=(3, 5), edge=(1, _limit(0), _limit(None), _limit(CONTEXT), _limit(UINT32_MAX))
    ),
    "SamplingParams.min_new_tokens": Values(good=(0, 2), edge=(3,), bad=(CONTEXT + 1, UINT32_MAX)),
    "SamplingParams.stop": Values(edge=(["foo"], ["a", "b"], [""], ["é"], ["x" * 5000], ["a\0b"])),
    "SamplingParams.stop_token_ids": Values(
        good=([], [7, 9]), edge=([0], [VOCABULARY - 1], [7] * 100, [VOCABULARY], [UINT32_MAX])
    ),
    "SamplingParams.ignore_eos": Values(good=(True, False)),
    "SamplingParams.skip_special_tokens": Values(good=(True, False)),
    "SamplingParams.spaces_between_special_tokens": Values(good=(True, False)),
    "SamplingParams.no_stop_trim": Values(good=(True, False)),
    "SamplingParams.n": Values(good=(0, 1, 2), edge=(4, 5), bad=(4097, UINT32_MAX)),
    "SamplingParams.logit_bias": Values(
        good=({}, {"17": 1.5}),
        edge=({"0": -100.0, "511": 100.0}, {"05": 1.0}),
        bad=({"512": 1.0}, {"-1": 1.0}, {"": 1.0}, {"a": 1.0}, {"1_0": 1.0}, {" 5": 1.0})
        + ({"5": NAN}, {"5": INFINITE}, {str(UINT64_MAX): 1.0}),
    ),
    "SamplingParams.regex": Values(edge=("[a-z]+",), bad=("", "(", "a{99999999999}")),
    "SamplingParams.json_schema": Values(
        edge=('{"type": "object"}', "true"),
        bad=("", "{", "nope", '{"a": 1} x', "3", '{"type": "array", "items": 3}'),
    ),
    "SamplingParams.ebnf_grammar": Values(edge=('root ::= "a"',), bad=("", "::=")),
    "SamplingParams.structural_tag": Values(
        edge=('{"type": "structural_tag", "format": {"type": "any_text"}}',), bad=("", "{", "[]")
    ),
    "SamplingParams.custom_params": Values(
        edge=({}, {"a": [1, None, {"b": "c"}], "d": True}, {"a": -1.5})
    ),
    "SamplingParams.sampling_seed": Values(
        good=(12345,), edge=(0, INT64_MAX), bad=(INT64_MAX + 1, UINT64_MAX)
    ),
    "KvBootstrapInfo.bootstrap_host": Values(
        good=("127.0.0.1",), edge=("2.2.2.2",), bad=("a b", "a\0b", "a\x7f", "h" * 300)
    ),
    "KvBootstrapInfo.bootstrap_port": Values(good=(8998,), bad=(0, -1, 65536, INT32_MAX)),
    "KvBootstrapInfo.bootstrap_room": Values(
        good=(77,), edge=(1, INT64_MAX), bad=(0, -1, -(2**63))
    ),
    "EncodeItemBootstrapInfo.item_index": Values(good=(0,), bad=(1, UINT32_MAX)),
    "EncodeItemBootstrapInfo.bootstrap_host": Values(good=("127.0.0.1",), bad=("", "a b")),
    "EncodeItemBootstrapInfo.bootstrap_port": Values(good=(8998,), bad=(0, -1, 65536)),
    "EncodeItemBootstrapInfo.bootstrap_room": Values(good=(78,), bad=(0, -1)),
    "TensorData.shape": Values(
        good=([1, 2],), edge=([2], []), bad=([0], [UINT32_MAX] * 3, [1] * 65)
    ),
    "TensorData.dtype": Values(good=("float32",), bad=("", "float33", "object", "O")),
    "TensorData.inline": Values(good=(b"\0" * 8,), bad=(b"", b"\0" * 7)),
    "ShmHandle.name": Values(bad=("", "nobody-has-this", "../etc/passwd", "a\0b")),
    "ShmHandle.offset": Values(good=(0,), bad=(8, UINT64_MAX)),
    "ShmHandle.nbytes": Values(good=(8,), bad=(0, UINT64_MAX)),
    "ShmHandle.owner_id": Values(edge=("someone", "é")),
    "RemoteTensorHandle.transport": Values(good=("nixl",), bad=("", "pigeon")),
    "RemoteTensorHandle.descriptor": Values(good=(b"{}",), bad=(b"", b"\xff")),
    "RemoteTensorHandle.nbytes": Values(good=(8,), bad=(0, UINT64_MAX)),
    "PlaceholderRange.offset": Values(good=(1,), bad=(CONTEXT, UINT32_MAX)),
    "PlaceholderRange.length": Values(good=(2,), bad=(0, UINT32_MAX)),
    "MultimodalItem.modality": Values(good=(1,), edge=(2, 3), bad=(0, 4, -1)),
    "MultimodalItem.content_hash": Values(good=(b"\1" * 8,), edge=(b"", b"\1", b"\1" * 64)),
    "MultimodalItem.placeholder_token_id": Values(good=(500,), bad=(VOCABULARY, UINT32_MAX)),
}

_OTHERS = {
    "AbortRequest.request_id": Values(
        good=("nobody", "nobody-n1"), edge=("x" * 512, "é", "-n0"), bad=("", "x" * 513, "a\0b")
    ),
    "AbortRequest.reason": Values(edge=("the client has gone", *_ANY_TEXT)),
    "GetLoadsRequest.dp_rank": Values(good=(0,), edge=(1, 7, INT32_MAX, -1, -(2**31))),
    "GetLoadsRequest.include": Values(
        good=(["core"], ["all"]),
        edge=(["memory", "queues"], ["disagg"], ["nobody knows"], [""], ["core"] * 50),
    ),
    "FlushCacheRequest.timeout_s": Values(
        good=(0.0, 0.5), edge=(1e-30, -0.0, 3e38), bad=(-1.0, NAN, INFINITE, -INFINITE)
    ),
    "StartProfileRequest.output_dir": Values(good=("/tmp",), edge=("é",), bad=("", "a\0b")),
    "StartProfileRequest.start_step": Values(good=(1,), edge=(0, INT32_MAX), bad=(-1, -(2**31))),
    "StartProfileRequest.num_steps": Values(good=(5,), edge=(1, INT32_MAX), bad=(0, -1)),
    "StartProfileRequest.activities": Values(
        good=(["CPU", "GPU"],), edge=(["CPU", "CPU"], ["nobody knows"]), bad=([""],)
    ),
    "StartProfileRequest.with_stack": Values(good=(True, False)),
    "StartProfileRequest.record_shapes": Values(good=(True, False)),
    "StartProfileRequest.profile_by_stage": Values(good=(True, False)),
    "SubscribeKvEventsRequest.start_sequence_number": Values(good=(0,), edge=(5, UINT64_MAX)),
    "SubscribeKvEventsRequest.load_records_before_first_batch": Values(good=(True, False)),
}

FIELDS = {**_GENERATE, **_OTHERS}
