"""What the stub engine costs by itself: its outputs are taken and thrown away, nothing is served.

`--engine steps` takes whole steps, `--engine asyncllm` an async generator a request, as the two servers over it do.
Prints one JSON line like the load client's: messages, server CPU per message, first output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from types import SimpleNamespace

import numpy as np
import uvloop

import engine_modules
from stub_engine import EngineConfig, StubEngine


def _engine(step_ms: float) -> StubEngine:
    server_args = engine_modules.ServerArgs(
        port=0,
        max_num_seqs=0,
        max_model_len=200_000,
    )
    return StubEngine(server_args, EngineConfig(step_ms / 1000, 0, None))


class _Run:
    """`requests` requests, `streams` at a time, of `tokens` tokens."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.engine = _engine(args.step_ms)
        self.left = args.requests
        self.messages = 0
        self.first_ms: list[float] = []
        self._done: dict[int, asyncio.Future] = {}
        self._new: set[int] = set()
        self._begun: dict[str, float] = {}
        if args.engine == "steps":
            self.engine.token_sink = self._take_step

    def _take_step(
        self, handles: np.ndarray, _tokens: object, ends: list, _logprobs: object
    ) -> None:
        self.messages += len(handles)
        if self._new:
            for handle in self._new.intersection(handles.tolist()):
                self._new.remove(handle)
                self._first(f"alone-{handle}")
        self.messages += len(ends)  # a servicer says so in a message of its own
        for row, _reason in ends:
            self._done.pop(int(handles[row])).set_result(None)

    def _first(self, rid: str) -> None:
        begun = self._begun.pop(rid, None)
        if begun is not None:
            self.first_ms.append((time.perf_counter() - begun) * 1000)

    async def worker(self) -> None:
        while self.left > 0:
            self.left -= 1
            handle = self.left
            rid = f"alone-{handle}"
            asked = SimpleNamespace(
                rid=rid,
                input_ids=list(range(20, 148)),
                sampling_params={"max_new_tokens": self.args.tokens},
                stream=True,
                return_logprob=False,
            )
            self._begun[rid] = time.perf_counter()
            if self.args.engine == "steps":
                done = asyncio.get_running_loop().create_future()
                self._done[handle] = done
                self._new.add(handle)
                self.engine.submit_to_steps(asked, handle)
                await done
            else:
                async for _output in self.engine.generate_request(asked):
                    self.messages += 1
                    self._first(rid)
                self.messages += 1

    async def measure(self) -> dict:
        self.engine.auto_create_handle_loop()
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(self.worker() for _ in range(self.args.streams)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {
            "messages": self.messages,
            "messages_per_s": round(self.messages / wall),
            "server_cpu_us_each": round(cpu * 1e6 / self.messages, 3),
            "ttft_ms": {"p50": round(statistics.median(self.first_ms), 3)},
        }


async def _main(args: argparse.Namespace) -> None:
    print(json.dumps(await _Run(args).measure()), flush=True)
    os._exit(0)  # the stub's loop never ends by itself


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["steps", "asyncllm"], default="steps")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    uvloop.run(_main(parser.parse_args()))
