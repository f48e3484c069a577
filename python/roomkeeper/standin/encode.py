"""The encode worker's half of encode/prefill/decode, and the prefill's towards it.

As with the KV no embedding moves, only what the made-up model made of an item: a number. The encode
worker listens at its bootstrap port + 1000; a prefill asks there for the item's room, and is told
once the item has been encoded, which may be before or after. Scheduler thread only.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable

from roomkeeper.standin.kv import ROOMS_MAX, Arrival, DecodeEnd, PrefillEnd
from roomkeeper.standin.request import Request


class EncodeEnd:
    """Keeps what has been seen until it is fetched; the oldest goes when nobody fetches."""

    def __init__(self, selector: selectors.BaseSelector, bootstrap_port: int) -> None:
        self._seen: dict[int, int] = {}
        self._end = PrefillEnd(selector, bootstrap_port, self._give)

    def encoded(self, room: int, seen: int) -> None:
        """An item has been through the tower."""
        self._seen[room] = seen
        while len(self._seen) > ROOMS_MAX:
            del self._seen[next(iter(self._seen))]
        if self._end.is_asked(room):
            self._give(room)

    def _give(self, room: int) -> None:
        seen = self._seen.pop(room, None)
        if seen is not None:
            self._end.send(Arrival(room, checksum=seen))
            self._end.forget(room)


class Embeddings:
    """A prefill's: asks for the items of its requests; ``complete`` is told of the last one."""

    def __init__(
        self, selector: selectors.BaseSelector, complete: Callable[[Request], None]
    ) -> None:
        self._complete = complete
        self._wanted: dict[int, tuple[Request, int, int]] = {}  # by room: item, port
        self._end = DecodeEnd(selector, self._arrived)

    def ask(self, request: Request) -> None:
        """For all items that encode workers have."""
        for item, port, room in request.encoders:
            self._wanted[room] = (request, item, port)
            self._end.ask(port, room)

    def forget(self, request: Request) -> None:
        """It is over."""
        for _, port, room in request.encoders:
            if room in self._wanted and self._wanted[room][0] is request:
                del self._wanted[room]
                self._end.forget(port, room)

    def retry(self, now: float) -> None:
        """Connects again where a connection was lost."""
        self._end.retry(now)

    def _arrived(self, arrival: Arrival) -> None:
        wanted = self._wanted.pop(arrival.room, None)
        if wanted is None:
            return
        request, item, port = wanted
        self._end.forget(port, arrival.room)
        request.saw(item, arrival.checksum)
        if request.complete:
            self._complete(request)
