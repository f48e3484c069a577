"""The made-up model: token i of a request is a checksum of its prompt and i.

So an aggregated and a disaggregated run of one prompt say the same, and a test can know what comes.
Pure functions; any thread.
"""

from __future__ import annotations

import array
import zlib
from collections.abc import Sequence

from roomkeeper.multimodal import Media, Remote

EOS_TOKEN = 2
#: Below are <unk>, <s> and </s>, which the model never says.
FIRST_ORDINARY_TOKEN = 3
#: Logprobs repeat after so many positions.
_LOGPROB_STEPS = 8


def checksum(prompt: Sequence[int]) -> int:
    """What of a prompt the model looks at."""
    return zlib.crc32(array.array("I", prompt).tobytes())


def seen_of(item: Media) -> int:
    """What the made-up tower makes of an item: a checksum of all that it is given."""
    seen = zlib.crc32(item.content_hash)
    parts = dict(sorted(item.tensors.items()))
    if item.encoder_input is not None:
        parts["encoder_input"] = item.encoder_input
    for name, tensor in parts.items():
        if isinstance(tensor.payload, Remote):
            raise ValueError("a tensor is remote; the stand-in engine fetches none")
        seen = zlib.crc32(repr((name, tensor.dtype, tensor.shape)).encode(), seen)
        seen = zlib.crc32(tensor.payload, seen)
    return seen


def look(prompt_checksum: int, seen: Sequence[int]) -> int:
    """The checksum of a prompt whose items look like this."""
    return (
        zlib.crc32(array.array("I", seen).tobytes(), prompt_checksum) if seen else prompt_checksum
    )


def token_at(prompt_checksum: int, index: int, vocab_size: int) -> int:
    """Output token ``index`` of a prompt with this checksum."""
    ordinary = vocab_size - FIRST_ORDINARY_TOKEN
    return FIRST_ORDINARY_TOKEN + zlib.crc32(b"%d" % index, prompt_checksum) % ordinary


def output_of(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The first ``count`` tokens the model says after a prompt."""
    seen = checksum(prompt)
    return [token_at(seen, index, vocab_size) for index in range(count)]


def logprob_at(index: int) -> float:
    """The logprob of output token ``index``: exact in 32 bits, unlike its neighbours'."""
    return -(1 + index % _LOGPROB_STEPS) / _LOGPROB_STEPS


def alternatives_at(index: int, token: int, count: int, vocab_size: int) -> list[tuple[float, int]]:
    """The ``count`` likeliest tokens at a position: the one said, then its successors by number."""
    best = logprob_at(index)
    ordinary = vocab_size - FIRST_ORDINARY_TOKEN
    start = token - FIRST_ORDINARY_TOKEN
    return [
        (best - rank, FIRST_ORDINARY_TOKEN + (start + rank) % ordinary)
        for rank in range(min(count, ordinary))
    ]
