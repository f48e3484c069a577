/* What the two ends of a room link make of each other's words: refusals, late and early announcements, rooms
 * without a leg, stopped writers. And the codes that a leg carries for each reason its twin can have. */
#include "ledger_support.h"

#include <stdlib.h>

static rk_verdict v;
static rk_effects fx;

static rk_ledger_options linked_options(rk_role role) {
    rk_ledger_options o = options_of(role, 2, 2);
    o.linked = true;
    o.held_places = 3;
    return o;
}

static rk_ledger *linked_ledger(rk_role role) {
    rk_ledger_options o = linked_options(role);
    return rk_ledger_new(&o);
}

static uint64_t arrive(rk_ledger *ledger, uint64_t now, int64_t room) {
    return arrive_with(ledger, now, (leg_args){.room = room, .linked = true}, &v, &fx);
}

static uint64_t arrive_unlinked(rk_ledger *ledger, uint64_t now, int64_t room) {
    return arrive_with(ledger, now, (leg_args){.room = room}, &v, &fx);
}

static void announced(rk_ledger *l, uint64_t now, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    (void)rk_ledger_twin_announced(l, now, 0, &room, &fx);
}

static void admitted(rk_ledger *l, uint64_t now, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    (void)rk_ledger_twin_admitted(l, now, 0, &room, &fx);
}

static void ended(rk_ledger *l, uint64_t now, int64_t number, rk_cause cause, bool ever_submitted) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    (void)rk_ledger_twin_ended(l, now, 0, &room, cause, ever_submitted, &fx);
}

static void quiesced(rk_ledger *l, uint64_t now, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    (void)rk_ledger_twin_quiesced(l, now, 0, &room, &fx);
}

/* ---- refusals reach the twin ---- */

START_TEST(a_refused_decode_tells_its_twin_why) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    for (int i = 1; i <= 4; i++)
        (void)arrive(l, T0, i);
    uint64_t e = arrive(l, T0, 5);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    const rk_effect *told = effect_of(&fx, RK_FX_TELL_ENDED, e);
    ck_assert_ptr_nonnull(told);
    ck_assert_int_eq(told->cause, RK_CAUSE_FULL);
    ck_assert(!told->ever_submitted);
    ck_assert_int_eq(told->room.room, 5);
    ck_assert_str_eq(told->room.host, "prefill.example");
    (void)arrive_unlinked(l, T0, 6);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    ck_assert_uint_eq(fx.count, 0); /* no link, nobody to tell */
    rk_ledger_free(l);
}
END_TEST

START_TEST(the_twin_of_a_live_room_does_not_hear_of_a_duplicate) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    (void)arrive(l, T0, 1);
    (void)arrive_with(l, T0, (leg_args){.id = "other", .room = 1, .linked = true}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ROOM);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_draining_worker_tells_the_twins_of_those_it_refuses) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    for (int i = 1; i <= 3; i++)
        (void)arrive(l, T0, i);
    rk_effects_clear(&fx);
    rk_ledger_drain(l, T0, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 1); /* the one in line */
    uint64_t d = arrive(l, T0, 4);
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_ENDED, d)->cause, RK_CAUSE_DRAIN);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_refused_prefill_ends_its_room_in_the_engine_and_tells_who_announced_it) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    for (int i = 1; i <= 3; i++)
        (void)arrive(l, T0, i);
    announced(l, T0, 4);
    uint64_t d = arrive(l, T0, 4);
    ck_assert_int_eq(v.cause, RK_CAUSE_HELD_FULL);
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_ENDED, d)->cause, RK_CAUSE_HELD_FULL);
    ck_assert_int_eq(effect_of(&fx, RK_FX_RELEASE_ROOM, d)->room.room, 4);
    ck_assert_uint_eq(counts_of(l).announced, 0);
    ck_assert_uint_eq(counts_of(l).tombstones, 0); /* its twin knows */
    rk_ledger_free(l);
}
END_TEST

/* ---- who comes first ---- */

START_TEST(a_prefill_that_ended_before_its_announcement_is_reported_to_whoever_announces_it) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0 + 1, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 0); /* nobody to tell yet */
    ck_assert_uint_eq(counts_of(l).tombstones, 1);
    announced(l, T0 + 2, 1);
    const rk_effect *told = effect_of(&fx, RK_FX_TELL_ENDED, 0); /* there is no leg any more */
    ck_assert_int_eq(told->cause, RK_CAUSE_CLIENT_CANCEL);
    ck_assert_int_eq(told->room.room, 1);
    ck_assert(!told->ever_submitted);
    ck_assert_uint_eq(counts_of(l).tombstones + counts_of(l).announced, 0); /* both have been here */
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_that_is_still_being_stopped_says_so_when_it_is_announced) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 500, &fx); /* unannounced: it went to the engine */
    submit(l, T0 + 500, a);
    rk_ledger_cancel(l, T0 + 600, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    announced(l, T0 + 700, 1);
    ck_assert(effect_of(&fx, RK_FX_TELL_ENDED, a)->ever_submitted);
    ck_assert_uint_eq(counts_of(l).tombstones, 0);
    rk_effects_clear(&fx);
    rk_ledger_slot_released(l, T0 + 800, a, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_QUIESCED, a));
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_announcement_that_comes_late_links_a_prefill_that_runs_already) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 500, &fx);
    submit(l, T0 + 500, a);
    admitted(l, T0 + 600, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, a));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_SUBMITTED, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, a)); /* not a second time */
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0 + 700, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_ENDED, a));
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_decode_that_was_admitted_before_the_link_came_up_says_so) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t legs[3];
    for (int i = 0; i < 3; i++)
        legs[i] = arrive_unlinked(l, T0, i + 1);
    submit(l, T0, legs[0]);
    rk_ledger_first_output(l, T0, legs[0], &fx);
    for (int i = 0; i < 3; i++) {
        announced(l, T0 + 1, i + 1);
        ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, legs[i]));
        ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ADMITTED), i < 2 ? 1 : 0); /* the third waits */
        ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_HANDED_OFF), i == 0 ? 1 : 0);
    }
    rk_ledger_free(l);
}
END_TEST

START_TEST(held_legs_are_spread_over_the_ranks) {
    rk_ledger_options o = linked_options(RK_ROLE_PREFILL);
    o.ranks = 3;
    rk_ledger *l = rk_ledger_new(&o);
    for (int i = 0; i < 3; i++) {
        (void)arrive(l, T0, i + 1);
        ck_assert_int_eq(v.state, RK_LEG_HELD);
        ck_assert_int_eq(v.rank, i);
    }
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_living_link_keeps_legs_held_though_nobody_announces_them) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t now = T0;
    for (int i = 1; i <= 12; i++) {
        (void)arrive(l, now, i);
        now += 10000;
        rk_effects_clear(&fx);
        rk_ledger_tick(l, now, &fx);
        rk_ledger_link_seen(l, now); /* heartbeats of some decode */
    }
    (void)arrive(l, now, 20);
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_announcement_starts_the_count_of_unannounced_legs_anew) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    for (int i = 1; i <= 8; i++) {
        (void)arrive(l, T0, i);
        rk_effects_clear(&fx);
        rk_ledger_tick(l, T0 + 500, &fx);
    }
    announced(l, T0 + 1000, 8); /* late, but somebody speaks */
    (void)arrive(l, T0 + 60000, 9);
    ck_assert_int_eq(v.state, RK_LEG_HELD); /* no link for a minute, but not eight in a row */
    rk_ledger_free(l);
}
END_TEST

/* ---- no writer is left ---- */

START_TEST(a_decode_that_waits_for_the_quiet_of_a_prefill_that_never_came_is_told_of_it) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    ended(l, T0, 1, RK_CAUSE_TWIN_MISSING, true);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_QUIESCED, 0));
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_QUIESCED, 0)->room.room, 1);
    (void)arrive(l, T0 + 1, 1); /* and the stone keeps the word */
    ck_assert_int_eq(v.cause, RK_CAUSE_TWIN_ENDED);
    rk_ledger_free(l);

    rk_ledger_options o = linked_options(RK_ROLE_PREFILL);
    o.tombstones = 0;
    l = rk_ledger_new(&o);
    ended(l, T0, 1, RK_CAUSE_TWIN_MISSING, true);
    ck_assert_uint_eq(fx.count, 0); /* nothing is remembered, so nothing is promised */
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_end_that_answers_our_own_leaves_no_tombstone) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ended(l, T0 + 1, 1, RK_CAUSE_TWIN_ENDED, false);
    ck_assert_uint_eq(fx.count, 0);
    ck_assert_uint_eq(counts_of(l).tombstones, 0);
    (void)arrive(l, T0 + 2, 1);
    ck_assert(v.accepted);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_linked_decode_is_not_aborted_while_its_prefill_may_write) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 299999, &fx);
    ck_assert_uint_eq(fx.count, 0); /* handoff_seconds is for those without a link */
    rk_ledger_tick(l, T0 + 300000, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a)); /* the engine's own deadline is over */
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(the_agent_is_asked_once_and_the_engine_told_once) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    ended(l, T0 + 1, 1, RK_CAUSE_ENGINE_ERROR, true);
    size_t asked = count_of(&fx, RK_FX_RELEASE_ROOM);
    size_t aborts = count_of(&fx, RK_FX_ABORT_ENGINE);
    for (int i = 0; i < 3; i++) {
        quiesced(l, T0 + 2, 1);
        asked += count_of(&fx, RK_FX_RELEASE_ROOM);
        aborts += count_of(&fx, RK_FX_ABORT_ENGINE);
        ended(l, T0 + 3, 1, RK_CAUSE_ENGINE_ERROR, false);
        asked += count_of(&fx, RK_FX_RELEASE_ROOM);
        aborts += count_of(&fx, RK_FX_ABORT_ENGINE);
    }
    ck_assert_uint_eq(asked, 1);
    ck_assert_uint_eq(aborts, 1);
    rk_ledger_aborted(l, T0 + 4, a, RK_LEDGER_ALL, &fx); /* a mark, no proof */
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    rk_ledger_slot_released(l, T0 + 5, a, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_that_completed_lets_an_ended_decode_be_aborted_now) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ended(l, T0 + 1, 1, RK_CAUSE_COMPLETED, true); /* it was faster than the word to stop */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_RELEASE_ROOM, a));
    rk_ledger_aborted(l, T0 + 2, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_output_of_a_linked_decode_that_ended_means_that_its_kv_is_here) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    ended(l, T0, 1, RK_CAUSE_PEER_LOST, true);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_RESOURCE_EXHAUSTED);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0 + 1, a, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    quiesced(l, T0 + 2, 1);
    ck_assert_uint_eq(fx.count, 0); /* the abort is on its way already */
    rk_ledger_aborted(l, T0 + 3, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_decode_whose_prefill_is_over_has_nobody_to_tell) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    ended(l, T0, 1, RK_CAUSE_COMPLETED, true);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0 + 1, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_that_failed_has_its_room_ended_in_the_engine_and_a_completed_one_has_not) {
    static const rk_cause causes[] = {RK_CAUSE_ENGINE_ERROR, RK_CAUSE_COMPLETED};
    for (int linked = 0; linked < 2; linked++) {
        rk_ledger_options o = linked_options(RK_ROLE_PREFILL);
        o.linked = linked;
        rk_ledger *l = rk_ledger_new(&o);
        for (int i = 0; i < 2; i++) {
            uint64_t a = arrive(l, T0, i + 1);
            rk_effects_clear(&fx);
            if (linked)
                admitted(l, T0, i + 1);
            submit(l, T0, a);
            rk_effects_clear(&fx);
            rk_ledger_finished(l, T0, a, 0, causes[i], &fx);
            ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), i == 0 ? 1 : 0);
            /* Its last output is the engine's word that it writes no more. */
            ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_QUIESCED), linked && i == 0 ? 1 : 0);
        }
        assert_empty(l, T0);
        rk_ledger_free(l);
    }
}
END_TEST

START_TEST(a_dead_engine_is_no_proof_that_a_prefill_is_quiet) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    admitted(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_end_all(l, T0 + 1, RK_CAUSE_ENGINE_DEAD, &fx);
    ck_assert(effect_of(&fx, RK_FX_TELL_ENDED, a)->ever_submitted);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_QUIESCED), 0);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

/* ---- codes ---- */

START_TEST(a_leg_ended_by_its_twin_carries_the_causes_code) {
    static const struct {
        rk_cause cause;
        rk_code code;
        bool retry;
    } table[] = {
        {RK_CAUSE_FULL, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_HELD_FULL, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_WAIT_TIMEOUT, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_HELD_TIMEOUT, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_TWIN_MISSING, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_PEER_LOST, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_DRAIN, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_ENGINE_DEAD, RK_RESOURCE_EXHAUSTED, true},
        {RK_CAUSE_CLIENT_CANCEL, RK_ABORTED, false},
        {RK_CAUSE_ABORT_RPC, RK_ABORTED, false},
        {RK_CAUSE_SUPERSEDED, RK_ABORTED, false},
        {RK_CAUSE_NEVER_FITS, RK_INVALID_ARGUMENT, false},
        {RK_CAUSE_BAD_RANK, RK_INVALID_ARGUMENT, false},
        {RK_CAUSE_DUPLICATE_ID, RK_ALREADY_EXISTS, false},
        {RK_CAUSE_ENGINE_ERROR, RK_INTERNAL, false},
    };
    for (int role = 0; role < 2; role++) {
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            rk_ledger *l = linked_ledger(role ? RK_ROLE_DECODE : RK_ROLE_PREFILL);
            uint64_t a = arrive(l, T0, 1);
            announced(l, T0, 1);
            ended(l, T0, 1, table[i].cause, false);
            const rk_effect *end = effect_of(&fx, RK_FX_END, a);
            ck_assert_ptr_nonnull(end);
            ck_assert_int_eq(end->cause, RK_CAUSE_TWIN_ENDED);
            ck_assert_int_eq(end->twin_cause, table[i].cause);
            ck_assert_msg(end->code == table[i].code, "%s: %s", rk_cause_name(table[i].cause),
                          rk_code_name(end->code));
            ck_assert_int_eq(end->retry, table[i].retry);
            ck_assert_uint_eq(counts_of(l).stranded, 1);
            assert_empty(l, T0);
            rk_ledger_free(l);
        }
    }
}
END_TEST

START_TEST(every_cause_and_state_has_a_name_of_its_own) {
    for (int a = 0; a < RK_CAUSES; a++)
        for (int b = 0; b < a; b++)
            ck_assert_str_ne(rk_cause_name((rk_cause)a), rk_cause_name((rk_cause)b));
    for (int a = 0; a < RK_LEG_STATES; a++)
        for (int b = 0; b < a; b++)
            ck_assert_str_ne(rk_leg_state_name((rk_leg_state)a), rk_leg_state_name((rk_leg_state)b));
    ck_assert_str_eq(rk_cause_name(RK_CAUSES), "unknown");
    ck_assert_str_eq(rk_leg_state_name(RK_LEG_STATES), "unknown");
    ck_assert_str_eq(rk_cause_name((rk_cause)-1), "unknown");
}
END_TEST

/* ---- off ---- */

START_TEST(with_rooms_off_the_link_changes_nothing) {
    rk_ledger_options o = linked_options(RK_ROLE_DECODE);
    o.enabled = false;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    ck_assert_uint_eq(fx.count, 1); /* RK_FX_ADMIT, and no word to anybody */
    submit(l, T0, a);
    announced(l, T0, 1);
    announced(l, T0, 2);
    ended(l, T0, 1, RK_CAUSE_CLIENT_CANCEL, false);
    ended(l, T0, 3, RK_CAUSE_CLIENT_CANCEL, false);
    quiesced(l, T0, 1);
    ck_assert_uint_eq(fx.count, 0);
    ck_assert_uint_eq(counts_of(l).tombstones + counts_of(l).announced, 0);
    ck_assert_uint_eq(rank_counts(l, T0, 0).running, 1);
    rk_ledger_free(l);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_refused_decode_tells_its_twin_why,
        the_twin_of_a_live_room_does_not_hear_of_a_duplicate,
        a_draining_worker_tells_the_twins_of_those_it_refuses,
        a_refused_prefill_ends_its_room_in_the_engine_and_tells_who_announced_it,
        a_prefill_that_ended_before_its_announcement_is_reported_to_whoever_announces_it,
        a_prefill_that_is_still_being_stopped_says_so_when_it_is_announced,
        an_announcement_that_comes_late_links_a_prefill_that_runs_already,
        a_decode_that_was_admitted_before_the_link_came_up_says_so,
        held_legs_are_spread_over_the_ranks,
        a_living_link_keeps_legs_held_though_nobody_announces_them,
        an_announcement_starts_the_count_of_unannounced_legs_anew,
        a_decode_that_waits_for_the_quiet_of_a_prefill_that_never_came_is_told_of_it,
        an_end_that_answers_our_own_leaves_no_tombstone,
        a_linked_decode_is_not_aborted_while_its_prefill_may_write,
        the_agent_is_asked_once_and_the_engine_told_once,
        a_prefill_that_completed_lets_an_ended_decode_be_aborted_now,
        an_output_of_a_linked_decode_that_ended_means_that_its_kv_is_here,
        a_decode_whose_prefill_is_over_has_nobody_to_tell,
        a_prefill_that_failed_has_its_room_ended_in_the_engine_and_a_completed_one_has_not,
        a_dead_engine_is_no_proof_that_a_prefill_is_quiet,
        a_leg_ended_by_its_twin_carries_the_causes_code,
        every_cause_and_state_has_a_name_of_its_own,
        with_rooms_off_the_link_changes_nothing,
    };
    return RUN_SUITE("ledger and link", tests);
}
