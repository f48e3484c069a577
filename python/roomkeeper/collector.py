"""Reading an AsyncLLM's outputs below asyncio, at each request's collector.

TokenSpeed's output loop does ``state.collector.put(output)`` and ``state.event.set()`` for every
request of a step, which wakes one task per request. Here both are taken over, request by request:
``put`` adds the output to the step that is being gathered, and ``set`` stays quiet until the
request is finished. So a step costs one call for all its requests, no output is merged with
another, and each request's task wakes once, at its end, when the engine's own code cleans up.

Engine's loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

#: Takes one output dict of the request it was made for.
Put = Callable[[dict[str, Any]], None]


class CollectorMissing(Exception):
    """The engine's request state has not the parts that the collector path needs."""


class _StepCollector:
    """In place of the request's collector. Keeps the last output for the engine's own clean-up."""

    __slots__ = ("_last", "_put")

    def __init__(self, put: Put) -> None:
        self._put = put
        self._last: dict[str, Any] | None = None

    def put(self, output: dict[str, Any], *, stream: bool = True) -> None:
        self._last = output
        self._put(output)

    def take(self) -> dict[str, Any] | None:
        output, self._last = self._last, None
        return output

    def has_pending(self) -> bool:
        return self._last is not None


class _QuietEvent:
    """In place of the request's event: wakes who waits only once the request is finished."""

    __slots__ = ("_event", "_state")

    def __init__(self, event: Any, state: Any) -> None:
        self._event = event
        self._state = state

    def set(self) -> None:
        if self._state.finished:
            self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return bool(self._event.is_set())

    def wait(self) -> Awaitable[Any]:
        waiter: Awaitable[Any] = self._event.wait()
        return waiter


def hook(state: Any, put: Put) -> None:
    """Takes over the outputs of a request. CollectorMissing: it cannot, and nothing has changed."""
    collector = getattr(state, "collector", None)
    event = getattr(state, "event", None)
    for owner, name, parts in (
        (collector, "collector", ("put", "take", "has_pending")),
        (event, "event", ("set", "clear", "is_set", "wait")),
    ):
        for part in parts:
            if not callable(getattr(owner, part, None)):
                raise CollectorMissing(f"{type(state).__name__} has no {name}.{part}()")
    if collector is None or not hasattr(state, "finished"):
        raise CollectorMissing(f"{type(state).__name__} has no finished")
    try:
        state.event = _QuietEvent(event, state)
        state.collector = _StepCollector(put)
    except AttributeError as error:
        if state.event is not event:
            state.event = event
        raise CollectorMissing(f"{type(state).__name__} cannot be hooked: {error}") from error
    if collector.has_pending():  # came before the hook
        state.collector.put(collector.take())
        state.event.set()


class Watched(Coroutine[Any, Any, None]):
    """A coroutine that is watched: ``after`` runs each time it waits, until it says it is done.

    A request is registered in the engine and its task waits for the first output within one step of
    the task, with nothing in between. So looking for the request's state right after each step
    finds it before any output can come.
    """

    def __init__(self, inner: Coroutine[Any, Any, None], after: Callable[[], bool]) -> None:
        self._inner = inner
        self._after: Callable[[], bool] | None = after

    def send(self, value: Any) -> Any:
        result = self._inner.send(value)
        if self._after is not None and self._after():
            self._after = None
        return result

    def throw(self, *args: Any) -> Any:
        result = self._inner.throw(*args)
        if self._after is not None and self._after():
            self._after = None
        return result

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()
