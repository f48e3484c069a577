"""The stand-in's frontend, in the shape of TokenSpeed's ``AsyncLLM``.

Everything here belongs on the asyncio loop that first called it, but for ``launch`` and ``close``.
It keeps what ``AsyncLLM`` keeps: an abort forgets the request and wakes nobody, outputs nobody has
taken are merged, and a scheduler process that is gone leaves its requests waiting. To see that is
the launcher's: ``processes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from roomkeeper.engine import EngineRequest
from roomkeeper.multimodal import EncodeItem
from roomkeeper.standin import faults, messages
from roomkeeper.standin.args import StandinArgs
from roomkeeper.standin.check import read_request
from roomkeeper.standin.pipe import Pipe
from roomkeeper.standin.process import Entry, SchedulerProcess, run_event_loop
from roomkeeper.standin.reqstate import FlushResult, LoadSnapshotStore, ReqState
from roomkeeper.standin.tokens import seen_of


def launch(args: StandinArgs, entry: Entry = run_event_loop) -> tuple[StandinLLM, dict[str, Any]]:
    """Starts the scheduler processes; the engine and its ready report. Blocks until they serve.

    ``entry`` is what a scheduler process runs. LaunchError, one line, when one does not come up.
    The processes end with the thread that calls this.
    """
    engine = StandinLLM(args)
    try:
        return engine, engine.start_processes(entry)
    except BaseException:
        engine.close()
        raise


class StandinLLM:
    """The engine, as a servicer drives it. Made by ``launch``."""

    def __init__(self, args: StandinArgs) -> None:
        config = args.model_config
        self.server_args = args
        if args.multimodal:
            # Named by which a gateway is told what the model takes: images, video and audio.
            config = {"video_token_id": 1, "audio_token_id": 1, **config}
        self.model_config = SimpleNamespace(
            vocab_size=args.vocab_size,
            hf_config=SimpleNamespace(**config),
            dtype="float32" if args.multimodal else None,
            is_multimodal=args.multimodal,
            is_audio_model=args.multimodal,
            is_multimodal_active=args.multimodal,
        )
        self.context_len = args.max_model_len
        self.max_req_input_len = args.max_model_len - 1
        self.rid_to_state: dict[str, ReqState] = {}
        self.load_snapshot_store = LoadSnapshotStore()
        #: time.time() of the last message of a scheduler.
        self.last_receive_tstamp = 0.0
        #: Set when shutdown has begun; nothing is submitted any more.
        self.gracefully_exit = False
        #: Tokens of the longest request, known once launched.
        self.max_single_request_tokens = 0
        self.schedulers: list[SchedulerProcess] = []
        self._pipes: list[Pipe] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}

    # -- life --

    def start_processes(self, entry: Entry) -> dict[str, Any]:
        """For ``launch``."""
        for rank in range(self.server_args.ranks):
            scheduler = SchedulerProcess(self.server_args, rank, entry)
            self.schedulers.append(scheduler)
            want_write = functools.partial(self._want_write, rank)
            self._pipes.append(Pipe(scheduler.end, want_write))
        report: dict[str, Any] = {}
        for scheduler, pipe in zip(self.schedulers, self._pipes, strict=True):
            ready, others = scheduler.wait_ready(pipe)
            report = ready.report
            for message in others:
                self._handle(message)
        self.max_single_request_tokens = int(report["max_single_request_tokens"])
        return report

    @property
    def processes(self) -> list[Any]:
        """The scheduler processes, as ``multiprocessing`` has them; the engine is dead with one."""
        return [scheduler.process for scheduler in self.schedulers]

    def auto_create_handle_loop(self) -> None:
        """Listens to the schedulers from now on. Again is fine."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        for rank, pipe in enumerate(self._pipes):
            self._loop.add_reader(pipe.fileno(), self._read, rank)

    def close(self) -> None:
        """Ends the scheduler processes. Any thread, once the loop has stopped or on it."""
        self.gracefully_exit = True
        if self._loop is not None and not self._loop.is_closed():
            for pipe in self._pipes:
                with contextlib.suppress(ValueError):  # closed already
                    self._loop.remove_reader(pipe.fileno())
                    self._loop.remove_writer(pipe.fileno())
        for scheduler in self.schedulers:
            scheduler.close()

    def _want_write(self, rank: int, wanted: bool) -> None:
        if self._loop is None:
            return
        pipe = self._pipes[rank]
        if wanted:
            self._loop.add_writer(pipe.fileno(), pipe.flush)
        else:
            self._loop.remove_writer(pipe.fileno())

    # -- requests --

    async def generate_request(self, obj: EngineRequest) -> AsyncIterator[dict[str, Any]]:
        """One request's outputs. ValueError: it does not fit, or the engine refused it with 400."""
        self.auto_create_handle_loop()
        if self.gracefully_exit:
            raise RuntimeError("the engine is shutting down")
        message = read_request(obj, self.server_args, self.max_single_request_tokens)
        if self.server_args.faults and (
            fault := faults.read(message.prompt, self.server_args.vocab_size)
        ):
            faults.commit(*fault)
            message = message._replace(misbehaviour=faults.misbehaviour(*fault))
        rank = self._rank_for(obj)
        state = ReqState(obj, rank, self.server_args)
        self.rid_to_state[obj.rid] = state
        self._pipes[rank].send(message)
        try:
            async for output in self._outputs(state):
                yield output
        finally:
            if self.rid_to_state.get(obj.rid) is state:
                self.abort_request(obj.rid)

    async def _outputs(self, state: ReqState) -> AsyncIterator[dict[str, Any]]:
        rid = state.obj.rid
        while True:
            await state.event.wait()
            state.event.clear()
            finished = state.finished
            output = state.collector.take()
            if finished and self.rid_to_state.get(rid) is state:
                del self.rid_to_state[rid]
            if output is not None:
                reason = output["meta_info"]["finish_reason"] or {}
                if reason.get("type") == "abort" and reason.get("status_code") == 400:
                    raise ValueError(reason["message"])
                yield output
            if finished:
                return

    def submit_encode(self, item: EncodeItem) -> None:
        """Takes an item for the tower; who fetches what it makes of it is told. Returns at once."""
        self.auto_create_handle_loop()
        if self.server_args.role != "encode":
            raise RuntimeError(f"a {self.server_args.role} worker encodes nothing for others")
        self._pipes[0].send(messages.Encode(item.room, seen_of(item.item)))

    def _rank_for(self, obj: EngineRequest) -> int:
        ranks = self.server_args.ranks
        pinned = obj.data_parallel_rank
        if pinned is not None:
            if not 0 <= pinned < ranks:
                raise ValueError(f"data_parallel_rank is {pinned}; there are {ranks} ranks")
            return pinned
        live = [0] * ranks
        for state in self.rid_to_state.values():
            live[state.rank] += 1
        return live.index(min(live))

    def abort_request(self, rid: str) -> None:
        """Forgets a request and tells its scheduler; unknown ids are ignored. Wakes nobody."""
        state = self.rid_to_state.pop(rid, None)
        if state is not None:
            self._pipes[state.rank].send(messages.Abort(rid))

    # -- questions --

    async def is_scheduler_paused(self) -> bool:
        """Asks the schedulers, which cannot be paused; what counts is that they answer."""
        return any(await self._ask("is_paused"))

    async def get_load(self) -> list[messages.Load]:
        """What each rank has to do."""
        return await self._ask("load")

    async def flush_cache(self) -> FlushResult:
        """Empties the prefix caches; not while requests are there."""
        return FlushResult(all(await self._ask("flush")))

    async def start_profile(self, *_args: Any, **_kwargs: Any) -> None:
        """There is nothing to profile."""
        raise RuntimeError("the stand-in engine has no profiler")

    stop_profile = start_profile

    async def _ask(self, kind: str) -> list[Any]:
        """Every scheduler's answer. As in the engine, nothing bounds the wait for a dead one."""
        self.auto_create_handle_loop()
        assert self._loop is not None
        futures = []
        for pipe in self._pipes:
            number = next(self._numbers)
            self._questions[number] = self._loop.create_future()
            futures.append(self._questions[number])
            pipe.send(messages.Ask(number, kind))
        return list(await asyncio.gather(*futures))

    # -- what the schedulers say --

    def _read(self, rank: int) -> None:
        assert self._loop is not None
        try:
            received = self._pipes[rank].receive()
        except EOFError:
            self._loop.remove_reader(self._pipes[rank].fileno())
            return
        for message in received:
            self._handle(message)

    def _handle(self, message: messages.FromScheduler) -> None:
        self.last_receive_tstamp = time.time()
        if isinstance(message, messages.Step):
            for output in message.outputs:
                if state := self.rid_to_state.get(output.rid):
                    state.add(output)
        elif isinstance(message, messages.LoadSnapshot):
            self.load_snapshot_store.accept(message)
        elif isinstance(message, messages.Answer):
            future = self._questions.pop(message.number, None)
            if future is not None and not future.done():
                future.set_result(message.value)
