/* What the twin's worker says over the room link, as events of the state machine, and what it is told of
 * rooms that have no leg here.
 *
 * A decode's slot may be given away only when no prefill can still write into its pages: the prefill was
 * never submitted, or has said QUIESCED. Until then the leg may be over on the wire, the slot is not. */
#include <stdlib.h>

#include "rooms/ledger.h"

static rk_leg *leg_of(const rk_ledger *ledger, const rk_room *room) {
    uint8_t key[RK_ROOM_KEY_MAX];
    return rk_bmap_get(ledger->by_room, key, rk_room_key(room, key));
}

static void link_seen(rk_ledger *ledger, uint64_t now) {
    ledger->link_seen = now;
    ledger->link_known = true;
    ledger->unannounced = 0;
}

void rk_ledger_link_seen(rk_ledger *ledger, uint64_t now) {
    rk_ledger_enter(ledger);
    link_seen(ledger, now);
    (void)pthread_mutex_unlock(&ledger->lock);
}

/* ---- rooms without a leg ---- */

void rk_tell_room(rk_ledger *ledger, uint32_t peer, const rk_room *room, unsigned what, rk_cause cause) {
    rk_leg *bearer = calloc(1, sizeof *bearer);
    if (!bearer)
        return;
    bearer->room = *room;
    bearer->peer = peer;
    bearer->cause = cause;
    bearer->gone = true;
    rk_list_init(&bearer->pending);
    rk_list_init(&bearer->telling);
    rk_todo(ledger, bearer, what);
}

void rk_remember_end(rk_ledger *ledger, const rk_leg *leg, uint64_t now) {
    if (!ledger->options.linked || leg->twin_seen)
        return;
    rk_note *stone = rk_notes_add(&ledger->tombstones, 0, &leg->room, now);
    if (!stone)
        return;
    stone->own = true;
    stone->cause = leg->cause;
}

/* A decode's leg ends, and goes, while the link to its peer is not up: the peer is told when it is. */
void rk_remember_untold(rk_ledger *ledger, const rk_leg *leg, uint64_t now) {
    bool unheard = leg->linked && leg->peer != 0 && ledger->peers[leg->peer] == RK_PEER_EXPECTED;
    if (!unheard || ledger->options.role != RK_ROLE_DECODE || rk_submitted(leg))
        return;
    rk_note *stone = rk_notes_add(&ledger->tombstones, leg->peer, &leg->room, now);
    if (!stone)
        return;
    stone->own = true;
    stone->cause = leg->cause;
}

void rk_tell_untold(rk_ledger *ledger, uint32_t peer) {
    rk_list *list = &ledger->tombstones.list;
    for (rk_list *node = list->next; node != list && peer != 0;) {
        rk_note *stone = RK_CONTAINER(node, rk_note, link);
        node = node->next;
        if (!stone->own || stone->peer != peer)
            continue;
        rk_tell_room(ledger, peer, &stone->room, RK_TODO_TELL_ENDED, stone->cause);
        rk_notes_remove(&ledger->tombstones, stone);
    }
}

void rk_tell_refusal(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    if (!leg->paired || !ledger->options.enabled)
        return;
    rk_note *note = rk_notes_find(&ledger->announced, &leg->room);
    if (note) {
        leg->linked = true;
        leg->twin_seen = true;
        leg->peer = note->peer;
        rk_notes_remove(&ledger->announced, note);
    }
    rk_tell(ledger, leg, RK_TODO_TELL_ENDED);
    rk_remember_untold(ledger, leg, now);
    if (ledger->options.role == RK_ROLE_PREFILL) {
        rk_todo(ledger, leg, RK_TODO_RELEASE_ROOM);
        rk_remember_end(ledger, leg, now);
    }
}

/* ---- the twin is there ---- */

void rk_tell_state(rk_ledger *ledger, rk_leg *leg) {
    bool prefill = ledger->options.role == RK_ROLE_PREFILL;
    unsigned what = RK_TODO_TELL_OPENED;
    if (leg->state == RK_LEG_ENDED)
        what = RK_TODO_TELL_ENDED;
    else if (prefill && rk_submitted(leg))
        what |= RK_TODO_TELL_SUBMITTED;
    else if (!prefill && leg->state == RK_LEG_HANDED_OFF)
        what |= RK_TODO_TELL_ADMITTED | RK_TODO_TELL_HANDED_OFF;
    else if (!prefill && leg->state != RK_LEG_WAITING)
        what |= RK_TODO_TELL_ADMITTED;
    rk_todo(ledger, leg, what);
}

static void meet(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    if (leg->twin_seen)
        return;
    leg->twin_seen = true;
    if (!leg->linked) {
        leg->linked = true;
        leg->bound = true;
        leg->peer = peer;
        rk_tell_state(ledger, leg);
    }
    if (leg->state == RK_LEG_HELD) {
        rk_timer_set(ledger, leg, RK_TIMER_HELD, now);
        ledger->mistrust -= ledger->mistrust > 0 ? 1 : 0;
    } else if (leg->state == RK_LEG_ADMITTED || leg->state == RK_LEG_SUBMITTED)
        rk_timer_stop(leg); /* no longer missing */
}

/* A room whose two legs have both been here may be used again. */
static void forget_stone(rk_ledger *ledger, const rk_room *room) {
    rk_note *stone = rk_notes_find(&ledger->tombstones, room);
    if (stone)
        rk_notes_remove(&ledger->tombstones, stone);
}

/* A room of which there is no leg here: not yet, or no more. False: not remembered. */
static bool note_announced(rk_ledger *ledger, uint32_t peer, const rk_room *room, uint64_t now,
                           bool admitted) {
    rk_note *stone = rk_notes_find(&ledger->tombstones, room);
    if (stone) {
        bool own = stone->own;
        rk_cause cause = stone->cause;
        if (!own && stone->peer != peer)
            return false;
        rk_notes_remove(&ledger->tombstones, stone);
        if (own) {
            rk_tell_room(ledger, peer, room, RK_TODO_TELL_ENDED, cause);
            return true;
        }
    }
    rk_note *note = rk_notes_add(&ledger->announced, peer, room, now);
    if (!note || note->peer != peer)
        return false;
    note->admitted |= admitted;
    return true;
}

/* Is the room another peer's? One of which no peer has spoken is anybody's. */
static bool is_others(const rk_leg *leg, uint32_t peer) {
    return leg->linked && leg->peer != peer;
}

/* Does this peer have a say? Nothing that it said before it was lost counts afterwards. */
static bool may_speak(const rk_ledger *ledger, uint32_t peer) {
    return ledger->options.enabled && peer < ledger->options.peers &&
           (peer == 0 || ledger->peers[peer] == RK_PEER_UP);
}

static bool twin_is_there(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                          bool admitted) {
    if (!may_speak(ledger, peer))
        return false;
    link_seen(ledger, now);
    rk_leg *leg = leg_of(ledger, room);
    if (!leg)
        return note_announced(ledger, peer, room, now, admitted);
    if (is_others(leg, peer))
        return false;
    meet(ledger, leg, peer, now);
    forget_stone(ledger, room);
    if (admitted && leg->state == RK_LEG_HELD)
        rk_admit(ledger, leg, now);
    return true;
}

bool rk_ledger_twin_announced(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                              rk_effects *fx) {
    rk_ledger_enter(ledger);
    bool taken = twin_is_there(ledger, now, peer, room, false);
    rk_ledger_leave(ledger, fx);
    return taken;
}

bool rk_ledger_twin_admitted(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                             rk_effects *fx) {
    rk_ledger_enter(ledger);
    bool taken = twin_is_there(ledger, now, peer, room, true);
    rk_ledger_leave(ledger, fx);
    return taken;
}

bool rk_ledger_twin_handed_off(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                               rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = leg_of(ledger, room); /* most often it has ended before this is said */
    bool taken = may_speak(ledger, peer) && (!leg || !is_others(leg, peer));
    if (leg && taken) {
        meet(ledger, leg, peer, now);
        leg->twin_handed_off = rk_submitted(leg);
    }
    rk_ledger_leave(ledger, fx);
    return taken;
}

/* ---- the twin has ended ---- */

void rk_release_room(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    if (leg->release_asked || leg->handed_off)
        return;
    leg->release_asked = true;
    rk_abort_engine(ledger, leg);
    rk_todo(ledger, leg, RK_TODO_RELEASE_ROOM);
    rk_timer_set(ledger, leg, RK_TIMER_RELEASE, now); /* no output can come any more */
}

static void twin_code(rk_leg *leg, rk_cause cause) {
    leg->twin_cause = cause;
    leg->code = rk_twin_code(cause, &leg->retry);
}

static void decode_twin_ended(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause,
                              bool ever_submitted) {
    if (leg->handed_off)
        return;
    bool had = rk_submitted(leg);
    leg->twin_seen = true;
    leg->twin_over = true;
    if (cause == RK_CAUSE_COMPLETED) { /* the KV has gone out: the same as a handoff */
        if (had)
            rk_hand_off(ledger, leg, now);
        return;
    }
    if (leg->state != RK_LEG_ENDED) {
        twin_code(leg, cause);
        rk_end(ledger, leg, now, RK_CAUSE_TWIN_ENDED, RK_STOP_LATER, true); /* not `had`: it is gone now */
    }
    if (had && !ever_submitted)
        rk_release_room(ledger, leg, now);
}

static void prefill_twin_ended(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now, rk_cause cause) {
    leg->twin_over = true;
    forget_stone(ledger, &leg->room);
    if (leg->state == RK_LEG_ENDED && !leg->linked) { /* its decode waits to hear that it is quiet */
        leg->linked = true;
        leg->bound = true;
        leg->peer = peer;
    }
    if (cause == RK_CAUSE_COMPLETED || leg->state == RK_LEG_ENDED || leg->state == RK_LEG_HANDED_OFF ||
        leg->twin_handed_off)
        return;
    leg->twin_seen = true;
    leg->linked = true;
    leg->peer = peer;
    twin_code(leg, cause);
    rk_end(ledger, leg, now, RK_CAUSE_TWIN_ENDED, RK_STOP_ABORT, true);
}

/* A tombstone for the leg that may come late. False: not remembered. */
static bool bury(rk_ledger *ledger, uint32_t peer, const rk_room *room, uint64_t now, rk_cause cause) {
    rk_note *stone = rk_notes_add(&ledger->tombstones, peer, room, now);
    if (stone)
        stone->cause = cause;
    return stone != NULL;
}

/* It ended before our leg came, or after it went. An end *because we ended* is the latter: the room has had
 * both its legs. A decode that waits for its prefill's quiet is told that there is none: the stone keeps it
 * so. */
static bool legless_twin_ended(rk_ledger *ledger, uint32_t peer, const rk_room *room, uint64_t now,
                               rk_cause cause) {
    rk_note *announced = rk_notes_find(&ledger->announced, room);
    if (announced && announced->peer != peer)
        return false;
    if (announced)
        rk_notes_remove(&ledger->announced, announced);
    if (cause == RK_CAUSE_COMPLETED)
        return true;
    rk_note *stone = rk_notes_find(&ledger->tombstones, room);
    bool both_were_here = cause == RK_CAUSE_TWIN_ENDED || (stone && stone->own);
    if (both_were_here)
        forget_stone(ledger, room);
    else if (!bury(ledger, peer, room, now, cause))
        return false; /* a leg that comes late would run: nothing can be promised */
    if (ledger->options.role == RK_ROLE_PREFILL && !ledger->engine_gone) /* else no leg is no proof */
        rk_tell_room(ledger, peer, room, RK_TODO_TELL_QUIESCED, cause);
    return true;
}

static bool twin_ended(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room, rk_cause cause,
                       bool ever_submitted) {
    if (!may_speak(ledger, peer))
        return false;
    rk_leg *leg = leg_of(ledger, room);
    if (!leg)
        return legless_twin_ended(ledger, peer, room, now, cause);
    if (is_others(leg, peer))
        return false;
    if (ledger->options.role == RK_ROLE_DECODE)
        decode_twin_ended(ledger, leg, now, cause, ever_submitted);
    else
        prefill_twin_ended(ledger, leg, peer, now, cause);
    return true;
}

bool rk_ledger_twin_ended(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room, rk_cause cause,
                          bool ever_submitted, rk_effects *fx) {
    rk_ledger_enter(ledger);
    bool taken = twin_ended(ledger, now, peer, room, cause, ever_submitted);
    rk_ledger_leave(ledger, fx);
    return taken;
}

bool rk_ledger_twin_quiesced(rk_ledger *ledger, uint64_t now, uint32_t peer, const rk_room *room,
                             rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = leg_of(ledger, room);
    bool taken = may_speak(ledger, peer) && (!leg || !is_others(leg, peer));
    if (leg && taken && ledger->options.role == RK_ROLE_DECODE && leg->state == RK_LEG_ENDED)
        rk_release_room(ledger, leg, now);
    rk_ledger_leave(ledger, fx);
    return taken;
}
