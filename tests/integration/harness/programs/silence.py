"""SECONDS of silence on open calls, with keepalive pings every 10 s; prints how it ended."""

from __future__ import annotations

import sys
import time

from harness.byhand import by_hand
from harness.client import Client, Stream
from harness.http2 import Connection

#: What gateways and load balancers set on their channels.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_time_between_pings_ms", 10_000),
)


def tell(name: str, stream: Stream) -> None:
    status = stream.end()
    ids = list(stream.complete().output_ids) if status.name == "OK" else []
    print(f"{name}: {status.name} {ids} {status.details}".rstrip(), flush=True)


def main() -> None:
    seconds = int(sys.argv[1])
    with by_hand() as worker, Client(worker.address, options=KEEPALIVE) as client:
        with Connection(worker.address) as idle:
            plain = client.generate("plain", stream=False)
            streaming = client.generate("streaming", stream=True)
            legs = [worker.engine.leg("plain"), worker.engine.leg("streaming")]
            pings = 0
            begun = time.monotonic()
            while (left := begun + seconds - time.monotonic()) > 0:
                if time.monotonic() - begun >= 10 * pings:
                    idle.ping()
                    pings += 1
                idle.step(min(left, 0.5))
            for leg in legs:
                leg.finish([1, 2, 3])
            tell("call that does not stream", plain)
            tell("call that streams", streaming)
            idle.step(1)
            goaway = "no GOAWAY" if idle.goaway is None else f"GOAWAY {idle.goaway}"
            answered = len(idle.pongs)
            print(f"connection without a call: {goaway}, {answered} of {pings} pings answered")


main()
