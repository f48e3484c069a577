"""What goes wrong, as exceptions. Each message is one line: what, which value, which limit.

The extension raises these too; they live here so that catching one does not load it.
"""

from __future__ import annotations

from collections.abc import Sequence


class RoomkeeperError(Exception):
    """The base of all of them."""


def one_line(error: BaseException) -> str:
    """What somebody else's exception says, as one line; its type's name if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


class ConfigError(RoomkeeperError, ValueError):
    """A setting that is unknown, malformed or out of range. The message says where it stands."""


class ServicerError(RoomkeeperError, RuntimeError):
    """The servicer could not be made, bound or started."""


class BadOutputError(RoomkeeperError, ValueError):
    """Outputs that cannot be read. The others of the same call went through.

    ``failed`` names the (handle, choice) of each that did not, as far as it could be told.
    """

    failed: Sequence[tuple[int, int]] = ()
