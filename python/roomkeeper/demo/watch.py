"""What the decode's rooms say of themselves while the burst runs: the worker is asked for its
status, as ``roomkeeper status`` asks, several times a second. A thread of its own."""

from __future__ import annotations

import threading

from roomkeeper.demo.plan import RoomsSeen
from roomkeeper.statusread import Asker, Worker

PERIOD_S = 0.1
ANSWER_S = 2.0
#: Ways a leg ends that are refusals too: it got no slot in its time.
WAITED_IN_VAIN = ("wait_timeout", "held_timeout")


class Watch:
    """A context: asks while it is open."""

    def __init__(self, address: str) -> None:
        self._asker = Asker(address, ANSWER_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._most_waiting = 0
        self._most_running = 0
        self._last: Worker | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S)
        self._asker.close()

    def seen(self) -> RoomsSeen:
        """What there has been so far."""
        last = self._last
        if last is None:
            return RoomsSeen()
        ended = (last.roomkeeper or {}).get("ended", {})
        waited = {cause: ended[cause] for cause in WAITED_IN_VAIN if cause in ended}
        return RoomsSeen(
            most_waiting=self._most_waiting,
            most_running=self._most_running,
            arrived=last.total("arrived") or 0,
            refused={**last.refused, **waited},
            scheduler=last.scheduler,
        )

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            worker = self._asker.ask()
            if worker.error:
                continue  # the run's own checks say what has become of the worker
            self._last = worker
            waiting = sum(rank.waiting for rank in worker.ranks)
            running = sum(rank.running for rank in worker.ranks)
            self._most_waiting = max(self._most_waiting, waiting)
            self._most_running = max(self._most_running, running)


def is_serving(address: str) -> bool:
    """Whether the worker there says that it serves."""
    asker = Asker(address, ANSWER_S)
    try:
        return asker.ask().health == "SERVING"
    finally:
        asker.close()
