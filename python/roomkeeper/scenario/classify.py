"""Why a request failed, by its id, from the gateway's log and the times at which workers were dead.

smg says in its debug log which pair it has chosen for each try of a request.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from roomkeeper.demo.plan import Outcome

#: smg's flags for a log that can be read here.
LOG_FLAGS = ("--log-level", "debug", "--log-json")
CHOSEN = "Selected PD pair"

Why = Literal["killed_worker", "never_dispatched", "other"]


@dataclasses.dataclass(frozen=True)
class Outage:
    """A worker was killed, and serves again. Monotonic seconds."""

    #: As the gateway names it.
    worker: str
    killed_s: float
    serving_s: float


def read_pairs(log: Path) -> dict[str, tuple[str, str]]:
    """By the client's request id: the prefill and the decode of the last try."""
    pairs: dict[str, tuple[str, str]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if CHOSEN not in line:
            continue
        entry = json.loads(line)
        pairs[entry["span"]["request_id"]] = (entry["prefill"], entry["decode"])
    return pairs


def classify(
    outcome: Outcome, pair: tuple[str, str] | None, begun_s: float, outages: Sequence[Outage]
) -> Why:
    """Why this request failed. ``begun_s``: when the burst began."""
    if pair is None:
        return "never_dispatched"
    sent_s = begun_s + outcome.sent_s
    ended_s = sent_s + outcome.latency_s
    hit = any(
        outage.worker in pair and outage.killed_s <= ended_s and outage.serving_s >= sent_s
        for outage in outages
    )
    return "killed_worker" if hit else "other"
