"""The servicer's questions to an AsyncLLM-shaped engine: is it paused, is it alive, and more.

More is what only the engine can do: flush its cache, profile itself, hand out its tokenizer.

Engine's loop only. Who asks while a question is open gets the same answer, and none is ever
withdrawn: the engine takes one query of a kind at a time, and a cancelled one blocks those behind.
The servicer bounds its own waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias, cast

from roomkeeper.answers import FAILED_PRECONDITION, NOT_FOUND, RESOURCE_EXHAUSTED, failure
from roomkeeper.pulse import Pulse
from roomkeeper.servicer import Query, Servicer
from roomkeeper.tokenizer import TokenizerArchive

#: A probe's output, or any other sign of life of the scheduler, must come within this.
PROBE_S = 20.0
#: Queries that wait for one answer at a time; the servicer has long given up on the oldest then.
WAITING_MAX = 1024
#: Calls that the engine carries out at a time; more are turned away.
TASKS_MAX = 64
#: An engine refuses to flush while a request is retired, a moment after its last token.
FLUSH_GRACE_S = 1.0
FLUSH_PERIOD_S = 0.05

#: ``success`` and ``message``, or ``code`` and ``message``, or what the kind of call has.
_Outcome: TypeAlias = dict[str, Any]

_log = logging.getLogger("roomkeeper")


def abort_in_engine(async_llm: Any, engine_id: str) -> None:
    """Tells the engine, if the request is live there."""
    states = getattr(async_llm, "rid_to_state", None)
    if states is not None:
        state = states.get(engine_id)
        if state is None or getattr(state, "finished", False):
            return
    try:
        async_llm.abort_request(engine_id)
    except Exception:
        _log.exception("the engine failed to abort %s", engine_id)


class _Question:
    """One kind of question."""

    def __init__(
        self, ask: Callable[[], Awaitable[bool]], answer: Callable[[int, object], None]
    ) -> None:
        self._ask = ask
        self._answer = answer
        self._waiting: list[int] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, query_id: int) -> None:
        self._waiting.append(query_id)
        if len(self._waiting) > WAITING_MAX:
            self._answer(self._waiting.pop(0), None)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        value: bool | None = None
        try:
            value = await self._ask()
        except Exception as error:
            _log.warning("the engine failed to answer: %s", error)
        finally:
            self._task = None
        waiting, self._waiting = self._waiting, []
        for query_id in waiting:
            self._answer(query_id, value)


class Questions:
    """Asks the engine what the servicer wants to know."""

    def __init__(
        self,
        async_llm: Any,
        servicer: Servicer,
        request_class: Callable[..., Any],
        pulse: Pulse,
    ) -> None:
        self._llm = async_llm
        self._role = servicer.info.role
        self._request_class = request_class
        self._pulse = pulse
        self._probes = 0
        self._answer = servicer.answer
        self._kinds = {
            "is_paused": _Question(self._is_paused, servicer.answer),
            "probe": _Question(self._probe, servicer.answer),
        }
        self._tokenizer = TokenizerArchive(servicer.info.tokenizer_path)
        self._calls: dict[str, Callable[[Mapping[str, Any]], Coroutine[Any, Any, _Outcome]]] = {
            "flush_cache": self._flush_cache,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
            "tokenizer": self._get_tokenizer,
        }
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, query: Query) -> None:
        """Asks; the servicer gets the answer when there is one."""
        if query.kind in self._kinds:
            self._kinds[query.kind].put(query.query_id)
        elif len(self._tasks) >= TASKS_MAX:
            self._answer(query.query_id, failure(RESOURCE_EXHAUSTED, "too many calls at a time"))
        else:
            task = asyncio.get_running_loop().create_task(self._carry_out(query))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, query: Query) -> None:
        call = self._calls[query.kind]
        try:
            outcome = await call(query.argument or {})
        except Exception as error:
            _log.warning("the engine refused %s: %s", query.kind, error)
            outcome = {"success": False, "message": str(error) or type(error).__name__}
        self._answer(query.query_id, outcome)

    async def _flush_cache(self, argument: Mapping[str, Any]) -> _Outcome:
        """Until the engine does it, for ``timeout_s``, and for a moment in any case."""
        flush = self._method("flush_cache")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(float(argument.get("timeout_s", 0.0)), FLUSH_GRACE_S)
        while True:
            result = await flush()
            self._pulse.reply()
            success = bool(getattr(result, "success", result))
            if success or loop.time() >= deadline:
                break
            await asyncio.sleep(FLUSH_PERIOD_S)
        said = str(getattr(result, "message", "") or "")
        refusal = "the engine refuses: requests are still in flight"
        return {"success": success, "message": said or ("Cache flushed" if success else refusal)}

    async def _start_profile(self, argument: Mapping[str, Any]) -> _Outcome:
        names = ("output_dir", "activities", "with_stack", "record_shapes")
        fields: dict[str, Any] = {name: argument.get(name) for name in names}
        for name in ("start_step", "num_steps"):
            fields[name] = int(argument[name]) if name in argument else None
        by_stage = bool(argument.get("profile_by_stage", False))
        await self._method("start_profile")(**fields, profile_by_stage=by_stage)
        self._pulse.reply()
        return {"success": True, "message": "Profiling started"}

    async def _stop_profile(self, _argument: Mapping[str, Any]) -> _Outcome:
        await self._method("stop_profile")()
        self._pulse.reply()
        return {"success": True, "message": "Profiling stopped"}

    async def _get_tokenizer(self, _argument: Mapping[str, Any]) -> _Outcome:
        try:
            return dict(await self._tokenizer.get())
        except FileNotFoundError as error:
            return failure(NOT_FOUND, str(error))
        except LookupError as error:
            return failure(FAILED_PRECONDITION, str(error.args[0]))

    def _method(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._llm, name, None)
        if not callable(method):
            raise RuntimeError(f"this engine has no {name}")
        return cast(Callable[..., Awaitable[Any]], method)

    async def _is_paused(self) -> bool:
        ask = getattr(self._llm, "is_scheduler_paused", None)
        if not callable(ask):
            return False
        paused = bool(await ask())
        self._pulse.reply()
        return paused

    async def _probe(self) -> bool:
        return await self.one_token(PROBE_S, any_sign=True)

    async def one_token(self, timeout_s: float, *, any_sign: bool) -> bool:
        """Whether a one-token request gives an output within ``timeout_s``.

        ``any_sign``: whatever else the scheduler sends will do as well. RuntimeError in a prefill
        or decode worker, which generates nothing without its peer.
        """
        if self._role != "null":
            raise RuntimeError(
                f"a {self._role} worker generates nothing without its peer; "
                "only an aggregated one can be probed"
            )
        request = self._probe_request()
        before = getattr(self._llm, "last_receive_tstamp", None)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._first_output(request))
        deadline = loop.time() + timeout_s
        try:
            while (left := deadline - loop.time()) > 0:
                await asyncio.wait([task], timeout=min(left, 0.25))
                if task.done():
                    return task.result()
                if any_sign and getattr(self._llm, "last_receive_tstamp", None) != before:
                    return True
            return False
        finally:
            if not task.done():
                abort_in_engine(self._llm, request.rid)
                task.cancel()

    def _probe_request(self) -> Any:
        self._probes += 1
        request = self._request_class(
            input_ids=[0],
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            log_metrics=False,
        )
        request.rid = f"roomkeeper-probe-{os.getpid()}-{self._probes}"
        return request

    async def _first_output(self, request: Any) -> bool:
        """Reads the request to its end: an engine cleans up after one that is read to the end."""
        good = False
        try:
            async for output in self._llm.generate_request(request):
                reason = output.get("meta_info", {}).get("finish_reason")
                good = not (isinstance(reason, dict) and reason.get("type") == "abort")
        except Exception as error:
            _log.warning("the engine failed a one-token request: %s", error)
            return False
        return good
