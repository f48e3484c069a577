"""The adapter between a Servicer and an engine whose frontend is TokenSpeed's ``AsyncLLM``.

One asyncio loop, the engine's: everything here runs on it. Commands come when the servicer's
eventfd is readable; each engine request is a task in the engine's ``generate_request``; outputs are
gathered and pushed once per step. Two ways to read them (``output_path``):

* ``generator``: what ``generate_request`` yields. Works with any engine; one task wake-up each.
* ``collector``: below asyncio, at the request's collector (see collector.py). Needs the engine's
  ``rid_to_state`` with ``collector``, ``event`` and ``finished``.
* ``auto``: the collector where the engine has it, else the generator.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal

from roomkeeper._bridge import Choice
from roomkeeper.collector import CollectorMissing, Watched, hook
from roomkeeper.encodes import Encodes
from roomkeeper.engine import ALL_CHOICES, EngineRequest
from roomkeeper.errors import BadOutputError
from roomkeeper.loads import read_get_load, read_snapshots
from roomkeeper.multimodal import BESIDE_BYTES, Inputs
from roomkeeper.pulse import Pulse
from roomkeeper.questions import Questions, abort_in_engine
from roomkeeper.servicer import Abort, Command, Encode, Query, ReleaseRoom, Servicer, Submission
from roomkeeper.workerinfo import worker_info_from

__all__ = ["AsyncLLMEngine", "OutputPath", "worker_info_from"]

OutputPath = Literal["auto", "generator", "collector"]

BEAT_S = 0.25
LOADS_S = 1.0

_log = logging.getLogger("roomkeeper")


class _Request(Choice):
    """One engine request on its way: the very object that its outputs are pushed with."""

    __slots__ = ("ended", "engine_id", "hooked", "submission", "task")

    def __init__(self, submission: Submission, number: int, cumulative: bool) -> None:
        super().__init__(submission.handle, number, cumulative)
        self.submission = submission
        engine_id = submission.engine_id
        self.engine_id = engine_id if submission.n == 1 else f"{engine_id}-n{number}"
        self.task: asyncio.Task[None] | None = None
        #: Its outputs come by the collector.
        self.hooked = False
        #: Over as far as we are concerned: finished, failed, aborted. What comes later is dropped.
        self.ended = False


class AsyncLLMEngine:
    """Drives an AsyncLLM-shaped engine for a servicer.

    ``request_class`` is what ``generate_request`` is given; by default TokenSpeed's
    ``GenerateReqInput`` when TokenSpeed is loaded, else ``EngineRequest``. Make it anywhere, then
    ``start`` and ``close`` it on the engine's loop. ``on_release_room`` gets the servicer's
    ``ReleaseRoom`` commands.
    """

    def __init__(
        self,
        async_llm: Any,
        servicer: Servicer,
        *,
        output_path: OutputPath = "auto",
        request_class: Callable[..., Any] | None = None,
        on_release_room: Callable[[ReleaseRoom], None] | None = None,
    ) -> None:
        if output_path not in ("auto", "generator", "collector"):
            raise ValueError(
                f"output_path is {output_path!r}; it must be auto, generator or collector"
            )
        has_states = callable(getattr(getattr(async_llm, "rid_to_state", None), "get", None))
        if output_path == "collector" and not has_states:
            raise ValueError(
                f"output_path is 'collector', but {type(async_llm).__name__} has no rid_to_state "
                "to find requests in; use auto or generator"
            )
        self._llm = async_llm
        self._servicer = servicer
        self._path: OutputPath = output_path
        self._hooking = output_path != "generator" and has_states
        self._request_class = request_class or _default_request_class()
        self._on_release_room = on_release_room
        self._pulse = Pulse(async_llm)
        args = getattr(async_llm, "server_args", None)
        self._deltas = bool(getattr(args, "stream_output", False))
        self._reasoning_parser = str(getattr(args, "reasoning_parser", None) or "")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[int, list[_Request]] = {}
        self._step: list[tuple[_Request, dict[str, Any]]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._questions = Questions(async_llm, servicer, self._request_class, self._pulse)
        self._encodes = Encodes(async_llm, servicer)
        self._inputs: dict[int, Inputs] = {}
        #: An encode worker's scheduler answers no questions.
        self._asks_load = (
            callable(getattr(async_llm, "get_load", None)) and servicer.info.role != "encode"
        )
        self._load_query: asyncio.Future[None] | None = None
        self._weight_version: str | None = None

    # -- life --

    def start(self) -> None:
        """Begins to serve the queue, the beat and the loads. On the engine's loop."""
        if self._loop is not None:
            raise RuntimeError("this engine adapter has been started already; make another one")
        self._loop = asyncio.get_running_loop()
        create_loop = getattr(self._llm, "auto_create_handle_loop", None)
        if callable(create_loop):
            create_loop()
        self._loop.add_reader(self._servicer.fileno(), self._drain)
        self._every("beat", BEAT_S, self._beat)
        self._every("loads", LOADS_S, self._report)
        self._drain()

    def close(self) -> None:
        """Stops serving; live engine requests are aborted. Again is fine. On the engine's loop."""
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.remove_reader(self._servicer.fileno())
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for request in list(self._requests()):
            self._stop(request)

    @property
    def output_path(self) -> Literal["generator", "collector"]:
        """How outputs are read; "auto" is settled by the first request."""
        return "collector" if self._hooking else "generator"

    @property
    def live(self) -> int:
        """Engine requests that are not over."""
        return sum(map(len, self._live.values()))

    def _requests(self) -> Iterator[_Request]:
        for requests in self._live.values():
            yield from requests

    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "not started"
        return self._loop

    def _every(self, name: str, period_s: float, action: Callable[[], None]) -> None:
        """Does it now and every ``period_s``. What it raises is logged, and it goes on."""
        try:
            action()
        except Exception:
            _log.exception("the %s timer failed", name)
        again = functools.partial(self._every, name, period_s, action)
        self._timers[name] = self._running().call_later(period_s, again)

    # -- commands --

    def _drain(self) -> None:
        for command in self._servicer.take():
            try:
                self._carry_out(command)
            except Exception:
                _log.exception("a command to the engine failed: %r", command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Submission):
            self._submit(command)
        elif isinstance(command, Abort):
            self._abort(command)
        elif isinstance(command, Query):
            self._questions.put(command)
        elif isinstance(command, Encode):
            self._encodes.put(command)
        elif self._on_release_room is not None:
            self._on_release_room(command)

    def _submit(self, submission: Submission) -> None:
        cumulative = not (self._deltas and submission.stream)
        if submission.has_media:
            beside = submission.media_bytes >= BESIDE_BYTES
            make = self._encodes.make_inputs
            self._inputs[submission.handle] = Inputs(submission, make, beside=beside)
        requests = [_Request(submission, i, cumulative) for i in range(submission.n)]
        self._live[submission.handle] = requests
        for request in requests:
            request.task = self._running().create_task(self._work(request))

    def _work(self, request: _Request) -> Coroutine[Any, Any, None]:
        work = self._generate(request)
        return Watched(work, functools.partial(self._hook, request)) if self._hooking else work

    def _abort(self, abort: Abort) -> None:
        self._flush()  # what the engine has said before the abort counts
        for request in list(self._live.get(abort.handle, ())):
            if abort.choice in (ALL_CHOICES, request.choice):
                self._stop(request)
        self._servicer.aborted(abort.handle, abort.choice)

    def _stop(self, request: _Request) -> None:
        """Tells the engine once, if it knows the request, and ends the task that waits for it.

        The engine wakes nobody on an abort. A task that has not begun never submits anything.
        """
        self._end(request)
        abort_in_engine(self._llm, request.engine_id)
        if request.task is not None:
            request.task.cancel()

    def _end(self, request: _Request) -> None:
        """Off the books."""
        request.ended = True
        requests = self._live.get(request.handle)
        if requests is None or request not in requests:
            return
        requests.remove(request)
        if not requests:
            del self._live[request.handle]
            self._inputs.pop(request.handle, None)

    # -- one engine request --

    async def _generate(self, request: _Request) -> None:
        try:
            if not _is_final(await self._follow(request)):
                self._fail(request, 500, "the engine ended the request without a finish reason")
        except ValueError as error:
            self._fail(request, 400, str(error))
        except asyncio.CancelledError:
            self._fail(request, 503, "the engine cancelled the request")
            raise
        except Exception as error:
            if not request.finished:
                _log.exception("the engine failed request %s", request.engine_id)
            self._fail(request, 500, str(error) or type(error).__name__)

    async def _follow(self, request: _Request) -> Any:
        """Reads the request to its end; the last output."""
        output: Any = None
        made = self._make(request)
        if request.submission.has_media:
            made.precomputed_multimodal_inputs = await self._media(request)
        stream = self._llm.generate_request(made)
        try:
            async for output in stream:
                if not request.hooked:
                    self._gather(request, output)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        return output

    async def _media(self, request: _Request) -> Any:
        """The multimodal inputs; their bytes are not held on to once every choice has its own."""
        inputs = self._inputs[request.handle]
        made = await inputs.get()
        if inputs.given == request.submission.n:
            self._inputs.pop(request.handle, None)
        return made

    def _make(self, request: _Request) -> Any:
        """The engine's own request object."""
        submission = request.submission
        sampling = submission.sampling
        if request.choice and "seed" in sampling:
            # Choices that share a seed would say the same: each gets the next one.
            sampling["seed"] += request.choice
        if self._reasoning_parser and "json_schema" in sampling:
            _let_it_reason(sampling, self._reasoning_parser)
        fields: dict[str, Any] = {
            "input_ids": submission.input_ids,
            "sampling_params": sampling,
            "stream": submission.stream,
            "return_logprob": submission.return_logprob,
            "logprob_start_len": submission.logprob_start_len,
            "top_logprobs_num": submission.top_logprobs_num,
            "token_ids_logprob": submission.token_ids_logprob,
        }
        if submission.bootstrap is not None:
            host, port, room = submission.bootstrap
            fields.update(bootstrap_host=host or None, bootstrap_port=port, bootstrap_room=room)
        if submission.rank >= 0:  # left out otherwise: older engines do not know it
            fields["data_parallel_rank"] = submission.rank
        made = self._request_class(**fields)
        made.rid = request.engine_id
        return made

    def _fail(self, request: _Request, status: int, message: str) -> None:
        """Ends a request that the engine has not ended itself."""
        self._flush()
        if request.ended:
            return
        self._end(request)
        reason = {"type": "abort", "message": message, "status_code": status}
        self._servicer.push([(request.handle, request.choice, (), reason, 0, 0, 0)])

    # -- outputs --

    def _hook(self, request: _Request) -> bool:
        """Whether nothing is left to look for, after one step of the request's task."""
        if request.ended:
            return True
        state = self._llm.rid_to_state.get(request.engine_id)
        if state is None:
            return False
        try:
            request.hooked = True
            hook(state, functools.partial(self._gather, request))
        except CollectorMissing as missing:
            request.hooked = False
            if self._path == "collector":
                self._stop_with(request, f"output_path is 'collector', but {missing}; use auto")
            else:
                self._hooking = False
                _log.info("engine outputs are read from the generator: %s", missing)
        return True

    def _gather(self, request: _Request, output: dict[str, Any]) -> None:
        """Adds an output to the step. Also called by the engine's output loop: raises nothing."""
        if request.ended:
            return
        if not self._step:
            self._running().call_soon(self._flush)
        self._step.append((request, output))

    def _flush(self) -> None:
        """Pushes the step, whose writes then go out together."""
        step, self._step = self._step, []
        if not step:
            return
        self._pulse.output()
        try:
            self._servicer.push_asyncllm(step)
        except BadOutputError as error:
            _log.error("the engine gave an output that cannot be read: %s", error)
            for request, _ in step:
                if (request.handle, request.choice) in error.failed:
                    self._stop_with(request, f"the engine's output cannot be read: {error}")
        for request, _ in step:
            if request.finished:
                self._end(request)

    def _stop_with(self, request: _Request, message: str) -> None:
        if not request.ended:
            self._fail(request, 500, message)
            self._stop(request)

    # -- beat, loads --

    def _beat(self) -> None:
        if self._pulse.alive(bool(self._live)):
            self._servicer.beat()

    def _report(self) -> None:
        """The loads, and a weight version that an update has changed."""
        version = getattr(getattr(self._llm, "server_args", None), "weight_version", None)
        if version and version != self._weight_version:
            self._weight_version = version
            self._servicer.set_weight_version(str(version))
        store = getattr(self._llm, "load_snapshot_store", None)
        if store is not None:
            loads = read_snapshots(store.fresh_snapshots(), self._servicer.info)
            if loads:
                self._servicer.loads(loads)
        elif self._asks_load and self._load_query is None:
            # One at a time and never cancelled: a query withdrawn in flight blocks those behind it.
            self._load_query = self._running().create_task(self._ask_load())

    async def _ask_load(self) -> None:
        try:
            answer = await self._llm.get_load()
            self._pulse.reply()
            self._servicer.loads(read_get_load(answer, self._servicer.info))
        except Exception:
            _log.exception("the engine failed to report its load")
        finally:
            self._load_query = None

    async def warm_up(self, timeout_s: float) -> bool:
        """Whether the engine generates one token within ``timeout_s``. Aggregated workers only."""
        return await self._questions.one_token(timeout_s, any_sign=False)


def _is_final(output: object) -> bool:
    meta = output.get("meta_info") if isinstance(output, dict) else None
    return isinstance(meta, dict) and meta.get("finish_reason") is not None


def _let_it_reason(sampling: dict[str, Any], parser: str) -> None:
    """Makes a JSON schema a structural tag, where the engine has one for its reasoning parser.

    The schema is then for the answer and not for the thought before it.
    """
    if "tokenspeed" not in sys.modules:
        return
    try:
        from tokenspeed.runtime.grammar.reasoning_structural_tag import (
            structural_tag_for_reasoning_json_schema,
        )
    except ImportError:
        return  # a release without
    tag = structural_tag_for_reasoning_json_schema(parser, json.loads(sampling["json_schema"]))
    if tag is not None:
        del sampling["json_schema"]
        sampling["structural_tag"] = tag


def _default_request_class() -> Callable[..., Any]:
    if "tokenspeed" not in sys.modules:
        return EngineRequest
    from tokenspeed.runtime.engine.io_struct import GenerateReqInput

    made: Callable[..., Any] = GenerateReqInput
    return made
