"""A picture (SVG) per work: a bar a server and metric, its median, lowest and highest."""

from __future__ import annotations

from xml.sax.saxutils import escape

from compare.rows import Rows

WIDTH = 720
LABEL = 170
BAR = 14
GAP = 4
TITLE = 26
METRIC = 22
INK = "#22313f"
PAPER = "#ffffff"
SPREAD = "#22313f"
OURS = "#2f9e6e"
PEERS = "#b8c2cc"
LIMITS = "#e0a030"
LIMIT_NAMES = ("bare", "floor", "engine-steps", "engine-asyncllm")


def _fill(server: str) -> str:
    if server in LIMIT_NAMES:
        return LIMITS
    return OURS if server.startswith(("roomkeeper", "c-standin")) else PEERS


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}" text-anchor="{anchor}" '
        f'font-family="sans-serif">{escape(text)}</text>'
    )


def _bars(rows: Rows, work: str, metric: str, servers: list[str], top: float) -> list[str]:
    highest = max(max(rows.of(work, metric, server)) for server in servers) or 1.0
    scale = (WIDTH - LABEL - 110) / highest
    parts = []
    for number, server in enumerate(servers):
        values = rows.of(work, metric, server)
        median = rows.median(work, metric, server) or 0.0
        y = top + number * (BAR + GAP)
        middle = y + BAR / 2
        parts += [
            _text(LABEL - 6, y + BAR - 3, server, anchor="end"),
            f'<rect x="{LABEL}" y="{y:.1f}" width="{max(median * scale, 0.5):.1f}" height="{BAR}" '
            f'fill="{_fill(server)}"/>',
            f'<line x1="{LABEL + min(values) * scale:.1f}" x2="{LABEL + max(values) * scale:.1f}" '
            f'y1="{middle:.1f}" y2="{middle:.1f}" stroke="{SPREAD}" stroke-width="1.5"/>',
            _text(LABEL + max(values) * scale + 6, y + BAR - 3, f"{median:,.4g}"),
        ]
    return parts


def svg(rows: Rows, work: str, names: list[str]) -> str:
    """All metrics of one work, one below the other."""
    parts: list[str] = []
    y = float(TITLE)
    for found, metric in rows.comparisons():
        servers = [name for name in names if rows.of(work, metric, name)]
        if found != work or not servers:
            continue
        parts.append(_text(8, y + 14, metric.replace("_", " "), 12))
        parts += _bars(rows, work, metric, servers, y + METRIC)
        y += METRIC + len(servers) * (BAR + GAP) + GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8:.0f}" '
        f'viewBox="0 0 {WIDTH} {y + 8:.0f}">',
        f'<rect width="{WIDTH}" height="{y + 8:.0f}" fill="{PAPER}"/>',
        _text(8, 18, f"{work}: medians, the line from lowest to highest", 14),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"
