"""``python -m roomkeeper demo``: a burst through a gateway, with and without rooms, side by side.

========== =====================================================================
plan       what is run: the workload, the cases, what came of each
main       the flags, the order of the runs, what is printed where
command    what this command line and that of scenario have in common
run        one case from the first process to the last
site       the workers and gateways of a run
children   the processes of a run: logs, readiness, and an end that leaves none
ports      free ports
model      a directory with a tokenizer, which is all a gateway wants of a model
gateway    the gateway's process: smg, or the built-in one
builtin    the built-in gateway itself, for machines without PyPI
burst      the clients
slots      the decode's slots over time, from the stand-in's trace
watch      what the decode's rooms say of themselves while the burst runs
progress   the line that tells how far it is
report     the table, the picture for terminals, and what it means
picture    the same picture as SVG
========== =====================================================================

All of it runs in one thread but for the burst (a thread per client) and the watch.
"""

from __future__ import annotations
