"""A gRPC client whose calls can be watched: what came, and in which order."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from roomkeeper import wire

#: A wide guard against hangs, not a measurement.
GUARD_S = 30.0
#: What must not happen is given so long to happen.
QUIET_S = 0.15

WIRE = wire.load()
SCHEDULER = "tokenspeed.grpc.scheduler."
GENERATE = f"/{wire.TOKENSPEED}/Generate"

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def message(name: str, **fields: Any) -> Any:
    """A message of the scheduler's package."""
    return WIRE.message(SCHEDULER + name)(**fields)


def health_request(service: str = "") -> Any:
    return WIRE.message("grpc.health.v1.HealthCheckRequest")(service=service)


def request(
    request_id: str,
    *,
    input_ids: tuple[int, ...] | list[int] = (5, 6, 7),
    room: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8998,
    stream: bool = True,
    sampling: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """A GenerateRequest; with ``room`` it is the leg of a pair."""
    made = message("GenerateRequest", request_id=request_id, stream=stream, **fields)
    made.tokenized.input_ids.extend(input_ids)
    for name, value in (sampling or {}).items():
        field = getattr(made.sampling_params, name)
        if hasattr(field, "extend"):
            field.extend(value)
        else:
            setattr(made.sampling_params, name, value)
    if room is not None:
        made.kv_bootstrap_info.bootstrap_host = host
        made.kv_bootstrap_info.bootstrap_port = port
        made.kv_bootstrap_info.bootstrap_room = room
    return made


def until(condition: Callable[[], Any], what: str, guard_s: float = GUARD_S) -> Any:
    """Waits for a condition; fails by name when it never holds."""
    deadline = time.monotonic() + guard_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.005)


@dataclasses.dataclass(frozen=True)
class Status:
    """How a call ended."""

    code: grpc.StatusCode
    details: str
    trailing: dict[str, str]

    @property
    def name(self) -> str:
        return self.code.name


class Stream:
    """One server-streaming call, read as it comes by threads of its own.

    ``opened`` is set when response headers have come, or the call has ended without any: gRPC's
    Python API does not tell the two apart (harness/http2.py does).
    """

    def __init__(self, call: Any, *, read: bool = True) -> None:
        self.call = call
        self.opened = threading.Event()
        self.messages: list[Any] = []
        self.status: Status | None = None
        self._changed = threading.Condition()
        self._spawn(self._watch_headers)
        if read:
            self.read()

    @staticmethod
    def _spawn(work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def read(self) -> None:
        """Begins to read; a stream made with ``read=False`` lets the server's output pile up."""
        self._spawn(self._read)

    def _watch_headers(self) -> None:
        try:
            self.call.initial_metadata()
        except grpc.RpcError:
            pass
        self.opened.set()

    def _read(self) -> None:
        try:
            for received in self.call:
                with self._changed:
                    self.messages.append(received)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        trailing = dict(self.call.trailing_metadata() or ())
        with self._changed:
            self.status = Status(self.call.code(), self.call.details() or "", trailing)
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], Any], what: str, guard_s: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(condition, guard_s):
                raise AssertionError(f"never happened: {what}; got {self.messages}, {self.status}")
            return condition()

    def end(self, guard_s: float = GUARD_S) -> Status:
        """The status, once there is one."""
        status: Status = self._wait(lambda: self.status, "the stream's end", guard_s)
        return status

    def ended(self, quiet_s: float = 0.0) -> bool:
        """Whether it is over, or is within ``quiet_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.status is not None, quiet_s)

    def get(self, count: int) -> list[Any]:
        """The first ``count`` messages, once they are there."""
        self._wait(
            lambda: len(self.messages) >= count or self.status is not None,
            f"message {count} of the stream",
            GUARD_S,
        )
        assert len(self.messages) >= count, f"ended after {len(self.messages)}: {self.status}"
        return self.messages[:count]

    def cancel(self) -> None:
        self.call.cancel()

    # -- what a Generate stream has carried --

    def chunks(self, index: int = 0) -> list[Any]:
        return [m.chunk for m in self.messages if m.HasField("chunk") and m.chunk.index == index]

    def complete(self, index: int = 0) -> Any:
        """The Complete of a choice: exactly one, behind all its Chunks."""
        kinds = [m.WhichOneof("response") for m in self.messages if _index(m) == index]
        assert kinds.count("complete") == 1 and kinds[-1] == "complete", kinds
        return next(
            m.complete
            for m in self.messages
            if m.HasField("complete") and m.complete.index == index
        )

    def chunk_ids(self, index: int = 0) -> list[int]:
        return [i for chunk in self.chunks(index) for i in chunk.token_ids]


def _index(received: Any) -> int:
    return int(getattr(received, received.WhichOneof("response")).index)


class Client:
    """A channel to one worker."""

    def __init__(self, address: str, *, options: tuple[tuple[str, Any], ...] = ()) -> None:
        self.address = address
        # A channel of its own: gRPC shares connections between channels of the same address.
        settings = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            *options,
        )
        self.channel = grpc.insecure_channel(address, options=settings)
        self.scheduler = WIRE.stub(self.channel, wire.TOKENSPEED)
        self.health = WIRE.stub(self.channel, wire.HEALTH)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, made: Any, *, read: bool = True, timeout: float | None = None) -> Stream:
        return Stream(self.scheduler.Generate(made, timeout=timeout), read=read)

    def generate(self, request_id: str, *, read: bool = True, **fields: Any) -> Stream:
        return self.send(request(request_id, **fields), read=read)

    def raw(self, path: str, data: bytes, guard_s: float = GUARD_S) -> Status:
        """Sends these bytes as the one message of a call; its status."""
        return Stream(self.channel.unary_stream(path)(data, timeout=guard_s)).end(guard_s + 5)

    def abort(self, request_id: str) -> Any:
        return self.scheduler.Abort(message("AbortRequest", request_id=request_id), timeout=GUARD_S)

    def check(self, service: str = "", timeout: float = GUARD_S) -> int:
        return int(self.health.Check(health_request(service), timeout=timeout).status)

    def watch(self, service: str = "") -> Stream:
        return Stream(self.health.Watch(health_request(service)))

    def loads(self, timeout: float = GUARD_S, **fields: Any) -> Any:
        return self.scheduler.GetLoads(message("GetLoadsRequest", **fields), timeout=timeout)

    def server_info(self, timeout: float = GUARD_S) -> Any:
        return self.scheduler.GetServerInfo(message("GetServerInfoRequest"), timeout=timeout)

    def rooms(self) -> Any:
        """What the worker says of its rooms: ``scheduler_info.roomkeeper``."""
        return self.server_info().scheduler_info["roomkeeper"]


def failure(call: Callable[[], Any]) -> Status:
    """The status of a unary call that must fail."""
    try:
        answer = call()
    except grpc.RpcError as error:
        status: Any = error
        trailing = dict(status.trailing_metadata() or ())
        return Status(status.code(), status.details() or "", trailing)
    raise AssertionError(f"it did not fail but answered {answer}")
