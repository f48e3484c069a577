/* What must always hold; asserted after every operation in debug builds while there are few legs, so that a
 * burst in a debug build does not turn quadratic. */
#include "rooms/ledger.h"

#define CHECKED_LEGS_MAX 64

#ifndef NDEBUG
static void check_leg(const rk_ledger *ledger, const rk_leg *leg) {
    uint32_t running = 0;
    uint32_t claimed = 0;
    for (uint32_t i = 0; i < leg->n; i++) {
        running += leg->choices[i] & RK_CHOICE_RUNNING ? 1 : 0;
        claimed += leg->choices[i] & RK_CHOICE_CLAIMED ? 1 : 0;
        assert(!(leg->choices[i] & RK_CHOICE_RELEASING) || (leg->choices[i] & RK_CHOICE_CLAIMED));
    }
    assert(!leg->gone);
    assert((leg->state == RK_LEG_WAITING) == rk_list_linked(&leg->line));
    assert(rk_submitted(leg) ? running == leg->open : running == 0);
    assert(leg->state != RK_LEG_ENDED || leg->open > 0); /* else it would have been dropped */
    assert(leg->state != RK_LEG_WAITING || claimed == 0);
    assert(claimed <= leg->open);
    assert(rk_map_get(ledger->by_handle, leg->handle) == leg);
    assert((leg->todo != 0) == rk_list_linked(&leg->pending));
    assert((leg->tells != 0) == rk_list_linked(&leg->telling));
    assert(!leg->handed_off || leg->ever_submitted);
    assert(!leg->in_ids || rk_bmap_get(ledger->by_id, leg->request_id, leg->request_id_bytes) == leg);
    assert(leg->in_ids == (leg->newer == NULL));
    assert(!leg->older || (leg->older->newer == leg && leg->older->state == RK_LEG_ENDED));
    /* Whatever is not in the client's or the engine's hands has a deadline, so nothing is lost for good. */
    bool waits = leg->state == RK_LEG_WAITING || leg->state == RK_LEG_HELD || leg->state == RK_LEG_ENDED;
    assert(!waits || rk_list_linked(&leg->timer));
}

static void check_ranks(const rk_ledger *ledger) {
    for (uint32_t r = 0; r < ledger->options.ranks; r++) {
        const rk_rank *rank = &ledger->ranks[r];
        uint32_t held = 0;
        uint32_t releasing = 0;
        uint32_t running = 0;
        uint64_t tokens = 0;
        uint64_t load = 0;
        for (const rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next) {
            const rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
            load += leg->rank == r ? leg->open : 0;
            for (uint32_t i = 0; i < leg->n && leg->rank == r; i++) {
                bool claimed = leg->choices[i] & RK_CHOICE_CLAIMED;
                held += claimed && !(leg->choices[i] & RK_CHOICE_RELEASING) ? 1 : 0;
                releasing += leg->choices[i] & RK_CHOICE_RELEASING ? 1 : 0;
                running += leg->choices[i] & RK_CHOICE_RUNNING ? 1 : 0;
                tokens += claimed ? leg->tokens_each : 0;
            }
        }
        assert(held == rank->held_slots && releasing == rank->releasing_slots);
        assert(running == rank->running && tokens == rank->claimed_tokens && load == rank->load);
        assert(!rk_gated(ledger) || held + releasing <= ledger->options.window);
        /* Nobody waits who could go. */
        assert(rk_list_empty(&rank->line) ||
               !rk_fits(ledger, rank, RK_CONTAINER(rank->line.next, rk_leg, line)));
    }
}

static void check_counts(const rk_ledger *ledger) {
    uint32_t legs[RK_LEG_STATES] = {0};
    for (const rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next)
        legs[RK_CONTAINER(node, rk_leg, all)->state]++;
    assert(memcmp(legs, ledger->counts.legs, sizeof legs) == 0);
    assert(legs[RK_LEG_HELD] == ledger->held && legs[RK_LEG_ARRIVED] == 0);
    assert(ledger->tombstones.count <= ledger->tombstones.max);
    assert(ledger->announced.count <= ledger->announced.max);
}
#endif

void rk_ledger_check_locked(rk_ledger *ledger) {
#ifndef NDEBUG
    if (rk_map_size(ledger->by_handle) > CHECKED_LEGS_MAX)
        return;
    for (const rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next)
        check_leg(ledger, RK_CONTAINER(node, rk_leg, all));
    check_ranks(ledger);
    check_counts(ledger);
#else
    (void)ledger;
#endif
}

void rk_ledger_check(rk_ledger *ledger) {
    (void)pthread_mutex_lock(&ledger->lock);
    rk_ledger_check_locked(ledger);
    (void)pthread_mutex_unlock(&ledger->lock);
}
