"""A request in the scheduler process. Scheduler thread only."""

from __future__ import annotations

import enum
from typing import Any

from roomkeeper.standin.messages import Generate, Output
from roomkeeper.standin.tokens import checksum, look, token_at

#: What a client of the real engine reads when a transfer fails or times out.
TRANSFER_FAILED = "PD/EPD remote transfer failed or timed out"


class Kind(enum.Enum):
    """Misbehaviours that the scheduler process takes part in (see faults.py)."""

    ABORT = "abort"
    SILENT = "silent"


class Request:
    """What has been asked, and how far it is."""

    def __init__(self, message: Generate) -> None:
        self.id = message.rid
        self.prompt = message.prompt
        self.max_new_tokens = message.max_new_tokens
        self.stream = message.stream
        self.bootstrap_port = message.bootstrap_port
        self.room = message.room
        self.output: list[int] = []
        #: How much of the output the frontend has.
        self.sent = 0
        #: Unknown before the first chunk.
        self.cached_tokens: int | None = None
        #: time.monotonic() at which waiting for the peer ends; None: nothing is waited for.
        self.deadline: float | None = None
        #: The client has gone; the engine has only marked it.
        self.aborted = False
        self._message = message
        #: What the model goes by. A decode takes it from its prefill, with the KV.
        self.checksum = 0
        self._checksum = checksum(message.prompt)
        self._seen = list(message.seen)
        self.encoders = message.encoders
        self._look()

    @property
    def complete(self) -> bool:
        """Whether what the encode workers make of its items is here."""
        return None not in self._seen

    def saw(self, item: int, seen: int) -> None:
        """An encode worker's embedding has come."""
        self._seen[item] = seen
        self._look()

    def _look(self) -> None:
        if self.complete:
            self.checksum = look(self._checksum, [seen for seen in self._seen if seen is not None])

    def next_token(self, vocab_size: int) -> int:
        """The model's next word."""
        return token_at(self.checksum, len(self.output), vocab_size)

    def finish_reason(self) -> dict[str, Any] | None:
        """Why the request is over, if it is."""
        message = self._message
        count = len(self.output)
        if abort := self._abort_reason(count):
            return abort
        last = self.output[-1] if self.output else None
        if last in message.stop_tokens and count >= message.min_new_tokens:
            return {"type": "stop", "matched": last}
        if count >= message.max_new_tokens:
            return {"type": "length", "length": count}
        return None

    def _abort_reason(self, count: int) -> dict[str, Any] | None:
        fault = self._message.misbehaviour
        if fault is None or fault.kind != Kind.ABORT.value or count < fault.after_tokens:
            return None
        return abort_reason(f"the prompt asked for an abort after {count} tokens", fault.status)

    @property
    def aborts_first(self) -> bool:
        """Whether the prompt asks for an abort before any output."""
        return self._abort_reason(0) is not None

    def wants_output(self, finish_reason: dict[str, Any] | None) -> bool:
        """Whether the frontend is told now."""
        if finish_reason is not None:
            return True
        fault = self._message.misbehaviour
        return self.stream and (fault is None or fault.kind != Kind.SILENT.value)

    def output_message(self, finish_reason: dict[str, Any] | None) -> Output:
        """What the frontend does not have yet."""
        new = self.output[self.sent :]
        self.sent = len(self.output)
        return Output(self.id, new, finish_reason, self.sent, self.cached_tokens or 0)


def abort_reason(message: str, status: int = 0) -> dict[str, Any]:
    """As the engine words it; status 0 is none."""
    reason: dict[str, Any] = {"type": "abort", "message": message, "err_type": 522}
    if status:
        reason["status_code"] = status
    return reason
