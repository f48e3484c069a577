"""What the demo shows at its end, for terminals: the table, the slots over time, the meaning."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Callable, Sequence

from roomkeeper.demo.plan import Case, Hold, Result, Workload

GENERATING, COMING, LOST, EMPTY = "█", "▒", "x", "·"
PAINT = {GENERATING: "\x1b[32m", COMING: "\x1b[33m", LOST: "\x1b[31m", EMPTY: "\x1b[2m"}
PLAIN = "\x1b[0m"
LABEL_COLUMNS = 26
COLUMN_GAP = 3


# -- the table --


def table(results: Sequence[Result], width: int) -> str:
    """The runs side by side, a column each."""
    space = width - LABEL_COLUMNS - COLUMN_GAP * len(results)
    column = max(16, space // len(results))
    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("", lambda r: r.case.title.replace(", ", "\n")),
        ("gateway", lambda r: r.gateway),
        ("the decode's scheduler", lambda r: r.rooms.scheduler or "not told"),
        ("requests ok", lambda r: f"{r.ok} of {len(r.outcomes)}"),
        ("requests failed", lambda r: str(r.failed)),
        ("wall time", lambda r: f"{r.wall_s:.1f} s"),
        ("latency p50 / p99", lambda r: f"{r.latency_s(0.5):.2f} / {r.latency_s(0.99):.2f} s"),
        ("clients saw", _seen),
        ("slots lost", _lost),
        ("decode free again after", _free),
        ("most in roomkeeper's line", lambda r: str(r.rooms.most_waiting)),
        ("refused by roomkeeper", _refused),
    ]
    lines = [_row(label, [cell(r) for r in results], column) for label, cell in rows]
    return "\n".join([*lines, *_reasons(results)])


def _row(label: str, cells: Sequence[str], column: int) -> str:
    wrapped = [
        [line for part in cell.split("\n") for line in textwrap.wrap(part, column) or [""]]
        for cell in cells
    ]
    height = max(len(lines) for lines in wrapped)
    out = []
    for at in range(height):
        parts = [label if at == 0 else ""]
        parts = [parts[0].ljust(LABEL_COLUMNS)]
        parts += [(lines[at] if at < len(lines) else "").ljust(column) for lines in wrapped]
        out.append((" " * COLUMN_GAP).join(parts).rstrip())
    return "\n".join(out)


def _seen(result: Result) -> str:
    counts = collections.Counter(outcome.brief for outcome in result.outcomes)
    return "\n".join(f"{count} x {seen}" for seen, count in counts.most_common())


def _reasons(results: Sequence[Result]) -> list[str]:
    """What stood behind the statuses that are no 200."""
    failures = (o.seen for result in results for o in result.outcomes if not o.ok)
    return [f"  ({seen})" for seen in sorted(set(failures))]


def _lost(result: Result) -> str:
    if not result.lost:
        return "none"
    times = [hold.end_s - hold.start_s for hold in result.lost if hold.end_s is not None]
    return f"{len(times)} times, up to {max(times):.1f} s each, {sum(times):.0f} s in all"


def _free(result: Result) -> str:
    return "not while we waited" if result.free_s is None else f"{result.free_s:.1f} s"


def _refused(result: Result) -> str:
    refused = result.rooms.refused
    return "\n".join(f"{count} x {cause}" for cause, count in refused.items()) or "none"


# -- slots over time --


def picture(results: Sequence[Result], width: int, colour: bool) -> str:
    """The decode's slots over time, a row each; one scale for all runs."""
    columns = width - 4
    span = time_span(results)
    lines = [
        "the decode's slots over time",
        f"{GENERATING} generates  {COMING} its KV is on the way  {LOST} lost: its KV never comes  "
        f"{EMPTY} empty",
    ]
    for result in results:
        lines += ["", f"{result.case.title}: {result.ok} ok, {result.failed} failed"]
        for lane in range(lanes([result])):
            lines.append(
                f"{lane + 1:>2}  {_paint(lane_cells(result, lane, span, columns), colour)}"
            )
    end = f"{span:.0f} s"
    lines.append("    0 s" + end.rjust(columns - 3))
    return "\n".join(lines)


def time_span(results: Sequence[Result]) -> float:
    """Seconds from the start of a burst until every run is over, slots included."""
    ends = [result.wall_s for result in results]
    ends += [hold.end_s or hold.start_s for result in results for hold in result.holds]
    return max(max(ends), 1.0)


def lanes(results: Sequence[Result]) -> int:
    """How many slots were ever in use at a time."""
    return max((hold.lane + 1 for result in results for hold in result.holds), default=1)


def lane_cells(result: Result, lane: int, span_s: float, columns: int) -> str:
    """One slot as text: of each cell's time the state that took most of it."""
    holds = [hold for hold in result.holds if hold.lane == lane]
    step = span_s / columns
    return "".join(_cell(holds, at * step, (at + 1) * step) for at in range(columns))


def _cell(holds: Sequence[Hold], start_s: float, end_s: float) -> str:
    shares = dict.fromkeys((GENERATING, LOST, COMING), 0.0)
    for hold in holds:
        for state, from_s, to_s in phases(hold, end_s):
            shares[state] += max(0.0, min(to_s, end_s) - max(from_s, start_s))
    state, share = max(shares.items(), key=lambda item: item[1])
    return state if share > (end_s - start_s) / 4 else EMPTY


def phases(hold: Hold, now_s: float) -> list[tuple[str, float, float]]:
    """What a room did with its slot, and from when to when; one that goes on does so until now."""
    end_s = now_s if hold.end_s is None else hold.end_s
    if hold.kv_s is None:
        return [(LOST if hold.lost else COMING, hold.start_s, end_s)]
    return [(COMING, hold.start_s, hold.kv_s), (GENERATING, hold.kv_s, end_s)]


def _paint(cells: str, colour: bool) -> str:
    if not colour:
        return cells
    out, last = [], ""
    for cell in cells:
        if cell != last:
            out.append(PLAIN + PAINT[cell])
            last = cell
        out.append(cell)
    return "".join([*out, PLAIN])


# -- what it means --


def meaning(before: Result, after: Result, workload: Workload) -> str:
    """Two sentences, from what has been seen."""
    return f"{_before(before, workload)} {_after(after, workload)}"


def _before(result: Result, workload: Workload) -> str:
    total = len(result.outcomes)
    if not result.failed:
        return f"{_with(result.case)} all {total} requests came through this time."
    sentence = f"{_with(result.case)} {result.failed} of {total} requests failed"
    if result.lost:
        work = result.ok * workload.service_s / workload.window
        free = "longer than we watched" if result.free_s is None else f"{result.free_s:.0f} s"
        sentence += (
            f", and rooms whose prefill had given up held slots {len(result.lost)} times, "
            f"{result.lost_s:.0f} s in all, so that the decode was busy for {free} with "
            f"{work:.1f} s of work"
        )
    return sentence + "."


def _after(result: Result, workload: Workload) -> str:
    lost = f"{len(result.lost)} slots were lost" if result.lost else "no slot was lost"
    return (
        f"{_with(result.case)} {result.ok} of {len(result.outcomes)} came through in "
        f"{result.wall_s:.1f} s, where {workload.window} slots need {workload.ideal_s:.1f} s at "
        f"the least, and {lost}."
    )


def _with(case: Case) -> str:
    window = "reported" if case.window_reported else "hidden"
    return f"With {case.served} and the window {window},"


def ingredients(results: Sequence[Result]) -> list[str]:
    """What did it, the rooms or the link, and what the window's report does; a paragraph each."""
    off, only, on, *reported = results
    first = (
        f"What did it: the link. Up to {on.rooms.most_waiting} rooms stood in roomkeeper's line "
        "while their prefills were held back, so that no deadline ran. Without it "
        f"{_alone(off, only)}"
    )
    if not reported:
        return [f"{first} `python -m roomkeeper demo --ingredients` tells the window as well."]
    return [first, *(f"{_with(result.case)} {_alone(off, result)}" for result in reported)]


def _alone(off: Result, result: Result) -> str:
    lost = f"{len(result.lost)} slots were lost" if result.lost else "no slot was lost"
    return f"{result.failed} requests failed where {off.failed} did without rooms, and {lost}."
