"""The incident on TokenSpeed's own frontend and C++ scheduler, at 1/50 of its time.

A prefill and a decode worker with window 4 get 64 prefill/decode pairs at once, both legs of a pair at the same
moment, as a gateway dispatches them. The prefill's bootstrap deadline is 2.4 s, the decode's transfer deadline 6 s.
A pair takes 0.4 s, so 64 of them need 6.4 s at least. One JSON line a run:

    incident.py [--run NAME …] [--pairs 64] [--logs FOLDER]

python-servicer    smg-grpc-servicer
rooms-off          roomkeeper that serves as the incumbent does
rooms-on           rooms on, a line for all, and longer patience in it than the prefill's deadline has; the workers linked
rooms-only         the same without the link
rooms-only-scaled  a line for all, with the default patience of 30 s at the same scale: 0.6 s
rooms-only-retried the same, and a client that does what a gateway does with a refusal: it ends the other leg and
                   tries again with a new room after the pushback
rooms-only-strict  no line (--room-waiting 0), and that client
rooms-only-gated   as rooms-only, and a client that keeps to the reported window, as a single gateway does
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from workers import PYTHON_SERVICER, ROOMKEEPER, WINDOW, Worker, running, start

FINISHED = ("stop", "length")
PROMPT_TOKENS = 60
TOKENS = 8
LEG_TIMEOUT_S = 120
ENGINE = {
    "TS_FAKE_STEP_MS": 50,
    "TS_FAKE_BOOTSTRAP_TIMEOUT_S": 2.4,
    "TS_FAKE_TRANSFER_TIMEOUT_S": 6,
}
#: The engine's transfer deadline, as roomkeeper has to know it.
DEADLINE = ("--room-transfer-seconds", "6")
PATIENT = (*DEADLINE, "--room-wait-seconds", "60")
SCALED = (*DEADLINE, "--room-wait-seconds", "0.6")
UNLINKED = ("--room-link", "off")


class Run(NamedTuple):
    """One way to serve the incident."""

    module: str
    flags: tuple[str, ...] = ()
    line: bool = False  # a place in line for every pair
    gated: bool = False  # the client keeps to the window
    retried: bool = False  # the client tries a refused pair again


RUNS = {
    "python-servicer": Run(PYTHON_SERVICER),
    "rooms-off": Run(ROOMKEEPER, ("--rooms", "off")),
    "rooms-on": Run(ROOMKEEPER, PATIENT, line=True),
    "rooms-only": Run(ROOMKEEPER, (*PATIENT, *UNLINKED), line=True),
    "rooms-only-scaled": Run(ROOMKEEPER, (*SCALED, *UNLINKED), line=True),
    "rooms-only-retried": Run(ROOMKEEPER, (*SCALED, *UNLINKED), line=True, retried=True),
    "rooms-only-strict": Run(
        ROOMKEEPER, (*DEADLINE, *UNLINKED, "--room-waiting", "0"), retried=True
    ),
    "rooms-only-gated": Run(ROOMKEEPER, (*PATIENT, *UNLINKED), line=True, gated=True),
}
#: A refused pair is tried again so often at most.
ATTEMPTS = 100


@dataclass(frozen=True)
class Leg:
    """How one Generate call ended."""

    status: str  # a finish reason, or the gRPC status code
    detail: str
    seconds: float
    pushback_s: float | None  # refused: try again so much later

    @property
    def finished(self) -> bool:
        return self.status in FINISHED


class SlotWatch(threading.Thread):
    """Asks the decode twenty times a second how many requests its scheduler runs: slots in use."""

    def __init__(self, decode: Worker) -> None:
        super().__init__(daemon=True)
        self._decode = decode
        self._over = threading.Event()
        self.slot_seconds = 0.0

    def run(self) -> None:
        last = time.monotonic()
        with self._decode.stub() as stub:
            while not self._over.wait(0.05):
                now = time.monotonic()
                with contextlib.suppress(grpc.RpcError):
                    loads = stub.GetLoads(messages.GetLoadsRequest(), timeout=2).loads
                    self.slot_seconds += sum(load.num_running_reqs for load in loads) * (now - last)
                last = now

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.slot_seconds


def request_of(pair: int, room: int, bootstrap_port: int) -> messages.GenerateRequest:
    request = messages.GenerateRequest(request_id=f"pair-{pair}", stream=True)
    request.tokenized.input_ids.extend([20 + pair % 400] * PROMPT_TOKENS)
    request.sampling_params.max_new_tokens = TOKENS
    request.sampling_params.ignore_eos = True
    request.sampling_params.temperature = 1
    request.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    request.kv_bootstrap_info.bootstrap_port = bootstrap_port
    request.kv_bootstrap_info.bootstrap_room = room
    return request


def run_leg(call: grpc.Call, began: float) -> Leg:
    status, detail, pushback_s = "NO_COMPLETE", "", None
    try:
        for response in call:
            if response.HasField("complete"):
                status = response.complete.finish_reason
    except grpc.RpcError as error:
        status, detail = error.code().name, error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        if "grpc-retry-pushback-ms" in trailers:
            pushback_s = int(trailers["grpc-retry-pushback-ms"]) / 1000
    return Leg(status, detail, time.monotonic() - began, pushback_s)


class Pairs:
    """Sends pairs to a prefill and a decode worker."""

    def __init__(self, prefill: Worker, decode: Worker) -> None:
        self._prefill, self._decode = prefill, decode
        self._rooms = itertools.count(int(time.time() * 1000) << 8)
        self.refused = 0

    def run(self, pairs: int, at_once: int, retry: bool) -> tuple[list[tuple[Leg, Leg]], float]:
        """Both legs of all pairs; how each ended in the end, and the seconds it took."""
        with contextlib.ExitStack() as stack:
            stubs = [stack.enter_context(worker.stub()) for worker in (self._prefill, self._decode)]
            legs = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2 * pairs))
            pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(at_once))
            began = time.monotonic()
            ended = list(
                pool.map(lambda pair: self._run_pair(stubs, legs, pair, retry), range(pairs))
            )
            return ended, time.monotonic() - began

    def _run_pair(self, stubs, legs, pair: int, retry: bool) -> tuple[Leg, Leg]:
        began = time.monotonic()
        for _ in range(ATTEMPTS):
            request = request_of(pair, next(self._rooms), self._prefill.bootstrap_port)
            calls = [stub.Generate(request, timeout=LEG_TIMEOUT_S) for stub in stubs]
            prefill = legs.submit(run_leg, calls[0], began)
            decode = legs.submit(run_leg, calls[1], began).result()
            if not retry or decode.pushback_s is None:
                break
            self.refused += 1
            calls[0].cancel()
            prefill.result()
            time.sleep(decode.pushback_s)
        return prefill.result(), decode


def measure(name: str, pairs: int, folder: pathlib.Path) -> dict[str, object]:
    run = RUNS[name]
    flags = (*run.flags, *(("--room-waiting", str(pairs)) if run.line else ()))
    at_once = WINDOW if run.gated else pairs
    prefill = start(
        run.module, folder / f"{name}-prefill.log", *flags, mode="prefill", settings=ENGINE
    )
    decode = start(
        run.module, folder / f"{name}-decode.log", *flags, mode="decode", settings=ENGINE
    )
    with running(prefill, decode):
        watch = SlotWatch(decode)
        watch.start()
        client = Pairs(prefill, decode)
        ended, seconds = client.run(pairs, at_once, retry=run.retried)
        slot_seconds = watch.stop()
        after, after_seconds = client.run(WINDOW, WINDOW, retry=False)
    ok = sum(p.finished and d.finished for p, d in ended)
    needed = sum(d.seconds for _, d in after if d.finished)
    return {
        "run": name,
        "pairs": pairs,
        "at_once": at_once,
        "ok": ok,
        "failed": pairs - ok,
        "wall_s": round(seconds, 1),
        "refusals": client.refused,
        "decode_slot_s": round(slot_seconds, 1),
        "slot_s_a_finished_pair": round(slot_seconds / max(ok, 1), 2),
        "endings": dict(
            collections.Counter(f"prefill {p.status}, decode {d.status}" for p, d in ended)
        ),
        "prefill_s": spread([p.seconds for p, _ in ended]),
        "decode_s": spread([d.seconds for _, d in ended]),
        "details": dict(
            collections.Counter(
                leg.detail for pair in ended for leg in pair if leg.detail
            ).most_common(6)
        ),
        "window_afterwards": {
            "ok": sum(p.finished and d.finished for p, d in after),
            "wall_s": round(after_seconds, 1),
            "leg_s": round(needed / WINDOW, 2),
        },
    }


def spread(seconds: list[float]) -> list[float]:
    """Shortest, median, longest."""
    ordered = sorted(seconds)
    return [round(ordered[at], 2) for at in (0, len(ordered) // 2, -1)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="append", choices=RUNS, help="which, in this order; default all"
    )
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--logs", type=pathlib.Path, help="keep the workers' logs in this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.logs or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.run or RUNS:
            print(json.dumps(measure(name, args.pairs, folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
