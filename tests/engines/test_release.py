"""The release agent in TokenSpeed's scheduler process: its launcher and frontend, real; the loop, as in the engine."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from requests_table import ask
from test_ids import with_room
from workers import ROOMKEEPER, ROOT, Worker, environment, free_base, model, running, start

PROGRAM = pathlib.Path(__file__).parent / "release_program.py"
GUARD_S = 30


def run_program(mode: str) -> dict:
    """What the program says in its last line."""
    command = [sys.executable, PROGRAM, mode, "--model", model(), "--port", str(free_base())]
    command += ["--host", "127.0.0.1", "--max-num-seqs", "4", "--max-model-len", "2048"]
    command += ["--skip-tokenizer-init", "--disaggregation-mode", "decode"]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def info(worker: Worker) -> dict:
    from google.protobuf.json_format import MessageToDict

    with worker.stub() as stub:
        answer = stub.GetServerInfo(messages.GetServerInfoRequest(), timeout=GUARD_S)
    return MessageToDict(answer)["schedulerInfo"]["roomkeeper"]


def test_six_legs_without_a_prefill_are_released() -> None:
    said = run_program("six")
    assert said["handles"] == [1, 2, 3, 4, 5, 6]
    assert said["load"] == [0, 0] and said["ends"] == ["abort"] * 6
    assert said["released_s"] < 10  # the engine's own deadline is 300 s


def test_the_same_room_again_and_again() -> None:
    assert run_program("again") == {"turns": 50, "load": [0, 0]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The prefill gives up after a second, the decode never does."""
    folder = tmp_path_factory.mktemp("release")
    settings = {"TS_FAKE_BOOTSTRAP_TIMEOUT_S": 1}
    prefill = start(ROOMKEEPER, folder / "prefill.log", mode="prefill", settings=settings)
    decode = start(ROOMKEEPER, folder / "decode.log", mode="decode")
    with running(prefill, decode):
        yield prefill, decode


def test_both_roles_have_an_agent(pair) -> None:
    for worker in pair:
        assert info(worker)["release"] is True
        assert not worker.lines("release: no")


def test_a_decode_that_comes_after_its_prefill_has_given_up_is_told(pair) -> None:
    prefill, decode = pair
    made = with_room(prefill, "late")
    with prefill.stub() as stub:
        assert ask(stub, made).code == "INTERNAL"
    begun = time.monotonic()
    with decode.stub() as stub:
        assert ask(stub, made).code == "INTERNAL"
    assert time.monotonic() - begun < GUARD_S


def test_a_launcher_that_is_killed_takes_its_scheduler_along(tmp_path) -> None:
    worker = start(ROOMKEEPER, tmp_path / "worker.log", mode="decode")
    try:
        worker.wait_serving()
        scheduler = worker.scheduler()
        os.kill(scheduler, signal.SIGSTOP)  # not even its own loop can see to it
        worker.process.kill()
        deadline = time.monotonic() + GUARD_S
        while pathlib.Path(f"/proc/{scheduler}/fd/0").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not pathlib.Path(f"/proc/{scheduler}/fd/0").exists()
    finally:
        worker.end()


def test_no_agent_without_rooms(tmp_path) -> None:
    worker = start(ROOMKEEPER, tmp_path / "worker.log", "--rooms", "off", mode="decode")
    with running(worker):
        assert info(worker)["release"] is False
