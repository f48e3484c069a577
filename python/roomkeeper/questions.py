"""The servicer's questions to an AsyncLLM-shaped engine: is it paused, is it alive.

Engine's loop only. Who asks while a question is open gets the same answer, and none is ever
withdrawn: the engine takes one query of a kind at a time, and a cancelled one blocks those behind.
The servicer bounds its own waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from roomkeeper.pulse import Pulse
from roomkeeper.servicer import Query, Servicer

#: A probe's output, or any other sign of life of the scheduler, must come within this.
PROBE_S = 20.0
#: Queries that wait for one answer at a time; the servicer has long given up on the oldest then.
WAITING_MAX = 1024

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
        self._kinds = {
            "is_paused": _Question(self._is_paused, servicer.answer),
            "probe": _Question(self._probe, servicer.answer),
        }

    def put(self, query: Query) -> None:
        """Asks; the servicer gets the answer when there is one."""
        self._kinds[query.kind].put(query.query_id)

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
