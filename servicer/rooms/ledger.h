/* The ledger's inside, shared by the files of this folder. See README.md for the idea.
 *
 * Everything is guarded by rk_ledger.lock; functions here are called with it held. What is to be done outside
 * is noted on the leg (`todo`), in `ledger->pending`, and copied into the caller's effects by rk_flush at the
 * end of every operation, so that no effect depends on how much room the caller's list had.
 */
#ifndef RK_ROOMS_LEDGER_H
#define RK_ROOMS_LEDGER_H

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/list.h"
#include "base/map.h"
#include "roomkeeper/rooms.h"

/* A held prefill leg outlives its decode's wait by this much, so that the decode's answer comes first. */
#define RK_HELD_MARGIN_MS 5000u
/* No link for so long, and so many legs in a row unannounced: nobody announces here, do not hold. */
#define RK_LINK_GONE_MS 30000u
#define RK_UNANNOUNCED_MAX 8u
/* While decodes are linked and all of the last legs were announced, the next one's announcement is only late:
 * it is waited for so many announce times more. One leg that nobody announced in the end, and so many must
 * have been announced before that is believed again: part of the fleet does not speak the link. */
#define RK_PATIENCE_MAX 3u
#define RK_MISTRUST_LEGS 64u

/* What a choice of a leg is to the engine. */
enum {
    RK_CHOICE_CLAIMED = 1u << 0,   /* holds a slot (HELD, or RELEASING once the choice is over) */
    RK_CHOICE_RELEASING = 1u << 1, /* over for the client, the engine has not let go */
    RK_CHOICE_RUNNING = 1u << 2,   /* handed to the engine, which has not let go */
    RK_CHOICE_ABORTED = 1u << 3,   /* its engine abort has been ordered: never a second one */
    RK_CHOICE_ENDED = 1u << 4,     /* aborted by its own name: over for the client */
    RK_CHOICE_ABORT_DUE = 1u << 5, /* an abort of just this choice is pending */
    RK_CHOICE_END_DUE = 1u << 6,   /* an RK_FX_END_CHOICE is pending */
};

/* What is to be done for a leg, in the order in which it is done. */
enum {
    RK_TODO_OPEN = 1u << 0,
    RK_TODO_TELL_OPENED = 1u << 1,
    RK_TODO_ADMIT = 1u << 2,
    RK_TODO_TELL_ADMITTED = 1u << 3,
    RK_TODO_TELL_SUBMITTED = 1u << 4,
    RK_TODO_TELL_HANDED_OFF = 1u << 5,
    RK_TODO_END = 1u << 6,
    RK_TODO_CHOICES = 1u << 7, /* some choice has _DUE bits */
    RK_TODO_ABORT_ALL = 1u << 8,
    RK_TODO_RELEASE_ROOM = 1u << 9,
    RK_TODO_TELL_ENDED = 1u << 10,
    RK_TODO_TELL_QUIESCED = 1u << 11,
};

#define RK_TELLS                                                                                             \
    (RK_TODO_TELL_OPENED | RK_TODO_TELL_ADMITTED | RK_TODO_TELL_SUBMITTED | RK_TODO_TELL_HANDED_OFF |        \
     RK_TODO_TELL_ENDED | RK_TODO_TELL_QUIESCED)

/* What a peer is to legs that name it. */
typedef enum rk_peer_state { RK_PEER_ABSENT, RK_PEER_EXPECTED, RK_PEER_UP } rk_peer_state;

typedef enum rk_timer {
    RK_TIMER_WAIT,     /* WAITING: wait_ms */
    RK_TIMER_ANNOUNCE, /* HELD, not announced: announce_ms */
    RK_TIMER_HELD,     /* HELD, announced: wait_ms + margin */
    RK_TIMER_TWIN,     /* a linked decode whose twin has not been seen: twin_ms */
    RK_TIMER_HANDOFF,  /* ended before the handoff, the engine not told yet: handoff_ms */
    RK_TIMER_RELEASE,  /* ended, the engine has been told or must not be yet: transfer_ms */
    RK_TIMERS,
} rk_timer;

typedef struct rk_leg {
    uint64_t handle;
    rk_list all;           /* in ledger->legs */
    rk_list line;          /* in its rank's line while WAITING */
    rk_list timer;         /* in ledger->timers[…]: at most one at a time */
    rk_list transfer;      /* in ledger->transfers from submission until handoff or release */
    rk_list releasing;     /* in its rank's releasing list while some slot is RELEASING */
    rk_list pending;       /* in ledger->pending while `todo` is not 0 */
    rk_list telling;       /* in ledger->tells while `tells` is not 0 */
    uint64_t due;          /* of `timer`, ms */
    uint64_t transfer_due; /* of `transfer`, ms */
    uint64_t arrived;      /* ms */
    uint64_t submitted_at; /* ms */
    uint64_t released_at;  /* when the first slot went RELEASING, ms */
    rk_leg_state state;
    uint32_t rank;
    bool pinned;          /* the client chose the rank */
    bool paired;          /* a decode or prefill leg with a real room */
    bool linked;          /* the twin's worker is told of this leg */
    bool twin_seen;       /* the twin has been announced */
    bool twin_over;       /* the twin has said that it has ended */
    bool twin_handed_off; /* prefill: the decode has said that it has the KV */
    uint8_t patience;     /* prefill: announce times waited for already, beyond the first */
    bool bound;           /* the twin's worker has been told of it while the link was up */
    uint32_t peer;        /* the twin's worker; meaningful once linked */
    bool ever_submitted;
    bool handed_off;      /* stays true after the end */
    bool release_asked;   /* the release agent has been asked to end the room: not a second time */
    bool gone;            /* out of all maps; freed when nothing is pending */
    bool in_ids;          /* by_id[request_id] is this leg: the newest life of its id */
    bool charged;         /* an Abort that came for the id has been counted against this ended life */
    struct rk_leg *older; /* the life of the same id before this one, while the engine has not let go of it */
    struct rk_leg *newer; /* and the one after */
    uint32_t n;
    uint32_t open;        /* choices that are neither finished nor released */
    uint64_t tokens_each; /* KV tokens claimed per choice */
    unsigned todo;
    unsigned tells; /* the RK_TELLS among what is to be done, when they are kept apart */
    rk_cause cause; /* of the end */
    rk_cause twin_cause;
    rk_code code;
    bool retry;
    bool has_room;
    rk_room room;
    char *request_id; /* behind `choices`, in the same block */
    size_t request_id_bytes;
    uint8_t choices[]; /* n of them: RK_CHOICE_… */
} rk_leg;

typedef struct rk_rank {
    rk_list line;      /* rk_leg.line, first come first */
    rk_list releasing; /* rk_leg.releasing, oldest first */
    uint32_t held_slots;
    uint32_t releasing_slots;
    uint32_t waiting;
    uint32_t waiting_slots;
    uint32_t running;
    uint64_t
        load; /* choices of its legs, from arrival until the engine has let go: what ranks are chosen by */
    uint64_t claimed_tokens;
} rk_rank;

/* A room we know of without a leg: announced, or dead (a tombstone). */
typedef struct rk_note {
    rk_list link; /* oldest first */
    rk_room room;
    uint64_t due;
    bool admitted;  /* announced: the twin has been admitted */
    bool own;       /* tombstone: it was our leg that ended, before its twin was announced */
    rk_cause cause; /* tombstone: why it ended */
    uint32_t
        peer; /* who announced it or said that it ended; of our own: who is to be told, 0: whoever asks */
} rk_note;

typedef struct rk_notes {
    rk_bmap *by_room;
    rk_list list;
    uint32_t count;
    uint32_t max;
    uint64_t keep_ms;
    uint64_t dropped;  /* oldest ones that had to go, since start */
    uint32_t *of_peer; /* how many are whose, by peer */
    uint32_t peers;
    uint32_t peer_max; /* 0: no limit; peer 0, which is also us, has none */
} rk_notes;

struct rk_ledger {
    pthread_mutex_t lock;
    rk_ledger_options options;
    uint64_t next_handle;
    rk_map *by_handle;
    rk_bmap *by_id;   /* the newest leg of an id, also while it is ending */
    rk_bmap *by_room; /* legs with a room, until the engine has let go */
    rk_list legs;
    rk_list timers[RK_TIMERS];
    rk_list transfers;
    rk_list pending;
    rk_list tells;
    uint8_t *peers; /* rk_peer_state of each */
    uint32_t peers_up;
    rk_rank *ranks;
    rk_notes tombstones;
    rk_notes announced;
    uint32_t held;        /* legs in HELD */
    bool engine_gone;     /* its process has ended; those of its schedulers may write on */
    uint64_t link_seen;   /* last sign of a link, ms; starts with the first arrival */
    bool link_known;      /* link_seen has a value */
    uint32_t unannounced; /* legs in a row that nobody announced */
    uint32_t mistrust;    /* legs to be announced before another is waited for patiently */
    rk_ledger_counts counts;
};

/* ---- ledger.c ---- */

void rk_ledger_enter(rk_ledger *ledger);
/* Copies out what is to be done and lets go of the lock. */
void rk_ledger_leave(rk_ledger *ledger, rk_effects *fx);
rk_leg *rk_ledger_find(const rk_ledger *ledger, uint64_t handle);

/* ---- leg.c: the life of a leg and of its slots ---- */

bool rk_gated(const rk_ledger *ledger);
void rk_set_state(rk_ledger *ledger, rk_leg *leg, rk_leg_state state);
void rk_todo(rk_ledger *ledger, rk_leg *leg, unsigned what);
void rk_tell(rk_ledger *ledger, rk_leg *leg, unsigned what); /* only if linked */
void rk_untodo(rk_leg *leg, unsigned what);                  /* what makes no sense any more */
/* Frees a leg that is in no map any more, once nothing of it is pending. */
void rk_free_if_gone(rk_leg *leg);
bool rk_fits(const rk_ledger *ledger, const rk_rank *rank, const rk_leg *leg);
/* Claims and admits; the leg is in no line any more. */
void rk_admit(rk_ledger *ledger, rk_leg *leg, uint64_t now);
/* Admits from the head of the rank's line while they fit. */
void rk_admit_line(rk_ledger *ledger, rk_rank *rank, uint64_t now);
/* A leg that is in the maps joins its rank. */
void rk_join_rank(rk_ledger *ledger, rk_leg *leg);
void rk_wait_in_line(rk_ledger *ledger, rk_leg *leg, uint64_t now);
/* Has the engine said so, or has it only had the time for it? */
typedef enum rk_proof { RK_PROOF, RK_NO_PROOF } rk_proof;
/* The engine has let go of one choice, or of all. Frees slots, admits who waits; may drop the leg: true. */
bool rk_free_choice(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now, rk_proof proof);
void rk_free_all(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_proof proof);
/* The KV is here. A leg that has ended meanwhile is aborted now, or free if the engine has had its abort. */
void rk_hand_off(rk_ledger *ledger, rk_leg *leg, uint64_t now);
/* How the engine is to be told when a leg that it has is over. */
typedef enum rk_stop {
    RK_STOP_ABORT, /* abort now */
    RK_STOP_LATER, /* a decode before its handoff: wait for its prefill's quiet, or unlinked for the first
                      output, handoff_ms at most */
    RK_STOP_NONE,  /* it is gone, or has been told */
} rk_stop;
/* Ends a live leg. `wire`: with an RK_FX_END. Unsubmitted: its slots are free at once and it is dropped. */
void rk_end(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause, rk_stop stop, bool wire);
/* Orders what aborts have not been ordered yet: for all choices, or for those ended by their own name. */
void rk_abort_engine(rk_ledger *ledger, rk_leg *leg);
void rk_abort_named(rk_ledger *ledger, rk_leg *leg);
rk_stop rk_stop_of(const rk_ledger *ledger, const rk_leg *leg);
bool rk_submitted(const rk_leg *leg); /* the engine has or had it */
/* A leg whose engine request begins with a KV transfer, during which an abort is only a mark. */
bool rk_waits_for_kv(const rk_ledger *ledger, const rk_leg *leg);
void rk_unlist(rk_ledger *ledger, rk_leg *leg); /* out of all maps; the leg is the caller's */

/* ---- twins.c ---- */

/* Told of a room without a leg of its own; lost when memory is out, as a frame may be. */
void rk_tell_room(rk_ledger *ledger, uint32_t peer, const rk_room *room, unsigned what, rk_cause cause);
/* A prefill leg ends before its twin was announced: whoever announces it is told. */
void rk_remember_end(rk_ledger *ledger, const rk_leg *leg, uint64_t now);
/* A decode's leg that ends while its peer is expected and leaves nothing behind; and what is told of such
 * legs when the peer is up. */
void rk_remember_untold(rk_ledger *ledger, const rk_leg *leg, uint64_t now);
void rk_tell_untold(rk_ledger *ledger, uint32_t peer);
/* A leg refused at arrival: its twin is told, its room ended in a prefill's engine. The leg must be `gone`.
 */
void rk_tell_refusal(rk_ledger *ledger, rk_leg *leg, uint64_t now);

/* What the other end of a link must know of a leg that it has not heard of, or may have forgotten. */
void rk_tell_state(rk_ledger *ledger, rk_leg *leg);
/* The decode's slot may go: nobody writes into its pages any more. */
void rk_release_room(rk_ledger *ledger, rk_leg *leg, uint64_t now);

/* ---- timers.c ---- */

void rk_timer_set(rk_ledger *ledger, rk_leg *leg, rk_timer timer, uint64_t now);
void rk_timer_stop(rk_leg *leg);
void rk_transfer_start(rk_ledger *ledger, rk_leg *leg, uint64_t now);
void rk_tick(rk_ledger *ledger, uint64_t now);

/* ---- notes.c: rooms without a leg ---- */

int rk_notes_init(rk_notes *notes, uint32_t max, uint64_t keep_ms, uint32_t peers, uint32_t peer_max);
void rk_notes_free(rk_notes *notes);
rk_note *rk_notes_find(const rk_notes *notes, const rk_room *room);
/* Makes or finds it. NULL: none are kept, this peer has its share, or out of memory. */
rk_note *rk_notes_add(rk_notes *notes, uint32_t peer, const rk_room *room, uint64_t now);
void rk_notes_remove(rk_notes *notes, rk_note *note);
void rk_notes_expire(rk_notes *notes, uint64_t now);

/* Key bytes of a room: its number alone. Engines know their rooms by that, whatever the bootstrap server is
 * called by a client, so two live legs with one number would meet in one room. Returns the length. */
#define RK_ROOM_KEY_MAX sizeof(int64_t)
size_t rk_room_key(const rk_room *room, uint8_t key[RK_ROOM_KEY_MAX]);

/* ---- effects.c ---- */

/* Copies what is pending into the list, as far as it goes. */
void rk_flush(rk_ledger *ledger, rk_effects *fx);
/* The same for what twins are to be told. */
void rk_flush_tells(rk_ledger *ledger, rk_effects *fx);

/* ---- histogram.c ---- */

void rk_observe(rk_histogram *histogram, uint64_t began, uint64_t now);

/* ---- names.c ---- */

/* The code for the *twin* of a leg that ended by this cause, and whether a retry makes sense. */
rk_code rk_twin_code(rk_cause cause, bool *retry);
bool rk_cause_retry(rk_cause cause);

/* ---- check.c ---- */

/* Asserts the invariants; does nothing in a release build. Lock held. */
void rk_ledger_check_locked(rk_ledger *ledger);
/* For tests: the same with the lock taken. */
void rk_ledger_check(rk_ledger *ledger);

#endif
