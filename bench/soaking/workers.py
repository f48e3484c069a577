"""The three workers of a soak, what can be seen of them, and the proxy that their link goes through."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import sys
import threading
import urllib.request
from pathlib import Path

from roomkeeper.demo.children import Child, Children
from roomkeeper.demo.ports import HOST, Ports, free_ports
from roomkeeper.demo.watch import is_serving

READY_S = 60.0
SCRAPE_S = 10.0
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
FLAGS = (
    *("--faults", "--vocab-size", "32000", "--step-ms", "10"),
    *("--room-backlog-bytes", "65536", "--room-twin-seconds", "2", "--room-wait-seconds", "10"),
    *("--bootstrap-timeout", "20", "--transfer-timeout", "30"),
)
BY_ROLE = {
    "aggregated": (
        *("--role", "null", "--max-num-seqs", "12"),
        *("--room-gate-aggregated", "on", "--room-waiting", "16"),
    ),
    "prefill": ("--role", "prefill", "--max-num-seqs", "64"),
    "decode": ("--role", "decode", "--max-num-seqs", "8", "--room-waiting", "16"),
}


@dataclasses.dataclass(frozen=True)
class Look:
    """A worker at one moment."""

    at_s: float
    #: Of the process with the servicer in it.
    rss_mib: float
    fds: int
    threads: int
    #: Of the ledger: held and releasing; legs in any state; calls of Generate.
    slots: int
    legs: int
    streams: int


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples: list[tuple[str, str, float]] = []
        for line in text.splitlines():
            if found := _SAMPLE.match(line):
                self._samples.append((found[1], found[2] or "", float(found[3])))

    def total(self, name: str) -> int:
        """Over all labels."""
        return round(sum(value for known, _, value in self._samples if known == name))

    def by_label(self, name: str) -> dict[str, int]:
        """Those that are not zero, by the one label's value."""
        return {
            label.split('"')[1]: round(value)
            for known, label, value in self._samples
            if known == name and value
        }


class Worker:
    """One process."""

    def __init__(self, role: str, port: int, metrics_port: int, child: Child) -> None:
        self.role = role
        self.address = f"{HOST}:{port}"
        self.metrics_port = metrics_port
        self.child = child

    def serves(self) -> bool:
        return is_serving(self.address)

    def scrape(self) -> Metrics:
        """OSError: it does not answer."""
        url = f"http://{HOST}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=SCRAPE_S) as answer:
            return Metrics(answer.read().decode())

    def look(self, at_s: float) -> Look:
        """OSError: it is gone, or does not answer."""
        metrics = self.scrape()
        folder = Path(f"/proc/{self.child.process.pid}")
        status = dict(
            line.split(":", 1)
            for line in (folder / "status").read_text().splitlines()
            if ":" in line
        )
        return Look(
            at_s=at_s,
            rss_mib=int(status["VmRSS"].split()[0]) / 1024,
            fds=len(list((folder / "fd").iterdir())),
            threads=int(status["Threads"]),
            slots=metrics.total("roomkeeper_held_slots")
            + metrics.total("roomkeeper_releasing_slots"),
            legs=metrics.total("roomkeeper_legs"),
            streams=metrics.total("roomkeeper_open_streams"),
        )


def start_workers(children: Children, ports: Ports, link_port: int) -> list[Worker]:
    """All three; does not wait for them. The decode dials its prefill at ``link_port``."""
    workers = []
    for number, role in enumerate(BY_ROLE):
        port, metrics = ports.prefill + number, ports.gateway + number
        flags = [*FLAGS, *BY_ROLE[role], "--host", HOST, "--port", str(port)]
        flags += ["--room-metrics-port", str(metrics)]
        flags += ["--disaggregation-bootstrap-port", str(ports.bootstrap)]
        if role == "decode":
            flags += ["--room-peer", f"{HOST}:{ports.bootstrap}={HOST}:{link_port}"]
        child = children.start(role, [sys.executable, "-m", "roomkeeper", "standin", *flags], {})
        workers.append(Worker(role, port, metrics, child))
    return workers


class Proxy:
    """TCP in front of the prefill's listener for links; it can hang up. Threads of its own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more connections, and none left."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Hangs up on all connections."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target), SCRAPE_S)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                sink.sendall(received)
            sink.shutdown(socket.SHUT_WR)


__all__ = ["READY_S", "Look", "Metrics", "Proxy", "Worker", "free_ports", "start_workers"]
