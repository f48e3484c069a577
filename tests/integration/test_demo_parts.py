"""The demo's parts by themselves: processes, the trace, verdicts, the report, the line of progress."""

from __future__ import annotations

import io
import json
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from demo_support import wait_until
from roomkeeper.demo import report
from roomkeeper.demo.burst import verdict
from roomkeeper.demo.children import Children
from roomkeeper.demo.plan import (
    OFF,
    ON,
    ONLY,
    Case,
    DemoError,
    Hold,
    Outcome,
    Result,
    RoomsSeen,
    Workload,
)
from roomkeeper.demo.ports import GATEWAYS_MAX, HOST, OFFSETS, WORKERS_MAX, free_ports, is_free
from roomkeeper.demo.progress import Progress
from roomkeeper.demo.slots import Slots

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("stubborn", [sys.executable, "-c", STUBBORN], {})
        wait_until(lambda: "up" in child.tail())
    assert child.process.returncode == -signal.SIGKILL


def test_what_a_process_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    script = f'{sys.executable} -c "import time; time.sleep(600)" & echo $!'
    with Children(tmp_path) as children:
        child = children.start("leader", ["sh", "-c", script], {})
        wait_until(lambda: child.process.poll() is not None)
        left_behind = int(child.tail())
        assert Path(f"/proc/{left_behind}").exists()
    wait_until(lambda: not is_running(left_behind))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_ends_too_early_is_named_with_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        command = ["sh", "-c", "echo '\033[31mout of luck\033[0m'; exit 5"]
        child = children.start("worker", command, {})
        with pytest.raises(
            DemoError, match="worker ended with exit code 5 before it was ready"
        ) as error:
            children.wait_until(child, lambda: False, 30, lambda: None)
    assert str(error.value).endswith("\nout of luck")


def test_a_process_that_is_never_ready_is_named_with_the_limit(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("worker", ["sleep", "600"], {})
        with pytest.raises(
            DemoError, match=r"worker was not ready within 0\.2 s.*\n.*said nothing"
        ):
            children.wait_until(child, lambda: False, 0.2, lambda: None)


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with Children(tmp_path) as children, pytest.raises(DemoError, match="ghost cannot be started"):
        children.start("ghost", [str(tmp_path / "ghost")], {})


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])


def test_the_ports_of_a_run_leave_room_above_the_bootstrap_port() -> None:
    ports = free_ports()
    gateways = [ports.gateway_of(n) for n in range(GATEWAYS_MAX)]
    metrics = [ports.metrics_of(n) for n in range(GATEWAYS_MAX)]
    workers = [
        ports.worker_of(role, n) for role in ("prefill", "decode") for n in range(WORKERS_MAX)
    ]
    bootstraps = [ports.bootstrap_of(n) for n in range(WORKERS_MAX)]
    all_ports = [*workers, *gateways, *metrics, *bootstraps]
    all_ports += [port + above for port in bootstraps for above in (1000, 2000)]
    assert sorted(all_ports) == [ports.prefill + offset for offset in OFFSETS]


@pytest.mark.parametrize(
    ("status", "text", "seen"),
    [
        (200, 'data: {"finish_reason": "length"}\n\ndata: [DONE]\n\n', "200"),
        (200, 'data: {"finish_reason": null}\n\ndata: [DONE]\n\n', "200, cut short"),
        (200, 'data: {"finish_reason": "length"}\n\n', "200, cut short"),
        (
            200,
            'data: {"error":{"message":"gone","type":"x"}}\n\ndata: [DONE]\n\n',
            "200, then gone",
        ),
        (
            429,
            '{"error": {"code": "decode_worker_failed_to_start"}}',
            "429 decode_worker_failed_to_start",
        ),
        (500, '{"error": {"message": "no code here"}}', "500 no code here"),
        (503, "", "503"),
    ],
)
def test_only_a_whole_answer_is_ok(status: int, text: str, seen: str) -> None:
    assert verdict(status, text) == (seen, seen == "200")


def write(trace: Path, *events: tuple[str, str, float]) -> None:
    with trace.open("a") as file:
        for event, request, at in events:
            file.write(json.dumps({"t": at, "event": event, "id": request}) + "\n")


def test_slots_are_read_from_a_trace_as_it_grows(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    slots = Slots(trace)
    slots.read()
    assert (slots.working, slots.waiting) == (0, 0)
    write(trace, ("arrived", "a", 9.0), ("admitted", "a", 10.0), ("admitted", "b", 10.5))
    with trace.open("a") as file:
        file.write('{"t": 11.0, "event": "kv"')  # half a line: the rest is still to come
    slots.read()
    assert (slots.working, slots.waiting) == (0, 2)
    with trace.open("a") as file:
        file.write(', "id": "a"}\n')
    slots.read()
    assert (slots.working, slots.waiting) == (1, 1)
    write(trace, ("gone", "a", 12.0), ("admitted", "c", 12.5), ("gone", "b", 16.5))
    slots.read()
    assert slots.since(10.0) == [
        Hold(0, 0.0, 1.0, 2.0),
        Hold(1, 0.5, None, 6.5),
        Hold(0, 2.5, None, None),
    ]
    assert [hold.lost for hold in slots.since(10.0)] == [False, True, False]


WORKLOAD = Workload(requests=2, concurrency=2, window=2)
LOST_ONE = Result(
    OFF,
    "builtin",
    5.0,
    [Outcome("200", True, 0.0, 1.0), Outcome("500 prefill_internal", False, 0.0, 2.4)],
    [Hold(0, 0.0, 0.0, 1.0), Hold(1, 0.0, None, 6.0)],
    RoomsSeen(most_running=2, arrived=2, scheduler="by hand"),
)
LOST_NONE = Result(
    ON,
    "builtin",
    1.5,
    [Outcome("200", True, 0.0, 1.0), Outcome("200", True, 0.0, 1.5)],
    [Hold(0, 0.0, 0.0, 1.0), Hold(1, 0.5, 0.5, 1.5)],
    RoomsSeen(most_running=2, arrived=2, scheduler="by hand"),
)


def test_the_table_has_both_runs_side_by_side() -> None:
    rows = {
        line[:24].strip(): line[24:].split()
        for line in report.table([LOST_ONE, LOST_NONE], 100).splitlines()
    }
    assert rows["requests ok"] == ["1", "of", "2", "2", "of", "2"]
    assert rows["requests failed"] == ["1", "0"]
    assert rows["wall time"] == ["5.0", "s", "1.5", "s"]
    assert rows["decode free again after"] == ["6.0", "s", "1.5", "s"]
    assert rows["slots lost"][:2] == ["1", "times,"] and rows["slots lost"][-1] == "none"
    assert "(500 prefill_internal)" in rows


def test_a_lane_shows_what_took_most_of_each_moment() -> None:
    assert report.lane_cells(LOST_ONE, 0, 6.0, 12) == "██" + "·" * 10
    assert report.lane_cells(LOST_ONE, 1, 6.0, 12) == "x" * 12
    assert report.lane_cells(LOST_NONE, 1, 6.0, 12) == "·██" + "·" * 9


def test_the_meaning_is_two_sentences_of_what_was_seen() -> None:
    text = report.meaning(LOST_ONE, LOST_NONE, WORKLOAD)
    assert "1 of 2 requests failed" in text and "6.0" not in text.partition(", and rooms")[0]
    assert "held slots 1 times, 6 s in all" in text
    assert "2 of 2 came through in 1.5 s" in text and text.endswith("and no slot was lost.")


def test_it_says_what_the_link_did_and_what_the_window_does() -> None:
    queued = RoomsSeen(most_waiting=3)
    linked = Result(ON, "smg", 1.5, LOST_NONE.outcomes, LOST_NONE.holds, queued)
    alone = Result(ONLY, "smg", 5.0, LOST_ONE.outcomes, LOST_ONE.holds, queued)
    (only,) = report.ingredients([LOST_ONE, alone, linked])
    assert only.startswith("What did it: the link. Up to 3 rooms stood in roomkeeper's line")
    assert "Without it 1 requests failed where 1 did without rooms, and 1 slots were lost" in only
    assert "--ingredients" in only
    told = Result(
        Case(rooms=False, window_reported=True), "smg", 1.5, LOST_NONE.outcomes, (), queued
    )
    first, second = report.ingredients([LOST_ONE, alone, linked, told])
    assert first.startswith("What did it: the link.")
    assert second.startswith("With rooms off and the window reported, 0 requests failed")


@pytest.mark.parametrize(
    ("case", "name", "flags"),
    [
        (OFF, "rooms-off", ["off", "off", "off"]),
        (ONLY, "rooms-only", ["on", "off", "off"]),
        (ON, "rooms-on", ["on", "on", "off"]),
        (Case(rooms=True, window_reported=True, link=True), "rooms-on", ["on", "on", "on"]),
    ],
)
def test_a_case_is_what_the_workers_are_told(case: Case, name: str, flags: list[str]) -> None:
    assert case.name == name
    assert case.flags[::2] == ["--rooms", "--room-link", "--room-report-window"]
    assert case.flags[1::2] == flags


def test_requests_become_due_in_waves() -> None:
    workload = Workload(requests=6, wave=2, wave_s=1.5)
    assert [workload.due_s(number) for number in range(6)] == [0, 0, 1.5, 1.5, 3, 3]
    assert Workload().due_s(63) == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_redraws_one_line_on_a_terminal() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    for number in range(3):
        progress.update(f"number {number}")
        time.sleep(0.11)
    progress.step("over")
    text = terminal.getvalue()
    assert text.count("\r\x1b[K") == 4 and text.endswith("\r\x1b[Kover\n")


def test_progress_is_a_plain_line_now_and_then_elsewhere() -> None:
    file = io.StringIO()
    progress = Progress(file)
    for number in range(3):
        progress.update(f"number {number}")
    progress.step("over")
    assert file.getvalue() == "number 0\nover\n"
