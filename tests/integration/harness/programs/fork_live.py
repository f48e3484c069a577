"""Forks while a servicer serves: what the child is told, and whether the parent goes on.

The client is another process (the test), so that nothing but the servicer is forked.
"""

from __future__ import annotations

import os
import select

from roomkeeper.config import Config
from roomkeeper.engine import WorkerInfo
from roomkeeper.servicer import Servicer, Submission


def child(servicer: Servicer) -> None:
    refused = 0
    for act in (
        servicer.start,
        servicer.drain,
        servicer.stop,
        servicer.counts,
        servicer.take,
        lambda: servicer.listen("127.0.0.1:0"),
        lambda: servicer.push([(1, 0, [1], "length", 1, 1, 0)]),
    ):
        try:
            act()
        except RuntimeError:
            refused += 1
    os.write(1, f"child refused {refused} of 7\n".encode())
    os._exit(0)


def main() -> None:
    servicer = Servicer(
        WorkerInfo(model_path="forked"), Config({"stall_seconds": 3600, "dead_seconds": 7200})
    )
    port = servicer.listen("127.0.0.1:0")
    servicer.start()
    servicer.state("ready")
    print(f"port {port}", flush=True)
    open_ones: list[Submission] = []
    while not open_ones:
        select.select([servicer.fileno()], [], [])
        open_ones += [c for c in servicer.take() if isinstance(c, Submission)]
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            child(servicer)
        _, status = os.waitpid(pid, 0)
        print(f"child ended with {os.waitstatus_to_exitcode(status)}", flush=True)
    for submission in open_ones:
        servicer.push([(submission.handle, 0, [42], "length", 1, 1, 0)])
    while True:  # the parent goes on
        select.select([servicer.fileno()], [], [])
        for command in servicer.take():
            if isinstance(command, Submission):
                servicer.push([(command.handle, 0, [43], "length", 1, 1, 0)])


main()
