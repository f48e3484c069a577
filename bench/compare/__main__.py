"""Measures and reports: JSON, a Markdown table, and a line a ratio.

Each server runs alone, pinned to one core, the load client on the other; the servers take turns, so that a
machine that drifts does so for all of them. Medians with their spread; ratios are of medians of one run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from compare.memory import per_idle_stream_kib, short_calls_growth_kib
from compare.servers import ROOT, Kind, Running, kinds, loadgen, serve

LONG_STEP_MS = 3_600_000


@dataclass
class Rows:
    """The figures gathered so far, by work, metric and server."""

    values: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def add(self, work: str, metric: str, server: str, value: float) -> None:
        self.values.setdefault((work, metric, server), []).append(value)

    def median(self, work: str, metric: str, server: str) -> float | None:
        values = self.values.get((work, metric, server))
        return statistics.median(values) if values else None

    def as_json(self) -> list[dict]:
        return [
            {
                "work": work,
                "metric": metric,
                "server": server,
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
                "runs": len(values),
            }
            for (work, metric, server), values in self.values.items()
        ]


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    repeats: int
    short_calls: int
    idle_streams: int
    server_cpu: int
    client_cpu: int
    log: Path


def note(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def generate(
    rows: Rows, plan: Plan, work: str, server: Running, streams: int, requests: int, tokens: int
) -> None:
    options = ("--streams", str(streams), "--requests", str(requests), "--tokens", str(tokens))
    report = loadgen("generate", server, plan.client_cpu, *options)
    name = server.kind.name
    if report["failed"]:
        raise RuntimeError(f"{name}: {report['failed']} requests of {work} failed")
    rows.add(work, "messages_per_s", name, report["messages_per_s"])
    rows.add(work, "tokens_per_s", name, requests * tokens / report["wall_s"])
    rows.add(work, "server_cpu_us", name, report["server_cpu_us_each"])
    rows.add(work, "client_cpu_us", name, report["client_cpu_s"] * 1e6 / report["messages"])
    rows.add(work, "ttft_p50_ms", name, report["ttft_ms"]["p50"])
    rows.add(work, "gap_p99_ms", name, report["gap_ms"]["p99"])


def refusals(rows: Rows, plan: Plan, server: Running, requests: int) -> None:
    report = loadgen(
        "reject", server, plan.client_cpu, "--streams", "32", "--requests", str(requests)
    )
    rows.add("refusals", "requests_per_s", server.kind.name, report["requests_per_s"])
    rows.add("refusals", "server_cpu_us", server.kind.name, report["server_cpu_us_each"])


def round_of(rows: Rows, plan: Plan, kind: Kind) -> None:
    """One turn of one server."""
    slow = kind.name == "python"
    with serve(kind, 0, plan.server_cpu, plan.client_cpu, plan.log) as server:
        generate(rows, plan, "unpaced-32", server, 32, 256 if slow else 1024, 256)
        refusals(rows, plan, server, 4000 if slow else 20000)
    with serve(kind, 10, plan.server_cpu, plan.client_cpu, plan.log) as server:
        generate(rows, plan, "paced-64", server, 64, 256, 128)


def memory(rows: Rows, plan: Plan, kind: Kind) -> None:
    with serve(kind, 0, plan.server_cpu, plan.client_cpu, plan.log) as server:
        growth = short_calls_growth_kib(server, plan.client_cpu, plan.short_calls)
        rows.add("short-calls", "rss_growth_kib", kind.name, growth)


def idle_memory(rows: Rows, plan: Plan, kind: Kind) -> None:
    # A step that never comes: the streams stay open and silent. The first request of `serve` needs one, so
    # the step is only long once the server is up: a window of requests that wait.
    with serve(kind, 1000, plan.server_cpu, plan.client_cpu, plan.log) as server:
        rows.add(
            "idle-streams",
            "rss_kib_each",
            kind.name,
            per_idle_stream_kib(server, plan.idle_streams),
        )


GOALS = [
    ("unpaced-32", "messages_per_s", ">=", 10.0),
    ("paced-64", "server_cpu_us", "<=", 0.5),
    ("refusals", "requests_per_s", ">=", 5.0),
]


def table(rows: Rows, names: list[str]) -> str:
    """Works and metrics down, servers across."""
    lines = [
        "| work | metric | " + " | ".join(names) + " |",
        "|---|---" + "|---" * len(names) + "|",
    ]
    keys = list(dict.fromkeys((work, metric) for work, metric, _ in rows.values))
    for work, metric in keys:
        cells = []
        for name in names:
            values = rows.values.get((work, metric, name))
            if not values:
                cells.append("–")
                continue
            cells.append(
                f"{statistics.median(values):,.4g} ({min(values):,.4g}–{max(values):,.4g})"
            )
        lines.append(f"| {work} | {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratios(rows: Rows) -> list[dict]:
    found = []
    for work, metric, sense, goal in GOALS:
        ours = rows.median(work, metric, "roomkeeper")
        theirs = rows.median(work, metric, "python")
        if ours is None or theirs is None:
            continue
        ratio = ours / theirs
        met = ratio >= goal if sense == ">=" else ratio <= goal
        found.append(
            {
                "work": work,
                "metric": metric,
                "ratio": round(ratio, 3),
                "goal": f"{sense} {goal}",
                "met": met,
            }
        )
    return found


def about_machine() -> dict:
    versions = {
        name: importlib.metadata.version(name) for name in ("smg-grpc-servicer", "grpcio", "uvloop")
    }
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition instead of five")
    parser.add_argument(
        "--only", action="append", default=[], metavar="SERVER", help="measure just these"
    )
    args = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        parser.error("two cores are needed, one for the servers and one for the client")
    out = ROOT / "build/bench"
    out.mkdir(parents=True, exist_ok=True)
    plan = Plan(1 if args.quick else 5, 100_000, 1000, 0, 1, out / "servers.log")
    chosen = [kind for kind in kinds() if not args.only or kind.name in args.only]
    rows = Rows()
    for turn in range(plan.repeats):
        for kind in chosen:
            note(f"{kind.name}, repetition {turn + 1} of {plan.repeats}")
            round_of(rows, plan, kind)
    for kind in chosen:
        note(f"{kind.name}, memory")
        idle_memory(rows, plan, kind)
        if kind.name != "python":
            memory(rows, plan, kind)
    report = {**about_machine(), "rows": rows.as_json(), "ratios": ratios(rows)}
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    text = table(rows, [kind.name for kind in chosen])
    (out / "report.md").write_text(f"{report['machine']}, {report['date']}\n\n{text}\n")
    print(text)
    print(json.dumps({"ratios": report["ratios"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
