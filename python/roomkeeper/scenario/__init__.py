"""``python -m roomkeeper scenario NAME``: one hard case, made to happen and judged.

========== =====================================================================
main       the flags, what is printed where, the exit code
plan       how a case is served, and what is found of it, as plain data
cases      the registry
bursts     the cases that are a burst and nothing else
chaos      workers that are killed while requests run
classify   why a request failed, from the gateway's log
storm      clients that all go away at once
worker     the stand-in, which also writes down each abort its engine is given
traces     the legs in the traces of stand-ins
leaks      what is still held when nobody waits any more
========== =====================================================================

Processes, gateways, clients and pictures are the demo's, see roomkeeper.demo. One thread but for
the clients' and the watch's.
"""

from __future__ import annotations
