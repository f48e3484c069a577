"""Two stand-in engines, prefill and decode, meeting in rooms. No servicer: nothing is gated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from roomkeeper.standin import tokens
from roomkeeper.standin.process import Entry, LaunchError
from standin_support import (
    both_schedulers,
    command,
    commanded,
    ending,
    engine_request,
    launched,
    launched_pair,
    new_room,
    outputs_of,
    running,
    until_running,
)

VOCAB = 32000
FAST = ("--step-ms", "1")


async def pair(engines: tuple[Any, Any, int], prompt: list[int], count: int) -> tuple[Any, Any]:
    """Both legs of one room; their last outputs."""
    prefill, decode, port = engines
    room = (port, new_room())
    legs = [engine_request(prompt, count, room=room) for _ in range(2)]
    both = await asyncio.gather(outputs_of(prefill, legs[0]), outputs_of(decode, legs[1]))
    return both[0][-1], both[1][-1]


@both_schedulers
def test_a_pair_says_what_an_aggregated_engine_says(entry: Entry) -> None:
    with launched_pair(*FAST, entry=entry) as engines:
        prefill, decode = asyncio.run(pair(engines, [9] * 50, 7))
    expected = tokens.output_of([9] * 50, 7, VOCAB)
    assert prefill["output_ids"] == expected[:1]
    assert decode["output_ids"] == expected


@both_schedulers
def test_a_burst_wider_than_the_window_strands_rooms_and_a_gated_one_does_not(
    entry: Entry,
) -> None:
    """The incident, small: a window of 2, and a bootstrap deadline of a few rounds."""
    flags = ("--max-num-seqs", "2", "--step-ms", "20")
    deadlines = ("--bootstrap-timeout", "0.6", "--transfer-timeout", "1.5")

    async def burst(engines: tuple[Any, Any, int], pairs: int, at_once: int) -> list[bool]:
        places = asyncio.Semaphore(at_once)

        async def one(number: int) -> bool:
            async with places:
                ends = await pair(engines, [number + 3] * 40, 8)
            return all(e["meta_info"]["finish_reason"]["type"] == "length" for e in ends)

        return await asyncio.gather(*(one(number) for number in range(pairs)))

    with launched_pair(*flags, *deadlines, entry=entry) as engines:
        assert all(asyncio.run(burst(engines, 12, 2)))

    with launched_pair(*flags, *deadlines, entry=entry) as engines:
        stranded = asyncio.run(burst(engines, 16, 16)).count(False)
    assert stranded >= 1


def test_a_prefill_that_times_out_does_not_tell_the_decode() -> None:
    deadlines = ("--bootstrap-timeout", "0.2", "--transfer-timeout", "1.2")

    async def scenario(engines: tuple[Any, Any, int]) -> None:
        prefill, decode, port = engines
        room = (port, new_room())
        loop = asyncio.get_running_loop()
        failed = await outputs_of(prefill, engine_request([5] * 20, room=room))
        assert failed[-1]["meta_info"]["finish_reason"]["type"] == "abort"
        asked_at = loop.time()
        late = asyncio.create_task(ending(decode, engine_request([5] * 20, room=room)))
        await until_running(decode, 1)
        assert await late == "abort"
        assert loop.time() - asked_at >= 1.2  # its own deadline, nothing earlier

    with launched_pair(*FAST, *deadlines) as engines:
        asyncio.run(scenario(engines))


def test_an_abort_only_marks_a_decode_that_waits_and_update_status_frees_it() -> None:
    async def scenario(engines: tuple[Any, Any, int]) -> None:
        _, decode, port = engines
        room = new_room()
        request = engine_request([5] * 20, room=(port, room))
        task = asyncio.create_task(outputs_of(decode, request))
        await until_running(decode, 1)
        task.cancel()
        await asyncio.sleep(0.3)
        assert await running(decode) == 1
        command("decode", "fail", room)
        await until_running(decode, 0)

    with launched_pair(*FAST, entry=commanded) as engines:
        asyncio.run(scenario(engines))


def test_abort_room_ends_both_sides() -> None:
    async def scenario(engines: tuple[Any, Any, int]) -> None:
        prefill, decode, port = engines
        room = new_room()
        legs = [engine_request([5] * 20, room=(port, room)) for _ in range(2)]
        ends = asyncio.gather(ending(prefill, legs[0]), ending(decode, legs[1]))
        await until_running(decode, 1)
        await asyncio.sleep(0.2)
        command("prefill", "abort", room)
        assert await ends == ["abort", "abort"]
        assert await running(decode) == 0

    # The KV takes long enough to be caught on its way.
    with launched_pair(*FAST, "--kv-ms", "5000", entry=commanded) as engines:
        asyncio.run(scenario(engines))


def test_a_failed_room_stays_failed_until_it_is_discarded() -> None:
    async def scenario(engines: tuple[Any, Any, int]) -> None:
        prefill, decode, port = engines
        room = new_room()
        command("prefill", "abort", room)
        assert await ending(decode, engine_request([5] * 20, room=(port, room))) == "abort"
        command("prefill", "discard", room)
        legs = [engine_request([5] * 20, room=(port, room)) for _ in range(2)]
        ends = asyncio.gather(ending(prefill, legs[0]), ending(decode, legs[1]))
        assert await ends == ["length", "length"]

    with launched_pair(*FAST, entry=commanded) as engines:
        asyncio.run(scenario(engines))


def test_a_decode_waits_for_a_prefill_that_starts_later() -> None:
    async def scenario(decode: Any, port: int) -> None:
        room = (port, new_room())
        late = asyncio.create_task(ending(decode, engine_request([5] * 20, room=room)))
        await until_running(decode, 1)
        flags = ("--role", "prefill", "--disaggregation-bootstrap-port", str(port))
        with launched(*FAST, *flags) as prefill:
            assert await ending(prefill, engine_request([5] * 20, room=room)) == "length"
            assert await late == "length"

    with launched_pair(*FAST) as (prefill, decode, port):
        prefill.close()
        asyncio.run(scenario(decode, port))


def test_a_request_with_the_fake_host_has_no_peer() -> None:
    async def scenario(engines: tuple[Any, Any, int]) -> None:
        for engine in engines[:2]:
            request = engine_request([5] * 20, 2)
            request.bootstrap_host, request.bootstrap_room = "2.2.2.2", 0
            assert await ending(engine, request) == "length"

    with launched_pair(*FAST) as engines:
        asyncio.run(scenario(engines))


def test_a_peer_on_another_machine_is_refused() -> None:
    async def scenario(engines: tuple[Any, Any, int]) -> None:
        request = engine_request([5] * 20, room=(engines[2], new_room()))
        request.bootstrap_host = "192.0.2.1"
        with pytest.raises(ValueError, match=r"bootstrap_host is 192\.0\.2\.1, not this machine"):
            await outputs_of(engines[1], request)

    with launched_pair(*FAST) as engines:
        asyncio.run(scenario(engines))


def test_a_kv_port_that_is_taken_is_one_line() -> None:
    flags = ("--role", "prefill", "--disaggregation-bootstrap-port")
    with launched_pair(*FAST) as (_, _, port):
        with pytest.raises(LaunchError, match=f"--disaggregation-bootstrap-port is {port}"):
            with launched(*FAST, *flags, str(port)):
                pass


def test_a_trace_tells_a_slot_held_in_vain_from_one_that_got_its_kv(tmp_path: Path) -> None:
    """Each room's events in order; only the lonely one is gone without its KV."""
    trace = tmp_path / "trace"
    flags = ("--role", "decode", "--transfer-timeout", "0.5", "--trace", str(trace), *FAST)

    async def scenario(engines: tuple[Any, Any, int]) -> tuple[int, int]:
        met, lonely = new_room(), new_room()
        legs = [engine_request([5] * 20, room=(engines[2], met)) for _ in range(2)]
        ends = asyncio.gather(ending(engines[0], legs[0]), ending(engines[1], legs[1]))
        assert await ends == ["length", "length"]
        alone = engine_request([5] * 20, room=(engines[2], lonely))
        assert await ending(engines[1], alone) == "abort"
        return met, lonely

    with launched_pair(*FAST) as (prefill, _, port):
        with launched(*flags, "--disaggregation-bootstrap-port", str(port)) as decode:
            met, lonely = asyncio.run(scenario((prefill, decode, port)))
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    events = {room: [x["event"] for x in lines if x["room"] == room] for room in (met, lonely)}
    assert events[met] == ["arrived", "admitted", "kv", "gone"]
    assert events[lonely] == ["arrived", "admitted", "gone"]
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
