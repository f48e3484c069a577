"""The figures of a run, and what is read off them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Key:
    """One figure: of which work, in which unit (the metric's name ends in it), of which server."""

    work: str
    metric: str
    server: str


@dataclass
class Rows:
    """Every measured value, in the order in which it came."""

    values: dict[Key, list[float]] = field(default_factory=dict)

    def add(self, work: str, metric: str, server: str, value: float) -> None:
        self.values.setdefault(Key(work, metric, server), []).append(value)

    def of(self, work: str, metric: str, server: str) -> Sequence[float]:
        return self.values.get(Key(work, metric, server), ())

    def median(self, work: str, metric: str, server: str) -> float | None:
        values = self.of(work, metric, server)
        return statistics.median(values) if values else None

    def comparisons(self) -> list[tuple[str, str]]:
        """Works and metrics, as they were first measured."""
        return list(dict.fromkeys((key.work, key.metric) for key in self.values))

    def as_json(self) -> list[dict]:
        return [
            {
                "work": key.work,
                "metric": key.metric,
                "server": key.server,
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
                "runs": len(values),
            }
            for key, values in self.values.items()
        ]
