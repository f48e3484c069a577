"""The wire's messages and methods in Python, from the very descriptors the servicer was built with.

For clients: the command line, the demo, the tests. Needs protobuf (3.21 to 7) and, for calls,
grpcio; the servicer itself needs neither. The messages live in a pool of their own, so another
package's copy of the same contract does not get in the way::

    wire = load()
    channel = grpc.insecure_channel("127.0.0.1:50051")
    scheduler = wire.stub(channel, TOKENSPEED)
    scheduler.GetLoads(wire.message("tokenspeed.grpc.scheduler.GetLoadsRequest")())
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import roomkeeper

TOKENSPEED = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def descriptors_path() -> Path:
    """Where descriptors.bin is: beside the extension. FileNotFoundError when it is not built."""
    for directory in roomkeeper.__path__:
        path = Path(directory) / "descriptors.bin"
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"descriptors.bin is not in {', '.join(roomkeeper.__path__)}; build roomkeeper first"
    )


@dataclasses.dataclass(frozen=True)
class Method:
    """One RPC of a service."""

    name: str
    #: "/package.Service/Method", as a channel wants it.
    path: str
    #: Full names of its messages.
    request: str
    response: str
    client_streaming: bool
    server_streaming: bool


class Wire:
    """Messages and services of one descriptor set."""

    def __init__(self, descriptor_set: bytes) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool

        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
        self.pool = descriptor_pool.DescriptorPool()
        self.services: dict[str, tuple[Method, ...]] = {}
        for file in files.file:
            self.pool.AddSerializedFile(file.SerializeToString())
            for service in file.service:
                name = f"{file.package}.{service.name}"
                self.services[name] = tuple(_method(name, method) for method in service.method)

    def message(self, name: str) -> Any:
        """The class of a message by its full name; KeyError when there is none."""
        return _message_class(self.pool, self.pool.FindMessageTypeByName(name))

    def stub(self, channel: Any, service: str) -> Any:
        """An object with one callable per method, as grpcio's generated stubs have. Sync or aio."""
        stub = SimpleNamespace()
        for method in self.services[service]:
            request = "stream" if method.client_streaming else "unary"
            response = "stream" if method.server_streaming else "unary"
            call = getattr(channel, f"{request}_{response}")(
                method.path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=self.message(method.response).FromString,
            )
            setattr(stub, method.name, call)
        return stub


def _method(service: str, method: Any) -> Method:
    return Method(
        name=method.name,
        path=f"/{service}/{method.name}",
        request=method.input_type.removeprefix("."),
        response=method.output_type.removeprefix("."),
        client_streaming=method.client_streaming,
        server_streaming=method.server_streaming,
    )


def _message_class(pool: Any, descriptor: Any) -> Any:
    from google.protobuf import message_factory

    get = getattr(message_factory, "GetMessageClass", None)
    if get is not None:
        return get(descriptor)
    old: Any = message_factory.MessageFactory  # protobuf 3
    return old(pool).GetPrototype(descriptor)


@functools.cache
def load() -> Wire:
    """The wire this package was built with."""
    return Wire(descriptors_path().read_bytes())
