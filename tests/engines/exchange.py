"""Sends a drawn case to a worker and reads what comes."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from draw import SERVICE, Case
from requests_table import TIMEOUT_S, Answer, as_dict, read
from workers import Worker

#: A subscription goes on until its deadline.
SUBSCRIBED_S = 0.2


@dataclass
class Reply:
    """The answer to any call but Generate."""

    code: str
    detail: str
    messages: list[dict[str, Any]]


class Line:
    """One connection to a worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._channel = grpc.insecure_channel(worker.address)
        self._calls = {}
        for method in SERVICE.methods:
            kind = "unary_stream" if method.server_streaming else "unary_unary"
            self._calls[method.name] = getattr(self._channel, kind)(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=None,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )

    def close(self) -> None:
        self._channel.close()

    def send(self, case: Case) -> Answer | Reply:
        """Sends it and reads to the end."""
        data = case.request.SerializeToString() if case.spoilt is None else case.spoilt
        call = self._calls[case.method]
        if case.method == "Generate":
            return read(case.request.request_id, lambda: call(data, timeout=TIMEOUT_S))
        subscribed = case.method == "SubscribeKvEvents"
        received: list[Any] = []
        code, detail = "OK", ""
        try:
            answer = call(data, timeout=SUBSCRIBED_S if subscribed else TIMEOUT_S)
            received += (
                answer if SERVICE.methods_by_name[case.method].server_streaming else [answer]
            )
        except grpc.RpcError as error:
            code, detail = error.code().name, error.details() or ""
        if case.method == "GetTokenizer":
            return Reply(code, detail, [archive(received)])
        return Reply(code, detail, [as_dict(message) for message in received])


def archive(chunks: list[Any]) -> dict[str, Any]:
    """The files in a tokenizer's archive. Its bytes are the archiver's, so they are not compared."""
    data = b"".join(chunk.data for chunk in chunks)
    if not data:
        return {}
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        return {name: files.read(name).decode() for name in sorted(files.namelist())}
