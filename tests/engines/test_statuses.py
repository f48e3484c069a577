"""Aborts by the engine, by every status, through both servicers."""

from __future__ import annotations

import pytest

from conftest import Both
from engine.faults_table import ABORT_ME, STATUSES
from requests_table import Answer, ask, request
from workers import Worker

CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
OUTPUTS = {"before any output": 0, "after three tokens": 3}


def answer_of(worker: Worker, made) -> Answer:
    with worker.stub() as stub:
        return ask(stub, made)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("when", OUTPUTS)
@pytest.mark.parametrize("status", STATUSES)
def test_an_abort_by_the_engine_is_the_python_servicers_status_with_its_message(
    both: Both, status: int | None, when: str, stream: bool, n: int
) -> None:
    made = request(f"{status}, {when}, {stream}, {n}", stream=stream, n=n)
    del made.tokenized.input_ids[:]
    made.tokenized.input_ids.extend([*ABORT_ME, STATUSES.index(status), OUTPUTS[when]])
    made.tokenized.input_ids.extend([n, 20 + stream])
    python, ours = answer_of(both.python, made), answer_of(both.roomkeeper, made)
    assert ours.code == python.code == CODES.get(status, "INTERNAL")
    assert ours.detail == python.detail == f"told to end with {status}: café"
    for choice in ours.choices.values():
        assert stream and OUTPUTS[when] and not choice.complete
        assert len(sum(choice.tokens, [])) <= OUTPUTS[when]
