"""Two minutes without a word: a call that does not stream, a channel that pings, a server that waits.

Runs in a process of its own, beside all other tests, and says in the end what has happened.
"""

from __future__ import annotations

import sys

from harness.process import PROGRAMS, Program

SECONDS = 120


class Silence:
    """The run. ``look`` waits for its end and judges it."""

    def __init__(self) -> None:
        command = [sys.executable, str(PROGRAMS / "silence.py"), str(SECONDS)]
        self._program = Program(command)

    def look(self) -> None:
        code = self._program.wait(SECONDS + 60)
        said = self._program.output()
        assert code == 0, said
        for line in (
            "call that does not stream: OK [1, 2, 3]",
            "call that streams: OK [1, 2, 3]",
            "connection without a call: no GOAWAY, 12 of 12 pings answered",
        ):
            assert line in said, said

    def close(self) -> None:
        self._program.close()
