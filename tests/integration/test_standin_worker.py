"""The stand-in as people start it: a process with the servicer in it, and a gRPC client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from roomkeeper import wire
from roomkeeper.standin import faults, tokens
from standin_support import (
    GUARD_S,
    WIRE,
    StandinWorker,
    chunk_tokens,
    complete,
    environment,
    message,
    new_room,
    run_cli,
    standin,
    standin_pair,
    until,
)

VOCAB = 32000
FAST = ("--step-ms", "2")


def code_of(call: Any) -> tuple[str, str]:
    """The status that a call ends with, and its text."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    error: Any = raised.value
    return error.code().name, error.details()


def load_of(worker: StandinWorker) -> Any:
    (load,) = worker.stub.GetLoads(message("GetLoadsRequest")(), timeout=GUARD_S).loads
    return load


@pytest.mark.parametrize("flags", [(), ("--stream-output",)], ids=["cumulative", "delta"])
def test_a_worker_says_where_it_is_and_streams_the_models_tokens(flags: tuple[str, ...]) -> None:
    with standin(*FAST, "--max-num-seqs", "3", *flags) as worker:
        assert worker.is_serving()
        responses = worker.generate([7, 8], 12, stream=True)
        expected = tokens.output_of([7, 8], 12, VOCAB)
        assert chunk_tokens(responses) == expected
        assert list(complete(responses).output_ids) == expected
        (only,) = worker.generate([7, 8], 12, stream=False)
        assert list(only.complete.output_ids) == expected


def test_the_server_info_names_the_scheduler_the_window_and_the_model() -> None:
    flags = ("--max-num-seqs", "3", "--served-model-name", "made-up", "--vocab-size", "500")
    with standin(*flags) as worker:
        info = worker.stub.GetServerInfo(message("GetServerInfoRequest")(), timeout=GUARD_S)
        model = worker.stub.GetModelInfo(message("GetModelInfoRequest")(), timeout=GUARD_S)
        assert info.server_args["max_num_seqs"] == 3
        assert info.server_args["disaggregation_mode"] == "null"
        assert info.scheduler_info["scheduler"] == worker.scheduler
        assert (model.served_model_name, model.vocab_size) == ("made-up", 500)


def test_logprobs_stand_beside_their_tokens() -> None:
    with standin(*FAST) as worker:
        request = worker.request([7], 6, stream=True, return_logprob=True, top_logprobs_num=2)
        responses = list(worker.stub.Generate(request, timeout=GUARD_S))
    last = complete(responses)
    assert list(last.output_logprobs.token_logprobs) == [tokens.logprob_at(i) for i in range(6)]
    assert list(last.output_logprobs.token_ids) == list(last.output_ids)
    for top, token in zip(last.output_logprobs.top_logprobs, last.output_ids, strict=True):
        assert top.token_ids[0] == token
        assert len(top.values) == 2


def test_a_stop_token_ends_a_stream_and_is_trimmed() -> None:
    expected = tokens.output_of([7], 5, VOCAB)
    with standin(*FAST) as worker:
        request = worker.request([7], 9, stream=True)
        request.sampling_params.ignore_eos = False
        request.sampling_params.stop_token_ids.append(expected[4])
        last = complete(list(worker.stub.Generate(request, timeout=GUARD_S)))
    assert last.finish_reason == "stop"
    assert last.matched_token_id == expected[4]
    assert list(last.output_ids) == expected[:4]


def test_a_request_that_does_not_say_gets_the_tokens_of_the_flag_and_n_gives_n_choices() -> None:
    with standin(*FAST, "--tokens", "5") as worker:
        request = worker.request([7], 1)
        request.sampling_params.ClearField("max_new_tokens")
        request.sampling_params.n = 3
        responses = list(worker.stub.Generate(request, timeout=GUARD_S))
    assert sorted(r.complete.index for r in responses) == [0, 1, 2]
    assert [len(r.complete.output_ids) for r in responses] == [5, 5, 5]


def test_a_worker_listens_on_a_unix_socket_too(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    with standin(*FAST, "--listen", address) as worker:
        with grpc.insecure_channel(address) as channel:
            stub = WIRE.stub(channel, wire.TOKENSPEED)
            responses = list(stub.Generate(worker.request([7], 2), timeout=GUARD_S))
    assert len(complete(responses).output_ids) == 2


# -- pairs --


def pair(workers: tuple[StandinWorker, StandinWorker, int], number: int, count: int) -> list[str]:
    """How each leg of a room ends: a finish reason or a status."""
    room = new_room()

    def leg(worker: StandinWorker) -> str:
        request = worker.request([number + 3] * 40, count, stream=True)
        request.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
        request.kv_bootstrap_info.bootstrap_port = workers[2]
        request.kv_bootstrap_info.bootstrap_room = room
        try:
            responses = list(worker.stub.Generate(request, timeout=GUARD_S))
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
        return str(complete(responses).finish_reason)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(leg, workers[:2]))


def burst(workers: tuple[StandinWorker, StandinWorker, int], pairs: int) -> list[list[str]]:
    with ThreadPoolExecutor(pairs) as pool:
        return list(pool.map(lambda number: pair(workers, number, 8), range(pairs)))


DEADLINES = ("--bootstrap-timeout", "0.6", "--transfer-timeout", "1.5")


def test_with_rooms_off_a_wide_burst_fails_as_it_does_under_the_incumbent() -> None:
    flags = ("--max-num-seqs", "2", "--step-ms", "20", *DEADLINES, "--rooms", "off")
    with standin_pair(*flags) as workers:
        assert pair(workers, 0, 8) == ["length", "length"]
        ends = burst(workers, 16)
        assert ["INTERNAL", "INTERNAL"] in ends
        assert pair(workers, 1, 8) == ["length", "length"]


def test_with_rooms_on_the_window_is_never_passed() -> None:
    """Few enough that the prefills' deadline is not the point; every pair finishes."""
    flags = ("--max-num-seqs", "2", "--step-ms", "5", "--bootstrap-timeout", "20")
    with standin_pair(*flags) as workers:
        over = threading.Event()
        most = [0]

        def look() -> None:
            while not over.is_set():
                most[0] = max(most[0], load_of(workers[1]).num_running_reqs)

        watcher = threading.Thread(target=look)
        watcher.start()
        ends = burst(workers, 12)
        over.set()
        watcher.join()
    assert ends == [["length", "length"]] * 12
    assert 1 <= most[0] <= 2


# -- faults --


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, "INTERNAL"), (400, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")],
)
@pytest.mark.parametrize("after_tokens", [0, 3])
def test_an_engine_abort_is_its_status_on_the_wire(
    faulty: StandinWorker, status: int, code: str, after_tokens: int
) -> None:
    prompt = faults.prompt(VOCAB, faults.ABORT, status, after_tokens)
    request = faulty.request(prompt, 9, stream=True)
    got, text = code_of(faulty.stub.Generate(request, timeout=GUARD_S))
    assert got == code
    assert "the prompt asked for an abort" in text


def test_an_exception_in_the_frontend_is_internal(faulty: StandinWorker) -> None:
    request = faulty.request(faults.prompt(VOCAB, faults.RAISE), 9)
    assert code_of(faulty.stub.Generate(request, timeout=GUARD_S))[0] == "INTERNAL"


@pytest.mark.parametrize("kind", [faults.HOLD_GIL, faults.BLOCK_LOOP])
def test_loads_and_health_are_answered_while_python_is_stuck(
    faulty: StandinWorker, kind: int
) -> None:
    call = faulty.stub.Generate(faulty.request(faults.prompt(VOCAB, kind, 20), 2), timeout=GUARD_S)
    answered = 0
    over = threading.Event()
    threading.Thread(target=lambda: (list(call), over.set())).start()
    while not over.is_set():
        load_of(faulty)
        assert isinstance(faulty.is_serving(), bool)
        answered += 1
    # Two seconds of stuck Python would leave room for none but the first.
    assert answered >= 3


@pytest.fixture(scope="module")
def faulty() -> Any:
    with standin(*FAST, "--faults") as worker:
        yield worker


# -- life --


def test_sigterm_lets_a_running_stream_finish_and_exits_with_0() -> None:
    with standin("--step-ms", "20") as worker:
        stream = worker.stub.Generate(worker.request([7], 30, stream=True), timeout=GUARD_S)
        first = next(stream)
        worker.signal(signal.SIGTERM)
        until(lambda: not _serves(worker), "NOT_SERVING")
        responses = [first, *stream]
        assert complete(responses).finish_reason == "length"
        assert chunk_tokens(responses) == tokens.output_of([7], 30, VOCAB)
        assert worker.wait() == 0
        assert not _exists(worker.scheduler_pids[0])


def test_a_second_sigterm_ends_it_now() -> None:
    with standin("--step-ms", "20") as worker:
        stream = worker.stub.Generate(worker.request([7], 4000, stream=True), timeout=GUARD_S)
        next(stream)
        worker.signal(signal.SIGTERM)
        until(lambda: not _serves(worker), "NOT_SERVING")
        worker.signal(signal.SIGTERM)
        assert code_of(stream)[0] == "UNAVAILABLE"
        assert worker.wait() == 0


def test_a_worker_whose_scheduler_process_dies_says_so_and_exits_with_1() -> None:
    with standin("--step-ms", "20") as worker:
        stream = worker.stub.Generate(worker.request([7], 4000, stream=True), timeout=GUARD_S)
        next(stream)
        os.kill(worker.scheduler_pids[0], signal.SIGKILL)
        assert code_of(stream)[0] == "UNAVAILABLE"
        assert worker.wait() == 1
        assert f"engine process {worker.scheduler_pids[0]} has ended" in worker.log_text()


def test_the_scheduler_process_dies_with_a_worker_that_is_killed() -> None:
    with standin() as worker:
        worker.signal(signal.SIGKILL)
        worker.wait()
        until(lambda: not _exists(worker.scheduler_pids[0]), "the scheduler is gone")


def test_a_scheduler_process_that_is_stopped_is_a_stalled_engine_until_it_goes_on() -> None:
    with standin("--step-ms", "20", "--room-stall-seconds", "1") as worker:
        stream = worker.stub.Generate(worker.request([7], 300, stream=True), timeout=GUARD_S)
        first = next(stream)
        os.kill(worker.scheduler_pids[0], signal.SIGSTOP)
        try:
            until(lambda: not worker.is_serving(), "NOT_SERVING")
            code, _ = code_of(worker.stub.Generate(worker.request([8], 2), timeout=GUARD_S))
            assert code == "UNAVAILABLE"
        finally:
            os.kill(worker.scheduler_pids[0], signal.SIGCONT)
        assert chunk_tokens([first, *stream]) == tokens.output_of([7], 300, VOCAB)
        until(worker.is_serving, "SERVING")


def test_without_tokenspeeds_scheduler_the_worker_says_which_it_has(tmp_path: Path) -> None:
    """A package of that name that cannot be imported stands before the true one."""
    (tmp_path / "tokenspeed_scheduler.py").write_text("raise ImportError('not for this machine')\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    command = [sys.executable, "-m", "roomkeeper", "standin", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as child:
        guard = threading.Timer(GUARD_S, child.kill)
        guard.start()
        assert child.stdout is not None and child.stderr is not None
        ready = next(line for line in child.stdout if line.startswith("ready"))
        child.terminate()
        log = child.stderr.read()
        guard.cancel()
    assert "scheduler builtin first-come" in ready
    assert "tokenspeed-scheduler is not installed" in log


def test_the_ledger_knows_the_engines_transfer_deadline_unless_it_is_told_another() -> None:
    from roomkeeper.flags import split_room_flags
    from roomkeeper.standin.args import parse
    from roomkeeper.standin.main import room_config

    args = parse(["--transfer-timeout", "6"])
    assert room_config(split_room_flags([])[0], args).number("transfer_seconds") == 6
    flags, _ = split_room_flags(["--room-transfer-seconds", "9"])
    assert room_config(flags, args).number("transfer_seconds") == 9


# -- what can be put right is one line, and exit code 2 --


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-num-seqs", "0"), "--max-num-seqs is 0; it must be from 1 to 1000000"),
        (("--max-model-len", "0"), "--max-model-len is 0; it must be from 2 to "),
        (("--vocab-size", "0"), "--vocab-size is 0; it must be from 16 to "),
        (
            ("--max-num-seq", "4"),
            "--max-num-seq: there is no such flag; did you mean --max-num-seqs",
        ),
        (("--step-ms", "soon"), "--step-ms"),
        (("--role", "encoder"), "--role"),
        (("--room-wating", "4"), "did you mean --room-waiting"),
        (("--model", "/no/such/model"), "there is no such directory"),
        (("--role", "prefill", "--attention-dp-size", "2"), "--attention-dp-size is 2"),
        (("--transfer-timeout", "nan"), "--transfer-timeout is nan"),
    ],
)
def test_a_flag_that_cannot_be_is_one_line_and_exit_code_2(
    flags: tuple[str, ...], words: str
) -> None:
    done = run_cli("standin", *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with standin() as worker:
        port = worker.address.rpartition(":")[2]
        done = run_cli("standin", "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_kv_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with standin_pair() as (_, _, port):
        flags = ("--role", "prefill", "--port", "0", "--disaggregation-bootstrap-port", str(port))
        done = run_cli("standin", *flags)
    assert done.returncode == 2
    assert f"--disaggregation-bootstrap-port is {port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_that_there_is_not_names_the_nearest() -> None:
    done = run_cli("stnadin")
    assert done.returncode == 2
    assert "did you mean standin" in done.stderr


def _serves(worker: StandinWorker) -> bool:
    try:
        return worker.is_serving()
    except grpc.RpcError:
        return False


def _exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
