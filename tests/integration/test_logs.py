"""Log lines: one shape each, whatever clients send, and the trace a request belongs to."""

from __future__ import annotations

import json
import logging
import sys
import urllib.request

import pytest

from harness.client import GUARD_S, Client, Stream, request, until
from harness.process import Program, free_port, standin
from roomkeeper import logs
from roomkeeper.config import Config

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
#: Ids that would break a line, an object, or a reader that trusts them.
HOSTILE = [
    'quote" \\ brace}',
    "two\nlines\r\tand a tab",
    "\x1b[31mred\x7f",
    "\u2028line\u2029 \ufeff",
    '{"level":"error"}',
    "e\u0301\U0001f600" * 70,
]


def send(client: Client, name: str, *traceparents: str) -> Stream:
    made = request(name, sampling={"max_new_tokens": 1000, "ignore_eos": True})
    metadata = [("traceparent", value) for value in traceparents]
    return Stream(client.scheduler.Generate(made, metadata=metadata, timeout=GUARD_S))


def logged(program: Program) -> list[str]:
    """Without what a stand-in tells its user on standard output."""
    return [line for line in program.output().split("\n") if not line.startswith("ready: ")]


def cancelled(client: Client, program: Program, name: str, *traceparents: str) -> str:
    """The line of a leg that its client has left."""
    stream = send(client, name, *traceparents)
    until(lambda: client.rooms()["open_streams"] > 0, "the leg is open")
    stream.cancel()
    program.wait_line(f"leg ended.*{name}")
    (line,) = [text for text in logged(program) if name in text]
    return line


def test_every_line_of_a_json_log_is_an_object_whatever_an_id_holds() -> None:
    flags = ("--room-log-format", "json", "--room-log-level", "debug")
    with standin(*flags) as worker:
        with Client(worker.address) as client:
            streams = [send(client, name, PARENT) for name in HOSTILE]
            until(lambda: client.rooms()["open_streams"] == len(HOSTILE), "all are open")
            for stream in streams:
                stream.cancel()

            def ended() -> list[dict[str, object]]:
                lines = [json.loads(line) for line in logged(worker.program)]
                return [line for line in lines if line["message"] == "leg ended"]

            until(lambda: len(ended()) == len(HOSTILE), "each end is a line")
            assert {line["request"] for line in ended()} <= {*HOSTILE}
            assert {line["trace_id"] for line in ended()} == {TRACE}
        worker.program.signal(15)
        assert worker.program.wait() == 0
        for line in logged(worker.program):
            parsed = json.loads(line)
            assert {"time", "level", "message"} <= parsed.keys(), line
            assert parsed["level"] in ("debug", "info", "warning", "error")


@pytest.mark.parametrize("text", [*HOSTILE, "lone \udc80 half", "nul \0"])
def test_pythons_lines_are_objects_too(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.set_up(Config({"log_format": "json"}))
    try:
        log.handlers[0].setStream(sys.stderr)  # type: ignore[attr-defined]
        log.warning("engine said %s", text)
        try:
            raise RuntimeError(text)
        except RuntimeError:
            log.exception("failed")
    finally:
        logging.getLogger("roomkeeper").handlers = []
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == f"engine said {text}"
    assert "RuntimeError" in json.loads(second)["trace"]


@pytest.mark.parametrize(
    "bad",
    [
        (f"00-{'0' * 32}-00f067aa0ba902b7-01",),
        (f"00-{TRACE}-{'0' * 16}-01",),
        (f"ff-{TRACE}-00f067aa0ba902b7-01",),
        (PARENT.upper(),),
        (PARENT[:-1],),
        (PARENT + "-more",),
        (PARENT.replace("-", "_"),),
        ("",),
    ],
    ids=["no trace", "no parent", "ff", "upper case", "short", "long", "dashes", "empty"],
)
def test_a_malformed_traceparent_is_ignored_and_counted(bad: tuple[str, ...]) -> None:
    port = free_port()
    with (
        standin("--room-metrics-port", str(port)) as worker,
        Client(worker.address) as client,
    ):
        assert "trace_id" not in cancelled(client, worker.program, "malformed", *bad)
        assert f"trace_id={TRACE}" in cancelled(client, worker.program, "sound", PARENT)
        later = PARENT.replace("00-", "01-", 1) + "-more"
        assert f"trace_id={TRACE}" in cancelled(client, worker.program, "later", later)
        assert "trace_id" not in cancelled(client, worker.program, "without")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=GUARD_S) as answer:
            assert "\nroomkeeper_bad_traceparents_total 1\n" in answer.read().decode()
