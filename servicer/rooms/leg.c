/* The life of a leg, and the other life of its slots.
 *
 * A leg that ends before it was submitted never had a slot in the engine: what it claimed is free in the same
 * instant and goes to the head of the line. One that ends later leaves its slots RELEASING until the engine
 * has let go, choice by choice: by its last output, by an abort it has taken while the choice was running, by
 * the release agent, or at its own transfer deadline.
 */
#include <stdlib.h>

#include "rooms/ledger.h"

bool rk_gated(const rk_ledger *ledger) {
    const rk_ledger_options *o = &ledger->options;
    return o->enabled && o->window > 0 &&
           (o->role == RK_ROLE_DECODE || (o->role == RK_ROLE_NULL && o->gate_aggregated));
}

void rk_set_state(rk_ledger *ledger, rk_leg *leg, rk_leg_state state) {
    ledger->counts.legs[leg->state]--;
    ledger->counts.legs[state]++;
    if (leg->state == RK_LEG_HELD)
        ledger->held--;
    if (state == RK_LEG_HELD)
        ledger->held++;
    leg->state = state;
}

void rk_todo(rk_ledger *ledger, rk_leg *leg, unsigned what) {
    if (leg->todo == 0)
        rk_list_push_back(&ledger->pending, &leg->pending);
    leg->todo |= what;
}

void rk_tell(rk_ledger *ledger, rk_leg *leg, unsigned what) {
    if (leg->linked)
        rk_todo(ledger, leg, what);
}

bool rk_submitted(const rk_leg *leg) {
    return leg->ever_submitted;
}

/* ---- claims ---- */

static uint32_t claimed_slots(const rk_leg *leg) {
    uint32_t slots = 0;
    for (uint32_t i = 0; i < leg->n; i++)
        slots += leg->choices[i] & RK_CHOICE_CLAIMED ? 1 : 0;
    return slots;
}

bool rk_fits(const rk_ledger *ledger, const rk_rank *rank, const rk_leg *leg) {
    const rk_ledger_options *o = &ledger->options;
    uint64_t slots = (uint64_t)rank->held_slots + rank->releasing_slots + leg->n;
    uint64_t tokens = rank->claimed_tokens + leg->tokens_each * leg->n;
    return slots <= o->window && (o->kv_tokens == 0 || tokens <= o->kv_tokens);
}

static void claim(rk_ledger *ledger, rk_leg *leg) {
    if (!rk_gated(ledger))
        return;
    rk_rank *rank = &ledger->ranks[leg->rank];
    for (uint32_t i = 0; i < leg->n; i++)
        leg->choices[i] |= RK_CHOICE_CLAIMED;
    rank->held_slots += leg->n;
    rank->claimed_tokens += leg->tokens_each * leg->n;
}

static void unclaim(rk_ledger *ledger, rk_leg *leg, uint32_t choice) {
    if (!(leg->choices[choice] & RK_CHOICE_CLAIMED))
        return;
    rk_rank *rank = &ledger->ranks[leg->rank];
    if (leg->choices[choice] & RK_CHOICE_RELEASING)
        rank->releasing_slots--;
    else
        rank->held_slots--;
    rank->claimed_tokens -= leg->tokens_each;
    leg->choices[choice] &= (uint8_t) ~(RK_CHOICE_CLAIMED | RK_CHOICE_RELEASING);
}

/* HELD → RELEASING: the client has no more use for it, the engine still has it. */
static void start_releasing(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now) {
    if ((leg->choices[choice] & (RK_CHOICE_CLAIMED | RK_CHOICE_RELEASING)) != RK_CHOICE_CLAIMED)
        return;
    rk_rank *rank = &ledger->ranks[leg->rank];
    leg->choices[choice] |= RK_CHOICE_RELEASING;
    rank->held_slots--;
    rank->releasing_slots++;
    if (!rk_list_linked(&leg->releasing)) {
        leg->released_at = now;
        rk_list_push_back(&rank->releasing, &leg->releasing);
    }
}

/* ---- admission ---- */

void rk_admit(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    claim(ledger, leg);
    rk_timer_stop(leg);
    rk_set_state(ledger, leg, RK_LEG_ADMITTED);
    ledger->counts.admitted++;
    rk_todo(ledger, leg, RK_TODO_ADMIT);
    if (ledger->options.role == RK_ROLE_DECODE) {
        rk_tell(ledger, leg, RK_TODO_TELL_ADMITTED);
        if (leg->linked && !leg->twin_seen)
            rk_timer_set(ledger, leg, RK_TIMER_TWIN, now);
    }
}

static void leave_line(rk_ledger *ledger, rk_leg *leg) {
    if (!rk_list_linked(&leg->line))
        return;
    rk_rank *rank = &ledger->ranks[leg->rank];
    rk_list_remove(&leg->line);
    rank->waiting--;
    rank->waiting_slots -= leg->n;
}

void rk_admit_line(rk_ledger *ledger, rk_rank *rank, uint64_t now) {
    while (!rk_list_empty(&rank->line)) {
        rk_leg *leg = RK_CONTAINER(rank->line.next, rk_leg, line);
        if (!rk_fits(ledger, rank, leg))
            return;
        leave_line(ledger, leg);
        rk_admit(ledger, leg, now);
    }
}

/* ---- the engine lets go ---- */

/* Over for the engine and for the client: nothing is left of it. */
static void drop_if_over(rk_ledger *ledger, rk_leg *leg) {
    if (leg->state == RK_LEG_ENDED && leg->open == 0)
        rk_drop(ledger, leg);
}

static void free_one(rk_ledger *ledger, rk_leg *leg, uint32_t choice) {
    uint8_t *flags = &leg->choices[choice];
    if (*flags & RK_CHOICE_RUNNING) {
        *flags &= (uint8_t)~RK_CHOICE_RUNNING;
        ledger->ranks[leg->rank].running--;
        leg->open--;
    }
    unclaim(ledger, leg, choice);
}

void rk_free_choice(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    free_one(ledger, leg, choice);
    drop_if_over(ledger, leg);
    rk_admit_line(ledger, rank, now);
}

void rk_free_all(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    for (uint32_t i = 0; i < leg->n; i++)
        free_one(ledger, leg, i);
    leg->open = 0;
    drop_if_over(ledger, leg);
    rk_admit_line(ledger, rank, now);
}

/* ---- endings ---- */

rk_stop rk_stop_of(const rk_ledger *ledger, const rk_leg *leg) {
    if (!ledger->options.enabled || ledger->options.role != RK_ROLE_DECODE || !leg->paired || leg->handed_off)
        return RK_STOP_ABORT;
    return RK_STOP_LATER;
}

void rk_abort_engine(rk_ledger *ledger, rk_leg *leg) {
    bool any = false;
    for (uint32_t i = 0; i < leg->n; i++) {
        if ((leg->choices[i] & (RK_CHOICE_RUNNING | RK_CHOICE_ABORTED)) != RK_CHOICE_RUNNING)
            continue;
        leg->choices[i] |= RK_CHOICE_ABORTED | RK_CHOICE_ABORT_DUE;
        any = true;
    }
    if (!any)
        return;
    /* One abort for all is shorter than one a choice, when no choice has had its own. */
    bool all = true;
    for (uint32_t i = 0; i < leg->n; i++)
        all &= (leg->choices[i] & RK_CHOICE_ABORT_DUE) != 0;
    if (all) {
        for (uint32_t i = 0; i < leg->n; i++)
            leg->choices[i] &= (uint8_t)~RK_CHOICE_ABORT_DUE;
        rk_todo(ledger, leg, RK_TODO_ABORT_ALL);
    } else {
        rk_todo(ledger, leg, RK_TODO_CHOICES);
    }
}

static void note_end(rk_ledger *ledger, rk_leg *leg, rk_cause cause) {
    leg->cause = cause;
    if (cause != RK_CAUSE_TWIN_ENDED) { /* whose code follows from the twin's cause: see twins.c */
        leg->code = rk_cause_code(cause);
        leg->retry = rk_cause_retry(cause);
    }
    ledger->counts.ended[cause]++;
    if (cause == RK_CAUSE_TWIN_ENDED || cause == RK_CAUSE_TWIN_MISSING || cause == RK_CAUSE_PEER_LOST)
        ledger->counts.stranded++;
}

void rk_end(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause, rk_stop stop, bool wire) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    note_end(ledger, leg, cause);
    leave_line(ledger, leg);
    rk_timer_stop(leg);
    rk_set_state(ledger, leg, RK_LEG_ENDED);
    leg->todo &= ~(unsigned)(RK_TODO_ADMIT); /* not carried out yet: never mind */
    if (leg->todo == 0 && rk_list_linked(&leg->pending))
        rk_list_remove(&leg->pending);
    if (wire)
        rk_todo(ledger, leg, RK_TODO_END);
    rk_tell(ledger, leg, RK_TODO_TELL_ENDED);
    if (!rk_submitted(leg)) {
        for (uint32_t i = 0; i < leg->n; i++)
            unclaim(ledger, leg, i);
        leg->open = 0;
    } else {
        for (uint32_t i = 0; i < leg->n; i++)
            start_releasing(ledger, leg, i, now);
        if (stop == RK_STOP_ABORT)
            rk_abort_engine(ledger, leg);
        else if (stop == RK_STOP_LATER)
            rk_timer_set(ledger, leg, RK_TIMER_HANDOFF, now);
    }
    drop_if_over(ledger, leg);
    rk_admit_line(ledger, rank, now);
}

/* ---- removal ---- */

/* The lives of one id are a chain; the newest that is left is the one the id names. */
static void leave_ids(rk_ledger *ledger, rk_leg *leg) {
    if (leg->newer)
        leg->newer->older = leg->older;
    if (leg->older)
        leg->older->newer = leg->newer;
    if (!leg->in_ids)
        return;
    (void)rk_bmap_remove(ledger->by_id, leg->request_id, leg->request_id_bytes);
    if (leg->older) /* cannot fail: a place has just become free */
        leg->older->in_ids =
            rk_bmap_put(ledger->by_id, leg->request_id, leg->request_id_bytes, leg->older) == 0;
}

void rk_drop(rk_ledger *ledger, rk_leg *leg) {
    assert(claimed_slots(leg) == 0);
    rk_timer_stop(leg);
    leave_line(ledger, leg);
    rk_list_remove(&leg->transfer);
    rk_list_remove(&leg->releasing);
    rk_list_remove(&leg->all);
    (void)rk_map_remove(ledger->by_handle, leg->handle);
    leave_ids(ledger, leg);
    if (leg->paired) {
        uint8_t key[RK_ROOM_KEY_MAX];
        (void)rk_bmap_remove(ledger->by_room, key, rk_room_key(&leg->room, key));
    }
    ledger->counts.legs[leg->state]--;
    leg->gone = true;
    if (leg->todo == 0)
        free(leg);
}
