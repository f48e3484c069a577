"""An engine's start, which blocks for minutes: a signal ends it, and so does a process that dies.

The engine starts on the main thread, in code that is not ours and waits for reports that may never
come. So signals raise there, and the watch's thread ends the whole process when a scheduler is
gone. Once the engine is up, ``hand_over`` passes both to who serves it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from roomkeeper.enginewatch import EngineWatch, end_processes
from roomkeeper.errors import one_line

__all__ = ["ENGINE_GRACE_S", "EXIT_ENGINE", "EndStart", "EngineStart", "ExitGuard"]

EXIT_ENGINE = 1

#: The engine's processes may clean up so long before they are killed.
ENGINE_GRACE_S = 5.0
#: A shutdown may take so long besides its drain; then the process ends anyway.
STUCK_S = 30.0

_log = logging.getLogger("roomkeeper")

Started = TypeVar("Started")


class EndStart(BaseException):
    """Raised by a signal's handler in the midst of the start. Not for the engine to catch."""


class ExitGuard:
    """Ends the process, and its children, should a shutdown get stuck."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def arm(self, code: int, drain_s: float = 0.0) -> None:
        """The process has ended ``STUCK_S`` after its drain, with ``code`` if need be. Once."""
        if self._timer is None:
            after_s = drain_s + STUCK_S
            self._timer = threading.Timer(after_s, _end_stuck, (code, after_s))
            self._timer.daemon = True
            self._timer.start()


class EngineStart:
    """One start. Main thread, but for what the watch does."""

    def __init__(self, doing: str = "while the engine starts") -> None:
        self.guard = ExitGuard()
        self.watch = EngineWatch(self._exited)
        #: A scheduler has failed, rather than somebody having asked for the end.
        self.failed = False
        self._doing = doing
        self._asked = False
        #: Held for the step to serving, which the watch must not see half done.
        self._phase = threading.Lock()
        self._on_exit: Callable[[str], None] | None = None

    def run(self, start: Callable[[], Started]) -> Started | int:
        """What ``start`` gives, or the exit code when there is no engine to serve."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        # A scheduler that fails tells its parent so; unhandled, it would end us without a word.
        signal.signal(signal.SIGUSR1, self._told_of_failure)
        self.watch.start()
        try:
            return start()
        except EndStart:
            return self.give_up(EXIT_ENGINE if self.failed else 0)
        except Exception as error:
            why = f"the engine did not start: {one_line(error)}"
            return self.give_up(EXIT_ENGINE, why, error)

    def hand_over(self, on_exit: Callable[[str], None]) -> None:
        """The engine is up: ``on_exit`` is told, by the watch's thread, of a process that ends."""
        self.watch.freeze()
        with self._phase:
            self._on_exit = on_exit

    def give_up(self, code: int, line: str = "", error: BaseException | None = None) -> int:
        """Says so, and ends what has been started."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        self.guard.arm(code)
        self.watch.stop()
        if line:
            _log.error("%s", line)
        if error is not None:
            _log.debug("where it was raised", exc_info=error)
        end_processes(ENGINE_GRACE_S)
        return code

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self.guard.arm(0)
        if not self._asked:
            self._asked = True
            _log.info("%s %s: ending", signal.Signals(number).name, self._doing)
        raise EndStart

    def _told_of_failure(self, _number: int, _frame: FrameType | None) -> None:
        self.guard.arm(EXIT_ENGINE)
        self.failed = True
        _log.error("the engine did not start: a scheduler process has failed; its log says why")
        raise EndStart

    def _exited(self, pid: int, code: int) -> None:
        """The watch's thread."""
        what = f"engine process {pid} has ended with exit code {code}"
        with self._phase:
            if self._on_exit is not None:
                self._on_exit(what)
                return
            # The main thread waits in the engine's launcher for a report that will never come.
            _log.error("%s %s; its log says why", what, self._doing)
            end_processes(0.0)
            _exit_now(EXIT_ENGINE)


def _end_stuck(code: int, after_s: float) -> None:
    _log.error("the shutdown has not come to its end within %g s; it is cut short", after_s)
    end_processes(0.0)
    _exit_now(code)


def _exit_now(code: int) -> Any:
    for handler in _log.handlers:
        handler.flush()
    sys.stdout.flush()
    os._exit(code)
