"""HTTP/2 frames by hand, to send what no client library sends and see what none shows.

Whether a status came alone or behind headers, a half-close without a message, a reader that gives
no window, pings of one's own, a preface that never comes. One thread, blocking, with a guard.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time

from harness.client import GUARD_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20
CANCEL = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INITIAL_WINDOW_SIZE = 4

# RFC 7541, appendix A: names (and values, where it has any) of the static table.
_STATIC = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
]  # fmt: skip


def grpc_message(data: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A message with gRPC's five bytes before it, which may lie."""
    return struct.pack(">BI", compressed, len(data) if length is None else length) + data


class _Headers:
    """Decodes header blocks. gRPC core uses no Huffman codes, so there are none here."""

    def __init__(self) -> None:
        self._dynamic: list[tuple[str, str]] = []

    def _entry(self, index: int) -> tuple[str, str]:
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        return self._dynamic[index - len(_STATIC) - 1]

    def decode(self, block: bytes) -> dict[str, str]:
        headers: dict[str, str] = {}
        at = 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                name, value = self._entry(index)
            elif first & 0xE0 == 0x20:  # the table's size: only ever made smaller here
                _, at = _integer(block, at, 5)
                continue
            else:
                index, at = _integer(block, at, 6 if first & 0x40 else 4)
                name, at = (self._entry(index)[0], at) if index else _text(block, at)
                value, at = _text(block, at)
                if first & 0x40:
                    self._dynamic.insert(0, (name, value))
            headers[name] = value
        return headers


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    shift = 0
    while value >= most:
        value += (block[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not block[at - 1] & 0x80:
            break
    return value, at


def _text(block: bytes, at: int) -> tuple[str, int]:
    assert not block[at] & 0x80, "a Huffman code: teach this test to read them"
    length, at = _integer(block, at, 7)
    return block[at : at + length].decode("latin-1"), at + length


def _literal(name: str, value: str) -> bytes:
    return b"".join(
        [b"\x00", *(bytes([len(part)]) + part.encode("latin-1") for part in (name, value))]
    )


@dataclasses.dataclass
class Seen:
    """What has come on a stream, in order: ("headers", …), ("data", …), ("reset", code)."""

    events: list[tuple[str, object]] = dataclasses.field(default_factory=list)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    data: bytes = b""
    over: bool = False

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    @property
    def status(self) -> int:
        return int(self.headers.get("grpc-status", "-1"))

    @property
    def alone(self) -> bool:
        """A status before any response headers: one HEADERS frame that ends the stream."""
        return self.over and self.kinds[:1] == ["headers"] and "headers" not in self.kinds[1:]

    def messages(self) -> list[bytes]:
        found = []
        at = 0
        while at + 5 <= len(self.data):
            (length,) = struct.unpack(">I", self.data[at + 1 : at + 5])
            if at + 5 + length > len(self.data):
                break
            found.append(self.data[at + 5 : at + 5 + length])
            at += 5 + length
        return found


class Connection:
    """A client connection. ``window``: of each stream; ``reads``: it gives window back."""

    def __init__(
        self, address: str, *, window: int = 65535, reads: bool = True, preface: bool = True
    ) -> None:
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.streams: dict[int, Seen] = {}
        self.pongs: list[bytes] = []
        self.goaway: int | None = None
        self.closed = False
        self._reads = reads
        self._decoder = _Headers()
        self._next = 1
        self._input = b""
        if preface:
            self.socket.sendall(PREFACE)
            self.frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # -- sending --

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
        self.socket.sendall(head + payload)

    def open(self, path: str, *, end: bool = False, extra: dict[str, str] | None = None) -> int:
        """Headers of a gRPC call; the stream's number."""
        stream = self._next
        self._next += 2
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
            **(extra or {}),
        }
        block = b"".join(_literal(name, value) for name, value in headers.items())
        self.streams[stream] = Seen()
        self.frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)
        return stream

    def data(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        at = 0
        while at == 0 or at < len(payload):
            part = payload[at : at + 16384]
            at += max(len(part), 1)
            last = at >= len(payload)
            self.frame(DATA, END_STREAM if end and last else 0, stream, part)

    def call(self, path: str, data: bytes) -> int:
        """A call with one message."""
        stream = self.open(path)
        self.data(stream, grpc_message(data), end=True)
        return stream

    def reset(self, stream: int) -> None:
        self.frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))

    def window(self, stream: int, more: int) -> None:
        """Gives the server more room; stream 0 is the connection."""
        self.frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))

    def ping(self, payload: bytes = b"8 bytes.") -> None:
        self.frame(PING, 0, 0, payload)

    # -- receiving --

    def _fill(self, need: int, deadline: float) -> bool:
        while len(self._input) < need:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(1 << 16)
            except TimeoutError:
                return False
            except OSError:
                more = b""
            if not more:
                self.closed = True
                return False
            self._input += more
        return True

    def step(self, guard_s: float = GUARD_S) -> bool:
        """Takes one frame in; False when none came, or the connection has ended."""
        deadline = time.monotonic() + guard_s
        if self.closed or not self._fill(9, deadline):
            return False
        length = int.from_bytes(self._input[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self._input[3:9])
        if not self._fill(9 + length, deadline):
            return False
        payload, self._input = self._input[9 : 9 + length], self._input[9 + length :]
        self._take(kind, flags, stream & 0x7FFFFFFF, payload)
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self.frame(SETTINGS, ACK, 0)
        elif kind == PING:
            if flags & ACK:
                self.pongs.append(payload)
            else:
                self.frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self.goaway = struct.unpack(">I", payload[4:8])[0]
        elif stream in self.streams:
            self._take_stream(self.streams[stream], kind, flags, stream, payload)

    def _take_stream(self, seen: Seen, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            assert flags & END_HEADERS and not flags & (PADDED | PRIORITY_FLAG), "a simpler server"
            headers = self._decoder.decode(payload)
            seen.headers.update(headers)
            seen.events.append(("headers", headers))
        elif kind == DATA:
            assert not flags & PADDED
            seen.data += payload
            seen.events.append(("data", payload))
            if self._reads and payload:
                for target in (0, stream):
                    self.window(target, len(payload))
        elif kind == RST_STREAM:
            seen.events.append(("reset", struct.unpack(">I", payload)[0]))
            seen.over = True
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            seen.over = True

    def end(self, stream: int, guard_s: float = GUARD_S) -> Seen:
        """Everything of a stream, once it is over."""
        deadline = time.monotonic() + guard_s
        while not self.streams[stream].over and time.monotonic() < deadline:
            if not self.step(deadline - time.monotonic()):
                break
        assert self.streams[stream].over, f"not over: {self.streams[stream]}, closed={self.closed}"
        return self.streams[stream]

    def wait_events(self, stream: int, count: int, guard_s: float = GUARD_S) -> Seen:
        """A stream once it has shown so many frames."""
        deadline = time.monotonic() + guard_s
        seen = self.streams[stream]
        while len(seen.events) < count and self.step(deadline - time.monotonic()):
            pass
        assert len(seen.events) >= count, seen
        return seen

    def quiet(self, stream: int, quiet_s: float) -> Seen:
        """Takes in what comes within ``quiet_s``; the stream as it is then."""
        deadline = time.monotonic() + quiet_s
        while (left := deadline - time.monotonic()) > 0:
            self.step(left)
            if self.closed:
                break
        return self.streams[stream]

    def wait_closed(self, guard_s: float = GUARD_S) -> bool:
        """Whether the server ends the connection."""
        deadline = time.monotonic() + guard_s
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            self.step(left)
        return self.closed
