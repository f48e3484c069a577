/* A leg on its way into its engine and out of it: what the servicer and the engine report. */
#include <errno.h>

#include "rooms/ledger.h"

int rk_ledger_begin_submit(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    int result = leg && leg->state == RK_LEG_ADMITTED ? 0 : -ECANCELED;
    if (result == 0) {
        rk_set_state(ledger, leg, RK_LEG_SUBMITTED);
        leg->submitted_at = now;
        leg->ever_submitted = true;
        for (uint32_t i = 0; i < leg->n; i++)
            leg->choices[i] |= RK_CHOICE_RUNNING;
        ledger->ranks[leg->rank].running += leg->n;
        if (leg->paired && ledger->options.enabled)
            rk_transfer_start(ledger, leg, now);
        if (ledger->options.role == RK_ROLE_PREFILL)
            rk_tell(ledger, leg, RK_TODO_TELL_SUBMITTED);
        if (rk_stop_of(ledger, leg) == RK_STOP_ABORT)
            rk_abort_named(ledger, leg);
    }
    rk_ledger_leave(ledger, fx);
    return result;
}

static void take_back_submission(rk_ledger *ledger, rk_leg *leg) {
    rk_untodo(leg, RK_TODO_TELL_SUBMITTED | RK_TODO_CHOICES);
    rk_list_remove(&leg->transfer);
    leg->ever_submitted = false;
    for (uint32_t i = 0; i < leg->n; i++) {
        if (leg->choices[i] & RK_CHOICE_RUNNING)
            ledger->ranks[leg->rank].running--;
        leg->choices[i] &= (uint8_t) ~(RK_CHOICE_RUNNING | RK_CHOICE_ABORT_DUE);
    }
}

void rk_ledger_submit_failed(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    if (leg && leg->state == RK_LEG_SUBMITTED) {
        take_back_submission(ledger, leg);
        rk_end(ledger, leg, now, RK_CAUSE_ENGINE_DEAD, RK_STOP_NONE, true);
    } else if (leg && leg->state == RK_LEG_ENDED && rk_submitted(leg)) {
        rk_free_all(ledger, leg, now, RK_PROOF); /* it ended in between; the engine never had it */
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_first_output(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    if (leg && rk_submitted(leg) && !leg->handed_off) {
        if (leg->state == RK_LEG_SUBMITTED && ledger->options.role == RK_ROLE_DECODE)
            rk_tell(ledger, leg, RK_TODO_TELL_HANDED_OFF);
        rk_hand_off(ledger, leg, now);
    }
    rk_ledger_leave(ledger, fx);
}

/* The engine is done with a choice of a leg that the client still follows: was it the last one? */
static bool all_over(const rk_leg *leg, uint32_t last) {
    for (uint32_t i = 0; i < leg->n; i++)
        if (i != last && (leg->choices[i] & (RK_CHOICE_RUNNING | RK_CHOICE_ENDED)) == RK_CHOICE_RUNNING)
            return false;
    return true;
}

void rk_ledger_finished(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice, rk_cause cause,
                        rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    if (leg && choice < leg->n && (leg->choices[choice] & RK_CHOICE_RUNNING)) {
        if (leg->state != RK_LEG_ENDED && all_over(leg, choice))
            rk_end(ledger, leg, now, cause, RK_STOP_NONE, false);
        (void)rk_free_choice(ledger, leg, choice, now, RK_PROOF);
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_cancel(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_cause cause, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    if (leg && leg->state != RK_LEG_ENDED)
        rk_end(ledger, leg, now, cause, rk_stop_of(ledger, leg), false);
    rk_ledger_leave(ledger, fx);
}

/* Does an abort of a running choice free its slot? A decode that waits for KV is only marked by the engine.
 */
static bool abort_frees(const rk_ledger *ledger, const rk_leg *leg) {
    if (rk_waits_for_kv(ledger, leg))
        return leg->handed_off;
    /* A prefill that waits for its decode or writes to it is only marked as well: it is quiet when the agent
     * or its last output says so, and its room is taken until then. */
    return !(ledger->options.enabled && ledger->options.role == RK_ROLE_PREFILL && leg->paired);
}

void rk_ledger_aborted(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    uint32_t n = leg && abort_frees(ledger, leg) ? leg->n : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (choice != RK_LEDGER_ALL && choice != i)
            continue;
        uint8_t wanted = RK_CHOICE_RUNNING | RK_CHOICE_ABORTED;
        if ((leg->choices[i] & wanted) != wanted)
            continue;
        if (rk_free_choice(ledger, leg, i, now, RK_NO_PROOF))
            break; /* the leg went with it */
    }
    rk_ledger_leave(ledger, fx);
}

void rk_ledger_slot_released(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    rk_ledger_enter(ledger);
    rk_leg *leg = rk_ledger_find(ledger, handle);
    if (leg && leg->state == RK_LEG_ENDED)
        rk_free_all(ledger, leg, now, RK_PROOF);
    rk_ledger_leave(ledger, fx);
}
