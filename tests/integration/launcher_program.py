"""A launcher with a small engine that misbehaves on request, for test_launcher.py: `launcher_program.py FAULT`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

from bridge_support import FakeAsyncLLM
from roomkeeper import enginestart, launcher, logs
from roomkeeper.config import Config

ARGS = SimpleNamespace(
    disaggregation_mode="null",
    max_num_seqs=4,
    model="m",
    served_model_name="m",
    stream_output=False,
)


def stubborn_child() -> None:
    """An engine process that ignores SIGTERM and has a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def child() -> None:
    time.sleep(600)


def start(target: Any) -> None:
    multiprocessing.get_context("spawn").Process(target=target).start()


def hang() -> None:
    while True:
        time.sleep(600)


def launch() -> launcher.Launched:
    fault = sys.argv[1]
    if fault == "launch raises":
        start(child)
        raise RuntimeError("no device\nis there")
    if fault == "launch hangs":
        start(stubborn_child)
        print("launching", flush=True)
        hang()
    engine = FakeAsyncLLM()
    start(stubborn_child if fault == "stubborn child" else child)
    return launcher.Launched(engine, {}, close=hang if fault == "close hangs" else None)


def on_ready(ready: launcher.Ready) -> None:
    print(
        f"ready {ready.addresses[0]} scheduler {multiprocessing.active_children()[0].pid}",
        flush=True,
    )
    if sys.argv[1] == "stuck loop":
        print("stuck", flush=True)
        while True:
            sum(range(10000))


def schedule() -> None:
    """What a node that has only schedulers does."""
    start(stubborn_child)
    print("scheduling", flush=True)
    if sys.argv[1] == "schedulers end":
        return
    hang()


if __name__ == "__main__":
    logs.set_up()
    enginestart.STUCK_S = 2.0
    launcher.ENGINE_GRACE_S = enginestart.ENGINE_GRACE_S = 0.5
    if sys.argv[1] in ("schedulers", "schedulers end"):
        sys.exit(launcher.follow(schedule))
    config = Config([("drain_seconds", "0.5", "test")])
    sys.exit(
        launcher.serve(launch, ARGS, config=config, addresses=["127.0.0.1:0"], on_ready=on_ready)
    )
