"""Whether the worker serves, as health checks, watchers and callers see it."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest

from harness.byhand import by_hand
from harness.client import (
    GUARD_S,
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    WIRE,
    Stream,
    failure,
    health_request,
    message,
    request,
    until,
)
from roomkeeper import wire

#: The room link has a listener of its own; Encode is served by encode workers alone.
ELSEWHERE = ("roomkeeper.", "tokenspeed.grpc.encoder.")
SERVED = [name for name in WIRE.services if not name.startswith(ELSEWHERE)]


def _statuses(watch: Stream, count: int) -> list[int]:
    return [m.status for m in watch.get(count)]


def _health(worker: Any, timeout: float = GUARD_S) -> Any:
    return worker.client.scheduler.HealthCheck(message("HealthCheckRequest"), timeout=timeout)


# -- grpc.health.v1 --


@pytest.mark.parametrize("service", ["", *sorted(SERVED)])
def test_check_knows_the_server_and_each_of_its_services(service: str) -> None:
    with by_hand() as worker:
        assert worker.client.check(service) == SERVING
        worker.servicer.drain()
        assert worker.client.check(service) == NOT_SERVING


def test_a_service_that_is_not_here_is_not_found_and_a_watcher_is_told_unknown() -> None:
    with by_hand() as worker:
        status = failure(lambda: worker.client.check("sglang.grpc.scheduler.SglangScheduler"))
        assert status.name == "NOT_FOUND"
        assert "sglang.grpc.scheduler.SglangScheduler" in status.details
        watch = worker.client.watch("no.such.Service")
        assert _statuses(watch, 1) == [SERVICE_UNKNOWN]
        assert not watch.ended(0.1)
        watch.cancel()


def test_a_watcher_is_told_each_change_and_only_changes() -> None:
    with by_hand(ready=False) as worker:
        watch = worker.client.watch()
        assert _statuses(watch, 1) == [NOT_SERVING]
        worker.servicer.state("ready")
        assert _statuses(watch, 2) == [NOT_SERVING, SERVING]
        worker.servicer.state("ready")
        worker.servicer.state("stalled", "said so")
        assert _statuses(watch, 3)[2] == NOT_SERVING
        worker.servicer.state("ready")
        assert _statuses(watch, 4)[3] == SERVING
        worker.servicer.drain()
        assert _statuses(watch, 5)[4] == NOT_SERVING


def test_many_watchers_are_all_told_and_those_that_go_are_forgotten() -> None:
    with by_hand() as worker:
        watches = [worker.client.watch() for _ in range(50)]
        for watch in watches:
            watch.get(1)
        for watch in watches[:25]:
            watch.cancel()
        worker.servicer.drain()
        for watch in watches[25:]:
            assert _statuses(watch, 2) == [SERVING, NOT_SERVING]
        worker.servicer.stop()
        for watch in watches[25:]:
            assert watch.end().name == "UNAVAILABLE"


def test_list_names_every_service_with_its_status() -> None:
    with by_hand() as worker:
        ask = WIRE.message("grpc.health.v1.HealthListRequest")()
        statuses = worker.client.health.List(ask, timeout=GUARD_S).statuses
        assert {name: status.status for name, status in statuses.items()} == dict.fromkeys(
            ["", *SERVED], SERVING
        )


# -- until it is ready --


def test_nothing_is_served_before_the_warm_up_is_done() -> None:
    """smg-project/smg#1367: health flipped to SERVING although the warm-up had failed."""
    with by_hand(ready=False) as worker:
        assert worker.client.check() == NOT_SERVING
        status = worker.generate("early").end()
        assert status.name == "UNAVAILABLE"
        assert "not warmed up" in status.details
        assert not _health(worker).healthy
        worker.servicer.state("starting", "warm-up failed: no kernel image")
        status = worker.generate("later").end()
        assert (status.name, "no kernel image" in status.details) == ("UNAVAILABLE", True)
        assert worker.client.check() == NOT_SERVING
        assert worker.engine.legs == []


@pytest.mark.parametrize("role", ["null", "prefill", "decode"])
def test_loads_are_the_first_rpc_of_all_and_have_the_window(role: str) -> None:
    """smg-project/smg#2249, smg-project/smg#2466: a load poll before anything else, on any role."""
    with by_hand(role, window=7, ready=False) as worker:
        answer = worker.client.loads()
        assert [load.max_running_requests for load in answer.loads] == [7]
        assert (answer.loads[0].num_running_reqs, answer.loads[0].num_waiting_reqs) == (0, 0)
        assert worker.engine.queries == [] and worker.engine.legs == []


# -- under load --


@pytest.mark.parametrize("role", ["null", "decode"])
def test_health_is_answered_from_state_while_the_window_is_full(role: str) -> None:
    """sgl-project/sglang#11338, #35896: probes that are real requests wait, time out and pile up."""
    settings = {"gate_aggregated": "on", "waiting": 0}
    with by_hand(role, window=1, settings=settings) as worker:
        _, leg = worker.admitted("r", room=None if role == "null" else 1)
        leg.output([1])
        for _ in range(40):
            assert worker.client.check(timeout=5) == SERVING
            assert _health(worker, timeout=5).healthy
        assert worker.engine.order == ["r"] and worker.engine.queries == []


def test_an_aggregated_worker_that_was_silent_is_probed_and_the_probe_is_no_request() -> None:
    with by_hand("null") as worker:
        assert _health(worker).healthy
        assert [query.kind for query in worker.engine.queries] == ["probe"]
        assert worker.engine.legs == []
        worker.engine.answers["probe"] = False
        assert not _health(worker).healthy


def test_the_engines_outputs_spare_it_the_probe() -> None:
    with by_hand("null") as worker:
        stream, leg = worker.admitted("r")
        leg.finish()
        stream.end()
        assert _health(worker).healthy
        assert worker.engine.queries == []


# -- stalled and dead --


def test_an_engine_that_does_not_beat_is_stalled_and_is_back_when_it_does() -> None:
    """smg-project/smg#1266, sgl-project/sglang#29957: deadlocked, and SERVING for good."""
    settings: dict[str, object] = {"stall_seconds": 0.3, "dead_seconds": 60}
    with by_hand("null", settings=settings) as worker:
        beats = threading.Event()

        def beat() -> None:
            while not beats.wait(0.05):
                worker.servicer.beat()

        beating = threading.Thread(target=beat)
        beating.start()
        stream, leg = worker.admitted("open")
        watch = worker.client.watch()
        time.sleep(0.6)
        assert worker.client.check() == SERVING, "idle is not dead"
        beats.set()
        beating.join()
        assert _statuses(watch, 2) == [SERVING, NOT_SERVING]
        status = worker.generate("new").end()
        assert status.name == "UNAVAILABLE"
        assert "0.300 s" in status.details and "stall_seconds" in status.details
        assert not _health(worker).healthy
        assert worker.client.loads().loads[0].num_running_reqs == 1
        assert not stream.ended()
        leg.finish()
        assert _statuses(watch, 3)[2] == SERVING
        assert stream.end().name == "OK"


def test_streams_of_an_engine_that_stays_silent_end_unavailable() -> None:
    """smg-project/smg#1266: the slot is not free, since the engine may come back with the room."""
    settings: dict[str, object] = {"stall_seconds": 0.2, "dead_seconds": 0.6, "wait_seconds": 600}
    with by_hand("decode", window=1, settings=settings) as worker:
        stream, leg = worker.admitted("r", room=1)
        waiting = worker.waiting("w", room=2)
        for open_stream in (stream, waiting):
            status = open_stream.end()
            assert status.name == "UNAVAILABLE"
            assert "0.600 s" in status.details and "dead_seconds" in status.details
        assert worker.rank()["releasing"] == 1
        worker.servicer.state("ready")
        assert worker.client.check() == SERVING
        leg.finish()
        worker.idle()
        worker.admitted("again", room=3)


def test_an_engine_that_is_gone_ends_its_streams_at_once_and_for_good() -> None:
    """sgl-project/sglang#29957: the scheduler's process has ended."""
    with by_hand("null") as worker:
        stream, _ = worker.admitted("r")
        worker.servicer.state("dead", "the scheduler was killed by signal 9")
        assert stream.end().name == "UNAVAILABLE"
        assert worker.client.check() == NOT_SERVING
        status = worker.generate("new").end()
        assert status.name == "UNAVAILABLE" and "signal 9" in status.details
        worker.servicer.state("ready")
        worker.servicer.beat()
        assert worker.client.check() == NOT_SERVING


# -- draining --


def test_a_drain_says_so_at_once_refuses_the_new_and_lets_the_old_finish() -> None:
    """smg-project/smg#1744, smg-project/smg#1172."""
    with by_hand("decode", window=2) as worker:
        watch = worker.client.watch()
        watch.get(1)
        streams = [worker.admitted(f"r{i}", room=i + 1) for i in range(2)]
        waiting = worker.waiting("w", room=9)
        worker.servicer.drain()
        assert worker.client.check() == NOT_SERVING
        assert _statuses(watch, 2) == [SERVING, NOT_SERVING]
        for refused in (waiting, worker.generate("new", room=10)):
            status = refused.end()
            assert status.name == "UNAVAILABLE"
            assert "shutting down" in status.details
        assert not worker.servicer.wait_idle(0.05)
        for stream, leg in streams:
            leg.output([1])
            leg.finish([2])
            assert stream.end().name == "OK"
            assert list(stream.complete().output_ids) == [1, 2]
        assert worker.servicer.wait_idle(GUARD_S)
        assert worker.client.loads().loads[0].num_running_reqs == 0


# -- what is not served --


@pytest.mark.parametrize(
    "path",
    [
        "/sglang.grpc.scheduler.SglangScheduler/HealthCheck",
        "/vllm.grpc.engine.VllmEngine/HealthCheck",
        f"/{wire.TOKENSPEED}/NoSuchMethod",
        "/",
        "/a/b/c",
        "/grpc.health.v1.Health/check",
    ],
)
def test_what_is_not_served_is_unimplemented_at_once(path: str) -> None:
    """Gateways find out which engine is there by asking each engine's name."""
    with by_hand() as worker:
        status = worker.client.raw(path, b"")
        assert status.name == "UNIMPLEMENTED"
        assert path in status.details


def test_a_watcher_that_sends_no_service_or_a_bad_one_is_answered() -> None:
    with by_hand() as worker:
        path = "/grpc.health.v1.Health/Watch"
        assert worker.client.raw(path, b"\x0a\x02\xff\xfe").name == "INVALID_ARGUMENT"
        assert worker.client.raw("/grpc.health.v1.Health/Check", b"\x0a").name == "INVALID_ARGUMENT"
        with pytest.raises(grpc.RpcError):
            worker.client.health.Check(health_request("x" * 5000), timeout=GUARD_S)
        assert worker.client.check() == SERVING
        assert worker.client.send(request("")).end().name == "INVALID_ARGUMENT"
        until(lambda: worker.servicer.open_calls() == 0, "nothing is open")
