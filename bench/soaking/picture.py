"""The soak as SVG: a panel each for memory, descriptors, threads and slots, and what was done to the workers below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soaking.workers import Look

WIDTH = 860
LEFT, RIGHT = 52, 16
PANEL, TITLE, FOOT = 110, 26, 78
INK, EMPTY, PAPER = "#3b4048", "#e9ebee", "#ffffff"
LINES = {"aggregated": "#2f6f9e", "prefill": "#e8a339", "decode": "#2f9e6e"}
PANELS = (
    ("rss_mib", "resident memory, MiB"),
    ("fds", "file descriptors"),
    ("threads", "threads"),
    ("slots", "slots held and releasing"),
)
MARKS = {"kill": "#d0443e", "hog": "#7d4fb0", "cut": "#3b4048"}
MARK_NAMES = {"kill": "a client is killed", "hog": "Python is held up", "cut": "the link is cut"}


def svg(looks: Mapping[str, Sequence[Look]], marks: Sequence[tuple[float, str]], title: str) -> str:
    """One time scale for all panels."""
    span = max((series[-1].at_s for series in looks.values() if series), default=1.0)
    height = TITLE + len(PANELS) * PANEL + FOOT
    scale = (WIDTH - LEFT - RIGHT) / span
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="12">',
        "<title>Three workers over a soak</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        f'<text x="{LEFT}" y="18" fill="{INK}" font-weight="600">{title}</text>',
    ]
    for number, (name, text) in enumerate(PANELS):
        parts += _panel(looks, name, text, TITLE + number * PANEL, scale)
    parts += _foot(marks, TITLE + len(PANELS) * PANEL, span, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    looks: Mapping[str, Sequence[Look]], name: str, text: str, top: float, scale: float
) -> list[str]:
    most = max((getattr(look, name) for series in looks.values() for look in series), default=0)
    most = max(1.0, most * 1.05)
    floor, tall = top + PANEL - 8, PANEL - 30
    parts = [
        f'<text x="{LEFT}" y="{top + 14}" fill="{INK}">{text}</text>',
        f'<rect x="{LEFT}" y="{floor - tall}" width="{WIDTH - LEFT - RIGHT}" height="{tall}" '
        f'fill="{EMPTY}"/>',
        f'<text x="{LEFT - 6}" y="{floor - tall + 10}" fill="{INK}" text-anchor="end">{most:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{floor}" fill="{INK}" text-anchor="end">0</text>',
    ]
    for role, series in looks.items():
        points = " ".join(
            f"{LEFT + look.at_s * scale:.1f},{floor - getattr(look, name) / most * tall:.1f}"
            for look in series
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{LINES[role]}" stroke-width="1.2"/>'
        )
    return parts


def _foot(marks: Sequence[tuple[float, str]], top: float, span: float, scale: float) -> list[str]:
    parts = [
        f'<rect x="{LEFT + at_s * scale:.1f}" y="{top}" width="1" height="10" fill="{MARKS[what]}"/>'
        for at_s, what in marks
    ]
    step = next((tick for tick in (10, 30, 60, 120, 300, 600) if span / tick <= 14), 1800)
    for second in range(0, int(span) + 1, step):
        x = LEFT + second * scale
        shown = f"{second // 60} min" if step >= 60 else f"{second} s"
        parts.append(
            f'<text x="{x:.1f}" y="{top + 28}" fill="{INK}" text-anchor="middle">{shown}</text>'
        )
    x = float(LEFT)
    legend = [*LINES.items(), *((MARK_NAMES[what], fill) for what, fill in MARKS.items())]
    for name, fill in legend:
        parts.append(f'<rect x="{x}" y="{top + 46}" width="12" height="12" fill="{fill}"/>')
        parts.append(f'<text x="{x + 17}" y="{top + 56}" fill="{INK}">{name}</text>')
        x += 36 + 6.6 * len(name)
    return parts
