"""``python -m roomkeeper standin``: the engine behind the servicer. See docs/standin.md."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys

from roomkeeper import logs
from roomkeeper.config import Config, keys
from roomkeeper.errors import RoomkeeperError
from roomkeeper.launcher import Launched, Ready, RoomFlags, add_room_flags, join_address, serve
from roomkeeper.launcher import split_room_flags as split
from roomkeeper.release.start import agents_for
from roomkeeper.standin.args import StandinArgs, parse, parser
from roomkeeper.standin.bootstrap import BootstrapPort
from roomkeeper.standin.frontend import StandinLLM, launch
from roomkeeper.standin.kv import check_port
from roomkeeper.standin.process import run_event_loop
from roomkeeper.standin.trace import start_trace

EXIT_USAGE = 2
_EVENT_LOOP = "roomkeeper.standin.eventloop:EventLoop"
_USAGE = "roomkeeper standin [engine's flags] [roomkeeper's flags]"
_ABOUT = """A worker with a made-up model and TokenSpeed's admission rules, for trying, testing and
demonstrating. Its scheduler is the package tokenspeed-scheduler where that is installed."""

_log = logging.getLogger("roomkeeper")


def main(argv: list[str]) -> int:
    """The exit code: 0 after a signal, 1 for the engine's end, 2 for what can be put right."""
    logs.set_up()
    try:
        flags, engine_argv = split(argv)
        if "-h" in engine_argv or "--help" in engine_argv:
            _print_help()
            return 0
        args = parse(engine_argv)
        config = room_config(flags, args)
        logs.set_up(config)
        bootstrap = None
        if args.role in ("prefill", "encode"):
            check_port(args.disaggregation_bootstrap_port)
            bootstrap = BootstrapPort(args.disaggregation_bootstrap_port)
        start_trace(args.trace)
    except RoomkeeperError as error:
        _log.error("%s", error)
        return EXIT_USAGE
    engines: list[StandinLLM] = []
    code = serve(
        functools.partial(_launch, args, config, engines),
        args,
        config=config,
        addresses=[join_address(args.host, args.port), *flags.listen],
        on_ready=functools.partial(_say_ready, engines),
    )
    if bootstrap is not None:
        bootstrap.close()
    return code


def room_config(flags: RoomFlags, args: StandinArgs) -> Config:
    """The configuration, which knows the engine's transfer deadline unless it is told another."""
    config = flags.config()
    default = next(key.default for key in keys() if key.name == "transfer_seconds")
    given = any(key == "transfer_seconds" for key, _, _ in flags.settings)
    if given or config["transfer_seconds"] != default:
        return config
    deadline = ("transfer_seconds", f"{args.transfer_timeout:.15g}", "--transfer-timeout")
    return dataclasses.replace(flags, settings=[deadline, *flags.settings]).config()


def _launch(args: StandinArgs, config: Config, engines: list[StandinLLM]) -> Launched:
    with agents_for(args.role, config, args.ranks) as client:
        entry = run_event_loop if client is None else client.entry(run_event_loop, _EVENT_LOOP)
        engine, report = launch(args, entry)
    engines.append(engine)
    if not str(report["scheduler"]).startswith("tokenspeed"):
        _log.warning(
            "tokenspeed-scheduler is not installed: requests are admitted by the %s scheduler; "
            "pip install tokenspeed-scheduler==0.1.35 for the real rules",
            report["scheduler"],
        )
    return Launched(engine, report, close=engine.close, release=client)


def _say_ready(engines: list[StandinLLM], ready: Ready) -> None:
    """The one line on stdout: where, what, and what a test may want to stop."""
    (engine,) = engines
    pids = ", ".join(str(process.pid) for process in engine.processes)
    print(
        f"ready: {', '.join(ready.addresses)}, role {ready.info.role}, "
        f"window {ready.servicer.window}, scheduler {ready.info.scheduler_info['scheduler']} "
        f"(pid {pids})",
        flush=True,
    )


def _print_help() -> None:
    made = parser()
    made.usage = _USAGE
    made.description = _ABOUT
    add_room_flags(made)
    made.print_help()
    sys.stdout.flush()
