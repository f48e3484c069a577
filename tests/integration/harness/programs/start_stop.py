"""Starts and stops a servicer COUNT times in one process; the state of it before and after.

Prints "descriptors BEFORE AFTER", "threads BEFORE AFTER", "memory BEFORE AFTER" (KiB).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

from harness.byhand import by_hand
from harness.process import memory_kib


def numbers() -> tuple[int, int, int]:
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return descriptors, threads, memory_kib(os.getpid())


def one_life(number: int) -> None:
    with by_hand("decode", settings={"log_level": "error"}) as worker:
        stream, leg = worker.admitted(f"r{number}", room=1)
        leg.finish()
        assert stream.end().name == "OK"
        open_stream, _ = worker.admitted(f"open{number}", room=2)
        if number % 5:
            # Older clients answer a server's farewell late once they are idle: let this one go first.
            worker.client.close()
        if number % 2:
            worker.servicer.drain()
        worker.servicer.stop()
        worker.servicer.stop()
        assert open_stream.end().name == ("CANCELLED" if number % 5 else "UNAVAILABLE")


def settled() -> tuple[int, int, int]:
    """Once the client's own threads and sockets are gone."""
    last = numbers()
    for _ in range(100):
        gc.collect()
        time.sleep(0.1)
        now = numbers()
        if now[:2] == last[:2] and threading.active_count() == 1:
            return now
        last = now
    return last


def main() -> None:
    count = int(sys.argv[1])
    for number in range(5):
        one_life(number)
    before = settled()
    for number in range(5, count):
        one_life(number)
    after = settled()
    for name, at_first, at_last in zip(
        ("descriptors", "threads", "memory"), before, after, strict=True
    ):
        print(name, at_first, at_last, flush=True)


main()
