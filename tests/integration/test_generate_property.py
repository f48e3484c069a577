"""Whole Generate requests, valid and not, a few at a time, as hypothesis draws them: whatever is asked, and whenever
it is cancelled or aborted, the answer keeps the contract and nothing is left behind.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.client import SERVING, Client, Stream, message, until
from harness.process import SANITIZED, standin
from roomkeeper.standin import tokens

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis is not installed: no Generate requests are drawn"
)
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

VOCAB, WINDOW, CONTEXT = 1000, 4, 256
FLAGS = (
    *("--vocab-size", str(VOCAB), "--max-num-seqs", str(WINDOW), "--max-model-len", str(CONTEXT)),
    *("--step-ms", "2", "--room-gate-aggregated", "on", "--room-waiting", "1"),
)
#: What makes a request one that must be refused: a path, a value, and how the refusal is called.
INVALID = "INVALID_ARGUMENT"
FLAWS: tuple[tuple[str, Any, str], ...] = (
    ("request_id", "x" * 513, INVALID),
    ("tokenized.input_ids", [], INVALID),
    ("tokenized.input_ids", [1, VOCAB], INVALID),
    ("tokenized.input_ids", [1] * CONTEXT, INVALID),
    ("sampling_params.n", WINDOW + 1, INVALID),
    ("sampling_params.temperature", -0.5, INVALID),
    ("sampling_params.temperature", math.nan, INVALID),
    ("sampling_params.top_p", 0.0, INVALID),
    ("sampling_params.top_p", math.inf, INVALID),
    ("sampling_params.top_k", -2, INVALID),
    ("sampling_params.min_p", 1.5, INVALID),
    ("sampling_params.frequency_penalty", 2.5, INVALID),
    ("sampling_params.presence_penalty", -2.5, INVALID),
    ("sampling_params.repetition_penalty", 0.0, INVALID),
    ("sampling_params.min_new_tokens", 1 << 20, INVALID),
    ("sampling_params.json_schema", "{'a': 1}", INVALID),
    ("logprob_start_len", -2, INVALID),
    ("top_logprobs_num", -1, INVALID),
    ("token_ids_logprob", [VOCAB], INVALID),
    ("data_parallel_rank", 1, INVALID),
    ("kv_bootstrap_info.bootstrap_host", "another", "FAILED_PRECONDITION"),
)
#: On a machine that is busy fewer examples are tried: the last ones drawn are let pass.
BOUND_S = 20.0
#: How a request that is fine may end: served; no place; or as its client wanted.
FINE = {"OK", "RESOURCE_EXHAUSTED"}

_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One call."""

    prompt: list[int]
    count: int
    stream: bool
    n: int
    logprobs: int | None
    #: Positions of the model's answer whose tokens are stop tokens.
    stops: list[int]
    keep_stop: bool
    sampling: dict[str, float]
    flaw: tuple[str, Any, str] | None
    #: "cancel" or "abort", once so many messages have come or the call is over.
    deed: str | None
    after: int

    @property
    def answer(self) -> list[int]:
        """What the model says when nothing stops it."""
        return tokens.output_of(self.prompt, self.count, VOCAB)


def plans() -> st.SearchStrategy[Plan]:
    sampling = st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.0, 0.5, 1.0, 100.0]),
            "top_p": st.sampled_from([0.01, 0.5, 1.0]),
            "top_k": st.sampled_from([-1, 0, 1, 50]),
            "min_p": st.sampled_from([0.0, 0.5, 1.0]),
            "frequency_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
            "presence_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
            "repetition_penalty": st.sampled_from([0.5, 1.0, 2.0]),
            "sampling_seed": st.sampled_from([0, 1, (1 << 63) - 5]),
        },
    )
    return st.builds(
        Plan,
        prompt=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=40),
        count=st.integers(1, 200),
        stream=st.booleans(),
        n=st.integers(1, WINDOW),
        logprobs=st.none() | st.integers(0, 5),
        stops=st.lists(st.integers(0, 60), max_size=2),
        keep_stop=st.booleans(),
        sampling=sampling,
        flaw=st.none() | st.sampled_from(FLAWS),
        deed=st.sampled_from([None, "cancel", "abort"]),
        after=st.integers(0, 3),
    )


def put(made: Any, path: str, value: Any) -> None:
    *way, name = path.split(".")
    for step in way:
        made = getattr(made, step)
    if isinstance(value, list):
        del getattr(made, name)[:]
        getattr(made, name).extend(value)
    else:
        setattr(made, name, value)


def request_of(plan: Plan) -> Any:
    made = message("GenerateRequest", request_id=f"drawn-{next(_numbers)}", stream=plan.stream)
    made.tokenized.input_ids.extend(plan.prompt)
    sampling = made.sampling_params
    sampling.max_new_tokens = plan.count
    sampling.n = plan.n
    sampling.ignore_eos = not plan.stops
    sampling.no_stop_trim = plan.keep_stop
    answer = plan.answer
    sampling.stop_token_ids.extend(answer[at] for at in plan.stops if at < len(answer))
    for name, value in plan.sampling.items():
        setattr(sampling, name, value)
    if plan.logprobs is not None:
        made.return_logprob = True
        made.top_logprobs_num = plan.logprobs
    if plan.flaw:
        put(made, *plan.flaw[:2])
    return made


def do_deed(client: Client, plan: Plan, request: Any, stream: Stream) -> None:
    until(lambda: len(stream.messages) >= plan.after or stream.ended(), "its moment comes")
    if plan.deed == "cancel":
        stream.cancel()
    elif plan.deed == "abort" and not plan.flaw:
        client.abort(request.request_id)


# -- what must hold --


def check_logprobs(plan: Plan, ids: list[int], logprobs: Any) -> None:
    """One entry a token in each list, of that token, or none at all."""
    if plan.logprobs is None:
        assert not logprobs.token_ids and not logprobs.token_logprobs
        return
    assert list(logprobs.token_ids) == ids
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(ids)
    for top in logprobs.top_logprobs:
        assert len(top.values) == len(top.token_ids) == plan.logprobs


def check_choice(plan: Plan, stream: Stream, index: int) -> None:
    last = stream.complete(index)  # exactly one, behind its Chunks
    ids = list(last.output_ids)
    if plan.stream:
        assert stream.chunk_ids(index) == ids
        assert [c.completion_tokens for c in stream.chunks(index)] == sorted(
            c.completion_tokens for c in stream.chunks(index)
        )
        for chunk in stream.chunks(index):
            check_logprobs(plan, list(chunk.token_ids), chunk.output_logprobs)
    else:
        assert not stream.chunks(index)
    check_logprobs(plan, ids, last.output_logprobs)
    assert ids == plan.answer[: len(ids)]
    # A choice aborted before the engine said anything of it has no counts.
    unheard = last.finish_reason == "abort" and not ids
    assert last.prompt_tokens in ({0, len(plan.prompt)} if unheard else {len(plan.prompt)})
    stops = {token for at, token in enumerate(plan.answer) if at in plan.stops}
    stop = next((at for at, token in enumerate(plan.answer) if token in stops), None)
    if last.finish_reason == "length":
        assert len(ids) == plan.count == last.completion_tokens
        assert stop in (None, plan.count - 1)
    elif last.finish_reason == "stop":
        assert stop is not None and last.matched_token_id == plan.answer[stop]
        assert len(ids) == stop + plan.keep_stop
    else:
        assert last.finish_reason == "abort" and plan.deed == "abort"


def check_end(plan: Plan, stream: Stream) -> None:
    status = stream.end()
    allowed = {plan.flaw[2]} if plan.flaw else set(FINE)
    if plan.deed == "cancel":
        allowed.add("CANCELLED")
    assert status.name in allowed, status
    if status.name == "OK":
        for index in range(plan.n):
            check_choice(plan, stream, index)
        indices = {getattr(m, m.WhichOneof("response")).index for m in stream.messages}
        assert indices == set(range(plan.n))
    elif status.name != "CANCELLED":
        assert not stream.messages
        assert status.details and "\n" not in status.details


def is_idle(client: Client) -> bool:
    (load,) = client.loads().loads
    ranks = client.rooms()["ranks"]
    held = sum(rank["held_slots"] + rank["releasing"] for rank in ranks)
    return not (load.num_running_reqs or load.num_waiting_reqs or held)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with standin(*FLAGS) as worker, Client(worker.address) as made:
        yield made


@pytest.fixture
def started_s() -> float:
    return time.monotonic()


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: f"{flaw[0]} {str(flaw[1])[:12]}")
def test_each_flaw_alone_is_refused(client: Client, flaw: tuple[str, Any, str]) -> None:
    plan = Plan([3], 1, True, 1, None, [], False, {}, flaw, None, 0)
    check_end(plan, client.send(request_of(plan)))
    assert client.check() == SERVING


@settings(
    max_examples=15 if SANITIZED else 40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(batch=st.lists(plans(), min_size=3, max_size=6))
def test_whatever_is_asked_the_answer_keeps_the_contract(
    client: Client, started_s: float, batch: list[Plan]
) -> None:
    if time.monotonic() - started_s > BOUND_S:
        return
    requests = [request_of(plan) for plan in batch]
    streams = [client.send(made) for made in requests]
    for plan, made, stream in zip(batch, requests, streams, strict=True):
        if plan.deed:
            do_deed(client, plan, made, stream)
    for plan, stream in zip(batch, streams, strict=True):
        check_end(plan, stream)
    until(lambda: is_idle(client), "every slot is free")
    assert client.check() == SERVING
