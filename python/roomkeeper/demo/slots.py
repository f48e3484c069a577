"""The decode's slots over time, read from the trace of the stand-in (see standin/trace.py).

A room takes the lowest free lane when the decode's scheduler admits it and leaves it when the
request is gone. Which slot it is in truth does not matter, and no engine numbers them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from roomkeeper.demo.plan import Hold


@dataclasses.dataclass
class _Open:
    """A room that holds a slot."""

    lane: int
    start_s: float
    kv_s: float | None = None


class Slots:
    """Follows the trace of one decode. ``read`` as often as you like. One thread."""

    def __init__(self, trace: Path) -> None:
        self.holds: list[Hold] = []
        self._trace = trace
        self._offset = 0
        self._open: dict[str, _Open] = {}

    def read(self) -> None:
        """Takes in what has been written since the last time."""
        if not self._trace.exists():
            return
        with self._trace.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            self._take(event["event"], event["id"], event["t"])

    def _take(self, event: str, request: str, at_s: float) -> None:
        if event == "admitted":
            self._open[request] = _Open(self._free_lane(), at_s)
        elif request in self._open:
            room = self._open[request]
            if event == "kv":
                room.kv_s = at_s
            elif event == "gone":
                del self._open[request]
                self.holds.append(Hold(room.lane, room.start_s, room.kv_s, at_s))

    def _free_lane(self) -> int:
        taken = {room.lane for room in self._open.values()}
        return next(lane for lane in range(len(taken) + 1) if lane not in taken)

    @property
    def working(self) -> int:
        """Slots whose KV has come."""
        return sum(room.kv_s is not None for room in self._open.values())

    @property
    def waiting(self) -> int:
        """Slots that wait for KV."""
        return len(self._open) - self.working

    def since(self, zero_s: float) -> list[Hold]:
        """All holds, those that go on included, in seconds since ``zero_s``."""
        going_on = [Hold(r.lane, r.start_s, r.kv_s, None) for r in self._open.values()]
        return [
            dataclasses.replace(
                hold,
                start_s=hold.start_s - zero_s,
                kv_s=None if hold.kv_s is None else hold.kv_s - zero_s,
                end_s=None if hold.end_s is None else hold.end_s - zero_s,
            )
            for hold in sorted([*self.holds, *going_on], key=lambda hold: hold.start_s)
        ]
