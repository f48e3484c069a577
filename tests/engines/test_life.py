"""The launcher's life with TokenSpeed's own frontend and scheduler process: signals, deaths, exit codes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import grpc
import pytest
from smg_grpc_proto import tokenspeed_scheduler_pb2_grpc as services
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from requests_table import ask, request
from workers import ROOMKEEPER, ROOT, Worker, environment, free_base, model

#: Slow enough that a stream of some hundred tokens is still open when something happens.
SLOW = {"TS_FAKE_STEP_MS": 20}


def is_there(pid: int) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_there(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def end_of(stream) -> tuple[grpc.StatusCode, str, list[messages.GenerateResponse]]:
    responses = []
    try:
        for response in stream:
            responses.append(response)
    except grpc.RpcError:
        pass
    return stream.code(), stream.details(), responses


def errors(worker: Worker) -> list[str]:
    return worker.lines(" error roomkeeper: ")


def run_launcher(*flags: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", ROOMKEEPER, *flags],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(settings),
        cwd=ROOT,
    )


def test_sigterm_lets_a_stream_finish_and_ends_with_exit_code_0(worker) -> None:
    made: Worker = worker(settings=SLOW)
    scheduler = made.scheduler()
    with made.stub() as stub:
        stream = stub.Generate(request("finishes", tokens=100), timeout=60)
        next(stream)
        made.process.send_signal(signal.SIGTERM)
        while made.health() == "SERVING":
            time.sleep(0.01)
        assert made.health() == "NOT_SERVING"
        late = ask(stub, request("late"))
        assert late.code == "UNAVAILABLE"
        code, _, responses = end_of(stream)
    assert code == grpc.StatusCode.OK and len(responses[-1].complete.output_ids) == 100
    assert made.wait_end() == 0
    wait_gone(scheduler)
    assert errors(made) == []


def test_a_second_sigterm_ends_it_now(worker) -> None:
    made: Worker = worker("--room-drain-seconds", "600", settings=SLOW)
    scheduler = made.scheduler()
    with made.stub() as stub:
        stream = stub.Generate(request("cut", tokens=1900), timeout=60)
        next(stream)
        made.process.send_signal(signal.SIGTERM)
        while made.health() == "SERVING":
            time.sleep(0.01)
        made.process.send_signal(signal.SIGTERM)
        code, _, responses = end_of(stream)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert not any(response.HasField("complete") for response in responses)
    assert made.wait_end(20) == 0
    wait_gone(scheduler)


def test_a_drain_that_is_over_ends_the_streams_with_a_status(worker) -> None:
    made: Worker = worker("--room-drain-seconds", "1", settings=SLOW)
    with made.stub() as stub:
        stream = stub.Generate(request("too long", tokens=1900), timeout=60)
        next(stream)
        made.process.send_signal(signal.SIGINT)
        code, _, _ = end_of(stream)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert made.wait_end(20) == 0


def test_sigterm_while_the_engine_starts_ends_with_exit_code_0_and_leaves_nothing(worker) -> None:
    made: Worker = worker(
        wait=False, settings={"TS_FAKE_ON_START": "time:sleep", "PYTHONUNBUFFERED": 1}
    )
    deadline = time.monotonic() + 60
    scheduler = 0
    while not scheduler:
        assert time.monotonic() < deadline and made.process.poll() is None
        try:
            scheduler = made.scheduler()
        except AssertionError:
            time.sleep(0.02)
    made.process.send_signal(signal.SIGTERM)
    assert made.wait_end(30) == 0
    wait_gone(scheduler)
    assert made.lines("SIGTERM while the engine starts") and errors(made) == []


def test_a_scheduler_process_that_is_killed_ends_the_streams_and_the_worker(worker) -> None:
    made: Worker = worker(settings=SLOW)
    scheduler = made.scheduler()
    with made.stub() as stub:
        stream = stub.Generate(request("orphan", tokens=1900), timeout=60)
        next(stream)
        os.kill(scheduler, signal.SIGKILL)
        code, details, _ = end_of(stream)
    assert code == grpc.StatusCode.UNAVAILABLE, details
    assert made.wait_end(20) == 1
    assert len(errors(made)) == 1
    assert f"engine process {scheduler} has ended with exit code -9" in errors(made)[0]


def test_a_scheduler_that_reports_its_failure_by_sigusr1_ends_the_worker(worker) -> None:
    made: Worker = worker(settings=SLOW)
    scheduler = made.scheduler()
    with made.stub() as stub:
        stream = stub.Generate(request("orphan", tokens=1900), timeout=60)
        next(stream)
        made.process.send_signal(signal.SIGUSR1)
        code, details, _ = end_of(stream)
    assert code == grpc.StatusCode.UNAVAILABLE, details
    assert made.wait_end(30) == 1
    wait_gone(scheduler)
    assert len(errors(made)) == 1 and "a scheduler process has failed" in errors(made)[0]


def test_an_engine_that_dies_while_it_starts_is_one_line_and_exit_code_1(worker) -> None:
    made: Worker = worker(wait=False, settings={"TS_FAKE_ON_START": "sys:exit"})
    assert made.wait_end(90) == 1
    assert len(errors(made)) == 1
    assert re.search(
        r"engine process \d+ has ended with exit code 1 while the engine starts", errors(made)[0]
    )


def test_a_warm_up_that_fails_leaves_the_worker_not_serving(worker) -> None:
    made: Worker = worker(wait=False, settings={"TS_FAKE_ON_START": "faults:refuse_everything"})
    deadline = time.monotonic() + 90
    while not made.lines("stays NOT_SERVING"):
        assert time.monotonic() < deadline and made.process.poll() is None, made.said()[-2000:]
        time.sleep(0.1)
    assert made.health() == "NOT_SERVING"
    with made.stub() as stub:
        answer = ask(stub, request("too early"))
    assert answer.code == "UNAVAILABLE"
    assert len(errors(made)) == 1
    assert made.end() == 0


def test_the_warm_up_is_skipped_on_request(worker) -> None:
    made: Worker = worker(settings={"TOKENSPEED_SKIP_GRPC_WARMUP": 1})
    assert "Receive: obj=" not in made.said()
    with made.stub() as stub:
        assert ask(stub, request("first")).code == "OK"


def test_a_unix_socket_is_served_beside_the_port(worker, tmp_path) -> None:
    path = tmp_path / "worker.sock"
    made: Worker = worker("--listen", f"unix:{path}")
    with grpc.insecure_channel(f"unix:{path}") as channel:
        over_unix = ask(services.TokenSpeedSchedulerStub(channel), request("over unix"))
    with made.stub() as stub:
        over_tcp = ask(stub, request("over tcp"))
    assert over_unix.code == over_tcp.code == "OK"
    assert made.end() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--room-wating", "3"],
            "--room-wating: there is no such flag; did you mean --room-waiting?",
        ),
        (["--room-waiting=x"], '--room-waiting: "x" is not a whole number'),
        (["--room-waiting"], "--room-waiting: the value is missing"),
        (["--rooms", "maybe"], "--rooms"),
        (["--roomkeeper-config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--roomkeeper-confg", "x"], "did you mean --roomkeeper-config?"),
        (["--listen", "unix:/nowhere/socket"], "unix:/nowhere/socket"),
        (["--listen", "nonsense"], "nonsense"),
    ],
)
def test_what_an_operator_can_mend_is_one_line_and_exit_code_2(flags: list[str], says: str) -> None:
    done = run_launcher("--model", model(), "--port", str(free_base()), *flags)
    said = [line for line in done.stderr.splitlines() if " roomkeeper: " in line]
    assert done.returncode == 2
    assert len(said) == 1 and says in said[0], done.stderr[-2000:]


def test_a_port_in_use_is_one_line_and_exit_code_2_before_the_engine_starts(worker) -> None:
    made: Worker = worker()
    done = run_launcher("--model", model(), "--host", "127.0.0.1", "--port", str(made.port))
    said = [line for line in done.stderr.splitlines() if " roomkeeper: " in line]
    assert done.returncode == 2
    assert (
        len(said) == 1 and f"127.0.0.1:{made.port}" in said[0] and "server_args=" not in done.stderr
    )


def test_help_shows_the_room_flags_and_tokenspeeds_own() -> None:
    done = run_launcher("--help")
    assert done.returncode == 0
    assert "--room-wait-seconds" in done.stdout and "--max-num-seqs" in done.stdout


def test_the_configuration_comes_from_a_file_that_the_environment_names(worker, tmp_path) -> None:
    # `ts serve` hands no flags of ours on.
    file = tmp_path / "rooms.yaml"
    file.write_text("window: 3\ngate_aggregated: on\n")
    made: Worker = worker(settings={"ROOMKEEPER_CONFIG": file})
    with made.stub() as stub:
        loads = stub.GetLoads(messages.GetLoadsRequest(), timeout=10)
    assert loads.loads[0].max_running_requests == 3


def test_a_node_above_rank_0_schedules_and_serves_the_engines_own_health_check(worker) -> None:
    flags = ["--nnodes", "2", "--node-rank", "1", "--tensor-parallel-size", "2"]
    made: Worker = worker(*flags, "--dist-init-addr", f"127.0.0.1:{free_base()}", wait=False)
    url = f"http://127.0.0.1:{made.port}/health"
    deadline = time.monotonic() + 90
    status = 0
    while status != 200:
        assert time.monotonic() < deadline and made.process.poll() is None, made.said()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            status = answer.status
        time.sleep(0.1)
    scheduler = made.scheduler()
    assert made.lines("rank 0 serves gRPC")
    assert made.end() == 0
    wait_gone(scheduler)
