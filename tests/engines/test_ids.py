"""Request ids against the engine's own scheduler, which raises on an id that it still knows and dies with it."""

from __future__ import annotations

import re
import threading
import time

import pytest
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from requests_table import Answer, ask, request
from workers import PYTHON_SERVICER, Worker, running, start

#: The engine's two deadlines, 120 s and 300 s, and ours that go with them.
SCALE = {"TS_FAKE_BOOTSTRAP_TIMEOUT_S": 1, "TS_FAKE_TRANSFER_TIMEOUT_S": 2}
FLAGS = (
    "--room-transfer-seconds",
    "2",
    "--room-handoff-seconds",
    "1",
    "--room-tombstone-seconds",
    "1",
)
#: Where a real 60 s of tombstones have passed.
SIXTY_ONE_SECONDS_S = 1.2


@pytest.fixture(scope="module")
def aggregated(tmp_path_factory):
    worker = start("roomkeeper.tokenspeed", tmp_path_factory.mktemp("ids") / "aggregated.log")
    with running(worker):
        yield worker


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ids")
    prefill = start(
        "roomkeeper.tokenspeed", folder / "prefill.log", *FLAGS, mode="prefill", settings=SCALE
    )
    decode = start(
        "roomkeeper.tokenspeed", folder / "decode.log", *FLAGS, mode="decode", settings=SCALE
    )
    with running(prefill, decode):
        yield prefill, decode


_rooms = iter(range(int(time.time() * 1000) << 8, 1 << 62))


def with_room(prefill: Worker, name: str, **fields) -> messages.GenerateRequest:
    made = request(name, **fields)
    made.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    made.kv_bootstrap_info.bootstrap_port = prefill.bootstrap_port
    made.kv_bootstrap_info.bootstrap_room = next(_rooms)
    return made


def serve_pair(prefill: Worker, decode: Worker, name: str) -> Answer:
    """A whole pair; what the decode answered."""
    made = with_room(prefill, name)
    ended: dict[str, Answer] = {}

    def run(side: str, worker: Worker) -> None:
        with worker.stub() as stub:
            ended[side] = ask(stub, made)

    threads = [
        threading.Thread(target=run, args=leg) for leg in (("prefill", prefill), ("decode", decode))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended["prefill"].code == "OK", ended["prefill"].detail
    return ended["decode"]


def generate_and_abort(worker: Worker, made: messages.GenerateRequest, first: bool) -> None:
    """Aborts it while it runs; `first`: after its first message, else while nothing has come."""
    with worker.stub() as stub:
        stream = stub.Generate(made, timeout=60)
        if first:
            next(stream)
        else:
            time.sleep(0.2)
        assert stub.Abort(messages.AbortRequest(request_id=made.request_id), timeout=10).success
        *_, last = stream
        assert last.complete.finish_reason == "abort"


def assert_serves(worker: Worker, name: str) -> None:
    with worker.stub() as stub:
        answer = ask(stub, request(name))
    assert answer.code == "OK" and len(answer.choices[0].complete["output_ids"]) == 8
    assert worker.process.poll() is None


def test_generate_a_abort_a_generate_a_leaves_an_aggregated_engine_alive(
    aggregated: Worker,
) -> None:
    for _ in range(5):
        generate_and_abort(aggregated, request("A", tokens=1500), first=True)
        assert_serves(aggregated, "A")


def test_generate_a_abort_a_generate_a_leaves_a_decode_engine_alive(pair) -> None:
    prefill, decode = pair
    for _ in range(3):
        # Nobody sends the prefill's leg: the decode's scheduler waits for KV, where an abort is a mark only.
        generate_and_abort(decode, with_room(prefill, "A"), first=False)
    answer = serve_pair(prefill, decode, "A")
    assert answer.code == "OK" and answer.choices[0].complete["finish_reason"] == "length"
    assert decode.process.poll() is None and prefill.process.poll() is None


def test_generate_a_abort_a_generate_a_leaves_a_prefill_engine_alive(pair) -> None:
    prefill, decode = pair
    for _ in range(3):
        generate_and_abort(prefill, with_room(prefill, "P"), first=True)
    answer = serve_pair(prefill, decode, "P")
    assert answer.code == "OK" and answer.choices[0].complete["finish_reason"] == "length"


def test_the_same_id_serves_again_when_its_tombstone_is_gone(pair) -> None:
    prefill, decode = pair
    generate_and_abort(decode, with_room(prefill, "again"), first=False)
    time.sleep(SIXTY_ONE_SECONDS_S)
    assert serve_pair(prefill, decode, "again").code == "OK"
    time.sleep(SIXTY_ONE_SECONDS_S)
    assert serve_pair(prefill, decode, "again").code == "OK"
    assert decode.process.poll() is None


def test_abc_with_two_choices_runs_beside_a_request_that_is_called_abc_n0(
    aggregated: Worker,
) -> None:
    with aggregated.stub() as stub:
        streams = [
            stub.Generate(request("abc", n=2, tokens=100), timeout=60),
            stub.Generate(request("abc-n0", tokens=100), timeout=60),
        ]
        completes = [[r.complete for r in stream if r.HasField("complete")] for stream in streams]
    assert [len(both) for both in completes] == [2, 1]
    assert all(len(one.output_ids) == 100 for both in completes for one in both)
    assert_serves(aggregated, "after abc-n0")


@pytest.mark.parametrize(
    "names", [("abc~1", "abc"), ("abc", "abc~1"), ("abc~1", "abc~1~1"), ("abc~1-n0", "abc~1")]
)
def test_a_literal_tilde_in_an_id_means_nothing_to_the_engine(
    aggregated: Worker, names: tuple[str, str]
) -> None:
    with aggregated.stub() as stub:
        streams = [stub.Generate(request(name, tokens=60), timeout=60) for name in names]
        for name, stream in zip(names, streams, strict=True):
            responses = list(stream)
            assert {response.request_id for response in responses} == {name}
            assert len(responses[-1].complete.output_ids) == 60
    assert_serves(aggregated, names[0])


def test_an_id_that_is_live_is_refused_and_the_first_goes_on(aggregated: Worker) -> None:
    with aggregated.stub() as stub:
        first = stub.Generate(request("live", tokens=200), timeout=60)
        next(first)
        second = ask(stub, request("live", tokens=5))
        assert second.code == "ALREADY_EXISTS"
        *_, last = first
        assert len(last.complete.output_ids) == 200


def test_the_python_servicer_loses_its_engine_to_generate_a_abort_a_generate_a(tmp_path) -> None:
    # Why our ids are never reused. Should this fail one day, the engine has learned to refuse.
    waiting = {"TS_FAKE_TRANSFER_TIMEOUT_S": 60}
    decode = start(PYTHON_SERVICER, tmp_path / "decode.log", mode="decode", settings=waiting)
    made = request("A")
    made.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    made.kv_bootstrap_info.bootstrap_port = 9
    made.kv_bootstrap_info.bootstrap_room = next(_rooms)
    with running(decode), decode.stub() as stub:
        first = stub.Generate(made, timeout=60)
        time.sleep(1)
        assert stub.Abort(messages.AbortRequest(request_id="A"), timeout=10).success
        second = stub.Generate(made, timeout=60)
        deadline = time.monotonic() + 30
        while not (exits := re.findall(r"engine process \d+ exited with code \d+", decode.said())):
            assert time.monotonic() < deadline, "the engine lives"
            time.sleep(0.1)
        decode.process.kill()  # it would wait for the two requests that nobody answers any more
        first.cancel()
        second.cancel()
    assert exits[0].endswith("code 1")
