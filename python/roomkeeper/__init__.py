"""roomkeeper: a gRPC servicer in C that keeps the bootstrap rooms of an engine's worker.

Importing the package loads nothing but this file; the extension comes with the first use of
``Servicer`` or ``Config``. So a process that only imports it, a scheduler's child, has no gRPC.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roomkeeper.asyncllm import AsyncLLMEngine
    from roomkeeper.config import Config
    from roomkeeper.engine import WorkerInfo
    from roomkeeper.servicer import Servicer

__version__ = "0.1.0"

__all__ = ["AsyncLLMEngine", "Config", "Servicer", "WorkerInfo", "__version__"]

# Sanitized and plain builds of the extension live side by side: this names the directory of the one
# to load, with its descriptors.bin. Without it, it is the one beside this file.
_bridge_dir = os.environ.get("ROOMKEEPER_BRIDGE_DIR")
if _bridge_dir:
    __path__.insert(0, _bridge_dir)

_HOMES = {
    "AsyncLLMEngine": "roomkeeper.asyncllm",
    "Config": "roomkeeper.config",
    "Servicer": "roomkeeper.servicer",
    "WorkerInfo": "roomkeeper.engine",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'roomkeeper' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
