"""Makes the interpreter of a server unavailable on command, alike for every server measured.

SIGUSR1 starts, SIGUSR2 ends it. In between the main thread, which runs the event loop where there is one, holds the
GIL `HELD_MS` at a time and lets go of it for a moment: other Python threads get a word in, the loop does not.
"""

from __future__ import annotations

import ctypes
import signal
import time

HELD_MS = 50
LIMIT_S = 60.0
FREE_S = 0.0005

_stuck = False


def install() -> None:
    """Main thread only. Handlers of `signal`, so that they come between any two bytecodes, also in a loop."""
    signal.signal(signal.SIGUSR1, _hold)
    signal.signal(signal.SIGUSR2, _let_go)


def _hold(_number: int, _frame: object) -> None:
    global _stuck
    _stuck = True
    sleep_with_gil = ctypes.PyDLL(None).usleep
    until = time.monotonic() + LIMIT_S
    while _stuck and time.monotonic() < until:
        sleep_with_gil(HELD_MS * 1000)
        time.sleep(FREE_S)


def _let_go(_number: int, _frame: object) -> None:
    global _stuck
    _stuck = False
