"""What the launchers share: whether there are to be agents, and what a failed start leaves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from roomkeeper.config import Config
from roomkeeper.release.client import ReleaseClient

_log = logging.getLogger("roomkeeper")


@contextlib.contextmanager
def agents_for(role: str, config: Config, processes: int) -> Iterator[ReleaseClient | None]:
    """A client for the scheduler processes that are started within; None: they get no agents.

    That is so with rooms off and in an aggregated worker; and, which one line says, where no socket
    can be made and when ``processes`` is 0, since the engine does not tell. When the start fails
    the client stays, since the processes end with it, but its folder goes.
    """
    if role not in ("prefill", "decode") or not config.flag("rooms"):
        yield None
        return
    if processes < 1:
        _log.warning("release: no: this engine's launcher does not say what it starts")
        yield None
        return
    try:
        client = ReleaseClient(role, processes, config.number("tombstone_seconds"))
    except OSError as error:
        _log.warning("release: no: no socket for the agents: %s", error)
        yield None
        return
    try:
        yield client
    except BaseException:
        client.stop_listening()
        raise
