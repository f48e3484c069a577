"""Whether the engine's scheduler, a process of its own, is alive, seen from its frontend's loop.

Engine's loop only; nothing here asks the engine anything.
"""

from __future__ import annotations

from typing import Any


class Pulse:
    """Compares what the scheduler has moved since the last look.

    Idle is not dead: without live requests the answer is yes. With some, something must have moved:
    an output, ``last_receive_tstamp``, or the sequence of a rank's load snapshot, which the
    scheduler pushes as a heartbeat. An engine that shows no such heartbeat may wait in silence, for
    KV of a peer, say, so nothing is concluded there.
    """

    def __init__(self, async_llm: Any) -> None:
        self._llm = async_llm
        self._outputs = 0
        self._replies = 0
        self._marks: dict[int, tuple[Any, Any]] = {}
        self._last: tuple[Any, ...] | None = None

    def output(self) -> None:
        """Outputs came."""
        self._outputs += 1

    def reply(self) -> None:
        """The scheduler has answered a question."""
        self._replies += 1

    def alive(self, live: bool) -> bool:
        """Whether anything moved since the last call, or nothing needs to (``live`` is False)."""
        heartbeat = self._heartbeat()
        now = (
            self._outputs,
            self._replies,
            getattr(self._llm, "last_receive_tstamp", None),
            tuple(sorted(self._marks.items())),
        )
        moved = now != self._last
        self._last = now
        return moved or not live or not heartbeat

    def _heartbeat(self) -> bool:
        """Notes the newest snapshots. Whether the engine has a heartbeat that we have seen."""
        store = getattr(self._llm, "load_snapshot_store", None)
        if store is None:
            return self._replies > 0
        for snapshot in store.fresh_snapshots():
            sequence = getattr(snapshot, "sequence", None)
            if sequence is not None:
                mark = (getattr(snapshot, "epoch", None), sequence)
                self._marks[int(snapshot.dp_rank)] = mark
        return bool(self._marks)
