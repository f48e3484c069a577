"""A client process of the soak: it sends what its mix says until SIGTERM, or until it is killed.

Each request is a line in the file of ``--ends`` when it begins and one when it is over, written at once, so that what
a killed client had open can be told from what was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from roomkeeper import wire
from roomkeeper.standin import tokens
from roomkeeper.standin.request import TRANSFER_FAILED

WIRE = wire.load()
PACKAGE = "tokenspeed.grpc.scheduler."
REQUEST = WIRE.message(PACKAGE + "GenerateRequest")
ABORT = WIRE.message(PACKAGE + "AbortRequest")
LOADS = WIRE.message(PACKAGE + "GetLoadsRequest")
HEALTH = WIRE.message("grpc.health.v1.HealthCheckRequest")
VOCAB = 32000
#: No request takes so long unless it is lost.
GUARD_S = 90.0
#: The output of a stream that is read slowly, and how many messages are read of it in a second.
SLOW_TOKENS, SLOW_PER_S = 1500, 2.0
#: What an answer that is not the model's counts as.
WRONG = "WRONG"
#: A leg that the engine ended with INTERNAL: soon, since the other engine gave the room up and that reached it before
#: the link's word did; or at its deadline, when its twin never came.
TRANSFER_OFF, SOON_S = "TRANSFER_OFF", 15.0


class Ends:
    """The file of beginnings and ends."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begun(self, kind: str) -> None:
        os.write(self._file, f"+ {kind}\n".encode())

    def ended(self, kind: str, status: str, details: str = "") -> None:
        line = " ".join(f"- {kind} {status} {details}".split())
        os.write(self._file, f"{line}\n".encode())


class Whim:
    """What a client does to a call besides reading it."""

    def __init__(self, chance: random.Random) -> None:
        roll = chance.random()
        self.cancel_s = chance.uniform(0, 0.6) if roll < 0.12 else None
        self.abort_s = chance.uniform(0, 0.4) if 0.12 <= roll < 0.18 else None
        self.timeout_s = chance.uniform(0.05, 0.5) if 0.18 <= roll < 0.23 else GUARD_S


def is_right(request: Any, messages: Sequence[Any]) -> bool:
    """Every choice ends once and says what the model says after this prompt, or the beginning of it if it was aborted."""
    prompt = list(request.tokenized.input_ids)
    count = request.sampling_params.max_new_tokens
    expected = tokens.output_of(prompt, count, VOCAB)
    ids: dict[int, list[int]] = {}
    over: set[int] = set()
    for message in messages:
        if message.HasField("chunk"):
            ids.setdefault(message.chunk.index, []).extend(message.chunk.token_ids)
            continue
        last = message.complete
        said = list(last.output_ids)
        if last.index in over or said != expected[: len(said)]:
            return False
        if last.finish_reason == "length" and len(said) != count:
            return False
        if request.stream and ids.get(last.index, []) != said:
            return False
        over.add(last.index)
    return len(over) == max(1, request.sampling_params.n)


class Client:
    """Made in the event loop. Runs until ``stop`` is set."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._chance = random.Random(args.seed)
        self._ends = Ends(args.ends)
        self._name = f"{os.getpid()}"
        self._bootstrap = args.bootstrap
        self._next = 0
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self._stubs = {}
        self._health = {}
        for role in ("aggregated", "prefill", "decode"):
            channel = grpc.aio.insecure_channel(getattr(args, role), options=options)
            self._stubs[role] = WIRE.stub(channel, wire.TOKENSPEED)
            self._health[role] = WIRE.stub(channel, wire.HEALTH)
        self.stop = asyncio.Event()

    # -- one call --

    def request(self, most_tokens: int, stream: bool) -> Any:
        self._next += 1
        made = REQUEST(request_id=f"{self._name}-{self._next}", stream=stream)
        length = self._chance.choice((3, 8, 40))
        made.tokenized.input_ids.extend(self._chance.randrange(5, VOCAB - 1) for _ in range(length))
        made.sampling_params.max_new_tokens = self._chance.randint(1, most_tokens)
        made.sampling_params.ignore_eos = True
        return made

    async def call(
        self, kind: str, role: str, request: Any, whim: Whim, pause_s: float = 0.0
    ) -> None:
        """Sends it, reads it as the whim has it, and notes its end."""
        self._ends.begun(kind)
        began_s = time.monotonic()
        call = self._stubs[role].Generate(request, timeout=whim.timeout_s)
        mischief = asyncio.create_task(self._mischief(role, request, call, whim))
        messages: list[Any] = []
        details = ""
        try:
            async for message in call:
                messages.append(message)
                if pause_s:
                    await asyncio.sleep(pause_s)
            status = str((await call.code()).name)
        except grpc.aio.AioRpcError as error:
            status, details = str(error.code().name), str(error.details() or "")
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            status = "CANCELLED"
        mischief.cancel()
        if status == "OK" and not is_right(request, messages):
            status, details = WRONG, str(messages[-1:])
        off = status == "INTERNAL" and details == TRANSFER_FAILED
        if off and (kind == "stray" or time.monotonic() - began_s < SOON_S):
            status = TRANSFER_OFF
        self._ends.ended(kind, status, details)

    async def _mischief(self, role: str, request: Any, call: Any, whim: Whim) -> None:
        if whim.cancel_s is not None:
            await asyncio.sleep(whim.cancel_s)
            call.cancel()
        elif whim.abort_s is not None:
            await asyncio.sleep(whim.abort_s)
            await self._stubs[role].Abort(ABORT(request_id=request.request_id), timeout=GUARD_S)

    # -- kinds of requests --

    async def aggregated(self) -> None:
        request = self.request(60, stream=self._chance.random() < 0.6)
        kind = "stream" if request.stream else "unary"
        if self._chance.random() < 0.25:
            request.sampling_params.n = self._chance.randint(2, 4)
            kind += "-n"
        if self._chance.random() < 0.3:
            request.return_logprob = True
            request.top_logprobs_num = self._chance.randint(0, 5)
        await self.call(kind, "aggregated", request, Whim(self._chance))

    async def pair(self) -> None:
        """Both legs of a room, mostly."""
        request = self.request(40, stream=True)
        where = request.kv_bootstrap_info
        where.bootstrap_host, where.bootstrap_port = "127.0.0.1", self._bootstrap
        where.bootstrap_room = self._chance.randrange(1, 2**62)
        roles = ["prefill", "decode"]
        whim = Whim(self._chance)
        whims = {"prefill": whim, "decode": whim}
        roll = self._chance.random()
        if roll < 0.03:
            roles.remove(self._chance.choice(roles))
        elif roll < 0.06:
            whims["decode"] = Whim(self._chance)
        await asyncio.gather(
            *(
                self.call(
                    "stray" if roll < 0.06 else role, role, self._leg(role, request), whims[role]
                )
                for role in roles
            )
        )

    @staticmethod
    def _leg(role: str, request: Any) -> Any:
        leg = REQUEST()
        leg.CopyFrom(request)
        if role == "prefill":
            leg.sampling_params.max_new_tokens = 1
        return leg

    async def slow(self) -> None:
        """More output than the worker keeps for a client that does not read."""
        request = self.request(1, stream=True)
        request.sampling_params.max_new_tokens = SLOW_TOKENS
        request.return_logprob = True
        request.top_logprobs_num = 20
        whim = Whim(self._chance)
        whim.timeout_s = min(whim.timeout_s, 20.0)
        await self.call("slow", "aggregated", request, whim, 1 / SLOW_PER_S)

    async def look(self) -> None:
        """The control plane, of everybody."""
        for role, stub in self._stubs.items():
            self._ends.begun("look")
            try:
                await stub.GetLoads(LOADS(), timeout=GUARD_S)
                await self._health[role].Check(HEALTH(), timeout=GUARD_S)
                status = "OK"
            except grpc.aio.AioRpcError as error:
                status = str(error.code().name)
            self._ends.ended("look", status)
        await asyncio.sleep(0.2)

    # -- all of it --

    async def one(self, mix: str) -> None:
        if mix == "all":
            mix = self._chance.choice(("aggregated", "aggregated", "pair", "pair", "slow"))
        await {
            "aggregated": self.aggregated,
            "pair": self.pair,
            "slow": self.slow,
            "look": self.look,
        }[mix]()

    async def run(self, mix: str, at_once: int) -> None:
        async def worker() -> None:
            while not self.stop.is_set():
                await self.one(mix)
                await asyncio.sleep(self._chance.uniform(0, 0.1))

        await asyncio.gather(*(worker() for _ in range(at_once)))


async def run(args: argparse.Namespace) -> None:
    client = Client(args)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop.set)
    await client.run(args.mix, args.at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for role in ("aggregated", "prefill", "decode"):
        parser.add_argument(f"--{role}", required=True, metavar="ADDRESS")
    parser.add_argument("--bootstrap", required=True, type=int)
    parser.add_argument("--mix", required=True)
    parser.add_argument("--at-once", required=True, type=int)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--ends", required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
