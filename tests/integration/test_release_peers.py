"""The release agent's socket: who is let in, what happens to orphans, and engines without agents."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import release_support
from release_support import is_alive, until_gone
from roomkeeper.release import wire
from roomkeeper.release.agent import AgentEntry, ControllerEntry, name_of
from roomkeeper.release.client import STRANGERS_MAX, ReleaseClient
from roomkeeper.servicer import ReleaseRoom
from standin_support import GUARD_S, environment, until

IDLE_LOOP = "release_support:IdleLoop"


@pytest.fixture
def client() -> Iterator[ReleaseClient]:
    made = ReleaseClient("decode", 1, 60.0)
    yield made
    made.close()


def path_of(client: ReleaseClient) -> Path:
    return Path(client.entry(release_support.run_idle, IDLE_LOOP).path)


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(GUARD_S)
        end.connect(os.fspath(path))
        yield end


def is_hung_up(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True


def start(entry: Any, folder: Path) -> tuple[multiprocessing.process.BaseProcess, int]:
    """A process of this entry point, and the process id of the scheduler that it is or starts."""
    pid_file = folder / "pid"
    process = multiprocessing.get_context("spawn").Process(target=entry, args=(str(pid_file),))
    process.start()
    return process, pid_in(pid_file)


def pid_in(file: Path) -> int:
    return int(until(lambda: file.exists() and file.read_text(), "the start of the scheduler"))


@contextlib.contextmanager
def ended(process: multiprocessing.process.BaseProcess) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.join()


# -- who is let in --


def test_the_socket_is_in_a_folder_of_our_own(client: ReleaseClient) -> None:
    folder = path_of(client).parent.stat()
    assert folder.st_uid == os.geteuid() and folder.st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "sent",
    [
        b"x" * (wire.LINE_MAX + 1),
        b'{"hello": ' + b" " * wire.LINE_MAX + b"1}\n",
        b"GET / HTTP/1.1\r\n",
        b"[1]\n",
        b'{"done": 1}\n',
        b'{"hello": 2}\n',
        b'{"hello": true}\n',
        b"\xff\xfe\n",
        b"[" * wire.LINE_MAX + b"\n",
    ],
)
def test_who_does_not_speak_as_an_agent_is_dropped(client: ReleaseClient, sent: bytes) -> None:
    with connected(path_of(client)) as end:
        with contextlib.suppress(BrokenPipeError):
            end.sendall(sent)
        assert is_hung_up(end)
    assert not client.attached


def test_strangers_are_bounded(client: ReleaseClient) -> None:
    with contextlib.ExitStack() as stack:
        path = path_of(client)
        for _ in range(STRANGERS_MAX):
            stack.enter_context(connected(path))
        with connected(path) as one_more:
            assert is_hung_up(one_more)


def test_the_socket_goes_with_the_last_agent_that_is_awaited(client: ReleaseClient) -> None:
    path = path_of(client)
    with connected(path) as end:
        end.sendall(wire.write(hello=1) + wire.write(ready=True, why=""))
        assert client.wait_attached(GUARD_S) == "" and client.attached
        until(lambda: not path.parent.exists(), "the end of the folder")
        with pytest.raises(OSError), connected(path):
            pass


def test_an_agent_that_cannot_attach_says_why(client: ReleaseClient) -> None:
    with connected(path_of(client)) as end:
        end.sendall(wire.write(hello=1) + wire.write(ready=False, why="kv_manager has no abort"))
        assert client.wait_attached(GUARD_S) == "kv_manager has no abort"
        assert not client.attached


def test_an_agent_that_does_not_come_is_missed(client: ReleaseClient) -> None:
    assert client.wait_attached(0.1) == "1 of 1 scheduler processes have no agent after 0.1 s"
    assert not path_of(client).parent.exists()


def test_an_acknowledgement_of_what_was_not_asked_is_ignored(client: ReleaseClient) -> None:
    released: queue.SimpleQueue[int] = queue.SimpleQueue()
    client.start(released.put)
    with connected(path_of(client)) as end:
        end.sendall(wire.write(hello=1) + wire.write(ready=True, why="") + wire.write(done=99))
        assert client.wait_attached(GUARD_S) == ""
        client.release(ReleaseRoom((5, "h", 1, 77, "x" * 10_000)))
        asked = json.loads(end.makefile("rb").readline())
        assert asked["room"] == 77 and len(asked["reason"]) == wire.TEXT_MAX
        assert released.empty()
        end.sendall(wire.write(done=asked["end"]) * 2)
        assert released.get(timeout=GUARD_S) == 5
    assert released.empty()


def test_an_agent_that_does_not_read_costs_bounded_memory(client: ReleaseClient) -> None:
    with connected(path_of(client)) as end:
        end.sendall(wire.write(hello=1) + wire.write(ready=True, why=""))
        assert client.wait_attached(GUARD_S) == ""
        begun = time.monotonic()
        for handle in range(2 * wire.OUTSTANDING_MAX):
            client.release(ReleaseRoom((handle, "h", 1, handle, "")))
        assert time.monotonic() - begun < GUARD_S
        lines = 0
        with end.makefile("rb") as reader:
            end.settimeout(2)
            with contextlib.suppress(TimeoutError):
                while reader.readline():
                    lines += 1
        assert 0 < lines <= wire.OUTSTANDING_MAX


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused(client: ReleaseClient) -> None:
    path = path_of(client)
    program = (
        "import socket, sys; end = socket.socket(socket.AF_UNIX); end.settimeout(30)\n"
        "try: end.connect(sys.argv[1])\n"
        "except PermissionError: sys.exit('not let in')\n"
        "try: end.sendall(b'{\"hello\": 1}\\n'); heard = end.recv(1)\n"
        "except ConnectionError: heard = b''\n"
        "sys.exit('served' if heard else 'hung up')"
    )

    def as_nobody() -> str:
        command = ["/usr/bin/env", "python3", "-c", program, os.fspath(path)]
        done = subprocess.run(command, user=65534, capture_output=True, text=True, cwd="/")
        return done.stderr.strip()

    assert as_nobody() == "not let in"
    path.parent.chmod(0o755)
    path.chmod(0o777)
    assert as_nobody() == "hung up"
    assert not client.attached


# -- orphans --


def test_a_scheduler_ends_when_the_connection_to_its_launcher_breaks(tmp_path: Path) -> None:
    """Not by the kernel's help alone: the process that starts it goes on."""
    client = ReleaseClient("decode", 1, 60.0)
    process, pid = start(client.entry(release_support.run_idle, IDLE_LOOP), tmp_path)
    with ended(process):
        assert client.wait_attached(GUARD_S) == ""
        client.close()
        until_gone(pid)
        process.join(GUARD_S)
        assert process.exitcode == -signal.SIGKILL


def test_one_that_is_stopped_ends_too_when_its_launcher_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, multiprocessing, release_support\n"
        "from roomkeeper.release.client import ReleaseClient\n"
        "if __name__ == '__main__':\n"
        "    client = ReleaseClient('decode', 1, 60.0)\n"
        "    entry = client.entry(release_support.run_idle, 'release_support:IdleLoop')\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    context.Process(target=entry, args=(sys.argv[1],)).start()\n"
        "    assert client.wait_attached(30) == ''\n"
        "    print('up', flush=True)\n"
        "    time.sleep(1e6)\n"
    )
    file = tmp_path / "launcher.py"
    file.write_text(program)
    here = os.fspath(Path(__file__).parent)
    paths = f"{environment()['PYTHONPATH']}:{here}"
    launcher = subprocess.Popen(
        [sys.executable, file, tmp_path / "pid"],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONPATH": paths},
    )
    try:
        assert launcher.stdout is not None and launcher.stdout.readline() == "up\n"
        pid = pid_in(tmp_path / "pid")
        os.kill(pid, signal.SIGSTOP)
    finally:
        launcher.kill()
        launcher.wait()
        if launcher.stdout is not None:
            launcher.stdout.close()
    until_gone(pid)


def test_one_that_a_controller_starts_on_a_passing_thread_lives_and_has_an_agent(
    tmp_path: Path,
) -> None:
    client = ReleaseClient("decode", 1, 60.0)
    agent = client.entry(release_support.run_idle, IDLE_LOOP)
    controller = client.controller(
        release_support.run_controller, "release_support:start_child", agent
    )
    process, pid = start(controller, tmp_path)
    with ended(process):
        assert client.wait_attached(GUARD_S) == ""
        assert pid != process.pid
        time.sleep(0.5)
        assert is_alive(pid)
        client.close()
        until_gone(pid)


# -- no agent --


def test_an_event_loop_without_the_names_is_said(tmp_path: Path) -> None:
    client = ReleaseClient("decode", 1, 60.0)
    process, pid = start(
        client.entry(release_support.run_bare, "release_support:BareLoop"), tmp_path
    )
    with ended(process):
        assert client.wait_attached(GUARD_S) == "kv_transfer has no kv_manager"
        assert is_alive(pid)
        client.close()
        until_gone(pid)


def test_an_event_loop_that_is_not_there_is_said(tmp_path: Path) -> None:
    client = ReleaseClient("decode", 1, 60.0)
    process, _ = start(client.entry(release_support.run_bare, "release_support:Nothing"), tmp_path)
    with ended(process):
        why = client.wait_attached(GUARD_S)
        assert why.startswith("there is no event loop release_support:Nothing")
        client.close()


def test_a_scheduler_that_cannot_reach_its_launcher_serves_without_an_agent(
    tmp_path: Path,
) -> None:
    entry = AgentEntry(
        name_of(release_support.run_idle),
        IDLE_LOOP,
        "",
        "decode",
        os.fspath(tmp_path / "nobody"),
        os.getpid(),
        60.0,
    )
    process, pid = start(entry, tmp_path)
    with ended(process):
        assert is_alive(pid)


def test_entries_travel_to_another_process() -> None:
    import pickle

    agent = AgentEntry("a:b", "c:D", "e:Q", "prefill", "/nowhere", 1, 60.0)
    for entry in (agent, ControllerEntry("a:b", "e:f", agent)):
        assert pickle.loads(pickle.dumps(entry)) == entry


def test_a_client_is_closed_once_and_says_nothing_afterwards(client: ReleaseClient) -> None:
    client.close()
    threads = [threading.Thread(target=client.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
        assert not thread.is_alive()
    client.release(ReleaseRoom((1, "h", 1, 2, "")))
    client.forget(2)
