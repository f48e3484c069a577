"""The built-in gateway, in front of a pair by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from demo_support import FakeWorker, Refuse, ask, post, serve_slowly
from roomkeeper.demo.builtin import TRIES, Pair, Server
from roomkeeper.demo.burst import verdict
from roomkeeper.demo.plan import MODEL_NAME
from roomkeeper.demo.ports import HOST, free_ports

BURST = 12


class Site(NamedTuple):
    port: int
    prefill: FakeWorker
    decode: FakeWorker
    window: int


@pytest.fixture
def site_with(tmp_path: Path) -> Iterator[Callable[[int | None], Site]]:
    """Makes a pair whose decode tells this window, and the gateway in front of it."""
    ends: list[Callable[[], None]] = []

    def make(window: int | None) -> Site:
        ports = free_ports()
        workers = [FakeWorker(role, ports, tmp_path, window) for role in ("prefill", "decode")]
        ends.extend(worker.close for worker in workers)
        pair = Pair(
            f"{HOST}:{ports.prefill}", f"{HOST}:{ports.decode}", f"{HOST}:{ports.bootstrap}"
        )
        told = pair.register()
        server = Server(ports.gateway, pair, MODEL_NAME)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ends.extend([server.server_close, server.shutdown])
        return Site(ports.gateway, *workers, told)

    yield make
    for end in reversed(ends):
        end()


def test_both_legs_get_one_request_id_and_one_room(site_with: Callable[[int | None], Site]) -> None:
    site = site_with(4)
    answer = ask(site.port)
    assert verdict(answer.status, answer.text) == ("200", True)
    assert len(site.decode.seen) == 1
    assert site.prefill.seen == site.decode.seen
    assert 0 < site.decode.seen[0].room < 2**63


def test_a_refused_room_is_tried_again_as_a_new_one(
    site_with: Callable[[int | None], Site],
) -> None:
    site = site_with(4)
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 2)
    assert ask(site.port).status == 200
    assert len({call.room for call in site.decode.seen}) == 3
    assert len({call.request_id for call in site.decode.seen}) == 3


def test_a_refusal_that_stays_is_429_after_a_bounded_number_of_tries(
    site_with: Callable[[int | None], Site],
) -> None:
    site = site_with(4)
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 99)
    answer = ask(site.port)
    assert verdict(answer.status, answer.text) == ("429 decode_resource_exhausted", False)
    assert len(site.decode.seen) == TRIES


def test_a_failed_prefill_is_not_tried_again(site_with: Callable[[int | None], Site]) -> None:
    site = site_with(4)
    site.prefill.script = Refuse(grpc.StatusCode.INTERNAL, 1)
    site.decode.script = serve_slowly
    answer = ask(site.port)
    assert verdict(answer.status, answer.text) == ("500 prefill_internal", False)
    assert len(site.prefill.seen) == 1


def test_a_failure_in_the_middle_is_an_error_in_the_stream(
    site_with: Callable[[int | None], Site],
) -> None:
    site = site_with(4)
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 1, after="chunk")
    answer = ask(site.port)
    assert answer.status == 200
    assert answer.error["code"] == "decode_resource_exhausted"
    assert len(site.decode.seen) == 1


@pytest.mark.parametrize(("window", "most"), [(3, 3), (None, BURST)])
def test_it_sends_as_many_at_a_time_as_the_decodes_window_says(
    site_with: Callable[[int | None], Site], window: int | None, most: int
) -> None:
    site = site_with(window)
    assert site.window == (window or 0)
    arrived = threading.Barrier(most)

    def meet(worker: FakeWorker, request: object, context: object) -> Iterator[object]:
        # Goes on when as many as may be here are here, and never when fewer are let through.
        arrived.wait(30)
        yield from serve_slowly(worker, request, context)

    site.decode.script = meet
    with ThreadPoolExecutor(BURST) as clients:
        answers = list(clients.map(lambda _: ask(site.port), range(BURST)))
    assert [answer.status for answer in answers] == [200] * BURST
    assert site.decode.most_running == most


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"messages": 3}', b'{"messages": [], "max_tokens": 0}']
)
def test_a_bad_body_is_400_and_reaches_no_worker(
    site_with: Callable[[int | None], Site], body: bytes
) -> None:
    site = site_with(4)
    assert post(site.port, body, {}).status == 400
    assert site.decode.seen == [] and site.prefill.seen == []


def test_any_other_path_is_404(site_with: Callable[[int | None], Site]) -> None:
    assert post(site_with(4).port, b"{}", {}, "/v1/completions").status == 404
