"""A plain first-come scheduler, for where TokenSpeed's is not installed. See plan.Scheduling.

It has the window, the line, the chunks and the PD events. It is simpler in two things, both on the
safe side: a request claims pages for its prompt and all its output at once, and there is no prefix
cache.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

from roomkeeper.standin.plan import PAGE_TOKENS, Event, EventKind, Extend, Limits, Plan


class _State(enum.Enum):
    BOOTSTRAPPING = enum.auto()  # PD: waits for its peer, takes no place
    WAITING = enum.auto()  # in line
    PREFILLING = enum.auto()  # in the window: the prompt is being computed
    COMPUTED = enum.auto()  # prefill: the prompt is done, nobody has been told to send it
    TRANSFERRING = enum.auto()  # in the window: KV is coming (decode) or going (prefill)
    DECODING = enum.auto()  # in the window


_OUTSIDE = (_State.BOOTSTRAPPING, _State.WAITING)


@dataclasses.dataclass
class _Request:
    request_id: str
    prompt_tokens: int
    #: KV pages it claims when it enters the window.
    pages: int
    state: _State
    #: Prompt tokens computed.
    computed: int = 0
    #: Prefill: the first token.
    token: int = -1


class FirstComeScheduling:
    """See plan.Scheduling."""

    name = "builtin first-come"

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: dict[str, _Request] = {}  # in order of arrival
        self._on_event: dict[EventKind, Callable[[_Request, int | None], None]] = {
            EventKind.BOOTSTRAPPED: self._bootstrapped,
            EventKind.REMOTE_PREFILL_DONE: self._remote_prefill_done,
            EventKind.EXTENDED: self._extended,
        }

    def submit(self, request_id: str, prompt: list[int], max_new_tokens: int) -> None:
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is known already")
        output = 1 if self._limits.role == "prefill" else max_new_tokens
        pages = -(-(len(prompt) + output) // PAGE_TOKENS)
        state = _State.WAITING if self._limits.role == "null" else _State.BOOTSTRAPPING
        self._requests[request_id] = _Request(request_id, len(prompt), pages, state)

    # -- plan --

    def plan(self) -> Plan:
        plan = Plan([], [], [], [], [])
        for request in self._requests.values():
            if request.state is _State.COMPUTED:
                request.state = _State.TRANSFERRING
                plan.leaving.append((request.request_id, request.token))
        self._admit(plan)
        left = self._limits.chunk_tokens
        for request in self._requests.values():
            if request.state is _State.DECODING:
                plan.decodes.append(request.request_id)
            elif request.state is _State.PREFILLING and left > 0:
                end = min(request.prompt_tokens, request.computed + left)
                left -= end - request.computed
                chunk = Extend(request.request_id, request.computed, end, request.prompt_tokens)
                plan.extends.append(chunk)
                request.computed = end
        return plan

    def _admit(self, plan: Plan) -> None:
        """Strictly in order: who does not fit holds up those behind."""
        places = self._limits.window - self.running()
        pages = self._limits.pages - self.active_pages()
        for request in self._requests.values():
            if request.state is not _State.WAITING:
                continue
            if places <= 0 or request.pages > pages:
                return
            places -= 1
            pages -= request.pages
            if self._limits.role == "decode":
                request.state = _State.TRANSFERRING
                plan.admitted.append(request.request_id)
            else:
                request.state = _State.PREFILLING

    # -- events --

    def advance(self, events: Iterable[Event]) -> None:
        for event in events:
            request = self._requests.get(event.request_id)
            if request is None:
                continue
            handler = self._on_event.get(event.kind)
            if handler is None:  # over, one way or another
                del self._requests[event.request_id]
            else:
                handler(request, event.token)

    def _bootstrapped(self, request: _Request, _token: int | None) -> None:
        if request.state is _State.BOOTSTRAPPING:
            request.state = _State.WAITING

    def _remote_prefill_done(self, request: _Request, _token: int | None) -> None:
        if request.state is not _State.TRANSFERRING:
            raise RuntimeError(f"the KV of {request.request_id!r} came before its admission")
        request.state = _State.DECODING

    def _extended(self, request: _Request, token: int | None) -> None:
        if request.state is not _State.PREFILLING or token is None:
            return
        if self._limits.role == "prefill":
            request.state = _State.COMPUTED
            request.token = token
        else:
            request.state = _State.DECODING

    # -- counts --

    def running(self) -> int:
        return sum(r.state not in _OUTSIDE for r in self._requests.values())

    def waiting(self) -> int:
        return sum(r.state in _OUTSIDE for r in self._requests.values())

    def active_pages(self) -> int:
        return sum(r.pages for r in self._requests.values() if r.state not in _OUTSIDE)

    def total_pages(self) -> int:
        return self._limits.pages

    def longest_request(self) -> int:
        return self._limits.pages * PAGE_TOKENS

    def clear_cache(self) -> bool:
        return True

    def drain_kv_events(self) -> list[Any]:
        return []
