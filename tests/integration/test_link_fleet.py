"""Fleets: several workers a side, ranks, names of one worker, workers that do not speak the link."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from harness.client import Client, until
from harness.process import c_standin
from link_support import (
    LINK_OFFSET,
    Side,
    bootstrap_port,
    leg,
    names_of,
    new_room,
    pair,
    role_flags,
    side,
)

#: A line of some seconds before a bootstrap deadline of one: only linked pairs survive it.
TIGHT = ("--max-num-seqs", "2", "--bootstrap-timeout", "1", "--transfer-timeout", "2.5")
ABSENT = "no room link to this prefill worker; its rooms are served without"


@contextlib.contextmanager
def workers(*of: tuple[str, int, tuple[str, ...]]) -> Iterator[list[Side]]:
    """Started together: role, bootstrap port, more flags."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(side(*role_flags(role, port, *flags), wait=False))
            for role, port, flags in of
        ]
        for one in started:
            one.worker.wait_serving()
        yield started


def go(
    prefill: Side, decode: Side, port: int, count: int, tokens: int = 20
) -> list[tuple[str, str]]:
    legs = []
    for number in range(count):
        room = new_room()
        name = f"r{room}-{number}"
        legs.append((leg(prefill, name, room, port, tokens), leg(decode, name, room, port, tokens)))
    return names_of(legs)


def test_a_decode_with_two_prefills_and_a_prefill_with_two_decodes() -> None:
    """One decode serves rooms of both prefills, and one prefill those of both decodes."""
    one, two = bootstrap_port(), bootstrap_port()
    with workers(
        ("prefill", one, TIGHT),
        ("prefill", two, TIGHT),
        ("decode", one, TIGHT),
        ("decode", one, TIGHT),
    ) as (p1, p2, d1, d2):
        legs = []
        for number in range(20):
            for prefill, port, decode in ((p1, one, d1), (p2, two, d1), (p1, one, d2)):
                room = new_room()
                name = f"r{number}-{room}"
                legs.append((leg(prefill, name, room, port, 10), leg(decode, name, room, port, 10)))
        assert names_of(legs) == [("OK", "OK")] * 60
        assert {peer["name"] for peer in d1.peers} == {f"127.0.0.1:{one}", f"127.0.0.1:{two}"}
        assert [len(s.peers) for s in (p1, p2, d1, d2)] == [2, 1, 2, 1]
        assert {peer["state"] for s in (p1, p2, d1, d2) for peer in s.peers} == {"up"}
        for one_side in (p1, p2, d1, d2):
            one_side.idle()


def test_a_decode_with_ranks_of_its_own_is_one_worker_with_one_link() -> None:
    flags = (*TIGHT[2:], "--max-num-seqs", "4")
    with pair(*flags, decode_flags=("--attention-dp-size", "2")) as ranked:
        assert names_of(ranked.burst("r", 24, 10)) == [("OK", "OK")] * 24
        assert len(ranked.decode_side.peers) == len(ranked.prefill_side.peers) == 1
        ranked.idle()


def test_two_names_of_one_prefill_are_one_link() -> None:
    """Clients say 127.0.0.1 or localhost; both at once, from the first room on."""
    with pair(*TIGHT) as named:
        legs = []
        for number in range(24):
            host = "localhost" if number % 2 else "127.0.0.1"
            legs.append(named.both(f"r{number}", 10, host=host))
        assert names_of(legs) == [("OK", "OK")] * 24
        until(lambda: len(named.decode_side.peers) == 1, "the names are one peer")
        assert named.decode_side.peer()["state"] == "up"
        assert len(named.prefill_side.peers) == 1
        assert named.decode_side.links["rooms_refused"] == 0
        assert named.prefill_side.links["rooms_refused"] == 0
        named.idle()


@pytest.mark.parametrize(
    "off", [("--room-link", "off"), ("--rooms", "off")], ids=["link off", "rooms off"]
)
def test_a_prefill_without_the_link_is_served_as_before_until_it_has_it(
    off: tuple[str, ...],
) -> None:
    """Its decode says so once, and links without a restart when the prefill has one."""
    port = bootstrap_port()
    with contextlib.ExitStack() as stack:
        prefills = contextlib.ExitStack()
        stack.push(prefills)
        prefill = prefills.enter_context(
            side(*role_flags("prefill", port, "--max-num-seqs", "4", *off), wait=False)
        )
        decode = stack.enter_context(side(*role_flags("decode", port, "--max-num-seqs", "4")))
        prefill.worker.wait_serving()
        assert go(prefill, decode, port, 12) == [("OK", "OK")] * 12
        assert decode.peer()["state"] == "absent"
        assert decode.peer()["why"] == "nobody listens for links there"
        assert go(prefill, decode, port, 4) == [("OK", "OK")] * 4
        assert len(decode.said(ABSENT)) == 1
        decode.idle()
        prefills.close()
        with side(*role_flags("prefill", port, "--max-num-seqs", "4")) as linked:
            assert go(linked, decode, port, 12) == [("OK", "OK")] * 12
            decode.until_links(1)
            assert len(decode.said("a room link is up")) == 1


@pytest.mark.parametrize(
    "off", [("--room-link", "off"), ("--rooms", "off")], ids=["link off", "rooms off"]
)
def test_a_decode_without_the_link_is_served_as_before(off: tuple[str, ...]) -> None:
    """And in a fleet with one that has it: each as it is."""
    port = bootstrap_port()
    flags = ("--max-num-seqs", "4")
    with workers(
        ("prefill", port, flags), ("decode", port, (*flags, *off)), ("decode", port, flags)
    ) as (prefill, plain, linked):
        assert go(prefill, plain, port, 4) == [("OK", "OK")] * 4
        assert prefill.peers == []
        assert go(prefill, linked, port, 12) == [("OK", "OK")] * 12
        assert go(prefill, plain, port, 4) == [("OK", "OK")] * 4
        assert [peer["state"] for peer in prefill.peers] == ["up"]
        assert plain.peers == []
        assert plain.client.rooms()["link"] is False
        for one in (prefill, plain, linked):
            one.idle()


def test_a_peer_is_found_where_the_flag_says_and_linked_before_the_first_room() -> None:
    """`--room-peer` with a mapping; `--room-peer-port` on both ends does the same."""
    port, other = bootstrap_port(), bootstrap_port()
    mapped = ("--room-peer", f"127.0.0.1:{port}=localhost:{other}")
    with workers(("prefill", port, ("--room-peer-port", str(other))), ("decode", port, mapped)) as (
        prefill,
        decode,
    ):
        prefill_address = prefill.links["listening"]
        assert prefill_address == f"127.0.0.1:{other}"
        decode.until_links(1)
        assert decode.peer()["address"] == f"localhost:{other}"
        assert go(prefill, decode, port, 2) == [("OK", "OK")] * 2
        with side(*role_flags("decode", port, "--room-peer-port", str(other))) as second:
            assert go(prefill, second, port, 2) == [("OK", "OK")] * 2
            assert second.peer()["address"] == f"127.0.0.1:{other}"
            assert second.peer()["state"] == "up"


def test_a_prefill_may_listen_nowhere() -> None:
    port = bootstrap_port()
    with workers(("prefill", port, ("--room-peer-port", "0")), ("decode", port, ())) as (
        prefill,
        decode,
    ):
        assert prefill.links["listening"] == ""
        assert len(prefill.said("no room links here")) == 1
        assert go(prefill, decode, port, 2) == [("OK", "OK")] * 2
        assert decode.peer()["state"] == "absent"


def test_an_aggregated_worker_and_a_c_engine_have_no_links() -> None:
    with side() as aggregated:
        assert aggregated.peers == []
        assert aggregated.links["listening"] == ""
    with c_standin() as (_, address), Client(address) as client:
        assert list(client.rooms()["links"]["peers"]) == []


def test_requests_that_name_hundreds_of_prefills_have_few_of_them_dialled() -> None:
    """Bounded by dials_per_second and by links; and the worker serves on."""
    port = bootstrap_port()
    bounds = ("--room-links", "8", "--room-dials-per-second", "5", "--room-waiting", "1000")
    patience = (
        "--transfer-timeout",
        "1",
        "--room-handoff-seconds",
        "0.1",
    )  # for slots of no prefill
    with workers(("prefill", port, ()), ("decode", port, (*bounds, *patience))) as (
        prefill,
        decode,
    ):
        assert go(prefill, decode, port, 1) == [("OK", "OK")]
        before = decode.links["dials"]
        strays = []
        for number in range(300):
            host = f"127.{1 + number // 250}.7.{1 + number % 250}"
            strays.append(
                leg(decode, f"stray-{number}", new_room(), 40000 - LINK_OFFSET, host=host)
            )
        until(lambda: decode.client.rooms()["arrived"] == 301, "all have arrived")
        assert decode.links["known"] <= 8
        assert decode.links["dials"] - before <= 5 * 10
        for stray in strays:
            stray.cancel()
        assert go(prefill, decode, port, 4) == [("OK", "OK")] * 4
        assert decode.peer(f"127.0.0.1:{port}")["state"] == "up"
