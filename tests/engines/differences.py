"""What may differ between the two servicers' answers to one request, and why. Anything else is a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from requests_table import Answer, Choice


@dataclass(frozen=True)
class Seen:
    """One difference."""

    path: str
    python: Any
    roomkeeper: Any
    #: The choices it is in, if it is in one.
    python_choice: Choice | None = None
    roomkeeper_choice: Choice | None = None


@dataclass(frozen=True)
class Allowed:
    """A difference that may be."""

    path: str
    reason: str
    #: What must hold for it all the same.
    when: Callable[[Seen], bool]


def _ends_with(whole: list[Any], end: list[Any]) -> bool:
    return whole[len(whole) - len(end) :] == end


def _all_tokens(seen: Seen) -> bool:
    assert seen.roomkeeper_choice is not None
    return seen.roomkeeper == concatenated(seen.roomkeeper_choice) and _ends_with(
        seen.roomkeeper, seen.python
    )


def _all_logprobs(seen: Seen) -> bool:
    assert seen.roomkeeper_choice is not None
    complete = seen.roomkeeper_choice.complete
    ours, theirs = dict(seen.roomkeeper or {}), seen.python or {}
    if ours.get("token_ids") != complete["output_ids"]:
        return False
    if _is_trimmed(complete):  # theirs still has the stop token's
        theirs = {name: values[: -1 if values else None] for name, values in theirs.items()}
    return all(_ends_with(ours[name], theirs.get(name, [])) for name in ours)


def _is_trimmed(complete: dict[str, Any]) -> bool:
    """A stop token ended it, and is not among the tokens."""
    trimmed = complete["completion_tokens"] == len(complete["output_ids"]) + 1
    return trimmed and "matched_token_id" in complete


def _stop_was_trimmed(seen: Seen) -> bool:
    assert seen.roomkeeper_choice is not None
    return _is_trimmed(seen.roomkeeper_choice.complete) and seen.python == seen.roomkeeper + 1


def _stop_logprob_was_trimmed(seen: Seen) -> bool:
    assert seen.roomkeeper_choice is not None
    return _is_trimmed(seen.roomkeeper_choice.complete) and seen.python[:-1] == seen.roomkeeper


ALLOWED = [
    Allowed(
        "chunks.token_ids",
        "The Python servicer passes the engine's outputs on, which are cumulative without --stream-output, and merges "
        "those that nobody has read yet. Our Chunks carry only new tokens, whatever the engine yields; their "
        "concatenation is the same.",
        lambda seen: _whole(seen.python) == _whole(seen.roomkeeper),
    ),
    Allowed(
        "chunks.last.completion_tokens",
        "A matched stop token that is trimmed leaves a last output without a new token. The Python servicer sends a "
        "Chunk for it that repeats the tokens before; we send none. The Complete counts it in both.",
        _stop_was_trimmed,
    ),
    Allowed(
        "chunks.logprobs",
        "In the same case the Python servicer's Chunks carry the logprob of the token that they do not carry. Ours are "
        "aligned one to one with the token ids of the same message.",
        _stop_logprob_was_trimmed,
    ),
    Allowed(
        "complete.output_ids",
        "With --stream-output the Python servicer's Complete carries the tokens of the last output only. Ours carries "
        "all of the choice.",
        _all_tokens,
    ),
    Allowed(
        "complete.output_logprobs",
        "In a stream the Python servicer's Complete carries the logprobs of the last output only, beside all tokens, "
        "and always that of a stop token that is trimmed. Ours are aligned with the token ids of the same message.",
        _all_logprobs,
    ),
    *(
        Allowed(
            path,
            "The engine runs the prompt of a request with n > 1 once by itself, so that its choices find it in the "
            "prefix cache. We send it a request a choice, all at once, and the first ones compute the prompt.",
            lambda seen: seen.python > seen.roomkeeper >= 0,
        )
        for path in ("choices.complete.cached_tokens", "choices.chunks.last.cached_tokens")
    ),
]


def differences(python: Answer, roomkeeper: Answer) -> Iterator[Seen]:
    """Field by field. Paths of requests with several choices begin with `choices.` for cached tokens."""
    if python.code != roomkeeper.code:
        yield Seen("code", python.code, roomkeeper.code)
    if python.detail != roomkeeper.detail:
        yield Seen("detail", python.detail, roomkeeper.detail)
    if python.choices.keys() != roomkeeper.choices.keys():
        yield Seen("choices", sorted(python.choices), sorted(roomkeeper.choices))
        return
    several = len(python.choices) > 1
    for index, theirs in python.choices.items():
        ours = roomkeeper.choices[index]
        for path, a, b in _fields(theirs, ours):
            if a != b:
                full = f"choices.{path}" if several and path.endswith("cached_tokens") else path
                yield Seen(full, a, b, theirs, ours)


def _fields(theirs: Choice, ours: Choice) -> Iterator[tuple[str, Any, Any]]:
    yield "chunks.token_ids", theirs.tokens, ours.tokens
    yield "chunks.logprobs", sum(theirs.logprobs, []), sum(ours.logprobs, [])
    for name in sorted(theirs.last.keys() | ours.last.keys()):
        yield f"chunks.last.{name}", theirs.last.get(name), ours.last.get(name)
    for name in sorted(theirs.complete.keys() | ours.complete.keys()):
        yield f"complete.{name}", theirs.complete.get(name), ours.complete.get(name)


def concatenated(choice: Choice) -> list[int]:
    """The tokens of Chunks that carry new ones only."""
    return sum(choice.tokens, [])


def _whole(chunks: list[list[int]]) -> list[int]:
    """The tokens of Chunks, be they cumulative or not."""
    cumulative = all(
        now[: len(before)] == before for before, now in zip(chunks, chunks[1:], strict=False)
    )
    return chunks[-1] if cumulative and chunks else sum(chunks, [])


def allowed(seen: Seen) -> Allowed | None:
    """The entry that allows it."""
    return next((entry for entry in ALLOWED if entry.path == seen.path and entry.when(seen)), None)
