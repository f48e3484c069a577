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
    unsigned tells = ledger->options.tells_apart ? what & RK_TELLS : 0;
    what &= ~tells;
    if (what && leg->todo == 0)
        rk_list_push_back(&ledger->pending, &leg->pending);
    if (tells && leg->tells == 0)
        rk_list_push_back(&ledger->tells, &leg->telling);
    leg->todo |= what;
    leg->tells |= tells;
}

void rk_untodo(rk_leg *leg, unsigned what) {
    leg->todo &= ~what;
    leg->tells &= ~what;
    if (leg->todo == 0)
        rk_list_remove(&leg->pending);
    if (leg->tells == 0)
        rk_list_remove(&leg->telling);
}

void rk_free_if_gone(rk_leg *leg) {
    if (leg->gone && leg->todo == 0 && leg->tells == 0)
        free(leg);
}

void rk_tell(rk_ledger *ledger, rk_leg *leg, unsigned what) {
    if (leg->linked)
        rk_todo(ledger, leg, what);
}

bool rk_submitted(const rk_leg *leg) {
    return leg->ever_submitted;
}

/* ---- claims ---- */

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
    rk_observe(&ledger->counts.waits, leg->arrived, now);
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

void rk_join_rank(rk_ledger *ledger, rk_leg *leg) {
    ledger->ranks[leg->rank].load += leg->open;
}

void rk_wait_in_line(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    rk_set_state(ledger, leg, RK_LEG_WAITING);
    rk_list_push_back(&rank->line, &leg->line);
    rank->waiting++;
    rank->waiting_slots += leg->n;
    rk_timer_set(ledger, leg, RK_TIMER_WAIT, now);
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

/* ---- removal ---- */

/* The lives of one id are a chain; the newest that is left is the one the id names. */
static void leave_ids(rk_ledger *ledger, rk_leg *leg) {
    if (leg->newer)
        leg->newer->older = leg->older;
    if (leg->older)
        leg->older->newer = leg->newer;
    if (!leg->in_ids)
        return;
    if (leg->older)
        leg->older->in_ids =
            rk_bmap_replace(ledger->by_id, leg->request_id, leg->request_id_bytes, leg->older) == 0;
    else
        (void)rk_bmap_remove(ledger->by_id, leg->request_id, leg->request_id_bytes);
    leg->in_ids = false;
}

void rk_unlist(rk_ledger *ledger, rk_leg *leg) {
    rk_list_remove(&leg->all);
    (void)rk_map_remove(ledger->by_handle, leg->handle);
    leave_ids(ledger, leg);
    if (leg->paired) {
        uint8_t key[RK_ROOM_KEY_MAX];
        (void)rk_bmap_remove(ledger->by_room, key, rk_room_key(&leg->room, key));
    }
    ledger->counts.legs[leg->state]--;
}

static void drop(rk_ledger *ledger, rk_leg *leg) {
    assert(leg->open == 0); /* so no slot is claimed: see check.c */
    rk_timer_stop(leg);
    leave_line(ledger, leg);
    rk_list_remove(&leg->transfer);
    rk_list_remove(&leg->releasing);
    rk_unlist(ledger, leg);
    leg->gone = true;
    rk_free_if_gone(leg);
}

/* ---- the engine lets go ---- */

/* Over for the engine and for the client: nothing is left of it. */
static bool drop_if_over(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    if (leg->state != RK_LEG_ENDED || leg->open > 0)
        return false;
    if (rk_list_linked(&leg->releasing))
        rk_observe(&ledger->counts.releases, leg->released_at, now);
    drop(ledger, leg);
    return true;
}

static void close_choices(rk_ledger *ledger, rk_leg *leg, uint32_t count) {
    leg->open -= count;
    ledger->ranks[leg->rank].load -= count;
}

static void free_one(rk_ledger *ledger, rk_leg *leg, uint32_t choice) {
    uint8_t *flags = &leg->choices[choice];
    if (*flags & RK_CHOICE_RUNNING) {
        *flags &= (uint8_t)~RK_CHOICE_RUNNING;
        ledger->ranks[leg->rank].running--;
        close_choices(ledger, leg, 1);
    }
    unclaim(ledger, leg, choice);
}

/* A prefill that was stopped is quiet once its engine has let go; its decode's pages wait for that word. */
static void say_quiesced(rk_ledger *ledger, rk_leg *leg, rk_proof proof) {
    if (proof == RK_PROOF && ledger->options.role == RK_ROLE_PREFILL && leg->state == RK_LEG_ENDED &&
        leg->open == 0 && leg->ever_submitted && leg->cause != RK_CAUSE_COMPLETED)
        rk_tell(ledger, leg, RK_TODO_TELL_QUIESCED);
}

bool rk_free_choice(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now, rk_proof proof) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    free_one(ledger, leg, choice);
    say_quiesced(ledger, leg, proof);
    bool dropped = drop_if_over(ledger, leg, now);
    rk_admit_line(ledger, rank, now);
    return dropped;
}

void rk_free_all(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_proof proof) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    for (uint32_t i = 0; i < leg->n; i++)
        free_one(ledger, leg, i);
    say_quiesced(ledger, leg, proof);
    (void)drop_if_over(ledger, leg, now);
    rk_admit_line(ledger, rank, now);
}

static bool engine_was_told(const rk_leg *leg) {
    for (uint32_t i = 0; i < leg->n; i++)
        if ((leg->choices[i] & (RK_CHOICE_RUNNING | RK_CHOICE_ABORTED)) == RK_CHOICE_RUNNING)
            return false;
    return true;
}

void rk_hand_off(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    leg->handed_off = true;
    rk_observe(&ledger->counts.handoffs, leg->submitted_at, now);
    rk_list_remove(&leg->transfer);
    if (leg->state == RK_LEG_SUBMITTED) {
        rk_timer_stop(leg);
        rk_set_state(ledger, leg, RK_LEG_HANDED_OFF);
        rk_abort_named(ledger, leg);
        return;
    }
    if (leg->state != RK_LEG_ENDED || !rk_waits_for_kv(ledger, leg))
        return;
    if (engine_was_told(leg)) { /* it acts on its mark with the step that got the KV */
        rk_free_all(ledger, leg, now, RK_PROOF);
        return;
    }
    rk_abort_engine(ledger, leg); /* an abort now ends it with its next step */
    rk_timer_set(ledger, leg, RK_TIMER_RELEASE, now);
}

/* ---- endings ---- */

bool rk_waits_for_kv(const rk_ledger *ledger, const rk_leg *leg) {
    return ledger->options.enabled && ledger->options.role == RK_ROLE_DECODE && leg->paired;
}

rk_stop rk_stop_of(const rk_ledger *ledger, const rk_leg *leg) {
    return rk_waits_for_kv(ledger, leg) && !leg->handed_off ? RK_STOP_LATER : RK_STOP_ABORT;
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

void rk_abort_named(rk_ledger *ledger, rk_leg *leg) {
    for (uint32_t i = 0; i < leg->n; i++) {
        uint8_t wanted = RK_CHOICE_ENDED | RK_CHOICE_RUNNING;
        if ((leg->choices[i] & (wanted | RK_CHOICE_ABORTED)) != wanted)
            continue;
        leg->choices[i] |= RK_CHOICE_ABORTED | RK_CHOICE_ABORT_DUE;
        rk_todo(ledger, leg, RK_TODO_CHOICES);
    }
}

static void note_end(rk_ledger *ledger, rk_leg *leg, rk_cause cause) {
    leg->cause = cause;
    if (cause != RK_CAUSE_TWIN_ENDED) { /* whose code follows from the twin's cause: see twins.c */
        leg->code = rk_cause_code(cause);
        leg->retry = rk_cause_retry(cause);
    }
    if (cause == RK_CAUSE_ABORT_RPC)
        leg->charged = true; /* this life has had its Abort */
    ledger->counts.ended[cause]++;
    if (cause == RK_CAUSE_TWIN_ENDED || cause == RK_CAUSE_TWIN_MISSING || cause == RK_CAUSE_PEER_LOST)
        ledger->counts.stranded++;
}

/* What was noted and not carried out yet, and makes no sense after the end. */
static void forget_todo(rk_leg *leg, bool wire) {
    rk_untodo(leg, RK_TODO_ADMIT);
    for (uint32_t i = 0; wire && i < leg->n; i++) /* the whole stream ends: no choice by itself */
        leg->choices[i] &= (uint8_t)~RK_CHOICE_END_DUE;
}

/* The engine has the leg: its slots are RELEASING until it has let go. */
static void stop_engine(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_stop stop) {
    for (uint32_t i = 0; i < leg->n; i++)
        start_releasing(ledger, leg, i, now);
    if (stop == RK_STOP_ABORT)
        rk_abort_engine(ledger, leg);
    /* While its prefill may write, a linked decode's pages must not go: QUIESCED comes first. */
    bool waits_for_output = stop == RK_STOP_LATER && !(leg->linked && leg->twin_seen);
    rk_timer_set(ledger, leg, waits_for_output ? RK_TIMER_HANDOFF : RK_TIMER_RELEASE, now);
}

void rk_end(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause, rk_stop stop, bool wire) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    note_end(ledger, leg, cause);
    leave_line(ledger, leg);
    rk_timer_stop(leg);
    rk_set_state(ledger, leg, RK_LEG_ENDED);
    forget_todo(leg, wire);
    if (wire)
        rk_todo(ledger, leg, RK_TODO_END);
    if (!leg->twin_over || cause == RK_CAUSE_TWIN_ENDED) /* else nobody is left to be told */
        rk_tell(ledger, leg, RK_TODO_TELL_ENDED);
    rk_remember_untold(ledger, leg, now);
    if (leg->paired && ledger->options.enabled && ledger->options.role == RK_ROLE_PREFILL &&
        cause != RK_CAUSE_COMPLETED) {
        /* Its decode may have asked the engine for this room already, or may yet: it is told that none comes.
         */
        rk_todo(ledger, leg, RK_TODO_RELEASE_ROOM);
        rk_remember_end(ledger, leg, now);
    }
    if (rk_submitted(leg)) {
        stop_engine(ledger, leg, now, stop);
    } else {
        for (uint32_t i = 0; i < leg->n; i++)
            unclaim(ledger, leg, i);
        close_choices(ledger, leg, leg->open);
    }
    (void)drop_if_over(ledger, leg, now);
    rk_admit_line(ledger, rank, now);
}
