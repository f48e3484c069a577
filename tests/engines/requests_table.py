"""The requests that both servicers get, and what a client makes of their answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

TIMEOUT_S = 60


def request(
    name: str, stream: bool = True, tokens: int | None = 8, **fields: Any
) -> messages.GenerateRequest:
    """A request with a prompt of its own, made from its name. `fields` go where they belong."""
    made = messages.GenerateRequest(request_id=name, stream=stream)
    seed = zlib.crc32(name.encode())
    made.tokenized.input_ids.extend(20 + (seed >> at) % 400 for at in range(30))
    made.sampling_params.ignore_eos = True
    if tokens is not None:
        made.sampling_params.max_new_tokens = tokens
    for name_, value in fields.items():
        owner = made if name_ in made.DESCRIPTOR.fields_by_name else made.sampling_params
        if isinstance(value, list):
            getattr(owner, name_).extend(value)
        elif isinstance(value, dict):
            getattr(owner, name_).update(value)
        else:
            setattr(owner, name_, value)
    return made


#: Token i of a prompt is made up from the prompt and i, so a stop token has to be one that will come.
def stop_of(name: str, at: int) -> int:
    """Token `at` of what the engine says to the prompt of request `name`."""
    import array

    prompt = request(name).tokenized.input_ids
    checksum = zlib.crc32(array.array("i", prompt).tobytes())
    return 3 + zlib.crc32(b"%d" % at, checksum) % (512 - 3)


def stopping(name: str, at: int, **fields: Any) -> messages.GenerateRequest:
    return request(name, stop_token_ids=[stop_of(name, at)], ignore_eos=False, **fields)


def everything(name: str, **fields: Any) -> messages.GenerateRequest:
    """Every sampling parameter that the engine's input processor takes without a grammar backend."""
    return request(
        name,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        frequency_penalty=0.5,
        presence_penalty=-0.25,
        repetition_penalty=1.1,
        min_new_tokens=2,
        stop_token_ids=[7, 9],
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        no_stop_trim=True,
        sampling_seed=12345,
        logit_bias={"17": 1.5, "23": -2.0},
        **fields,
    )


ANSWERED = {
    "streaming": request("streaming"),
    "not streaming": request("not streaming", stream=False),
    "one token": request("one token", tokens=1),
    "one token, not streaming": request("one token, not streaming", stream=False, tokens=1),
    "many tokens": request("many tokens", tokens=200),
    "no max_new_tokens": request("no max_new_tokens", tokens=None),
    "greedy": request("greedy", temperature=0.0),
    "three choices": request("three choices", n=3),
    "two choices, not streaming": request("two choices, not streaming", stream=False, n=2),
    "n = 1": request("n = 1", n=1),
    "stop token": stopping("stop token", 4),
    "stop token, not streaming": stopping("stop token, not streaming", 4, stream=False),
    "stop token first": stopping("stop token first", 0),
    "stop token kept": stopping("stop token kept", 4, no_stop_trim=True),
    "stop token kept, not streaming": stopping(
        "stop token kept, not streaming", 4, no_stop_trim=True, stream=False
    ),
    "every parameter": everything("every parameter"),
    "every parameter, not streaming": everything("every parameter, not streaming", stream=False),
}
#: These need --enable-output-logprobs.
WITH_LOGPROBS = {
    "logprobs": request("logprobs", return_logprob=True),
    "logprobs, not streaming": request(
        "logprobs, not streaming", stream=False, return_logprob=True
    ),
    "logprobs, two choices": request("logprobs, two choices", n=2, return_logprob=True),
    "logprobs, stop token": stopping("logprobs, stop token", 4, return_logprob=True),
    "logprobs, stop token, not streaming": stopping(
        "logprobs, stop token, not streaming", 4, stream=False, return_logprob=True
    ),
}
REFUSED = {
    "no request_id": request("", stream=False),
    "no tokens": messages.GenerateRequest(request_id="no tokens"),
    "prompt too long": request("prompt too long"),
    "logprobs of a prompt": request(
        "logprobs of a prompt", return_logprob=True, logprob_start_len=0
    ),
    "top_p 0": request("top_p 0", top_p=0.0),
    "temperature -1": request("temperature -1", temperature=-1.0),
    "min_new_tokens beyond max_new_tokens": request(
        "min_new_tokens beyond", tokens=4, min_new_tokens=9
    ),
}
# The engine goes on to the end of the context then, which is near with such a prompt.
ANSWERED["no max_new_tokens"].tokenized.input_ids.extend([20] * 1900)
REFUSED["prompt too long"].tokenized.input_ids.extend([20] * 2048)


@dataclass
class Choice:
    """What one choice of an answer said."""

    #: Per Chunk.
    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    #: Of the last Chunk, but for its tokens and logprobs.
    last: dict[str, Any] = field(default_factory=dict)
    complete: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    """The answer to one request."""

    code: str
    detail: str
    choices: dict[int, Choice]


def ask(stub: Any, made: messages.GenerateRequest) -> Answer:
    """Sends it and reads to the end."""
    return read(made.request_id, lambda: stub.Generate(made, timeout=TIMEOUT_S))


def read(request_id: str, call: Callable[[], Iterable[messages.GenerateResponse]]) -> Answer:
    """Reads a stream to its end, choice by choice."""
    choices: dict[int, Choice] = {}
    try:
        for response in call():
            assert response.request_id == request_id
            if response.HasField("chunk"):
                choice = choices.setdefault(response.chunk.index, Choice())
                assert not choice.complete, "a Chunk comes before its Complete"
                fields = as_dict(response.chunk)
                choice.tokens.append(fields.pop("token_ids"))
                choice.logprobs.append(fields.get("output_logprobs", {}).get("token_logprobs", []))
                choice.last = {
                    name: value for name, value in fields.items() if "logprobs" not in name
                }
            else:
                choice = choices.setdefault(response.complete.index, Choice())
                assert not choice.complete, "a choice is complete once"
                choice.complete = as_dict(response.complete)
    except grpc.RpcError as error:
        return Answer(error.code().name, error.details() or "", choices)
    return Answer("OK", "", choices)


def as_dict(message: Any) -> dict[str, Any]:
    """Every field by its name, those at their default too."""
    made: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return made
