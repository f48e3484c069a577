"""The lines between a launcher and the agents in its scheduler processes.

One JSON object a line. The agent says ``hello`` when it connects and ``ready`` once its event loop
is there; what the launcher asks then has a number that the answer repeats.

===================================================== ===========================================
``{"hello": 1}``                                      agent: the version it speaks
``{"ready": true, "why": ""}``                        agent: attached; or false, and why
``{"end": 7, "room": 99, "reason": "client_cancel"}`` launcher: end the room
``{"forget": 8, "room": 99}``                         launcher: it need not stay failed
``{"done": 7}``                                       agent: the engine has let go
``{"failed": 7, "why": "…"}``                         agent: it has not, and why
===================================================== ===========================================
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

VERSION = 1
#: A longer line is none of ours.
LINE_MAX = 2048
#: Characters of a reason that travel; with every one escaped, the line still fits.
TEXT_MAX = 256
#: Rooms asked for and not answered yet, per agent.
OUTSTANDING_MAX = 65536
#: Rooms are 63 bits wide.
ROOM_MAX = (1 << 63) - 1

_CREDENTIALS = struct.Struct("=iII")


class WireError(Exception):
    """Bytes that are no message of ours."""


class Inbox:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now. WireError: a line that is too long, or no object."""
        self._bytes += chunk
        *lines, rest = self._bytes.split(b"\n")
        self._bytes = bytearray(rest)
        if any(len(line) > LINE_MAX for line in (*lines, rest)):
            raise WireError(f"a line is longer than {LINE_MAX} bytes")
        return [_read(bytes(line)) for line in lines]


def _read(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a line is not JSON: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise WireError(f"a line is no object: {line[:80]!r}")
    return message


def write(**message: object) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def text(value: object) -> str:
    """A reason, short enough to travel, on one line."""
    return " ".join(str(value).split())[:TEXT_MAX]


def whole(message: dict[str, Any], key: str, limit: int) -> int:
    """A field that is a whole number from 0 to ``limit``. WireError: it is not."""
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise WireError(f"{key} is {value!r}; it must be a whole number from 0 to {limit}")
    return value


def peer_of(end: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other end, as the kernel has it."""
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return pid, uid
