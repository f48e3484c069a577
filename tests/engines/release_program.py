"""release_program.py MODE FLAGS…: TokenSpeed's frontend and scheduler with a release agent, without a servicer.

`six`: six decode legs whose prefill never comes, then all of them released. `again`: one room, many times: a leg, its
release, a leg. Both print a JSON line.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import time

from roomkeeper import logs
from roomkeeper.config import Config
from roomkeeper.enginewatch import end_processes
from roomkeeper.servicer import ReleaseRoom
from roomkeeper.tokenspeed import main as launcher

GUARD_S = 30


class Decode:
    def __init__(self, launched, released: queue.SimpleQueue) -> None:
        self.llm, self.client, self.released = launched.async_llm, launched.release, released

    async def load(self) -> list[int]:
        """Running and waiting, from a snapshot that is younger than this call."""
        (old,) = self.llm.load_snapshot_store.fresh_snapshots() or [None]
        while True:
            for snapshot in self.llm.load_snapshot_store.fresh_snapshots():
                if old is None or snapshot.sequence > old.sequence + 1:
                    return [snapshot.num_running_reqs, snapshot.num_waiting_reqs]
            await asyncio.sleep(0.02)

    async def until_load(self, wanted: list[int]) -> None:
        async with asyncio.timeout(GUARD_S):
            while await self.load() != wanted:
                pass

    def leg(self, rid: str, room: int) -> asyncio.Task:
        from tokenspeed.runtime.engine.io_struct import GenerateReqInput

        made = GenerateReqInput(
            input_ids=[5] * 20,
            sampling_params={"max_new_tokens": 4},
            stream=True,
            bootstrap_host="127.0.0.1",
            bootstrap_port=8998,
            bootstrap_room=room,
        )
        made.rid = rid

        async def read() -> str:
            async for output in self.llm.generate_request(made):
                reason = output["meta_info"]["finish_reason"]
            return reason["type"]

        return asyncio.create_task(read())

    def release(self, room: int, handle: int) -> None:
        self.client.release(ReleaseRoom((handle, "127.0.0.1", 8998, room, "the test says so")))

    async def wait_released(self) -> int:
        return await asyncio.to_thread(self.released.get, timeout=GUARD_S)


async def six(decode: Decode) -> dict:
    legs = [decode.leg(f"leg-{room}", room) for room in range(1, 7)]
    await decode.until_load([4, 2])
    begun = time.monotonic()
    for room in range(1, 7):
        decode.release(room, room)
    handles = sorted([await decode.wait_released() for _ in range(6)])
    released_s = time.monotonic() - begun
    load = await decode.load()
    ends = await asyncio.wait_for(asyncio.gather(*legs), GUARD_S)
    return {"handles": handles, "released_s": released_s, "load": load, "ends": ends}


async def again(decode: Decode) -> dict:
    count = 50
    for turn in range(count):
        leg = decode.leg(f"again~{turn}", 77)
        if turn % 2:
            await decode.until_load([1, 0])
        else:
            await asyncio.sleep(0)  # the word to end the room may overtake the request
        leg.cancel()
        decode.release(77, turn)
        assert await decode.wait_released() == turn
    return {"turns": count, "load": await decode.load()}


async def run(mode: str, server_args) -> dict:
    launched = launcher._launch(server_args, Config(), launcher._find_engine())
    try:
        assert launched.release is not None
        why_not = launched.release.wait_attached(10)
        if why_not:
            return {"why_not": why_not}
        released: queue.SimpleQueue = queue.SimpleQueue()
        launched.release.start(released.put)
        launched.async_llm.auto_create_handle_loop()
        return await {"six": six, "again": again}[mode](Decode(launched, released))
    finally:
        end_processes(5)
        launched.release.close()


if __name__ == "__main__":
    logs.set_up()
    said = asyncio.run(run(sys.argv[1], launcher._parse(sys.argv[2:])))
    print("\n" + json.dumps(said), flush=True)
