"""What is to be reached, as ratios of medians of one run: ours to a peer's."""

from __future__ import annotations

from dataclasses import dataclass

from compare.rows import Rows

OURS = "roomkeeper"


@dataclass(frozen=True)
class Goal:
    """`server`'s figure over `peer`'s, which is to be `sense` the bound."""

    work: str
    metric: str
    peer: str
    sense: str
    bound: float
    server: str = OURS
    #: Whether what of both figures is the engine's own is taken off before: its CPU; of a first token, the step.
    without_engine: bool = False

    def ratio(self, rows: Rows) -> float | None:
        ours, theirs = (self._figure(rows, server) for server in (self.server, self.peer))
        if ours is None or theirs is None:
            return None
        return max(0.0, ours) / max(theirs, RESOLUTION)

    def _figure(self, rows: Rows, server: str) -> float | None:
        value = rows.median(self.work, self.metric, server)
        if value is None or not self.without_engine:
            return value
        if self.metric.startswith("ttft"):
            return value - STEP_MS
        engine = rows.median(self.work, self.metric, ENGINE_OF.get(server, ""))
        return value if engine is None else value - engine

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.sense == ">=" else ratio <= self.bound


#: What is left of a figure without the engine may be nothing at all; ratios need something.
RESOLUTION = 0.001
#: From step to step of a paced engine; the first token of a request that finds it idle waits as long.
STEP_MS = 10.0
#: Which measurement of the engine alone belongs to a server whose engine is in its own process. The Rust
#: servicer's scheduler is a process of its own, whose CPU is not in its figures.
ENGINE_OF = {
    "roomkeeper": "engine-steps",
    "roomkeeper-asyncllm": "engine-asyncllm",
    "python": "engine-asyncllm",
}


def _both(
    work: str,
    metric: str,
    sense: str,
    python: float | None,
    rust: float | None,
    without_engine: bool = False,
):
    bounds = (("python", python), ("rust", rust))
    return [
        Goal(work, metric, peer, sense, bound, without_engine=without_engine)
        for peer, bound in bounds
        if bound is not None
    ]


GOALS: list[Goal] = [
    *_both("unpaced-32", "messages_per_s", ">=", 12, 1),
    *_both("paced-64", "server_cpu_us", "<=", 0.2, 0.6, without_engine=True),
    *_both("paced-64", "client_cpu_us", "<=", 0.3, 0.5),
    *_both("paced-256", "gap_p99_ms", "<=", 0.5, 1),
    *_both("paced-64", "ttft_p50_ms", "<=", 0.25, 1, without_engine=True),
    *_both("loads-stuck", "latency_p99_ms", "<=", 0.1, 1),
    *_both("cancel-128", "abort_p99_ms", "<=", 0.2, 1),
    *_both("refusals", "requests_per_s", ">=", 10, 1),
    *_both("slow-reader", "rss_growth_kib", "<=", None, 0.1),
    Goal("unpaced-32", "server_cpu_us", "bare", "<=", 1.3, server="c-standin"),
    Goal("paced-64", "server_cpu_us", "floor", "<=", 2.0, server="c-standin"),
]


def verdicts(rows: Rows) -> list[dict]:
    """Every goal whose two figures were measured."""
    found = []
    for goal in GOALS:
        ratio = goal.ratio(rows)
        if ratio is None:
            continue
        found.append(
            {
                "work": goal.work,
                "metric": goal.metric,
                "server": goal.server,
                "peer": goal.peer,
                "without_engine": goal.without_engine,
                "ratio": round(ratio, 3),
                "goal": f"{goal.sense} {goal.bound}",
                "met": goal.met(ratio),
            }
        )
    return found
