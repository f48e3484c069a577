/* The Abort RPC: by an id, which names its newest life, or by the wire name of one choice.
 *
 * Gateways send Aborts late and more than once. Each engine request is aborted at most once, and an Abort
 * that comes while an older life of the id is ending is counted against that one, once each. */
#include "rooms/ledger.h"

/* Does the client still wait for this choice? */
static bool is_live(const rk_leg *leg, uint32_t choice) {
    uint8_t flags = leg->choices[choice];
    return !(flags & RK_CHOICE_ENDED) && (!rk_submitted(leg) || (flags & RK_CHOICE_RUNNING));
}

static uint32_t abort_leg(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    uint32_t hit = 0;
    for (uint32_t i = 0; i < leg->n; i++)
        hit += is_live(leg, i) ? 1 : 0;
    rk_end(ledger, leg, now, RK_CAUSE_ABORT_RPC, rk_stop_of(ledger, leg), true);
    return hit;
}

static uint32_t abort_choice(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now) {
    if (!is_live(leg, choice))
        return 0;
    leg->choices[choice] |= RK_CHOICE_ENDED | RK_CHOICE_END_DUE;
    rk_todo(ledger, leg, RK_TODO_CHOICES);
    rk_stop stop = rk_stop_of(ledger, leg);
    if (stop == RK_STOP_ABORT)
        rk_abort_named(ledger, leg);
    bool over = true;
    for (uint32_t i = 0; i < leg->n; i++)
        over &= !is_live(leg, i);
    if (over) /* it was the last one: the stream ends with its Complete */
        rk_end(ledger, leg, now, RK_CAUSE_ABORT_RPC, stop, false);
    return 1;
}

/* "<id>-n<digits>": the parent's length and the choice; false when the name is not of that form. */
static bool split_child(const char *id, size_t bytes, size_t *parent_bytes, uint32_t *choice) {
    size_t at = bytes;
    while (at > 0 && id[at - 1] >= '0' && id[at - 1] <= '9')
        at--;
    if (at == bytes || bytes - at > 6 || at < 2 || id[at - 1] != 'n' || id[at - 2] != '-')
        return false;
    if (id[at] == '0' && bytes - at > 1) /* "-n01" is nobody's wire name */
        return false;
    *choice = 0;
    for (size_t i = at; i < bytes; i++)
        *choice = *choice * 10 + (uint32_t)(id[i] - '0');
    *parent_bytes = at - 2;
    return true;
}

/* An Abort that comes while an older life of the id is ending was meant for that one. */
static bool charged_to_older(rk_leg *leg) {
    for (rk_leg *older = leg->older; older; older = older->older) {
        if (older->charged)
            continue;
        older->charged = true;
        return true;
    }
    return false;
}

static rk_leg *live_leg(const rk_ledger *ledger, const char *request_id, size_t bytes) {
    rk_leg *leg = rk_bmap_get(ledger->by_id, request_id, bytes);
    return leg && leg->state != RK_LEG_ENDED ? leg : NULL;
}

uint32_t rk_ledger_abort(rk_ledger *ledger, uint64_t now, const char *request_id, size_t bytes,
                         rk_effects *fx) {
    uint32_t hit = 0;
    uint32_t choice;
    size_t parent_bytes;
    rk_ledger_enter(ledger);
    rk_leg *leg = live_leg(ledger, request_id, bytes);
    if (leg) {
        hit = charged_to_older(leg) ? 1 : abort_leg(ledger, leg, now);
    } else if (split_child(request_id, bytes, &parent_bytes, &choice)) {
        leg = live_leg(ledger, request_id, parent_bytes);
        if (leg && leg->n > 1 && choice < leg->n)
            hit = abort_choice(ledger, leg, choice, now);
    }
    rk_ledger_leave(ledger, fx);
    return hit;
}
