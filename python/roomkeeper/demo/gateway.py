"""The gateway's process: the real smg where its package is installed, else the built-in one."""

from __future__ import annotations

import http.client
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from roomkeeper.demo.children import Child, Children
from roomkeeper.demo.plan import MODEL_NAME, GatewayKind, Layout
from roomkeeper.demo.ports import HOST, Ports

READY_S = 45.0
PROBE_S = 1.0
#: No telemetry or model hub is to be asked for anything: all a run needs is on this machine.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1"}


def installed_gateway() -> GatewayKind:
    """The best one there is."""
    return "smg" if importlib.util.find_spec("smg") else "builtin"


def start_gateway(
    children: Children,
    kind: GatewayKind,
    ports: Ports,
    model: Path,
    waiting: Callable[[], None],
    number: int = 0,
    layout: Layout | None = None,
) -> Child:
    """Starts one over workers that serve already; returns when it has registered them all.

    Without a layout there is one pair. The built-in gateway knows no other.
    """
    if kind == "smg":
        command = smg_command(ports, model, number, layout or Layout())
    else:
        command = builtin_command(ports, number)
    child = children.start(f"gateway-{number}", command, ENVIRONMENT)
    children.wait_until(child, lambda: _ready(ports.gateway_of(number)), READY_S, waiting)
    return child


def smg_command(ports: Ports, model: Path, number: int, layout: Layout) -> list[str]:
    """smg as an operator would start it, but for the ports."""
    workers: list[str] = []
    for prefill in range(layout.prefills):
        url = f"grpc://{HOST}:{ports.worker_of('prefill', prefill)}"
        workers += ["--prefill", url, str(ports.bootstrap_of(prefill))]
    for decode in range(layout.decodes):
        workers += ["--decode", f"grpc://{HOST}:{ports.worker_of('decode', decode)}"]
    return [
        *(sys.executable, "-m", "smg", "launch"),
        *("--host", HOST, "--port", str(ports.gateway_of(number))),
        *("--prometheus-host", HOST, "--prometheus-port", str(ports.metrics_of(number))),
        "--pd-disaggregation",
        *workers,
        *("--model-path", str(model)),
        *("--policy", "round_robin"),
        *("--worker-startup-check-interval", "1"),
        *layout.gateway_flags,
    ]


def builtin_command(ports: Ports, number: int) -> list[str]:
    """The built-in one, from this very interpreter."""
    return [
        *(sys.executable, "-m", "roomkeeper.demo.builtin"),
        *("--port", str(ports.gateway_of(number))),
        *("--prefill", f"{HOST}:{ports.prefill}"),
        *("--decode", f"{HOST}:{ports.decode}"),
        *("--bootstrap", f"{HOST}:{ports.bootstrap}"),
        *("--model", MODEL_NAME),
    ]


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/readiness")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
