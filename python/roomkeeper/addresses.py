"""Addresses to listen on, before and after they are bound."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from roomkeeper.errors import RoomkeeperError

__all__ = [
    "UsageError",
    "check_address",
    "is_free",
    "join_address",
    "link_port",
    "socket_folder",
    "with_port",
]

#: Without --room-peer-port a prefill listens for links so far above its bootstrap port.
LINK_PORT_OFFSET = 2000
#: The path of a Unix socket, with the zero at its end.
_PATH_MAX = 108


class UsageError(RoomkeeperError):
    """Something to put right on the command line; one line."""


def join_address(host: str | None, port: int) -> str:
    """``host:port`` as the servicer listens on it; IPv6 in brackets."""
    host = host or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def link_port(peer_port: int, bootstrap_port: int | None) -> int:
    """Where a prefill listens for room links; 0: nowhere. ``peer_port`` as configured."""
    if peer_port >= 0:
        return peer_port
    port = (bootstrap_port or 0) + LINK_PORT_OFFSET
    return port if bootstrap_port and port <= 65535 else 0


def check_address(address: str) -> None:
    """Whether it can be bound, before the engine loads for minutes; the servicer binds it later."""
    if address.startswith("unix:"):
        folder = Path(address.removeprefix("unix:")).parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(
                f"cannot listen on {address}: the folder {folder} is not there or not writable; "
                "make it or choose another"
            )
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f'cannot listen on "{address}": give host:port, [IPv6]:port or unix:/path, with a port '
            "from 0 to 65535"
        )
    if int(port) == 0:
        return
    host = host.strip("[]")
    try:
        infos = socket.getaddrinfo(
            None if host in ("", "*") else host,
            int(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        for family, kind, protocol, _, where in infos[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)
    except OSError as error:
        what = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {address}: {what}; stop what listens there or choose another"
        ) from error


def is_free(host: str, port: int) -> bool:
    """Whether a listener could have the IPv4 port now; listeners here reuse addresses too."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def socket_folder(prefix: str, *names: str) -> Path:
    """A new folder that only this user can enter, where Unix sockets of these names have room."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if any(len(os.fsencode(folder / name)) >= _PATH_MAX for name in names):
        shutil.rmtree(folder, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return folder


def with_port(address: str, port: int) -> str:
    """The address with the port that was bound."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
