"""``roomkeeper scenario`` from its command line. The cases need the real gateway."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo_support import Marked
from harness.process import SANITIZED
from roomkeeper.scenario.cases import CASES

RUN_GUARD_S = 150.0
needs_smg = pytest.mark.skipif(
    importlib.util.find_spec("smg") is None, reason="the smg gateway is not installed (no PyPI)"
)
scaled_deadlines = pytest.mark.skipif(
    SANITIZED, reason="a sanitized worker is too slow for deadlines of 2.4 s"
)
ALWAYS = ("scenario", "requests", "ok", "failed", "wall_s", "slots_leaked", "link", "rooms")


def run(*arguments: str, guard_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roomkeeper", "scenario", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=dict(os.environ), timeout=guard_s
    )


def line_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line of stdout, which is for programs."""
    assert done.stdout, done.stderr
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert tuple(line)[: len(ALWAYS)] == ALWAYS
    assert line["requests"] == line["ok"] + line["failed"]
    return line


@needs_smg
@scaled_deadlines
@pytest.mark.timeout(RUN_GUARD_S + 10)
@pytest.mark.parametrize(("name", "requests"), [("hidden-window", 64), ("two-gateways", 32)])
def test_nobody_fails_with_the_link(name: str, requests: int) -> None:
    done = run(name, guard_s=RUN_GUARD_S)
    line = line_of(done)
    assert (line["scenario"], line["link"], line["rooms"]) == (name, True, True)
    assert (line["requests"], line["failed"], line["slots_leaked"]) == (requests, 0, 0), line
    assert "It is as it must be." in " ".join(done.stdout.split())
    assert done.returncode == 0


@needs_smg
@scaled_deadlines
@pytest.mark.timeout(RUN_GUARD_S + 10)
def test_without_the_link_requests_fail_and_it_says_so() -> None:
    done = run("hidden-window", "--link", "off", guard_s=RUN_GUARD_S)
    line = line_of(done)
    assert (line["link"], line["rooms"]) == (False, True)
    assert line["requests"] == 64 and line["failed"] > 0
    assert "It is NOT as it must be." in " ".join(done.stdout.split())
    assert done.returncode == 1


@needs_smg
@scaled_deadlines
@pytest.mark.timeout(RUN_GUARD_S + 10)
def test_who_is_above_capacity_is_refused_and_nothing_is_stranded() -> None:
    done = run("above-capacity", "--json-only", guard_s=RUN_GUARD_S)
    line = line_of(done)
    assert done.stdout.count("\n") == 1
    assert (line["failed_otherwise"], line["legs_left"], line["slots_leaked"]) == (0, 0, 0), line
    assert 0 < line["refused"] == line["failed"]
    assert line["ok"] >= 8
    # Whichever of the two legs the gateway hears from first.
    clean = {f"429 {leg}_worker_failed_to_start" for leg in ("prefill", "decode")}
    assert {"200"} < set(line["seen"]) <= {"200"} | clean
    assert done.returncode == 0


@pytest.mark.timeout(RUN_GUARD_S)
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    marked = Marked(tmp_path, "scenario", "hidden-window", "--gateway", "builtin", "--link", "off")
    with marked.program as program:
        program.wait_line(r"\d+ of 64 answered")
        program.signal(signal.SIGTERM)
        assert program.wait() == 128 + signal.SIGTERM
        assert program.find("ended by SIGTERM; nothing is left running")
    marked.assert_nothing_is_left()


def test_the_cases_are_listed_a_line_each() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(CASES)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which case? Give a name: hidden-window, two-gateways, "),
        (["choas"], "there is no case 'choas'; did you mean chaos?"),
        (["chaos", "--gateway", "builtin"], "--gateway is builtin; chaos needs smg"),
        (["chaos", "--link", "maybe"], "maybe"),
        (["chaos", "--lnk", "on"], "--lnk: there is no such flag; did you mean --link?"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1
