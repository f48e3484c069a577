"""Start roomkeeper on the same stub engine as the peers.

`--engine steps`: the engine hands over whole steps as arrays (`Servicer.push_tokens`).
`--engine asyncllm`: the engine has the shape of TokenSpeed's AsyncLLM, a dict and
an async generator a request, read by roomkeeper's own adapter.
Serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import uvloop

import engine_modules
import stuck
from roomkeeper.asyncllm import AsyncLLMEngine
from roomkeeper.config import Config
from roomkeeper.engine import ALL_CHOICES, WorkerInfo
from roomkeeper.servicer import Abort, Query, Servicer, Submission
from stub_engine import EngineConfig, StubEngine

BEAT_S = 0.25
#: The stub engine knows one number a request: the choice stands above the handle.
CHOICE_SHIFT = 48
HANDLE_MAX = (1 << CHOICE_SHIFT) - 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--port", type=int, required=True)
    add("--engine", choices=["steps", "asyncllm"], default="steps")
    add("--window", type=int, default=256)
    add("--max-len", type=int, default=32768)
    add("--step-ms", type=float, default=0.0, help="0: as fast as it goes")
    add("--event-log", type=Path, help="what the engine was told to abort")
    return parser.parse_args()


def _engine(args: argparse.Namespace) -> StubEngine:
    server_args = engine_modules.ServerArgs(
        port=args.port,
        max_num_seqs=args.window,
        max_model_len=args.max_len,
    )
    config = EngineConfig(
        step_s=args.step_ms / 1000,
        window=args.window,
        event_log=args.event_log.open("a", buffering=1) if args.event_log else None,
    )
    return StubEngine(server_args, config)


class StepDriver:
    """Between the servicer and an engine that hands over whole steps."""

    def __init__(self, servicer: Servicer, engine: StubEngine) -> None:
        self._servicer = servicer
        self._engine = engine
        #: Requests of the engine by handle: one a choice.
        self._rids: dict[int, list[str]] = {}
        #: How many of them have not ended.
        self._open: dict[int, int] = {}
        #: How many requests have more than one.
        self._several = 0
        engine.token_sink = self._push

    def on_commands(self) -> None:
        """The servicer has something for the engine."""
        for command in self._servicer.take():
            if isinstance(command, Submission):
                self._submit(command)
            elif isinstance(command, Abort):
                self._abort(command)
            elif isinstance(command, Query):
                self._servicer.answer(command.query_id, command.kind == "probe")

    def _submit(self, command: Submission) -> None:
        if command.handle > HANDLE_MAX:
            raise RuntimeError(f"handle {command.handle}: the bench counts to {HANDLE_MAX}")
        rids = [f"{command.engine_id}-n{choice}" for choice in range(command.n)]
        if command.n == 1:
            rids = [command.engine_id]
        self._rids[command.handle] = rids
        self._open[command.handle] = command.n
        self._several += command.n > 1
        for choice, rid in enumerate(rids):
            asked = SimpleNamespace(
                rid=rid,
                input_ids=command.input_ids,
                sampling_params=command.sampling,
                stream=command.stream,
                return_logprob=command.return_logprob,
            )
            self._engine.submit_to_steps(asked, command.handle | choice << CHOICE_SHIFT)

    def _abort(self, command: Abort) -> None:
        rids = self._rids.pop(command.handle, [])
        for rid in rids:
            self._engine.abort_request(rid)
        self._servicer.aborted(command.handle, ALL_CHOICES)
        self._several -= len(rids) > 1
        self._open.pop(command.handle, None)

    def _push(
        self,
        rows: np.ndarray,
        tokens: np.ndarray,
        ends: list[tuple[int, dict]],
        logprobs: np.ndarray | None,
    ) -> None:
        handles, choices = rows, None
        if self._several:
            handles = rows & np.uint64(HANDLE_MAX)
            choices = (rows >> np.uint64(CHOICE_SHIFT)).astype(np.uint32)
        counts = None if len(tokens) == len(rows) else np.zeros(len(rows), np.uint32)
        self._servicer.push_tokens(
            handles.tobytes(),
            tokens.tobytes(),
            ends,
            choices=choices,
            counts=counts,
            logprobs=logprobs,
        )
        for row, _reason in ends:
            handle = int(handles[row])
            self._open[handle] -= 1
            if self._open[handle] == 0:
                self._several -= len(self._rids[handle]) > 1
                del self._open[handle], self._rids[handle]


async def _serve(args: argparse.Namespace) -> None:
    engine = _engine(args)
    info = WorkerInfo(
        window=args.window, vocab_size=1024, max_context=args.max_len, model_path="stub"
    )
    servicer = Servicer(info, Config({"log_level": "warning"}))
    servicer.listen(f"127.0.0.1:{args.port}")
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    servicer.start()
    stuck.install()
    adapter = None
    if args.engine == "asyncllm":
        adapter = AsyncLLMEngine(engine, servicer)
        adapter.start()
    else:
        driver = StepDriver(servicer, engine)
        loop.add_reader(servicer.fileno(), driver.on_commands)
    engine.auto_create_handle_loop()
    servicer.state("ready")
    while not stopped.is_set():
        servicer.beat()
        try:
            await asyncio.wait_for(stopped.wait(), BEAT_S)
        except (TimeoutError, asyncio.TimeoutError):
            continue
    servicer.stop()
    os._exit(0)  # the stub's tasks never end by themselves


if __name__ == "__main__":
    uvloop.run(_serve(_arguments()))
