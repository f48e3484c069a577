"""``roomkeeper status ADDRESS…``: what an operator asks a worker. A gRPC client, nothing more.

Each worker is asked for GetServerInfo, GetLoads and its health, all workers at once. A worker that
another servicer serves is shown with what it says too. The exit code is 1 when one did not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NoReturn

from roomkeeper.statusread import Asker, AskerError, Worker
from roomkeeper.statustable import render

EXIT_UNREACHABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
#: Workers asked at a time.
_ASK_AT_ONCE = 64
_CLEAR = "\x1b[H\x1b[2J"


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise AskerError(message)


def main(argv: list[str]) -> int:
    """The exit code: 0, 1 when a worker did not answer, 2 for what can be put right."""
    try:
        given = _parse(argv)
        with _Workers(given.addresses, given.timeout) as workers:
            return _watch(workers, given) if given.watch is not None else _once(workers, given)
    except AskerError as error:
        print(f"roomkeeper status: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="roomkeeper status",
        allow_abbrev=False,
        description="Asks workers for their role, their window, who is in it and who waits.",
    )
    parser.add_argument("addresses", metavar="ADDRESS", nargs="*", help="host:port or unix:/path")
    parser.add_argument("--json", action="store_true", help="one JSON object a worker and line")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=1.0,
        metavar="SECONDS",
        help="ask again and again, every second or so many, until Ctrl-C",
    )
    parser.add_argument(
        "--timeout", type=float, default=3.0, metavar="SECONDS", help="for an answer (default: 3)"
    )
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        known = ["--json", "--watch", "--timeout", "--help"]
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.0)
        raise AskerError(f"{unknown[0]}: there is no such flag; did you mean {near[0]}?")
    if not given.addresses:
        raise AskerError("no ADDRESS is given; give host:port or unix:/path of each worker")
    for name in ("timeout", "watch"):
        value = getattr(given, name)
        if value is not None and not 0.01 <= value <= 3600:
            raise AskerError(f"--{name} is {value:.15g}; it must be from 0.01 to 3600")
    return given


class _Workers:
    """The workers, each with its connection, which a watch keeps open."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self._askers = [Asker(address, timeout_s) for address in addresses]
        self._pool = ThreadPoolExecutor(min(len(self._askers), _ASK_AT_ONCE))

    def ask(self) -> list[Worker]:
        """All at once; in order."""
        return list(self._pool.map(Asker.ask, self._askers))

    def __enter__(self) -> _Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for asker in self._askers:
            asker.close()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)


def _once(workers: _Workers, given: argparse.Namespace) -> int:
    answers = workers.ask()
    _show(answers, given.json)
    return _complain(answers)


def _watch(workers: _Workers, given: argparse.Namespace) -> int:
    redraws = sys.stdout.isatty() and not given.json
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            answers = workers.ask()
            if redraws:
                print(_CLEAR, end="")
            if not given.json:
                print(time.strftime("%H:%M:%S"))
            _show(answers, given.json)
            _complain(answers)
            time.sleep(given.watch)
    return 0


def _show(answers: Sequence[Worker], as_json: bool) -> None:
    if as_json:
        for worker in answers:
            print(json.dumps(worker.as_dict()))
    else:
        answered = [worker for worker in answers if not worker.error]
        if answered:
            print(render(answered, colour=sys.stdout.isatty()), end="")
    sys.stdout.flush()


def _complain(answers: Sequence[Worker]) -> int:
    """One line for each that did not answer; the exit code."""
    failed = [worker for worker in answers if worker.error]
    for worker in failed:
        print(f"{worker.address}: {worker.error}", file=sys.stderr)
    return EXIT_UNREACHABLE if failed else 0
