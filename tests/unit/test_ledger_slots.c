/* The ledger's harder moments: late outputs, deaf engines, races around the submission, retries in a full
 * line, children aborted by name, more effects than a list holds. Each slot comes back, once. */
#include "ledger_support.h"

#include <stdlib.h>

static rk_verdict v;
static rk_effects fx;

static uint64_t arrive(rk_ledger *ledger, uint64_t now, int64_t room) {
    return arrive_with(ledger, now, (leg_args){.room = room}, &v, &fx);
}

static rk_ledger *decode(uint32_t window) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, window, 8);
    return rk_ledger_new(&o);
}

static uint32_t releasing(rk_ledger *ledger) {
    return rank_counts(ledger, T0, 0).releasing;
}

/* ---- the engine is late, or deaf ---- */

START_TEST(a_first_output_after_the_abort_frees_the_slot_since_the_engine_acts_on_its_mark) {
    rk_ledger *l = decode(1);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_tick(l, T0 + 30000, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    rk_ledger_aborted(l, T0 + 30001, a, RK_LEDGER_ALL, &fx);
    ck_assert_uint_eq(releasing(l), 1);
    rk_ledger_first_output(l, T0 + 40000, a, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(later_outputs_of_a_cancelled_decode_do_not_free_it_before_its_abort_is_taken) {
    rk_ledger *l = decode(1);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    for (int i = 0; i < 3; i++)
        rk_ledger_first_output(l, T0 + 5, a, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    ck_assert_uint_eq(releasing(l), 1);
    rk_ledger_aborted(l, T0 + 6, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_engine_that_never_takes_an_abort_gives_the_slot_back_after_transfer_seconds) {
    rk_ledger *l = decode(1);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0 + 10, a, &fx);
    rk_ledger_cancel(l, T0 + 20, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_tick(l, T0 + 300019, &fx);
    ck_assert_uint_eq(releasing(l), 1);
    ck_assert_uint_eq(rk_ledger_next_deadline(l), T0 + 300020);
    rk_ledger_tick(l, T0 + 300020, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_decode_cancelled_after_its_transfer_deadline_gets_its_slot_back_too) {
    rk_ledger *l = decode(1);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 300000, &fx); /* the engine should have ended it, and has not */
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_cancel(l, T0 + 400000, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_tick(l, T0 + 430000, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 1);
    rk_ledger_aborted(l, T0 + 430001, a, RK_LEDGER_ALL, &fx);
    ck_assert_uint_eq(releasing(l), 1);
    rk_ledger_tick(l, T0 + 730000, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_slot_freed_without_proof_is_told_to_the_engine_if_it_has_not_been_told) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 8);
    o.handoff_ms = 400000; /* longer than the engine's own deadline */
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_tick(l, T0 + 300000, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_aggregated_request_is_aborted_at_once_and_free_when_the_engine_took_it) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 2, 8);
    o.gate_aggregated = true;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 2}, &v, &fx);
    uint64_t b = arrive_with(l, T0, (leg_args){.id = "b"}, &v, &fx);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_SLOW_READER, &fx);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_ABORT_ENGINE, a)->choice, RK_LEDGER_ALL);
    ck_assert_uint_eq(releasing(l), 2);
    rk_ledger_aborted(l, T0, a, 1, &fx); /* one choice at a time is fine */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_uint_eq(releasing(l), 1);
    rk_ledger_aborted(l, T0, a, 0, &fx);
    ck_assert_uint_eq(releasing(l), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_abort_that_was_never_ordered_frees_nothing) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 2, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a"}, &v, &fx);
    submit(l, T0, a);
    rk_ledger_aborted(l, T0, a, RK_LEDGER_ALL, &fx);
    rk_ledger_aborted(l, T0, a + 1, RK_LEDGER_ALL, &fx);
    ck_assert_uint_eq(rank_counts(l, T0, 0).running, 1);
    rk_ledger_finished(l, T0, a, 7, RK_CAUSE_COMPLETED, &fx); /* no such choice */
    ck_assert_uint_eq(rank_counts(l, T0, 0).running, 1);
    rk_ledger_free(l);
}
END_TEST

/* ---- around the submission ---- */

START_TEST(a_request_that_ended_before_its_engine_refused_it_leaves_no_slot) {
    rk_ledger *l = decode(1);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL,
                     &fx); /* between begin_submit and the engine's answer */
    rk_ledger_submit_failed(l, T0, a, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    ck_assert_uint_eq(count_of(&fx, RK_FX_END), 0); /* the client is gone */
    ck_assert_uint_eq(releasing(l), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_leg_is_submitted_once) {
    rk_ledger *l = decode(2);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, a, &fx), -ECANCELED);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, 999, &fx), -ECANCELED);
    ck_assert_uint_eq(rank_counts(l, T0, 0).running, 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(words_about_legs_that_are_gone_are_ignored) {
    rk_ledger *l = decode(2);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0, a, &fx);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_aborted(l, T0, a, RK_LEDGER_ALL, &fx);
    rk_ledger_slot_released(l, T0, a, &fx);
    rk_ledger_submit_failed(l, T0, a, &fx);
    ck_assert_uint_eq(fx.count, 0);
    ck_assert_uint_eq(counts_of(l).ended[RK_CAUSE_COMPLETED], 1);
    ck_assert_uint_eq(counts_of(l).ended[RK_CAUSE_CLIENT_CANCEL], 0);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_admission_that_was_not_carried_out_is_forgotten_with_the_leg) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 60, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t legs[60];
    for (int i = 0; i < 60; i++) {
        legs[i] = arrive(l, T0, i + 1);
        submit(l, T0, legs[i]);
    }
    uint64_t waits = arrive(l, T0, 100);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    rk_effects_clear(&fx);
    fx.count = RK_EFFECTS_MAX; /* the caller's list has no room */
    rk_ledger_finished(l, T0, legs[0], 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert(fx.more);
    rk_ledger_cancel(l, T0, waits, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_pump(l, T0, &fx);
    ck_assert_uint_eq(fx.count, 0);
    ck_assert(!fx.more);
    rk_ledger_free(l);
}
END_TEST

/* ---- ids ---- */

START_TEST(a_retry_takes_the_place_of_its_first_try_in_a_full_line) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 1);
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive_with(l, T0, (leg_args){.id = "x", .room = 1}, &v, &fx);
    uint64_t first = arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "y", .room = 3}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .room = 4}, &v, &fx);
    ck_assert(v.accepted);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, first)->code, RK_ABORTED);
    ck_assert_uint_eq(counts_of(l).ended[RK_CAUSE_SUPERSEDED], 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(the_same_id_in_the_same_room_is_a_duplicate_whatever_its_state) {
    rk_ledger *l = decode(1);
    (void)arrive_with(l, T0, (leg_args){.id = "x", .room = 1}, &v, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    (void)arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_DUPLICATE_ID);
    ck_assert_int_eq(v.code, RK_ALREADY_EXISTS);
    ck_assert_uint_eq(rank_counts(l, T0, 0).waiting, 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_abort_of_the_new_life_is_not_charged_to_one_that_had_its_abort) {
    rk_ledger *l = decode(4);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .room = 1}, &v, &fx);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, a));
    uint64_t again = arrive_with(l, T0, (leg_args){.id = "a", .room = 2}, &v, &fx);
    ck_assert(v.accepted);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, again));
    rk_ledger_free(l);
}
END_TEST

START_TEST(each_ending_life_takes_one_abort_whatever_the_order_in_which_they_go) {
    rk_ledger *l = decode(4);
    uint64_t lives[3];
    for (int i = 0; i < 3; i++) {
        lives[i] = arrive_with(l, T0, (leg_args){.id = "a", .room = i + 1}, &v, &fx);
        submit(l, T0, lives[i]);
        if (i < 2)
            rk_ledger_cancel(l, T0, lives[i], RK_CAUSE_CLIENT_CANCEL, &fx);
    }
    rk_ledger_slot_released(l, T0, lives[1], &fx); /* the one in the middle is gone, with its charge */
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, lives[2]));
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, lives[2]));
    rk_ledger_slot_released(l, T0, lives[2], &fx); /* the newest goes first: the id names the oldest again */
    rk_ledger_slot_released(l, T0, lives[0], &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(room_zero_belongs_to_nobody_and_is_never_a_duplicate) {
    rk_ledger *l = decode(4);
    rk_room room = {.host = "2.2.2.2", .port = 8998, .room = 0};
    for (int i = 0; i < 3; i++) {
        char id[2] = {(char)('a' + i), '\0'};
        rk_leg_spec spec = {.handle = rk_ledger_new_handle(l), .request_id = id, .request_id_bytes = 1};
        spec.room = &room;
        spec.n = 1;
        spec.rank = -1;
        rk_effects_clear(&fx);
        ck_assert_int_eq(rk_ledger_arrive(l, T0, &spec, &v, &fx), 0);
        ck_assert(v.accepted);
    }
    ck_assert_uint_eq(rank_counts(l, T0, 0).held_slots, 3); /* they take slots like others */
    rk_ledger_free(l);
}
END_TEST

/* ---- children ---- */

START_TEST(a_child_is_found_though_a_namesake_is_still_ending) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t other = arrive_with(l, T0, (leg_args){.id = "abc-n0"}, &v, &fx);
    submit(l, T0, other);
    rk_ledger_cancel(l, T0, other, RK_CAUSE_CLIENT_CANCEL, &fx);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "abc", .n = 2}, &v, &fx);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "abc-n0", 6, &fx), 1);
    ck_assert_uint_eq(effect_of(&fx, RK_FX_END_CHOICE, a)->choice, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(names_that_are_no_childs_hit_nothing) {
    static const char *const names[] = {"abc-n01", "abc-n2",       "abc-n", "abc-nx", "abc-1",  "n0",
                                        "-n0",     "abc-n9999999", "",      "ab-n0",  "abc-n-1"};
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "abc", .n = 2}, &v, &fx);
    uint64_t one = arrive_with(l, T0, (leg_args){.id = "one"}, &v, &fx);
    submit(l, T0, a);
    submit(l, T0, one);
    rk_effects_clear(&fx);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        ck_assert_uint_eq(rk_ledger_abort(l, T0, names[i], strlen(names[i]), &fx), 0);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "one-n0", 6, &fx), 0); /* a request for one has no children */
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(the_last_child_aborted_by_name_ends_the_leg_without_another_ending) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 8, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 3}, &v, &fx);
    submit(l, T0, a);
    rk_ledger_finished(l, T0, a, 1, RK_CAUSE_COMPLETED, &fx);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a-n1", 4, &fx), 0); /* it has finished */
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a-n0", 4, &fx), 1);
    ck_assert_uint_eq(counts_of(l).legs[RK_LEG_SUBMITTED], 1);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a-n2", 4, &fx), 1);
    ck_assert_uint_eq(counts_of(l).legs[RK_LEG_ENDED], 1);
    ck_assert_uint_eq(count_of(&fx, RK_FX_END), 0);
    ck_assert_uint_eq(count_of(&fx, RK_FX_END_CHOICE), 2);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 2);
    rk_ledger_aborted(l, T0, a, RK_LEDGER_ALL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_abort_of_the_whole_spares_choices_that_had_theirs_or_have_finished) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 200, 8);
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t a = arrive_with(l, T0, (leg_args){.id = "a", .n = 150}, &v, &fx);
    submit(l, T0, a);
    rk_ledger_finished(l, T0, a, 0, RK_CAUSE_COMPLETED, &fx);
    rk_effects_clear(&fx);
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a-n7", 4, &fx), 1);
    uint8_t aborts[150] = {0};
    ck_assert_uint_eq(rk_ledger_abort(l, T0, "a", 1, &fx), 148);
    size_t lists = 0;
    for (;; lists++) {
        for (size_t i = 0; i < fx.count; i++)
            if (fx.items[i].kind == RK_FX_ABORT_ENGINE)
                aborts[fx.items[i].choice]++;
        bool more = fx.more;
        rk_effects_clear(&fx);
        if (!more)
            break;
        rk_ledger_pump(l, T0, &fx);
    }
    ck_assert_uint_gt(lists, 2); /* more than one list holds */
    for (int i = 0; i < 150; i++)
        ck_assert_uint_eq(aborts[i], i == 0 ? 0 : 1);
    rk_ledger_free(l);
}
END_TEST

/* ---- time and the rest ---- */

START_TEST(a_clock_that_steps_back_between_threads_loses_no_deadline) {
    rk_ledger *l = decode(1);
    (void)arrive(l, T0, 1);
    uint64_t b = arrive(l, T0 + 100, 2);
    uint64_t c = arrive(l, T0 + 95, 3); /* read its clock before, took the lock after */
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 30100, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, b));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, c));
    rk_ledger_free(l);
}
END_TEST

START_TEST(the_end_of_a_drain_ends_and_aborts_what_still_runs) {
    rk_ledger *l = decode(2);
    uint64_t a = arrive(l, T0, 1);
    uint64_t b = arrive(l, T0, 2);
    submit(l, T0, a);
    rk_ledger_first_output(l, T0, a, &fx);
    rk_effects_clear(&fx);
    rk_ledger_drain(l, T0, &fx);
    ck_assert_uint_eq(fx.count, 0); /* who was admitted may finish */
    rk_ledger_end_all(l, T0 + 30000, RK_CAUSE_DRAIN, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_UNAVAILABLE);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, b)->code, RK_UNAVAILABLE);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ABORT_ENGINE, b)); /* the engine never had it */
    ck_assert_uint_eq(counts_of(l).ended[RK_CAUSE_DRAIN], 2);
    ck_assert(counts_of(l).draining);
    rk_ledger_free(l);
}
END_TEST

START_TEST(kv_needs_beyond_all_numbers_can_never_fit) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 8, 8);
    o.kv_tokens = 1000;
    o.page_tokens = 16;
    o.reserve_tokens = UINT32_MAX;
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive_with(l, T0, (leg_args){.room = 1, .tokens = UINT64_MAX - 5}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_NEVER_FITS);
    ck_assert_uint_eq(v.need_tokens, UINT64_MAX);
    (void)arrive_with(l, T0, (leg_args){.room = 2, .n = 8, .tokens = UINT64_MAX / 4}, &v, &fx);
    ck_assert_int_eq(v.cause, RK_CAUSE_NEVER_FITS); /* the product does not wrap */
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(ungated_requests_are_spread_over_the_ranks_before_they_are_submitted) {
    rk_ledger_options o = options_of(RK_ROLE_NULL, 0, 0);
    o.ranks = 4;
    rk_ledger *l = rk_ledger_new(&o);
    uint32_t on[4] = {0};
    for (int i = 0; i < 40; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "id%d", i);
        (void)arrive_with(l, T0, (leg_args){.id = id}, &v, &fx);
        on[v.rank]++;
    }
    for (int r = 0; r < 4; r++)
        ck_assert_uint_eq(on[r], 10);
    rk_ledger_free(l);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_first_output_after_the_abort_frees_the_slot_since_the_engine_acts_on_its_mark,
        later_outputs_of_a_cancelled_decode_do_not_free_it_before_its_abort_is_taken,
        an_engine_that_never_takes_an_abort_gives_the_slot_back_after_transfer_seconds,
        a_decode_cancelled_after_its_transfer_deadline_gets_its_slot_back_too,
        a_slot_freed_without_proof_is_told_to_the_engine_if_it_has_not_been_told,
        an_aggregated_request_is_aborted_at_once_and_free_when_the_engine_took_it,
        an_abort_that_was_never_ordered_frees_nothing,
        a_request_that_ended_before_its_engine_refused_it_leaves_no_slot,
        a_leg_is_submitted_once,
        words_about_legs_that_are_gone_are_ignored,
        an_admission_that_was_not_carried_out_is_forgotten_with_the_leg,
        a_retry_takes_the_place_of_its_first_try_in_a_full_line,
        the_same_id_in_the_same_room_is_a_duplicate_whatever_its_state,
        an_abort_of_the_new_life_is_not_charged_to_one_that_had_its_abort,
        each_ending_life_takes_one_abort_whatever_the_order_in_which_they_go,
        room_zero_belongs_to_nobody_and_is_never_a_duplicate,
        a_child_is_found_though_a_namesake_is_still_ending,
        names_that_are_no_childs_hit_nothing,
        the_last_child_aborted_by_name_ends_the_leg_without_another_ending,
        an_abort_of_the_whole_spares_choices_that_had_theirs_or_have_finished,
        a_clock_that_steps_back_between_threads_loses_no_deadline,
        the_end_of_a_drain_ends_and_aborts_what_still_runs,
        kv_needs_beyond_all_numbers_can_never_fit,
        ungated_requests_are_spread_over_the_ranks_before_they_are_submitted,
    };
    return RUN_SUITE("ledger slots", tests);
}
