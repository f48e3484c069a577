"""The control plane while Python, the engine's loop, or its scheduler process is stuck or gone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.client import GENERATE, GUARD_S, NOT_SERVING, SERVING, Client, Stream, until
from harness.process import SANITIZED, Worker, standin
from roomkeeper.standin import faults

VOCAB = 32000
#: Tenths of a second that Python is stuck; wide, so that what is asked meanwhile is over before.
STUCK_TENTHS = 100 if SANITIZED else 60


def _fault(kind: int, *arguments: int) -> list[int]:
    return faults.prompt(VOCAB, kind, *arguments)


@contextlib.contextmanager
def _worker(*flags: str) -> Iterator[tuple[Worker, Client]]:
    with standin("--faults", "--vocab-size", str(VOCAB), *flags) as worker:
        with Client(worker.address) as client:
            yield worker, client


def _begun(client: Client, name: str, tokens: int = 4000, **fields: Any) -> Stream:
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    stream = client.generate(name, sampling=sampling, **fields)
    stream.get(1)
    return stream


def _stuck(
    client: Client, kind: int, tenths: int = STUCK_TENTHS
) -> tuple[Stream, Callable[[], bool]]:
    """Makes the worker's Python stick; and whether it still does."""
    prompt = _fault(kind, tenths)
    began = time.monotonic()
    stream = client.generate("sticks", input_ids=prompt, sampling={"max_new_tokens": 1})
    time.sleep(0.5)  # until it has come to it
    return stream, lambda: time.monotonic() - began < tenths / 10


@pytest.mark.parametrize("kind", [faults.HOLD_GIL, faults.BLOCK_LOOP], ids=["GIL", "loop"])
def test_the_control_plane_answers_while_python_is_stuck(kind: int) -> None:
    """The GIL is held by a thread, or the engine's loop is blocked: GetLoads, health, refusals,
    waiting and aborts go on.
    """
    flags = ("--max-num-seqs", "1", "--step-ms", "20", "--room-gate-aggregated", "on")
    with _worker(*flags, "--room-waiting", "1", "--room-wait-seconds", "1.0") as (_, client):
        stuck, still = _stuck(client, kind)
        load = client.loads().loads[0]
        assert (load.max_running_requests, load.num_running_reqs) == (1, 1)
        assert client.check() == SERVING
        waiting = client.generate("waiting")
        until(lambda: client.loads().loads[0].num_waiting_reqs == 1, "one waits")
        refused = client.generate("refused").end()
        assert refused.name == "RESOURCE_EXHAUSTED"
        assert refused.trailing["roomkeeper-window"] == "1"
        assert client.raw(GENERATE, b"\xff").name == "INVALID_ARGUMENT"
        timed_out = waiting.end()
        assert timed_out.name == "RESOURCE_EXHAUSTED" and "1.000 s" in timed_out.details
        assert client.rooms()["engine"]["state"] == "ready"
        again = client.generate("again")
        until(lambda: client.loads().loads[0].num_waiting_reqs == 1, "another waits")
        assert client.abort("again").success
        assert again.end().name == "OK"
        assert client.abort("sticks").success
        assert stuck.end().name == "OK"
        assert stuck.complete().finish_reason == "abort"
        # Nothing above has waited for Python.
        assert still()
        # And then it goes on by itself.
        until(lambda: client.loads().loads[0].num_running_reqs == 0, "the engine has let go")
        after = client.generate("after", sampling={"max_new_tokens": 2})
        assert after.end().name == "OK"


@pytest.mark.parametrize("kind", [faults.HOLD_GIL, faults.BLOCK_LOOP], ids=["GIL", "loop"])
def test_a_loop_that_is_stuck_past_the_bound_is_reported_and_is_back(kind: int) -> None:
    """smg-project/smg#1266: deadlocked, and health says SERVING for good."""
    with _worker("--room-stall-seconds", "1", "--step-ms", "20") as (_, client):
        watch = client.watch()
        watch.get(1)
        stuck, _ = _stuck(client, kind, 40)
        assert [m.status for m in watch.get(2)] == [SERVING, NOT_SERVING]
        refused = client.generate("refused").end()
        assert refused.name == "UNAVAILABLE" and "stall_seconds" in refused.details
        assert client.loads().loads[0].num_running_reqs == 1
        assert client.rooms()["engine"]["state"] == "stalled"
        assert watch.get(3)[2].status == SERVING
        assert stuck.end().name == "OK"
        after = client.generate("after", sampling={"max_new_tokens": 2})
        assert after.end().name == "OK"


def test_a_stopped_scheduler_is_noticed_with_open_streams_and_when_it_goes_on() -> None:
    """smg-project/smg#1266, sgl-project/sglang#29957: SIGSTOP the engine with two streams open."""
    with _worker("--room-stall-seconds", "1.5", "--step-ms", "20") as (worker, client):
        streams = [_begun(client, f"r{i}", tokens=60) for i in range(2)]
        (pid,) = worker.scheduler_pids
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: client.check() == NOT_SERVING, "the stall is noticed")
            assert client.generate("new").end().name == "UNAVAILABLE"
            assert not any(stream.ended() for stream in streams)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: client.check() == SERVING, "it is back")
        for stream in streams:
            assert stream.end().name == "OK"
            assert len(stream.complete().output_ids) == 60


def test_streams_of_a_scheduler_that_stays_stopped_end_unavailable() -> None:
    flags = ("--room-stall-seconds", "1", "--room-dead-seconds", "2", "--step-ms", "20")
    with _worker(*flags) as (worker, client):
        stream = _begun(client, "r")
        (pid,) = worker.scheduler_pids
        os.kill(pid, signal.SIGSTOP)
        try:
            status = stream.end()
            assert status.name == "UNAVAILABLE" and "2.000 s" in status.details
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: client.check() == SERVING, "it is back")
        after = client.generate("after", sampling={"max_new_tokens": 2})
        assert after.end().name == "OK"


def test_an_idle_worker_is_alive_however_long_nobody_asks_it_anything() -> None:
    with _worker("--room-stall-seconds", "1.5") as (_, client):
        watch = client.watch()
        watch.get(1)
        assert not watch.ended(4.0)
        assert [m.status for m in watch.messages] == [SERVING]


def test_a_silent_request_is_no_stall() -> None:
    """A request may wait for its peer's KV for minutes while the engine is well."""
    with _worker("--room-stall-seconds", "1.5") as (_, client):
        sampling = {"max_new_tokens": 4000}
        prompt = _fault(faults.SILENT)
        silent = client.generate("silent", input_ids=prompt, sampling=sampling)
        time.sleep(4)
        assert client.check() == SERVING
        assert not silent.ended()
        assert client.abort("silent").success
        assert silent.end().name == "OK"


def test_what_the_frontend_raises_ends_its_call_only() -> None:
    with _worker("--step-ms", "10") as (_, client):
        live = _begun(client, "live", tokens=50)
        raising = client.generate("raising", input_ids=_fault(faults.RAISE)).end()
        assert raising.name == "INTERNAL"
        assert live.end().name == "OK"


def test_health_keeps_its_pace_under_a_full_window() -> None:
    """sgl-project/sglang#11338, #35896: window full, 20 checks a second, none lost."""
    flags = ("--max-num-seqs", "2", "--step-ms", "10", "--room-gate-aggregated", "on")
    with _worker(*flags) as (_, client):
        streams = [client.generate(f"r{i}", sampling={"max_new_tokens": 60}) for i in range(20)]
        failed: list[BaseException] = []

        def probe() -> None:
            for _ in range(40):
                try:
                    assert client.check(timeout=GUARD_S) == SERVING
                except BaseException as error:
                    failed.append(error)
                time.sleep(0.05)

        prober = threading.Thread(target=probe)
        prober.start()
        prober.join()
        assert failed == []
        for stream in streams:
            stream.cancel()
