"""Prefill and decode pairs through both servicers: each leg's answer is the Python servicer's.

Half of the pairs are drawn, with values of the room changed too; a pair that the engine would never finish ends by the
engine's deadlines, which are short here.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from differences import allowed, differences
from draw import Case, count, draw, hazard, walk
from requests_table import Answer, ask, request, stopping
from rules import rule_of
from workers import PYTHON_SERVICER, ROOMKEEPER, Worker, running, start

SCALE = {"TS_FAKE_BOOTSTRAP_TIMEOUT_S": 3, "TS_FAKE_TRANSFER_TIMEOUT_S": 4}
DRAWN = 60


@dataclass
class Pair:
    """A prefill and a decode worker of one servicer."""

    prefill: Worker
    decode: Worker

    def ask(
        self, pool: ThreadPoolExecutor, made: messages.GenerateRequest
    ) -> tuple[Answer, Answer]:
        """Sends it to both."""
        if made.HasField("kv_bootstrap_info") and made.kv_bootstrap_info.bootstrap_port == 8998:
            made = copy_of(made)
            made.kv_bootstrap_info.bootstrap_port = self.prefill.bootstrap_port

        def leg(worker: Worker) -> Answer:
            with worker.stub() as stub:
                return ask(stub, made)

        legs = [pool.submit(leg, worker) for worker in (self.prefill, self.decode)]
        return legs[0].result(), legs[1].result()


def copy_of(made: messages.GenerateRequest) -> messages.GenerateRequest:
    copy = messages.GenerateRequest()
    copy.CopyFrom(made)
    return copy


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Pair]]:
    folder = tmp_path_factory.mktemp("alike")
    workers = {
        (module, mode): start(
            module,
            folder / f"{module}-{mode}.log",
            "--enable-output-logprobs",
            *(FLAGS if module == ROOMKEEPER else ()),
            mode=mode,
            settings=SCALE,
        )
        for module in (PYTHON_SERVICER, ROOMKEEPER)
        for mode in ("prefill", "decode")
    }
    with running(*workers.values()):
        python, ours = (
            Pair(workers[module, "prefill"], workers[module, "decode"])
            for module in (PYTHON_SERVICER, ROOMKEEPER)
        )
        yield python, ours


#: A leg whose other one is refused is not kept waiting for longer than the engine would.
FLAGS = (
    "--room-transfer-seconds",
    "4",
    "--room-handoff-seconds",
    "1",
    "--room-tombstone-seconds",
    "1",
)
_rooms = iter(range(1000, 1 << 62))


def with_room(made: messages.GenerateRequest) -> messages.GenerateRequest:
    made.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    made.kv_bootstrap_info.bootstrap_port = 8998
    made.kv_bootstrap_info.bootstrap_room = next(_rooms)
    return made


PAIRS = {
    "streaming": request("pair"),
    "not streaming": request("pair, not streaming", stream=False),
    "one token": request("pair, one token", tokens=1),
    "many tokens": request("pair, many tokens", tokens=100),
    "logprobs": request("pair, logprobs", return_logprob=True),
    "stop token": stopping("pair, stop token", 4),
    "stop token kept": stopping("pair, stop token kept", 4, no_stop_trim=True, stream=False),
    "greedy": request("pair, greedy", temperature=0.0),
}


def without_opening(python: Answer, ours: Answer) -> bool:
    """Takes the empty Chunk off with which our prefill opens a leg that is not streamed; whether there was one.

    A gateway takes silence for a worker that is stuck, and one that reads a single message takes the Complete.
    """
    if not ours.choices or ours.choices[0].tokens != [[]] or 0 not in python.choices:
        return False
    if python.choices[0].tokens:
        return False
    ours.choices[0].tokens, ours.choices[0].logprobs, ours.choices[0].last = [], [], {}
    return True


def unlike(python: Answer, ours: Answer) -> list[str]:
    """What differs and may not."""
    if python.code != ours.code:
        return [
            f"code: Python servicer {python.code} ({python.detail}), "
            f"roomkeeper {ours.code} ({ours.detail})"
        ]
    if python.code != "OK":
        return []
    return [
        f"{seen.path}: Python servicer {seen.python}, roomkeeper {seen.roomkeeper}"
        for seen in differences(python, ours)
        if allowed(seen) is None
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_both_legs_of_a_pair_are_answered_alike(pairs: tuple[Pair, Pair], name: str) -> None:
    made = with_room(PAIRS[name])
    with ThreadPoolExecutor(2) as pool:
        python, ours = (pair.ask(pool, made) for pair in pairs)
    assert python[1].code == "OK" and python[1].choices[0].complete["completion_tokens"] > 0
    assert without_opening(python[0], ours[0]) is not made.stream
    assert unlike(python[0], ours[0]) == []
    assert unlike(python[1], ours[1]) == []


def bad_room(made: messages.GenerateRequest) -> str | None:
    """The field of the room that we refuse; the Python servicer hands it on."""
    room = made.kv_bootstrap_info
    host = room.bootstrap_host
    if len(host) > 255 or any(c <= " " or c == "\x7f" for c in host):
        return "kv_bootstrap_info.bootstrap_host"
    if not 1 <= room.bootstrap_port <= 65535:
        return "kv_bootstrap_info.bootstrap_port"
    if room.bootstrap_room < 1 and (room.bootstrap_room or host != "2.2.2.2"):
        return "kv_bootstrap_info.bootstrap_room"
    return None


def cases() -> Iterator[Case]:
    """Each bad value of a room once, and mixtures that carry a good one."""
    drawn = 0
    for number in range(count()):
        case = draw(number)
        if case.method != "Generate" or case.spoilt is not None or hazard(case):
            continue
        made = case.request
        multimodal = made.HasField("mm_inputs") or made.HasField("encode_bootstrap_info")
        if number < len(walk()):
            if made.HasField("kv_bootstrap_info") and bad_room(made):
                yield case
        elif drawn < DRAWN and not multimodal:
            drawn += 1
            with_room(made)
            yield case


def test_both_legs_of_drawn_pairs_are_answered_alike(
    pairs: tuple[Pair, Pair], capsys: pytest.CaptureFixture[str]
) -> None:
    compared, failures = 0, []
    with ThreadPoolExecutor(8) as pool:
        for case in cases():
            refused_field = bad_room(case.request)
            if refused_field or case.request.sampling_params.n > 1:
                # Choices would meet in one room; and a host or port that cannot be ends the Python servicer's engine.
                for leg in pairs[1].ask(pool, case.request):
                    assert leg.code == "INVALID_ARGUMENT", (case, leg)
                    assert not refused_field or leg.detail.startswith(refused_field), (case, leg)
                continue
            python_answers = pool.submit(pairs[0].ask, pool, case.request)
            ours = pairs[1].ask(pool, case.request)
            compared += 1
            for side, a, b in zip(
                ("prefill", "decode"), python_answers.result(), ours, strict=True
            ):
                if side == "prefill" and not case.request.stream:
                    without_opening(a, b)
                if rule_of(case, a, b):
                    continue
                failures += [f"{case}{side}: {wrong}" for wrong in unlike(a, b)]
    with capsys.disabled():
        print(f"\n{compared} drawn pairs, {len(failures)} unlike", end="")
    assert compared >= 30
    assert not failures, "\n\n".join(failures[:5])
    for pair in pairs:
        assert pair.prefill.process.poll() is None and pair.decode.process.poll() is None
