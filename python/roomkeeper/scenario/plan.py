"""How a case is served, and what is found of it, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from roomkeeper.demo.plan import Case, GatewayKind
from roomkeeper.demo.progress import Progress


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the workers are served, whatever the case is."""

    gateway: GatewayKind
    link: bool = True
    rooms: bool = True

    def case(self, window_reported: bool) -> Case:
        """As the demo has it."""
        return Case(self.rooms, window_reported, self.link)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What came of a case."""

    requests: int
    #: Requests answered in full; all others have failed, those refused included.
    ok: int
    #: From the first request to the last answer.
    wall_s: float
    #: Slots of decodes that are held for nobody.
    slots_leaked: int
    #: Whether everything was as it must be.
    held: bool
    #: For people: rows of label and value, and what it means.
    table: str
    meaning: str
    #: What the case counts besides; keys of the JSON line.
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def json(self, name: str, setting: Setting) -> dict[str, Any]:
        """The line for programs."""
        return {
            "scenario": name,
            "requests": self.requests,
            "ok": self.ok,
            "failed": self.requests - self.ok,
            "wall_s": round(self.wall_s, 2),
            "slots_leaked": self.slots_leaked,
            "link": setting.link,
            "rooms": setting.rooms,
            "gateway": setting.gateway,
            "held": self.held,
            **self.more,
        }


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A case of the registry."""

    #: One line for ``--list``.
    about: str
    run: Callable[[Setting, Progress], Finding]
    #: Whether the built-in gateway will do: it knows one pair and keeps no log.
    builtin: bool = True


def table(rows: list[tuple[str, object]]) -> str:
    """Rows as text."""
    width = max(len(label) for label, _ in rows) + 3
    return "\n".join(f"{label.ljust(width)}{value}" for label, value in rows)
