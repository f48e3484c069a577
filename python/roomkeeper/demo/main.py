"""``python -m roomkeeper demo``: flags, the order of the runs, and what is printed where.

Progress goes to stderr, the report to stdout, and the last lines of stdout are for programs: one
JSON object a run. Exit code 0 when all runs were made, whatever came of them; 1 when one could not
be made, 2 for a wrong flag, 128 + signal when it was interrupted. Nothing is left running.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from roomkeeper import wire
from roomkeeper.demo.plan import (
    AFTER,
    BEFORE,
    IN_LIFE,
    INGREDIENTS,
    DemoError,
    GatewayKind,
    Result,
    Workload,
)
from roomkeeper.demo.ports import GATEWAYS_MAX
from roomkeeper.demo.progress import Progress

EXIT_FAILED = 1
EXIT_USAGE = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLUMNS_MAX = 100
PICTURE = "slots.svg"
DEFAULT_OUT = Path("build") / "demo"


class Interrupted(BaseException):
    """A signal asks the demo to end. Not an Exception: nothing but the end may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class UsageError(Exception):
    """A flag that cannot be; one line."""


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(argv: list[str]) -> int:
    """The exit code, see the top of the file."""
    # Clients and children in one process: gRPC's fork handlers have nothing to do here.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    progress = Progress()
    try:
        options = _parse(argv)
    except UsageError as error:
        print(f"roomkeeper demo: {error}", file=sys.stderr)
        return EXIT_USAGE
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        _run(options, progress)
    except DemoError as error:
        progress.clear()
        print(f"roomkeeper demo: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Interrupted as signal_:
        progress.clear()
        name = signal.Signals(signal_.number).name
        print(f"roomkeeper demo: ended by {name}; nothing is left running", file=sys.stderr)
        return 128 + signal_.number
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """The first signal unwinds everything; later ones must not disturb the cleaning up."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="roomkeeper demo",
        allow_abbrev=False,
        description="A burst wider than the decode's window, through a gateway, to a pair of "
        "stand-in workers: first as they are served without rooms, then with them.",
    )
    parser.add_argument(
        "--gateway",
        choices=("auto", "smg", "builtin"),
        default="auto",
        help="auto: smg where it is installed, else the built-in one (default: auto)",
    )
    parser.add_argument(
        "--ingredients",
        action="store_true",
        help="two more runs: the window's report alone, and rooms alone",
    )
    parser.add_argument(
        "--real-deadlines",
        action="store_true",
        help="deadlines of 120 s and 300 s as in life, not 1/50 of them, and requests of 5 s",
    )
    parser.add_argument(
        "--gateways", type=int, default=1, help="how many take turns, 1 to 4 (default: 1)"
    )
    parser.add_argument("--requests", type=int, help="how many to send (default: 64, else 12)")
    parser.add_argument("--concurrency", type=int, help="how many at a time (default: 32, else 12)")
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help=f"where to put the picture, {PICTURE} (default: {DEFAULT_OUT})",
    )
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.0)
        raise UsageError(f"{unknown[0]}: there is no such flag; did you mean {near[0]}?")
    for name, high in (("requests", 1000), ("concurrency", 200), ("gateways", GATEWAYS_MAX)):
        value = getattr(given, name)
        if value is not None and not 1 <= value <= high:
            raise UsageError(f"--{name} is {value}; it must be from 1 to {high}")
    return given


def _run(options: argparse.Namespace, progress: Progress) -> None:
    _make_directory(options.out)
    _check_clients()
    kind = _gateway(options.gateway, progress)
    from roomkeeper.demo.run import run_case

    workload = _workload(options)
    progress.step(
        f"{workload.requests} requests, {workload.concurrency} at a time, {workload.service_s:g} s "
        f"each, to a decode of {workload.window} slots through {_gateways(workload, kind)}"
    )
    scale = (
        "as in life" if workload.scale == 1 else f"1/{workload.scale:g} of what they are in life"
    )
    progress.step(
        f"deadlines are {scale}: {workload.bootstrap_timeout_s:g} s for the prefill's bootstrap, "
        f"{workload.transfer_timeout_s:g} s for the KV transfer, {workload.wait_s:g} s in "
        "roomkeeper's line"
    )
    cases = [BEFORE, AFTER, *(INGREDIENTS if options.ingredients else ())]
    results = [run_case(case, workload, kind, progress) for case in cases]
    _show(results, workload, options.out, progress)


def _gateways(workload: Workload, kind: GatewayKind) -> str:
    if workload.gateways == 1:
        return f"the {kind} gateway"
    return f"{workload.gateways} {kind} gateways"


def _workload(options: argparse.Namespace) -> Workload:
    base = IN_LIFE if options.real_deadlines else Workload()
    return dataclasses.replace(
        base,
        requests=options.requests or base.requests,
        concurrency=options.concurrency or base.concurrency,
        gateways=options.gateways,
    )


def _make_directory(out: Path) -> None:
    """Now, rather than when all is done but the picture."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / PICTURE).touch()
    except OSError as error:
        raise DemoError(f"--out is {out}: {error.strerror}; name a directory to write to") from None


def _gateway(wanted: str, progress: Progress) -> GatewayKind:
    from roomkeeper.demo.gateway import installed_gateway

    there = installed_gateway()
    if wanted == "builtin":
        return "builtin"
    if there == "smg":
        return "smg"
    if wanted == "smg":
        raise DemoError("the smg gateway is not installed; pip install smg==1.13.0")
    progress.step("the smg gateway is not installed: the built-in gateway takes its place")
    return "builtin"


def _check_clients() -> None:
    """What the demo itself imports, before anything is started."""
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


def _show(results: list[Result], workload: Workload, out: Path, progress: Progress) -> None:
    from roomkeeper.demo import report
    from roomkeeper.demo.picture import svg

    progress.clear()
    columns = min(shutil.get_terminal_size((COLUMNS_MAX, 24)).columns, COLUMNS_MAX)
    before, after, *alone = results
    texts = [
        report.meaning(before, after, workload),
        *report.ingredients(before, after, alone),
        f"The slots as a picture: {out / PICTURE}",
    ]
    sections = [
        report.table(results, columns),
        report.picture(results, columns, colour=sys.stdout.isatty()),
        *(textwrap.fill(text, columns) for text in texts),
    ]
    (out / PICTURE).write_text(svg(results), encoding="utf-8")
    print("\n" + "\n\n".join(sections) + "\n")
    for result in results:
        print(json.dumps(result.json()))
    sys.stdout.flush()
