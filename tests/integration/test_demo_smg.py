"""What the smg gateway does with refusals and failures of a worker: the facts that docs/gateway.md
states and the ledger is built on. Measured at a pair by hand, one gateway for all tests."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from demo_support import FakeWorker, Refuse, ask, serve, wait_until
from roomkeeper.demo.children import Children
from roomkeeper.demo.gateway import start_gateway
from roomkeeper.demo.model import write_model
from roomkeeper.demo.ports import Ports, free_ports

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("smg") is None, reason="the smg gateway is not installed (no PyPI)"
)
TRIES = 5
RETRIED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
FINAL = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
}


class Site:
    """A pair by hand behind a real gateway."""

    def __init__(self, ports: Ports, prefill: FakeWorker, decode: FakeWorker) -> None:
        self.ports = ports
        self.prefill = prefill
        self.decode = decode


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory: Path = tmp_path_factory.mktemp("smg")
    model = directory / "model"
    write_model(model)
    ports = free_ports()
    workers = [FakeWorker(role, ports, model, window=64) for role in ("prefill", "decode")]
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.close)
        children = stack.enter_context(Children(directory))
        start_gateway(children, "smg", ports, model, lambda: None)
        yield Site(ports, *workers)


@pytest.fixture
def site(running: Site) -> Site:
    for worker in (running.prefill, running.decode):
        worker.script = serve
        worker.forget()
    return running


def test_a_retry_has_a_new_request_id_and_a_new_room(site: Site) -> None:
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 2)
    assert ask(site.ports.gateway).status == 200
    seen = site.decode.seen
    assert len(seen) == 3
    assert len({call.request_id for call in seen}) == 3
    assert len({call.room for call in seen}) == 3
    # The part before the last uuid is the client's request and stays.
    assert len({call.request_id[:-36] for call in seen}) == 1


def test_both_legs_of_a_try_have_one_request_id_and_one_room(site: Site) -> None:
    assert ask(site.ports.gateway).status == 200
    assert site.prefill.seen == site.decode.seen


def test_a_clients_own_request_id_is_a_prefix_of_the_workers(site: Site) -> None:
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 1)
    assert ask(site.ports.gateway, headers={"x-request-id": "mine"}).status == 200
    first, second = (call.request_id for call in site.decode.seen)
    assert first != second
    assert first.startswith("mine-") and second.startswith("mine-")


def test_a_refusal_that_stays_is_tried_five_times_and_then_429(site: Site) -> None:
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 99)
    answer = ask(site.ports.gateway)
    assert answer.status == 429
    assert answer.error["code"] == "decode_worker_failed_to_start"
    assert len(site.decode.seen) == TRIES


def test_a_refusal_by_the_prefill_is_retried_too(site: Site) -> None:
    site.prefill.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 2)
    assert ask(site.ports.gateway).status == 200
    assert len(site.prefill.seen) == 3


def test_the_other_leg_of_a_refused_try_gets_an_abort(site: Site) -> None:
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 1)
    assert ask(site.ports.gateway).status == 200
    refused = site.prefill.seen[0].request_id
    wait_until(lambda: refused in site.prefill.aborted)
    assert refused not in site.decode.aborted


@pytest.mark.parametrize("code", RETRIED)
def test_a_retryable_status_before_headers_is_retried(site: Site, code: str) -> None:
    site.decode.script = Refuse(grpc.StatusCode[code], 1)
    assert ask(site.ports.gateway).status == 200
    assert len(site.decode.seen) == 2


@pytest.mark.parametrize("code", FINAL)
def test_any_other_status_is_final(site: Site, code: str) -> None:
    site.decode.script = Refuse(grpc.StatusCode[code], 1)
    assert ask(site.ports.gateway).status == FINAL[code]
    assert len(site.decode.seen) == 1


@pytest.mark.parametrize("after", ["headers", "chunk"])
def test_a_refusal_after_headers_is_an_error_in_a_stream_of_200(site: Site, after: str) -> None:
    site.decode.script = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 1, after)
    answer = ask(site.ports.gateway)
    assert answer.status == 200
    assert answer.error["type"] == "rate_limit_error"
    assert len(site.decode.seen) == 1


def test_n_choices_come_as_pairs_with_ids_and_rooms_of_their_own(site: Site) -> None:
    assert ask(site.ports.gateway, n=2).status == 200
    seen = sorted(site.decode.seen)
    assert [call.request_id[-2:] for call in seen] == ["-0", "-1"]
    assert seen[0].room != seen[1].room
