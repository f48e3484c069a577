/* Deadlines. Each kind lasts equally long for every leg, so a ring a kind is in the order of time and every
 * operation on it is O(1); a leg is in one ring at a time, and from its submission in the ring of transfers.
 */
#include "rooms/ledger.h"

static uint64_t duration(const rk_ledger *ledger, rk_timer timer) {
    const rk_ledger_options *o = &ledger->options;
    switch (timer) {
    case RK_TIMER_WAIT:
        return o->wait_ms;
    case RK_TIMER_ANNOUNCE:
        return o->announce_ms;
    case RK_TIMER_HELD:
        return o->wait_ms + RK_HELD_MARGIN_MS;
    case RK_TIMER_TWIN:
        return o->twin_ms;
    case RK_TIMER_HANDOFF:
        return o->handoff_ms;
    case RK_TIMER_RELEASE:
    default:
        return o->transfer_ms;
    }
}

void rk_timer_set(rk_ledger *ledger, rk_leg *leg, rk_timer timer, uint64_t now) {
    rk_list *ring = &ledger->timers[timer];
    rk_list_remove(&leg->timer);
    leg->due = now + duration(ledger, timer);
    /* Threads read the clock before they take the lock, so `now` may step back a little: the ring must not.
     */
    if (!rk_list_empty(ring) && RK_CONTAINER(ring->prev, rk_leg, timer)->due > leg->due)
        leg->due = RK_CONTAINER(ring->prev, rk_leg, timer)->due;
    rk_list_push_back(ring, &leg->timer);
}

void rk_transfer_start(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    rk_list *ring = &ledger->transfers;
    leg->transfer_due = now + ledger->options.transfer_ms;
    if (!rk_list_empty(ring) && RK_CONTAINER(ring->prev, rk_leg, transfer)->transfer_due > leg->transfer_due)
        leg->transfer_due = RK_CONTAINER(ring->prev, rk_leg, transfer)->transfer_due;
    rk_list_push_back(ring, &leg->transfer);
}

void rk_timer_stop(rk_leg *leg) {
    rk_list_remove(&leg->timer);
}

static void fire(rk_ledger *ledger, rk_leg *leg, rk_timer timer, uint64_t now) {
    switch (timer) {
    case RK_TIMER_WAIT:
        rk_end(ledger, leg, now, RK_CAUSE_WAIT_TIMEOUT, RK_STOP_NONE, true);
        return;
    case RK_TIMER_ANNOUNCE: /* nobody speaks for it: served as without a link */
        if (ledger->peers_up > 0 && ledger->mistrust == 0 && leg->patience < RK_PATIENCE_MAX) {
            leg->patience++;
            rk_timer_set(ledger, leg, RK_TIMER_ANNOUNCE, now);
            return;
        }
        ledger->unannounced++;
        ledger->mistrust = RK_MISTRUST_LEGS;
        rk_admit(ledger, leg, now);
        return;
    case RK_TIMER_HELD:
        rk_end(ledger, leg, now, RK_CAUSE_HELD_TIMEOUT, RK_STOP_NONE, true);
        return;
    case RK_TIMER_TWIN:
        rk_end(ledger, leg, now, RK_CAUSE_TWIN_MISSING, RK_STOP_LATER, true);
        return;
    case RK_TIMER_HANDOFF: /* the KV has not come: tell the engine now; the slot stays until it lets go */
        rk_abort_engine(ledger, leg);
        rk_timer_set(ledger, leg, RK_TIMER_RELEASE, now);
        return;
    case RK_TIMER_RELEASE: /* nobody has said that the slot is free, but no engine holds one for so long */
    default:
        rk_abort_engine(ledger, leg);
        rk_free_all(ledger, leg, now, RK_NO_PROOF);
        return;
    }
}

static void fire_timers(rk_ledger *ledger, rk_timer timer, uint64_t now) {
    rk_list *ring = &ledger->timers[timer];
    while (!rk_list_empty(ring)) {
        rk_leg *leg = RK_CONTAINER(ring->next, rk_leg, timer);
        if (leg->due > now)
            return;
        rk_timer_stop(leg);
        fire(ledger, leg, timer, now);
    }
}

/* The engine's own deadline has ended what it may have been waiting for. */
static void fire_transfers(rk_ledger *ledger, uint64_t now) {
    while (!rk_list_empty(&ledger->transfers)) {
        rk_leg *leg = RK_CONTAINER(ledger->transfers.next, rk_leg, transfer);
        if (leg->transfer_due > now)
            return;
        rk_list_remove(&leg->transfer);
        if (leg->state != RK_LEG_ENDED)
            continue;
        rk_abort_engine(ledger, leg); /* if it has not been told yet, so that it forgets the request */
        rk_free_all(ledger, leg, now, RK_NO_PROOF);
    }
}

void rk_tick(rk_ledger *ledger, uint64_t now) {
    for (int timer = 0; timer < RK_TIMERS; timer++)
        fire_timers(ledger, (rk_timer)timer, now);
    fire_transfers(ledger, now);
    rk_notes_expire(&ledger->tombstones, now);
    rk_notes_expire(&ledger->announced, now);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

uint64_t rk_ledger_next_deadline(rk_ledger *ledger) {
    (void)pthread_mutex_lock(&ledger->lock);
    uint64_t next = UINT64_MAX;
    for (int timer = 0; timer < RK_TIMERS; timer++)
        if (!rk_list_empty(&ledger->timers[timer]))
            next = earlier(next, RK_CONTAINER(ledger->timers[timer].next, rk_leg, timer)->due);
    if (!rk_list_empty(&ledger->transfers))
        next = earlier(next, RK_CONTAINER(ledger->transfers.next, rk_leg, transfer)->transfer_due);
    if (!rk_list_empty(&ledger->tombstones.list))
        next = earlier(next, RK_CONTAINER(ledger->tombstones.list.next, rk_note, link)->due);
    if (!rk_list_empty(&ledger->announced.list))
        next = earlier(next, RK_CONTAINER(ledger->announced.list.next, rk_note, link)->due);
    (void)pthread_mutex_unlock(&ledger->lock);
    return next;
}
