"""The servicer, typed. One C server in this process; this class is its handle.

Life: make it, ``listen`` (once or more), ``start``, …, ``drain``, ``wait_idle``, ``stop``.
Several in one process are fine. In a forked child every method raises RuntimeError.

Threads: its own threads serve the calls and never take the GIL. Requests for the engine queue up
and make ``fileno()`` readable; one thread, the engine's loop, calls ``take`` then. Every other
method may be called from any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from roomkeeper import _bridge
from roomkeeper._bridge import Abort, Choice, Encode, Query, ReleaseRoom, Submission
from roomkeeper.config import Config
from roomkeeper.engine import ALL_CHOICES, EngineLoad, EngineState, WorkerInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ALL_CHOICES",
    "Abort",
    "Choice",
    "Command",
    "Encode",
    "Query",
    "ReleaseRoom",
    "Servicer",
    "Submission",
]

#: What ``take`` gives: a request to generate, to end one, a question, a room to end, an item to
#: encode.
Command: TypeAlias = Submission | Abort | Query | ReleaseRoom | Encode


class Servicer:
    """A gRPC server that keeps the rooms of one engine.

    ``release_agent``: ``take`` also gives ``ReleaseRoom``, to be answered by ``released``; without
    it, rooms end by ``Abort`` alone. Raises ServicerError or ConfigError, one line; TypeError or
    ValueError for a field of ``info`` that is none, or not of its type.
    """

    def __init__(
        self, info: WorkerInfo, config: Config | None = None, *, release_agent: bool = False
    ) -> None:
        self.info = info
        self.config = config if config is not None else Config()
        self._core = _bridge.Servicer(self.config.core, info.fields(), release_agent)
        _alive.add(self)

    @property
    def window(self) -> int:
        """Slots of the window that is enforced, all ranks together; 0: nothing is gated."""
        ranks = max(self.info.ranks, 1)
        configured = int(self.config.number("window"))
        if configured >= 0:
            return configured * ranks
        return max(self.info.window // ranks, 1) * ranks if self.info.window else 0

    # -- life --

    def listen(self, address: str) -> int:
        """Binds "host:port", "[v6]:port" or "unix:/path", before ``start``. Port 0: any free one.

        Returns the port, 0 for unix. Raises ServicerError when it cannot be bound.
        """
        return self._core.listen(address)

    def listen_link(self, address: str) -> int:
        """Where a prefill takes room links: TCP, a listener of their own, before ``start``.

        Without a token or mutual TLS an address that other hosts can reach becomes 127.0.0.1, with
        a warning. Returns the port. Raises ServicerError when it cannot be bound, or the link is
        off.
        """
        return self._core.listen_link(address)

    def listen_metrics(self, address: str) -> int:
        """Where metrics are served by HTTP, at /metrics, from ``start`` on. Returns the port.

        Raises ServicerError when it cannot be bound.
        """
        return self._core.listen_metrics(address)

    def metrics(self) -> str:
        """The metrics as Prometheus text. Any thread."""
        return self._core.metrics()

    def start(self) -> None:
        """Serves. NOT_SERVING until ``state("ready")``."""
        self._core.start()

    def drain(self) -> None:
        """NOT_SERVING, new calls UNAVAILABLE, who waits is refused, who runs may finish.

        Returns at once.
        """
        self._core.drain()

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether no call was open within ``timeout_s``. Lets other threads run meanwhile.

        Blocks: call it from a thread of its own when the engine's loop must go on.
        """
        return self._core.wait_idle(max(0, round(timeout_s * 1000)))

    def stop(self) -> None:
        """Ends what is open with UNAVAILABLE, stops all threads, closes all listeners.

        Bounded; again is fine. Lets other threads run meanwhile. No new commands come afterwards.
        """
        self._core.stop()

    def open_calls(self) -> int:
        """Open streams and calls."""
        return self._core.open_calls()

    def counts(self) -> dict[str, Any]:
        """The ledger's numbers at this moment.

        ``legs`` (live ones by state), ``held``, ``tombstones``, ``announced``, ``arrived``,
        ``admitted``, ``refused`` and ``ended`` (by cause), ``stranded``, ``tombstones_dropped``,
        ``draining``, ``open_calls``, and ``ranks``: per rank ``window``, ``held_slots``,
        ``releasing``, ``waiting``, ``waiting_slots``, ``running``, ``claimed_tokens``,
        ``kv_tokens``, ``oldest_releasing_ms``, ``oldest_waiting_ms``.
        """
        return self._core.counts()

    # -- down: what the engine is asked --

    def fileno(self) -> int:
        """An eventfd that is readable while commands wait; for ``loop.add_reader``."""
        return self._core.fileno()

    def take(self) -> list[Command]:
        """All commands so far, oldest first; makes ``fileno()`` quiet. Engine's thread only."""
        return self._core.take()

    # -- up: what the engine says --

    def push(self, step: Iterable[tuple[int, int, Any, Any, int, int, int]]) -> None:
        """What one engine step has produced; its messages go out together.

        A list of (handle, choice, token_ids, finish, prompt_tokens, completion_tokens,
        cached_tokens). ``token_ids`` are the new ones: ints, or bytes of native uint32. ``finish``
        is None while more is to come, else "stop", "length", "abort" or a dict as TokenSpeed's
        ({"type": "stop", "matched": 2}, {"type": "abort", "message": …, "status_code": 503}).
        Outputs of legs that are over are dropped. Raises BadOutputError for those it cannot read,
        after the others went through.
        """
        self._core.push(step)

    def push_tokens(
        self,
        handles: Buffer,
        token_ids: Buffer,
        ends: Iterable[tuple[int, Any]] = (),
        *,
        choices: Buffer | None = None,
        counts: Buffer | None = None,
        logprobs: Buffer | None = None,
    ) -> None:
        """As ``push``, with a step's outputs in arrays: a row of each is one output.

        The cheapest way in, for an engine that has the tokens of a step in one array. ``handles``:
        native uint64, as ``take()`` gave them. ``token_ids``: native uint32, the new ones of row
        after row; ``counts`` of them each (native uint32, 0 is fine), or one each without it.
        ``choices``: native uint32; without it, choice 0. ``logprobs``: native float32, one a token
        (any number for rows whose request wants none); without it, none are told. Any object with
        a buffer will do: bytes, ``array.array``, a numpy array. ``ends``: a (row, finish) for each
        output that is the last of its choice, with finish as in ``push``. Prompt and completion
        tokens are counted here, and no cached tokens are reported.

        Raises TypeError or ValueError for arrays that do not fit together, and pushes nothing
        then; BadOutputError for ends it cannot read, after the others went through.
        """
        self._core.push_tokens(handles, token_ids, ends, choices, counts, logprobs)

    def push_asyncllm(self, step: Iterable[tuple[Choice, dict[str, Any]]]) -> None:
        """As ``push``, with TokenSpeed's output dicts. ``Choice`` keeps what has been pushed.

        Of ``output_ids`` the new ones are the last ``completion_tokens - pushed_tokens``, whether
        the engine gives all or only the new ones, and whatever stands before them.
        """
        self._core.push_asyncllm(step)

    def aborted(self, handle: int, choice: int = ALL_CHOICES) -> None:
        """The abort of this choice, or of all, has been handed to the engine's scheduler."""
        self._core.aborted(handle, choice)

    def released(self, handle: int) -> None:
        """The engine holds nothing of this leg any more."""
        self._core.released(handle)

    def beat(self) -> None:
        """The engine is alive. At least every second; a push counts too."""
        self._core.beat()

    def loads(self, loads: Iterable[EngineLoad]) -> None:
        """The latest load of each rank; replaces what was there."""
        self._core.loads(loads)

    def state(self, name: EngineState, why: str = "") -> None:
        """One of "starting", "ready", "stalled" and "dead"; the last is final."""
        self._core.state(name, why)

    def set_weight_version(self, version: str) -> None:
        """Reported by GetModelInfo from now on."""
        self._core.set_weight_version(version)

    def answer(self, query_id: int, value: object) -> None:
        """Answers a ``Query``: a bool or a dict, as its kind has it, or None when it failed.

        An ``Encode`` is answered likewise: ``success`` (bool), or ``code`` and ``message``.

        Unknown ids are ignored.
        """
        self._core.answer(query_id, value)


_alive: weakref.WeakSet[Servicer] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """An interpreter that ends without ``stop`` must not leave threads in a dying process."""
    for servicer in list(_alive):
        with contextlib.suppress(RuntimeError):  # a forked child: the parent's servicer is not ours
            servicer.stop()
