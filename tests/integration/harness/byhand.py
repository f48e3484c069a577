"""A worker in the test's own process whose engine is the test: nothing comes unless it is said.

So a test decides when a request gets its first output, when a slot is free, whether an abort is
acknowledged, and sees every command the servicer has given.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from typing import Any

from harness.client import GUARD_S, QUIET_S, Client, Stream, until
from roomkeeper.config import Config
from roomkeeper.engine import ALL_CHOICES, WorkerInfo
from roomkeeper.servicer import Abort, Query, ReleaseRoom, Servicer, Submission

#: Settings under which nothing happens by itself while a test looks.
CALM: dict[str, object] = {
    "stall_seconds": 3600,
    "dead_seconds": 7200,
    "wait_seconds": 3600,
    "log_level": "warning",
}


class Leg:
    """One submitted request, to be answered by hand."""

    def __init__(self, engine: HandEngine, submission: Submission) -> None:
        self._engine = engine
        self.submission = submission
        self.handle = submission.handle
        self.given: dict[int, int] = {}

    def output(
        self, ids: list[int], finish: Any = None, *, choice: int = 0, prompt: int | None = None
    ) -> None:
        """New tokens of a choice; with ``finish`` they are its last."""
        self.given[choice] = self.given.get(choice, 0) + len(ids)
        prompt_tokens = self.submission.input_count if prompt is None else prompt
        step = (self.handle, choice, ids, finish, prompt_tokens, self.given[choice], 0)
        self._engine.servicer.push([step])

    def finish(self, ids: tuple[int, ...] | list[int] = (9,), reason: Any = "length") -> None:
        """The last tokens of every choice."""
        for choice in range(self.submission.n):
            self.output(list(ids), reason, choice=choice)

    @property
    def aborts(self) -> list[int]:
        """Which choices the engine was told to abort, in order."""
        return [abort.choice for abort in self._engine.aborts if abort.handle == self.handle]


class HandEngine:
    """Takes the servicer's commands and keeps them for the test. Threads: one of its own."""

    def __init__(self, servicer: Servicer, acknowledge: bool) -> None:
        self.servicer = servicer
        self.acknowledge = acknowledge
        self.legs: list[Leg] = []
        self.aborts: list[Abort] = []
        self.queries: list[Query] = []
        self.released: list[ReleaseRoom] = []
        #: What questions are answered with; None: they are not.
        self.answers: dict[str, Any] = {"is_paused": False, "probe": True}
        self._changed = threading.Condition()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="engine by hand")
        self._thread.start()

    def close(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join(GUARD_S)
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        source = self.servicer.fileno()
        while True:
            ready, _, _ = select.select([source, self._stop_read], [], [])
            if self._stop_read in ready:
                return
            for command in self.servicer.take():
                self._take(command)

    def _take(self, command: Any) -> None:
        with self._changed:
            if isinstance(command, Submission):
                self.legs.append(Leg(self, command))
            elif isinstance(command, Abort):
                self.aborts.append(command)
            elif isinstance(command, Query):
                self.queries.append(command)
            else:
                self.released.append(command)
            self._changed.notify_all()
        if isinstance(command, Abort) and self.acknowledge:
            self.servicer.aborted(command.handle, command.choice)
        if isinstance(command, Query) and self.answers.get(command.kind) is not None:
            self.servicer.answer(command.query_id, self.answers[command.kind])

    def leg(self, request_id: str, life: int = 0) -> Leg:
        """The submission of a request, once it is there; ``life`` counts those of the same id."""

        def find() -> Leg | None:
            lives = [leg for leg in self.legs if leg.submission.request_id == request_id]
            return lives[life] if len(lives) > life else None

        with self._changed:
            assert self._changed.wait_for(find, GUARD_S), f"{request_id} was never submitted"
            found = find()
            assert found is not None
            return found

    def wait_aborts(self, count: int) -> list[Abort]:
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.aborts) >= count, GUARD_S)
            assert enough, f"{count} aborts expected, there are {self.aborts}"
            return list(self.aborts)

    def quiet(self, quiet_s: float = QUIET_S) -> None:
        """No command comes for so long."""
        before = self._numbers()
        threading.Event().wait(quiet_s)
        assert self._numbers() == before, f"{self.order} {self.aborts}"

    def _numbers(self) -> tuple[int, ...]:
        return len(self.legs), len(self.aborts), len(self.released)

    @property
    def order(self) -> list[str]:
        """Request ids as they were submitted."""
        return [leg.submission.request_id for leg in self.legs]


class HandWorker:
    """Servicer, engine and a client."""

    def __init__(self, servicer: Servicer, engine: HandEngine, port: int, client: Client) -> None:
        self.servicer = servicer
        self.engine = engine
        self.port = port
        self.client = client
        self.address = f"127.0.0.1:{port}"

    def generate(self, request_id: str, **fields: Any) -> Stream:
        return self.client.generate(request_id, **fields)

    def admitted(self, request_id: str, **fields: Any) -> tuple[Stream, Leg]:
        """A call that is in the engine."""
        stream = self.generate(request_id, **fields)
        return stream, self.engine.leg(request_id)

    def waiting(self, request_id: str, **fields: Any) -> Stream:
        """A call that stands in line."""
        before = self.rank()["waiting"]
        stream = self.generate(request_id, **fields)
        until(lambda: self.rank()["waiting"] == before + 1, f"{request_id} waits")
        return stream

    def rank(self, rank: int = 0) -> dict[str, Any]:
        numbers: dict[str, Any] = self.servicer.counts()["ranks"][rank]
        return numbers

    def idle(self) -> None:
        """Nothing is held, waits, or runs any more."""

        def all_free() -> bool:
            counts = self.servicer.counts()
            return not any(counts["legs"].values()) and not any(
                rank[name]
                for rank in counts["ranks"]
                for name in ("held_slots", "releasing", "waiting", "running", "claimed_tokens")
            )

        until(all_free, f"the worker is idle: {self.servicer.counts()}")


@contextlib.contextmanager
def by_hand(
    role: Any = "null",
    *,
    window: int = 4,
    settings: dict[str, object] | None = None,
    acknowledge: bool = True,
    ready: bool = True,
    release_agent: bool = False,
    listen: tuple[str, ...] = (),
    **info: Any,
) -> Iterator[HandWorker]:
    """Serves a worker whose engine is the test. ``info``: fields of WorkerInfo."""
    args = {"max_num_seqs": window, "disaggregation_mode": role}
    fields = {"model_path": "by-hand", "served_model_name": "by-hand", "server_args": args, **info}
    servicer = Servicer(
        WorkerInfo(role=role, window=window, **fields),
        Config({**CALM, **(settings or {})}),
        release_agent=release_agent,
    )
    engine: HandEngine | None = None
    try:
        port = servicer.listen("127.0.0.1:0")
        for address in listen:
            servicer.listen(address)
        servicer.start()
        engine = HandEngine(servicer, acknowledge)
        if ready:
            servicer.state("ready")
        with Client(f"127.0.0.1:{port}") as client:
            yield HandWorker(servicer, engine, port, client)
    finally:
        servicer.stop()
        if engine is not None:
            engine.close()


__all__ = ["ALL_CHOICES", "CALM", "HandEngine", "HandWorker", "Leg", "by_hand"]
