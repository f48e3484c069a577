"""The roomkeeper flags of a launcher: told apart from the engine's own, and shown in its help.

``--rooms``, ``--room-…``, ``--roomkeeper-config`` and ``--listen`` are ours, all others the
engine's. The keys are the core's (``roomkeeper.config``), so a flag is there as soon as the core
knows its key. Each takes a value, as ``--room-waiting 8`` or ``--room-waiting=8``.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Sequence

from roomkeeper.config import Config, Key, flag_of, key_of_flag, keys
from roomkeeper.errors import ConfigError

__all__ = ["RoomFlags", "add_room_flags", "split_room_flags"]

CONFIG_FLAG = "--roomkeeper-config"
LISTEN_FLAG = "--listen"
#: Where the file's path is read from without the flag: `ts serve` hands no flags of ours on.
CONFIG_VARIABLE = "ROOMKEEPER_CONFIG"


@dataclasses.dataclass
class RoomFlags:
    """What the roomkeeper flags of a command line said."""

    #: (key, value, flag), in the order given.
    settings: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    #: The YAML file; None: none.
    path: str | None = None
    #: Addresses besides --host and --port, in the order given.
    listen: list[str] = dataclasses.field(default_factory=list)

    def config(self) -> Config:
        """Defaults, the file over them, the flags over both. ConfigError, one line."""
        if self.path == "":
            raise ConfigError(f"{CONFIG_FLAG}: the value is empty; give a file, or leave it out")
        return Config(self.settings, path=self.path or os.environ.get(CONFIG_VARIABLE) or None)


def split_room_flags(argv: Sequence[str]) -> tuple[RoomFlags, list[str]]:
    """Takes the roomkeeper flags out of a command line; the rest is the engine's, in order.

    ConfigError, one line: a flag of ours that is none, with the nearest that is, or one that lacks
    its value. Values are checked by ``RoomFlags.config``.
    """
    flags = RoomFlags()
    rest: list[str] = []
    words = iter(range(len(argv)))
    known = {key.flag: key for key in keys()}
    for at in words:
        word = argv[at]
        if word == "--":
            rest.extend(argv[at:])
            break
        flag, equals, value = word.partition("=")
        if not _is_ours(flag):
            rest.append(word)
            continue
        key = known.get(flag.replace("_", "-"))
        if key is None and flag not in (CONFIG_FLAG, LISTEN_FLAG):
            raise _unknown(flag)
        if not equals:
            following = argv[at + 1] if at + 1 < len(argv) else None
            if following is None or following.startswith("--"):
                raise ConfigError(f"{flag}: the value is missing; give {_wanted(flag, key)}")
            value = following
            next(words)
        if key is not None:
            flags.settings.append((key.name, value, flag))
        elif flag == CONFIG_FLAG:
            flags.path = value
        else:
            flags.listen.append(value)
    return flags, rest


def add_room_flags(parser: argparse.ArgumentParser) -> None:
    """Shows the flags in the help of ``parser``; they are split off before it parses."""
    group = parser.add_argument_group("roomkeeper")
    group.add_argument(
        CONFIG_FLAG, metavar="FILE", help="YAML file of the keys below; flags win over it"
    )
    group.add_argument(
        LISTEN_FLAG,
        metavar="ADDRESS",
        help="serve on this address too: host:port or unix:/path; may be given again",
    )
    for key in keys():
        about = f"{key.help} (default {key.default})"
        group.add_argument(key.flag, metavar=_metavar(key), help=about.replace("%", "%%"))


def _is_ours(flag: str) -> bool:
    return flag in ("--rooms", "--room", LISTEN_FLAG) or flag.startswith(
        ("--room-", "--roomkeeper")
    )


def _unknown(flag: str) -> ConfigError:
    if flag.startswith("--room-"):
        try:  # the core knows its keys, and words this as it does for the file
            Config([(key_of_flag(flag), "", flag)])
        except ConfigError as error:
            return error
    known = [CONFIG_FLAG, LISTEN_FLAG, *(flag_of(key.name) for key in keys())]
    near = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)
    return ConfigError(f"{flag}: there is no such flag; did you mean {near[0]}?")


def _wanted(flag: str, key: Key | None) -> str:
    if key is None:
        return "a file" if flag == CONFIG_FLAG else "host:port or unix:/path"
    if key.type == "bool":
        return "on or off"
    if key.type == "choice":
        return " or ".join(key.choices)
    if key.type == "text":
        return "a text"
    kind = "a whole number" if key.type == "int" else "a number"
    return f"{kind} from {key.min:.15g} to {key.max:.15g}"


def _metavar(key: Key) -> str:
    if key.type == "bool":
        return "on|off"
    if key.type == "choice":
        return "|".join(key.choices)
    return key.unit.upper() or "VALUE"
