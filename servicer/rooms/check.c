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
    assert(rk_map_get(ledger->by_handle, leg->handle) == leg);
}

static void check_ranks(const rk_ledger *ledger) {
    for (uint32_t r = 0; r < ledger->options.ranks; r++) {
        const rk_rank *rank = &ledger->ranks[r];
        uint32_t held = 0;
        uint32_t releasing = 0;
        uint32_t running = 0;
        uint64_t tokens = 0;
        for (const rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next) {
            const rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
            for (uint32_t i = 0; i < leg->n && leg->rank == r; i++) {
                bool claimed = leg->choices[i] & RK_CHOICE_CLAIMED;
                held += claimed && !(leg->choices[i] & RK_CHOICE_RELEASING) ? 1 : 0;
                releasing += leg->choices[i] & RK_CHOICE_RELEASING ? 1 : 0;
                running += leg->choices[i] & RK_CHOICE_RUNNING ? 1 : 0;
                tokens += claimed ? leg->tokens_each : 0;
            }
        }
        assert(held == rank->held_slots && releasing == rank->releasing_slots);
        assert(running == rank->running && tokens == rank->claimed_tokens);
        assert(!rk_gated(ledger) || held + releasing <= ledger->options.window);
        /* Nobody waits who could go. */
        assert(rk_list_empty(&rank->line) ||
               !rk_fits(ledger, rank, RK_CONTAINER(rank->line.next, rk_leg, line)));
    }
}
#endif

void rk_ledger_check_locked(rk_ledger *ledger) {
#ifndef NDEBUG
    if (rk_map_size(ledger->by_handle) > CHECKED_LEGS_MAX)
        return;
    for (const rk_list *node = ledger->legs.next; node != &ledger->legs; node = node->next)
        check_leg(ledger, RK_CONTAINER(node, rk_leg, all));
    check_ranks(ledger);
#else
    (void)ledger;
#endif
}

void rk_ledger_check(rk_ledger *ledger) {
    (void)pthread_mutex_lock(&ledger->lock);
    rk_ledger_check_locked(ledger);
    (void)pthread_mutex_unlock(&ledger->lock);
}
