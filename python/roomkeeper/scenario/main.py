"""``python -m roomkeeper scenario NAME``: flags, what is printed where, the exit code.

Progress goes to stderr, a table and what it means to stdout, and the last line of stdout is for
programs: one JSON object. Exit code 0 when the case held; 1 when it did not, or could not be made;
2 for a wrong flag, 128 + signal when it was interrupted. Nothing is left running.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
import textwrap

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
from roomkeeper.demo.plan import DemoError
from roomkeeper.demo.progress import Progress
from roomkeeper.scenario.cases import CASES
from roomkeeper.scenario.plan import Finding, Setting

NAME_COLUMNS = 30


def main(argv: list[str]) -> int:
    """The exit code, see the top of the file."""
    progress = Progress()
    try:
        options = _parse(argv)
    except UsageError as error:
        return _fail(progress, str(error), EXIT_USAGE)
    if options.list:
        for name, case in CASES.items():
            print(f"{name.ljust(NAME_COLUMNS)}{case.about}")
        return 0
    try:
        with interruptible():
            return _run(options, progress)
    except DemoError as error:
        return _fail(progress, str(error), EXIT_FAILED)
    except Interrupted as signal_:
        return _fail(progress, str(signal_), EXIT_SIGNAL + signal_.number)


def _fail(progress: Progress, why: str, code: int) -> int:
    progress.clear()
    print(f"roomkeeper scenario: {why}", file=sys.stderr)
    return code


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="roomkeeper scenario",
        allow_abbrev=False,
        description="Makes one hard case happen with stand-in workers behind a gateway, and judges "
        "it. Names: " + ", ".join(CASES) + ".",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="which case")
    parser.add_argument("--list", action="store_true", help="name the cases, one a line")
    parser.add_argument(
        "--link", choices=("on", "off"), default="on", help="the room link (default: on)"
    )
    parser.add_argument(
        "--rooms", choices=("on", "off"), default="on", help="the room ledger (default: on)"
    )
    parser.add_argument(
        "--gateway",
        choices=("auto", "smg", "builtin"),
        default="auto",
        help="auto: smg where it is installed, else the built-in one where that will do "
        "(default: auto)",
    )
    parser.add_argument(
        "--json-only", action="store_true", help="nothing on stdout but the line for programs"
    )
    given = parser.parse(argv)
    if not given.list:
        _check_case(given.name, given.gateway)
    return given


def _check_case(name: str | None, gateway: str) -> None:
    if name is None:
        raise UsageError(f"which case? Give a name: {', '.join(CASES)}")
    if name not in CASES:
        near = difflib.get_close_matches(name, CASES, n=1, cutoff=0.0)[0]
        raise UsageError(f"there is no case {name!r}; did you mean {near}?")
    if gateway == "builtin" and not CASES[name].builtin:
        raise UsageError(f"--gateway is builtin; {name} needs smg")


def _run(options: argparse.Namespace, progress: Progress) -> int:
    check_clients()
    case = CASES[options.name]
    wanted = options.gateway if case.builtin else "smg"
    rooms = options.rooms == "on"
    setting = Setting(choose_gateway(wanted, progress), rooms and options.link == "on", rooms)
    served = setting.case(False).served
    progress.step(f"{options.name}: {case.about}; {served}, {setting.gateway} gateway")
    finding = case.run(setting, progress)
    progress.clear()
    if not options.json_only:
        _show(finding)
    print(json.dumps(finding.json(options.name, setting)), flush=True)
    return 0 if finding.held else EXIT_FAILED


def _show(finding: Finding) -> None:
    columns = min(shutil.get_terminal_size((COLUMNS_MAX, 24)).columns, COLUMNS_MAX)
    verdict = "It is as it must be." if finding.held else "It is NOT as it must be."
    meaning = textwrap.fill(f"{finding.meaning} {verdict}", columns)
    print(f"\n{finding.table}\n\n{meaning}\n")
