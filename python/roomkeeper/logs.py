"""Python's log lines of the package, in the shape of the core's, so that a worker has one log.

Only the logger "roomkeeper" is touched: the engine sets up the root logger as it likes.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys

from roomkeeper.config import Config

__all__ = ["set_up"]

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Lines(logging.Formatter):
    """`2026-12-02T05:41:01.000Z info roomkeeper: message`, or the same as a JSON object."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"
        level = "error" if record.levelno > logging.ERROR else record.levelname.lower()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            line = {"time": stamp, "level": level, "message": message}
            if trace:
                line["trace"] = trace
            return json.dumps(line)
        text = f"{stamp} {level} roomkeeper: " + message.replace("\n", "\\n")
        return f"{text}\n{trace}" if trace else text


def set_up(config: Config | None = None) -> logging.Logger:
    """The package's logger as the configuration wants it; with defaults before there is one."""
    log = logging.getLogger("roomkeeper")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(config is not None and config["log_format"] == "json"))
    log.handlers = [handler]
    log.setLevel(_LEVELS[config["log_level"] if config is not None else "info"])
    log.propagate = False
    return log
