"""What the room link costs: one-token requests through a stand-in pair with the link and through one without.

Both pairs stay up; blocks of requests go to one and then to the other, so that a machine that drifts does so for
both. A JSON line at the end, with ratios of medians over the blocks: requests per second with the link to those
without, and the same of the first token's median. Run by ``bench/run-link``; nothing else should run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio

from roomkeeper import wire

WIRE = wire.load()
GENERATE = f"/{wire.TOKENSPEED}/Generate"
REQUEST = WIRE.message("tokenspeed.grpc.scheduler.GenerateRequest")
START_S = 60.0
_rooms = itertools.count(1)


def free_ports() -> tuple[int, int, int]:
    """Two for the workers and one for the bootstrap server, whose KV port and link port are free as well."""
    while True:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(5)]
            for one in sockets[:3]:
                one.bind(("127.0.0.1", 0))
            prefill, decode, bootstrap = (one.getsockname()[1] for one in sockets[:3])
            if bootstrap + 2000 > 65535:
                continue
            with contextlib.suppress(OSError):
                sockets[3].bind(("127.0.0.1", bootstrap + 1000))
                sockets[4].bind(("127.0.0.1", bootstrap + 2000))
                return prefill, decode, bootstrap


@dataclass
class Pair:
    """A prefill and a decode with the link on or off, and what has been measured of them."""

    link: str
    prefill: str
    decode: str
    bootstrap: int
    per_s: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)


@contextlib.contextmanager
def pair(link: str) -> Iterator[Pair]:
    prefill, decode, bootstrap = free_ports()
    common = [
        "--disaggregation-bootstrap-port",
        str(bootstrap),
        "--max-num-seqs",
        "64",
        "--step-ms",
        "0",
    ]
    common += ["--prefill-ms", "0", "--kv-ms", "0", "--room-link", link]
    processes = []
    try:
        for role, port in (("prefill", prefill), ("decode", decode)):
            command = [
                sys.executable,
                "-m",
                "roomkeeper",
                "standin",
                "--role",
                role,
                "--port",
                str(port),
            ]
            processes.append(
                subprocess.Popen(
                    [*command, *common],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        for process in processes:
            if process.stdout is None or not process.stdout.readline().startswith("ready"):
                raise SystemExit("a stand-in worker did not come up; run it by hand to see why")
        yield Pair(link, f"127.0.0.1:{prefill}", f"127.0.0.1:{decode}", bootstrap)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(START_S)


def legs_of(pair: Pair) -> bytes:
    room = next(_rooms)
    request = REQUEST(request_id=f"{pair.link}-{room}", stream=True)
    request.tokenized.input_ids.extend((5, 6, 7, room % 500))
    request.sampling_params.max_new_tokens = 1
    request.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    request.kv_bootstrap_info.bootstrap_port = pair.bootstrap
    request.kv_bootstrap_info.bootstrap_room = room
    return request.SerializeToString()


async def one(prefill, decode, pair: Pair) -> float:
    """Sends both legs at once; the milliseconds until the decode's first message."""
    message = legs_of(pair)
    begin = time.perf_counter()
    legs = prefill(message, timeout=30), decode(message, timeout=30)
    first = 0.0
    async for _ in legs[1]:
        first = first or (time.perf_counter() - begin) * 1e3
    async for _ in legs[0]:
        pass
    return first


async def block(pair: Pair, requests: int, at_once: int) -> tuple[float, float]:
    """Requests per second, and the median of the first token in ms."""
    async with (
        grpc.aio.insecure_channel(pair.prefill) as p,
        grpc.aio.insecure_channel(pair.decode) as d,
    ):
        prefill, decode = p.unary_stream(GENERATE), d.unary_stream(GENERATE)
        await one(prefill, decode, pair)
        left = itertools.count()
        firsts: list[float] = []

        async def worker() -> None:
            while next(left) < requests:
                firsts.append(await one(prefill, decode, pair))

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        return len(firsts) / (time.perf_counter() - begin), statistics.median(firsts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8, help="of each kind (default %(default)s)")
    parser.add_argument("--requests", type=int, default=400, help="a block (default %(default)s)")
    parser.add_argument("--at-once", type=int, default=8, help="(default %(default)s)")
    args = parser.parse_args()
    with pair("on") as on, pair("off") as off:
        for number in range(args.blocks + 1):
            for each in (on, off) if number % 2 else (off, on):
                per_s, first_ms = asyncio.run(block(each, args.requests, args.at_once))
                if number == 0:
                    continue  # everything is warm after it
                each.per_s.append(per_s)
                each.first_ms.append(first_ms)
            print(f"== block {number} of {args.blocks}", file=sys.stderr, flush=True)
    per_s = statistics.median(on.per_s) / statistics.median(off.per_s)
    first = statistics.median(on.first_ms) / statistics.median(off.first_ms)
    report = {
        "work": "link",
        "requests_per_s": {
            "on": round(statistics.median(on.per_s), 1),
            "off": round(statistics.median(off.per_s), 1),
        },
        "first_token_p50_ms": {
            "on": round(statistics.median(on.first_ms), 3),
            "off": round(statistics.median(off.first_ms), 3),
        },
        "ratios": [
            {
                "metric": "requests_per_s",
                "ratio": round(per_s, 3),
                "goal": ">= 0.9",
                "met": per_s >= 0.9,
            },
            {
                "metric": "first_token_p50_ms",
                "ratio": round(first, 3),
                "goal": "<= 1.1",
                "met": first <= 1.1,
            },
        ],
        "cores": os.cpu_count(),
    }
    print(json.dumps(report), flush=True)
    return 0 if all(ratio["met"] for ratio in report["ratios"]) else 1


if __name__ == "__main__":
    sys.exit(main())
