"""``--trace FILE``: what becomes of the requests in the scheduler process, a JSON line an event.

``t`` is in seconds of the machine's monotonic clock, so the traces of several workers, and a
client's own times on the same machine, can be laid side by side. Events: ``arrived``; ``admitted``,
a decode has given the room a slot and asked for its KV; ``kv``, which has come; ``gone``, with
whatever the request held. ``admitted`` and then ``gone`` without ``kv`` is a slot held in vain.

Lines are appended whole, so the ranks of a worker may share a file, and it can be read meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Literal

from roomkeeper.errors import RoomkeeperError
from roomkeeper.standin.request import Request

TraceEvent = Literal["arrived", "admitted", "kv", "gone"]


class TraceError(RoomkeeperError, OSError):
    """A trace that cannot be written; one line."""


def start_trace(path: str) -> None:
    """Empties the file, before the ranks append to it. TraceError: it cannot be written."""
    if not path:
        return
    try:
        Path(path).write_bytes(b"")
    except OSError as error:
        raise TraceError(
            f"--trace is {path}: {error.strerror}; name a file that can be written"
        ) from error


class Trace:
    """The trace of one rank; without a path it writes nothing. One thread."""

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        self._file = -1
        if path:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o644)

    def write(self, event: TraceEvent, request: Request) -> None:
        """One line."""
        if self._file < 0:
            return
        line = {
            "t": round(time.monotonic(), 6),
            "event": event,
            "rank": self._rank,
            "id": request.id,
            "room": request.room,
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")
