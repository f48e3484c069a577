"""What an engine saw, a JSON line each; the load client reads them."""

from __future__ import annotations

import json
import time
from typing import TextIO


def write_event(
    log: TextIO | None, event: str, rid: str, running: int, waiting: int, **fields: object
) -> None:
    """A line with the time in ns since the epoch; nothing without a log."""
    if log is None:
        return
    record = {
        "event": event,
        "rid": rid,
        "ns": time.time_ns(),
        "running": running,
        "waiting": waiting,
    }
    record.update(fields)
    log.write(json.dumps(record) + "\n")
