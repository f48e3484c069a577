"""The room link between two TokenSpeed workers: their own frontend and C++ scheduler, in both roles."""

from __future__ import annotations

import pathlib
import signal
import threading
import time

import pytest
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from requests_table import ask
from test_ids import generate_and_abort, serve_pair, with_room
from test_release import info
from workers import ROOMKEEPER, Worker, running, start

WINDOW = 4
GUARD_S = 30
#: What an operator is promised; the engine's own deadline is 300 s.
RELEASED_S = 1.0
#: Abort A and Generate A, so often.
TURNS = 1000


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("link")
    prefill = start(ROOMKEEPER, folder / "prefill.log", mode="prefill")
    decode = start(ROOMKEEPER, folder / "decode.log", mode="decode")
    with running(prefill, decode):
        yield prefill, decode


def load(worker: Worker) -> tuple[int, int]:
    """What the engine itself says: running, waiting."""
    with worker.stub() as stub:
        (one,) = stub.GetLoads(messages.GetLoadsRequest(), timeout=GUARD_S).loads
    return one.num_running_reqs, one.num_waiting_reqs


def slots(worker: Worker) -> tuple[int, int]:
    (rank,) = info(worker)["ranks"]
    return int(rank["heldSlots" if "heldSlots" in rank else "held_slots"]), int(rank["releasing"])


def until(condition, guard_s: float = GUARD_S) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < guard_s, "never happened"
        time.sleep(0.01)
    return time.monotonic() - begin


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie, which it stays where nobody is init."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Legs:
    """Calls that are left open, each read by a thread."""

    def __init__(self, worker: Worker, requests: list[messages.GenerateRequest]) -> None:
        self.answers: dict[str, str] = {}
        self._worker = worker
        self._threads = [threading.Thread(target=self._read, args=(made,)) for made in requests]
        for thread in self._threads:
            thread.start()

    def _read(self, made: messages.GenerateRequest) -> None:
        with self._worker.stub() as stub:
            self.answers[made.request_id] = ask(stub, made).code

    def join(self) -> dict[str, str]:
        for thread in self._threads:
            thread.join(GUARD_S)
        return self.answers


def test_a_pair_is_linked_and_served(pair) -> None:
    prefill, decode = pair
    assert serve_pair(prefill, decode, "first").code == "OK"
    for worker in pair:
        (peer,) = info(worker)["links"]["peers"]
        assert (peer["state"], peer["release"]) == ("up", True)


def test_six_decode_legs_without_a_prefill_leg_are_gone_a_second_after_their_abort(pair) -> None:
    prefill, decode = pair
    requests = [with_room(prefill, f"alone-{i}") for i in range(6)]
    legs = Legs(decode, requests)
    until(lambda: slots(decode)[0] == WINDOW and info(decode)["legs"]["waiting"] == 2)
    with decode.stub() as stub:
        for made in requests:
            assert stub.Abort(messages.AbortRequest(request_id=made.request_id), timeout=10).success
    took = until(lambda: slots(decode) == (0, 0))
    assert took < RELEASED_S
    assert set(legs.join().values()) == {"OK"}
    assert load(decode) == (0, 0)
    assert serve_pair(prefill, decode, "after").code == "OK"


def test_the_same_id_again_and_again_leaves_the_decode_alive(pair) -> None:
    prefill, decode = pair
    with decode.stub() as stub:
        for _ in range(TURNS):
            stream = stub.Generate(with_room(prefill, "again"), timeout=GUARD_S)
            until(lambda: stub.Abort(messages.AbortRequest(request_id="again"), timeout=10).success)
            *_, last = stream
            assert last.complete.finish_reason == "abort"
    until(lambda: slots(decode) == (0, 0))
    generate_and_abort(decode, with_room(prefill, "once"), first=False)
    assert serve_pair(prefill, decode, "again").code == "OK"
    assert decode.process.poll() is None


def test_a_prefill_killed_in_mid_transfer_frees_its_rooms_on_the_decode(tmp_path) -> None:
    slow = {"TS_FAKE_KV_MS": 60_000}
    prefill = start(ROOMKEEPER, tmp_path / "prefill.log", mode="prefill", settings=slow)
    decode = start(ROOMKEEPER, tmp_path / "decode.log", mode="decode")
    with running(prefill, decode):
        scheduler = prefill.scheduler()
        requests = [with_room(prefill, f"killed-{i}") for i in range(WINDOW)]
        on_prefill, on_decode = Legs(prefill, requests), Legs(decode, requests)
        until(lambda: slots(decode)[0] == WINDOW and load(prefill)[0] == WINDOW)
        prefill.process.send_signal(signal.SIGKILL)
        until(lambda: len(on_decode.answers) == WINDOW)
        assert set(on_decode.join().values()) == {"RESOURCE_EXHAUSTED"}
        assert until(lambda: slots(decode) == (0, 0)) < RELEASED_S
        assert load(decode) == (0, 0)
        until(lambda: not runs(scheduler))
        on_prefill.join()
