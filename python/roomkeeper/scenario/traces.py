"""The legs in the traces of stand-ins (see standin/trace.py). Times are monotonic seconds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass
class Leg:
    """One leg in an engine; None: it never came to that."""

    #: The engine's id: the wire's, ``~`` and a number.
    id: str
    room: int
    arrived_s: float
    #: Decodes only: it has a slot; its KV is there.
    admitted_s: float | None = None
    kv_s: float | None = None
    gone_s: float | None = None


def read_legs(trace: Path) -> list[Leg]:
    """All legs that an engine has been given, in the order of arrival."""
    legs: dict[str, Leg] = {}
    lines = trace.read_bytes() if trace.exists() else b""
    # The last line of an engine that was killed may be half a line.
    for line in lines[: lines.rfind(b"\n") + 1].splitlines():
        event = json.loads(line)
        if event["event"] == "arrived":
            legs[event["id"]] = Leg(event["id"], event["room"] or 0, event["t"])
        elif event["id"] in legs:
            setattr(legs[event["id"]], f"{event['event']}_s", event["t"])
    return list(legs.values())
