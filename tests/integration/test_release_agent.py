"""The release agent in real scheduler processes of the stand-in, driven by its client. No servicer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import time
from typing import Any

import pytest

from release_support import Agents, is_alive, pair_with_agents, until_gone, with_agents
from roomkeeper.standin.process import Entry
from standin_support import (
    both_schedulers,
    ending,
    engine_request,
    new_room,
    outputs_of,
    running,
    until_running,
)


async def aborted_leg(decode: Agents, port: int, room: int, **fields: Any) -> None:
    """A leg that has a slot of the decode and waits for its KV, and that its client has left."""
    before = await running(decode.engine)
    request = engine_request([5] * 20, room=(port, room), **fields)
    task = asyncio.create_task(outputs_of(decode.engine, request))
    await until_running(decode.engine, before + 1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def served(prefill: Agents, decode: Agents, port: int, room: int) -> list[str]:
    legs = [engine_request([5] * 20, room=(port, room)) for _ in range(2)]
    both = (ending(prefill.engine, legs[0]), ending(decode.engine, legs[1]))
    return list(await asyncio.gather(*both))


@both_schedulers
def test_an_aborted_leg_that_waits_for_kv_is_released_and_its_slot_serves_the_next(
    entry: Entry,
) -> None:
    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        room = new_room()
        await aborted_leg(decode, port, room)
        await asyncio.sleep(0.2)
        assert await running(decode.engine) == 1  # an abort is only a mark
        decode.release(room, handle=7)
        assert await asyncio.to_thread(decode.wait_released) == 7
        assert await running(decode.engine) == 0  # acknowledged means let go
        assert await served(prefill, decode, port, new_room()) == ["length", "length"]

    with pair_with_agents("--max-num-seqs", "1", entry=entry) as engines:
        asyncio.run(scenario(*engines))


def test_all_slots_of_a_full_window_are_released_and_so_is_who_waits_for_one() -> None:
    async def scenario(decode: Agents, rooms: list[int]) -> None:
        tasks = [
            asyncio.create_task(ending(decode.engine, engine_request([5] * 20, room=(1, room))))
            for room in rooms
        ]
        await until_running(decode.engine, 4)
        for handle, room in enumerate(rooms):
            decode.release(room, handle)
        assert {await asyncio.to_thread(decode.wait_released) for _ in rooms} == set(range(6))
        assert await asyncio.gather(*tasks) == ["abort"] * 6
        assert await running(decode.engine) == 0

    with with_agents("decode", "--max-num-seqs", "4") as decode:
        asyncio.run(scenario(decode, [new_room() for _ in range(6)]))


def test_the_same_room_again_and_again() -> None:
    """A room whose request was there may be used as soon as its end has been acknowledged."""

    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        room = new_room()
        for handle in range(20):
            await aborted_leg(decode, port, room, rid=f"request-{handle}")
            decode.release(room, handle)
            assert await asyncio.to_thread(decode.wait_released) == handle
        assert await served(prefill, decode, port, room) == ["length", "length"]

    with pair_with_agents("--max-num-seqs", "1") as engines:
        asyncio.run(scenario(*engines))


def test_a_prefill_tells_its_decode() -> None:
    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        room = new_room()
        both = asyncio.gather(served(prefill, decode, port, room))
        await until_running(decode.engine, 1)
        await asyncio.sleep(0.2)
        prefill.release(room)
        await asyncio.to_thread(prefill.wait_released)
        assert await both == [["abort", "abort"]]
        assert await running(decode.engine) == 0

    # The KV takes long enough to be caught on its way.
    with pair_with_agents("--kv-ms", "20000") as engines:
        asyncio.run(scenario(*engines))


def test_a_decode_that_asks_later_is_told_too() -> None:
    """Also when the prefill's request was there and took the engine's memory of the end with it."""

    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        room = new_room()
        first = asyncio.create_task(
            ending(prefill.engine, engine_request([5] * 20, room=(port, room)))
        )
        await asyncio.sleep(0.2)
        prefill.release(room)
        await asyncio.to_thread(prefill.wait_released)
        assert await first == "abort"
        late = engine_request([5] * 20, room=(port, room))
        assert await ending(decode.engine, late) == "abort"

    with pair_with_agents() as engines:
        asyncio.run(scenario(*engines))


def test_a_room_that_never_had_a_request_stays_ended_for_the_tombstone_time() -> None:
    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        early, late = new_room(), new_room()
        for handle, room in enumerate((early, late)):
            prefill.release(room, handle)
            assert await asyncio.to_thread(prefill.wait_released) == handle
        request = engine_request([5] * 20, room=(port, early))
        assert await ending(prefill.engine, request) == "abort"
        await asyncio.sleep(2.5)  # the tombstone time, and a round of an idle loop
        assert await served(prefill, decode, port, late) == ["length", "length"]

    with pair_with_agents(tombstone_s=1.5) as engines:
        asyncio.run(scenario(*engines))


def test_a_room_may_be_forgotten_before_its_time() -> None:
    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        room = new_room()
        prefill.release(room)
        await asyncio.to_thread(prefill.wait_released)
        prefill.client.forget(room)
        await asyncio.sleep(1.0)  # some rounds of an idle loop
        assert await served(prefill, decode, port, room) == ["length", "length"]

    with pair_with_agents() as engines:
        asyncio.run(scenario(*engines))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_room_that_nobody_knows_is_acknowledged(role: str) -> None:
    with with_agents(role) as agents:
        for handle in range(50):
            agents.release(new_room(), handle)
        assert sorted(agents.wait_released() for _ in range(50)) == list(range(50))


def test_other_requests_are_not_disturbed() -> None:
    async def scenario(prefill: Agents, decode: Agents, port: int) -> None:
        streams = [served(prefill, decode, port, new_room()) for _ in range(4)]
        going = asyncio.gather(*streams)
        for handle in range(200):
            prefill.release(new_room(), handle)
            decode.release(new_room(), handle)
            await asyncio.sleep(0)
        assert await going == [["length", "length"]] * 4

    with pair_with_agents() as engines:
        asyncio.run(scenario(*engines))


def test_all_ranks_must_acknowledge() -> None:
    with with_agents("decode", "--attention-dp-size", "2", "--max-num-seqs", "4") as decode:
        _, second = decode.pids()
        os.kill(second, signal.SIGSTOP)
        try:
            decode.release(new_room(), handle=3)
            with pytest.raises(queue.Empty):
                decode.released.get(timeout=1.0)
        finally:
            os.kill(second, signal.SIGCONT)
        assert decode.wait_released() == 3


def test_a_scheduler_that_is_gone_acknowledges_nothing() -> None:
    with with_agents("decode", "--attention-dp-size", "2", "--max-num-seqs", "4") as decode:
        first, second = decode.pids()
        os.kill(second, signal.SIGSTOP)
        decode.release(new_room(), handle=1)
        os.kill(second, signal.SIGKILL)
        until_gone(second)
        decode.release(new_room(), handle=2)
        with pytest.raises(queue.Empty):
            decode.released.get(timeout=1.0)
        assert is_alive(first)
        assert not decode.client.attached


def test_a_loop_that_is_stuck_acknowledges_when_it_goes_on() -> None:
    with with_agents("decode") as decode:
        (pid,) = decode.pids()
        os.kill(pid, signal.SIGSTOP)
        for handle in range(1000):
            decode.release(new_room(), handle)
        time.sleep(0.2)
        assert decode.released.empty()
        os.kill(pid, signal.SIGCONT)
        assert sorted(decode.wait_released() for _ in range(1000)) == list(range(1000))
