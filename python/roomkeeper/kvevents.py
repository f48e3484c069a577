"""The engine's ``--kv-events-config``: where it publishes what its KV cache holds.

TokenSpeed has it as JSON in ``server_args.kv_events_config``. What it means when a part is left out
is the engine's to say; the defaults here are the engine's.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

DEFAULT_ENDPOINT = "tcp://*:5557"
DEFAULT_BUFFER_STEPS = 10_000

log = logging.getLogger("roomkeeper")


@dataclasses.dataclass(frozen=True)
class KvEventsConfig:
    """A publisher that is on."""

    endpoint: str = DEFAULT_ENDPOINT
    #: Empty: it answers no replays.
    replay_endpoint: str = ""
    topic: str = ""
    #: Batches kept for replays.
    buffer_steps: int = DEFAULT_BUFFER_STEPS


def config_of(server_args: Any) -> KvEventsConfig | None:
    """The publisher that these arguments set on; None, with a line where it is a mistake."""
    raw = getattr(server_args, "kv_events_config", None)
    if not raw:
        return None
    try:
        return parse(str(raw))
    except ValueError as error:
        log.warning("%s; SubscribeKvEvents is off", error)
        return None


def parse(text: str) -> KvEventsConfig | None:
    """None: it is off. ValueError, in one line: it cannot be."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--kv-events-config is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"--kv-events-config is {text!r}; it must be a JSON object")
    if not given.get("enable_kv_cache_events"):
        return None
    publisher = given.get("publisher") or "zmq"
    if publisher == "null":
        return None
    if publisher != "zmq":
        raise ValueError(f"--kv-events-config: publisher is {publisher!r}; it can be zmq or null")
    for name in ("endpoint", "replay_endpoint", "topic"):
        if not isinstance(given.get(name) or "", str):
            raise ValueError(f"--kv-events-config: {name} is {given[name]!r}; it must be a string")
    steps = given.get("buffer_steps", DEFAULT_BUFFER_STEPS)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps < 1 << 31:
        raise ValueError(f"--kv-events-config: buffer_steps is {steps!r}; it must be a count")
    return KvEventsConfig(
        endpoint=given.get("endpoint") or DEFAULT_ENDPOINT,
        replay_endpoint=given.get("replay_endpoint") or "",
        topic=given.get("topic") or "",
        buffer_steps=steps,
    )
