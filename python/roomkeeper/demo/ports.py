"""Free ports for one run of the demo.

A prefill's KV rendezvous listens a thousand above its bootstrap port, and its room link, in the
release that brings one, two thousand above: what is asked for here is free on all of them. Nothing
keeps the ports until they are bound; a worker that comes too late says which one was taken.
"""

from __future__ import annotations

import dataclasses
import random

from roomkeeper import addresses
from roomkeeper.demo.plan import DemoError

HOST = "127.0.0.1"
#: Below the range that Linux hands out to connections, and above the well-known ones.
FIRST, LAST = 15000, 29000
GATEWAYS_MAX = 4
#: Prefills at most, and decodes.
WORKERS_MAX = 4
#: Relative to the base: prefills, decodes, gateways with their metrics; then each prefill's
#: bootstrap port with the two above it.
_GATEWAYS = 2 * WORKERS_MAX
_BOOTSTRAPS = _GATEWAYS + 2 * GATEWAYS_MAX
OFFSETS = (
    *range(_BOOTSTRAPS),
    *(_BOOTSTRAPS + above + n for above in (0, 1000, 2000) for n in range(WORKERS_MAX)),
)
ATTEMPTS = 200


@dataclasses.dataclass(frozen=True)
class Ports:
    """The ports of one run."""

    #: The first of each; the others follow.
    prefill: int
    decode: int
    gateway: int
    bootstrap: int

    def worker_of(self, role: str, number: int) -> int:
        """Where a worker listens for gateways, by its number from 0."""
        return (self.prefill if role == "prefill" else self.decode) + number

    def bootstrap_of(self, number: int) -> int:
        """Where gateways say that a prefill is met, by its number from 0."""
        return self.bootstrap + number

    def gateway_of(self, number: int) -> int:
        """Where a gateway listens for clients, by its number from 0."""
        return self.gateway + 2 * number

    def metrics_of(self, number: int) -> int:
        """Where a gateway serves its metrics, if it has any."""
        return self.gateway_of(number) + 1


def free_ports() -> Ports:
    """Ports that nobody listens on right now."""
    for _ in range(ATTEMPTS):
        base = random.randrange(FIRST, LAST)
        if all(is_free(base + offset) for offset in OFFSETS):
            return Ports(base, base + WORKERS_MAX, base + _GATEWAYS, base + _BOOTSTRAPS)
    raise DemoError(
        f"no {len(OFFSETS)} free ports found between {FIRST} and {LAST + OFFSETS[-1]} on {HOST}; "
        "end what listens there"
    )


def is_free(port: int) -> bool:
    """Whether a listener could have the port now."""
    return addresses.is_free(HOST, port)
