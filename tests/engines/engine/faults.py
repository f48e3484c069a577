"""What can go wrong in a scheduler process, for TS_FAKE_ON_START=faults:…"""

from __future__ import annotations

from fake_request import ABORT_UNKNOWN_ERROR, Frame
from faults_table import ABORT_ME, STATUSES


def refuse_everything(scheduler) -> None:
    """Every request is aborted by the engine with an HTTP status."""

    def add(request) -> None:
        reason = {"type": "abort", "message": "no device", "status_code": 503, "err_type": 503}
        scheduler.emit([Frame(request, reason)])

    scheduler.add = add


def abort_as_prompted(scheduler) -> None:
    """A prompt may ask for an abort by the engine: [*ABORT_ME, place in STATUSES, tokens before it, …]."""
    add = scheduler.add

    def add_or_abort(request) -> None:
        if tuple(request.prompt[:3]) != ABORT_ME or scheduler.prefill_end:
            add(request)
            return
        status, tokens = STATUSES[request.prompt[3]], request.prompt[4]
        message = f"told to end with {status}: caf\u00e9"
        reason = {"type": "abort", "message": message, "err_type": ABORT_UNKNOWN_ERROR}
        if status is not None:
            reason["status_code"] = status
        if tokens == 0:
            scheduler.emit([Frame(request, reason)])
            return
        request.finish_reason = lambda: reason if len(request.output) >= tokens else None
        add(request)

    scheduler.add = add_or_abort
