"""The release agent: ends a room inside the scheduler processes, at once.

An abort is only a mark there: a decode that waits for KV keeps its slot of the window until the
transfer ends, up to 300 s. What ends a room at once are calls on the event loop's
``kv_transfer.kv_manager``, and those can be made in the scheduler process alone. So a launcher puts
an agent into each scheduler process that it starts, and talks to all of them::

    servicer ── ReleaseRoom ──▶ client.py ── a unix socket a scheduler ──▶ agent.py ──▶ rooms.py
    servicer ◀── released ───── (launcher) ◀── done, when all have ────── (a thread) ◀── (its loop)

========== =================================================================
client.py  the launcher's side: a listener while the schedulers start, a thread for the answers
agent.py   what a scheduler process runs instead of its own entry point, and the agent's thread
rooms.py   what is called on the engine, and how the end of a room is known
wire.py    the lines between the two: JSON, versioned, bounded
========== =================================================================

**What ends a room.** On a decode ``record_failure(room, reason)`` and ``update_status(room, 0)``.
On a prefill ``abort_room(room, reason)``, which also tells the decode ranks that asked for the
room. A prefill's room is kept failed for the tombstone time, so that a decode which asks for it
later is answered at once; then ``discard_room``, unless a live request has the room.

**When it is acknowledged.** When the event loop has begun its second round since the call, so that
the round that saw the failure is complete; when no request of the loop has the room; and on a
prefill when no transfer of the room is queued or under way, since after that word the decode's
pages are given away. A loop that is stuck or paused acknowledges nothing.

**Orphans.** The socket is also a pipe to the launcher: when it breaks, the scheduler process ends
itself by SIGKILL. The kernel does the same for the launcher's own children (PR_SET_PDEATHSIG). A
launcher that is killed leaves nobody behind who writes KV.

**No agent.** An engine without these names, or with ranks on other hosts, is served with
``abort_request`` alone; one line says why.
"""
