"""The table of ``roomkeeper status``: with rich where it is installed and wanted, else plain."""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Iterator, Sequence

from roomkeeper.statusread import Peer, Worker

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
_LINK_HEADINGS = (
    "worker",
    "peer",
    "address",
    "link",
    "since",
    "engine",
    "release",
    "told",
    "heard",
    "refused",
    "why",
)
#: Columns of numbers, which stand to the right; texts stand to the left.
_NUMBERS = frozenset(
    (*_HEADINGS[4:], "since", "told", "heard", "refused"),
)
_NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class _Table:
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def render(workers: Sequence[Worker], *, colour: bool) -> str:
    """A row a rank, below it a line for what does not fit into one; then a row a room link."""
    ranks = _Table(_HEADINGS, [row for worker in workers for row in _rows(worker)])
    links = _Table(_LINK_HEADINGS, [row for worker in workers for row in _link_rows(worker)])
    notes = "".join(f"{note}\n" for worker in workers for note in _notes(worker))
    return _drawn(ranks, colour) + notes + (f"\n{_drawn(links, colour)}" if links.rows else "")


def _drawn(table: _Table, colour: bool) -> str:
    return (_rich(table) if colour else "") or _plain(table)


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


def _link_rows(worker: Worker) -> Iterator[tuple[str, ...]]:
    for at, peer in enumerate(worker.peers):
        yield (
            worker.address if at == 0 else "",
            peer.name,
            peer.address,
            peer.state,
            f"{peer.since_ms / 1e3:.1f} s",
            peer.engine or _NOTHING,
            _releases(peer),
            str(peer.told),
            str(peer.heard),
            str(peer.refused),
            peer.why or _NOTHING,
        )


def _releases(peer: Peer) -> str:
    return _NOTHING if peer.releases is None else ("yes" if peer.releases else "no")


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
        links = _link_note(worker)
        releases = "release: yes" if own.get("release") else "release: no"
        yield f"{worker.address}: {links}, {releases}"
    if worker.refused:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(worker.refused.items()))
        yield f"{worker.address}: refused: {causes}"
    if worker.stranded:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(worker.stranded.items()))
        yield f"{worker.address}: stranded: {causes}"
    if own.get("draining"):
        yield f"{worker.address}: draining"


def _link_note(worker: Worker) -> str:
    if not (worker.roomkeeper or {}).get("link"):
        return "link: no"
    if worker.listens_for_links:
        return f"link: yes, at {worker.listens_for_links}"
    return "link: yes"


def _plain(table: _Table) -> str:
    lines = [table.headings, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"{_line(table.headings, line, widths)}\n" for line in lines)


def _line(headings: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
        for heading, cell, width in zip(headings, cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def _rich(table: _Table) -> str:
    """Empty where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return ""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in table.headings:
        made.add_column(
            heading, justify="right" if heading in _NUMBERS else "left", no_wrap=heading != "why"
        )
    for row in table.rows:
        made.add_row(
            *(
                Text(cell, style=_style(heading, cell))
                for heading, cell in zip(table.headings, row, strict=True)
            )
        )
    out = io.StringIO()
    width = max(shutil.get_terminal_size().columns, 120)
    Console(file=out, force_terminal=True, width=width).print(made)
    return out.getvalue()


def _style(heading: str, cell: str) -> str:
    if cell in ("SERVING", "ready", "up"):
        return "green"
    if cell in ("NOT_SERVING", "dead", "stalled", "lost"):
        return "red"
    troubling = ("releasing", "refused", "stranded")
    if cell == "absent" or (heading in troubling and cell not in ("", "0", _NOTHING)):
        return "yellow"
    return ""
