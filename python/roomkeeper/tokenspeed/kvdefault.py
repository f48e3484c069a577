"""KV events without ``--kv-events-config``: gateways that route by cached prefixes need them.

TokenSpeed publishes none unless it is told where, and the servicer that comes with it tells it, so
a deployment that changes servicers would miss them. With one rank the publisher gets Unix sockets
in a folder that only this user can enter: what is published has the prompts' tokens in it. Several
ranks need ports, which TokenSpeed's publisher opens on all interfaces.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pathlib
import random
import shutil
from typing import Any

from roomkeeper.addresses import is_free, socket_folder
from roomkeeper.errors import RoomkeeperError, one_line
from roomkeeper.workerinfo import ranks_of

#: ``0``, ``false``, ``no`` or ``off``: no events by default. The Python servicer's name for it.
VARIABLE = "SMG_TOKENSPEED_SERVICER_KV_EVENTS"
_OFF = ("0", "false", "no", "off")
#: Ports are drawn from here up to those that the kernel gives to connections.
_FIRST_PORT = 10000
_LAST_PORT = 32767
_ATTEMPTS = 64

_log = logging.getLogger("roomkeeper")


class NoPorts(RoomkeeperError):
    """No ports for the publishers; one line."""


def publish_by_default(server_args: Any) -> str:
    """Sets ``server_args.kv_events_config`` where nobody has. Before the engine starts.

    A line for the log, once the engine does start; empty: there is nothing to say.
    NoPorts: there are several ranks, and no ports for them.
    """
    if getattr(server_args, "kv_events_config", None):
        return ""
    if getattr(server_args, "disaggregation_mode", "null") == "encode":
        return ""  # it has no KV cache
    if os.environ.get(VARIABLE, "").strip().lower() in _OFF:
        return ""
    why = _why_not(server_args)
    if why:
        return f"KV events are off: {why}; --kv-events-config sets them on"
    ranks = ranks_of(server_args)
    endpoint, replay = _sockets() if ranks == 1 else _ports(ranks)
    server_args.kv_events_config = json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay,
        }
    )
    off = f"{VARIABLE}=0 or --kv-events-config"
    return f"KV events are on, published at {endpoint}; {off} leaves them off"


def _why_not(server_args: Any) -> str:
    """Why this engine cannot publish by itself; empty: it can."""
    nodes = int(getattr(getattr(server_args, "mapping", None), "nnodes", 1) or 1)
    if nodes > 1:
        return f"there are {nodes} nodes, and publishers of other nodes would have to be named"
    try:
        from tokenspeed.runtime.layers.attention.kv_cache.recipes.spec import STATE_LAYER_TYPES
    except ImportError:
        return ""  # a release without such layers
    try:
        labels = _layer_labels(server_args)
    except Exception as error:
        _log.debug("where it was raised", exc_info=error)
        return f"the model's layers cannot be read ({one_line(error)})"
    state = sorted({label for label in labels if label in STATE_LAYER_TYPES})
    if state:
        # Such a layer's cache spans no tokens, and TokenSpeed 0.1.1's scheduler ends itself when it
        # is to tell of it.
        kinds = ", ".join(state)
        return f"the model has layers with a state ({kinds}), of which TokenSpeed cannot tell"
    return ""


def _layer_labels(server_args: Any) -> list[str]:
    """The kinds of the model's layers; none where its configuration says none: all attention."""
    from tokenspeed.runtime.configs.model_config import ModelConfig

    model = ModelConfig(
        server_args.model,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.revision,
        context_length=server_args.max_model_len,
        model_override_args=server_args.hf_overrides,
        dtype=server_args.dtype,
        quantization=server_args.quantization,
        server_args=server_args,
    )
    outer = getattr(model, "hf_config", None)
    for config in (outer, getattr(outer, "text_config", None)):
        for name in ("cache_layer_types", "layer_types"):
            if labels := getattr(config, name, None):
                return [str(label) for label in labels]
    return []


def _sockets() -> tuple[str, str]:
    """Unix sockets of this user alone. The folder goes with this process."""
    folder = socket_folder("roomkeeper-kv-", "events", "replay")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return f"ipc://{folder}/events", f"ipc://{folder}/replay"


def _ports(ranks: int) -> tuple[str, str]:
    """Free ports in a row: each rank's events, then each rank's replays."""
    last = min(_LAST_PORT, _first_of_the_kernels() - 1) - 2 * ranks + 1
    for _ in range(_ATTEMPTS if last >= _FIRST_PORT else 0):
        base = random.randint(_FIRST_PORT, last)
        if all(is_free("", port) for port in range(base, base + 2 * ranks)):
            return f"tcp://*:{base}", f"tcp://127.0.0.1:{base + ranks}"
    raise NoPorts(
        f"KV events: no {2 * ranks} free ports in a row from {_FIRST_PORT} to {last}; name them "
        f"with --kv-events-config, or set {VARIABLE}=0"
    )


def _first_of_the_kernels() -> int:
    """The first port that the kernel gives to connections: the engine opens some as it loads."""
    file = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
    try:
        low = int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LAST_PORT + 1
    # A host that gives out nearly all of them leaves none below.
    return low if low > _FIRST_PORT + 1000 else _LAST_PORT + 1
