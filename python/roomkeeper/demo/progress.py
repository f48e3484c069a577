"""The line that tells how far the demo is; redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

#: Elsewhere than on a terminal a line comes at most so often.
QUIET_S = 5.0
#: A terminal is redrawn at most so often.
REDRAW_S = 0.1
CLEAR = "\r\x1b[K"


class Progress:
    """One line on stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._last = 0.0
        self._drawn = False

    def update(self, text: str) -> None:
        """Shows where it is now; leaves out what comes too fast."""
        now = time.monotonic()
        if now - self._last < (REDRAW_S if self._terminal else QUIET_S):
            return
        self._last = now
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            self._write(CLEAR + text[: columns - 1])
            self._drawn = True
        else:
            self._write(text + "\n")

    def step(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(text + "\n")
        # The next update says something new: it may come at once on a terminal, later elsewhere.
        self._last = 0.0 if self._terminal else time.monotonic()

    def clear(self) -> None:
        """Takes the redrawn line away, so that something else can be written."""
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
