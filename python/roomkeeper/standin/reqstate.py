"""A live request in the frontend, with the parts of AsyncLLM's ``ReqState``. Engine's loop only."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from roomkeeper.engine import EngineRequest
from roomkeeper.standin.args import StandinArgs
from roomkeeper.standin.messages import LoadSnapshot, Output
from roomkeeper.standin.tokens import alternatives_at, logprob_at

_LOGPROB_LISTS = ("output_token_logprobs", "output_top_logprobs")


class FlushResult(NamedTuple):
    """Whether the caches are empty now."""

    success: bool


class LoadSnapshotStore:
    """The newest load of each rank."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[float, LoadSnapshot]] = {}

    def accept(self, snapshot: LoadSnapshot) -> None:
        """Keeps it."""
        self._newest[snapshot.dp_rank] = (time.monotonic(), snapshot)

    def fresh_snapshots(self) -> list[LoadSnapshot]:
        """In order of rank, without those that are too old to be true."""
        now = time.monotonic()
        return [
            snapshot
            for _, (at, snapshot) in sorted(self._newest.items())
            if now - at <= snapshot.valid_for_ms / 1e3
        ]


class OutputCollector:
    """Holds the outputs that the request's coroutine has not taken, merged into one."""

    def __init__(self, *, deltas: bool) -> None:
        self._deltas = deltas
        self._pending: dict[str, Any] | None = None

    def put(self, output: dict[str, Any], *, stream: bool) -> None:
        """Adds an output. What is cumulative replaces what is there."""
        before = self._pending
        if before is not None and stream and self._deltas:
            meta = dict(output["meta_info"])
            for name in _LOGPROB_LISTS:
                if name in meta:
                    meta[name] = before["meta_info"][name] + meta[name]
            ids = before["output_ids"] + output["output_ids"]
            output = {**output, "output_ids": ids, "meta_info": meta}
        self._pending = output

    def take(self) -> dict[str, Any] | None:
        """What is there, once."""
        output, self._pending = self._pending, None
        return output

    def has_pending(self) -> bool:
        """Whether ``take`` gives anything."""
        return self._pending is not None


class ReqState:
    """See the top of the file. ``event`` is set after each output."""

    def __init__(self, obj: EngineRequest, rank: int, args: StandinArgs) -> None:
        deltas = args.stream_output and obj.stream
        self.obj = obj
        self.rank = rank
        self.event: Any = asyncio.Event()
        self.collector: Any = OutputCollector(deltas=deltas)
        self.finished = False
        self._args = args
        self._deltas = deltas
        self._created_at = time.monotonic()
        self._tokens: list[int] = []
        #: By name, of all tokens so far: made once each, since outputs repeat them.
        self._logprobs: dict[str, list[Any]] = {}

    def add(self, output: Output) -> None:
        """What the scheduler says of it: put into the collector, then the event is set."""
        self._tokens += output.tokens
        if self.obj.return_logprob:
            self._add_logprobs(len(self._tokens) - len(output.tokens))
        self.finished = output.finish_reason is not None
        begin = len(self._tokens) - len(output.tokens) if self._deltas else 0
        made = {
            "text": "",
            "output_ids": self._tokens[begin:],
            "meta_info": self._meta(output, begin),
            "output_extra_info": {},
        }
        self.collector.put(made, stream=self.obj.stream)
        self.event.set()

    def _meta(self, output: Output, begin: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.obj.rid,
            "finish_reason": output.finish_reason,
            "prompt_tokens": len(self.obj.input_ids),
            "completion_tokens": output.completion_tokens,
            "cached_tokens": output.cached_tokens,
            "weight_version": self._args.weight_version,
        }
        if self.finished:
            meta["e2e_latency"] = time.monotonic() - self._created_at
        if self.obj.return_logprob:
            meta.update({name: items[begin:] for name, items in self._logprobs.items()})
        return meta

    def _add_logprobs(self, begin: int) -> None:
        """Of the tokens from ``begin`` on. The second list only when alternatives are asked for."""
        positions = list(enumerate(self._tokens[begin:], begin))
        chosen = self._logprobs.setdefault("output_token_logprobs", [])
        chosen += [(logprob_at(i), token, None) for i, token in positions]
        count = self.obj.top_logprobs_num
        if count > 0:
            others = self._logprobs.setdefault("output_top_logprobs", [])
            others += [
                [
                    (logprob, other, None)
                    for logprob, other in alternatives_at(i, token, count, self._args.vocab_size)
                ]
                for i, token in positions
            ]
