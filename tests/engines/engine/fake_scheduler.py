"""TokenSpeed's scheduler process with a made-up model and a made-up KV transfer.

cpu_shim.py puts `run_event_loop` below in the place of TokenSpeed's own, which
loads a model on a GPU. Everything around it stays real: the frontend (AsyncLLM),
its messages and sockets, and the C++ scheduler with its window, pages, prefix
cache and PD events.

The two deadlines are the engine's. A prefill fails by itself when no decode has
admitted its room in time; the decode is not told. A decode that has admitted a
room holds its place in the window until the KV arrives or its own, longer
deadline passes.

An abort is the engine's too: it only marks the request. A running one goes with its
next step; one that waits for a peer keeps its place until the KV arrives, the deadline
passes, or somebody calls `kv_transfer.kv_manager` (see fake_kv_transfer.py).
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from dataclasses import dataclass

import tokenspeed_scheduler as ts
import zmq
from fake_kv_transfer import TRANSFER_POLL_FAILED, Arrival, DecodeEnd, KvManager, PrefillEnd
from fake_request import (
    TRANSFER_FAILED,
    Frame,
    Request,
    abort_reason,
    output_message,
)
from tokenspeed.runtime.engine import io_struct as io
from tokenspeed.runtime.pd import kv_events
from tokenspeed.runtime.utils import get_zmq_socket

PAGE_TOKENS = 16
DEFAULT_MODEL_LEN = 4096
DEFAULT_CHUNK_TOKENS = 8192
LOAD_PERIOD_S = 0.25
LOAD_VALID_FOR_MS = 5000
IDLE_POLL_MS = 1


@dataclass(frozen=True)
class Settings:
    step_s: float
    transfer_s: float
    vocab_size: int
    pages: int
    bootstrap_timeout_s: float
    transfer_timeout_s: float
    trace: bool

    @classmethod
    def from_environment(cls) -> Settings:
        def number(name: str, default: float) -> float:
            return float(os.environ.get(f"TS_FAKE_{name}", default))

        return cls(
            step_s=number("STEP_MS", 5) / 1e3,
            transfer_s=number("KV_MS", 2) / 1e3,
            vocab_size=int(number("VOCAB", 512)),
            pages=int(number("PAGES", 4096)),
            bootstrap_timeout_s=number("BOOTSTRAP_TIMEOUT_S", 120),
            transfer_timeout_s=number("TRANSFER_TIMEOUT_S", 300),
            trace=bool(number("TRACE", 0)),
        )


class StickyKvManager(KvManager):
    """A room that has failed stays so until its request is over or `discard_room`, as in the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.transfer_queues: list = []  # the engine's transfer threads have theirs here
        self.request_status: dict[int, int] = {}

    def update_status(self, room: int, status: int) -> None:
        super().update_status(room, status)
        self.request_status[room] = status

    def abort_room(self, room: int, reason: str) -> None:
        super().abort_room(room, reason)
        self.request_status[room] = TRANSFER_POLL_FAILED

    def discard_room(self, room: int | None) -> None:
        self.request_status.pop(room, None)

    def has_failed(self, room: int | None) -> bool:
        return room in self.request_status


@dataclass(frozen=True)
class Leg:
    """A request that has a room, named as on the engine's senders and receivers."""

    bootstrap_room: int


class KvTransfer:
    """Named as on the engine's event loop: `event_loop.kv_transfer.kv_manager`."""

    def __init__(self, mode: str) -> None:
        self.kv_manager = StickyKvManager()
        self.senders: dict[str, Leg] = {}
        self.receivers: dict[str, Leg] = {}
        self._legs = self.senders if mode == "prefill" else self.receivers

    def register(self, request_id: str, room: int) -> None:
        self._legs[request_id] = Leg(room)

    def drop(self, request: Request) -> None:
        self._legs.pop(request.id, None)
        self.kv_manager.discard_room(request.room)

    def generate_events(self) -> list[tuple[int, bool]]:
        """Once a round: the rooms that have failed, and whether the decode is to be told."""
        return self.kv_manager.take_failed()


@dataclass(frozen=True)
class Transfer:
    done_at: float
    request_id: str
    token: int


def forward_event(kind: type, request_id: str, **fields):
    event = kind()
    event.request_id = request_id
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def kv_events_enabled(server_args) -> bool:
    return kv_events.EventPublisherFactory.is_enabled(server_args.kv_events_config)


def scheduler_config(server_args, pages: int) -> ts.SchedulerConfig:
    roles = {"prefill": ts.SchedulerConfig.Role.P, "decode": ts.SchedulerConfig.Role.D}
    role = roles.get(server_args.disaggregation_mode, ts.SchedulerConfig.Role.Fused)
    cache_group = {
        "group_id": "full_attention",
        "block_granularity": PAGE_TOKENS,
        "total_pages": pages,
        "retention": ts.CacheRetention.FullHistory,
        "family": ts.CacheGroupFamily.History,
    }
    if role != ts.SchedulerConfig.Role.Fused:
        cache_group["transfer_policy"] = ts.CacheTransferPolicy.FullSuffix

    config = ts.SchedulerConfig()
    config.role = role
    config.max_batch_size = server_args.max_num_seqs  # the running window
    config.max_scheduled_tokens = server_args.chunked_prefill_size or DEFAULT_CHUNK_TOKENS
    config.prefix_granularity = PAGE_TOKENS
    config.num_device_pages = pages
    config.num_host_pages = 0
    config.num_snapshot_pages = 1  # just the null page: requests are never retracted
    config.disable_l2_cache = True
    config.enable_l3_storage = False
    config.disable_prefix_cache = False
    config.enable_kv_cache_events = kv_events_enabled(server_args)
    config.decode_input_tokens = 1
    config.overlap_schedule_depth = 0
    config.cache_groups = [ts.CacheGroupConfig(**cache_group)]
    return config


class FakeScheduler:
    """One thread: messages in, deadlines, one step of the plan, messages out."""

    def __init__(self, server_args, port_args) -> None:
        self.server_args = server_args
        self.settings = Settings.from_environment()
        self.scheduler = ts.Scheduler(scheduler_config(server_args, self.settings.pages))
        self.requests: dict[str, Request] = {}
        self.request_of_room: dict[int, str] = {}
        self.transfers: list[Transfer] = []
        self.launcher_pid = os.getppid()
        self.stopping = False

        context = zmq.Context(2)
        inbox = port_args.scheduler_input_ipc_name
        outbox = port_args.tokenizer_ipc_name
        self.inbox = io.IpcReceiver(get_zmq_socket(context, zmq.PULL, inbox, False))
        self.outbox = io.IpcSender(get_zmq_socket(context, zmq.PUSH, outbox, False))
        self.load_socket = context.socket(zmq.PUSH)
        self.load_socket.connect(port_args.metrics_ipc_name)
        self.load_encoder = io.MsgpackEncoder()
        self.load_sequence = 0
        self.next_load_at = 0.0
        self.paused = False
        self.kv_publisher = kv_events.EventPublisherFactory.create(
            server_args.kv_events_config, attn_dp_rank=0
        )
        self.kv_events_enabled = kv_events_enabled(server_args)

        mode = server_args.disaggregation_mode
        self.kv_transfer = None if mode == "null" else KvTransfer(mode)
        self.prefill_end: PrefillEnd | None = None
        self.decode_end: DecodeEnd | None = None
        if mode == "prefill":
            bootstrap_port = server_args.disaggregation_bootstrap_port
            self.prefill_end = PrefillEnd(context, bootstrap_port)
        elif mode == "decode":
            self.decode_end = DecodeEnd(context)

    # ---- life

    def ready_report(self) -> dict:
        max_model_len = self.server_args.max_model_len or DEFAULT_MODEL_LEN
        return {
            "status": "ready",
            "max_total_num_tokens": self.total_pages() * PAGE_TOKENS,
            "max_req_input_len": max_model_len - 1,
            "max_single_request_tokens": self.scheduler.max_single_request_tokens(),
            "max_num_seqs": self.server_args.max_num_seqs,
            "chunked_prefill_size": self.server_args.chunked_prefill_size,
            "max_model_len": max_model_len,
            "multimodal_encoder_dtype": None,
            "cache_storage": None,
            "supports_prompt_logprobs": False,
        }

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides
        signal.signal(signal.SIGUSR2, lambda *_: self.toggle_paused())
        while not self.stopping:
            self.receive()
            self.expire_deadlines()
            if not self.step():
                self.inbox.poll(IDLE_POLL_MS)
            if os.getppid() != self.launcher_pid:
                self.stop()

    def stop(self) -> None:
        self.stopping = True

    def toggle_paused(self) -> None:
        """The engine's own pause comes from its training side, which no RPC reaches."""
        self.paused = not self.paused

    # ---- messages from the frontend

    def receive(self) -> None:
        while True:
            try:
                message = self.inbox.recv_pyobj(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.handle(message)
        if self.kv_transfer:
            for room, tell_decode in self.kv_transfer.generate_events():
                self.fail_room(room, tell_decode)
        if self.prefill_end:
            for room in self.prefill_end.poll_asked():
                self.bootstrap_prefill(room)
            self.finish_transfers()
        if self.decode_end:
            for arrival in self.decode_end.poll_arrived():
                self.kv_arrived(arrival)

    def handle(self, message) -> None:
        if isinstance(message, io.TokenizedGenerateReqInput):
            self.add(Request(message))
        elif isinstance(message, io.AbortReq):
            self.abort(message.rid)
        elif isinstance(message, io.FlushCacheReqInput):
            flushed = bool(self.scheduler.clear_cache())
            self.outbox.send_pyobj(io.FlushCacheReqOutput(success=flushed))
        elif isinstance(message, io.GetInternalStateReq):
            self.outbox.send_pyobj(io.GetInternalStateReqOutput(internal_state={}))
        elif isinstance(message, io.IsSchedulerPausedReqInput):
            self.outbox.send_pyobj(io.IsSchedulerPausedReqOutput(is_paused=self.paused))
        elif isinstance(message, io.ProfileReq):
            refusal = "the fake scheduler has no profiler"
            self.outbox.send_pyobj(io.ProfileReqOutput(success=False, message=refusal))
        else:
            print("fake scheduler: ignored", type(message).__name__, flush=True)

    def add(self, request: Request) -> None:
        if request.grammar_fault:
            self.emit([Frame(request, abort_reason(request.grammar_fault))])
            return
        self.requests[request.id] = request
        spec = ts.RequestSpec()
        spec.request_id = request.id
        spec.tokens = request.prompt
        spec.max_new_tokens = request.max_new_tokens
        self.scheduler.submit_requests([spec])
        if request.room is not None:
            self.request_of_room[request.room] = request.id
            if self.kv_transfer:
                self.kv_transfer.register(request.id, request.room)
                if self.kv_transfer.kv_manager.has_failed(request.room):
                    self.fail(request)
                    return

        if self.prefill_end and request.room is not None:
            request.deadline = time.monotonic() + self.settings.bootstrap_timeout_s
            if self.prefill_end.is_asked(request.room):
                self.bootstrap_prefill(request.room)
        elif self.prefill_end or self.decode_end:
            # A decode may enter the line at once. So may a warm-up request, which
            # has no room and no peer.
            self.advance([ts.PD.BootstrappedEvent(request.id)])

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        request.aborted = True
        runs = bool(request.output) and not self.prefill_end
        if runs or self.kv_transfer is None:
            self.end_aborted(request)

    def end_aborted(self, request: Request) -> None:
        self.advance([forward_event(ts.ForwardEvent.Abort, request.id)])
        self.forget(request)

    def fail_room(self, room: int, tell_decode: bool) -> None:
        if self.prefill_end and tell_decode:
            self.prefill_end.send_failed(room)
        request_id = self.request_of_room.get(room)
        if request_id is not None:
            self.fail(self.requests[request_id])

    def fail(self, request: Request) -> None:
        self.advance([ts.PD.FailedEvent(request.id)])
        self.emit([Frame(request, abort_reason(TRANSFER_FAILED))])
        self.forget(request)

    def forget(self, request: Request) -> None:
        del self.requests[request.id]
        self.request_of_room.pop(request.room, None)
        if self.kv_transfer:
            self.kv_transfer.drop(request)
        if self.prefill_end:
            self.prefill_end.forget(request.room)

    # ---- prefill and decode

    def bootstrap_prefill(self, room: int) -> None:
        """Prefill: a decode has admitted the room, so its prompt may be computed."""
        if self.kv_transfer.kv_manager.has_failed(room):
            self.prefill_end.send_failed(room)
            self.prefill_end.forget(room)
            return
        request_id = self.request_of_room.get(room)
        if request_id is None:
            return  # not here yet, or gone
        self.requests[request_id].deadline = None
        self.advance([ts.PD.BootstrappedEvent(request_id)])

    def start_transfers(self, plan) -> None:
        """Prefill: these prompts are computed, their KV goes out."""
        batch = plan.remote_decode
        if batch is None:
            return
        done_at = time.monotonic() + self.settings.transfer_s
        for request_id, token in zip(batch.request_ids, batch.decode_input_ids, strict=True):
            self.transfers.append(Transfer(done_at, request_id, int(token)))

    def finish_transfers(self) -> None:
        """Prefill: the KV has arrived, which ends the request on this side."""
        now = time.monotonic()
        done = [transfer for transfer in self.transfers if transfer.done_at <= now]
        self.transfers = [t for t in self.transfers if t.done_at > now]
        for transfer in done:
            request = self.requests.get(transfer.request_id)
            if request is None:
                continue  # aborted on the way
            if request.room is not None:
                cached = request.cached_tokens or 0
                arrival = Arrival(request.room, transfer.token, cached)
                self.prefill_end.send(arrival)
            request.output = [transfer.token]
            self.advance([ts.PD.SucceededEvent(request.id)])
            self.emit([Frame(request, {"type": "length", "length": 1})])
            self.forget(request)

    def ask_for_kv(self, plan, events: list, frames: list[Frame]) -> None:
        """Decode: these requests have entered the window; now the prefill may begin."""
        batch = plan.remote_prefill
        if batch is None:
            return
        for request_id in batch.request_ids:
            request = self.requests[request_id]
            if request.room is None:
                token = request.next_token(self.settings.vocab_size)
                events.append(ts.PD.RemotePrefillDoneEvent(request.id, token))
                self.append_token(request, token, events, frames)
                continue
            request.deadline = time.monotonic() + self.settings.transfer_timeout_s
            self.decode_end.ask(request.bootstrap_host, request.bootstrap_port, request.room)

    def kv_arrived(self, arrival: Arrival) -> None:
        request_id = self.request_of_room.get(arrival.room)
        if request_id is None:
            return  # aborted meanwhile
        request = self.requests[request_id]
        if request.deadline is None:
            return  # not in the window: this answers an earlier request of the room
        if arrival.failed:
            self.fail(request)
            return
        request.deadline = None
        request.cached_tokens = arrival.cached_tokens
        events = [ts.PD.RemotePrefillDoneEvent(request.id, arrival.token)]
        frames: list[Frame] = []
        self.append_token(request, arrival.token, events, frames)
        self.advance(events)
        self.emit(frames)
        if request.aborted and request.id in self.requests:
            self.end_aborted(request)

    def expire_deadlines(self) -> None:
        now = time.monotonic()
        expired = [r for r in self.requests.values() if r.deadline and r.deadline < now]
        for request in expired:
            self.fail(request)

    # ---- one step

    def step(self) -> int:
        """Runs one plan of the scheduler; returns how many requests took part."""
        plan = self.scheduler.next_execution_plan()
        events: list = []
        frames: list[Frame] = []
        for refused in plan.aborts:
            if request := self.requests.get(refused.request_id):
                frames.append(Frame(request, abort_reason(refused.detail)))
                self.forget(request)
        self.start_transfers(plan)
        self.ask_for_kv(plan, events, frames)
        took_part = self.forward(plan, events, frames)
        if took_part:
            time.sleep(self.settings.step_s)
        self.advance(events)
        self.emit(frames)
        self.report_load()
        self.publish_kv_events()
        if took_part and self.settings.trace:
            self.print_state(took_part)
        return took_part

    def forward(self, plan, events: list, frames: list[Frame]) -> int:
        """The model: rows below num_extends() are prompt chunks, the others decode."""
        took_part = 0
        for batch in plan.forward:
            took_part += len(batch.request_ids)
            for row, request_id in enumerate(batch.request_ids):
                request = self.requests[request_id]
                if row < batch.num_extends():
                    begin = batch.extend_prefix_lens[row]
                    end = begin + batch.input_lengths[row]
                    if request.cached_tokens is None:
                        request.cached_tokens = begin
                    if end < batch.prefill_lengths[row]:
                        events.append(self.extend_result(request, []))
                        continue
                token = request.next_token(self.settings.vocab_size)
                events.append(self.extend_result(request, [token]))
                if not self.prefill_end:  # a prefill's token travels with the KV
                    self.append_token(request, token, events, frames)
        return took_part

    @staticmethod
    def extend_result(request: Request, tokens: list[int]):
        return forward_event(ts.ForwardEvent.ExtendResult, request.id, tokens=tokens)

    def append_token(self, request: Request, token: int, events: list, frames: list[Frame]) -> None:
        request.output.append(token)
        reason = request.finish_reason()
        if reason:
            events.append(forward_event(ts.ForwardEvent.Finish, request.id))
            self.forget(request)
        if reason or request.stream:
            frames.append(Frame(request, reason))

    def advance(self, events: list) -> None:
        if not events:
            return
        batch = ts.ExecutionEvent()
        for event in events:
            batch.add_event(event)
        self.scheduler.advance(batch)

    # ---- messages to the frontend

    def emit(self, frames: list[Frame]) -> None:
        frames = [frame for frame in frames if not frame.request.aborted]
        if not frames:
            return
        self.outbox.send_pyobj(output_message(frames))
        for frame in frames:
            frame.request.sent = len(frame.request.output)

    def publish_kv_events(self) -> None:
        """What the round has changed in the prefix cache, as one batch."""
        raw = kv_events.drain_scheduler_kv_events(self.scheduler, enabled=self.kv_events_enabled)
        if events := kv_events.scheduler_kv_events_to_wire_events(raw):
            batch = kv_events.KVEventBatch(ts=time.time(), events=events, attn_dp_rank=0)
            self.kv_publisher.publish(batch)

    def report_load(self) -> None:
        now = time.monotonic()
        if now < self.next_load_at:
            return
        self.next_load_at = now + LOAD_PERIOD_S
        self.load_sequence += 1
        active_pages = self.scheduler.active_lcm_blocks()
        snapshot = io.LoadSnapshot(
            epoch=str(os.getpid()),
            sequence=self.load_sequence,
            dp_rank=0,
            num_running_reqs=self.running(),
            num_waiting_reqs=self.waiting(),
            num_active_pages=active_pages,
            num_used_pages=active_pages,
            max_total_pages=self.total_pages(),
            valid_for_ms=LOAD_VALID_FOR_MS,
        )
        try:
            encoded = self.load_encoder.encode(snapshot)
            self.load_socket.send_multipart(encoded, zmq.NOBLOCK)
        except zmq.Again:
            pass  # nobody reads yet; the next one is due soon

    def running(self) -> int:
        return self.scheduler.prefilling_size() + self.scheduler.decoding_size()

    def waiting(self) -> int:
        return self.scheduler.waiting_size() + self.scheduler.bootstrapping_size()

    def total_pages(self) -> int:
        active = self.scheduler.active_lcm_blocks()
        return active + self.scheduler.available_lcm_blocks()

    def print_state(self, took_part: int) -> None:
        state = f"running {self.running()}, waiting {self.waiting()}"
        print(f"step of {took_part}: {state}", flush=True)


#: The engine's name of it, by which the release agent finds it.
EventLoop = FakeScheduler


def run_event_loop(server_args, port_args, pipe_writer) -> None:
    """The spawned process; the launcher waits for the report on `pipe_writer`."""
    scheduler = FakeScheduler(server_args, port_args)
    if on_start := os.environ.get("TS_FAKE_ON_START"):
        module, _, function = on_start.partition(":")
        getattr(importlib.import_module(module), function)(scheduler)
    pipe_writer.send(scheduler.ready_report())
    scheduler.run()
