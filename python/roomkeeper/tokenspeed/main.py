"""A TokenSpeed worker: its own flags, its own frontend and schedulers, our servicer.

A drop-in for the module that ``ts serve`` spawns: ``TS_SERVE_ENGINE_MODULE=roomkeeper.tokenspeed``.
TokenSpeed is imported here and nowhere at module level, so that every failure is one line.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, get_args

from roomkeeper import logs
from roomkeeper.addresses import check_address
from roomkeeper.asyncllm import OutputPath
from roomkeeper.config import Config
from roomkeeper.errors import RoomkeeperError, one_line
from roomkeeper.launcher import (
    EXIT_USAGE,
    Launched,
    add_room_flags,
    follow,
    join_address,
    serve,
    split_room_flags,
)
from roomkeeper.release.client import ReleaseClient
from roomkeeper.release.start import agents_for
from roomkeeper.tokenspeed.kvdefault import publish_by_default

PROG = "python -m roomkeeper.tokenspeed"
#: How outputs are read: auto, generator or collector. For those who look into a fault.
OUTPUT_PATH_VARIABLE = "ROOMKEEPER_OUTPUT_PATH"

#: Where a data-parallel controller finds the entry point of the schedulers that it starts.
_SCHEDULER_ENTRY = "tokenspeed.runtime.engine.event_loop:run_event_loop"
#: What a prefill's transfer threads take their work from.
_TRANSFER_QUEUE = "tokenspeed.runtime.pd.utils:FastQueue"

_log = logging.getLogger("roomkeeper")


class _CannotStart(RoomkeeperError):
    """One line: why there will be no worker."""


def main(argv: list[str]) -> int:
    """The exit code: 0 after a signal, 1 with the engine's end, 2 for what an operator can mend."""
    logs.set_up()
    try:
        flags, engine_argv = split_room_flags(argv)
        config = flags.config()
        logs.set_up(config)
        for address in flags.listen:
            check_address(address)
        if "-h" in engine_argv or "--help" in engine_argv:
            _print_room_help()
        server_args = _parse(engine_argv)
        output_path = _output_path()
        kv_events = publish_by_default(server_args)
        launch = functools.partial(_launch, server_args, config, _find_engine(), kv_events)
    except RoomkeeperError as error:
        _log.error("%s", error)
        return EXIT_USAGE
    if server_args.node_rank:
        rank = server_args.node_rank
        _log.info("node rank %d: this node only schedules; rank 0 serves gRPC", rank)
        # Without a loop around it, TokenSpeed serves its own health check here.
        return follow(launch)
    addresses = [join_address(server_args.host, server_args.port), *flags.listen]
    return serve(launch, server_args, config=config, addresses=addresses, output_path=output_path)


def _print_room_help() -> None:
    """Ahead of TokenSpeed's own help, which ends the process."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} [TokenSpeed's flags] [roomkeeper's flags]",
        description="A TokenSpeed worker that keeps its rooms. TokenSpeed's own flags follow.",
        add_help=False,
    )
    add_room_flags(parser)
    parser.print_help()
    print(flush=True)


def _parse(argv: list[str]) -> Any:
    """TokenSpeed's arguments by its own parser, which prints its usage and exits with 2 itself."""
    if importlib.util.find_spec("tokenspeed") is None:
        raise _CannotStart(
            f"TokenSpeed is not installed in {sys.executable}; pip install tokenspeed there, or "
            "try python -m roomkeeper standin"
        )
    try:
        from tokenspeed.runtime.utils.server_args import prepare_server_args
    except ImportError as error:
        raise _CannotStart(f"TokenSpeed does not import: {error}") from error
    try:
        return prepare_server_args(argv)
    except Exception as error:
        _log.debug("where it was raised", exc_info=error)
        raise _CannotStart(f"TokenSpeed refuses its flags: {one_line(error)}") from error


def _output_path() -> OutputPath:
    value = os.environ.get(OUTPUT_PATH_VARIABLE) or "auto"
    for known in get_args(OutputPath):
        if value == known:
            path: OutputPath = known
            return path
    raise _CannotStart(
        f"{OUTPUT_PATH_VARIABLE} is {value!r}; it must be {', '.join(get_args(OutputPath))}"
    )


def _find_engine() -> Any:
    """TokenSpeed's module of the launcher."""
    try:
        from tokenspeed.runtime.entrypoints import engine
    except ImportError as error:
        raise _CannotStart(f"this TokenSpeed's engine does not import: {error}") from error
    if not hasattr(engine, "_launch_subprocesses"):
        raise _CannotStart("this TokenSpeed's engine has no _launch_subprocesses")
    return engine


def _launch(server_args: Any, config: Config, engine: Any, kv_events: str = "") -> Launched:
    if kv_events:
        _log.info("%s", kv_events)
    role = server_args.disaggregation_mode
    with agents_for(role, config, _processes(server_args, engine)) as client:
        if client is not None and getattr(server_args.mapping, "nnodes", 1) > 1:
            client.refuse(f"{server_args.mapping.nnodes} nodes: its ranks are on other hosts too")
        with _entries(engine, client):
            async_llm, _template_manager, scheduler_info = engine._launch_subprocesses(
                server_args=server_args
            )
    return Launched(async_llm, scheduler_info or {}, release=client)


def _processes(server_args: Any, engine: Any) -> int:
    """Scheduler processes on this node; 0: not known, or they cannot be given an agent."""
    if not hasattr(engine, "run_event_loop"):
        return 0
    return int(getattr(getattr(server_args, "mapping", None), "nprocs_per_node", 0))


@contextlib.contextmanager
def _entries(engine: Any, client: ReleaseClient | None) -> Iterator[None]:
    """What the launcher starts within has an agent. As it was afterwards."""
    if client is None:
        yield
        return
    scheduler = engine.run_event_loop
    agent = client.entry(scheduler, f"{scheduler.__module__}:EventLoop", _TRANSFER_QUEUE)
    wrapped: dict[str, Any] = {"run_event_loop": agent}
    controller = getattr(engine, "run_data_parallel_controller_process", None)
    if controller is not None:
        wrapped["run_data_parallel_controller_process"] = client.controller(
            controller, _SCHEDULER_ENTRY, agent
        )
    originals = {name: getattr(engine, name) for name in wrapped}
    for name, entry in wrapped.items():
        setattr(engine, name, entry)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(engine, name, original)
