"""When a stub engine's next step is due, to some 50 us: uvloop's own timers count whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

TFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
TFD_TIMER_ABSTIME = 1
EXPIRATIONS_BYTES = 8


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class StepClock:
    """A timerfd on the running loop.  One coroutine waits at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._expired)

    async def until(self, at: float) -> None:
        """Return at this time of `time.monotonic`, at once where it has passed."""
        if at <= time.monotonic():
            await asyncio.sleep(0)
            return
        self._due.clear()
        spec = _Itimerspec(0, 0, int(at), int(at % 1 * 1e9))
        if self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._due.wait()

    def _expired(self) -> None:
        os.read(self._fd, EXPIRATIONS_BYTES)
        self._due.set()
