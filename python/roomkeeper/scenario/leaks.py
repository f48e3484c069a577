"""What is still held when nobody waits for an answer any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from roomkeeper.demo.site import Life, Site
from roomkeeper.scenario.traces import read_legs
from roomkeeper.statusread import Asker, Worker

#: What is not given back within this time after the last answer is not going to be soon.
SETTLE_S = 2.0
ANSWER_S = 2.0
POLL_S = 0.1


def slots_leaked(site: Site) -> int:
    """Slots of the decodes that are held, once they have had SETTLE_S to become free.

    Both the ledger and the engine are asked; of a decode the larger number counts.
    """
    return _settle(lambda: sum(_held(life) for life in site.living("decode")))


def legs_left(site: Site) -> int:
    """Legs of all workers' ledgers and engines that are not over, likewise."""
    lives = [*site.living("prefill"), *site.living("decode")]
    return _settle(lambda: sum(_open(life) for life in lives))


def _settle(count: Callable[[], int]) -> int:
    deadline = time.monotonic() + SETTLE_S
    while (number := count()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return number


def _held(life: Life) -> int:
    worker = _ask(life)
    ledger = sum((rank.admitted or 0) + (rank.releasing or 0) for rank in worker.ranks)
    engine = sum(leg.admitted_s is not None and leg.gone_s is None for leg in read_legs(life.trace))
    return max(ledger, engine)


def _open(life: Life) -> int:
    legs: dict[str, int] = (_ask(life).roomkeeper or {}).get("legs", {})
    engine = sum(leg.gone_s is None for leg in read_legs(life.trace))
    return max(sum(legs.values()), engine)


def _ask(life: Life) -> Worker:
    asker = Asker(life.address, ANSWER_S)
    try:
        worker = asker.ask()
    finally:
        asker.close()
    if worker.error:
        raise life.child.failure(f"does not say how it is ({worker.error})")
    return worker
