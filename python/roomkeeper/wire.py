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

import functools
from collections.abc import Iterator
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


class Wire:
    """Messages and services of one descriptor set."""

    def __init__(self, descriptor_set: bytes) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool

        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
        self.pool = descriptor_pool.DescriptorPool()
        self.files = [file.name for file in files.file]
        for file in files.file:
            self.pool.AddSerializedFile(file.SerializeToString())

    def message(self, name: str) -> Any:
        """The class of a message by its full name; KeyError when there is none."""
        return _message_class(self.pool, self.pool.FindMessageTypeByName(name))

    def methods(self, service: str) -> Iterator[Any]:
        """The method descriptors of a service by its full name."""
        yield from self.pool.FindServiceByName(service).methods

    def stub(self, channel: Any, service: str) -> Any:
        """An object with one callable per method, as grpcio's generated stubs have. Sync or aio."""
        stub = SimpleNamespace()
        for method in self.methods(service):
            setattr(stub, method.name, self._callable(channel, service, method))
        return stub

    def _callable(self, channel: Any, service: str, method: Any) -> Any:
        request = "stream" if method.client_streaming else "unary"
        response = "stream" if method.server_streaming else "unary"
        return getattr(channel, f"{request}_{response}")(
            f"/{service}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_message_class(self.pool, method.output_type).FromString,
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
