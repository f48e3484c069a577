"""The clients: each sends chat requests one after the other and reads every answer to its end.

A thread a client and the standard library's HTTP, so that the demo needs nothing for it. The
threads are daemons: an interrupted demo does not wait for answers that nobody wants any more.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
import time
from collections.abc import Sequence

from roomkeeper.demo.plan import MODEL_NAME, Outcome, Workload
from roomkeeper.demo.ports import HOST

#: Far beyond any deadline of the run: a guard against an answer that never ends.
ANSWER_S = 120.0
#: Of how many words prompts are made.
WORDS = 900
CODE = re.compile(r'"code"\s*:\s*"(\w+)"')
MESSAGE = re.compile(r'"message"\s*:\s*"([^"]{1,60})')


class Burst:
    """All requests of a workload, at most ``concurrency`` of them at a time."""

    def __init__(self, ports: Sequence[int], workload: Workload, name: str = "burst") -> None:
        self.outcomes: list[Outcome] = []
        #: Monotonic seconds at which the burst began.
        self.started = time.monotonic()
        #: Of the gateways; each request goes to the next one.
        self._ports = ports
        self._name = name
        self._workload = workload
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._clients = [
            threading.Thread(target=self._client, name=f"client-{number}", daemon=True)
            for number in range(min(workload.concurrency, workload.requests))
        ]

    def start(self) -> None:
        """Sends; returns at once."""
        self.started = time.monotonic()
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """No further requests; those under way end with their gateway."""
        self._stopped.set()

    def over(self) -> bool:
        """Whether every request has been answered, one way or the other."""
        return not any(client.is_alive() for client in self._clients)

    @property
    def requests(self) -> int:
        """How many there are in all."""
        return self._workload.requests

    @property
    def elapsed_s(self) -> float:
        """Since the burst began."""
        return time.monotonic() - self.started

    @property
    def wall_s(self) -> float:
        """From the first request to the last answer so far."""
        return max((o.sent_s + o.latency_s for o in self.outcomes), default=0.0)

    def _client(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                number = next(self._numbers)
            if number >= self._workload.requests:
                return
            if self._stopped.wait(self._until_due_s(number)):
                return
            sent = time.monotonic()
            seen, ok = self._send(number)
            took_s = time.monotonic() - sent
            outcome = Outcome(seen, ok, sent - self.started, took_s, number)
            with self._lock:
                self.outcomes.append(outcome)

    def _until_due_s(self, number: int) -> float:
        due = self.started + self._workload.due_s(number)
        return max(0.0, due - time.monotonic())

    def request_id(self, number: int) -> str:
        """A request's ``x-request-id``; what workers are sent begins with it and a dash."""
        return f"{self._name}-{number}"

    def _send(self, number: int) -> tuple[str, bool]:
        body = chat(number, self._workload.prompt_words, self._workload.tokens)
        port = self._ports[number % len(self._ports)]
        connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                body,
                {"Content-Type": "application/json", "X-Request-Id": self.request_id(number)},
            )
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__, False
        finally:
            connection.close()
        return verdict(answer.status, text)


def chat(number: int, prompt_words: int, tokens: int) -> str:
    """The body of a streamed chat request. The first word of a prompt is its number's own, so that
    no two have a prefix in common."""
    more = (f"w{(number * prompt_words + at) % WORDS}" for at in range(1, prompt_words))
    words = " ".join([f"w{number % WORDS}", *more])
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    return json.dumps(body)


def verdict(status: int, text: str) -> tuple[str, bool]:
    """What a client makes of an answer: how it names it, and whether it is whole.

    A stream that began with 200 may still end in an error, or simply end too early.
    """
    if status != http.client.OK:
        code = CODE.search(text) or MESSAGE.search(text)
        return (f"{status} {code.group(1)}" if code else str(status)), False
    if '"error"' in text:
        message = MESSAGE.search(text, text.find('"error"'))
        return f"200, then {message.group(1) if message else 'an error'}", False
    if "data: [DONE]" not in text or '"finish_reason":"length"' not in text.replace(" ", ""):
        return "200, cut short", False
    return "200", True
