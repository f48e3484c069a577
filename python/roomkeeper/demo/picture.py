"""The slots over time as SVG, for documents: the same as the terminal's, with finer grain."""

from __future__ import annotations

from collections.abc import Sequence

from roomkeeper.demo.plan import Result
from roomkeeper.demo.report import COMING, GENERATING, LOST, lanes, phases, time_span

WIDTH = 860
LEFT, RIGHT = 24, 16
LANE, GAP = 16, 3
TITLE, FOOT = 26, 46
FILL = {GENERATING: "#2f9e6e", COMING: "#e8b339", LOST: "#d0443e"}
LEGEND = ((GENERATING, "generates"), (COMING, "KV on the way"), (LOST, "lost: its KV never comes"))
INK, EMPTY, PAPER = "#3b4048", "#e9ebee", "#ffffff"
TICKS = (1, 2, 5, 10, 20, 50, 100)


def svg(results: Sequence[Result]) -> str:
    """A panel a run, one time scale for all, a tick line below."""
    span, count = time_span(results), lanes(results)
    panel = TITLE + count * (LANE + GAP) + 10
    height = panel * len(results) + FOOT
    scale = (WIDTH - LEFT - RIGHT) / span
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="13">',
        "<title>The decode's slots over time</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
    ]
    for index, result in enumerate(results):
        parts += _panel(result, index * panel, count, span, scale)
    parts += _axis(len(results) * panel, span, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(result: Result, top: float, count: int, span: float, scale: float) -> list[str]:
    title = (
        f"{result.case.title} ({result.gateway} gateway): {result.ok} ok, {result.failed} failed, "
        f"{len(result.lost)} slots lost"
    )
    parts = [f'<text x="{LEFT}" y="{top + 18}" fill="{INK}" font-weight="600">{title}</text>']
    for lane in range(count):
        y = top + TITLE + lane * (LANE + GAP)
        parts.append(_bar(LEFT, y, span * scale, EMPTY))
    for hold in result.holds:
        y = top + TITLE + hold.lane * (LANE + GAP)
        for state, from_s, to_s in phases(hold, span):
            width = max(0.0, to_s - from_s) * scale
            parts.append(_bar(LEFT + from_s * scale, y, width, FILL[state]))
    return parts


def _bar(x: float, y: float, width: float, fill: str) -> str:
    # A hair narrower than its time, so that one room after the other can be told apart.
    shown = max(width - 0.6, 0.4)
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{shown:.1f}" height="{LANE}" fill="{fill}"/>'


def _axis(top: float, span: float, scale: float) -> list[str]:
    step = next((tick for tick in TICKS if span / tick <= 14), TICKS[-1])
    parts = []
    for second in range(0, int(span) + 1, step):
        x = LEFT + second * scale
        parts.append(
            f'<text x="{x:.1f}" y="{top + 12}" fill="{INK}" text-anchor="middle">{second} s</text>'
        )
    x = float(LEFT)
    for state, name in LEGEND:
        parts.append(f'<rect x="{x}" y="{top + 24}" width="12" height="12" fill="{FILL[state]}"/>')
        parts.append(f'<text x="{x + 17}" y="{top + 34}" fill="{INK}">{name}</text>')
        x += 40 + 7.2 * len(name)
    return parts
