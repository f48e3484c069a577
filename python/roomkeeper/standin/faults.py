"""Faults that a prompt can ask for, so that tests reach them from outside. Only with ``--faults``.

Such a prompt is ``[marker, kind, argument, …]``, the marker being the last id of the vocabulary. It
is served like any other prompt, except for what is asked. See the table in docs/standin.md.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from roomkeeper.standin.messages import Misbehaviour
from roomkeeper.standin.request import Kind

ABORT = 1
SILENT = 2
HOLD_GIL = 3
BLOCK_LOOP = 4
RAISE = 5

_STATUSES_BELOW = 600
_TENTHS_MAX = 600


class Fault(NamedTuple):
    """One line of the table."""

    name: str
    #: Arguments, as a person reads them, with the value one must stay below.
    arguments: tuple[tuple[str, int], ...]


FAULTS = {
    ABORT: Fault("abort", (("status", _STATUSES_BELOW), ("after_tokens", 1 << 31))),
    SILENT: Fault("silent", ()),
    HOLD_GIL: Fault("hold the GIL", (("tenths of a second", _TENTHS_MAX + 1),)),
    BLOCK_LOOP: Fault("block the loop", (("tenths of a second", _TENTHS_MAX + 1),)),
    RAISE: Fault("raise", ()),
}


class EngineTripped(RuntimeError):
    """What RAISE raises in ``generate_request``."""


def prompt(vocab_size: int, kind: int, *arguments: int) -> list[int]:
    """A prompt that asks for a fault."""
    return [vocab_size - 1, kind, *arguments]


def read(ids: Sequence[int], vocab_size: int) -> tuple[int, tuple[int, ...]] | None:
    """The fault a prompt asks for, with its arguments; None for an ordinary prompt.

    ValueError, one line, for a fault that there is not.
    """
    if len(ids) < 2 or ids[0] != vocab_size - 1:
        return None
    kind = ids[1]
    fault = FAULTS.get(kind)
    if fault is None:
        known = ", ".join(f"{number} ({f.name})" for number, f in FAULTS.items())
        raise ValueError(f"there is no fault {kind}; known are {known}")
    arguments = tuple(ids[2 : 2 + len(fault.arguments)])
    if len(arguments) < len(fault.arguments):
        wanted = ", ".join(name for name, _ in fault.arguments)
        raise ValueError(f"fault {kind} ({fault.name}) needs {wanted} after it in the prompt")
    for value, (name, below) in zip(arguments, fault.arguments, strict=True):
        if not 0 <= value < below:
            raise ValueError(
                f"fault {kind} ({fault.name}): {name} is {value}; give one below {below}"
            )
    return kind, arguments


def misbehaviour(kind: int, arguments: tuple[int, ...]) -> Misbehaviour | None:
    """The scheduler's part in a fault, if it has one."""
    if kind == ABORT:
        status, after_tokens = arguments
        return Misbehaviour(Kind.ABORT.value, status, after_tokens)
    if kind == SILENT:
        return Misbehaviour(Kind.SILENT.value)
    return None


def commit(kind: int, arguments: tuple[int, ...]) -> None:
    """The frontend's part, on the engine's loop."""
    actions: dict[int, Callable[[], None]] = {
        HOLD_GIL: lambda: _hold_gil(arguments[0] / 10),
        BLOCK_LOOP: lambda: _block_loop(arguments[0] / 10),
        RAISE: _raise,
    }
    if action := actions.get(kind):
        action()


def _hold_gil(seconds: float) -> None:
    """A thread makes a call that never gives the GIL back before its end."""
    sleep = ctypes.PyDLL(None).usleep
    threading.Thread(target=sleep, args=(int(seconds * 1e6),), name="holds the GIL").start()


def _block_loop(seconds: float) -> None:
    """Other threads run, the loop does not. Not now but with the loop's next turn."""
    asyncio.get_running_loop().call_soon(time.sleep, seconds)


def _raise() -> None:
    raise EngineTripped("the prompt asked for an exception in the engine's frontend")
