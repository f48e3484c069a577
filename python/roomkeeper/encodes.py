"""Items on their way to an encode worker's tower. Engine's loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from roomkeeper.answers import (
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    failure,
)
from roomkeeper.multimodal import BESIDE_BYTES, makers, read
from roomkeeper.servicer import Encode, Servicer
from roomkeeper.tokenspeed.media import discard

#: Items that are read at a time; more are turned away, since each may be hundreds of megabytes.
TASKS_MAX = 64

_log = logging.getLogger("roomkeeper")


class Encodes:
    """Reads each item, makes the engine's object of it, and hands it over."""

    def __init__(self, async_llm: Any, servicer: Servicer) -> None:
        self._llm = async_llm
        self._servicer = servicer
        self.make_inputs, self._make_encode = makers(async_llm)
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, encode: Encode) -> None:
        """Answered sooner or later, in any case."""
        if len(self._tasks) >= TASKS_MAX:
            self._refuse(encode, RESOURCE_EXHAUSTED, "too many items at a time; try again later")
            return
        task = asyncio.get_running_loop().create_task(self._take(encode))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, encode: Encode) -> None:
        submit = getattr(self._llm, "submit_encode", None)
        if not callable(submit):
            self._refuse(encode, UNIMPLEMENTED, "this engine encodes nothing")
            return
        try:
            beside = encode.media_bytes >= BESIDE_BYTES
            made = await asyncio.to_thread(self._made, encode) if beside else self._made(encode)
            try:
                submit(made)
            except BaseException:
                discard(made)
                raise
        except ValueError as error:
            self._refuse(encode, INVALID_ARGUMENT, str(error))
        except Exception as error:
            _log.exception("the engine did not take an item to encode: room %d", encode.room)
            self._refuse(encode, INTERNAL, str(error) or type(error).__name__)
        else:
            self._servicer.answer(encode.query_id, {"success": True})

    def _made(self, encode: Encode) -> Any:
        (item,) = read(encode)
        # Never the same name twice, whatever gateways call theirs.
        name = f"{encode.request_id or 'encode'}~{encode.query_id}"
        return self._make_encode(name, encode.room, item)

    def _refuse(self, encode: Encode, code: int, message: str) -> None:
        self._servicer.answer(encode.query_id, failure(code, message))
