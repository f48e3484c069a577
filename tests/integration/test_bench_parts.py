"""What the bench makes of its figures: medians, ratios, verdicts, tables and pictures; and its stub engine's steps."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
sys.path += [str(BENCH), str(BENCH / "peers")]

from compare.__main__ import goals_table, table  # noqa: E402
from compare.goals import GOALS, Goal, verdicts  # noqa: E402
from compare.plots import svg  # noqa: E402
from compare.rows import Rows  # noqa: E402
from compare.servers import kinds  # noqa: E402


def rows_of(**figures: tuple[float, ...]) -> Rows:
    """Of one work and metric, by server; "_" stands for "-"."""
    rows = Rows()
    for server, values in figures.items():
        for value in values:
            rows.add("paced-64", "server_cpu_us", server.replace("_", "-"), value)
    return rows


def test_rows_say_median_spread_and_how_many() -> None:
    rows = rows_of(rust=(3.0, 9.0, 4.0), python=(90.0,))
    assert rows.as_json() == [
        {
            "work": "paced-64",
            "metric": "server_cpu_us",
            "server": "rust",
            "median": 4.0,
            "min": 3.0,
            "max": 9.0,
            "runs": 3,
        },
        {
            "work": "paced-64",
            "metric": "server_cpu_us",
            "server": "python",
            "median": 90.0,
            "min": 90.0,
            "max": 90.0,
            "runs": 1,
        },
    ]
    assert rows.median("paced-64", "server_cpu_us", "bare") is None


def goal(peer: str, without_engine: bool = False, **changes: Any) -> Goal:
    settings: dict[str, Any] = {
        "work": "paced-64",
        "metric": "server_cpu_us",
        "sense": "<=",
        "bound": 0.2,
    }
    return Goal(peer=peer, without_engine=without_engine, **{**settings, **changes})


def test_a_ratio_is_of_medians_and_without_the_engine_where_that_is_in_the_same_process() -> None:
    rows = rows_of(
        roomkeeper=(7.0, 8.0, 30.0),
        python=(80.0, 84.0, 81.0),
        rust=(12.0,),
        engine_steps=(2.0,),
        engine_asyncllm=(21.0,),
    )
    assert goal("python").ratio(rows) == pytest.approx(8 / 81)
    assert goal("python", True).ratio(rows) == pytest.approx(6 / 60)
    assert goal("rust", True).ratio(rows) == pytest.approx(6 / 12)
    assert goal("bare").ratio(rows) is None


def test_a_first_token_counts_from_the_step() -> None:
    rows = Rows()
    rows.add("paced-64", "ttft_p50_ms", "roomkeeper", 11.5)
    rows.add("paced-64", "ttft_p50_ms", "rust", 12.0)
    rows.add("paced-64", "ttft_p50_ms", "python", 9.0)
    assert goal("rust", True, metric="ttft_p50_ms").ratio(rows) == pytest.approx(1.5 / 2.0)
    below = goal("python", True, metric="ttft_p50_ms")
    ratio = below.ratio(rows)
    assert ratio is not None and not below.met(ratio), "a peer below the step is not beaten"


@pytest.mark.parametrize(
    ("sense", "ratio", "met"),
    [(">=", 12.0, True), (">=", 11.99, False), ("<=", 12.0, True), ("<=", 12.01, False)],
)
def test_a_goal_is_met_at_its_bound(sense: str, ratio: float, met: bool) -> None:
    assert goal("python", sense=sense, bound=12.0).met(ratio) is met


def test_verdicts_are_of_what_was_measured_and_say_so() -> None:
    found = verdicts(rows_of(roomkeeper=(30.0,), python=(100.0,)))
    assert [(one["peer"], one["ratio"], one["met"]) for one in found] == [("python", 0.3, False)]
    assert "| 0.3 | <= 0.2 | **not met** |" in goals_table(found)


WORKS = {
    "unpaced-32",
    "paced-64",
    "paced-256",
    "loads-stuck",
    "cancel-128",
    "refusals",
    "slow-reader",
}


@pytest.mark.parametrize("one", GOALS, ids=lambda one: f"{one.work}-{one.metric}-{one.peer}")
def test_every_goal_is_of_a_server_a_work_and_a_figure_that_are_measured(one: Goal) -> None:
    assert {one.server, one.peer} <= {kind.name for kind in kinds()} | {"floor"}
    assert one.work in WORKS
    # As a metric is added in works.py, or for the floor in __main__.py.
    sources = [(BENCH / "compare" / name).read_text() for name in ("works.py", "__main__.py")]
    assert any(f"{one.metric}=" in text or f'"{one.metric}"' in text for text in sources)


def test_the_table_has_a_row_a_figure_and_a_dash_for_none() -> None:
    lines = table(rows_of(rust=(3.0, 9.0, 4.0)), ["rust", "python"]).splitlines()
    assert lines[0] == "| work | metric | rust | python |"
    assert lines[2:] == ["| paced-64 | server_cpu_us | 4 (3–9) | – |"]


def test_the_picture_has_a_bar_a_server_as_long_as_its_median() -> None:
    rows = rows_of(roomkeeper=(10.0, 10.0, 12.0), rust=(24.0,))
    root = ElementTree.fromstring(svg(rows, "paced-64", ["roomkeeper", "rust", "bare"]))
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]  # the first is the paper
    short, long = (float(bar.attrib["width"]) for bar in bars)
    assert short / long == pytest.approx(10 / 24, rel=0.01)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "roomkeeper" in texts
    assert "bare" not in texts


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nginx"], "--only nginx: there is no such server; choose from roomkeeper"),
        (["--repeats", "-1"], "--repeats -1: at least 1"),
        (["--repeats", "0"], "--repeats 0: at least 1"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "compare", *arguments],
        capture_output=True,
        text=True,
        cwd=BENCH,
        timeout=60,
    )
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# -- the stub engine --


def request(handle: int, wanted: int, logprobs: bool = False) -> Any:
    return SimpleNamespace(
        handle=handle, wanted=wanted, row=None, logprobs=[] if logprobs else None, got=[]
    )


def test_columns_give_every_request_its_own_tokens_to_the_last() -> None:
    pytest.importorskip("numpy")
    from stub_engine import _Columns

    chance = random.Random(7)
    columns = _Columns()
    live: dict[int, Any] = {}
    ended = 0
    for handle in range(3000):
        if chance.random() < 0.2 and len(live) < 150:
            live[handle] = request(handle, chance.choice([1, 2, 50, 899, 900, 901, 1900]))
            columns.add(live[handle])
        if live and chance.random() < 0.02:
            gone = live.pop(chance.choice(list(live)))
            columns.remove(gone.row)
            assert gone.row is None
        if not live:
            continue
        handles, tokens, over = columns.step()
        assert sorted(handles.tolist()) == sorted(live)
        for one, token in zip(handles.tolist(), tokens.tolist(), strict=True):
            live[one].got.append(token)
        for row in reversed(over):
            done = columns.requests[row]
            assert done.row == row
            assert done.got == [10 + at % 900 for at in range(done.wanted)]
            columns.remove(row)
            del live[done.handle]
            ended += 1
        assert all(len(one.got) < one.wanted for one in live.values())
    assert ended > 300
    assert columns.with_logprobs == 0


def test_columns_know_whether_anybody_wants_logprobs() -> None:
    pytest.importorskip("numpy")
    from stub_engine import _Columns

    columns = _Columns()
    for handle, wanted in enumerate((True, False, True)):
        columns.add(request(handle, 5, wanted))
    assert columns.with_logprobs == 2
    columns.remove(0)
    columns.remove(0)
    assert columns.with_logprobs == 0


def test_the_step_clock_waits_and_does_not_for_what_has_passed() -> None:
    from step_clock import StepClock

    async def steps() -> list[float]:
        clock = StepClock()
        begun = time.monotonic()
        await clock.until(begun - 1)
        await clock.until(0)
        took = [time.monotonic() - begun]
        for after in (0.005, 0.03):
            await clock.until(begun + after)
            took.append(time.monotonic() - begun)
        return took

    at_once, first, second = asyncio.run(asyncio.wait_for(steps(), 10))
    assert at_once < 2
    assert first >= 0.005
    assert second >= 0.03
