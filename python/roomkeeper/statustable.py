"""The table of ``roomkeeper status``: with rich where it is installed and wanted, else plain."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence

from roomkeeper.statusread import Worker

_HEADINGS = (
    "worker",
    "role",
    "health",
    "engine",
    "rank",
    "window",
    "admitted",
    "running",
    "waiting",
    "releasing",
    "KV",
    "refused",
    "stranded",
)
#: Columns of text, which stand to the left; numbers stand to the right.
_TEXTS = 4
_NOTHING = "-"


def render(workers: Sequence[Worker], *, colour: bool) -> str:
    """A row a rank, and below it a line for what does not fit into one."""
    rows = [row for worker in workers for row in _rows(worker)]
    table = (_rich(rows) if colour else "") or _plain(rows)
    return table + "".join(f"{note}\n" for worker in workers for note in _notes(worker))


def _rows(worker: Worker) -> Iterator[tuple[str, ...]]:
    refused = sum(worker.refused.values()) if worker.roomkeeper is not None else None
    for at, rank in enumerate(worker.ranks):
        first = at == 0
        yield (
            worker.address if first else "",
            worker.role if first else "",
            worker.health if first else "",
            (worker.engine or _NOTHING) if first else "",
            str(rank.rank),
            str(rank.window) if rank.window else "unknown",
            _number(rank.admitted),
            str(rank.running),
            _aged(rank.waiting, rank.oldest_waiting_ms),
            _aged(rank.releasing, rank.oldest_releasing_ms),
            _NOTHING if rank.kv_usage is None else f"{rank.kv_usage:.0%}",
            _number(refused) if first else "",
            _number(worker.total("stranded")) if first else "",
        )


def _number(value: int | None) -> str:
    return _NOTHING if value is None else str(value)


def _aged(count: int | None, oldest_ms: int | None) -> str:
    """A count, with the age of the oldest among them."""
    if not count or not oldest_ms:
        return _number(count)
    return f"{count} ({oldest_ms / 1e3:.1f} s)"


def _notes(worker: Worker) -> Iterator[str]:
    own = worker.roomkeeper
    if own is None:
        yield f"{worker.address}: no roomkeeper there; what it says of its load is shown"
        return
    if worker.engine_why:
        silent_s = own["engine"].get("silent_ms", 0) / 1e3
        yield f"{worker.address}: engine {worker.engine} for {silent_s:.1f} s: {worker.engine_why}"
    if not own.get("rooms", True):
        yield f"{worker.address}: rooms are off: nothing is held, nothing is refused"
    elif worker.role != "null":
        if unknown := [str(rank.rank) for rank in worker.ranks if not rank.window]:
            yield f"{worker.address}: the window of rank {', '.join(unknown)} is unknown: no gating"
        links = "link: yes" if own.get("link") else "link: no"
        releases = "release: yes" if own.get("release") else "release: no"
        yield f"{worker.address}: {links}, {releases}"
    if worker.refused:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(worker.refused.items()))
        yield f"{worker.address}: refused: {causes}"
    if own.get("draining"):
        yield f"{worker.address}: draining"


def _plain(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [_HEADINGS, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"{_line(line, widths)}\n" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if at < _TEXTS else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _rich(rows: Sequence[tuple[str, ...]]) -> str:
    """Empty where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return ""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if at < _TEXTS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style=_style(at, cell)) for at, cell in enumerate(row)))
    out = io.StringIO()
    width = max(shutil.get_terminal_size().columns, 120)
    Console(file=out, force_terminal=True, width=width).print(table)
    return out.getvalue()


def _style(at: int, cell: str) -> str:
    if cell in ("SERVING", "ready"):
        return "green"
    if cell in ("NOT_SERVING", "dead", "stalled"):
        return "red"
    troubling = ("releasing", "refused", "stranded")
    if _HEADINGS[at] in troubling and cell not in ("", "0", _NOTHING):
        return "yellow"
    return ""
