"""Bursts far beyond the window, with engine deadlines that a line would outlast: nobody fails.

The window is 4 and 64 pairs come at once: a line of about 2 s, before a bootstrap deadline of 1.2 s.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from harness.client import Stream, until
from harness.process import SANITIZED
from link_support import (
    LINK_OFFSET,
    Pair,
    Proxy,
    Side,
    bootstrap_port,
    by_proxy,
    names_of,
    role_flags,
    side,
)

WINDOW, PAIRS, TOKENS = 4, 64, 8
#: Deadlines are the engine's; a machine that crawls needs longer ones.
BOOTSTRAP_S, TRANSFER_S = ("8", "20") if SANITIZED else ("1.2", "3")


class Workers:
    """A pair each of whose workers can be started anew, with a proxy between them."""

    def __init__(self) -> None:
        self._port = bootstrap_port()
        self._proxy = Proxy(self._port + LINK_OFFSET)
        self._stacks = {role: contextlib.ExitStack() for role in ("prefill", "decode")}
        self._sides: dict[str, Side] = {}

    def close(self) -> None:
        for stack in self._stacks.values():
            stack.close()
        self._proxy.__exit__()

    def start(self, *roles: str) -> None:
        """Started, or killed and started again; together. Without roles: those not there yet."""
        for role in roles or [role for role in self._stacks if role not in self._sides]:
            if role in self._sides:
                self._sides[role].worker.program.signal(signal.SIGKILL)
            self._stacks[role].close()
            deadlines = ("--bootstrap-timeout", BOOTSTRAP_S, "--transfer-timeout", TRANSFER_S)
            flags = ("--max-num-seqs", str(WINDOW), *deadlines, *by_proxy(self._port, self._proxy))
            self._sides[role] = self._stacks[role].enter_context(
                side(*role_flags(role, self._port, *flags), wait=False)
            )
        for started in self._sides.values():
            started.worker.wait_serving()

    def cut(self) -> None:
        self._proxy.cut()

    @property
    def pair(self) -> Pair:
        self.start()
        return Pair(self._sides["prefill"], self._sides["decode"], self._port)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    try:
        yield made
    finally:
        made.close()


def announced(pair: Pair, name: str) -> list[tuple[Stream, Stream]]:
    """A burst all of whose legs are there, and known to each other's workers."""
    before = sum(peer["heard"] for peer in pair.prefill_side.peers)
    arrived = pair.prefill.rooms()["arrived"] + PAIRS
    legs = pair.burst(name, PAIRS, TOKENS)
    until(lambda: pair.prefill.rooms()["arrived"] == arrived, "the prefill's have arrived")
    until(
        lambda: sum(peer["heard"] for peer in pair.prefill_side.peers) >= before + PAIRS,
        "the decode's have been announced",
    )
    return legs


def all_well(workers: Workers, name: str) -> None:
    ends = names_of(workers.pair.burst(name, PAIRS, TOKENS))
    assert ends == [("OK", "OK")] * PAIRS
    workers.pair.idle()


@pytest.mark.parametrize(
    "anew",
    [("prefill", "decode"), ("decode",), ("prefill",)],
    ids=["start of both", "start of the decode", "start of the prefill"],
)
def test_the_very_first_burst_is_served_after_a(workers: Workers, anew: tuple[str, ...]) -> None:
    workers.start(*anew)
    all_well(workers, "-".join(anew))
    assert workers.pair.decode_side.peer()["state"] == "up"


def test_a_link_cut_in_the_middle_of_a_burst_costs_the_rooms_in_flight_and_no_other(
    workers: Workers,
) -> None:
    """They can be tried again at once; the link is back by then."""
    workers.pair.serves("before")
    legs = announced(workers.pair, "cut")
    legs[8][1].get(1)
    workers.cut()
    for both in legs:
        for leg in both:
            status = leg.end()
            assert status.name in ("OK", "RESOURCE_EXHAUSTED"), status
            assert status.name == "OK" or int(status.trailing["grpc-retry-pushback-ms"]) > 0
    assert any(decode.end().name != "OK" for _, decode in legs)
    workers.pair.idle()
    all_well(workers, "after the cut")
    assert workers.pair.decode_side.peer()["links"] >= 2


def test_bursts_go_on_while_the_link_is_cut_again_and_again(workers: Workers) -> None:
    """Each room ends in order, no slot stays behind."""
    legs = announced(workers.pair, "storm")
    for _ in range(10):
        time.sleep(0.1)
        workers.cut()
    names = {name for both in names_of(legs) for name in both}
    assert names <= {"OK", "RESOURCE_EXHAUSTED", "CANCELLED"}
    workers.pair.idle()
    all_well(workers, "after the storm")
