"""Where the answers of the two servicers may differ, beyond what `differences.py` says of a Generate's messages, and why.

A rule says of which exchanges it speaks by what was asked, not by what came, wherever that can be told. Each has to
occur when all drawn requests are sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draw import Case
from exchange import Reply
from field_values import INT64_MAX, VOCABULARY
from requests_table import Answer
from workers import WINDOW

Got = Answer | Reply


@dataclass(frozen=True)
class Rule:
    """A status code that may differ."""

    name: str
    reason: str
    #: Case, the Python servicer's answer, ours.
    when: Callable[[Case, Got, Got], bool]


# -- what the contract refuses by its field --


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _bad_bias(sampling: Any) -> bool:
    return any(
        not (key.isascii() and key.isdigit() and int(key) < VOCABULARY) or not math.isfinite(value)
        for key, value in sampling.logit_bias.items()
    )


#: Field, why we refuse what the Python servicer lets through (or fails with another code), and which values.
_REFUSED: list[tuple[str, str, Callable[[Any], bool]]] = [
    (
        "request_id",
        "An Abort could not name it, or its log line would be broken. The engine serves it.",
        lambda r: not 1 <= len(r.request_id.encode()) <= 512 or "\0" in r.request_id,
    ),
    (
        "tokenized.input_ids",
        "A token beyond the vocabulary indexes past the embedding. The engine looks only when prompt logprobs are "
        "wanted.",
        lambda r: any(token >= VOCABULARY for token in r.tokenized.input_ids),
    ),
    (
        "sampling_params.temperature",
        "The engine takes a negative one for greedy, and computes with NaN and infinity.",
        lambda r: not 0 <= r.sampling_params.temperature < math.inf,
    ),
    (
        "sampling_params.repetition_penalty",
        "The engine's own words are (0, 2], but it lets 0 through and divides by it.",
        lambda r: r.sampling_params.HasField("repetition_penalty")
        and not 0 < r.sampling_params.repetition_penalty <= 2,
    ),
    (
        "sampling_params.n",
        "Choices run together, so more than the window could not be admitted.",
        lambda r: r.sampling_params.n > WINDOW,
    ),
    (
        "sampling_params.sampling_seed",
        "The engine keeps seeds in signed 64 bits.",
        lambda r: r.sampling_params.sampling_seed > INT64_MAX - max(r.sampling_params.n, 1) + 1,
    ),
    (
        "sampling_params.logit_bias",
        "Keys are token ids in decimal. The engine reads them as Python does an int, and lets NaN and infinity through.",
        lambda r: _bad_bias(r.sampling_params),
    ),
    (
        "sampling_params.regex",
        "An empty expression allows nothing.",
        lambda r: r.sampling_params.HasField("regex") and not r.sampling_params.regex,
    ),
    (
        "sampling_params.json_schema",
        "What is no JSON is refused before it reaches the engine, whose abort loses its status on the way: INTERNAL.",
        lambda r: r.sampling_params.HasField("json_schema")
        and not _is_json(r.sampling_params.json_schema),
    ),
    (
        "sampling_params.structural_tag",
        "As for json_schema.",
        lambda r: r.sampling_params.HasField("structural_tag")
        and not _is_json(r.sampling_params.structural_tag),
    ),
    (
        "logprob_start_len",
        "The engine reads it only with return_logprob.",
        lambda r: r.logprob_start_len < -1,
    ),
    (
        "top_logprobs_num",
        "The engine reads it only with return_logprob.",
        lambda r: r.top_logprobs_num < 0,
    ),
    (
        "token_ids_logprob",
        "The engine reads them only with return_logprob.",
        lambda r: any(token >= VOCABULARY for token in r.token_ids_logprob),
    ),
    (
        "kv_bootstrap_info.bootstrap_host",
        "No host has such a name. The Python servicer does not look.",
        lambda r: len(r.kv_bootstrap_info.bootstrap_host) > 255
        or any(c <= " " or c == "\x7f" for c in r.kv_bootstrap_info.bootstrap_host),
    ),
    (
        "data_parallel_rank",
        "An engine without data parallelism drops the pin. A gateway that pins to a rank which is not there is wrong "
        "about the worker, and should hear it.",
        lambda r: r.data_parallel_rank != 0,
    ),
]


def _refused(path: str, bad: Callable[[Any], bool]) -> Callable[[Case, Got, Got], bool]:
    def when(case: Case, _python: Got, ours: Got) -> bool:
        named = ours.detail.startswith((f"{path} ", f"{path}["))
        return (
            case.method == "Generate"
            and ours.code == "INVALID_ARGUMENT"
            and named
            and bad(case.request)
        )

    return when


RULES = [
    *(Rule(f"Generate, {path}", reason, _refused(path, bad)) for path, reason, bad in _REFUSED),
    Rule(
        "Generate, top_k 0",
        "0 and -1 both mean off on the wire. The engine knows only -1, and the Python servicer passes the 0 on.",
        lambda case, python, ours: case.method == "Generate"
        and case.request.sampling_params.top_k == 0
        and (python.code, ours.code) == ("INVALID_ARGUMENT", "OK"),
    ),
    Rule(
        "Generate, a room in an aggregated worker",
        "An aggregated worker has no twin to meet. The Python servicer serves the leg as if the room were not there.",
        lambda case, python, ours: case.method == "Generate"
        and bool(case.request.kv_bootstrap_info.bootstrap_host)
        and ours.code == "FAILED_PRECONDITION",
    ),
    Rule(
        "Generate, a grammar",
        "The engine loses the status of its aborts, so what its grammar backend refuses is INTERNAL to the Python "
        "servicer. It is the client's fault, and we say so. The words are the same.",
        lambda case, python, ours: case.method == "Generate"
        and (python.code, ours.code) == ("INTERNAL", "INVALID_ARGUMENT")
        and python.detail == ours.detail
        and ours.detail.startswith("Failed to compile "),
    ),
    Rule(
        "Generate, multimodal",
        "What cannot be read is the client's fault and named. The Python servicer fails with what its libraries raise: "
        "INTERNAL.",
        lambda case, python, ours: case.method == "Generate"
        and case.request.HasField("mm_inputs")
        and (python.code, ours.code) == ("INTERNAL", "INVALID_ARGUMENT")
        and any(word in ours.detail for word in ("mm_inputs", "encoder_input", "shm segment")),
    ),
    Rule(
        "Generate, encode_bootstrap_info in an aggregated worker",
        "No embedding is sent to an aggregated worker. The Python servicer looks only whether there are mm_inputs.",
        lambda case, python, ours: case.method == "Generate"
        and case.request.HasField("encode_bootstrap_info")
        and (python.code, ours.code) == ("INVALID_ARGUMENT", "FAILED_PRECONDITION"),
    ),
    Rule(
        "SubscribeKvEvents, from a number",
        "We go on from the publisher's number where it is known, and give a snapshot where it is not. The Python "
        "servicer counts each subscription anew, so it has nothing to go on from.",
        lambda case, python, ours: case.method == "SubscribeKvEvents"
        and case.request.start_sequence_number > 0
        and (python.code, ours.code) == ("OUT_OF_RANGE", "DEADLINE_EXCEEDED"),
    ),
    Rule(
        "bytes that are no message",
        "The client's fault, so INVALID_ARGUMENT. The Python servicer's library fails while it parses: UNKNOWN.",
        lambda case, python, ours: case.spoilt is not None
        and python.code in ("UNKNOWN", "INTERNAL")
        and ours.code == "INVALID_ARGUMENT",
    ),
    Rule(
        "bytes of another wire type",
        "The Python servicer's library skips a field whose wire type is not the one of the .proto. Read so, it would be "
        "another request than the client has sent.",
        lambda case, python, ours: case.spoilt is not None
        and case.method not in ("Generate", "Abort", "StartProfile")
        and ours.code == "INVALID_ARGUMENT",
    ),
    Rule(
        "Abort, request_id",
        "No request has such an id, so the client is wrong about more than the time.",
        lambda case, python, ours: case.method == "Abort"
        and (python.code, ours.code) == ("OK", "INVALID_ARGUMENT")
        and ours.detail.startswith("request_id ")
        and (
            not 1 <= len(case.request.request_id.encode()) <= 512 or "\0" in case.request.request_id
        ),
    ),
    Rule(
        "profiling that the engine refuses",
        "A refusal is an answer: success=false with the engine's message. The Python servicer fails the call: INTERNAL.",
        lambda case, python, ours: case.method in ("StartProfile", "StopProfile")
        and (python.code, ours.code) == ("INTERNAL", "OK")
        and isinstance(ours, Reply)
        and ours.messages[0]["success"] is False
        and python.detail.endswith(f": {ours.messages[0]['message']}"),
    ),
    Rule(
        "StartProfile, a value that makes no sense",
        "Refused by the field's name. The Python servicer hands it to the engine, which fails: INTERNAL.",
        lambda case, python, ours: case.method == "StartProfile"
        and (python.code, ours.code) == ("INTERNAL", "INVALID_ARGUMENT")
        and (
            case.request.start_step < 0
            or (case.request.HasField("num_steps") and case.request.num_steps < 1)
            or (case.request.HasField("output_dir") and not case.request.output_dir)
            or "\0" in case.request.output_dir
            or "" in case.request.activities
        ),
    ),
]

#: Method and path of a field in an answer that may differ, and why.
FIELDS_MAY_DIFFER = {
    ("FlushCache", "message"): "Words for people.",
    ("GetLoads", "timestamp"): "Time.",
    (
        "GetLoads",
        "dp_rank_count",
    ): "Of a rank that is not there, the Python servicer counts 0 ranks, we the worker's.",
    ("GetServerInfo", "scheduler_info.roomkeeper"): "The Python servicer has no rooms to tell of.",
    (
        "GetServerInfo",
        "server_args.kv_events_config",
    ): "Two publishers have two addresses.",
    ("GetServerInfo", "server_args.port"): "Two workers have two ports.",
    ("GetServerInfo", "server_args.seed"): "The engine draws one a start.",
    ("GetServerInfo", "uptime_seconds"): "Time.",
    ("GetServerInfo", "start_time"): "Time.",
}


def rule_of(case: Case, python: Got, ours: Got) -> Rule | None:
    """The rule by which the codes may differ."""
    return next((rule for rule in RULES if rule.when(case, python, ours)), None)


def leaves(path: str, python: Any, ours: Any) -> Iterator[str]:
    """Paths at which they differ."""
    if python == ours:
        return
    if isinstance(python, dict) and isinstance(ours, dict):
        for name in sorted(python.keys() | ours.keys()):
            yield from leaves(f"{path}.{name}" if path else name, python.get(name), ours.get(name))
    elif isinstance(python, list) and isinstance(ours, list) and len(python) == len(ours):
        for i, (a, b) in enumerate(zip(python, ours, strict=True)):
            yield from leaves(f"{path}[{i}]", a, b)
    else:
        yield path
