"""Generate through our launcher, compared field by field with the Python servicer over the same engine."""

from __future__ import annotations

import ast
import re
import threading

import pytest

from conftest import MODES, Both
from differences import ALLOWED, allowed, concatenated, differences
from requests_table import ANSWERED, REFUSED, WITH_LOGPROBS, Answer, ask, request
from workers import Worker

#: The Python servicer takes these; the contract says why we do not.
REFUSED_BY_US_ONLY = {
    "no request_id": "an Abort could not name it, and two would be one to the engine",
    "temperature -1": "the engine samples greedily for it, which is what 0 says",
}
#: Where the answers differed, by mode and request.
used: dict[tuple[object, ...], set[str]] = {}


def answer_of(worker: Worker, made) -> Answer:
    with worker.stub() as stub:
        return ask(stub, made)


def assert_alike(test: tuple[object, ...], python: Answer, ours: Answer) -> None:
    seen = list(differences(python, ours))
    unexplained = [one for one in seen if allowed(one) is None]
    assert not unexplained, "\n".join(
        f"{one.path}: Python servicer {one.python}, roomkeeper {one.roomkeeper}"
        for one in unexplained
    )
    used.setdefault(test, set()).update(one.path for one in seen)


@pytest.mark.parametrize("name", [*ANSWERED, *WITH_LOGPROBS])
def test_a_request_gets_the_same_answer_as_from_the_python_servicer(both: Both, name: str) -> None:
    made = ANSWERED.get(name) or WITH_LOGPROBS[name]
    python, ours = answer_of(both.python, made), answer_of(both.roomkeeper, made)
    assert python.code == "OK" and python.choices
    assert_alike((both.output_path, both.stream_output, name), python, ours)
    for choice in ours.choices.values():
        assert choice.complete["completion_tokens"] > 0
        if made.stream:
            assert concatenated(choice) == choice.complete["output_ids"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_cannot_be_is_refused_with_the_python_servicers_code(
    both: Both, name: str
) -> None:
    python, ours = answer_of(both.python, REFUSED[name]), answer_of(both.roomkeeper, REFUSED[name])
    assert ours.code == "INVALID_ARGUMENT" and not ours.choices
    assert len(ours.detail.splitlines()) == 1
    assert python.code == ("OK" if name in REFUSED_BY_US_ONLY else "INVALID_ARGUMENT")


def test_sixteen_requests_at_once_get_the_same_tokens_as_one_by_one(both: Both) -> None:
    made = [request(f"at once {i}", tokens=20) for i in range(16)]
    answers: dict[int, Answer] = {}

    def run(i: int) -> None:
        answers[i] = answer_of(both.roomkeeper, made[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i in range(16):
        python = answer_of(both.python, made[i])
        assert answers[i].choices[0].complete["output_ids"] == concatenated(answers[i].choices[0])
        assert answers[i].code == python.code == "OK"
        assert (
            concatenated(answers[i].choices[0])[-1] == python.choices[0].complete["output_ids"][-1]
        )
        assert len(concatenated(answers[i].choices[0])) == 20


def received(worker: Worker, name: str) -> list[dict[str, str]]:
    """What the engine's frontend says it was given for a request, field by field, without the ids."""
    pattern = re.compile(
        rf"Receive: obj=(GenerateReqInput\(.*rid='{re.escape(name)}(~\d+)?'.*\)) \(async_llm"
    )
    found = []
    for line in worker.said().splitlines():
        if match := pattern.search(line):
            call = ast.parse(match.group(1), mode="eval").body
            fields = {
                keyword.arg: keyword.value for keyword in call.keywords if "rid" not in keyword.arg
            }
            sampling = ast.literal_eval(fields.pop("sampling_params"))
            if sampling.get("n") == 1:  # what the engine assumes without it
                del sampling["n"]
            found.append({**{key: ast.unparse(value) for key, value in fields.items()}, **sampling})
    return found


@pytest.mark.parametrize(
    "name", [name for name in [*ANSWERED, *WITH_LOGPROBS] if "choices" not in name]
)
def test_the_engine_is_given_what_the_python_servicer_gives_it(both: Both, name: str) -> None:
    made = ANSWERED.get(name) or WITH_LOGPROBS[name]
    for worker in (both.python, both.roomkeeper):
        if not received(worker, name):
            answer_of(worker, made)
    assert received(both.roomkeeper, name)[0] == received(both.python, name)[0]


def test_every_allowed_difference_is_still_there() -> None:
    if len(used) != len(MODES) * len({*ANSWERED, *WITH_LOGPROBS}):
        pytest.skip("only some of the requests were compared")
    assert set().union(*used.values()) == {entry.path for entry in ALLOWED}
