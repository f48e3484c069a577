/* The room ledger: who holds a slot of the running window, who waits, who is refused, and how a leg ends.
 *
 * Plain data behind one mutex. It does no I/O, reads no clock (`now` is an argument, in ms of any
 * monotonic clock) and calls nobody: what is to be done comes back as a list of effects, which the caller
 * carries out with the ledger unlocked. So a test drives it without threads or sleeping.
 *
 * Two lives, kept apart. The *leg* is what the client sees, the *slot* is what the engine holds. A leg may
 * end at once; its slots are free only when the engine has let go.
 *
 * Every operation is O(1) amortised. Effects are bounded: when the list is full the rest stays pending,
 * `more` is set, and the caller runs rk_ledger_pump once it has carried out what it got.
 */
#ifndef ROOMKEEPER_ROOMS_H
#define ROOMKEEPER_ROOMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roomkeeper/export.h"
#include "roomkeeper/status.h"

typedef enum rk_role {
    RK_ROLE_NULL, /* aggregated: no pairs */
    RK_ROLE_PREFILL,
    RK_ROLE_DECODE,
    RK_ROLE_ENCODE, /* runs a model's tower for prefills; generates nothing, keeps no rooms */
    RK_ROLES,
} rk_role;

RK_API const char *rk_role_name(rk_role role); /* "null", "prefill", …; static */

typedef enum rk_leg_state {
    RK_LEG_ARRIVED,
    RK_LEG_WAITING,    /* in line for slots (decode, aggregated) */
    RK_LEG_HELD,       /* a prefill that waits for its twin */
    RK_LEG_ADMITTED,   /* may go to the engine */
    RK_LEG_SUBMITTED,  /* handed to the engine */
    RK_LEG_HANDED_OFF, /* first output seen: the KV is here */
    RK_LEG_ENDED,      /* over on the wire; slots may still be RELEASING */
    RK_LEG_STATES,
} rk_leg_state;

typedef enum rk_slot_state {
    RK_SLOT_NONE, /* never claimed */
    RK_SLOT_HELD,
    RK_SLOT_RELEASING, /* the leg is over, the engine has not let go yet */
    RK_SLOT_FREE,
} rk_slot_state;

/* Why a leg ended or was refused. */
typedef enum rk_cause {
    RK_CAUSE_NONE,
    RK_CAUSE_COMPLETED,
    RK_CAUSE_FULL,         /* no slot and no place in line (or strict refusal) */
    RK_CAUSE_HELD_FULL,    /* too many held prefill legs */
    RK_CAUSE_WAIT_TIMEOUT, /* waited longer than wait_ms */
    RK_CAUSE_HELD_TIMEOUT, /* held longer than wait_ms + 5 s after the announcement */
    RK_CAUSE_TWIN_MISSING, /* the twin never showed up */
    RK_CAUSE_NEVER_FITS,   /* n or its tokens exceed what the window could ever hold */
    RK_CAUSE_DUPLICATE_ROOM,
    RK_CAUSE_DUPLICATE_ID,
    RK_CAUSE_SUPERSEDED,    /* the same id came again with another room */
    RK_CAUSE_CLIENT_CANCEL, /* cancelled, reset, deadline passed, client gone */
    RK_CAUSE_ABORT_RPC,
    RK_CAUSE_SLOW_READER,
    RK_CAUSE_ENGINE_ERROR,
    RK_CAUSE_ENGINE_DEAD, /* engine gone, or silent for dead_seconds */
    RK_CAUSE_DRAIN,
    RK_CAUSE_PEER_LOST,  /* the link to the twin's worker is gone */
    RK_CAUSE_TWIN_ENDED, /* the twin ended; its own cause is told beside it */
    RK_CAUSE_BAD_RANK,
    RK_CAUSE_NO_MEMORY,
    RK_CAUSES,
} rk_cause;

RK_API const char *rk_cause_name(rk_cause cause); /* "wait_timeout"; for logs, metrics and status */
RK_API const char *rk_leg_state_name(rk_leg_state state);
/* The code that a leg ended by this cause carries to its client. */
RK_API rk_code rk_cause_code(rk_cause cause);

/* All times in ms. A copy is taken by rk_ledger_new. */
typedef struct rk_ledger_options {
    rk_role role;
    bool enabled;            /* false: `--rooms off`, everything is admitted at once, nothing held or refused;
                                duplicate ids are still refused */
    bool gate_aggregated;    /* role null: gate by the window too */
    bool linked;             /* hold prefill legs for their twin; false: submit at once, nobody announces */
    bool tells_apart;        /* what twins are told comes from rk_ledger_take_tells, in the order in which it
                                happened whoever carries effects out; false: among the effects */
    uint32_t peers;          /* peers are 0 .. peers - 1; 0 counts as 1 */
    uint32_t ranks;          /* data-parallel ranks, >= 1 */
    uint32_t window;         /* slots per rank; 0: unknown, nothing is gated */
    uint64_t kv_tokens;      /* KV tokens per rank; 0: unknown, tokens are not gated */
    uint32_t page_tokens;    /* claims are rounded up to whole pages; 0 or 1: no rounding */
    uint32_t reserve_tokens; /* what the engine sets aside per choice besides the prompt */
    uint32_t waiting_places; /* places in line per rank; 0: refuse at the window */
    uint32_t held_places;    /* prefill legs held at a time */
    uint64_t wait_ms;
    uint64_t announce_ms;
    uint64_t twin_ms;
    uint64_t handoff_ms;
    uint64_t transfer_ms; /* the engine's own transfer deadline */
    uint64_t tombstone_ms;
    uint32_t tombstones; /* at most so many; the oldest goes */
    uint32_t announced;  /* rooms remembered before their leg; at most so many */
    uint32_t peer_rooms; /* of either, so many from one peer; more are refused. 0: no such limit */
} rk_ledger_options;

/* A room. Host and port are the prefill's bootstrap server, and say whose it is; within a worker its number
 * alone is its name, as it is in the engine. */
#define RK_ROOM_HOST_MAX 256
typedef struct rk_room {
    char host[RK_ROOM_HOST_MAX]; /* NUL-terminated, lower case */
    int32_t port;
    int64_t room;
} rk_room;

typedef struct rk_leg_spec {
    uint64_t handle;        /* from rk_ledger_new_handle */
    const char *request_id; /* copied */
    size_t request_id_bytes;
    const rk_room *room; /* copied; NULL: the leg has none */
    uint32_t n;          /* slots to claim, >= 1 */
    uint64_t prompt_tokens;
    int32_t rank;  /* pinned by the client; -1: the ledger chooses */
    bool linked;   /* decode: there is a link to the twin's worker, so the twin will be announced */
    uint32_t peer; /* that worker's number; 0 when there is only one. Not linked while it is absent */
} rk_leg_spec;

typedef enum rk_effect_kind {
    RK_FX_OPEN,         /* prefill: headers and one empty Chunk now, the leg is held */
    RK_FX_ADMIT,        /* headers now, then rk_ledger_begin_submit and hand it to the engine */
    RK_FX_END,          /* end on the wire with `code`, cause `cause` (and `twin_cause`) */
    RK_FX_ABORT_ENGINE, /* engine abort of `choice`, or RK_LEDGER_ALL */
    RK_FX_END_CHOICE,   /* Abort RPC on one child: Complete of `choice` with finish_reason abort */
    /* Ask the release agent to end `room` in the scheduler; in a prefill also for legs that were refused or
     * never submitted. */
    RK_FX_RELEASE_ROOM,
    /* link frames: tell the twin's worker about `room`; also of refused legs, and of rooms without one */
    RK_FX_TELL_OPENED,
    RK_FX_TELL_ADMITTED,
    RK_FX_TELL_SUBMITTED,
    RK_FX_TELL_HANDED_OFF,
    RK_FX_TELL_ENDED, /* with `cause`, `ever_submitted` */
    RK_FX_TELL_QUIESCED,
} rk_effect_kind;

#define RK_LEDGER_ALL UINT32_MAX

typedef struct rk_effect {
    rk_effect_kind kind;
    uint64_t handle; /* 0: a room without a leg here (RK_FX_TELL_… only) */
    uint32_t choice;
    int32_t rank; /* RK_FX_ADMIT: the DP rank given, -1 with one rank and none pinned */
    rk_cause cause;
    rk_cause twin_cause; /* RK_CAUSE_TWIN_ENDED: why the twin ended */
    rk_code code;        /* RK_FX_END */
    bool retry;          /* RK_FX_END: worth retrying elsewhere or later: send pushback metadata */
    bool ever_submitted; /* RK_FX_TELL_ENDED */
    uint32_t peer;       /* RK_FX_TELL_…: whom */
    rk_room room;        /* RK_FX_RELEASE_ROOM and RK_FX_TELL_… only */
} rk_effect;

#define RK_EFFECTS_MAX 48
typedef struct rk_effects {
    size_t count;
    bool more;  /* the list was full: carry these out, clear, then call rk_ledger_pump */
    bool tells; /* rk_ledger_take_tells has something to give */
    rk_effect items[RK_EFFECTS_MAX];
} rk_effects;

/* Before the first use and after each round; cheaper than zeroing the whole list. */
static inline void rk_effects_clear(rk_effects *fx) {
    fx->count = 0;
    fx->more = false;
    fx->tells = false;
}

/* What rk_ledger_arrive answers. */
typedef struct rk_verdict {
    bool accepted;       /* false: refuse now, before headers; no leg was made */
    rk_cause cause;      /* of the refusal */
    rk_cause twin_cause; /* RK_CAUSE_TWIN_ENDED: why the twin ended */
    rk_code code;
    bool retry;
    rk_leg_state state; /* accepted: ADMITTED, WAITING or HELD */
    int32_t rank;       /* the rank the leg was given */
    uint32_t window;    /* the numbers behind the answer, per rank */
    uint32_t admitted;  /* slots taken, RELEASING ones included */
    uint32_t waiting;
    uint32_t waiting_places;
    uint64_t need_tokens; /* RK_CAUSE_NEVER_FITS by tokens: what it needs … */
    uint64_t kv_tokens;   /* … and what there is; 0 when slots were the reason */
} rk_verdict;

typedef struct rk_ledger rk_ledger;

RK_API rk_ledger *rk_ledger_new(const rk_ledger_options *options); /* NULL: out of memory */
RK_API void rk_ledger_free(rk_ledger *ledger);
RK_API uint64_t rk_ledger_new_handle(rk_ledger *ledger); /* 1, 2, …; never the same twice */

/* Any thread, all of them. `fx` is appended to, never cleared here. An unknown handle is ignored. */

/* 0 (see the verdict), or -ENOMEM: nothing was changed. */
RK_API int rk_ledger_arrive(rk_ledger *ledger, uint64_t now, const rk_leg_spec *spec, rk_verdict *verdict,
                            rk_effects *fx) RK_MUST_CHECK;
/* A leg with this room has been refused before it came here (the worker drains, its engine stalls): its twin
 * is told, now or when it is announced. `linked` and `peer` as in rk_leg_spec. */
RK_API void rk_ledger_turned_away(rk_ledger *ledger, uint64_t now, const rk_room *room, bool linked,
                                  uint32_t peer, rk_cause cause, rk_effects *fx);
/* Before the engine gets an admitted leg: 0, and it is SUBMITTED; -ECANCELED: it has ended, do not submit. */
RK_API int rk_ledger_begin_submit(rk_ledger *ledger, uint64_t now, uint64_t handle,
                                  rk_effects *fx) RK_MUST_CHECK;
/* The engine would not take it: as if it was never submitted. Frees its slots, ends it UNAVAILABLE. */
RK_API void rk_ledger_submit_failed(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx);
/* The first output of the leg. Later ones need not be told. */
RK_API void rk_ledger_first_output(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx);
/* The engine's last output of one choice: its slot is free. With the last choice the leg is ENDED (no
 * RK_FX_END: the caller writes the ending). `cause`: COMPLETED or ENGINE_ERROR. Told also for a leg that has
 * already ended, since its slots may be RELEASING. */
RK_API void rk_ledger_finished(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice,
                               rk_cause cause, rk_effects *fx);
/* The client is gone, reads too slowly, or the engine failed the whole leg. The caller ends the wire itself:
 * no RK_FX_END comes back. */
RK_API void rk_ledger_cancel(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_cause cause,
                             rk_effects *fx);
/* The Abort RPC, by wire name, or by a child's wire name "<id>-n<digits>". Ends the legs by RK_FX_END
 * (code OK, cause ABORT_RPC: a Complete with finish_reason abort) or RK_FX_END_CHOICE. Returns how many
 * engine requests it hit; 0: not found. */
RK_API uint32_t rk_ledger_abort(rk_ledger *ledger, uint64_t now, const char *request_id, size_t bytes,
                                rk_effects *fx);
/* The engine has taken the abort. Frees the slot of a choice that was running (handed off) or aggregated. */
RK_API void rk_ledger_aborted(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice,
                              rk_effects *fx);
/* The engine holds nothing of this leg any more (release agent, or proof that the writers are gone). */
RK_API void rk_ledger_slot_released(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx);

/* Room link. `room` as the twin's worker names it, `peer` that worker. False: refused, since the room is
 * another peer's, or nothing more is remembered for this one, or it is not up (peer 0 always is). */
RK_API bool rk_ledger_twin_announced(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                                     rk_effects *fx);
RK_API bool rk_ledger_twin_admitted(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                                    rk_effects *fx);
/* The decode has its KV: whatever happens to its worker now, the prefill is not disturbed. */
RK_API bool rk_ledger_twin_handed_off(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                                      rk_effects *fx);
RK_API bool rk_ledger_twin_ended(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                                 rk_cause cause, bool ever_submitted, rk_effects *fx);
RK_API bool rk_ledger_twin_quiesced(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                                    rk_effects *fx);

/* The link itself. A peer begins absent: legs that name it are served unlinked.
 * Expected: a link is being opened; decode legs that name the peer count as linked from now on. */
RK_API void rk_ledger_peer_expected(rk_ledger *ledger, uint32_t peer);
/* The link is up: all that the other side must know of this peer's rooms is told, again or for the first
 * time. */
RK_API void rk_ledger_peer_up(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx);
/* It is gone, or the engine behind it stalls: legs that are not handed off end now. Expected from now on. */
RK_API void rk_ledger_peer_lost(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx);
/* Nobody speaks the link there: its legs go on unlinked. */
RK_API void rk_ledger_peer_absent(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx);
/* The peers are one worker with two names: legs of `from` are `to`'s from now on, and are told if that is up.
 */
RK_API void rk_ledger_peer_folded(rk_ledger *ledger, uint64_t now, uint32_t from, uint32_t to,
                                  rk_effects *fx);
/* Proof that nothing of the worker that was linked last can write any more: slots of ended legs are released.
 */
RK_API void rk_ledger_writers_gone(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx);
/* Nothing of a prefill runs where the peer was, linked or not: so this holds for every ended leg that names
 * it. */
RK_API void rk_ledger_nobody_there(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx);
/* With options.tells_apart: what twins are to be told, in order; one thread at a time. `more` as elsewhere:
 * call again. */
RK_API void rk_ledger_take_tells(rk_ledger *ledger, rk_effects *fx);

/* Whether decodes can announce rooms here at all (options.linked), before the first leg arrives. */
RK_API void rk_ledger_set_linked(rk_ledger *ledger, bool linked);
/* A link to some decode lives: held legs may still be announced. Announcements count too; the link calls this
 * with its heartbeats. */
RK_API void rk_ledger_link_seen(rk_ledger *ledger, uint64_t now);

/* Refuse what waits or is held (UNAVAILABLE, RK_CAUSE_DRAIN) and everything that arrives from now on. */
RK_API void rk_ledger_drain(rk_ledger *ledger, uint64_t now, rk_effects *fx);
/* Ends every live leg with `cause` (ENGINE_DEAD: UNAVAILABLE; DRAIN: the drain is over). With ENGINE_DEAD
 * all slots are FREE at once. */
RK_API void rk_ledger_end_all(rk_ledger *ledger, uint64_t now, rk_cause cause, rk_effects *fx);

/* Nothing has been heard of the engine for so long that nobody waits for it any more (UNAVAILABLE,
 * ENGINE_DEAD). It may come back with all that it had: slots are RELEASING, and the aborts wait for it. */
RK_API void rk_ledger_engine_silent(rk_ledger *ledger, uint64_t now, rk_effects *fx);

/* Deadlines that have passed by `now`. */
RK_API void rk_ledger_tick(rk_ledger *ledger, uint64_t now, rk_effects *fx);
/* When the next tick is due; UINT64_MAX: nothing is. */
RK_API uint64_t rk_ledger_next_deadline(rk_ledger *ledger);
/* Goes on where a full effects list stopped. */
RK_API void rk_ledger_pump(rk_ledger *ledger, uint64_t now, rk_effects *fx);

/* The numbers of one rank. */
typedef struct rk_rank_counts {
    uint32_t window;        /* 0: not gated */
    uint32_t held_slots;    /* slots of live legs */
    uint32_t releasing;     /* slots the engine has not let go of */
    uint32_t waiting;       /* legs in line */
    uint32_t waiting_slots; /* slots that they ask for */
    uint32_t running;       /* choices submitted to the engine and not over; also when not gated */
    uint64_t claimed_tokens;
    uint64_t kv_tokens;           /* 0: not gated */
    uint64_t oldest_releasing_ms; /* age of the oldest RELEASING slot; 0: none */
    uint64_t oldest_waiting_ms;
} rk_rank_counts;

/* How long something took: observations by upper bound (rk_histogram_bounds_ms), each counted in its own
 * bucket; the last bucket has no bound. */
#define RK_HISTOGRAM_BUCKETS 16
typedef struct rk_histogram {
    uint64_t buckets[RK_HISTOGRAM_BUCKETS];
    uint64_t count;
    uint64_t sum_ms;
} rk_histogram;

/* Upper bounds of all buckets but the last, in ms, ascending. */
RK_API const uint32_t *rk_histogram_bounds_ms(void);

typedef struct rk_ledger_counts {
    uint32_t legs[RK_LEG_STATES]; /* live legs by state; ENDED: those with RELEASING slots */
    uint32_t held;                /* prefill legs held now */
    uint32_t tombstones;
    uint32_t announced;
    uint64_t arrived; /* since start */
    uint64_t admitted;
    uint64_t refused[RK_CAUSES]; /* refused at arrival, by cause */
    uint64_t ended[RK_CAUSES];   /* legs ended, by cause */
    uint64_t stranded;           /* ended because of the twin or its worker */
    uint64_t tombstones_dropped;
    uint64_t announced_dropped;
    rk_histogram waits;    /* from arrival to admission */
    rk_histogram handoffs; /* from submission to the first output */
    rk_histogram releases; /* from a leg's end until the engine has let go of its last slot */
    bool draining;
} rk_ledger_counts;

RK_API void rk_ledger_read(rk_ledger *ledger, rk_ledger_counts *counts);
/* Fills at most `max` ranks; returns how many ranks there are. */
RK_API uint32_t rk_ledger_read_ranks(rk_ledger *ledger, uint64_t now, rk_rank_counts *ranks, uint32_t max);

#endif
