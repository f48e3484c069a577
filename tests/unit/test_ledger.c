/* The ledger, event by event: claims, the line, deadlines, slots, duplicates, Abort. Time is a number. */
#include "ledger_support.h"

static rk_verdict v;
static rk_effects fx;

static uint64_t arrive(rk_ledger *ledger, uint64_t now, int64_t room) {
    return arrive_with(ledger, now, (leg_args){.room = room}, &v, &fx);
}

/* ---- claims and the line ---- */

START_TEST(a_free_slot_admits_at_once) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    ck_assert(v.accepted);
    ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, a));
    ck_assert_int_eq(effect_of(&fx, RK_FX_ADMIT, a)->rank, -1);
    ck_assert_uint_eq(rank_counts(l, T0, 0).held_slots, 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_full_window_makes_the_next_wait_and_a_finished_one_admits_it) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    ck_assert_uint_eq(fx.count, 0);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0 + 1, a, &fx);
    rk_ledger_finished(l, T0 + 2, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, a));
    rk_ledger_free(l);
}
END_TEST

START_TEST(beyond_the_line_is_a_refusal_with_its_numbers) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 2);
    rk_ledger *l = rk_ledger_new(&o);
    for (int i = 1; i <= 3; i++)
        (void)arrive(l, T0, i);
    uint64_t d = arrive(l, T0, 4);
    ck_assert(!v.accepted);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    ck_assert_int_eq(v.code, RK_RESOURCE_EXHAUSTED);
    ck_assert(v.retry);
    ck_assert_uint_eq(v.window, 1);
    ck_assert_uint_eq(v.admitted, 1);
    ck_assert_uint_eq(v.waiting, 2);
    ck_assert_uint_eq(v.waiting_places, 2);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, d));
    ck_assert_uint_eq(counts_of(l).refused[RK_CAUSE_FULL], 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(no_places_in_line_refuse_at_the_window) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 0);
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive(l, T0, 1);
    (void)arrive(l, T0, 2);
    ck_assert(v.accepted);
    (void)arrive(l, T0, 3);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_claim_of_three_at_the_head_is_not_overtaken_by_a_claim_of_one) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 4, 8);
    o.gate_aggregated = true;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 2}, &v, &fx);
    uint64_t b = arrive_with(l, T0, (leg_args){.id = "b", .n = 3}, &v, &fx);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    uint64_t c = arrive_with(l, T0, (leg_args){.id = "c", .n = 1}, &v, &fx);
    ck_assert_int_eq(v.state, RK_LEG_WAITING); /* it would fit, but b is before it */
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b)); /* 1 + 3 = 4 */
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, c));
    rk_ledger_finished(l, T0, a, 1, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, c));
    rk_ledger_free(l);
}
END_TEST

START_TEST(n_beyond_the_window_can_never_fit) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 4, 8);
    o.gate_aggregated = true;
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .n = 5}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_NEVER_FITS);
    ck_assert_int_eq(v.code, RK_INVALID_ARGUMENT);
    ck_assert(!v.retry);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(kv_tokens_gate_as_slots_do) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 8, 8);
    o.kv_tokens = 64;
    o.page_tokens = 16;
    o.reserve_tokens = 16;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.room = 1, .tokens = 17}, &v, &fx); /* 33 → 48 */
    ck_assert_uint_eq(rank_counts(l, T0, 0).claimed_tokens, 48);
    uint64_t b = arrive_with(l, T0, (leg_args){.room = 2, .tokens = 16}, &v, &fx); /* 32 do not fit */
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    (void)arrive_with(l, T0, (leg_args){.room = 3, .tokens = 60}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_NEVER_FITS);
    ck_assert_uint_eq(v.need_tokens, 80);
    ck_assert_uint_eq(v.kv_tokens, 64);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_uint_eq(rank_counts(l, T0, 0).claimed_tokens, 32);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_unknown_window_gates_nothing) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 0, 8);
    rk_ledger *l = rk_ledger_new(&o);
    for (int i = 1; i <= 100; i++) {
        (void)arrive(l, T0, i);
        ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
    }
    ck_assert_uint_eq(rank_counts(l, T0, 0).window, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(rooms_off_admits_everything_but_a_live_id_twice) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 0);
    o.enabled = false;
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .room = 1}, &v, &fx);
    uint64_t b = arrive_with(l, T0, (leg_args){.id = "b", .room = 1}, &v, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_OPEN, b));
    (void)arrive_with(l, T0, (leg_args){.id = "b", .room = 2}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ID);
    rk_ledger_free(l);
}
END_TEST

START_TEST(ranks_have_windows_and_lines_of_their_own) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    o.ranks = 2;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    ck_assert_int_eq(effect_of(&fx, RK_FX_ADMIT, a)->rank, 0);
    uint64_t b = arrive(l, T0, 2);
    ck_assert_int_eq(effect_of(&fx, RK_FX_ADMIT, b)->rank, 1); /* the least claimed */
    uint64_t c = arrive_with(l, T0, (leg_args){.room = 3, .rank = 2}, &v, &fx);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    ck_assert_int_eq(v.rank, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, c)); /* a slot of the other rank */
    (void)arrive_with(l, T0, (leg_args){.room = 4, .rank = 3}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_BAD_RANK);
    ck_assert_int_eq(v.code, RK_INVALID_ARGUMENT);
    rk_ledger_free(l);
}
END_TEST

/* ---- deadlines ---- */

START_TEST(a_leg_that_waits_too_long_is_refused_and_leaves_the_line) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive(l, T0, 1);
    uint64_t b = arrive(l, T0 + 5, 2);
    ck_assert_uint_eq(rk_ledger_next_deadline(l), T0 + 5 + 30000);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 30004, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_tick(l, T0 + 30005, &fx);
    const rk_effect *end = effect_of(&fx, RK_FX_END, b);
    ck_assert_ptr_nonnull(end);
    ck_assert_int_eq(end->cause, RK_CAUSE_WAIT_TIMEOUT);
    ck_assert_int_eq(end->code, RK_RESOURCE_EXHAUSTED);
    ck_assert(end->retry);
    ck_assert_uint_eq(rank_counts(l, T0, 0).waiting, 0);
    ck_assert_uint_eq(rk_ledger_next_deadline(l), UINT64_MAX);
    rk_ledger_free(l);
}
END_TEST

/* ---- cancels: the leg and the slot ---- */

START_TEST(a_cancel_in_the_line_or_before_submission_frees_at_once) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    uint64_t c = arrive(l, T0, 3);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, b, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx); /* admitted, not submitted */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, c));
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, a, &fx), -ECANCELED);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, c, &fx), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_unlinked_decode_cancelled_before_its_kv_keeps_the_slot_until_the_first_output) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0 + 10, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(fx.count, 0); /* no abort yet, nobody admitted */
    ck_assert_uint_eq(rank_counts(l, T0 + 110, 0).releasing, 1);
    ck_assert_uint_eq(rank_counts(l, T0 + 110, 0).oldest_releasing_ms, 100);
    rk_ledger_first_output(l, T0 + 200, a, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, b));
    rk_effects_clear(&fx);
    rk_ledger_aborted(l, T0 + 201, a, RK_LEDGER_ALL, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(without_a_first_output_the_engine_is_told_after_handoff_and_the_slot_is_free_at_its_deadline) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive_with(l, T0, (leg_args){.room = 2}, &v, &fx);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0 + 10, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_cancel(l, T0 + 10, b, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_tick(l, T0 + 10 + 30000, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    rk_effects_clear(&fx);
    rk_ledger_aborted(l, T0 + 30011, a, RK_LEDGER_ALL, &fx); /* only a mark in the engine: the slot stays */
    ck_assert_uint_eq(rank_counts(l, T0 + 30011, 0).releasing, 1);
    rk_ledger_first_output(l, T0 + 30012, a + 100, &fx); /* somebody else's */
    rk_ledger_tick(l, T0 + 299999, &fx);
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    rk_ledger_tick(l, T0 + 300000, &fx); /* counted from the submission */
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_release_agent_frees_the_slot_of_an_ended_leg_and_of_no_other) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, a);
    submit(l, T0, b);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_slot_released(l, T0, a, &fx);
    rk_ledger_slot_released(l, T0, b, &fx); /* live */
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 0);
    ck_assert_uint_eq(rank_counts(l, T0, 0).held_slots, 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_running_decode_is_aborted_at_once_and_only_once) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0, a, &fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_SLOW_READER, &fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "r1", 2, &fx), 0); /* it is over */
    rk_ledger_tick(l, T0 + 40000, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    ck_assert_uint_eq(counts_of(l).ended[RK_CAUSE_CLIENT_CANCEL], 1);
    rk_ledger_aborted(l, T0 + 1, a, RK_LEDGER_ALL, &fx);
    rk_ledger_aborted(l, T0 + 2, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_last_output_after_the_cancel_frees_the_slot_too) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_finished(l, T0 + 5, a, 0, RK_CAUSE_ENGINE_ERROR, &fx);
    rk_ledger_aborted(l, T0 + 6, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_engine_that_takes_no_request_leaves_no_slot_behind) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_submit_failed(l, T0, a, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_UNAVAILABLE);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    rk_ledger_free(l);
}
END_TEST

/* ---- prefill ---- */

START_TEST(an_unlinked_prefill_opens_and_goes_to_its_engine_at_once) {
    rk_ledger_options o = options_of(RK_ROLE_PREFILL, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    for (int i = 1; i <= 10; i++) { /* no window here */
        uint64_t a = arrive(l, T0, i);
        ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_OPEN, a));
        ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, a));
        ck_assert(effect_of(&fx, RK_FX_OPEN, a) < effect_of(&fx, RK_FX_ADMIT, a));
    }
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_cancelled_prefill_is_aborted_in_its_engine_at_once) {
    rk_ledger_options o = options_of(RK_ROLE_PREFILL, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, a));
    rk_ledger_aborted(l, T0, a, RK_LEDGER_ALL, &fx); /* a mark: its engine may wait for the decode still */
    (void)arrive_with(l, T0, (leg_args){.id = "other", .room = 1}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ROOM);
    rk_ledger_slot_released(l, T0, a, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_silent_engine_keeps_its_slots_and_a_dead_one_does_not) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, b);
    rk_ledger_first_output(l, T0, b, &fx);
    uint64_t c = arrive(l, T0, 3);
    rk_effects_clear(&fx);
    rk_ledger_engine_silent(l, T0, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, a));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, c));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ABORT_ENGINE, a)); /* its KV may still come */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, b));
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 2);
    rk_ledger_aborted(l, T0, b, RK_LEDGER_ALL, &fx); /* it is back */
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    rk_ledger_end_all(l, T0, RK_CAUSE_ENGINE_DEAD, &fx); /* and now its process has ended */
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

/* ---- duplicates ---- */

START_TEST(a_live_room_is_refused_a_second_time_and_usable_after_the_end) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 7}, &v, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "b", .room = 7}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ROOM);
    ck_assert_int_eq(v.code, RK_ALREADY_EXISTS);
    submit(l, T0, a);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "b", .room = 7}, &v, &fx);
    ck_assert(v.accepted);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_room_that_the_engine_still_holds_is_refused) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 7}, &v, &fx);
    submit(l, T0, a);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "b", .room = 7}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ROOM);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_submitted_id_is_refused_a_second_time) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 1}, &v, &fx);
    submit(l, T0, a);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ID);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_retry_of_an_unsubmitted_id_in_another_room_takes_its_place) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 4);
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive_with(l, T0, (leg_args){.id = "x", .room = 1}, &v, &fx);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    uint64_t again = arrive_with(l, T0, (leg_args){.id = "a", .room = 3}, &v, &fx);
    ck_assert(v.accepted);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->cause, RK_CAUSE_SUPERSEDED);
    ck_assert_uint_eq(rank_counts(l, T0, 0).waiting, 1);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, again));
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_abort_while_an_older_life_is_ending_is_charged_to_that_one) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 4, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 1}, &v, &fx);
    submit(l, T0, a);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    uint64_t again = arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    ck_assert(v.accepted);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_uint_eq(fx.count, 0); /* the new life goes on */
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, again));
    rk_ledger_free(l);
}
END_TEST

/* ---- Abort ---- */

START_TEST(an_abort_ends_the_stream_with_ok_and_the_engine_requests_once) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 3}, &v, &fx);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 3);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_OK);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->cause, RK_CAUSE_ABORT_RPC);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_ABORT_ENGINE, a)->choice, RK_LEDGER_ALL);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 0);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    rk_ledger_aborted(l, T0, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_child_is_aborted_by_its_own_name_and_the_others_go_on) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "abc", .n = 2}, &v, &fx);
    uint64_t other = arrive_with(l, T0, (leg_args){.id = "abc-n0"}, &v, &fx); /* a name of its own */
    submit(l, T0, a);
    submit(l, T0, other);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "abc-n1", 6, &fx), 1);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_ABORT_ENGINE, a)->choice, 1);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_END_CHOICE, a)->choice, 1);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "abc-n1", 6, &fx), 0);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "abc-n9", 6, &fx), 0);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "abc-n0", 6, &fx), 1); /* the live id wins */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, other));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    rk_ledger_aborted(l, T0, a, 1, &fx);
    rk_ledger_aborted(l, T0, other, RK_LEDGER_ALL, &fx);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_child_aborted_before_the_submission_is_aborted_right_after_it) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 2}, &v, &fx);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a-n0", 4, &fx), 1);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    ck_assert_uint_eq(count_of(&fx, RK_FX_END_CHOICE), 1);
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, a, &fx), 0);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_ABORT_ENGINE, a)->choice, 0);
    rk_ledger_free(l);
}
END_TEST

/* ---- all at once ---- */

START_TEST(a_drain_refuses_who_waits_and_who_comes_and_lets_the_others_finish) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 100);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    for (int i = 2; i <= 71; i++) /* more than one list of effects holds */
        (void)arrive(l, T0, i);
    size_t ended = 0;
    rk_effects_clear(&fx);
    rk_ledger_drain(l, T0, &fx);
    for (;;) {
        ended += count_of(&fx, RK_FX_END);
        bool more = fx.more;
        rk_effects_clear(&fx);
        if (!more)
            break;
        rk_ledger_pump(l, T0, &fx);
    }
    ck_assert_uint_eq(ended, 70);
    (void)arrive(l, T0, 99);
    ck_assert_int_eq(v.cause, RK_CAUSE_DRAIN);
    ck_assert_int_eq(v.code, RK_UNAVAILABLE);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_dead_engine_ends_all_legs_and_frees_all_slots) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    (void)arrive(l, T0, 3);
    submit(l, T0, a);
    submit(l, T0, b);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, b, RK_CAUSE_CLIENT_CANCEL, &fx); /* its slot is RELEASING */
    rk_ledger_end_all(l, T0, RK_CAUSE_ENGINE_DEAD, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_END), 2);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ADMIT), 0);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_UNAVAILABLE);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(handles_are_never_the_same_twice) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 4);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t next = rk_ledger_new_handle(l);
        ck_assert_uint_gt(next, last);
        last = next;
    }
    rk_ledger_free(l);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_free_slot_admits_at_once,
        a_full_window_makes_the_next_wait_and_a_finished_one_admits_it,
        beyond_the_line_is_a_refusal_with_its_numbers,
        no_places_in_line_refuse_at_the_window,
        a_claim_of_three_at_the_head_is_not_overtaken_by_a_claim_of_one,
        n_beyond_the_window_can_never_fit,
        kv_tokens_gate_as_slots_do,
        an_unknown_window_gates_nothing,
        rooms_off_admits_everything_but_a_live_id_twice,
        ranks_have_windows_and_lines_of_their_own,
        a_leg_that_waits_too_long_is_refused_and_leaves_the_line,
        a_cancel_in_the_line_or_before_submission_frees_at_once,
        an_unlinked_decode_cancelled_before_its_kv_keeps_the_slot_until_the_first_output,
        without_a_first_output_the_engine_is_told_after_handoff_and_the_slot_is_free_at_its_deadline,
        a_release_agent_frees_the_slot_of_an_ended_leg_and_of_no_other,
        a_running_decode_is_aborted_at_once_and_only_once,
        a_last_output_after_the_cancel_frees_the_slot_too,
        an_engine_that_takes_no_request_leaves_no_slot_behind,
        an_unlinked_prefill_opens_and_goes_to_its_engine_at_once,
        a_cancelled_prefill_is_aborted_in_its_engine_at_once,
        a_silent_engine_keeps_its_slots_and_a_dead_one_does_not,
        a_live_room_is_refused_a_second_time_and_usable_after_the_end,
        a_room_that_the_engine_still_holds_is_refused,
        a_submitted_id_is_refused_a_second_time,
        a_retry_of_an_unsubmitted_id_in_another_room_takes_its_place,
        an_abort_while_an_older_life_is_ending_is_charged_to_that_one,
        an_abort_ends_the_stream_with_ok_and_the_engine_requests_once,
        a_child_is_aborted_by_its_own_name_and_the_others_go_on,
        a_child_aborted_before_the_submission_is_aborted_right_after_it,
        a_drain_refuses_who_waits_and_who_comes_and_lets_the_others_finish,
        a_dead_engine_ends_all_legs_and_frees_all_slots,
        handles_are_never_the_same_twice,
    };
    return RUN_SUITE("ledger", tests);
}
