"""The engine's load reports, in its two shapes, as the servicer takes them. Facts only: what the
engine does not say is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roomkeeper.engine import EngineLoad, WorkerInfo


def read_snapshots(snapshots: Iterable[Any], info: WorkerInfo) -> list[EngineLoad]:
    """What the scheduler has pushed: requests, and pages of the whole pool.

    A page here is a block of the allocator, not a number of tokens, so the used share of the pool
    is reported as that share of the token budget. Active pages are those of live requests, used
    ones include what the prefix cache could give back.
    """
    return [_snapshot(snapshot, info) for snapshot in snapshots]


def _snapshot(snapshot: Any, info: WorkerInfo) -> EngineLoad:
    load: EngineLoad = {
        "rank": int(snapshot.dp_rank),
        "running": int(snapshot.num_running_reqs),
        "waiting": int(snapshot.num_waiting_reqs),
    }
    if info.kv_tokens > 0:
        load["max_total_tokens"] = info.kv_tokens
    pages = int(snapshot.max_total_pages)
    if pages > 0:
        used = int(snapshot.num_used_pages)
        load["token_usage"] = used / pages
        load["active_token_usage"] = int(snapshot.num_active_pages) / pages
        if info.kv_tokens > 0:
            load["used_tokens"] = used * info.kv_tokens // pages
    return load


def read_get_load(answer: Iterable[Any], info: WorkerInfo) -> list[EngineLoad]:
    """What ``get_load`` answers: all requests and the waiting among them, and pages of tokens."""
    loads = []
    for rank in answer:
        waiting = int(rank.num_waiting_reqs)
        load: EngineLoad = {
            "rank": int(rank.dp_rank),
            "running": max(0, int(rank.num_reqs) - waiting),
            "waiting": waiting,
        }
        if info.kv_tokens > 0:
            load["max_total_tokens"] = info.kv_tokens
            if info.page_tokens > 0:
                load["used_tokens"] = int(rank.num_pages) * info.page_tokens
                load["token_usage"] = min(1.0, load["used_tokens"] / info.kv_tokens)
        loads.append(load)
    return loads
