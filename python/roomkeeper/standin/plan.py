"""The seam between a scheduler process and what decides who runs: TokenSpeed's scheduler, or ours.

The scheduler process asks for a plan, carries it out and says what came of it as events.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

#: Tokens of a KV page.
PAGE_TOKENS = 16


class EventKind(enum.Enum):
    """What can be said of a request."""

    #: PD: it may enter the line.
    BOOTSTRAPPED = enum.auto()
    #: Decode: its KV has come, with the first token.
    REMOTE_PREFILL_DONE = enum.auto()
    #: Prefill: its KV has gone.
    SUCCEEDED = enum.auto()
    #: PD: its transfer has failed.
    FAILED = enum.auto()
    #: A chunk or a token of it has been computed.
    EXTENDED = enum.auto()
    #: That was its last token.
    FINISHED = enum.auto()
    ABORTED = enum.auto()


class Event(NamedTuple):
    """What has happened to a request."""

    kind: EventKind
    request_id: str
    #: EXTENDED: the token, unless only a chunk of the prompt was computed. REMOTE_PREFILL_DONE: the
    #: first token.
    token: int | None = None


class Extend(NamedTuple):
    """A chunk of a prompt to compute."""

    request_id: str
    #: The chunk's first token, and the one after its last.
    begin: int
    end: int
    prompt_tokens: int


class Plan(NamedTuple):
    """What to do in a step."""

    extends: list[Extend]
    #: These get one more token.
    decodes: list[str]
    #: Decode: these have a place in the window and pages; their KV may come.
    admitted: list[str]
    #: Prefill: these prompts are computed; their KV may go, with the first token.
    leaving: list[tuple[str, int]]
    #: These cannot be served, and why.
    refused: list[tuple[str, str]]

    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(self)


class Scheduling(Protocol):
    """Decides who runs. One thread."""

    #: As reported: "tokenspeed-scheduler 0.1.35", "builtin first-come".
    name: str

    def submit(self, request_id: str, prompt: list[int], max_new_tokens: int) -> None:
        """ValueError for an id that is still known."""

    def plan(self) -> Plan:
        """The next step."""

    def advance(self, events: Iterable[Event]) -> None:
        """What came of it, and whatever else has happened. Unknown ids are ignored."""

    def running(self) -> int:
        """Requests in the window."""

    def waiting(self) -> int:
        """Requests in line, or waiting for their peer."""

    def active_pages(self) -> int:
        """KV pages of requests in the window."""

    def total_pages(self) -> int:
        """KV pages there are."""

    def longest_request(self) -> int:
        """Tokens, prompt and output, of the longest request that can be served at all."""

    def clear_cache(self) -> bool:
        """Empties the prefix cache, while no requests are there; whether it did."""

    def drain_kv_events(self) -> list[Any]:
        """What the prefix cache has stored and removed since; as TokenSpeed's events."""


class Limits(NamedTuple):
    """What a rank has."""

    role: str
    #: Slots of the running window.
    window: int
    #: KV pages.
    pages: int
    #: Prompt tokens computed in one step at most.
    chunk_tokens: int
    #: Keep what the prefix cache does, for drain_kv_events.
    kv_events: bool = False
