"""Whether a soak was flat, and whether every request is accounted for. Pure functions."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from soaking.workers import Look, Metrics

#: What comes before is warm-up: a share of the run, and so many seconds at least.
WARM_SHARE, WARM_S = 0.1, 60.0
#: The median of the last third may exceed that of the first by so much.
RSS_FACTOR, RSS_MIB = 1.05, 8.0
FDS, THREADS = 8.0, 2.0
#: Below so many looks a third says nothing.
LOOKS_MIN = 10
EXAMPLES_MAX = 5
#: Ways in which a request of a client that is well may end.
ALLOWED = {
    "OK",
    "CANCELLED",  # by its client
    "DEADLINE_EXCEEDED",  # its client's
    "RESOURCE_EXHAUSTED",  # no place, or its client does not read
    "ABORTED",  # its twin ended, or never came
    "TRANSFER_OFF",  # its twin was ended first, and its engine heard of it before its worker
    "UNAVAILABLE",  # the link was cut, or the engine stood still for too long
}


@dataclasses.dataclass(frozen=True)
class Thirds:
    """The medians of the first and of the last third after the warm-up."""

    first: float
    last: float
    bound: float

    @property
    def flat(self) -> bool:
        return self.last <= self.bound

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 1) for name, value in dataclasses.asdict(self).items()}


def thirds(looks: Sequence[Look]) -> dict[str, Thirds]:
    """By what was looked at; empty: the run was too short to tell."""
    if not looks:
        return {}
    warm_s = max(WARM_S, looks[-1].at_s * WARM_SHARE)
    warm = [look for look in looks if look.at_s >= warm_s]
    size = len(warm) // 3
    if size < LOOKS_MIN:
        return {}

    def compare(name: str, factor: float, more: float) -> Thirds:
        values = [float(getattr(look, name)) for look in warm]
        first, last = statistics.median(values[:size]), statistics.median(values[-size:])
        return Thirds(first, last, first * factor + more)

    return {
        "rss_mib": compare("rss_mib", RSS_FACTOR, RSS_MIB),
        "fds": compare("fds", 1, FDS),
        "threads": compare("threads", 1, THREADS),
    }


class Account:
    """The requests of all clients, from what they have written down."""

    def __init__(self) -> None:
        self.begun: collections.Counter[str] = collections.Counter()
        self.ended: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[str] = collections.Counter()
        #: How requests ended that may not end so, the first few.
        self.examples: list[str] = []
        #: Open when their client was killed; when it ended by itself, which nothing may be.
        self.with_client = 0
        self.lost = 0

    def take(self, lines: Sequence[str], *, killed: bool) -> None:
        """A client's file, once the client is gone."""
        open_now = 0
        for line in lines:
            sign, kind, *status = line.split()
            if sign == "+":
                self.begun[kind] += 1
                open_now += 1
            else:
                self.ended[kind] += 1
                self.statuses[status[0]] += 1
                if status[0] not in ALLOWED and len(self.examples) < EXAMPLES_MAX:
                    self.examples.append(line[2:])
                open_now -= 1
        if killed:
            self.with_client += open_now
        else:
            self.lost += open_now

    @property
    def strange(self) -> dict[str, int]:
        """Ends that there may not be."""
        return {status: count for status, count in self.statuses.items() if status not in ALLOWED}


def of_ledger(metrics: Metrics) -> dict[str, int]:
    """What a worker has done with the legs that came to it."""
    refused = metrics.by_label("roomkeeper_refused_total")
    ended = metrics.by_label("roomkeeper_ended_total")
    arrived = metrics.total("roomkeeper_arrived_total")
    return {
        "arrived": arrived,
        "refused": sum(refused.values()),
        "ended": sum(ended.values()),
        "unaccounted": arrived - sum(refused.values()) - sum(ended.values()),
    }


def complaints(
    account: Account,
    flatness: Mapping[str, Mapping[str, Thirds]],
    left: Mapping[str, Look],
    ledgers: Mapping[str, Mapping[str, int]],
) -> list[str]:
    """A line each; none: the soak has passed."""
    lines = []
    for role, by_name in flatness.items():
        for name, one in by_name.items():
            if not one.flat:
                lines.append(
                    f"{role}: {name} went from {one.first:.1f} to {one.last:.1f}; "
                    f"at most {one.bound:.1f} was allowed"
                )
    for role, look in left.items():
        if look.slots or look.legs or look.streams:
            lines.append(
                f"{role}: {look.slots} slots, {look.legs} legs, {look.streams} streams are left"
            )
    for role, ledger in ledgers.items():
        if ledger["unaccounted"]:
            lines.append(f"{role}: {ledger['unaccounted']} legs neither refused nor ended")
    if account.lost:
        lines.append(f"{account.lost} requests never ended")
    if account.strange:
        lines.append(
            f"requests ended as they may not: {account.strange}, such as {account.examples}"
        )
    return lines
