"""The registry: the cases by name, in the order of ``--list``."""

from __future__ import annotations

from roomkeeper.demo.plan import Workload
from roomkeeper.scenario import chaos, storm
from roomkeeper.scenario.bursts import BurstCase, nobody_fails, refusals_are_clean
from roomkeeper.scenario.plan import Scenario

#: Deadlines of the engines are 1/50 of what they are in life, 2.4 s and 6 s, unless a case says
#: that they are real.
HIDDEN_WINDOW = BurstCase(Workload(), window_reported=False)
TWO_GATEWAYS = BurstCase(
    Workload(requests=32, concurrency=32, gateways=2, tokens=260), window_reported=True
)
TWO_GATEWAYS_REAL = BurstCase(
    Workload(requests=16, concurrency=16, gateways=2, tokens=500, scale=1), window_reported=True
)
#: 32 slots, and pages for about four requests at a time.
KV_PRESSURE = BurstCase(Workload(window=32, prompt_words=300, kv_tokens=1536), window_reported=True)
ABOVE_CAPACITY = BurstCase(
    Workload(concurrency=64),
    window_reported=False,
    decode_flags=("--room-waiting", "4"),
    gateway_flags=("--disable-retries",),
)

CASES: dict[str, Scenario] = {
    "hidden-window": nobody_fails(
        "64 requests at a decode of 4 slots that the gateway knows nothing of",
        HIDDEN_WINDOW,
        "The decode's line is longer than the prefill's bootstrap deadline, and no gateway holds "
        "anything back.",
    ),
    "two-gateways": nobody_fails(
        "two gateways, each of which knows the window and counts for itself",
        TWO_GATEWAYS,
        "Together the gateways let through twice the window, and half of it waits in the decode's "
        "line for longer than the prefill's bootstrap deadline.",
    ),
    "two-gateways-real-deadlines": nobody_fails(
        "the same with requests of 5 s and the deadlines of life, 120 s and 300 s",
        TWO_GATEWAYS_REAL,
        "Who waits in the decode's line waits for 5 s, and a gateway takes a prefill that is "
        "silent for 3 s to be wedged.",
    ),
    "chaos": chaos.SCENARIO,
    "kv-pressure": nobody_fails(
        "slots enough, but KV pages for four requests at a time",
        KV_PRESSURE,
        "A decode admits a room when it has a slot and pages; here the pages run out.",
    ),
    "above-capacity": refusals_are_clean(
        "64 requests at once for 4 slots and 4 places in line", ABOVE_CAPACITY
    ),
    "abort-storm": storm.SCENARIO,
}
