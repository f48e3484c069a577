"""Multimodal inputs on their way from the servicer into an engine.

``Inputs`` reads them once, however many engine requests they are for. What an engine is given is
its own: TokenSpeed's classes where TokenSpeed is loaded, else the plain ones below.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

#: Numbers of ``smg.grpc.common.Modality``.
IMAGE, AUDIO, VIDEO = 1, 2, 3

#: Fewer bytes than this are read and made into tensors on the loop, more beside it.
BESIDE_BYTES = 1 << 20


class Remote(NamedTuple):
    """Memory of another host."""

    transport: str
    descriptor: bytes
    nbytes: int


class Tensor(NamedTuple):
    """``dtype`` as torch names it; the bytes are little-endian and nobody else's."""

    dtype: str
    shape: tuple[int, ...]
    payload: bytearray | Remote


class Media(NamedTuple):
    """One image, video or piece of audio."""

    modality: int
    content_hash: bytes
    #: What the tower sees; None: an encode worker's has, or the prefill's.
    encoder_input: Tensor | None
    tensors: Mapping[str, Tensor]
    #: (offset, length) in the prompt.
    placeholders: Sequence[tuple[int, int]]
    placeholder_token_id: int | None
    #: (host, port, room) where the encode worker's embedding is fetched.
    encoder: tuple[str, int, int] | None


class Source(Protocol):
    """A Submission or an Encode."""

    def take_media(self) -> list[Any]:
        """The items as tuples; once."""


@dataclasses.dataclass
class MultimodalInputs:
    """What a request of an engine without classes of its own carries."""

    items: list[Media]


@dataclasses.dataclass
class EncodeItem:
    """What an engine without classes of its own is given to encode."""

    request_id: str
    room: int
    item: Media


#: Makes what ``generate_request`` is given as ``precomputed_multimodal_inputs``.
MakeInputs: TypeAlias = Callable[[list[Media]], Any]
#: Makes what ``submit_encode`` is given, from an id, a room and the item.
MakeEncode: TypeAlias = Callable[[str, int, Media], Any]


def read(source: Source) -> list[Media]:
    """ValueError when the bytes are no longer all there. Any thread."""
    return [_media(item) for item in source.take_media()]


def _media(item: tuple[Any, ...]) -> Media:
    modality, content_hash, given, tensors, placeholders, token_id, encoder = item
    return Media(
        modality,
        content_hash,
        None if given is None else _tensor(given),
        {name: _tensor(tensor) for name, tensor in tensors.items()},
        placeholders,
        token_id,
        encoder,
    )


def _tensor(tensor: tuple[Any, ...]) -> Tensor:
    dtype, shape, payload = tensor
    return Tensor(dtype, shape, Remote(*payload) if isinstance(payload, tuple) else payload)


class Inputs:
    """The multimodal inputs of one leg, for each of its engine requests. Engine's loop."""

    def __init__(self, source: Source, make: MakeInputs, *, beside: bool) -> None:
        self._source = source
        self._make = make
        self._beside = beside
        self._items: asyncio.Task[list[Media]] | None = None
        #: How many have been given.
        self.given = 0

    async def get(self) -> Any:
        """The engine's own object, a new one each time; the tensors' bytes are shared.

        ValueError for what cannot be read, or that the engine cannot take.
        """
        if self._items is None:
            self._items = asyncio.get_running_loop().create_task(self._read())
        # Shielded: a choice that is aborted does not take it from the others.
        items = await asyncio.shield(self._items)
        made = await self._call(self._make, items)
        self.given += 1
        return made

    async def _read(self) -> list[Media]:
        items: list[Media] = await self._call(read, self._source)
        return items

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Large ones beside the loop, so that other requests go on meanwhile."""
        return await asyncio.to_thread(function, *args) if self._beside else function(*args)


def plain_inputs(items: list[Media]) -> MultimodalInputs:
    """For engines without classes of their own."""
    return MultimodalInputs(items)


def plain_encode(request_id: str, room: int, item: Media) -> EncodeItem:
    """Likewise."""
    return EncodeItem(request_id, room, item)


def makers(async_llm: Any) -> tuple[MakeInputs, MakeEncode]:
    """How this process's engine wants to be given them."""
    if "tokenspeed" not in sys.modules:
        return plain_inputs, plain_encode
    from roomkeeper.tokenspeed.media import TokenSpeedMedia

    made = TokenSpeedMedia(async_llm)
    return made.inputs, made.encode


def modalities_of(model_config: Any) -> list[int]:
    """What the model's towers take, read off its configuration: IMAGE, AUDIO, VIDEO."""
    if getattr(model_config, "is_multimodal_active", None) is False:
        return []
    hf_config = getattr(model_config, "hf_config", None)
    model_type = str(_value(hf_config, "model_type") or "")
    thinker = _value(hf_config, "thinker_config")
    if model_type == "inkling_mm_model":
        return [
            modality
            for modality, tower in ((IMAGE, "vision_config"), (AUDIO, "audio_config"))
            if _value(_value(hf_config, tower), "decoder_dmodel") is not None
        ]
    if model_type == "qwen3_asr":
        return [AUDIO] if _value(thinker, "audio_config") is not None else []
    if model_type.startswith("qwen3_omni"):
        parts = ((IMAGE, "vision_config"), (AUDIO, "audio_config"), (VIDEO, "video_token_id"))
        return [modality for modality, part in parts if _value(thinker, part) is not None]
    found = []
    if getattr(model_config, "is_multimodal", False):
        found.append(IMAGE)
        if _value(hf_config, "video_token_id") is not None:
            found.append(VIDEO)
    # A checkpoint that declares a tower for audio has one, whatever its architecture is listed as.
    hears = getattr(model_config, "is_audio_model", False) or (
        _value(hf_config, "audio_config") is not None
    )
    if hears and _value(hf_config, "audio_token_id") is not None:
        found.append(AUDIO)
    return found


def _value(config: Any, name: str) -> Any:
    """Nested configurations are dicts or objects."""
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


def switched_on(variable: str, default: bool) -> bool:
    """A switch in the environment, as the engine's own servicer reads it."""
    value = os.environ.get(variable, "").strip().lower()
    if not value:
        return default
    return value in ("1", "true", "yes", "on")
