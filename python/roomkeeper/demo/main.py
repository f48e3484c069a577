"""``python -m roomkeeper demo``: flags, the order of the runs, and what is printed where.

Progress goes to stderr, the report to stdout, and the last lines of stdout are for programs: one
JSON object a run. Exit code 0 when all runs were made, whatever came of them; 1 when one could not
be made, 2 for a wrong flag, 128 + signal when it was interrupted. Nothing is left running.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from roomkeeper.demo.command import (
    COLUMNS_MAX,
    EXIT_FAILED,
    EXIT_SIGNAL,
    EXIT_USAGE,
    Interrupted,
    Parser,
    UsageError,
    check_clients,
    choose_gateway,
    interruptible,
)
from roomkeeper.demo.plan import (
    IN_LIFE,
    INGREDIENTS,
    OFF,
    ON,
    ONLY,
    DemoError,
    GatewayKind,
    Result,
    Workload,
)
from roomkeeper.demo.ports import GATEWAYS_MAX
from roomkeeper.demo.progress import Progress

PICTURE = "slots.svg"
DEFAULT_OUT = Path("build") / "demo"


def main(argv: list[str]) -> int:
    """The exit code, see the top of the file."""
    progress = Progress()
    try:
        options = _parse(argv)
    except UsageError as error:
        print(f"roomkeeper demo: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        with interruptible():
            _run(options, progress)
    except DemoError as error:
        progress.clear()
        print(f"roomkeeper demo: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Interrupted as signal_:
        progress.clear()
        print(f"roomkeeper demo: {signal_}", file=sys.stderr)
        return EXIT_SIGNAL + signal_.number
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="roomkeeper demo",
        allow_abbrev=False,
        description="A burst wider than the decode's window, through a gateway that is not told "
        "the window, to a pair of stand-in workers: as they are served without rooms, with rooms "
        "but no link between the two, and with both.",
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
        help="two more runs, in which the gateway is told the window: without rooms, and with",
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
    given = parser.parse(argv)
    for name, high in (("requests", 1000), ("concurrency", 200), ("gateways", GATEWAYS_MAX)):
        value = getattr(given, name)
        if value is not None and not 1 <= value <= high:
            raise UsageError(f"--{name} is {value}; it must be from 1 to {high}")
    return given


def _run(options: argparse.Namespace, progress: Progress) -> None:
    _make_directory(options.out)
    check_clients()
    kind = choose_gateway(options.gateway, progress)
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
        f"{workload.transfer_timeout_s:g} s for the KV transfer"
    )
    cases = [OFF, ONLY, ON, *(INGREDIENTS if options.ingredients else ())]
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


def _show(results: list[Result], workload: Workload, out: Path, progress: Progress) -> None:
    from roomkeeper.demo import report
    from roomkeeper.demo.picture import svg

    progress.clear()
    columns = min(shutil.get_terminal_size((COLUMNS_MAX, 24)).columns, COLUMNS_MAX)
    texts = [
        report.meaning(results[0], results[2], workload),
        *report.ingredients(results),
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
