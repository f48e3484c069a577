"""The scheduler process of one rank: messages in, deadlines, one step of the plan, outputs out.

One thread. Who is admitted when is decided behind plan.Scheduling; this loop carries the plan out
with made-up tokens and a made-up KV transfer.

The two deadlines are TokenSpeed's. A prefill fails by itself when no decode has admitted its room
in time; the decode is not told. A decode that has admitted a room holds its place in the window
until the KV arrives or its own, longer deadline passes.

So is an abort: it only marks the request. A running one goes with its next step; one that waits for
its peer keeps its place until the KV arrives, the deadline passes, or somebody calls
``kv_transfer.kv_manager`` (see kv.py).
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Any, NamedTuple

from roomkeeper import kvevents
from roomkeeper.standin import messages
from roomkeeper.standin.args import StandinArgs
from roomkeeper.standin.encode import Embeddings, EncodeEnd
from roomkeeper.standin.kv import Arrival, DecodeEnd, KvTransfer, PrefillEnd
from roomkeeper.standin.kvpublisher import KvPublisher
from roomkeeper.standin.pipe import Pipe
from roomkeeper.standin.plan import PAGE_TOKENS, Event, EventKind, Limits, Plan, Scheduling
from roomkeeper.standin.request import TRANSFER_FAILED, Request, abort_reason
from roomkeeper.standin.trace import Trace

LOAD_PERIOD_S = 0.25
LOAD_VALID_FOR_MS = 5000
#: With requests there but nothing to do, the plan is asked for again after so long at the latest.
IDLE_S = 0.005


class _Transfer(NamedTuple):
    """Prefill: KV on its way."""

    done_at: float
    request_id: str
    token: int


def make_scheduling(limits: Limits) -> Scheduling:
    """TokenSpeed's scheduler where it is installed, else our own."""
    try:
        from roomkeeper.standin.cpp import CppScheduling
    except (ImportError, AttributeError):  # not there, or a release with other names
        from roomkeeper.standin.firstcome import FirstComeScheduling

        return FirstComeScheduling(limits)
    return CppScheduling(limits)


class EventLoop:
    """See the top of the file. PortTaken: a prefill cannot listen for its decodes.

    CannotPublish: nor the publisher of KV events.
    """

    def __init__(self, args: StandinArgs, rank: int, end: socket.socket) -> None:
        self._args = args
        self._rank = rank
        self._selector = selectors.DefaultSelector()
        self._pipe = Pipe(end, self._want_write)
        self._selector.register(end, selectors.EVENT_READ, self._pipe_ready)
        self._inbox: list[messages.FromFrontend] = []
        self._launcher_gone = False
        encodes = args.role == "encode"
        kv_events = None if encodes else kvevents.config_of(args)
        self._kv_publisher = KvPublisher(kv_events, rank) if kv_events else None
        limits = Limits(
            "null" if encodes else args.role,
            args.rank_window,
            args.rank_pages,
            args.chunk_tokens,
            kv_events is not None,
        )
        self._scheduling = make_scheduling(limits)
        self._requests: dict[str, Request] = {}
        self._request_of_room: dict[int, str] = {}
        self._transfers: list[_Transfer] = []
        self._outputs: list[messages.Output] = []
        self._trace = Trace(args.trace, rank)
        self._load_sequence = 0
        self._next_load_at = 0.0
        #: Set by a signal handler.
        self.stopping = False
        self.kv_transfer: KvTransfer | None = None
        self._prefill_end: PrefillEnd | None = None
        self._decode_end: DecodeEnd | None = None
        #: Rooms have failed in this round: another one at once tells whoever waits for its end.
        self._rooms_failed = False
        self._encode_end: EncodeEnd | None = None
        self._embeddings: Embeddings | None = None
        if args.role in ("prefill", "decode"):
            self.kv_transfer = KvTransfer(self._selector, args.role)
        if args.role == "prefill":
            port = args.disaggregation_bootstrap_port
            self._prefill_end = PrefillEnd(self._selector, port, self._room_asked)
            self._embeddings = Embeddings(self._selector, self._saw_all)
        elif encodes:
            self._encode_end = EncodeEnd(self._selector, args.disaggregation_bootstrap_port)
        elif args.role == "decode":
            self._decode_end = DecodeEnd(self._selector, self._kv_arrived)

    # -- life --

    def ready_report(self) -> dict[str, Any]:
        """What the launcher is told when the process serves; names as TokenSpeed's."""
        return {
            "status": "ready",
            "scheduler": self._scheduling.name,
            "max_total_num_tokens": self._scheduling.total_pages() * PAGE_TOKENS,
            "max_single_request_tokens": self._scheduling.longest_request(),
            "max_req_input_len": self._args.max_model_len - 1,
            "max_num_seqs": self._args.max_num_seqs,
            "chunked_prefill_size": self._args.chunk_tokens,
            "max_model_len": self._args.max_model_len,
            "supports_prompt_logprobs": False,
        }

    def run(self) -> None:
        """Until the launcher says so, or is gone."""
        # The first load goes ahead, so that the frontend knows from the start that loads come. An
        # encode worker schedules nothing and has none to report.
        if self._encode_end is None:
            self._report_load()
        self._pipe.send(messages.Ready(self.ready_report()))
        busy = False
        while not self.stopping and not self._launcher_gone:
            self._receive(0.0 if busy else self._patience())
            self._expire_deadlines()
            busy = self._step() or self._rooms_failed

    def _patience(self) -> float:
        """How long nothing need be done unless a message comes."""
        if self._requests:
            return IDLE_S
        if self._encode_end is not None:
            return LOAD_PERIOD_S
        return max(0.0, self._next_load_at - time.monotonic())

    # -- messages --

    def _want_write(self, wanted: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(self._pipe, events, self._pipe_ready)

    def _pipe_ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._pipe.flush()
        if mask & selectors.EVENT_READ:
            try:
                self._inbox += self._pipe.receive()
            except EOFError:
                self._launcher_gone = True

    def _receive(self, timeout_s: float) -> None:
        for key, mask in self._selector.select(timeout_s):
            key.data(mask)
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            self._handle(message)
        if self.kv_transfer is not None:
            failed = self.kv_transfer.generate_events()
            self._rooms_failed = bool(failed)
            for room, tell_decode in failed:
                self._fail_room(room, tell_decode)
        if self._decode_end is not None:
            self._decode_end.retry(time.monotonic())
        if self._embeddings is not None:
            self._embeddings.retry(time.monotonic())
        self._finish_transfers()

    def _handle(self, message: messages.FromFrontend) -> None:
        if isinstance(message, messages.Generate):
            self._add(Request(message))
        elif isinstance(message, messages.Abort):
            self._abort(message.rid)
        elif isinstance(message, messages.Encode):
            if self._encode_end is not None:
                self._encode_end.encoded(message.room, message.seen)
        elif (
            self._encode_end is None
        ):  # an encode worker's loop hears of items only, as the real one
            self._pipe.send(messages.Answer(message.number, self._answer(message.kind)))

    def _answer(self, kind: str) -> Any:
        if kind == "flush":
            cleared = not self._requests and self._scheduling.clear_cache()
            self._publish_kv_events(cleared=cleared)
            return cleared
        if kind == "load":
            running, waiting = self._scheduling.running(), self._scheduling.waiting()
            pages = self._scheduling.active_pages()
            return messages.Load(self._rank, running + waiting, waiting, pages)
        return False  # is_paused: there is no pause

    # -- requests --

    def _add(self, request: Request) -> None:
        if request.aborts_first:
            self._say(request, request.finish_reason())
            self._send_outputs()
            return
        # Raises on an id that is still known, which ends the process, as in the real engine.
        self._scheduling.submit(request.id, request.prompt, request.max_new_tokens)
        self._requests[request.id] = request
        self._trace.write("arrived", request)
        if self.kv_transfer is None:
            return
        if request.room is not None:
            self._request_of_room[request.room] = request.id
            self.kv_transfer.register(request.id, request.room)
            if self.kv_transfer.kv_manager.has_failed(request.room):
                self._fail(request)
                return
        if self._embeddings is not None:
            self._embeddings.ask(request)
        if self._prefill_end is not None and (request.room is not None or not request.complete):
            request.deadline = time.monotonic() + self._args.bootstrap_timeout
            self._bootstrap_prefill(request)
        else:
            # A decode may enter the line at once. So may a request without a peer.
            self._bootstrap(request)

    def _bootstrap(self, request: Request) -> None:
        request.deadline = None
        self._advance([Event(EventKind.BOOTSTRAPPED, request.id)])

    def _bootstrap_prefill(self, request: Request) -> None:
        """Once a decode has admitted its room, and all its items have been seen."""
        assert self._prefill_end is not None
        if request.complete and (request.room is None or self._prefill_end.is_asked(request.room)):
            self._bootstrap(request)

    def _saw_all(self, request: Request) -> None:
        if self._requests.get(request.id) is request:
            self._bootstrap_prefill(request)

    def _abort(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        request.aborted = True
        runs = bool(request.output) and self._prefill_end is None
        if runs or self.kv_transfer is None:
            self._end_aborted(request)

    def _end_aborted(self, request: Request) -> None:
        self._advance([Event(EventKind.ABORTED, request.id)])
        self._forget(request)

    def _fail_room(self, room: int, tell_decode: bool) -> None:
        if self._prefill_end is not None and tell_decode:
            self._prefill_end.send(Arrival(room, failed=True))
            self._prefill_end.forget(room)
        request_id = self._request_of_room.get(room)
        if request_id is not None:
            self._fail(self._requests[request_id])

    def _fail(self, request: Request) -> None:
        self._advance([Event(EventKind.FAILED, request.id)])
        self._say(request, abort_reason(TRANSFER_FAILED))
        self._send_outputs()
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self._trace.write("gone", request)
        del self._requests[request.id]
        if self._embeddings is not None:
            self._embeddings.forget(request)
        if self.kv_transfer is not None:
            self.kv_transfer.drop(request.id)
        if request.room is None or self._request_of_room.get(request.room) != request.id:
            return
        del self._request_of_room[request.room]
        if self._prefill_end is not None:
            self._prefill_end.forget(request.room)
        if self._decode_end is not None and request.bootstrap_port is not None:
            self._decode_end.forget(request.bootstrap_port, request.room)
        if self.kv_transfer is not None:
            self.kv_transfer.kv_manager.discard_room(request.room)

    def _expire_deadlines(self) -> None:
        now = time.monotonic()
        for request in list(self._requests.values()):
            if request.deadline is not None and request.deadline < now:
                self._fail(request)

    # -- prefill and decode --

    def _room_asked(self, room: int) -> None:
        """Prefill: a decode has admitted the room, so its prompt may be computed."""
        assert self.kv_transfer is not None and self._prefill_end is not None
        if self.kv_transfer.kv_manager.has_failed(room):
            self._prefill_end.send(Arrival(room, failed=True))
            self._prefill_end.forget(room)
            return
        request_id = self._request_of_room.get(room)
        if request_id is not None:  # else it is not here yet, or gone
            self._bootstrap_prefill(self._requests[request_id])

    def _finish_transfers(self) -> None:
        """Prefill: the KV has arrived, which ends the request on this side."""
        now = time.monotonic()
        done = [transfer for transfer in self._transfers if transfer.done_at <= now]
        if not done:
            return
        self._transfers = [transfer for transfer in self._transfers if transfer.done_at > now]
        for transfer in done:
            request = self._requests.get(transfer.request_id)
            if request is None:
                continue  # failed on the way
            if request.room is not None and self._prefill_end is not None:
                cached = request.cached_tokens or 0
                self._prefill_end.send(
                    Arrival(request.room, transfer.token, cached, checksum=request.checksum)
                )
            request.output = [transfer.token]
            self._advance([Event(EventKind.SUCCEEDED, request.id)])
            self._say(request, {"type": "length", "length": 1})
            self._forget(request)
        self._send_outputs()

    def _ask_for_kv(self, plan: Plan, events: list[Event]) -> None:
        """Decode: these requests have entered the window; now the prefill may begin."""
        for request_id in plan.admitted:
            request = self._requests[request_id]
            self._trace.write("admitted", request)
            if request.room is None or request.bootstrap_port is None:
                self._first_token(request, request.next_token(self._args.vocab_size), events)
                continue
            request.deadline = time.monotonic() + self._args.transfer_timeout
            assert self._decode_end is not None
            self._decode_end.ask(request.bootstrap_port, request.room)

    def _first_token(self, request: Request, token: int, events: list[Event]) -> None:
        events.append(Event(EventKind.REMOTE_PREFILL_DONE, request.id, token))
        self._append_token(request, token, events)

    def _kv_arrived(self, arrival: Arrival) -> None:
        request = self._requests.get(self._request_of_room.get(arrival.room, ""))
        if request is None or request.deadline is None:
            return  # gone, or not in the window: this answers an earlier request of the room
        if arrival.failed:
            self._fail(request)
            return
        self._trace.write("kv", request)
        request.deadline = None
        request.cached_tokens = arrival.cached_tokens
        request.checksum = arrival.checksum
        events: list[Event] = []
        self._first_token(request, arrival.token, events)
        self._advance(events)
        self._send_outputs()
        if request.aborted and request.id in self._requests:
            self._end_aborted(request)

    # -- one step --

    def _step(self) -> bool:
        """Carries one plan out; whether there was anything to do."""
        plan = self._scheduling.plan()
        events: list[Event] = []
        for request_id, why in plan.refused:
            if request := self._requests.get(request_id):
                self._say(request, abort_reason(why))
                self._forget(request)
        done_at = time.monotonic() + self._args.kv_ms / 1e3
        self._transfers += [_Transfer(done_at, *leaving) for leaving in plan.leaving]
        self._ask_for_kv(plan, events)
        self._forward(plan, events)
        self._sleep(plan)
        self._advance(events)
        self._publish_kv_events()
        self._send_outputs()
        if self._encode_end is None:
            self._report_load()
        return not plan.is_empty()

    def _publish_kv_events(self, *, cleared: bool = False) -> None:
        if self._kv_publisher is not None:
            self._kv_publisher.publish(self._scheduling.drain_kv_events(), cleared=cleared)

    def _sleep(self, plan: Plan) -> None:
        """What a step that computes anything takes."""
        if plan.extends:
            time.sleep(self._args.prefill_ms / 1e3)
        elif plan.decodes:
            time.sleep(self._args.step_ms / 1e3)

    def _forward(self, plan: Plan, events: list[Event]) -> None:
        """The model."""
        for chunk in plan.extends:
            request = self._requests[chunk.request_id]
            if request.cached_tokens is None:
                request.cached_tokens = chunk.begin
            if chunk.end < chunk.prompt_tokens:
                events.append(Event(EventKind.EXTENDED, request.id))
            else:
                self._compute(request, events)
        for request_id in plan.decodes:
            self._compute(self._requests[request_id], events)

    def _compute(self, request: Request, events: list[Event]) -> None:
        token = request.next_token(self._args.vocab_size)
        events.append(Event(EventKind.EXTENDED, request.id, token))
        if self._prefill_end is None:  # a prefill's token travels with the KV
            self._append_token(request, token, events)

    def _append_token(self, request: Request, token: int, events: list[Event]) -> None:
        request.output.append(token)
        reason = request.finish_reason()
        self._say(request, reason)
        if reason is not None:
            events.append(Event(EventKind.FINISHED, request.id))
            self._forget(request)

    def _advance(self, events: list[Event]) -> None:
        if events:
            self._scheduling.advance(events)

    # -- what the frontend hears --

    def _say(self, request: Request, finish_reason: dict[str, Any] | None) -> None:
        if request.wants_output(finish_reason) and not request.aborted:
            self._outputs.append(request.output_message(finish_reason))

    def _send_outputs(self) -> None:
        if self._outputs:
            self._pipe.send(messages.Step(self._outputs))
            self._outputs = []

    def _report_load(self) -> None:
        now = time.monotonic()
        if now < self._next_load_at:
            return
        self._next_load_at = now + LOAD_PERIOD_S
        self._load_sequence += 1
        pages = self._scheduling.active_pages()
        snapshot = messages.LoadSnapshot(
            epoch=str(os.getpid()),
            sequence=self._load_sequence,
            dp_rank=self._rank,
            num_running_reqs=self._scheduling.running(),
            num_waiting_reqs=self._scheduling.waiting(),
            num_active_pages=pages,
            num_used_pages=pages,
            max_total_pages=self._scheduling.total_pages(),
            valid_for_ms=LOAD_VALID_FOR_MS,
        )
        self._pipe.send(snapshot)
