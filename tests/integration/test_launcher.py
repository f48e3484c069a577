"""What all launchers share: whose flag is whose, and an end whatever happens."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bridge_support import until
from harness.process import Program
from roomkeeper.addresses import UsageError, check_address, join_address
from roomkeeper.errors import ConfigError
from roomkeeper.flags import split_room_flags

PROGRAM = Path(__file__).parent / "launcher_program.py"


def test_the_engines_flags_keep_their_order_and_ours_are_taken_out() -> None:
    argv = [
        "--model",
        "m",
        "--room-waiting",
        "8",
        "-x",
        "--rooms=off",
        "--port=1",
        "--listen",
        "unix:/s",
    ]
    flags, rest = split_room_flags(argv)
    assert rest == ["--model", "m", "-x", "--port=1"]
    assert flags.settings == [("waiting", "8", "--room-waiting"), ("rooms", "off", "--rooms")]
    assert flags.listen == ["unix:/s"]
    assert flags.config()["waiting"] == "8" and not flags.config().flag("rooms")


def test_a_value_may_begin_with_a_dash_and_hold_an_equals_sign() -> None:
    flags, rest = split_room_flags(["--room-window", "-1", "--roomkeeper-config=a=b.yaml"])
    assert flags.settings == [("window", "-1", "--room-window")]
    assert flags.path == "a=b.yaml" and rest == []


def test_what_follows_two_dashes_is_the_engines() -> None:
    assert split_room_flags(["--", "--room-waiting", "8"])[1] == ["--", "--room-waiting", "8"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--room-wating", "8"],
            "--room-wating: there is no such flag; did you mean --room-waiting?",
        ),
        (
            ["--roomkeeper-confg=x"],
            "--roomkeeper-confg: there is no such flag; did you mean --roomkeeper-config?",
        ),
        (["--room"], "--room: there is no such flag; did you mean --rooms?"),
        (
            ["--room-waiting"],
            "--room-waiting: the value is missing; give a whole number from -1 to 1000000",
        ),
        (["--rooms", "--port"], "--rooms: the value is missing; give on or off"),
        (
            ["--room-log-level"],
            "--room-log-level: the value is missing; give debug or info or warning or error",
        ),
        (["--roomkeeper-config"], "--roomkeeper-config: the value is missing; give a file"),
    ],
)
def test_a_flag_of_ours_that_is_none_or_lacks_its_value_is_one_line(
    argv: list[str], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        split_room_flags(argv)
    assert str(raised.value) == says


def test_the_environment_names_the_file_when_no_flag_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, waiting in (("environment", 5), ("flag", 6)):
        (tmp_path / name).write_text(f"waiting: {waiting}\n")
    monkeypatch.setenv("ROOMKEEPER_CONFIG", str(tmp_path / "environment"))
    assert split_room_flags([])[0].config()["waiting"] == "5"
    by_flag, _ = split_room_flags(["--roomkeeper-config", str(tmp_path / "flag")])
    assert by_flag.config()["waiting"] == "6"


@pytest.mark.parametrize(
    "address", ["nonsense", "host:", "host:65536", "host:-1", "unix:/nowhere/socket"]
)
def test_an_address_that_cannot_be_is_found_before_the_engine_starts(address: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        check_address(address)


def test_ipv6_addresses_are_joined_in_brackets() -> None:
    assert [join_address(host, 1) for host in ("::1", "[::1]", "h", None)] == [
        "[::1]:1",
        "[::1]:1",
        "h:1",
        "127.0.0.1:1",
    ]


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def below(pid: int) -> set[int]:
    """The process's children and theirs."""
    found = {
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    }
    return found.union(*(below(child) for child in found))


def program(fault: str) -> Program:
    return Program([sys.executable, str(PROGRAM), fault])


def test_an_engine_whose_processes_ignore_sigterm_is_killed_with_all_below_it() -> None:
    made = program("stubborn child")
    child = int(made.wait_line(r"ready .* scheduler (\d+)").group(1))
    until(lambda: len(below(child)) == 1, "the scheduler has a process of its own")
    processes = {child, *below(child)}
    made.signal(signal.SIGTERM)
    assert made.wait() == 0
    assert all(gone(pid) for pid in processes)


def test_a_shutdown_that_gets_stuck_ends_all_the_same() -> None:
    made = program("close hangs")
    child = int(made.wait_line(r"ready .* scheduler (\d+)").group(1))
    made.signal(signal.SIGTERM)
    assert made.wait() == 0
    assert made.find("error roomkeeper: the shutdown has not come to its end within 2")
    assert gone(child)


def test_sigterm_ends_a_worker_whose_loop_is_stuck_in_python() -> None:
    made = program("stuck loop")
    made.wait_line("^stuck")
    made.signal(signal.SIGTERM)
    assert made.wait() == 0
    assert made.find("error roomkeeper: the shutdown has not come to its end within 2")


def test_sigterm_ends_a_launch_that_hangs_and_what_it_has_started() -> None:
    made = program("launch hangs")
    made.wait_line("^launching")
    until(lambda: len(below(made.pid)) >= 3, "the engine process and its own are there")
    processes = below(made.pid)
    made.signal(signal.SIGTERM)
    assert made.wait() == 0
    until(lambda: all(gone(pid) for pid in processes), "nothing is left")


def test_an_engine_that_does_not_start_is_one_line_and_exit_code_1() -> None:
    made = program("launch raises")
    assert made.wait() == 1
    said = [line for line in made.lines if " roomkeeper: " in line]
    assert len(said) == 1 and said[0].endswith(
        "error roomkeeper: the engine did not start: no device is there"
    )
    assert "Traceback" not in made.output()


def test_an_engine_process_that_ends_by_itself_ends_the_worker_with_exit_code_1() -> None:
    made = program("none")
    child = int(made.wait_line(r"ready .* scheduler (\d+)").group(1))
    os.kill(child, signal.SIGKILL)
    assert made.wait() == 1
    assert made.find(f"error roomkeeper: engine process {child} has ended with exit code -9")


def test_a_node_that_only_schedules_ends_with_sigterm_and_exit_code_0() -> None:
    made = program("schedulers")
    made.wait_line("^scheduling")
    until(lambda: len(below(made.pid)) >= 3, "the engine process and its own are there")
    processes = below(made.pid)
    made.signal(signal.SIGTERM)
    assert made.wait() == 0
    until(lambda: all(gone(pid) for pid in processes), "nothing is left")


def test_a_node_whose_schedulers_have_ended_ends_with_exit_code_1() -> None:
    made = program("schedulers end")
    assert made.wait() == 1
    assert made.find("error roomkeeper: the schedulers of this node have ended")
