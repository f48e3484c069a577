"""The parts of the scenarios by themselves: traces, the gateway's log, why requests fail."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roomkeeper.demo.plan import Outcome
from roomkeeper.scenario.chaos import longest_stranded_s
from roomkeeper.scenario.classify import Outage, classify, read_pairs
from roomkeeper.scenario.storm import Aborts
from roomkeeper.scenario.traces import Leg, read_legs

PAIR = ("grpc://h:1", "grpc://h:2")


def write(trace: Path, *events: tuple[str, str, int, float]) -> Path:
    with trace.open("a") as file:
        for event, request, room, at in events:
            file.write(json.dumps({"t": at, "event": event, "id": request, "room": room}) + "\n")
    return trace


def life(role: str, trace: Path, gone_s: float | None = None) -> Any:
    return SimpleNamespace(role=role, trace=trace, gone_s=gone_s)


def test_legs_are_read_from_a_trace_whose_last_line_is_half_written(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "trace",
        ("arrived", "a~1", 7, 1.0),
        ("admitted", "a~1", 7, 1.5),
        ("arrived", "b~2", 8, 2.0),
        ("kv", "a~1", 7, 2.5),
        ("gone", "a~1", 7, 3.0),
    )
    with trace.open("a") as file:
        file.write('{"t": 4.0, "event": "go')
    assert read_legs(trace) == [Leg("a~1", 7, 1.0, 1.5, 2.5, 3.0), Leg("b~2", 8, 2.0)]
    assert read_legs(tmp_path / "none") == []


def test_the_pair_of_a_request_is_that_of_its_last_try(tmp_path: Path) -> None:
    def chosen(request: str, prefill: str, decode: str) -> str:
        entry = {"message": "Selected PD pair", "prefill": prefill, "decode": decode}
        return json.dumps({**entry, "span": {"request_id": request}})

    log = tmp_path / "gateway.log"
    lines = [
        "a banner that is no JSON",
        chosen("chaos-1", "p0", "d0"),
        json.dumps({"message": "Decode worker failed to start", "span": {"request_id": "chaos-1"}}),
        chosen("chaos-12", "p0", "d1"),
        chosen("chaos-1", "p1", "d2"),
    ]
    log.write_text("\n".join(lines) + "\n")
    assert read_pairs(log) == {"chaos-1": ("p1", "d2"), "chaos-12": ("p0", "d1")}


@pytest.mark.parametrize(
    ("pair", "outage", "why"),
    [
        (None, Outage("grpc://h:1", 0, 99), "never_dispatched"),
        (PAIR, Outage("grpc://h:2", 112, 115), "killed_worker"),
        (PAIR, Outage("grpc://h:1", 105, 111), "killed_worker"),  # it was down already
        (PAIR, Outage("grpc://h:3", 112, 115), "other"),  # that is another worker
        (PAIR, Outage("grpc://h:2", 114, 118), "other"),  # killed when the request was over
        (PAIR, Outage("grpc://h:2", 101, 109), "other"),  # back before it was sent
    ],
)
def test_a_failure_is_put_down_to_a_kill_only_while_the_worker_is_away(
    pair: tuple[str, str] | None, outage: Outage, why: str
) -> None:
    """The burst begins at 100, the request is sent at 110 and over at 113."""
    outcome = Outcome("500", False, sent_s=10.0, latency_s=3.0)
    assert classify(outcome, pair, 100.0, [outage]) == why


def test_a_slot_is_stranded_from_its_prefills_end_until_its_own(tmp_path: Path) -> None:
    prefill = write(
        tmp_path / "prefill", ("arrived", "c-1-x~1", 1, 10.0), ("gone", "c-1-x~1", 1, 12.0)
    )
    decode = write(
        tmp_path / "decode",
        ("arrived", "c-1-x~1", 1, 10.0),
        ("admitted", "c-1-x~1", 1, 10.1),
        ("gone", "c-1-x~1", 1, 12.4),
        # Its KV came: it may run on without its prefill.
        ("arrived", "c-2-x~2", 2, 10.0),
        ("admitted", "c-2-x~2", 2, 10.1),
        ("kv", "c-2-x~2", 2, 10.2),
        ("gone", "c-2-x~2", 2, 19.0),
    )
    lives = [life("prefill", prefill), life("decode", decode)]
    assert longest_stranded_s(lives, {}) == pytest.approx(0.4)


def test_a_killed_prefill_is_gone_with_its_last_process(tmp_path: Path) -> None:
    prefill = write(tmp_path / "prefill", ("arrived", "c-1-x~1", 1, 10.0))
    decode = write(
        tmp_path / "decode",
        ("arrived", "c-1-x~1", 1, 10.0),
        ("admitted", "c-1-x~1", 1, 10.1),
        ("gone", "c-1-x~1", 1, 14.0),
    )
    lives = [life("prefill", prefill, gone_s=11.0), life("decode", decode)]
    assert longest_stranded_s(lives, {}) == pytest.approx(3.0)


def test_a_prefill_that_never_had_the_leg_is_gone_with_the_request(tmp_path: Path) -> None:
    decode = write(
        tmp_path / "decode",
        ("arrived", "c-1-x~1", 1, 10.0),
        ("admitted", "c-1-x~1", 1, 10.1),
        ("gone", "c-1-x~1", 1, 14.0),
    )
    lives = [life("decode", decode)]
    assert longest_stranded_s(lives, {"c-1": 13.0, "c-11": 1.0}) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gone_s", "aborts", "where"),
    [
        (10.2, 1, "once"),
        (10.2, 0, "with_twin"),
        (10.2, 2, "repeated"),
        (12.0, 1, "late"),
        (None, 0, "late"),
    ],
)
def test_a_leg_of_the_storm_is_ended_once_and_soon(
    gone_s: float | None, aborts: int, where: str
) -> None:
    seen = Aborts()
    for role in ("prefill", "decode"):
        seen.count(role, Leg("storm-1-x~1", 1, 9.0, gone_s=gone_s), aborts, cancelled_s=10.0)
    assert getattr(seen, where) == ["prefill storm-1-x~1", "decode storm-1-x~1"]
    assert seen.submitted == 2
    assert seen.clean == (where in ("once", "with_twin"))
