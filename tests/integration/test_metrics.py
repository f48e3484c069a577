"""Prometheus metrics: what is there, what it says, and that dashboards and alerts name nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness.byhand import by_hand
from harness.client import until
from harness.process import standin
from roomkeeper.engine import WorkerInfo
from roomkeeper.errors import ServicerError
from roomkeeper.servicer import Servicer
from standin_support import run_cli

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 30.0
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """A scrape, checked line by line against the text format."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        helped: set[str] = set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                helped.add(line.split()[2])
            elif line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                assert name in helped, line
                assert name not in self.types, f"{name} is there twice"
                self.types[name] = kind
            else:
                self._add(line)

    def _add(self, line: str) -> None:
        match = _SAMPLE.match(line)
        assert match is not None, line
        name, labels, value = match.groups()
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in self.types or self.types.get(family) == "histogram", line
        key = (name, tuple(sorted(_LABEL.findall(labels or ""))))
        assert key not in self.samples, line
        self.samples[key] = float(value)

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=GUARD_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def of(worker: Any) -> Metrics:
    return Metrics(worker.servicer.metrics())


def documented() -> set[str]:
    text = (ROOT / "docs/metrics.md").read_text()
    return set(re.findall(r"`(roomkeeper_[a-z_]+)`", text))


def test_every_metric_is_documented_and_every_documented_one_is_there() -> None:
    with by_hand("decode") as worker:
        assert set(of(worker).types) == documented()


@pytest.mark.parametrize("file", ["deploy/alerts.yaml", "deploy/grafana.json"])
def test_dashboards_and_alerts_name_metrics_that_exist(file: str) -> None:
    text = (ROOT / file).read_text()
    if file.endswith(".json"):
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    else:
        text = "\n".join(re.findall(r"expr: (.*)", text))
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"roomkeeper_[a-z_]+", text)}
    assert len(named) >= 5
    assert named <= documented()


def test_every_alert_says_what_to_do() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/alerts.yaml").read_text())
    operations = (ROOT / "docs/operations.md").read_text()
    assert len(alerts) >= 8
    assert re.findall(r"^\| `(Roomkeeper\w+)` \|", operations, re.MULTILINE) == alerts


def test_the_numbers_are_the_ledgers() -> None:
    with by_hand("decode", window=2, settings={"waiting": 1}) as worker:
        _, first = worker.admitted("a", room=1)
        worker.admitted("b", room=2)
        worker.waiting("c", room=3)
        assert worker.generate("d", room=4).end().name == "RESOURCE_EXHAUSTED"
        metrics = of(worker)
        assert metrics("roomkeeper_build_info", version="0.1.0", role="decode") == 1
        assert metrics("roomkeeper_window_slots", rank="0") == 2
        assert metrics("roomkeeper_held_slots", rank="0") == 2
        assert metrics("roomkeeper_waiting_legs", rank="0") == 1
        assert metrics("roomkeeper_legs", state="submitted") == 2
        assert metrics("roomkeeper_arrived_total") == 4
        assert metrics("roomkeeper_refused_total", cause="full") == 1
        assert metrics("roomkeeper_engine_state", state="ready") == 1
        assert metrics("roomkeeper_serving") == 1
        assert metrics("roomkeeper_wait_seconds_count") == 2
        assert metrics("roomkeeper_handoff_seconds_count") == 0
        first.finish()
        until(lambda: of(worker)("roomkeeper_ended_total", cause="completed") == 1, "it is over")
        metrics = of(worker)
        assert metrics("roomkeeper_handoff_seconds_count") == 1
        assert metrics("roomkeeper_wait_seconds_count") == 3
        assert metrics("roomkeeper_wait_seconds_bucket", le="+Inf") == 3
        below = [
            v for (n, _), v in metrics.samples.items() if n == "roomkeeper_wait_seconds_bucket"
        ]
        assert below == sorted(below)


def test_a_slot_that_is_released_late_is_seen_while_it_is_and_afterwards() -> None:
    with by_hand("decode", window=1) as worker:
        stream, leg = worker.admitted("a", room=1)
        stream.cancel()
        until(lambda: of(worker)("roomkeeper_releasing_slots", rank="0") == 1, "it is releasing")
        time.sleep(0.05)
        assert of(worker)("roomkeeper_releasing_oldest_seconds", rank="0") >= 0.05
        leg.finish()
        worker.idle()
        assert of(worker)("roomkeeper_release_seconds_count") == 1
        assert of(worker)("roomkeeper_release_seconds_sum") >= 0.05


def test_it_is_served_over_http_while_the_engine_is_stuck() -> None:
    servicer = Servicer(WorkerInfo(role="decode", window=4))
    port = servicer.listen_metrics("127.0.0.1:0")
    servicer.listen("127.0.0.1:0")
    servicer.start()
    try:
        metrics = Metrics(scrape(port))
        assert metrics("roomkeeper_window_slots", rank="0") == 4
        assert metrics("roomkeeper_serving") == 0  # nobody has said that the engine is ready
        Metrics(scrape(port, "/metrics?name=x"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(port, "/metricsx")
        assert refused.value.code == 404
        with pytest.raises(ServicerError, match="already been started"):
            servicer.listen_metrics("127.0.0.1:0")
    finally:
        servicer.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=GUARD_S).close()


def test_clients_that_say_nothing_or_nonsense_do_not_keep_others_out() -> None:
    servicer = Servicer(WorkerInfo())
    port = servicer.listen_metrics("127.0.0.1:0")
    servicer.start()
    try:
        with socket.create_connection(("127.0.0.1", port)) as mute:
            mute.sendall(b"GET /metr")
            for junk in (
                b"\x16\x03\x01\0" * 9,
                b"POST /metrics HTTP/1.1\r\n\r\n",
                b"x" * 9000,
                b"",
            ):
                with socket.create_connection(("127.0.0.1", port), timeout=GUARD_S) as bad:
                    with contextlib.suppress(OSError):  # it may hang up before we have said it all
                        bad.sendall(junk)
                        bad.shutdown(socket.SHUT_WR)
                        while bad.recv(4096):
                            pass
            Metrics(scrape(port))
    finally:
        servicer.stop()


def test_a_stop_does_not_wait_for_a_client_that_says_nothing() -> None:
    servicer = Servicer(WorkerInfo())
    port = servicer.listen_metrics("127.0.0.1:0")
    servicer.start()
    with socket.create_connection(("127.0.0.1", port)) as mute:
        mute.sendall(b"GET ")
        time.sleep(0.1)
        stopper = threading.Thread(target=servicer.stop)
        stopper.start()
        stopper.join(GUARD_S)
        assert not stopper.is_alive()


def test_a_worker_serves_them_where_it_is_told() -> None:
    with standin("--room-metrics-port", "0") as worker:
        port = int(worker.program.wait_line(r"metrics at http://127.0.0.1:(\d+)/metrics")[1])
        assert Metrics(scrape(port))("roomkeeper_serving") == 1


def test_a_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_cli("standin", "--room-metrics-port", port)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "cannot serve metrics" in line]
    assert len(lines) == 1
    assert "--room-metrics-port" in lines[0]
    assert "Traceback" not in done.stderr
