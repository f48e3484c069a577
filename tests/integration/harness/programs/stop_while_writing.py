"""Stops a servicer while COUNT streams write as fast as they can; prints how they ended."""

from __future__ import annotations

import collections
import sys
import threading
import time

from harness.byhand import by_hand


def main() -> None:
    count = int(sys.argv[1])
    with by_hand(window=count, settings={"log_level": "error"}) as worker:
        legs = [worker.admitted(f"r{i}") for i in range(count)]
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                step = [(leg.handle, 0, [1, 2, 3], None, 3, 1, 0) for _, leg in legs]
                worker.servicer.push(step)
                time.sleep(0.001)  # lets the clients of this process read

        writers = [threading.Thread(target=write) for _ in range(2)]
        for writer in writers:
            writer.start()
        for stream, _ in legs:
            stream.get(1)
        began = time.monotonic()
        stoppers = [threading.Thread(target=worker.servicer.stop) for _ in range(2)]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()
        print(f"stopped in {time.monotonic() - began:.1f} s", flush=True)
        over.set()
        for writer in writers:
            writer.join()
        ends = collections.Counter(stream.end().name for stream, _ in legs)
        print(" ".join(f"{name}={number}" for name, number in sorted(ends.items())), flush=True)


main()
