"""A stand-in for TokenSpeed's AsyncLLM, as far as a gRPC servicer uses it.

A request waits for a place in the running window, then gets one token a step.

Two ways out.  By default each request has its own async generator, as AsyncLLM
has, and its outputs are dicts.  An engine with a `token_sink` keeps its batch in
columns, as engines that run a model do, and hands over the tokens of a whole step
as arrays; everything else is the same code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import types
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, TextIO

import numpy as np

from event_log import log_abort
from step_clock import StepClock

TOTAL_PAGES = 15625
PAGES_PER_REQUEST = 4
# Unpaced, the engine would run away from the servicer that shares its thread:
# a request with this many unread outputs skips the step.
UNREAD_LIMIT = 4

TOKEN_FIRST, TOKEN_LAST, ONE = 10, 909, np.uint32(1)
LOGPROB_MASK, LOGPROB_UNIT = np.uint32(7), np.float32(-0.125)

# Takes a step: handles (uint64), token ids (uint32), rows that end with their finish reasons, and the tokens'
# logprobs (float32) if anybody wants them.
TokenSink = Callable[[np.ndarray, np.ndarray, list[tuple[int, dict]], "np.ndarray | None"], None]


@dataclasses.dataclass
class EngineConfig:
    """What the stand-in does.  Times are in seconds, a window of 0 is unbounded."""

    step_s: float
    window: int
    event_log: TextIO | None


class _Outbox:
    """Outputs of a request that nobody has read yet, of all of its choices."""

    def __init__(self, choices: int) -> None:
        self.choices = choices
        self._outputs: deque[dict] = deque()
        self._any = asyncio.Event()

    def __len__(self) -> int:
        return len(self._outputs)

    def put(self, output: dict) -> None:
        self._outputs.append(output)
        self._any.set()

    async def read(self) -> AsyncIterator[dict]:
        """Outputs up to and including the last one with a finish reason."""
        left = self.choices
        while left:
            await self._any.wait()
            output = self._outputs.popleft()
            if not self._outputs:
                self._any.clear()
            left -= output["meta_info"]["finish_reason"] is not None
            yield output


class _Request:
    """A choice that is live: what was asked and what it has produced so far."""

    def __init__(self, rid: str, asked: Any, wanted: int) -> None:
        self.rid = rid
        self.streams: bool = asked.stream
        self.prompt_tokens = len(asked.input_ids)
        self.wanted = wanted
        self.index = 0
        self.tokens: list[int] = []
        #: (logprob, token id, text) of every token so far; None: they are not wanted.
        self.logprobs: list[tuple[float, int, None]] | None = [] if asked.return_logprob else None
        #: Where its outputs go, with those of its other choices; None: its tokens go to the token sink.
        self.unread: _Outbox | None = None
        self.finished = False
        #: What stands for it in the columns' steps; None: it has an async generator.
        self.handle: int | None = None
        #: Its row there; None: it has none.
        self.row: int | None = None

    def put(self, tokens: list[int], reason: dict | None) -> None:
        """Queue an output: new tokens of a stream, all tokens otherwise."""
        self.tokens.extend(tokens)
        visible = tokens if self.streams else list(self.tokens)
        meta = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
            "cached_tokens": 0,
            "finish_reason": reason,
            "weight_version": "default",
        }
        if self.logprobs is not None:
            self.logprobs.extend((logprob_of(token), token, None) for token in tokens)
            meta["output_token_logprobs"] = self.logprobs
        self.unread.put({"output_ids": visible, "index": self.index, "meta_info": meta})

    def advance(self) -> bool:
        """Produce one token; True when it was the last."""
        token = 10 + len(self.tokens) % 900
        if len(self.tokens) + 1 >= self.wanted:
            self.put([token], {"type": "length", "length": self.wanted})
            return True
        if self.streams:
            self.put([token], None)
        else:
            self.tokens.append(token)
        return False


def logprob_of(token: int) -> float:
    """A made-up one."""
    return float(LOGPROB_UNIT) * (token & int(LOGPROB_MASK))


class _Columns:
    """The requests that generate, a row each; a step is an operation on a whole column.

    Between two changes every row just counts on: what differs from row to row, how far it is from its last
    token or from where its ids begin again, is looked at when the first of them is there.
    """

    def __init__(self) -> None:
        self.requests: list[_Request] = []
        #: How many of them want logprobs.
        self.with_logprobs = 0
        self._handles = np.zeros(64, np.uint64)
        #: The token id of the last step.
        self._tokens = np.zeros(64, np.uint32)
        #: Tokens that were left at the last look.
        self._left = np.zeros(64, np.int64)
        self._steps_since = 0
        self._steps_until = 0

    def add(self, request: _Request) -> None:
        self._look()
        row = len(self.requests)
        if row == len(self._handles):
            for name in ("_handles", "_tokens", "_left"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.requests.append(request)
        request.row = row
        self.with_logprobs += request.logprobs is not None
        self._handles[row] = request.handle
        self._tokens[row] = TOKEN_FIRST - 1
        self._left[row] = request.wanted

    def remove(self, row: int) -> None:
        """The last row takes its place."""
        self._look()
        self.requests[row].row = None
        self.with_logprobs -= self.requests[row].logprobs is not None
        last = self.requests.pop()
        if row < len(self.requests):
            self.requests[row] = last
            last.row = row
            for column in (self._handles, self._tokens, self._left):
                column[row] = column[len(self.requests)]

    def step(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """A token to every row: handles, token ids, and the rows that have their last one."""
        rows = len(self.requests)
        tokens = self._tokens[:rows]
        if self._steps_until == 0:
            self._look()
            tokens[tokens == TOKEN_LAST] = TOKEN_FIRST - 1
            until_again = TOKEN_LAST - int(tokens.max())
            self._steps_until = min(int(self._left[:rows].min()), until_again)
        tokens += ONE
        self._steps_since += 1
        self._steps_until -= 1
        over = []
        if self._steps_until == 0:
            over = np.flatnonzero(self._left[:rows] == self._steps_since).tolist()
        return self._handles[:rows], tokens, over

    def _look(self) -> None:
        """Bring what is left up to date; the next step finds out how far to go again."""
        self._left[: len(self.requests)] -= self._steps_since
        self._steps_since = self._steps_until = 0


class _LoadSnapshots:
    """The store a servicer reads GetLoads figures from."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine

    def fresh_snapshots(self) -> list[types.SimpleNamespace]:
        """The load of the one rank."""
        running = len(self._engine.running)
        pages = min(TOTAL_PAGES, running * PAGES_PER_REQUEST)
        snapshot = types.SimpleNamespace(
            dp_rank=0,
            num_running_reqs=running,
            num_waiting_reqs=len(self._engine.waiting),
            num_used_pages=pages,
            num_active_pages=pages,
            max_total_pages=TOTAL_PAGES,
        )
        return [snapshot]


class StubEngine:
    """The engine object handed to the servicer."""

    def __init__(self, server_args: Any, config: EngineConfig) -> None:
        self.server_args = server_args
        self.model_config = _model_config(server_args)
        self.context_len = server_args.max_model_len
        self.max_req_input_len = server_args.max_model_len - 1
        self.rid_to_state: dict[str, _Request] = {}
        self.gracefully_exit = False
        self.last_receive_tstamp = time.time()
        self.load_snapshot_store = _LoadSnapshots(self)
        self.waiting: deque[_Request] = deque()
        self.running: dict[str, _Request] = {}
        self._config = config
        self._generating: dict[str, _Request] = {}
        self._has_work = asyncio.Event()
        self._tasks: set[asyncio.Task] = set()
        self._started = False
        self.token_sink: TokenSink | None = None
        self._columns = _Columns()

    def auto_create_handle_loop(self) -> None:
        """Start the engine on the running event loop, once."""
        if not self._started:
            self._started = True
            self._spawn(self._run())

    async def generate_request(self, asked: Any) -> AsyncIterator[dict]:
        """Submit a request, with an id for each choice or one, and yield its outputs."""
        rids = [asked.rid] if isinstance(asked.rid, str) else asked.rid
        outbox = _Outbox(len(rids))
        for index, rid in enumerate(rids):
            request = self._request(rid, asked)
            request.index = index
            request.unread = outbox
            self._submit(request)
        async for output in outbox.read():
            yield output

    def submit_to_steps(self, asked: Any, handle: int) -> None:
        """Submit a request whose tokens go to the token sink, under this handle."""
        request = self._request(asked.rid, asked)
        request.handle = handle
        self._submit(request)

    def _request(self, rid: str, asked: Any) -> _Request:
        return _Request(rid, asked, asked.sampling_params["max_new_tokens"])

    def abort_request(self, rid: str) -> None:
        """End a live request; an unknown one is none of our business."""
        request = self.rid_to_state.get(rid)
        log_abort(self._config.event_log, rid)
        if request is not None:
            self._abort(request)

    async def get_load(self) -> list[types.SimpleNamespace]:
        """The older way of reading the load, one entry per rank."""
        load = types.SimpleNamespace(
            dp_rank=0,
            num_reqs=len(self.running) + len(self.waiting),
            num_waiting_reqs=len(self.waiting),
            num_pages=len(self.running) * PAGES_PER_REQUEST,
        )
        return [load]

    async def is_scheduler_paused(self) -> bool:
        """The stand-in never pauses."""
        return False

    async def flush_cache(self) -> types.SimpleNamespace:
        """Succeeds when idle, as the engine's does."""
        return types.SimpleNamespace(success=not self.rid_to_state)

    def _submit(self, request: _Request) -> None:
        self.rid_to_state[request.rid] = request
        self.waiting.append(request)
        self._admit()

    def _admit(self) -> None:
        window = self._config.window or len(self.running) + len(self.waiting)
        while self.waiting and len(self.running) < window:
            request = self.waiting.popleft()
            self.running[request.rid] = request
            self._start_generating(request)

    def _start_generating(self, request: _Request) -> None:
        if request.handle is None:
            self._generating[request.rid] = request
        else:
            self._columns.add(request)
        self._has_work.set()

    async def _run(self) -> None:
        """The step loop: one token to every generating request."""
        step_s = self._config.step_s
        clock = StepClock()
        due = time.monotonic()
        while True:
            if not self._generating and not self._columns.requests:
                self._has_work.clear()
                await self._has_work.wait()
                due = time.monotonic()
            due += step_s
            await clock.until(due if step_s else 0)
            self.last_receive_tstamp = time.time()
            for request in list(self._generating.values()):
                if not step_s and len(request.unread) >= UNREAD_LIMIT * request.unread.choices:
                    continue
                if request.advance():
                    self._retire(request)
            if self._columns.requests:
                self._step_columns()

    def _step_columns(self) -> None:
        handles, tokens, over = self._columns.step()
        requests = self._columns.requests
        ends = [(row, {"type": "length", "length": requests[row].wanted}) for row in over]
        logprobs = None
        if self._columns.with_logprobs:
            logprobs = (tokens & LOGPROB_MASK).astype(np.float32) * LOGPROB_UNIT
        self.token_sink(handles, tokens, ends, logprobs)
        for row in reversed(over):
            request = requests[row]
            self._columns.remove(row)
            self._retire(request)

    def _abort(self, request: _Request) -> None:
        """End it before its time.  Who takes whole steps has asked for it, and hears nothing more."""
        if request.row is not None:
            self._columns.remove(request.row)
        if request.handle is None:
            request.put([], {"type": "abort", "message": "aborted"})
        self._retire(request)

    def _retire(self, request: _Request) -> None:
        """Take a request off the books and let the next one in."""
        request.finished = True
        self.rid_to_state.pop(request.rid, None)
        self._generating.pop(request.rid, None)
        if self.running.pop(request.rid, None) is None:
            self.waiting.remove(request)
        self._admit()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _model_config(server_args: Any) -> types.SimpleNamespace:
    hf_config = types.SimpleNamespace(
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=0,
        model_type="llama",
        architectures=["LlamaForCausalLM"],
    )
    return types.SimpleNamespace(
        hf_config=hf_config,
        vocab_size=1024,
        context_len=server_args.max_model_len,
        dtype=server_args.dtype,
        is_multimodal=False,
        is_audio_model=False,
        is_multimodal_active=False,
    )
