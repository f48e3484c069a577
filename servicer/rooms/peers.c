/* What happens to a link as a whole, as events of the state machine. The link itself lives elsewhere; here a
 * peer is a number and one of three states: absent, expected (a link is being opened, or was lost and is
 * opened again), up.
 *
 * A leg is *bound* once the link has been up in its life: then the worker at its other end is the one that
 * was there at that time, and proof that this one's writers are gone is proof for the leg. */
#include "rooms/ledger.h"

static bool is_of(const rk_leg *leg, uint32_t peer) {
    return leg->linked && leg->paired && leg->peer == peer;
}

/* Runs `visit` for all legs; it may end or drop the one it gets, and no other. */
static void for_all(rk_ledger *ledger, uint32_t peer, uint64_t now,
                    void (*visit)(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now)) {
    rk_list rest;
    rk_list_init(&rest);
    rk_list *node;
    while ((node = rk_list_pop_front(&ledger->legs)) != NULL)
        rk_list_push_back(&rest, node);
    while ((node = rk_list_pop_front(&rest)) != NULL) {
        rk_list_push_back(&ledger->legs, node);
        visit(ledger, RK_CONTAINER(node, rk_leg, all), peer, now);
    }
}

/* The state it was in; -1: there is no such peer. */
static int move_to(rk_ledger *ledger, uint32_t peer, rk_peer_state state) {
    if (!ledger->options.enabled || peer >= ledger->options.peers)
        return -1;
    int was = ledger->peers[peer];
    ledger->peers[peer] = (uint8_t)state;
    ledger->peers_up += (state == RK_PEER_UP ? 1u : 0u) - (was == RK_PEER_UP ? 1u : 0u);
    return was;
}

void rk_ledger_set_linked(rk_ledger *ledger, bool linked) {
    rk_ledger_enter(ledger);
    ledger->options.linked = linked;
    (void)pthread_mutex_unlock(&ledger->lock);
}

void rk_ledger_peer_expected(rk_ledger *ledger, uint32_t peer) {
    rk_ledger_enter(ledger);
    (void)move_to(ledger, peer, RK_PEER_EXPECTED);
    (void)pthread_mutex_unlock(&ledger->lock);
}

/* ---- up ---- */

/* A decode's leg that names the peer, and was unlinked because nobody was there. */
static bool is_left_over(const rk_ledger *ledger, const rk_leg *leg, uint32_t peer) {
    return peer != 0 && leg->peer == peer && !leg->linked && rk_waits_for_kv(ledger, leg);
}

static void tell_again(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    if (is_left_over(ledger, leg, peer) && !leg->handed_off) {
        leg->linked = true; /* its prefill may be held for the announcement, or may never come */
        if ((leg->state == RK_LEG_ADMITTED || leg->state == RK_LEG_SUBMITTED) && !leg->twin_seen)
            rk_timer_set(ledger, leg, RK_TIMER_TWIN, now);
    }
    if (!is_of(leg, peer))
        return;
    leg->bound = true;
    if (leg->handed_off || leg->release_asked)
        return; /* it is between us and our engine */
    rk_tell_state(ledger, leg);
}

void rk_ledger_peer_up(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (move_to(ledger, peer, RK_PEER_UP) >= 0) {
        ledger->link_seen = now;
        ledger->link_known = true;
        for_all(ledger, peer, now, tell_again);
        rk_tell_untold(ledger, peer);
    }
    rk_ledger_leave(ledger, fx);
}

/* ---- lost ---- */

static void end_stranded(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    if (!is_of(leg, peer) || leg->state == RK_LEG_ENDED || leg->state == RK_LEG_HANDED_OFF ||
        leg->twin_handed_off)
        return;
    bool prefill = ledger->options.role == RK_ROLE_PREFILL;
    rk_end(ledger, leg, now, RK_CAUSE_PEER_LOST, prefill ? RK_STOP_ABORT : RK_STOP_LATER, true);
}

/* Legs that come late for rooms which the lost peer had announced would wait for nobody. */
static void bury_announced(rk_ledger *ledger, uint32_t peer, uint64_t now) {
    rk_list *list = &ledger->announced.list;
    for (rk_list *node = list->next; node != list;) {
        rk_note *note = RK_CONTAINER(node, rk_note, link);
        node = node->next;
        if (note->peer != peer)
            continue;
        rk_note *stone = rk_notes_add(&ledger->tombstones, peer, &note->room, now);
        if (stone)
            stone->cause = RK_CAUSE_PEER_LOST;
        rk_notes_remove(&ledger->announced, note);
    }
}

void rk_ledger_peer_lost(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (move_to(ledger, peer, RK_PEER_EXPECTED) == RK_PEER_UP) {
        bury_announced(ledger, peer, now);
        for_all(ledger, peer, now, end_stranded);
    }
    rk_ledger_leave(ledger, fx);
}

/* ---- absent ---- */

static void unlink_leg(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    (void)ledger;
    (void)now;
    if (!is_of(leg, peer) || leg->bound)
        return;
    leg->linked = false;
    rk_untodo(leg, RK_TELLS);
    if (leg->state == RK_LEG_ADMITTED || leg->state == RK_LEG_SUBMITTED)
        rk_timer_stop(leg); /* no twin is expected */
}

void rk_ledger_peer_absent(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (move_to(ledger, peer, RK_PEER_ABSENT) >= 0)
        for_all(ledger, peer, now, unlink_leg);
    rk_ledger_leave(ledger, fx);
}

/* ---- two names of one worker ---- */

void rk_ledger_peer_folded(rk_ledger *ledger, uint64_t now, uint32_t from, uint32_t to, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (to < ledger->options.peers && move_to(ledger, from, RK_PEER_ABSENT) >= 0) {
        bool up = ledger->peers[to] == RK_PEER_UP;
        for (rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next) {
            rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
            if (!is_of(leg, from) && !is_left_over(ledger, leg, from))
                continue;
            leg->peer = to;
            if (up)
                tell_again(ledger, leg, to, now);
        }
    }
    rk_ledger_leave(ledger, fx);
}

/* ---- proof ---- */

static void release_if_ended(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    if (is_of(leg, peer) && leg->bound && leg->state == RK_LEG_ENDED && rk_submitted(leg))
        rk_release_room(ledger, leg, now);
}

static void release_whatever_ended(rk_ledger *ledger, rk_leg *leg, uint32_t peer, uint64_t now) {
    bool names = is_of(leg, peer) || is_left_over(ledger, leg, peer);
    if (names && leg->state == RK_LEG_ENDED && rk_submitted(leg))
        rk_release_room(ledger, leg, now);
}

void rk_ledger_nobody_there(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (ledger->options.enabled && peer < ledger->options.peers && ledger->options.role == RK_ROLE_DECODE)
        for_all(ledger, peer, now, release_whatever_ended);
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_writers_gone(rk_ledger *ledger, uint64_t now, uint32_t peer, rk_effects *fx) {
    rk_ledger_enter(ledger);
    if (ledger->options.enabled && peer < ledger->options.peers && ledger->options.role == RK_ROLE_DECODE)
        for_all(ledger, peer, now, release_if_ended);
    rk_ledger_leave(ledger, fx);
}
