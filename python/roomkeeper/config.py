"""The configuration: the keys the C core knows, as a file, as flags, as values.

There is one table of keys, in the core; this module only shows it to Python. A key ``wait_seconds``
is ``wait_seconds: 30`` in the file and ``--room-wait-seconds 30`` on the command line; only
``rooms`` is ``--rooms``. Flags win over the file, the file over defaults.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping

from roomkeeper import _bridge
from roomkeeper.errors import ConfigError

__all__ = ["Config", "ConfigError", "Key", "flag_of", "key_of_flag", "keys"]


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    name: str
    #: "bool", "int", "number", "choice" or "text".
    type: str
    default: str
    min: float
    max: float
    choices: tuple[str, ...]
    #: "s", "ms", "slots", …; empty when it has none.
    unit: str
    help: str

    @property
    def flag(self) -> str:
        """The key on the command line."""
        return flag_of(self.name)


def keys() -> tuple[Key, ...]:
    """Every key, in the order of the reference."""
    return tuple(
        Key(name, kind, default, low, high, tuple(filter(None, choices.split("|"))), unit, help_)
        for name, kind, default, low, high, choices, unit, help_ in _bridge.config_keys()
    )


def flag_of(key: str) -> str:
    """``wait_seconds`` -> ``--room-wait-seconds``."""
    return "--rooms" if key == "rooms" else "--room-" + key.replace("_", "-")


def key_of_flag(flag: str) -> str:
    """``--room-wait-seconds`` -> ``wait_seconds``, whether there is such a key or not."""
    return "rooms" if flag == "--rooms" else flag.removeprefix("--room-").replace("-", "_")


class Config:
    """Settings, checked one by one as they come.

    ``settings`` are (key, value, where) triples, ``where`` being how an error opens its line
    ("--room-waiting"); or a mapping of keys to values. ``path`` is a YAML file that they override.
    Raises ConfigError, one line. Any thread, one at a time.
    """

    def __init__(
        self,
        settings: Iterable[tuple[str, str, str]] | Mapping[str, object] = (),
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._core = _bridge.Config()
        if path is not None:
            self._core.load(os.fspath(path))
        if isinstance(settings, Mapping):
            settings = [(key, _text(value), key) for key, value in settings.items()]
        for key, value, where in settings:
            self._core.set(key, value, where)
        self._core.check()

    def __getitem__(self, key: str) -> str:
        """The value as the file would have it; KeyError for a key that is none."""
        return self._core.get(key)

    def number(self, key: str) -> float:
        """The value of an int or number key."""
        return float(self._core.get(key))

    def flag(self, key: str) -> bool:
        """The value of a bool key."""
        return self._core.get(key) in ("on", "true", "yes", "1")

    def as_dict(self) -> dict[str, str]:
        """Every key with its value."""
        return {key.name: self[key.name] for key in keys()}

    @property
    def core(self) -> _bridge.Config:
        """The extension's own object."""
        return self._core


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
