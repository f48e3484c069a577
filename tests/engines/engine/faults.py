"""What can go wrong in a scheduler process, for TS_FAKE_ON_START=faults:…"""

from __future__ import annotations

from fake_request import Frame


def refuse_everything(scheduler) -> None:
    """Every request is aborted by the engine with an HTTP status."""

    def add(request) -> None:
        reason = {"type": "abort", "message": "no device", "status_code": 503, "err_type": 503}
        scheduler.emit([Frame(request, reason)])

    scheduler.add = add
