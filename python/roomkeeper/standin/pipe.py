"""One end of the socket pair between the frontend and a scheduler process.

Neither end ever blocks the other: what the socket does not take is kept and sent by ``flush``. A
scheduler that is stopped so costs the frontend memory, not its loop. One thread an end.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

_HEADER = struct.Struct("=I")
_READ_BYTES = 1 << 20
#: One call takes no more than this, so that a reader who is slower than the writer has his turn.
_READ_MOST_BYTES = 4 << 20


class Pipe:
    """Sends and receives whole messages. ``want_write`` hears when ``flush`` is needed, or not."""

    def __init__(self, end: socket.socket, want_write: Callable[[bool], None]) -> None:
        end.setblocking(False)
        self._socket = end
        self._want_write = want_write
        self._out = bytearray()
        self._in = bytearray()

    def fileno(self) -> int:
        """For a selector or ``loop.add_reader``."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Sends, or keeps it for later. To an end that is gone it does nothing: reading tells."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        waiting = bool(self._out)
        self._out += _HEADER.pack(len(body)) + body
        if not waiting:
            self._write()
            if self._out:
                self._want_write(True)

    def flush(self) -> None:
        """The socket takes more."""
        self._write()
        if not self._out:
            self._want_write(False)

    def _write(self) -> None:
        try:
            while self._out:
                with memoryview(self._out) as view:
                    sent = self._socket.send(view)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()

    def receive(self) -> list[Any]:
        """The messages that are complete. EOFError when the other end is gone and all is read."""
        gone = False
        taken = 0
        try:
            while chunk := self._socket.recv(_READ_BYTES):
                self._in += chunk
                taken += len(chunk)
                if len(chunk) < _READ_BYTES or taken >= _READ_MOST_BYTES:
                    break
            else:
                gone = True
        except BlockingIOError:
            pass
        except OSError:
            gone = True
        messages = self._complete()
        if gone and not messages:
            raise EOFError
        return messages

    def _complete(self) -> list[Any]:
        messages = []
        at = 0
        while len(self._in) - at >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._in, at)
            end = at + _HEADER.size + size
            if len(self._in) < end:
                break
            messages.append(pickle.loads(self._in[at + _HEADER.size : end]))
            at = end
        del self._in[:at]
        return messages

    def close(self) -> None:
        """Again is fine."""
        self._socket.close()
