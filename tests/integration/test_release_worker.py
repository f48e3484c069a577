"""The release agent in whole workers: what a failed prefill does to its decode, and how it is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from release_support import until_gone
from roomkeeper.config import Config
from roomkeeper.engine import WorkerInfo
from roomkeeper.servicer import Servicer
from standin_support import (
    GUARD_S,
    StandinWorker,
    environment,
    free_bootstrap_port,
    message,
    new_room,
    run_cli,
    standin,
    standin_pair,
    until,
)


def in_room(worker: StandinWorker, port: int, room: int) -> Any:
    made = worker.request([5] * 20, 4, stream=True)
    made.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    made.kv_bootstrap_info.bootstrap_port = port
    made.kv_bootstrap_info.bootstrap_room = room
    return made


def code_of(worker: StandinWorker, port: int, room: int) -> str:
    try:
        list(worker.stub.Generate(in_room(worker, port, room), timeout=GUARD_S))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def reported(worker: StandinWorker) -> bool:
    """What GetServerInfo says of agents."""
    answer = worker.stub.GetServerInfo(message("GetServerInfoRequest")(), timeout=GUARD_S)
    own = answer.scheduler_info.fields["roomkeeper"].struct_value
    return bool(own.fields["release"].bool_value)


def test_a_decode_that_comes_after_its_prefill_has_given_up_is_told_at_once() -> None:
    """It has 300 s of patience itself."""
    with standin_pair("--bootstrap-timeout", "0.5", "--max-num-seqs", "1") as (
        prefill,
        decode,
        port,
    ):
        room = new_room()
        assert code_of(prefill, port, room) == "INTERNAL"
        begun = time.monotonic()
        assert code_of(decode, port, room) == "INTERNAL"
        assert time.monotonic() - begun < GUARD_S
        both = [new_room()] * 2
        ends: dict[str, str] = {}
        legs = [
            threading.Thread(target=lambda n, w, r: ends.update({n: code_of(w, port, r)}), args=leg)
            for leg in zip(("prefill", "decode"), (prefill, decode), both, strict=True)
        ]
        for leg in legs:
            leg.start()
        for leg in legs:
            leg.join(GUARD_S)
        assert ends == {"prefill": "OK", "decode": "OK"}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_with_agents_says_so_and_leaves_no_socket(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path))
    port = str(free_bootstrap_port())
    with standin("--role", role, "--disaggregation-bootstrap-port", port) as worker:
        assert reported(worker)
        assert "release: yes" in run_cli("status", worker.address).stdout
        assert "release: no" not in worker.log_text()
        assert list(tmp_path.glob("roomkeeper-*")) == []
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_there_is_no_agent_with_rooms_off() -> None:
    with standin("--role", "decode", "--rooms", "off") as worker:
        assert not reported(worker)
        assert "release: no" not in worker.log_text()


def test_a_launcher_that_is_killed_takes_its_stopped_schedulers_along() -> None:
    with standin("--role", "decode", "--attention-dp-size", "2", "--max-num-seqs", "4") as worker:
        for pid in worker.scheduler_pids:
            os.kill(pid, signal.SIGSTOP)
        worker.signal(signal.SIGKILL)
        until_gone(*worker.scheduler_pids)


def test_an_engine_without_the_names_is_served_without_agents(tmp_path: Path) -> None:
    """One line says why, and the worker serves."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import sys\n"
        "from roomkeeper.standin import main\n"
        "if __name__ == '__main__':\n"
        "    main._EVENT_LOOP = 'roomkeeper.standin.eventloop:Other'\n"
        "    sys.exit(main.main(sys.argv[1:]))\n"
    )
    log = tmp_path / "log"
    with log.open("w") as written:
        worker = subprocess.Popen(
            [sys.executable, program, "--port", "0", "--role", "decode"],
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env=environment(),
        )
    try:
        assert worker.stdout is not None and worker.stdout.readline().startswith("ready: ")
        (line,) = [line for line in log.read_text().splitlines() if "release: no" in line]
        assert "there is no event loop roomkeeper.standin.eventloop:Other" in line
    finally:
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()


def test_acknowledgements_may_come_from_many_threads() -> None:
    """Also of legs that are not there, and after the end."""
    servicer = Servicer(WorkerInfo(role="decode", window=4), Config(), release_agent=True)
    servicer.listen("127.0.0.1:0")
    servicer.start()

    def acknowledge(first: int) -> None:
        for handle in range(first, first + 5000):
            servicer.released(handle)

    threads = [threading.Thread(target=acknowledge, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    servicer.stop()
    for thread in threads:
        thread.join(GUARD_S)
        assert not thread.is_alive()
    until(lambda: servicer.open_calls() == 0, "no call is open")
