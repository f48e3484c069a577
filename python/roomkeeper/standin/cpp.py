"""TokenSpeed's C++ scheduler, from the package ``tokenspeed-scheduler``, behind plan.Scheduling."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import Any

import tokenspeed_scheduler as ts

from roomkeeper.standin.plan import PAGE_TOKENS, Event, EventKind, Extend, Limits, Plan

_ROLES = {"null": "Fused", "prefill": "P", "decode": "D"}


def _config(limits: Limits) -> Any:
    group: dict[str, Any] = {
        "group_id": "full_attention",
        "block_granularity": PAGE_TOKENS,
        "total_pages": limits.pages + 1,  # it keeps one to itself
        "retention": ts.CacheRetention.FullHistory,
        "family": ts.CacheGroupFamily.History,
    }
    if limits.role != "null":
        group["transfer_policy"] = ts.CacheTransferPolicy.FullSuffix
    config = ts.SchedulerConfig()
    config.role = getattr(ts.SchedulerConfig.Role, _ROLES[limits.role])
    config.max_batch_size = limits.window
    config.max_scheduled_tokens = limits.chunk_tokens
    config.prefix_granularity = PAGE_TOKENS
    config.num_device_pages = limits.pages + 1
    config.num_host_pages = 0
    config.num_snapshot_pages = 1  # just the null page: requests are never retracted
    config.disable_l2_cache = True
    config.enable_l3_storage = False
    config.disable_prefix_cache = False
    config.decode_input_tokens = 1
    config.overlap_schedule_depth = 0
    config.enable_kv_cache_events = limits.kv_events
    config.cache_groups = [ts.CacheGroupConfig(**group)]
    return config


class CppScheduling:
    """See plan.Scheduling."""

    def __init__(self, limits: Limits) -> None:
        self.name = f"tokenspeed-scheduler {importlib.metadata.version('tokenspeed-scheduler')}"
        self._scheduler = ts.Scheduler(_config(limits))

    def submit(self, request_id: str, prompt: list[int], max_new_tokens: int) -> None:
        spec = ts.RequestSpec()
        spec.request_id = request_id
        spec.tokens = prompt
        spec.max_new_tokens = max_new_tokens
        self._scheduler.submit_requests([spec])

    def plan(self) -> Plan:
        plan = self._scheduler.next_execution_plan()
        extends: list[Extend] = []
        decodes: list[str] = []
        for batch in plan.forward:
            prompts = batch.num_extends()
            ids = list(batch.request_ids)
            decodes += ids[prompts:]
            for row, request_id in enumerate(ids[:prompts]):
                begin = batch.extend_prefix_lens[row]
                end = begin + batch.input_lengths[row]
                extends.append(Extend(request_id, begin, end, batch.prefill_lengths[row]))
        leaving = plan.remote_decode
        return Plan(
            extends,
            decodes,
            list(plan.remote_prefill.request_ids) if plan.remote_prefill else [],
            list(zip(leaving.request_ids, leaving.decode_input_ids, strict=True))
            if leaving
            else [],
            [(refused.request_id, refused.detail) for refused in plan.aborts],
        )

    def advance(self, events: Iterable[Event]) -> None:
        batch = ts.ExecutionEvent()
        for event in events:
            batch.add_event(_event(event))
        self._scheduler.advance(batch)

    def running(self) -> int:
        return int(self._scheduler.prefilling_size() + self._scheduler.decoding_size())

    def waiting(self) -> int:
        return int(self._scheduler.waiting_size() + self._scheduler.bootstrapping_size())

    def active_pages(self) -> int:
        return int(self._scheduler.active_lcm_blocks())

    def total_pages(self) -> int:
        return self.active_pages() + int(self._scheduler.available_lcm_blocks())

    def longest_request(self) -> int:
        return int(self._scheduler.max_single_request_tokens())

    def clear_cache(self) -> bool:
        return bool(self._scheduler.clear_cache())

    def drain_kv_events(self) -> list[Any]:
        return list(self._scheduler.drain_kv_events())


def _event(event: Event) -> Any:
    made: Any
    if event.kind is EventKind.BOOTSTRAPPED:
        return ts.PD.BootstrappedEvent(event.request_id)
    if event.kind is EventKind.REMOTE_PREFILL_DONE:
        return ts.PD.RemotePrefillDoneEvent(event.request_id, event.token)
    if event.kind is EventKind.SUCCEEDED:
        return ts.PD.SucceededEvent(event.request_id)
    if event.kind is EventKind.FAILED:
        return ts.PD.FailedEvent(event.request_id)
    if event.kind is EventKind.EXTENDED:
        made = ts.ForwardEvent.ExtendResult()
        made.tokens = [] if event.token is None else [event.token]
    elif event.kind is EventKind.FINISHED:
        made = ts.ForwardEvent.Finish()
    else:
        made = ts.ForwardEvent.Abort()
    made.request_id = event.request_id
    return made
