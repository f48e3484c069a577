"""Starting, draining, stopping, and what a process may do around it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from harness.byhand import by_hand
from harness.client import GUARD_S, NOT_SERVING, SERVING, Client, Stream, request, until
from harness.process import SANITIZED, Program, c_standin, free_port, program, run, standin

Serve = Callable[..., AbstractContextManager[tuple[Program, str]]]


@contextmanager
def _c(*, step_ms: int, drain_s: float) -> Iterator[tuple[Program, str]]:
    flags = ("--step-us", str(step_ms * 1000), "--room-drain-seconds", str(drain_s))
    with c_standin(*flags) as served:
        yield served


@contextmanager
def _python(*, step_ms: int, drain_s: float) -> Iterator[tuple[Program, str]]:
    flags = ("--step-ms", str(step_ms), "--room-drain-seconds", str(drain_s))
    with standin(*flags) as worker:
        yield worker.program, worker.address


@pytest.fixture(params=[_c, _python], ids=["C stand-in", "Python stand-in"])
def serve(request: pytest.FixtureRequest) -> Serve:
    made: Serve = request.param
    return made


def _streams(client: Client, count: int, tokens: int) -> list[Stream]:
    """Open streams that have all begun."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    streams = [client.generate(f"r{i}-{tokens}", sampling=sampling) for i in range(count)]
    for stream in streams:
        stream.get(1)
    return streams


# -- SIGTERM --


def test_after_sigterm_the_old_finish_the_new_are_refused_and_it_exits_0(serve: Serve) -> None:
    """smg-project/smg#1744, smg-project/smg#1172: SIGTERM amid 8 streams."""
    with serve(step_ms=20, drain_s=30) as (started, address), Client(address) as client:
        watch = client.watch()
        watch.get(1)
        streams = _streams(client, 8, 50)
        started.signal(signal.SIGTERM)
        assert [m.status for m in watch.get(2)] == [SERVING, NOT_SERVING]
        assert client.check() == NOT_SERVING
        assert client.generate("new").end().name == "UNAVAILABLE"
        for stream in streams:
            assert stream.end().name == "OK"
            assert len(stream.complete().output_ids) == 50 == len(stream.chunk_ids())
        assert started.wait() == 0
        assert watch.end().name == "UNAVAILABLE"


def test_what_does_not_finish_in_the_grace_ends_with_a_status(serve: Serve) -> None:
    """smg-project/smg#1744: and the process ends within the grace and a second."""
    with serve(step_ms=50, drain_s=1) as (started, address), Client(address) as client:
        streams = _streams(client, 8, 4000)
        began = time.monotonic()
        started.signal(signal.SIGTERM)
        assert started.wait() == 0
        took = time.monotonic() - began
        assert 0.9 < took < (20 if SANITIZED else 6)  # wide: the machine may be busy
        for stream in streams:
            status = stream.end()
            assert status.name == "UNAVAILABLE"
            assert "shutting down" in status.details


def test_a_second_sigterm_ends_it_now(serve: Serve) -> None:
    with serve(step_ms=50, drain_s=600) as (started, address), Client(address) as client:
        streams = _streams(client, 4, 4000)
        started.signal(signal.SIGTERM)
        until(lambda: client.check() == NOT_SERVING, "it drains")
        started.signal(signal.SIGTERM)
        assert started.wait() == 0
        for stream in streams:
            assert stream.end().name == "UNAVAILABLE"


def test_sigterm_at_rest_ends_it_at_once(serve: Serve) -> None:
    with serve(step_ms=5, drain_s=600) as (started, address), Client(address) as client:
        assert client.check() == SERVING
        started.signal(signal.SIGTERM)
        assert started.wait() == 0


# -- in one process --


def test_fifty_lives_in_one_process_leave_nothing_behind() -> None:
    """grpc/grpc#38112, grpc/grpc#23238, grpc/grpc#1731: stop with an open stream, stop twice."""
    done = run("start_stop", "50")
    assert done.wait() == 0, done.output()
    numbers = {
        name: tuple(map(int, done.wait_line(rf"^{name} (\d+) (\d+)$").groups()))
        for name in ("descriptors", "threads", "memory")
    }
    assert numbers["descriptors"][1] <= numbers["descriptors"][0] + 2, numbers
    assert numbers["threads"][1] <= numbers["threads"][0] + 2, numbers
    if not SANITIZED:  # which keeps freed memory for a while
        assert numbers["memory"][1] < numbers["memory"][0] + 45 * 256, numbers


def test_a_stop_amid_a_hundred_writing_streams_ends_them_all() -> None:
    """grpc/grpc#38112, grpc/grpc#23238: work queued on a queue that is shut down asserts."""
    done = run("stop_while_writing", "100")
    assert done.wait() == 0, done.output()
    assert done.find(r"^UNAVAILABLE=100$"), done.output()


def test_two_servicers_in_one_process_do_not_know_each_other() -> None:
    with by_hand("decode", window=1) as one, by_hand("prefill", window=1) as other:
        first, first_leg = one.admitted("same", room=1)
        second, second_leg = other.admitted("same", room=1)
        assert other.client.abort("same").success
        assert second.end().name == "OK"
        assert not first.ended(0.05)
        other.servicer.stop()
        assert one.client.check() == SERVING
        first_leg.finish()
        assert first.end().name == "OK"
        assert one.engine.aborts == [] and second_leg.submission.engine_id.startswith("same~")


def test_a_port_is_free_again_as_soon_as_a_servicer_has_stopped() -> None:
    with by_hand() as first:
        port = first.port
        first.servicer.stop()
        with by_hand(listen=(f"127.0.0.1:{port}",)) as again:
            with Client(f"127.0.0.1:{port}") as client:
                assert client.check() == SERVING
            assert again.client.check() == SERVING


@pytest.mark.skipif(SANITIZED, reason="the sanitizers' runtime cannot fork with threads")
def test_a_fork_of_a_live_server_leaves_the_parent_unharmed_and_the_child_out() -> None:
    with program("fork_live") as started:
        port = started.wait_line(r"^port (\d+)$").group(1)
        with Client(f"127.0.0.1:{port}") as client:
            stream = client.generate("open")
            for _ in range(3):
                started.wait_line(r"^child refused 7 of 7$")
            started.wait_line(r"^child ended with 0$")
            assert stream.end().name == "OK"
            assert list(stream.complete().output_ids) == [42]
            later = client.generate("later")
            assert later.end().name == "OK"
            assert list(later.complete().output_ids) == [43]
            assert len([line for line in started.lines if line == "child ended with 0"]) == 3


# -- killed and started again --


def test_a_killed_worker_rebinds_its_address_at_once_and_starts_afresh() -> None:
    """smg-project/smg#2468: restarted on the same address, and it did not rejoin."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    flags = ("--listen", address, "--role", "decode", "--step-us", "20000")
    with c_standin(*flags, "--window", "3") as (first, _), Client(address) as client:
        streams = [client.generate(f"r{i}", room=i + 1) for i in range(2)]
        for stream in streams:
            stream.get(1)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with c_standin(*flags, "--window", "5") as (_, _):
            for stream in streams:
                assert stream.end().name == "UNAVAILABLE"

            def answers() -> object:
                try:
                    return client.loads(timeout=1).loads[0]
                except Exception:
                    return None

            load = until(answers, "the same channel finds the new worker")
            assert (load.max_running_requests, load.num_running_reqs) == (5, 0)
            assert client.server_info().server_args["max_num_seqs"] == 5
            again = client.generate("again", room=1, sampling={"max_new_tokens": 2})
            assert again.end().name == "OK"


def test_an_address_can_be_bound_while_the_killed_workers_connections_still_linger() -> None:
    """smg-project/smg#2468: kill -9 with live connections, and a bind within 0.3 s."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with c_standin("--listen", address) as (first, _):
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        with Client(address) as client:
            assert client.check() == SERVING
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            with by_hand(listen=(address,)):
                pass
        for connection in connections:
            connection.close()


# -- exits --


def test_a_worker_whose_engine_dies_tells_its_streams_and_exits_1() -> None:
    """smg-project/smg#1266, sgl-project/sglang#29957: exit fails streams UNAVAILABLE."""
    with standin("--step-ms", "50") as worker, Client(worker.address) as client:
        streams = _streams(client, 2, 4000)
        os.kill(worker.scheduler_pids[0], signal.SIGKILL)
        for stream in streams:
            assert stream.end().name == "UNAVAILABLE"
        assert worker.program.wait() == 1
        (line,) = [line for line in worker.program.lines if "engine process" in line]
        assert str(worker.scheduler_pids[0]) in line


def test_a_wrong_flag_or_key_is_one_line_and_exit_2() -> None:
    import sys

    for flags, words in {
        ("--room-waitin", "3"): "--room-waiting",
        ("--room-waiting", "-7"): "--room-waiting",
        ("--max-num-seq", "3"): "--max-num-seqs",
        ("--room-stall-seconds", "9", "--room-dead-seconds", "1"): "dead_seconds",
    }.items():
        with Program([sys.executable, "-m", "roomkeeper", "standin", *flags]) as started:
            assert started.wait() == 2, started.output()
            assert len(started.lines) == 1 and words in started.lines[0], started.output()


def test_a_port_in_use_is_one_line_and_exit_2() -> None:
    import sys

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "roomkeeper", "standin", "--port", port]
        with Program(command) as started:
            assert started.wait() == 2, started.output()
            assert port in started.lines[-1] and "in use" in started.lines[-1]


def test_a_call_that_arrives_amid_the_stop_is_answered_or_refused_but_not_lost() -> None:
    for _ in range(5):
        with by_hand() as worker:
            streams = [worker.client.send(request(f"r{i}")) for i in range(50)]
            worker.servicer.stop()
            for stream in streams:
                assert stream.end(GUARD_S).name in ("UNAVAILABLE", "CANCELLED")
            assert worker.servicer.open_calls() == 0
