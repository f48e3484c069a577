"""The other calls through our launcher, compared with the Python servicer where it has an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from conftest import Both
from requests_table import as_dict, ask, request
from workers import WINDOW, Worker

#: What may differ in GetServerInfo, and why.
SERVER_INFO_MAY_DIFFER = {
    "scheduler_info.roomkeeper": "the Python servicer has no rooms to tell of",
    "server_args.kv_events_config": "two publishers have two addresses",
    "server_args.port": "two workers have two ports",
    "server_args.seed": "the engine draws one a start",
    "uptime_seconds": "time",
    "start_time": "time",
}
#: What may differ in GetLoads of an idle worker.
LOADS_MAY_DIFFER = {"timestamp": "time"}


def call(worker: Worker, method: str, **fields: Any) -> dict[str, Any]:
    with worker.stub() as stub:
        made = getattr(messages, f"{method}Request")(**fields)
        return as_dict(getattr(stub, method)(made, timeout=30))


def leaves(path: str, python: Any, ours: Any) -> Iterator[str]:
    """Paths at which they differ."""
    if python == ours:
        return
    if isinstance(python, dict) and isinstance(ours, dict):
        for name in sorted(python.keys() | ours.keys()):
            yield from leaves(f"{path}.{name}" if path else name, python.get(name), ours.get(name))
    else:
        yield path


def idle_loads(worker: Worker) -> dict[str, Any]:
    """Loads once the engine has told of its last request's end, which it does four times a second."""
    deadline = time.monotonic() + 10
    while call(worker, "GetLoads")["aggregate"]["total_reqs"] and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    return call(worker, "GetLoads")


def test_model_info_is_the_python_servicers(both: Both) -> None:
    ours = call(both.roomkeeper, "GetModelInfo")
    assert ours["served_model_name"] and ours["vocab_size"] == 512
    assert ours == call(both.python, "GetModelInfo")


def test_server_info_differs_only_where_it_may(both: Both) -> None:
    python, ours = call(both.python, "GetServerInfo"), call(both.roomkeeper, "GetServerInfo")
    assert ours["server_args"]["max_num_seqs"] == WINDOW
    assert ours["scheduler_info"]["roomkeeper"]["window"] == WINDOW
    assert set(leaves("", python, ours)) <= set(SERVER_INFO_MAY_DIFFER)


def test_the_loads_of_an_idle_worker_are_the_python_servicers(both: Both) -> None:
    python, ours = idle_loads(both.python), idle_loads(both.roomkeeper)
    assert ours["loads"][0]["max_running_requests"] == WINDOW
    assert set(leaves("", python, ours)) <= set(LOADS_MAY_DIFFER)


def test_loads_of_a_rank_that_is_not_there_are_an_empty_list(both: Both) -> None:
    for worker in (both.python, both.roomkeeper):
        assert call(worker, "GetLoads", dp_rank=7)["loads"] == []
        assert len(call(worker, "GetLoads", dp_rank=0)["loads"]) == 1


def test_loads_count_the_requests_that_run(both: Both) -> None:
    threads = []
    for i in range(3):

        def run(i: int = i) -> None:
            with both.roomkeeper.stub() as stub:
                ask(stub, request(f"load {i}", tokens=150))

        threads.append(threading.Thread(target=run))
        threads[-1].start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        seen.add(call(both.roomkeeper, "GetLoads")["loads"][0]["num_running_reqs"])
        time.sleep(0.02)
    assert 3 in seen and max(seen) == 3
    assert idle_loads(both.roomkeeper)["loads"][0]["num_running_reqs"] == 0


def test_the_health_check_is_the_python_servicers(both: Both) -> None:
    assert call(both.roomkeeper, "HealthCheck")["healthy"] is True
    assert call(both.roomkeeper, "HealthCheck") == call(both.python, "HealthCheck")
    assert both.roomkeeper.health() == both.python.health() == "SERVING"


def test_an_abort_ends_the_stream_with_a_complete_that_says_so(both: Both) -> None:
    with both.roomkeeper.stub() as stub:
        stream = stub.Generate(request("aborted", tokens=1500), timeout=60)
        next(stream)
        answer = stub.Abort(messages.AbortRequest(request_id="aborted", reason="test"), timeout=10)
        assert answer.success
        *_, last = stream
        assert last.complete.finish_reason == "abort"
        assert stream.code() == grpc.StatusCode.OK
        again = stub.Abort(messages.AbortRequest(request_id="aborted"), timeout=10)
        assert not again.success and "not found" in again.message
    deadline = time.monotonic() + 10
    while idle_loads(both.roomkeeper)["loads"][0]["num_running_reqs"]:
        assert time.monotonic() < deadline, "the engine still runs what was aborted"


def test_an_abort_of_a_live_request_is_answered_as_by_the_python_servicer(both: Both) -> None:
    for n, named in ((1, "live"), (2, "live"), (2, "live-n1")):
        answers = []
        for worker in (both.python, both.roomkeeper):
            with worker.stub() as stub:
                stream = stub.Generate(request("live", n=n, tokens=1500), timeout=60)
                next(stream)
                answers.append(call(worker, "Abort", request_id=named, reason="test"))
                stream.cancel()  # the Python servicer leaves an aborted stream open
            deadline = time.monotonic() + 20
            while call(worker, "GetServerInfo")["active_requests"]:
                assert time.monotonic() < deadline, "it is still live"
                time.sleep(0.05)
        python, ours = answers
        assert ours["success"] is True
        # The engine gives the choices of a request ids of its own, so the Python servicer finds none of them.
        assert ours == python if n == 1 else python["success"] is False


@pytest.mark.parametrize("service", ["", "tokenspeed.grpc.scheduler.TokenSpeedScheduler", "nobody"])
def test_health_of_a_service_is_the_python_servicers(both: Both, service: str) -> None:
    answers = []
    for worker in (both.python, both.roomkeeper):
        with grpc.insecure_channel(worker.address) as channel:
            try:
                asked = health_pb2.HealthCheckRequest(service=service)
                answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10)
                answers.append((grpc.StatusCode.OK, answer.status))
            except grpc.RpcError as error:
                answers.append((error.code(), 0))
    assert answers[0] == answers[1]


def test_an_abort_of_what_is_not_there_says_what_the_python_servicer_says(both: Both) -> None:
    python = call(both.python, "Abort", request_id="nobody")
    ours = call(both.roomkeeper, "Abort", request_id="nobody")
    assert ours["success"] is python["success"] is False
    assert "not found" in ours["message"] and "not found" in python["message"]


def test_an_abort_of_one_choice_leaves_the_others(both: Both) -> None:
    with both.roomkeeper.stub() as stub:
        stream = stub.Generate(request("one of two", n=2, tokens=300), timeout=60)
        next(stream)
        assert stub.Abort(messages.AbortRequest(request_id="one of two-n1"), timeout=10).success
        completes = {r.complete.index: r.complete for r in stream if r.HasField("complete")}
    assert completes[0].finish_reason == "length" and len(completes[0].output_ids) == 300
    assert completes[1].finish_reason == "abort" and len(completes[1].output_ids) < 300


@pytest.mark.parametrize("ended_by", ["cancel", "deadline"])
def test_a_client_that_leaves_ends_the_engines_request(both: Both, ended_by: str) -> None:
    with both.roomkeeper.stub() as stub:
        timeout = 0.5 if ended_by == "deadline" else 60
        stream = stub.Generate(request(f"left by {ended_by}", tokens=1500), timeout=timeout)
        next(stream)
        if ended_by == "cancel":
            stream.cancel()
        with pytest.raises(grpc.RpcError):
            list(stream)
    assert idle_loads(both.roomkeeper)["loads"][0]["num_running_reqs"] == 0
    info = call(both.roomkeeper, "GetServerInfo")
    assert info["scheduler_info"]["roomkeeper"]["open_streams"] == 0
