"""``roomkeeper demo`` from its command line: what it prints, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_support import Marked, wait_until
from harness.process import SANITIZED
from roomkeeper.demo import main as demo_main
from roomkeeper.demo import run as demo_run
from roomkeeper.demo import site as demo_site
from roomkeeper.demo.gateway import installed_gateway
from roomkeeper.demo.plan import ON, Case, Workload
from roomkeeper.demo.progress import Progress

RUN_GUARD_S = 110.0
scaled_deadlines = pytest.mark.skipif(
    SANITIZED, reason="a sanitized worker is too slow for deadlines of 2.4 s"
)


def demo_in(folder: Path, *flags: str) -> Marked:
    return Marked(folder, "demo", "--out", str(folder / "out"), *flags)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Marked]:
    started = demo_in(tmp_path)
    yield started
    started.program.close()


@scaled_deadlines
@pytest.mark.timeout(RUN_GUARD_S + 10)
def test_a_burst_fails_without_rooms_or_link_and_comes_through_with_both(tmp_path: Path) -> None:
    demo = demo_in(tmp_path, "--requests", "32")
    assert demo.program.wait(RUN_GUARD_S) == 0, demo.program.output()
    lines = [json.loads(line) for line in demo.program.lines if line.startswith("{")]
    off, only, on = lines
    gateway = installed_gateway()
    for line in lines:
        assert line["gateway"] == gateway
        assert line["requests"] == line["ok"] + line["failed"] == 32
        assert line["wall_s"] > 0
        assert line["window_reported"] is False
    assert [line["run"] for line in lines] == ["rooms-off", "rooms-only", "rooms-on"]
    assert off["failed"] > 0 and only["failed"] > 0
    assert on["failed"] == 0
    assert demo.program.lines[-3:] == [json.dumps(line) for line in lines]
    output = demo.program.output()
    assert "slots lost" in output and "the decode's slots over time" in output
    words = " ".join(output.split())
    assert "With rooms on, link on and the window hidden, 32 of 32 came through" in words
    picture = ElementTree.parse(tmp_path / "out" / "slots.svg").getroot()
    assert picture.tag.endswith("svg")
    # A room has a slot once in the last run and some have in the others, and some are lost.
    bars = [bar.get("fill") for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars.count("#2f9e6e") > 32 and "#d0443e" in bars
    demo.assert_nothing_is_left()


@scaled_deadlines
def test_the_builtin_gateway_brings_the_burst_through_too() -> None:
    workload = Workload(requests=16, concurrency=16)
    result = demo_run.run_case(ON, workload, "builtin", Progress())
    assert (result.ok, result.failed) == (16, 0)
    assert result.gateway == "builtin"
    assert len(result.holds) == 16 and result.lost == []
    assert max(hold.lane for hold in result.holds) < workload.window
    assert result.rooms.arrived == 16 and 0 < result.rooms.most_running <= workload.window


@scaled_deadlines
def test_the_worker_holds_back_what_two_gateways_together_send() -> None:
    """Each lets through as many as the window has slots, which is twice the window."""
    workload = Workload(requests=24, concurrency=24, gateways=2)
    case = Case(rooms=True, window_reported=True)
    result = demo_run.run_case(case, workload, "builtin", Progress())
    assert (result.ok, result.failed) == (24, 0)
    assert 0 < result.rooms.most_waiting <= workload.window
    assert result.rooms.most_running <= workload.window


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", [r"requests, \d+ at a time", r"\d+ of 64 answered"])
def test_a_signal_ends_it_and_leaves_nothing(demo: Marked, number: int, moment: str) -> None:
    demo.program.wait_line(moment)
    demo.program.signal(number)
    assert demo.program.wait() == 128 + number
    assert demo.program.find(r"ended by SIG(INT|TERM); nothing is left running")
    demo.assert_nothing_is_left()


def test_a_second_signal_does_not_disturb_the_cleaning_up(demo: Marked) -> None:
    demo.program.wait_line(r"\d+ of 64 answered")
    for _ in range(5):
        demo.program.signal(signal.SIGINT)
    assert demo.program.wait() == 128 + signal.SIGINT
    demo.assert_nothing_is_left()


def test_its_processes_go_with_it_when_it_is_killed(demo: Marked) -> None:
    demo.program.wait_line(r"\d+ of 64 answered")
    assert len(demo.processes()) > 1
    demo.program.signal(signal.SIGKILL)
    demo.program.wait()
    wait_until(lambda: demo.processes() == [])


def test_a_worker_that_does_not_start_is_shown_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> list[str]:
        return [sys.executable, "-c", "print('no luck today'); raise SystemExit(3)"]

    monkeypatch.setattr(demo_site, "worker_program", broken)
    assert demo_main.main(["--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "prefill-0 ended with exit code 3 before it was ready" in shown.err
    assert "no luck today" in shown.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gatewy", "smg"], "--gatewy: there is no such flag; did you mean --gateway?"),
        (["--gateway", "nginx"], "nginx"),
        (["--gateways", "5"], "--gateways is 5; it must be from 1 to 4"),
        (["--requests", "0"], "--requests is 0; it must be from 1 to 1000"),
        (["--concurrency", "1000"], "--concurrency is 1000; it must be from 1 to 200"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(flags: list[str], says: str) -> None:
    done = run(*flags)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("--out", str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert "Not a directory; name a directory to write to" in done.stderr
    assert done.stderr.count("\n") == 1


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roomkeeper", "demo", *flags]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=60)
