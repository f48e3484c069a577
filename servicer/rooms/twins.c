/* What the twin's worker says over the room link, as events of the state machine.
 *
 * A decode's slot may be given away only when no prefill can still write into its pages: the prefill was
 * never submitted, or has said QUIESCED. Until then the leg may be over on the wire, the slot is not. */
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

static void end(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    (void)now;
    rk_flush(ledger, fx);
    rk_ledger_check_locked(ledger);
    (void)pthread_mutex_unlock(&ledger->lock);
}

static void announce(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    leg->twin_seen = true;
    if (!leg->linked) {
        leg->linked = true;
        rk_todo(ledger, leg, RK_TODO_TELL_OPENED);
    }
    if (leg->state == RK_LEG_HELD)
        rk_timer_set(ledger, leg, RK_TIMER_HELD, now);
    else if (ledger->options.role == RK_ROLE_DECODE && leg->state != RK_LEG_WAITING &&
             leg->state != RK_LEG_ENDED)
        rk_timer_stop(leg); /* the twin is there: no longer missing */
}

void rk_ledger_twin_announced(rk_ledger *ledger, uint64_t now, const rk_room *room, rk_effects *fx) {
    (void)pthread_mutex_lock(&ledger->lock);
    link_seen(ledger, now);
    rk_leg *leg = leg_of(ledger, room);
    if (!leg)
        (void)rk_notes_add(&ledger->announced, room, now, &ledger->counts.tombstones_dropped);
    else if (!leg->twin_seen && leg->state != RK_LEG_ENDED)
        announce(ledger, leg, now);
    end(ledger, now, fx);
}

void rk_ledger_twin_admitted(rk_ledger *ledger, uint64_t now, const rk_room *room, rk_effects *fx) {
    (void)pthread_mutex_lock(&ledger->lock);
    link_seen(ledger, now);
    rk_leg *leg = leg_of(ledger, room);
    if (!leg) {
        rk_note *note = rk_notes_add(&ledger->announced, room, now, &ledger->counts.tombstones_dropped);
        if (note)
            note->admitted = true;
    } else if (leg->state == RK_LEG_HELD) {
        if (!leg->twin_seen)
            announce(ledger, leg, now);
        rk_admit(ledger, leg, now);
    }
    end(ledger, now, fx);
}

/* The decode's slot may go: nobody writes into its pages any more. */
static void release_room(rk_ledger *ledger, rk_leg *leg) {
    rk_timer_stop(leg); /* no need to wait for an output that cannot come */
    rk_abort_engine(ledger, leg);
    rk_todo(ledger, leg, RK_TODO_RELEASE_ROOM);
}

static void twin_code(rk_leg *leg, rk_cause cause) {
    leg->twin_cause = cause;
    leg->code = rk_twin_code(cause, &leg->retry);
}

static void decode_twin_ended(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause,
                              bool ever_submitted) {
    leg->twin_seen = true;
    if (cause == RK_CAUSE_COMPLETED) { /* the KV has gone out: the same as a handoff */
        leg->handed_off = true;
        if (leg->state == RK_LEG_SUBMITTED)
            rk_timer_stop(leg);
        return;
    }
    if (leg->state == RK_LEG_HANDED_OFF || leg->handed_off)
        return;
    bool had = rk_submitted(leg);
    if (leg->state != RK_LEG_ENDED) {
        twin_code(leg, cause);
        rk_end(ledger, leg, now, RK_CAUSE_TWIN_ENDED, RK_STOP_LATER, true);
    }
    if (had && !ever_submitted)
        release_room(ledger, leg);
}

static void prefill_twin_ended(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause) {
    if (cause == RK_CAUSE_COMPLETED || leg->state == RK_LEG_ENDED || leg->state == RK_LEG_HANDED_OFF)
        return;
    bool had = rk_submitted(leg);
    twin_code(leg, cause);
    if (had)
        rk_todo(ledger, leg, RK_TODO_RELEASE_ROOM); /* the engine's abort_room: the writer stops */
    rk_end(ledger, leg, now, RK_CAUSE_TWIN_ENDED, RK_STOP_ABORT, true);
}

void rk_ledger_twin_ended(rk_ledger *ledger, uint64_t now, const rk_room *room, rk_cause cause,
                          bool ever_submitted, rk_effects *fx) {
    (void)pthread_mutex_lock(&ledger->lock);
    rk_leg *leg = leg_of(ledger, room);
    if (leg && ledger->options.role == RK_ROLE_DECODE) {
        decode_twin_ended(ledger, leg, now, cause, ever_submitted);
    } else if (leg) {
        prefill_twin_ended(ledger, leg, now, cause);
    } else {
        rk_note *announced = rk_notes_find(&ledger->announced, room);
        if (announced)
            rk_notes_remove(&ledger->announced, announced);
        rk_note *stone = cause == RK_CAUSE_COMPLETED ? NULL
                                                     : rk_notes_add(&ledger->tombstones, room, now,
                                                                    &ledger->counts.tombstones_dropped);
        if (stone)
            stone->cause = cause;
    }
    end(ledger, now, fx);
}

void rk_ledger_twin_quiesced(rk_ledger *ledger, uint64_t now, const rk_room *room, rk_effects *fx) {
    (void)pthread_mutex_lock(&ledger->lock);
    rk_leg *leg = leg_of(ledger, room);
    if (leg && ledger->options.role == RK_ROLE_DECODE && leg->state == RK_LEG_ENDED)
        release_room(ledger, leg);
    end(ledger, now, fx);
}
