"""What the frontend and a scheduler process tell each other. Plain data, pickled (see pipe.py)."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class Misbehaviour(NamedTuple):
    """How a request with a fault prompt departs from the ordinary (see faults.py)."""

    kind: str
    #: HTTP-like status of an abort; 0: none.
    status: int = 0
    #: Output tokens before it.
    after_tokens: int = 0


class Generate(NamedTuple):
    """A request, checked by the frontend."""

    rid: str
    prompt: list[int]
    max_new_tokens: int
    min_new_tokens: int
    stop_tokens: frozenset[int]
    #: An output a step; otherwise only the last one.
    stream: bool
    #: None in an aggregated worker, and for a request that has no peer.
    bootstrap_port: int | None
    room: int | None
    misbehaviour: Misbehaviour | None
    #: What the model makes of each multimodal item; None while an encode worker has it.
    seen: list[int | None] = []  # noqa: RUF012
    #: (item, port, room): where those are fetched.
    encoders: list[tuple[int, int, int]] = []  # noqa: RUF012


class Encode(NamedTuple):
    """What an encode worker's model makes of an item, for the prefill that asks for the room."""

    room: int
    seen: int


class Abort(NamedTuple):
    """The client has gone."""

    rid: str


class Ask(NamedTuple):
    """A question: "is_paused", "flush" or "load"."""

    number: int
    kind: str


class Answer(NamedTuple):
    """What came of the question with this number."""

    number: int
    value: Any


class Output(NamedTuple):
    """What one request got in one step."""

    rid: str
    #: Only the new ones.
    tokens: list[int]
    finish_reason: dict[str, Any] | None
    completion_tokens: int
    #: Prompt tokens that were in the prefix cache.
    cached_tokens: int


class Step(NamedTuple):
    """The outputs of one step."""

    outputs: list[Output]


class LoadSnapshot(NamedTuple):
    """What a rank reports of itself four times a second; a page is ``page_tokens`` tokens."""

    epoch: str
    sequence: int
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_active_pages: int
    num_used_pages: int
    max_total_pages: int
    valid_for_ms: int


class Load(NamedTuple):
    """The answer to "load", as TokenSpeed's ``get_load`` gives it."""

    dp_rank: int
    #: All requests, the waiting ones included.
    num_reqs: int
    num_waiting_reqs: int
    num_pages: int


class Ready(NamedTuple):
    """The first message of a scheduler process that serves."""

    report: dict[str, Any]


class Failed(NamedTuple):
    """The only message of a scheduler process that cannot serve; one line."""

    why: str


FromFrontend: TypeAlias = Generate | Encode | Abort | Ask
FromScheduler: TypeAlias = Ready | Failed | Step | Answer | LoadSnapshot
