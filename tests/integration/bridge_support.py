"""What the bridge's tests share: a served worker, a client, a small engine like AsyncLLM."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import select
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc

from roomkeeper import wire
from roomkeeper.asyncllm import AsyncLLMEngine
from roomkeeper.config import Config
from roomkeeper.engine import WorkerInfo
from roomkeeper.servicer import Command, Servicer, Submission

#: A wide guard against hangs, not a measurement.
GUARD_S = 20.0

WIRE = wire.load()
SCHEDULER = "tokenspeed.grpc.scheduler."


def message(name: str) -> Any:
    return WIRE.message(SCHEDULER + name)


def request(request_id: str, input_ids: list[int], **fields: Any) -> Any:
    made = message("GenerateRequest")(request_id=request_id, **fields)
    made.tokenized.input_ids.extend(input_ids)
    return made


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition; fails by name when it never holds."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


@dataclasses.dataclass
class Worker:
    """A servicer that listens, and a client to it."""

    servicer: Servicer
    port: int
    stub: Any
    channel: grpc.Channel

    def generate(self, request_id: str, input_ids: list[int], **fields: Any) -> Any:
        return self.stub.Generate(request(request_id, input_ids, **fields), timeout=GUARD_S)

    def take(self) -> list[Command]:
        """The commands, once there are any."""
        readable, _, _ = select.select([self.servicer.fileno()], [], [], GUARD_S)
        assert readable, "no command came"
        return self.servicer.take()

    def take_submission(self) -> Submission:
        (command,) = self.take()
        assert isinstance(command, Submission)
        return command


@contextlib.contextmanager
def serving(
    info: WorkerInfo | None = None, settings: dict[str, object] | None = None
) -> Iterator[Worker]:
    servicer = Servicer(info or WorkerInfo(model_path="model"), Config(settings or {}))
    try:
        port = servicer.listen("127.0.0.1:0")
        servicer.start()
        servicer.state("ready")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Worker(servicer, port, WIRE.stub(channel, wire.TOKENSPEED), channel)
    finally:
        servicer.stop()


# -- an engine --


@dataclasses.dataclass
class EngineState:
    """A live request, as AsyncLLM keeps it."""

    obj: Any
    collector: Any
    event: asyncio.Event
    finished: bool = False
    tokens: list[int] = dataclasses.field(default_factory=list)


class Collector:
    """Keeps the newest output; a reader that is late gets fewer, larger ones."""

    def __init__(self) -> None:
        self.pending: dict[str, Any] | None = None

    def put(self, output: dict[str, Any], *, stream: bool) -> None:
        if self.pending is not None and stream:
            ids = self.pending["output_ids"]
            new = output["output_ids"]
            merged = new if new[: len(ids)] == ids else ids + new
            output = {**output, "output_ids": merged}
        self.pending = output

    def take(self) -> dict[str, Any] | None:
        output, self.pending = self.pending, None
        return output

    def has_pending(self) -> bool:
        return self.pending is not None


#: First prompt token -> what the engine does with it.
SILENT, VALUE_ERROR, RUNTIME_ERROR, ABORT_503, ABORT_400, BAD_TOKEN, NO_FINISH = range(1, 8)


class FakeAsyncLLM:
    """Every live request gets one token a step, 100, 101, …, until ``max_new_tokens``.

    What it does with requests, states, events, collectors and aborts is what AsyncLLM does.
    """

    def __init__(self, *, stream_output: bool = False, step_s: float = 0.002) -> None:
        self.server_args = SimpleNamespace(stream_output=stream_output, weight_version="v1")
        self.rid_to_state: dict[str, Any] = {}
        self.last_receive_tstamp = 0.0
        self.seen: list[Any] = []
        self.aborted: list[str] = []
        self.steps = 0
        self.hold = False
        self._step_s = step_s
        self._task: asyncio.Task[None] | None = None

    def auto_create_handle_loop(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def make_state(self, obj: Any) -> Any:
        return EngineState(obj, Collector(), asyncio.Event())

    async def generate_request(self, obj: Any) -> Any:
        first = obj.input_ids[0]
        if first == VALUE_ERROR:
            raise ValueError("the prompt is not to our taste")
        if first == RUNTIME_ERROR:
            raise RuntimeError("the engine tripped")
        self.seen.append(obj)
        if first == NO_FINISH:
            return
        state = self.make_state(obj)
        self.rid_to_state[obj.rid] = state
        try:
            while True:
                await state.event.wait()
                output = state.collector.take()
                if output is None:
                    state.event.clear()
                    continue
                if state.finished:
                    del self.rid_to_state[obj.rid]
                    reason = output["meta_info"]["finish_reason"]
                    if isinstance(reason, dict) and reason.get("status_code") == 400:
                        raise ValueError(reason["message"])
                    yield output
                    return
                state.event.clear()
                if obj.stream:
                    yield output
        finally:
            if state.finished:
                self.rid_to_state.pop(obj.rid, None)
            else:
                self.abort_request(obj.rid)

    def abort_request(self, rid: str) -> None:
        if self.rid_to_state.pop(rid, None) is not None:
            self.aborted.append(rid)

    async def is_scheduler_paused(self) -> bool:
        return False

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._step_s)
            if self.hold or not self.rid_to_state:
                continue
            self.steps += 1
            self.last_receive_tstamp = time.time()
            for rid, state in list(self.rid_to_state.items()):
                self._advance(rid, state)

    def _advance(self, rid: str, state: Any) -> None:
        first = state.obj.input_ids[0]
        if first == SILENT:
            return
        token = -1 if first == BAD_TOKEN else 100 + len(state.tokens)
        wanted = state.obj.sampling_params.get("max_new_tokens", 4)
        state.tokens.append(token)
        reason: dict[str, Any] | None = None
        if first == ABORT_503:
            reason = {"type": "abort", "message": "queue is full", "status_code": 503}
        elif first == ABORT_400:
            reason = {"type": "abort", "message": "bad schema", "status_code": 400}
        elif len(state.tokens) >= wanted:
            reason = {"type": "length", "length": wanted}
        delta = self.server_args.stream_output and state.obj.stream
        state.finished = reason is not None
        state.collector.put(
            {
                "text": "",
                "output_ids": [token] if delta else list(state.tokens),
                "meta_info": {
                    "id": rid,
                    "finish_reason": reason,
                    "prompt_tokens": len(state.obj.input_ids),
                    "completion_tokens": len(state.tokens),
                    "cached_tokens": 0,
                    "weight_version": self.server_args.weight_version,
                },
            },
            stream=state.obj.stream,
        )
        state.event.set()


@dataclasses.dataclass
class EngineWorker(Worker):
    """A worker whose engine runs on a loop in a thread of its own."""

    llm: Any
    engine: AsyncLLMEngine
    loop: asyncio.AbstractEventLoop

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(GUARD_S)

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(GUARD_S)


@contextlib.contextmanager
def engine_serving(
    llm: Any,
    info: WorkerInfo | None = None,
    settings: dict[str, object] | None = None,
    **options: Any,
) -> Iterator[EngineWorker]:
    with serving(info, settings) as worker:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="engine loop")
        thread.start()
        engine = AsyncLLMEngine(llm, worker.servicer, **options)
        served = EngineWorker(
            worker.servicer, worker.port, worker.stub, worker.channel, llm, engine, loop
        )
        try:
            served.on_loop(engine.start)
            yield served
        finally:
            served.on_loop(engine.close)
            served.run(_cancel_all())
            loop.call_soon_threadsafe(loop.stop)
            thread.join(GUARD_S)
            loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
