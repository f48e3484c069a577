"""Asks one worker how it is, and reads the answer. For ``roomkeeper status`` and other clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from roomkeeper import wire
from roomkeeper.errors import RoomkeeperError

_HEALTH_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_NO_WORKER = ("UNIMPLEMENTED",)


class AskerError(RoomkeeperError):
    """Nobody can be asked so; one line."""


@dataclasses.dataclass(frozen=True)
class Rank:
    """One data-parallel rank. None: the worker does not say."""

    rank: int
    #: Slots of the running window; 0: unknown.
    window: int
    running: int
    waiting: int
    #: Slots of live legs.
    admitted: int | None = None
    #: Slots that the engine has not let go of, and the age of the oldest.
    releasing: int | None = None
    oldest_releasing_ms: int | None = None
    oldest_waiting_ms: int | None = None
    #: Share of the KV budget that live requests hold, 0..1.
    kv_usage: float | None = None


@dataclasses.dataclass(frozen=True)
class Peer:
    """The other end of a room link, as the worker that was asked sees it."""

    #: On a decode the prefill's bootstrap server, on a prefill where the decode dialled from.
    name: str
    #: Of the link, as dialled or as seen.
    address: str
    #: "absent", "dialling", "up", "lost".
    state: str
    #: For how long it has been in that state.
    since_ms: int
    #: Its engine, as heard last; "" while there is no link.
    engine: str
    #: It can end a room in its engine; None while there is no link.
    releases: bool | None
    #: Its roomkeeper; "" while not known.
    version: str
    #: Times that the link came up.
    links: int
    #: Room states said, taken and refused.
    told: int
    heard: int
    refused: int
    #: Why there is no link; "" when there is.
    why: str


#: Causes of legs that ended because of their twin or its worker.
_STRANDED = ("held_timeout", "peer_lost", "twin_ended", "twin_missing")


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker's answer; with ``error``, one line, there is none."""

    address: str
    error: str = ""
    role: str = ""
    model: str = ""
    health: str = ""
    ranks: tuple[Rank, ...] = ()
    #: scheduler_info.roomkeeper, as it came; None: another servicer.
    roomkeeper: Mapping[str, Any] | None = None
    scheduler: str = ""

    @property
    def engine(self) -> str:
        """The engine's state; "" where nobody says."""
        return str(self._own("engine", {}).get("state", ""))

    @property
    def engine_why(self) -> str:
        """Why the engine is not ready."""
        return str(self._own("engine", {}).get("why", ""))

    @property
    def refused(self) -> dict[str, int]:
        """Legs refused at arrival, by cause."""
        return {str(cause): int(count) for cause, count in self._own("refused", {}).items()}

    @property
    def stranded(self) -> dict[str, int]:
        """Legs ended because of their twin or its worker, by cause."""
        ended = self._own("ended", {})
        return {cause: int(ended[cause]) for cause in _STRANDED if ended.get(cause)}

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The other ends of its room links, and those that it has none to."""
        return tuple(map(_peer, self._own("links", {}).get("peers", ())))

    @property
    def listens_for_links(self) -> str:
        """Where it takes room links; "" where it does not."""
        return str(self._own("links", {}).get("listening", ""))

    def total(self, name: str) -> int | None:
        """A count since the start: "admitted", "arrived", "stranded"."""
        value = self._own(name, None)
        return None if value is None else int(value)

    def _own(self, name: str, default: Any) -> Any:
        return (self.roomkeeper or {}).get(name, default)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. A worker that did not answer has address, reachable and error."""
        if self.error:
            return {"address": self.address, "reachable": False, "error": self.error}
        return {
            "address": self.address,
            "reachable": True,
            "role": self.role,
            "model": self.model,
            "health": self.health,
            "scheduler": self.scheduler,
            "window": sum(rank.window for rank in self.ranks),
            "ranks": [dataclasses.asdict(rank) for rank in self.ranks],
            "roomkeeper": self.roomkeeper,
        }


class Asker:
    """A connection to one worker. One thread at a time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        _check(address)
        try:
            import grpc

            self._wire = wire.load()
        except ImportError as error:
            raise AskerError(
                f"{error.name} is missing; pip install grpcio protobuf, or roomkeeper[client]"
            ) from error
        except FileNotFoundError as error:
            raise AskerError(str(error)) from error
        self._address = address
        self._timeout_s = timeout_s
        self._rpc_error: type[Exception] = grpc.RpcError
        # A watch asks again soon, and the worker may be back by then.
        options = [("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._scheduler = self._wire.stub(self._channel, wire.TOKENSPEED)
        self._health = self._wire.stub(self._channel, wire.HEALTH)

    def close(self) -> None:
        """Ends the connection, and what is under way on it."""
        self._channel.close()

    def ask(self) -> Worker:
        """Asks. What goes wrong is in the answer."""
        try:
            return self._ask()
        except self._rpc_error as error:
            return Worker(self._address, error=self._explain(error))
        except ValueError:  # the channel was closed meanwhile
            return Worker(self._address, error="not asked to the end")

    def _ask(self) -> Worker:
        """The three questions together, so that the answers belong together."""
        scheduler = "tokenspeed.grpc.scheduler."
        info_call = self._scheduler.GetServerInfo.future(
            self._wire.message(scheduler + "GetServerInfoRequest")(), timeout=self._timeout_s
        )
        loads_call = self._scheduler.GetLoads.future(
            self._wire.message(scheduler + "GetLoadsRequest")(), timeout=self._timeout_s
        )
        health_call = self._health.Check.future(
            self._wire.message("grpc.health.v1.HealthCheckRequest")(), timeout=self._timeout_s
        )
        info = info_call.result()
        args = _plain(info.server_args)
        scheduler_info = _plain(info.scheduler_info)
        own = scheduler_info.get("roomkeeper")
        try:
            loads = list(loads_call.result().loads)
        except self._rpc_error:
            loads = []  # a worker may have none to give
        role = own.get("role") if own else args.get("disaggregation_mode")
        return Worker(
            address=self._address,
            role=str(role or "null"),
            model=str(args.get("served_model_name") or args.get("model") or ""),
            health=self._health_of(health_call),
            ranks=_ranks(own, args, loads),
            roomkeeper=own,
            scheduler=str(scheduler_info.get("scheduler") or ""),
        )

    def _health_of(self, call: Any) -> str:
        try:
            return _HEALTH_NAMES.get(call.result().status, "UNKNOWN")
        except self._rpc_error as error:
            code = _code(error)
            return "not said" if code in _NO_WORKER else code

    def _explain(self, error: Any) -> str:
        code = _code(error)
        details = " ".join(str(error.details() or "").split())
        if code in _NO_WORKER:
            return (
                "something answers, but it is no TokenSpeed worker; ask for the worker's own port"
            )
        if code == "DEADLINE_EXCEEDED":
            return f"no answer within {self._timeout_s:g} s; is it a worker, and is it alive?"
        if code == "UNAVAILABLE":
            return f"not reachable: {details.rpartition(': ')[2]}; is the worker running?"
        return f"it answers {code}: {details}"


def _check(address: str) -> None:
    if address.startswith("unix:"):
        if address in ("unix:", "unix://"):
            raise AskerError(f"{address!r} has no path; give unix:/path")
        return
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = not any(character in host for character in ":/[] ")
    numbered = port.isdigit() and 1 <= int(port) <= 65535
    if not colon or not host or not numbered or not (bracketed or plain):
        raise AskerError(f"{address!r} is no address; give host:port, [IPv6]:port or unix:/path")


def _code(error: Any) -> str:
    return str(error.code().name)


def _ranks(
    own: Mapping[str, Any] | None, args: Mapping[str, Any], loads: list[Any]
) -> tuple[Rank, ...]:
    """From roomkeeper's ledger where it is, else from the loads, else from the arguments alone."""
    usage = {
        load.dp_rank: load.active_token_usage
        for load in loads
        if load.HasField("active_token_usage")
    }
    if own is not None:
        return tuple(
            Rank(
                rank=rank["rank"],
                window=rank["window"] or own["window"],
                running=rank["running"],
                waiting=rank["waiting"],
                # Without a window to gate by nobody is admitted or not.
                admitted=rank["held_slots"] if rank["window"] else None,
                releasing=rank["releasing"],
                oldest_releasing_ms=rank["oldest_releasing_ms"],
                oldest_waiting_ms=rank["oldest_waiting_ms"],
                kv_usage=usage.get(rank["rank"]),
            )
            for rank in own.get("ranks", ())
        )
    window = int(args.get("max_num_seqs") or args.get("max_running_requests") or 0)
    if not loads:
        return (Rank(0, window, 0, 0),)
    return tuple(
        Rank(
            rank=load.dp_rank,
            window=load.max_running_requests or window // len(loads),
            running=load.num_running_reqs,
            waiting=load.num_waiting_reqs,
            kv_usage=usage.get(load.dp_rank),
        )
        for load in loads
    )


def _peer(row: Mapping[str, Any]) -> Peer:
    up = row["state"] == "up"
    return Peer(
        name=str(row["name"]),
        address=str(row["address"]),
        state=str(row["state"]),
        since_ms=int(row["since_ms"]),
        engine=str(row["engine"]) if up else "",
        releases=bool(row["release"]) if up else None,
        version=str(row["version"]),
        links=int(row["links"]),
        told=int(row["told"]),
        heard=int(row["heard"]),
        refused=int(row["refused"]),
        why=str(row["why"]),
    )


def _plain(struct: Any) -> dict[str, Any]:
    """A Struct as a dict; its numbers are doubles, and whole ones become ints again."""
    return {name: _plain_value(value) for name, value in sorted(struct.fields.items())}


def _plain_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "struct_value":
        return _plain(value.struct_value)
    if kind == "list_value":
        return [_plain_value(item) for item in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)
