"""What an engine was told to abort, a JSON line each; the load client reads them."""

from __future__ import annotations

import json
import time
from typing import TextIO


def log_abort(log: TextIO | None, rid: str) -> None:
    """A line with the time in ns since the epoch; nothing without a log."""
    if log is not None:
        log.write(json.dumps({"rid": rid, "ns": time.time_ns()}) + "\n")
