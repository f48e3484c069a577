"""Serves an engine from its start to its end: what all launchers share.

``serve`` starts the engine, hangs it on to a servicer, warms it up, and waits for the end: a signal
(drain, stop, exit code 0), an engine process that dies (streams end UNAVAILABLE, exit code 1), or
something that makes serving impossible (one line; exit code 1 for the engine, 2 for a flag or an
address). Whatever happens, a timer sees to it that a stuck shutdown ends too.

Everything runs on the main thread's loop, but for the thread that watches the engine's processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType
from typing import Any

from roomkeeper.addresses import UsageError, check_address, join_address, link_port, with_port
from roomkeeper.asyncllm import AsyncLLMEngine, OutputPath
from roomkeeper.config import Config
from roomkeeper.engine import WorkerInfo
from roomkeeper.enginestart import ENGINE_GRACE_S, EXIT_ENGINE, EndStart, EngineStart
from roomkeeper.enginewatch import end_processes
from roomkeeper.errors import RoomkeeperError
from roomkeeper.flags import RoomFlags, add_room_flags, split_room_flags
from roomkeeper.release.client import ReleaseClient
from roomkeeper.servicer import Servicer
from roomkeeper.workerinfo import worker_info_from

__all__ = [
    "Launched",
    "Ready",
    "RoomFlags",
    "add_room_flags",
    "follow",
    "join_address",
    "serve",
    "split_room_flags",
]

EXIT_USAGE = 2

#: The warm-up's one token must come within this; an engine may still compile what it runs.
WARM_UP_S = 600.0
#: The last words of open streams, when the engine has died, may take so long.
LAST_WORDS_S = 2.0
#: The scheduler processes are up; their release agents have said so before, or within this.
AGENTS_S = 5.0
_IDLE_PERIOD_S = 0.05

_log = logging.getLogger("roomkeeper")


@dataclasses.dataclass(frozen=True)
class Launched:
    """An engine that is up."""

    #: In the shape of TokenSpeed's AsyncLLM.
    async_llm: Any
    #: The scheduler's ready report.
    scheduler_info: Mapping[str, Any]
    #: Lets go of what is the engine's own, before its processes are ended. On the loop; may block.
    close: Callable[[], None] | None = None
    #: The agents in its scheduler processes; None: none were put there.
    release: ReleaseClient | None = None


@dataclasses.dataclass(frozen=True)
class Ready:
    """A worker that serves."""

    #: As bound, ports filled in.
    addresses: Sequence[str]
    info: WorkerInfo
    servicer: Servicer


def serve(
    launch: Callable[[], Launched],
    server_args: Any,
    *,
    config: Config,
    addresses: Sequence[str],
    output_path: OutputPath = "auto",
    on_ready: Callable[[Ready], None] | None = None,
) -> int:
    """Serves until the end; the exit code. Main thread only.

    ``launch`` starts the engine, blocking, on the loop's thread; what it raises is one line and
    exit code 1. ``server_args`` are the engine's arguments as ``worker_info_from`` reads them.
    ``on_ready`` is told once, when the worker is SERVING, on the loop.
    """
    worker = _Worker(launch, server_args, config, addresses, output_path, on_ready)
    try:
        for address in addresses:
            check_address(address)
        return _run(worker.main())
    except UsageError as error:
        _log.error("%s", error)
        return EXIT_USAGE


def follow(run: Callable[[], object]) -> int:
    """A node that has schedulers only, which another node's worker serves; the exit code.

    ``run`` starts them and blocks until they have ended, which is an error. Main thread only, and
    no loop runs: the engine may run its own there.
    """
    start = EngineStart("on a node that only schedules")
    code = start.run(run)
    if isinstance(code, int):
        return code
    return start.give_up(EXIT_ENGINE, "the schedulers of this node have ended, and so does it")


class _Worker:
    """One run of ``serve``."""

    def __init__(
        self,
        launch: Callable[[], Launched],
        server_args: Any,
        config: Config,
        addresses: Sequence[str],
        output_path: OutputPath,
        on_ready: Callable[[Ready], None] | None,
    ) -> None:
        self._launch = launch
        self._server_args = server_args
        self._config = config
        self._addresses = addresses
        self._output_path = output_path
        self._on_ready = on_ready
        self._start = EngineStart()
        self._loop: asyncio.AbstractEventLoop
        #: Somebody has asked for the end, or the engine has brought it.
        self._end: asyncio.Event
        self._hurry: asyncio.Event
        #: Signals that another handler has taken note of and will send once more.
        self._echoes = 0
        self._stop_asked = False
        self._engine_gone = ""

    async def main(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._end, self._hurry = asyncio.Event(), asyncio.Event()
        launched = self._start.run(self._launch)
        if isinstance(launched, int):
            return launched
        try:
            return await self._serve(launched)
        except EndStart:
            return EXIT_ENGINE if self._start.failed else 0
        finally:
            self._start.watch.stop()
            if launched.close is not None:
                launched.close()
            # Beside the loop, on which the engine's own servers use the time to close.
            grace_s = 0.0 if self._hurry.is_set() else ENGINE_GRACE_S
            await asyncio.to_thread(end_processes, grace_s)
            if launched.release is not None:
                launched.release.close()

    # -- serving --

    async def _serve(self, launched: Launched) -> int:
        skip = os.environ.get("TOKENSPEED_SKIP_GRPC_WARMUP", "").lower() in ("1", "true", "yes")
        try:
            info = worker_info_from(
                self._server_args, launched.async_llm, launched.scheduler_info, skip_warmup=skip
            )
            agents = _attached(launched.release)
            servicer = Servicer(info, self._config, release_agent=agents is not None)
            bound = [with_port(address, servicer.listen(address)) for address in self._addresses]
            self._listen_link(servicer)
            self._listen_metrics(servicer)
        except (RoomkeeperError, ValueError) as error:
            raise UsageError(str(error)) from error
        if agents is not None:
            agents.start(servicer.released)
        engine = AsyncLLMEngine(
            launched.async_llm,
            servicer,
            output_path=self._output_path,
            on_release_room=agents.release if agents is not None else None,
        )
        engine.start()
        self._catch_signals()
        self._start.hand_over(self._engine_exited)
        servicer.start()
        _log.info("listening on %s", ", ".join(bound))
        warm_up = self._loop.create_task(self._warm_up(engine, servicer, bound))
        await self._end.wait()
        warm_up.cancel()
        code = EXIT_ENGINE if self._engine_gone and not self._stop_asked else 0
        await self._shut_down(engine, servicer)
        return code

    def _listen_link(self, servicer: Servicer) -> None:
        """A prefill listens for the links of its decodes, beside its bootstrap server."""
        config, args = self._config, self._server_args
        bootstrap_port = getattr(args, "disaggregation_bootstrap_port", None)
        if servicer.info.role != "prefill" or not config.flag("rooms") or not config.flag("link"):
            return
        port = link_port(int(config.number("peer_port")), bootstrap_port)
        if port == 0:
            _log.warning("no room links here: there is no port for them; set --room-peer-port")
            return
        address = join_address(config["link_host"] or args.host, port)
        bound = servicer.listen_link(address)
        _log.info("room links at port %d", bound)

    def _listen_metrics(self, servicer: Servicer) -> None:
        port = int(self._config.number("metrics_port"))
        if port < 0:
            return
        host = self._config["metrics_host"] or self._server_args.host
        bound = servicer.listen_metrics(join_address(host, port))
        _log.info("metrics at http://%s/metrics", join_address(host, bound))

    async def _warm_up(
        self, engine: AsyncLLMEngine, servicer: Servicer, bound: Sequence[str]
    ) -> None:
        """SERVING, once an aggregated engine has given a token. PD roles need a peer for that."""
        info = servicer.info
        needed = info.role == "null" and not info.skip_warmup
        try:
            warm = not needed or await engine.warm_up(WARM_UP_S)
        except Exception:
            _log.exception("the warm-up failed")
            warm = False
        if not warm:
            why = f"the warm-up request failed, or gave no token within {WARM_UP_S:g} s"
            _log.error("%s; the worker stays NOT_SERVING", why)
            servicer.state("starting", why)
            return
        servicer.state("ready")
        _log.info(
            "serving %s: role %s, window %s, outputs by %s",
            info.served_model_name or "the engine",
            info.role,
            servicer.window or "unknown",
            engine.output_path,
        )
        if self._on_ready is not None:
            self._on_ready(Ready(bound, info, servicer))

    def _catch_signals(self) -> None:
        """On the loop from now on, whatever the engine has put there for itself.

        Besides, at the interpreter's level: that works while the loop is stuck in Python code.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked, number)
            signal.signal(number, self._arm_at_signal)
        self._loop.add_signal_handler(
            signal.SIGUSR1, self._engine_died, "a scheduler process has failed; its log says why"
        )

    def _arm_at_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._start.guard.arm(0, self._config.number("drain_seconds"))

    def _asked(self, number: int) -> None:
        """SIGTERM or SIGINT: the first drains, the second ends it now."""
        name = signal.Signals(number).name
        if self._stop_asked and self._echoes > 0:
            self._echoes -= 1
            return
        if signal.getsignal(number) != self._arm_at_signal:
            # An HTTP server inside the engine has put its handler over ours. It closes, and sends
            # the signal again then.
            self._echoes += 1
        self._arm_at_signal(number, None)
        if self._stop_asked:
            _log.warning("%s again: ending now", name)
            self._hurry.set()
        else:
            drain_s = self._config.number("drain_seconds")
            _log.info("%s: draining, %g s at most; again to end now", name, drain_s)
        self._stop_asked = True
        self._end.set()

    def _engine_exited(self, what: str) -> None:
        """The watch's thread."""
        self._loop.call_soon_threadsafe(self._engine_died, what)

    def _engine_died(self, what: str) -> None:
        if self._engine_gone:
            return
        self._engine_gone = what
        self._start.watch.stop()
        if not self._stop_asked:
            _log.error("%s; the worker ends with exit code %d", what, EXIT_ENGINE)
            self._start.guard.arm(EXIT_ENGINE)
        self._end.set()

    # -- the end --

    async def _shut_down(self, engine: AsyncLLMEngine, servicer: Servicer) -> None:
        servicer.drain()
        await self._wait_idle(servicer, self._config.number("drain_seconds"))
        if self._engine_gone:
            servicer.state("dead", self._engine_gone)
            await self._wait_idle(servicer, LAST_WORDS_S, whatever=True)
        self._start.watch.stop()
        open_calls = servicer.open_calls()
        if open_calls:
            _log.warning("%d streams are still open; they end UNAVAILABLE", open_calls)
        await asyncio.to_thread(servicer.stop)
        engine.close()
        _log.info("stopped")

    async def _wait_idle(
        self, servicer: Servicer, timeout_s: float, *, whatever: bool = False
    ) -> None:
        """Until no stream is open. In a hurry, or without an engine, not (but ``whatever``)."""
        until = self._loop.time() + timeout_s
        while not servicer.wait_idle(0) and self._loop.time() < until:
            if not whatever and (self._hurry.is_set() or self._engine_gone):
                return
            await asyncio.sleep(_IDLE_PERIOD_S)


def _attached(client: ReleaseClient | None) -> ReleaseClient | None:
    """The agents, if all of them can end rooms; says so if not. Blocks, the engine being up."""
    if client is None:
        return None
    why_not = client.wait_attached(AGENTS_S)
    if not why_not:
        return client
    _log.warning(
        "release: no: %s; a slot whose KV does not come is held until the engine's own deadline",
        why_not,
    )
    return None


def _run(main: Coroutine[Any, Any, int]) -> int:
    """On uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    uvloop.install()
    return asyncio.run(main)
