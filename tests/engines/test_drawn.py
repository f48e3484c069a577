"""Requests drawn by number go to both servicers, in the same order, and get the same answers.

`DRAWN=393 scripts/test-engines tests/engines/test_drawn.py` sends case 393 alone (or several: 3,17,393).
"""

from __future__ import annotations

import ast
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import MODES, Both
from differences import allowed, concatenated, differences
from draw import Case, count, draw, hazard
from exchange import Line, Reply
from requests_table import Answer, request
from rules import FIELDS_MAY_DIFFER, RULES, Got, leaves, rule_of
from workers import Worker

#: Each mode but the first one gets one in so many.
SHARE = 6
PROGRESS = 100
SHOWN = 5
#: What the engine tells of itself is up to this old.
SETTLED_S = 10
ONLY = os.environ.get("DRAWN")

#: Names of rules, and paths of fields, that have been used; and the modes that have been gone through.
used: set[object] = set()
done: set[tuple[str, bool]] = set()


def numbers(both: Both) -> list[int]:
    if ONLY:
        return [int(number) for number in ONLY.split(",")]
    first = (both.output_path, both.stream_output) == MODES[0].values
    if first:
        return list(range(count()))
    return list(
        range(MODES.index(next(m for m in MODES if m.values == mode(both))), count(), SHARE)
    )


def mode(both: Both) -> tuple[str, bool]:
    return both.output_path, both.stream_output


def unlike(case: Case, python: Got, ours: Got) -> list[str]:
    """What differs and may not."""
    if python.code != ours.code:
        if rule := rule_of(case, python, ours):
            used.add(rule.name)
            return []
        return [f"code: Python servicer {python.code}, roomkeeper {ours.code}"]
    if isinstance(python, Reply):
        assert isinstance(ours, Reply)
        if case.method == "SubscribeKvEvents":
            return []  # what comes depends on the moment; test_kv.py compares it
        return [
            f"{path}: Python servicer {python.messages}, roomkeeper {ours.messages}"
            for path in leaves("", python.messages, ours.messages)
            if not may_differ(case.method, re.sub(r"^\[\d+\]\.?", "", path))
        ]
    assert isinstance(ours, Answer)
    if python.code != "OK":
        return []
    return [
        f"{seen.path}: Python servicer {seen.python}, roomkeeper {seen.roomkeeper}"
        for seen in differences(python, ours)
        if allowed(seen) is None
    ]


def may_differ(method: str, path: str) -> bool:
    if (method, path) not in FIELDS_MAY_DIFFER:
        return False
    used.add((method, path))
    return True


def told(case: Case, what: list[str], python: Got, ours: Got) -> str:
    return (
        f"{case}{os.linesep.join(what)}\n"
        f"Python servicer: {python}\nroomkeeper: {ours}\n"
        f"again: DRAWN={case.number} scripts/test-engines tests/engines/test_drawn.py"
    )


def well_formed(case: Case, ours: Got) -> list[str]:
    """What has to hold for our answer whatever the Python servicer says."""
    if isinstance(ours, Reply) or ours.code != "OK":
        return [] if len(ours.detail.splitlines()) <= 1 else [f"detail has lines: {ours.detail!r}"]
    wrong = []
    if sorted(ours.choices) != list(range(max(case.request.sampling_params.n, 1))):
        wrong.append(f"choices {sorted(ours.choices)}")
    for index, choice in ours.choices.items():
        if case.request.stream and concatenated(choice) != choice.complete.get("output_ids"):
            wrong.append(f"choice {index}: the Chunks are not the Complete")
        if not case.request.stream and choice.tokens:
            wrong.append(f"choice {index}: a Chunk although it is not streamed")
        if not choice.complete:
            wrong.append(f"choice {index}: no Complete")
    return wrong


def test_drawn_requests_get_the_same_answers(
    both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    python_line, our_line = Line(both.python), Line(both.roomkeeper)
    failures: list[str] = []
    compared = 0
    with ThreadPoolExecutor(2) as pool:
        for number in numbers(both):
            case = draw(number)
            if hazard(case):
                continue
            until = time.monotonic() + (SETTLED_S if case.method == "GetLoads" else 0)
            while True:
                sent = [pool.submit(line.send, case) for line in (python_line, our_line)]
                python, ours = (future.result() for future in sent)
                wrong = unlike(case, python, ours) + well_formed(case, ours)
                if not wrong or time.monotonic() >= until:
                    break
                time.sleep(0.1)
            compared += 1
            if wrong:
                failures.append(told(case, wrong, python, ours))
            if compared % PROGRESS == 0:
                with capsys.disabled():
                    print(f"\n{compared} drawn requests, {len(failures)} unlike", end="")
    python_line.close()
    our_line.close()
    assert compared > 0
    assert not failures, f"{len(failures)} of {compared} unlike\n" + "\n\n".join(failures[:SHOWN])
    done.add(mode(both))


def in_order(value: Any) -> str:
    """A map of the wire has no order."""
    return repr(dict(sorted(value.items())) if isinstance(value, dict) else value)


def received(worker: Worker) -> dict[int, dict[str, str]]:
    """What the engine's frontend was given for each drawn request, by its number, field by field."""
    pattern = re.compile(r"Receive: obj=(GenerateReqInput\(.*rid='drawn-(\d+)(~\d+)?'.*\)) \(async")
    found: dict[int, dict[str, str]] = {}
    for line in worker.said().splitlines():
        if match := pattern.search(line):
            call = ast.parse(match.group(1), mode="eval").body
            assert isinstance(call, ast.Call)
            fields = {
                keyword.arg: keyword.value
                for keyword in call.keywords
                if keyword.arg and "rid" not in keyword.arg
            }
            sampling = ast.unparse(fields.pop("sampling_params"))
            parsed = eval(sampling, {"nan": float("nan"), "inf": float("inf")})  # noqa: S307
            if parsed.get("n") == 1:  # what the engine assumes without it
                del parsed["n"]
            found[int(match.group(2))] = {
                **{name: ast.unparse(value) for name, value in fields.items()},
                **{f"sampling.{name}": in_order(value) for name, value in parsed.items()},
            }
    return found


#: What the engine may be given by one and not by the other.
GIVEN_MAY_DIFFER = {
    "sampling.custom_params": "The Python servicer drops them; the engine has a place for them.",
    "sampling.top_k": "0 is off, as -1 is; the engine knows only -1, see the rule.",
}


def test_the_engine_is_given_the_same_for_drawn_requests(both: Both) -> None:
    if mode(both) not in done:
        pytest.skip("the drawn requests have not been gone through")
    python, ours = received(both.python), received(both.roomkeeper)
    common = python.keys() & ours.keys()
    assert ONLY or len(common) >= 40
    for number in sorted(common):
        differ = [
            name
            for name in python[number].keys() | ours[number].keys()
            if python[number].get(name) != ours[number].get(name)
        ]
        used.update(("given", name) for name in differ)
        unexplained = [name for name in differ if name not in GIVEN_MAY_DIFFER]
        if "sampling.top_k" in differ:
            given = python[number]["sampling.top_k"], ours[number]["sampling.top_k"]
            assert given == ("0", "-1"), draw(number)
        assert not unexplained, (
            f"{draw(number)}the engine was given {unexplained}\n"
            f"by the Python servicer: {python[number]}\nby roomkeeper: {ours[number]}"
        )


def test_what_would_end_the_python_servicers_engine_does_not_end_ours(both: Both) -> None:
    cases = [case for case in map(draw, range(count())) if hazard(case)]
    assert len(cases) >= 4
    line = Line(both.roomkeeper)
    for case in cases:
        answer = line.send(case)
        assert answer.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNIMPLEMENTED"), case
    good = Case(0, "Generate", request("after the hazards"), ())
    assert line.send(good).code == "OK"
    line.close()
    assert both.roomkeeper.process.poll() is None


def test_every_rule_still_occurs() -> None:
    if ONLY or len(done) != len(MODES):
        pytest.skip("only some of the requests were compared")
    listed = {rule.name for rule in RULES} | set(FIELDS_MAY_DIFFER)
    listed |= {("given", name) for name in GIVEN_MAY_DIFFER}
    assert listed - used == set(), "these differences are listed and do not occur; take them out"
