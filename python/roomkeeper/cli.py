"""The command line: ``python -m roomkeeper COMMAND``, or ``roomkeeper COMMAND``.

A command is a line in the table: its module has ``main(argv) -> exit code`` and is imported only
when it is asked for, so that none needs what another does.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from roomkeeper import __version__

EXIT_USAGE = 2


class Command(NamedTuple):
    """One line of the table."""

    module: str
    about: str


COMMANDS = {
    "standin": Command("roomkeeper.standin.main", "serve a stand-in engine, on any machine"),
    "status": Command("roomkeeper.status", "ask workers how they are"),
    "demo": Command("roomkeeper.demo.main", "a burst through a gateway, without rooms and with"),
    "scenario": Command("roomkeeper.scenario.main", "one hard case, made to happen and judged"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: the command's, or 2 for a command that there is not."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        print(f"roomkeeper {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1, cutoff=0.0)[0]
        print(
            f"roomkeeper: there is no command {words[0]!r}; did you mean {near}?", file=sys.stderr
        )
        return EXIT_USAGE
    run: Callable[[list[str]], int] = importlib.import_module(command.module).main
    try:
        code = run(words[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # who reads us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _usage() -> str:
    lines = ["usage: roomkeeper COMMAND [flags]", ""]
    lines += [f"  {name:<10}{command.about}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "roomkeeper COMMAND --help says more about each."])
