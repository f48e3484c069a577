/* The ledger as a whole: made, freed, read, and what concerns all legs at once. Each operation takes the
 * lock, moves the state machine, and copies out what is to be done. See rooms.h for what each means and
 * README.md for the idea. */
#include "rooms/ledger.h"

#include <errno.h>
#include <stdlib.h>

void rk_ledger_enter(rk_ledger *ledger) {
    (void)pthread_mutex_lock(&ledger->lock);
}

void rk_ledger_leave(rk_ledger *ledger, rk_effects *fx) {
    rk_flush(ledger, fx);
    fx->tells |= !rk_list_empty(&ledger->tells);
    rk_ledger_check_locked(ledger);
    (void)pthread_mutex_unlock(&ledger->lock);
}

rk_leg *rk_ledger_find(const rk_ledger *ledger, uint64_t handle) {
    return rk_map_get(ledger->by_handle, handle);
}

/* ---- making ---- */

static int init(rk_ledger *ledger, const rk_ledger_options *options) {
    ledger->options = *options;
    if (ledger->options.ranks == 0)
        ledger->options.ranks = 1;
    if (ledger->options.peers == 0)
        ledger->options.peers = 1;
    rk_list_init(&ledger->legs);
    rk_list_init(&ledger->tells);
    rk_list_init(&ledger->transfers);
    rk_list_init(&ledger->pending);
    for (int timer = 0; timer < RK_TIMERS; timer++)
        rk_list_init(&ledger->timers[timer]);
    const rk_ledger_options *o = &ledger->options;
    int result = rk_notes_init(&ledger->tombstones, o->tombstones, o->tombstone_ms, o->peers, o->peer_rooms);
    if (rk_notes_init(&ledger->announced, o->announced, o->twin_ms, o->peers, o->peer_rooms) < 0)
        result = -ENOMEM;
    ledger->peers = calloc(o->peers, sizeof *ledger->peers);
    ledger->by_handle = rk_map_new();
    ledger->by_id = rk_bmap_new();
    ledger->by_room = rk_bmap_new();
    ledger->ranks = calloc(ledger->options.ranks, sizeof *ledger->ranks);
    for (uint32_t i = 0; ledger->ranks && i < ledger->options.ranks; i++) {
        rk_list_init(&ledger->ranks[i].line);
        rk_list_init(&ledger->ranks[i].releasing);
    }
    return ledger->by_handle && ledger->by_id && ledger->by_room && ledger->ranks && ledger->peers ? result
                                                                                                   : -ENOMEM;
}

rk_ledger *rk_ledger_new(const rk_ledger_options *options) {
    rk_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger)
        return NULL;
    (void)pthread_mutex_init(&ledger->lock, NULL);
    if (init(ledger, options) == 0)
        return ledger;
    rk_ledger_free(ledger);
    return NULL;
}

void rk_ledger_free(rk_ledger *ledger) {
    if (!ledger)
        return;
    while (!rk_list_empty(&ledger->pending)) {
        rk_leg *leg = RK_CONTAINER(ledger->pending.next, rk_leg, pending);
        rk_list_remove(&leg->pending);
        leg->todo = 0;
        rk_free_if_gone(leg);
    }
    while (!rk_list_empty(&ledger->tells)) {
        rk_leg *leg = RK_CONTAINER(ledger->tells.next, rk_leg, telling);
        rk_list_remove(&leg->telling);
        leg->tells = 0;
        rk_free_if_gone(leg);
    }
    while (!rk_list_empty(&ledger->legs)) {
        rk_leg *leg = RK_CONTAINER(ledger->legs.next, rk_leg, all);
        rk_list_remove(&leg->all);
        free(leg);
    }
    if (ledger->tombstones.list.next)
        rk_notes_free(&ledger->tombstones);
    if (ledger->announced.list.next)
        rk_notes_free(&ledger->announced);
    rk_map_free(ledger->by_handle);
    rk_bmap_free(ledger->by_id);
    rk_bmap_free(ledger->by_room);
    free(ledger->ranks);
    free(ledger->peers);
    (void)pthread_mutex_destroy(&ledger->lock);
    free(ledger);
}

uint64_t rk_ledger_new_handle(rk_ledger *ledger) {
    rk_ledger_enter(ledger);
    uint64_t handle = ++ledger->next_handle;
    (void)pthread_mutex_unlock(&ledger->lock);
    return handle;
}

/* ---- all at once ---- */

void rk_ledger_drain(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    rk_ledger_enter(ledger);
    ledger->counts.draining = true;
    static const rk_timer waiting[] = {RK_TIMER_WAIT, RK_TIMER_ANNOUNCE, RK_TIMER_HELD};
    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++) {
        rk_list *ring = &ledger->timers[waiting[i]];
        while (!rk_list_empty(ring)) /* from the back: nobody is admitted on the way */
            rk_end(ledger, RK_CONTAINER(ring->prev, rk_leg, timer), now, RK_CAUSE_DRAIN, RK_STOP_NONE, true);
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_end_all(rk_ledger *ledger, uint64_t now, rk_cause cause, rk_effects *fx) {
    rk_ledger_enter(ledger);
    bool dead = cause == RK_CAUSE_ENGINE_DEAD;
    ledger->engine_gone |= dead;
    /* Who waits goes first, so that freed slots admit nobody; then the others, by a list of their own since
     * ending one may drop it. */
    for (uint32_t i = 0; i < ledger->options.ranks; i++)
        while (!rk_list_empty(&ledger->ranks[i].line))
            rk_end(ledger, RK_CONTAINER(ledger->ranks[i].line.prev, rk_leg, line), now, cause, RK_STOP_NONE,
                   true);
    rk_list rest;
    rk_list_init(&rest);
    rk_list *node;
    while ((node = rk_list_pop_front(&ledger->legs)) != NULL)
        rk_list_push_back(&rest, node);
    while ((node = rk_list_pop_front(&rest)) != NULL) {
        rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
        rk_list_push_back(&ledger->legs, node);
        bool submitted = rk_submitted(leg);
        if (leg->state != RK_LEG_ENDED)
            rk_end(ledger, leg, now, cause, dead ? RK_STOP_NONE : RK_STOP_ABORT, true);
        else if (!dead)
            continue;
        if (dead && submitted)
            rk_free_all(ledger, leg, now, RK_NO_PROOF); /* gone or deaf: not known to be quiet */
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_engine_silent(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    rk_ledger_enter(ledger);
    for (uint32_t i = 0; i < ledger->options.ranks; i++)
        while (!rk_list_empty(&ledger->ranks[i].line))
            rk_end(ledger, RK_CONTAINER(ledger->ranks[i].line.prev, rk_leg, line), now, RK_CAUSE_ENGINE_DEAD,
                   RK_STOP_NONE, true);
    rk_list rest;
    rk_list_init(&rest);
    rk_list *node;
    while ((node = rk_list_pop_front(&ledger->legs)) != NULL)
        rk_list_push_back(&rest, node);
    while ((node = rk_list_pop_front(&rest)) != NULL) {
        rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
        rk_list_push_back(&ledger->legs, node);
        if (leg->state != RK_LEG_ENDED)
            rk_end(ledger, leg, now, RK_CAUSE_ENGINE_DEAD, rk_stop_of(ledger, leg), true);
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_tick(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_tick(ledger, now);
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_pump(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    (void)now;
    rk_ledger_enter(ledger);
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_take_tells(rk_ledger *ledger, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_flush_tells(ledger, fx);
    (void)pthread_mutex_unlock(&ledger->lock);
}

/* ---- reading ---- */

void rk_ledger_read(rk_ledger *ledger, rk_ledger_counts *counts) {
    rk_ledger_enter(ledger);
    *counts = ledger->counts;
    counts->held = ledger->held;
    counts->tombstones = ledger->tombstones.count;
    counts->announced = ledger->announced.count;
    counts->tombstones_dropped = ledger->tombstones.dropped;
    counts->announced_dropped = ledger->announced.dropped;
    (void)pthread_mutex_unlock(&ledger->lock);
}

static uint64_t age(uint64_t now, uint64_t then) {
    return now > then ? now - then : 0;
}

uint32_t rk_ledger_read_ranks(rk_ledger *ledger, uint64_t now, rk_rank_counts *ranks, uint32_t max) {
    rk_ledger_enter(ledger);
    uint32_t count = ledger->options.ranks;
    bool gated = rk_gated(ledger);
    for (uint32_t i = 0; i < count && i < max; i++) {
        const rk_rank *rank = &ledger->ranks[i];
        ranks[i] = (rk_rank_counts){
            .window = gated ? ledger->options.window : 0,
            .held_slots = rank->held_slots,
            .releasing = rank->releasing_slots,
            .waiting = rank->waiting,
            .waiting_slots = rank->waiting_slots,
            .running = rank->running,
            .claimed_tokens = rank->claimed_tokens,
            .kv_tokens = gated ? ledger->options.kv_tokens : 0,
        };
        if (!rk_list_empty(&rank->releasing))
            ranks[i].oldest_releasing_ms =
                age(now, RK_CONTAINER(rank->releasing.next, rk_leg, releasing)->released_at);
        if (!rk_list_empty(&rank->line))
            ranks[i].oldest_waiting_ms = age(now, RK_CONTAINER(rank->line.next, rk_leg, line)->arrived);
    }
    (void)pthread_mutex_unlock(&ledger->lock);
    return count;
}
