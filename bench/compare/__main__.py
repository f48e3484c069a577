"""Measures and reports: JSON, a Markdown table, pictures, and a line a goal.

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
import subprocess
import sys
import time
from pathlib import Path

from compare.goals import STEP_MS, verdicts
from compare.memory import per_idle_stream_kib, short_calls_growth_kib
from compare.plots import svg
from compare.rows import Rows
from compare.servers import ROOT, Bench, Kind, kinds, serve
from compare.works import engine_alone, run_for_output, take_turn

REPEATS = 5
QUICK_SCALE = 0.25
IDLE_STREAMS = 1000
SHORT_CALLS = 100_000
#: A chunk on the wire, as sendmsg of the C stand-in has it: HTTP/2's frame header, gRPC's prefix, a message of one token.
WIRE_BYTES = 39


def note(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def memory(bench: Bench, rows: Rows, kind: Kind) -> None:
    """What a server's memory does: per open idle stream, and over many short calls."""
    # A step that comes once a second: the streams stay open and nearly silent.
    with serve(bench, kind, 1000) as server:
        each = per_idle_stream_kib(server, IDLE_STREAMS)
        rows.add("idle-streams", "rss_kib_each", kind.name, each)
    with serve(bench, kind, 0) as server:
        growth = short_calls_growth_kib(server, bench.client_cpu, SHORT_CALLS)
        rows.add("short-calls", "rss_growth_kib", kind.name, growth)


def floor(bench: Bench, rows: Rows) -> None:
    """The same bytes in one write per step."""
    program = ROOT / "build/bench-native/bench/native/rk-floor"
    for streams in (16, 64, 256):
        numbers = (streams, 300, int(STEP_MS * 1000), WIRE_BYTES)
        command = ["taskset", "-c", str(bench.server_cpu), str(program), *map(str, numbers)]
        each = json.loads(run_for_output(command))["server_cpu_us_each"]
        rows.add(f"paced-{streams}", "server_cpu_us", "floor", each)


def table(rows: Rows, names: list[str]) -> str:
    """Works and metrics down, servers across."""
    lines = [
        "| work | metric | " + " | ".join(names) + " |",
        "|---|---" + "|---" * len(names) + "|",
    ]
    for work, metric in rows.comparisons():
        cells = []
        for name in names:
            values = rows.of(work, metric, name)
            spread = f"{min(values):,.4g}–{max(values):,.4g}" if len(values) > 1 else ""
            middle = f"{statistics.median(values):,.4g}" if values else "–"
            cells.append(f"{middle} ({spread})" if spread else middle)
        lines.append(f"| {work} | {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def goals_table(found: list[dict]) -> str:
    lines = ["| work | metric | ratio | goal | |", "|---|---|---|---|---|"]
    for goal in found:
        what = f"{goal['metric']}, {goal['server']} to {goal['peer']}"
        if goal["without_engine"]:
            what += ", the engine's own taken off"
        met = "met" if goal["met"] else "**not met**"
        lines.append(f"| {goal['work']} | {what} | {goal['ratio']:.3g} | {goal['goal']} | {met} |")
    return "\n".join(lines)


def about_machine() -> dict:
    packages = ("smg", "smg-grpc-servicer", "grpcio", "uvloop")
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": commit.stdout.strip() or None,
    }


def write_report(folder: Path, rows: Rows, names: list[str]) -> list[dict]:
    """Everything that is known so far."""
    goals = verdicts(rows)
    report = {**about_machine(), "rows": rows.as_json(), "goals": goals}
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    text = [f"{report['machine']}, {report['date']}", goals_table(goals), table(rows, names)]
    for work in dict.fromkeys(work for work, _ in rows.comparisons()):
        (folder / f"{work}.svg").write_text(svg(rows, work, names))
        text.append(f"![{work}]({work}.svg)")
    (folder / "report.md").write_text("\n\n".join(text) + "\n")
    return goals


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short repetition, under five minutes"
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help=f"default {REPEATS}, and 1 with --quick"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="SERVER", help="measure just these"
    )
    args = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        parser.error("two cores are needed, one for the servers and one for the client")
    known = [kind.name for kind in kinds()]
    for name in args.only:
        if name not in known:
            parser.error(f"--only {name}: there is no such server; choose from {', '.join(known)}")
    if args.repeats is not None and args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: at least 1")
    return args


def measure(args: argparse.Namespace) -> None:
    folder = ROOT / "build/bench"
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(server_cpu=0, client_cpu=1, folder=folder)
    bench.log.write_text("")
    repeats = args.repeats or (1 if args.quick else REPEATS)
    scale = QUICK_SCALE if args.quick else 1.0
    chosen = [kind for kind in kinds() if not args.only or kind.name in args.only]
    names = [kind.name for kind in chosen] + ["floor", "engine-steps", "engine-asyncllm"]
    rows = Rows()
    begun = time.monotonic()
    for turn in range(repeats):
        for kind in chosen:
            note(f"{kind.name}, {turn + 1} of {repeats}, {time.monotonic() - begun:.0f} s")
            take_turn(bench, rows, kind, scale)
        note(f"the engine alone and the floor, {turn + 1} of {repeats}")
        engine_alone(bench, rows)
        floor(bench, rows)
        write_report(folder, rows, names)
    for kind in chosen:
        if kind.name not in ("bare", "c-standin") and not args.quick:
            note(f"{kind.name}, memory")
            memory(bench, rows, kind)
    goals = write_report(folder, rows, names)
    print(goals_table(goals))
    print(table(rows, names))
    print(json.dumps({"goals": goals}))


def main() -> int:
    args = arguments()
    try:
        measure(args)
    except (RuntimeError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; what was measured is in build/bench", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
