"""A TCP connection of short lines on the scheduler's selector. Scheduler thread only."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

#: A longer line is none of ours.
LINE_MAX = 4096
#: What a peer that does not read may leave unsent.
UNSENT_MAX = 1 << 20
_READ_BYTES = 1 << 16


class Lines:
    """``on_line`` gets each line, ``on_lost`` is told once when the connection is gone.

    Both get this object. The selector's data of a socket is a function of the event mask.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        end: socket.socket,
        on_line: Callable[[Lines, bytes], None],
        on_lost: Callable[[Lines], None],
    ) -> None:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector = selector
        self._socket = end
        self._on_line = on_line
        self._on_lost = on_lost
        self._in = bytearray()
        self._out = bytearray()
        self._open = True
        # Also for writing at first: that is how a connection in progress says that it is there.
        self._writing = True
        selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE, self._ready)

    def send(self, line: bytes) -> None:
        """Sends, or keeps it until the peer takes it. A peer that takes nothing is dropped."""
        if not self._open:
            return
        self._out += line + b"\n"
        if len(self._out) > UNSENT_MAX:
            self.close()
        else:
            self._want_write(True)

    def close(self) -> None:
        """Again is fine."""
        if self._open:
            self._open = False
            self._selector.unregister(self._socket)
            self._socket.close()
            self._on_lost(self)

    def _ready(self, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._write()
            if mask & selectors.EVENT_READ:
                self._read()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _write(self) -> None:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "connection failed")
        if self._out:
            del self._out[: self._socket.send(self._out)]
        if not self._out:
            self._want_write(False)

    def _want_write(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(self._socket, events, self._ready)

    def _read(self) -> None:
        chunk = self._socket.recv(_READ_BYTES)
        if not chunk:
            raise ConnectionResetError
        self._in += chunk
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        for line in lines:
            if self._open:
                self._on_line(self, bytes(line))
        if len(self._in) > LINE_MAX:
            raise ConnectionResetError
