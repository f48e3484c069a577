"""What the command lines of demo and scenario share: flags, signals, what must be there."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from roomkeeper import wire
from roomkeeper.demo.plan import DemoError, GatewayKind
from roomkeeper.demo.progress import Progress

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL = 128
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLUMNS_MAX = 100


class Interrupted(BaseException):
    """A signal asks for the end. Not an Exception: nothing but the end may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"ended by {signal.Signals(self.number).name}; nothing is left running"


class UsageError(Exception):
    """A flag that cannot be; one line."""


class Parser(argparse.ArgumentParser):
    """One line for an error, without the usage; a flag there is not is named with a near one."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The flags. UsageError: one of them cannot be."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.0)
            raise UsageError(f"{unknown[0]}: there is no such flag; did you mean {near[0]}?")
        return given


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Signals that end a program raise Interrupted in it. Main thread only."""
    # Clients and children in one process: gRPC's fork handlers have nothing to do here.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """The first signal unwinds everything; later ones must not disturb the cleaning up."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def choose_gateway(wanted: str, progress: Progress) -> GatewayKind:
    """Which gateway ``--gateway`` stands for here. DemoError: it is not installed."""
    from roomkeeper.demo.gateway import installed_gateway

    if wanted == "builtin":
        return "builtin"
    if installed_gateway() == "smg":
        return "smg"
    if wanted == "smg":
        raise DemoError("the smg gateway is not installed; pip install smg==1.13.0")
    progress.step("the smg gateway is not installed: the built-in gateway takes its place")
    return "builtin"


def check_clients() -> None:
    """What this process itself imports, before anything is started."""
    try:
        importlib.import_module("grpc")
        importlib.import_module("google.protobuf")
        wire.descriptors_path()
    except ImportError as error:
        raise DemoError(
            f"{error.name} is missing; pip install grpcio protobuf, or run `make demo`"
        ) from None
    except FileNotFoundError as error:
        raise DemoError(str(error)) from None
