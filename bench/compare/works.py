"""The work: what is asked of every server, and which figures come of it.

A *turn* is one server, started afresh for each group of work: with steps as fast as they go, with a step each 10 ms, …
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compare.goals import STEP_MS
from compare.memory import rss_kib
from compare.rows import Rows
from compare.servers import PEERS, Bench, Kind, Running, loadgen, must_succeed, serve

SETTLE_S = 0.3


@dataclass(frozen=True)
class Turn:
    """One server on its work, and where the figures go."""

    bench: Bench
    rows: Rows
    server: Running
    #: 1: everything. Less: shorter.
    scale: float

    @property
    def name(self) -> str:
        return self.server.kind.name

    def many(self, count: int, least: int) -> int:
        """About so many requests, but fewer of a server that is slow, and in a short run."""
        return max(least, int(count * self.scale * self.server.kind.share))

    def load(self, mode: str, *options: object) -> dict:
        return loadgen(mode, self.server, self.bench.client_cpu, *map(str, options))

    def add(self, work: str, **figures: float | None) -> None:
        for metric, value in figures.items():
            if value is not None:
                self.rows.add(work, metric, self.name, value)

    def generate(self, work: str, *options: object, may_fail: bool = False) -> None:
        """May requests fail, their number is a figure, and the others are those of what was served."""
        report = self.load("generate", "--children", *options)
        if may_fail:
            self.add(work, failed=report["failed"])
        else:
            must_succeed(self.server, work, report)
        if not report["messages"]:
            raise RuntimeError(f"{self.name}: {work} brought no message: {report['first_error']}")
        gaps = report["gap_ms"] or {}
        self.add(
            work,
            messages_per_s=report["messages_per_s"],
            server_cpu_us=report["server_cpu_us_each"],
            family_cpu_us=report["family_cpu_us_each"],
            client_cpu_us=report["client_cpu_us_each"],
            ttft_p50_ms=report["ttft_ms"]["p50"],
            ttft_p99_ms=report["ttft_ms"]["p99"],
            gap_p50_ms=gaps.get("p50"),
            gap_p99_ms=gaps.get("p99"),
        )


def unpaced(turn: Turn) -> None:
    for streams in (32, 256):
        turn.generate(
            f"unpaced-{streams}",
            *("--streams", streams, "--tokens", 256),
            *("--requests", turn.many(1024, 4 * streams)),
        )


def prompts(turn: Turn) -> None:
    """Long prompts, few tokens: what it costs to take a request in."""
    if "prompts" in turn.server.kind.lacks:
        return
    for name, length, count in (("prompt-2k", 2000, 512), ("prompt-100k", 100_000, 64)):
        turn.generate(
            name,
            *("--streams", 8, "--tokens", 4, "--prompt-tokens", length),
            *("--requests", turn.many(count, 8)),
        )


def choices(turn: Turn) -> None:
    if "choices" not in turn.server.kind.lacks:
        count = turn.many(128, 16)
        turn.generate("n-8", "--streams", 8, "--tokens", 64, "--choices", 8, "--requests", count)


def logprobs(turn: Turn) -> None:
    if "logprobs" not in turn.server.kind.lacks:
        count = turn.many(512, 32)
        turn.generate(
            "logprobs", "--streams", 32, "--tokens", 128, "--logprobs", "--requests", count
        )


def refusals(turn: Turn) -> None:
    if "refusals" in turn.server.kind.lacks:
        return
    report = turn.load("reject", "--streams", 32, "--requests", turn.many(20_000, 2000))
    if report["accepted"] or set(report["refused"]) != {"INVALID_ARGUMENT"}:
        raise RuntimeError(f"{turn.name}: not every bad request was refused as such: {report}")
    turn.add(
        "refusals",
        requests_per_s=report["requests_per_s"],
        server_cpu_us=report["server_cpu_us_each"],
        latency_p99_ms=report["latency_ms"]["p99"],
    )


def paced(turn: Turn) -> None:
    for streams in (16, 64, 256):
        turn.generate(
            f"paced-{streams}",
            *("--streams", streams, "--tokens", 128),
            *("--requests", int(streams * max(1, 2 * turn.scale))),
        )


def loads(turn: Turn) -> None:
    if "loads" in turn.server.kind.lacks:
        return
    count = max(100, int(400 * turn.scale))
    works: list[tuple[str, tuple[object, ...]]] = [
        ("loads-idle", ()),
        ("loads-busy", ("--streams", 64, "--tokens", 128)),
    ]
    for work, options in works:
        report = turn.load("loads", "--rate", 200, "--requests", count, *options)
        must_succeed(turn.server, work, report)
        turn.add(
            work,
            latency_p50_ms=report["latency_ms"]["p50"],
            latency_p99_ms=report["latency_ms"]["p99"],
        )


def stuck(turn: Turn) -> None:
    """GetLoads while the interpreter is held 50 ms at a time and the loop is blocked."""
    if "stuck" in turn.server.kind.lacks:
        return
    os.kill(turn.server.pid, signal.SIGUSR1)
    time.sleep(SETTLE_S)
    try:
        report = turn.load("loads", "--rate", 50, "--requests", max(50, int(200 * turn.scale)))
    finally:
        os.kill(turn.server.pid, signal.SIGUSR2)
        time.sleep(SETTLE_S)
    # The Python servicer's fail while its loop is blocked: that is a figure.
    latency = report["latency_ms"] or {}
    turn.add(
        "loads-stuck",
        failed=report["failed"],
        latency_p50_ms=latency.get("p50"),
        latency_p99_ms=latency.get("p99"),
    )


def cancels(turn: Turn) -> None:
    if "cancel" in turn.server.kind.lacks:
        return
    for streams in (1, 32, 128):
        report = turn.load(
            "cancel",
            *("--streams", streams, "--requests", max(8, streams * 2)),
            *("--event-log", events_of(turn.bench, turn.server.kind)),
        )
        must_succeed(turn.server, f"cancel-{streams}", report)
        if report["never_aborted"]:
            raise RuntimeError(
                f"{turn.name}: {report['never_aborted']} cancels never came to the engine"
            )
        delays = report["abort_delay_ms"]
        turn.add(f"cancel-{streams}", abort_p50_ms=delays["p50"], abort_p99_ms=delays["p99"])


def slow_readers(turn: Turn) -> None:
    """Four clients that stop reading while 100,000 tokens each are made for them."""
    if "slow-reader" in turn.server.kind.lacks:
        return
    report = turn.load(
        "slow-reader",
        *("--streams", 4, "--tokens", int(100_000 * turn.scale)),
        *("--hold-s", 8 * turn.scale, "--stream-window", 1024),
    )
    turn.add(
        "slow-reader",
        rss_growth_kib=report["rss_peak_kib"] - report["rss_before_kib"],
        failed=sum(report["failures"].values()),
    )


def waiting(turn: Turn) -> None:
    """Ten thousand requests at once over a window of 64."""
    if "waiting" in turn.server.kind.lacks:
        return
    before = rss_kib(turn.server.pid)
    count = int(10_000 * min(1.0, turn.scale * 2))
    work = "waiting-10k" if count == 10_000 else f"waiting-{count}"
    turn.generate(
        work,
        *("--streams", count, "--requests", count, "--tokens", 2, "--prompt-tokens", 16),
        may_fail=True,
    )
    turn.add(work, rss_growth_kib=rss_kib(turn.server.pid) - before)


def at_rest(turn: Turn) -> None:
    turn.add("at-rest", start_s=turn.server.start_s, rss_kib=rss_kib(turn.server.pid))
    if turn.server.kind.imports:
        turn.add("at-rest", import_s=import_s(turn.server.kind, turn.bench.server_cpu))


def import_s(kind: Kind, cpu: int) -> float:
    """How long a fresh interpreter takes to bring the servicer's Python code in, less its own start."""
    program = (
        f"import sys, time; sys.path.insert(0, {str(PEERS)!r}); {kind.before_import}\n"
        f"begun = time.perf_counter()\n{kind.imports}\nprint(time.perf_counter() - begun)"
    )
    command = ["taskset", "-c", str(cpu), sys.executable, "-c", program]
    return float(run_for_output(command))


def run_for_output(command: list[str]) -> str:
    """What a program of ours prints; RuntimeError with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"{' '.join(command[3:])[:120]}: {last}")
    return done.stdout


#: What is done in a turn: on a server whose steps follow each other at once, on a paced one, on one whose clients
#: do not read, and on one with a window of 64.
FAST: list[Callable[[Turn], None]] = [at_rest, unpaced, prompts, choices, logprobs, refusals]
PACED: list[Callable[[Turn], None]] = [paced, loads, stuck, cancels]
UNREAD: list[Callable[[Turn], None]] = [slow_readers]
NARROW: list[Callable[[Turn], None]] = [waiting]
WINDOW = 64


def events_of(bench: Bench, kind: Kind) -> Path:
    """Where the stub engine of a server says what it was told to abort."""
    return bench.folder / f"{kind.name}.events"


def take_turn(bench: Bench, rows: Rows, kind: Kind, scale: float) -> None:
    """All the work, on servers started for it one after the other."""
    for step_ms, window, works in (
        (0.0, 4096, FAST),
        (STEP_MS, 4096, PACED),
        (0.0, 4096, UNREAD),
        (0.0, WINDOW, NARROW),
    ):
        log = events_of(bench, kind) if works is PACED else None
        if log is not None:
            log.unlink(missing_ok=True)
        with serve(bench, kind, step_ms, window, log) as server:
            for work in works:
                work(Turn(bench, rows, server, scale))


def engine_alone(bench: Bench, rows: Rows) -> None:
    """What the stub engine costs without a servicer, both of its ways out."""
    for engine, name in (("steps", "engine-steps"), ("asyncllm", "engine-asyncllm")):
        for work, step_ms, streams, tokens in (
            ("unpaced-32", 0, 32, 256),
            ("unpaced-256", 0, 256, 256),
            ("paced-16", STEP_MS, 16, 128),
            ("paced-64", STEP_MS, 64, 128),
            ("paced-256", STEP_MS, 256, 128),
        ):
            command = ["taskset", "-c", str(bench.server_cpu), sys.executable]
            command += [str(PEERS / "engine_alone.py")]
            command += ["--engine", engine, "--step-ms", str(step_ms), "--streams", str(streams)]
            command += ["--requests", str(2 * streams), "--tokens", str(tokens)]
            report = json.loads(run_for_output(command))
            rows.add(work, "messages_per_s", name, report["messages_per_s"])
            rows.add(work, "server_cpu_us", name, report["server_cpu_us_each"])
            rows.add(work, "ttft_p50_ms", name, report["ttft_ms"]["p50"])
