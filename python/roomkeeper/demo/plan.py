"""What the demo runs, and what comes of it, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

GatewayKind = Literal["smg", "builtin"]

#: What requests and workers call the model.
MODEL_NAME = "standin"


class DemoError(Exception):
    """The demo cannot go on. One line, and perhaps the last lines of a log after it."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """The burst and the workers it meets."""

    requests: int = 64
    #: Clients, each of which sends its next request when the last one is answered.
    concurrency: int = 32
    #: Gateways in front of the pair, which take turns.
    gateways: int = 1
    #: The decode's running window, in slots.
    window: int = 4
    #: A request takes about ``tokens`` steps of ``step_ms``.
    tokens: int = 40
    step_ms: float = 10.0
    #: Every deadline of the engines is in life so much longer.
    scale: float = 50.0
    #: Words of a prompt, each of which is a token.
    prompt_words: int = 6
    #: KV tokens of the decode; None: more than enough.
    kv_tokens: int | None = None
    #: Requests become due in waves of this size, ``wave_s`` apart; 0: all of them at once.
    wave: int = 0
    wave_s: float = 0.0

    @property
    def bootstrap_timeout_s(self) -> float:
        """Prefill: from a request's arrival until its decode has admitted the room."""
        return 120 / self.scale

    @property
    def transfer_timeout_s(self) -> float:
        """Decode: from admitting a room until its KV is there."""
        return 300 / self.scale

    @property
    def handoff_s(self) -> float:
        """Decode: how long a cancelled room keeps its slot for its KV (handoff_seconds)."""
        return 30 / self.scale

    def due_s(self, number: int) -> float:
        """When a request may be sent at the earliest, in seconds since the burst began."""
        return number // self.wave * self.wave_s if self.wave else 0.0

    @property
    def service_s(self) -> float:
        """What a request takes once it has a slot, about."""
        return self.tokens * self.step_ms / 1000

    @property
    def ideal_s(self) -> float:
        """What the burst takes when no slot is ever idle or lost."""
        return self.requests * self.service_s / self.at_a_time

    @property
    def at_a_time(self) -> int:
        """How many requests the decode has room for, by slots and by KV tokens."""
        if self.kv_tokens is None:
            return self.window
        return min(self.window, max(1, self.kv_tokens // (self.prompt_words + self.tokens)))


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to serve the burst."""

    rooms: bool
    #: Whether the gateway is told the decode's window.
    window_reported: bool = False
    #: Whether the two workers tell each other of their rooms. Without rooms there is no link.
    link: bool = False

    @property
    def name(self) -> str:
        """As in the JSON lines."""
        if not self.rooms:
            return "rooms-off"
        return "rooms-on" if self.link else "rooms-only"

    @property
    def title(self) -> str:
        """For people: every ingredient."""
        window = "window reported" if self.window_reported else "window hidden"
        return f"{self.served}, {window}"

    @property
    def served(self) -> str:
        """For people: what the workers do."""
        if not self.rooms:
            return "rooms off"
        return f"rooms on, link {switch(self.link)}"

    @property
    def flags(self) -> list[str]:
        """The workers' flags for it."""
        return [
            *("--rooms", switch(self.rooms)),
            *("--room-link", switch(self.link)),
            *("--room-report-window", switch(self.window_reported)),
        ]


def switch(on: bool) -> str:
    """As a flag has it."""
    return "on" if on else "off"


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many workers there are, and what they and the gateways are told besides."""

    prefills: int = 1
    decodes: int = 1
    #: What is run as a worker, as ``python -m`` takes it.
    worker_module: tuple[str, ...] = ("roomkeeper", "standin")
    worker_flags: tuple[str, ...] = ()
    #: For decodes alone.
    decode_flags: tuple[str, ...] = ()
    #: Of smg.
    gateway_flags: tuple[str, ...] = ()


#: The same race with the deadlines of life, short enough to watch: requests of 5 s.
IN_LIFE = Workload(requests=12, concurrency=12, tokens=500, scale=1)

#: The worker as it was; the ledger alone; and the worker as this release serves it. The gateway is
#: not told the window, so that nobody but the workers can keep the burst in order.
OFF = Case(rooms=False)
ONLY = Case(rooms=True)
ON = Case(rooms=True, link=True)
#: What the window's report does: alone, and with the ledger.
INGREDIENTS = (
    Case(rooms=False, window_reported=True),
    Case(rooms=True, window_reported=True),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one request ended, as its client saw it."""

    #: "200", "500 prefill_worker_failed_to_start", "ConnectionResetError", …
    seen: str
    ok: bool
    #: When it was sent, in seconds since the burst began, and how long it took.
    sent_s: float
    latency_s: float
    #: Which request of the burst it was, from 0.
    number: int = 0

    @property
    def brief(self) -> str:
        """``seen`` without the reason."""
        if self.seen.startswith("200, then"):
            return "200, then error"
        return self.seen if self.seen.startswith("200") else self.seen.partition(" ")[0]


@dataclasses.dataclass(frozen=True)
class Hold:
    """A room's time in a slot of the decode, in seconds since the burst began."""

    lane: int
    start_s: float
    #: When the KV was there; None: it never came, the slot was lost.
    kv_s: float | None
    #: None: still held when the run was over.
    end_s: float | None

    @property
    def lost(self) -> bool:
        """Held until a deadline, for a room that nobody filled."""
        return self.kv_s is None and self.end_s is not None


@dataclasses.dataclass(frozen=True)
class RoomsSeen:
    """What the decode's rooms said of themselves during the burst."""

    #: The most legs in line and in the engine at a time.
    most_waiting: int = 0
    most_running: int = 0
    #: Legs that came, and legs refused by cause: at once, or after their wait in line.
    arrived: int = 0
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    #: Who decides in the decode's engine, as the engine names it.
    scheduler: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one case."""

    case: Case
    gateway: GatewayKind
    #: From the first request to the last answer.
    wall_s: float
    outcomes: Sequence[Outcome]
    holds: Sequence[Hold]
    rooms: RoomsSeen

    @property
    def ok(self) -> int:
        """Requests answered in full."""
        return sum(outcome.ok for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """All the others."""
        return len(self.outcomes) - self.ok

    def latency_s(self, share: float) -> float:
        """The latency below which ``share`` of all requests lie, failed ones too."""
        ordered = sorted(outcome.latency_s for outcome in self.outcomes)
        return ordered[round(share * (len(ordered) - 1))]

    @property
    def lost(self) -> list[Hold]:
        """Slots that were held for nothing."""
        return [hold for hold in self.holds if hold.lost]

    @property
    def lost_s(self) -> float:
        """For how long, all slots together."""
        return sum(hold.end_s - hold.start_s for hold in self.lost if hold.end_s is not None)

    @property
    def free_s(self) -> float | None:
        """When the decode's last slot was given back; None: not within the time it was given."""
        ends = [hold.end_s for hold in self.holds]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def json(self) -> dict[str, Any]:
        """The line for programs."""
        return {
            "run": self.case.name,
            "gateway": self.gateway,
            "window_reported": self.case.window_reported,
            "requests": len(self.outcomes),
            "ok": self.ok,
            "failed": self.failed,
            "wall_s": round(self.wall_s, 2),
        }
