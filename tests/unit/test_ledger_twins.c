/* The ledger's seams for the room link: what the twin's worker says, as events. */
#include "ledger_support.h"

#include <stdlib.h>

static rk_verdict v;
static rk_effects fx;

static rk_ledger *linked_ledger(rk_role role) {
    rk_ledger_options o = options_of(role, 2, 8);
    o.linked = true;
    o.held_places = 3;
    return rk_ledger_new(&o);
}

static uint64_t arrive(rk_ledger *ledger, uint64_t now, int64_t room) {
    return arrive_with(ledger, now, (leg_args){.room = room, .linked = true}, &v, &fx);
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

/* ---- the prefill's side ---- */

START_TEST(an_announced_prefill_is_held_until_its_decode_is_admitted) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_OPEN, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_ADMIT, a));
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    announced(l, T0 + 100, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, a));
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 20000, &fx); /* no announce_ms any more */
    ck_assert_uint_eq(fx.count, 0);
    admitted(l, T0 + 20001, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, a));
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0 + 20002, a, &fx), 0);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_SUBMITTED, a));
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_SUBMITTED, a)->room.room, 1);
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0 + 20003, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_ENDED, a)->cause, RK_CAUSE_COMPLETED);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_unannounced_prefill_goes_to_its_engine_after_announce_ms) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 499, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_tick(l, T0 + 500, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, a));
    submit(l, T0 + 500, a);
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0 + 600, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 0); /* nobody to tell */
    rk_ledger_free(l);
}
END_TEST

START_TEST(where_nobody_announces_legs_are_not_held_until_a_link_appears) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t now = T0;
    for (int i = 1; i <= 8; i++) {
        (void)arrive(l, now, i);
        ck_assert_int_eq(v.state, RK_LEG_HELD);
        now += 1000;
        rk_effects_clear(&fx);
        rk_ledger_tick(l, now, &fx);
    }
    (void)arrive(l, now, 20);
    ck_assert_int_eq(v.state, RK_LEG_HELD); /* eight in a row, but not yet 30 s */
    now = T0 + 30000;
    rk_effects_clear(&fx);
    rk_ledger_tick(l, now, &fx);
    (void)arrive(l, now, 21);
    ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
    announced(l, now, 99);
    (void)arrive(l, now, 22);
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_announcement_before_the_leg_is_remembered_for_twin_seconds) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    announced(l, T0, 1);
    admitted(l, T0, 2);
    ck_assert_uint_eq(counts_of(l).announced, 2);
    uint64_t a = arrive(l, T0 + 10, 1);
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, a));
    uint64_t b = arrive(l, T0 + 10, 2);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, b));
    announced(l, T0 + 20, 3);
    rk_ledger_tick(l, T0 + 10020, &fx);
    ck_assert_uint_eq(counts_of(l).announced, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(too_many_held_legs_are_a_refusal) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    for (int i = 1; i <= 3; i++)
        (void)arrive(l, T0, i);
    (void)arrive(l, T0, 4);
    ck_assert_int_eq(v.cause, RK_CAUSE_HELD_FULL);
    ck_assert_int_eq(v.code, RK_RESOURCE_EXHAUSTED);
    ck_assert(v.retry);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_held_leg_outlives_its_decodes_wait_and_not_much_more) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0 + 100, 1);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 100 + 34999, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_tick(l, T0 + 100 + 35000, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->cause, RK_CAUSE_HELD_TIMEOUT);
    ck_assert(!effect_of(&fx, RK_FX_TELL_ENDED, a)->ever_submitted);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_whose_decode_ended_is_never_submitted_or_stopped_now) {
    rk_ledger *l = linked_ledger(RK_ROLE_PREFILL);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    ended(l, T0, 1, RK_CAUSE_WAIT_TIMEOUT, true);
    const rk_effect *end = effect_of(&fx, RK_FX_END, a);
    ck_assert_int_eq(end->cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(end->twin_cause, RK_CAUSE_WAIT_TIMEOUT);
    ck_assert_int_eq(end->code, RK_RESOURCE_EXHAUSTED);
    ck_assert(end->retry);
    assert_empty(l, T0);

    uint64_t b = arrive(l, T0, 2);
    admitted(l, T0, 2);
    submit(l, T0, b);
    ended(l, T0, 2, RK_CAUSE_CLIENT_CANCEL, true);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, b)->code, RK_ABORTED);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, b));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, b));
    rk_effects_clear(&fx);
    rk_ledger_aborted(l, T0, b, RK_LEDGER_ALL, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_QUIESCED), 0); /* a mark is no proof */
    rk_ledger_slot_released(l, T0, b, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_QUIESCED, b));
    ck_assert_uint_eq(counts_of(l).stranded, 2);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

/* ---- the decode's side ---- */

START_TEST(a_linked_decode_tells_its_twin_what_becomes_of_it) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, a));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_ADMITTED, a));
    announced(l, T0 + 1, 1);
    submit(l, T0 + 1, a);
    rk_effects_clear(&fx);
    rk_ledger_first_output(l, T0 + 2, a, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_HANDED_OFF, a));
    rk_effects_clear(&fx);
    rk_ledger_finished(l, T0 + 3, a, 0, RK_CAUSE_COMPLETED, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_ENDED, a));
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_twin_that_never_shows_up_ends_the_decode) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 10000, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->cause, RK_CAUSE_TWIN_MISSING);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->code, RK_RESOURCE_EXHAUSTED);
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_dead_prefill_ends_a_waiting_decode_at_once) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    (void)arrive(l, T0, 1);
    (void)arrive(l, T0, 2);
    uint64_t c = arrive(l, T0, 3);
    ck_assert_int_eq(v.state, RK_LEG_WAITING);
    ended(l, T0, 3, RK_CAUSE_ENGINE_ERROR, false);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, c)->code, RK_INTERNAL);
    ck_assert(!effect_of(&fx, RK_FX_END, c)->retry);
    ck_assert_uint_eq(rank_counts(l, T0, 0).waiting, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_submitted_decode_keeps_its_slot_until_no_prefill_can_write) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    ended(l, T0 + 1, 1, RK_CAUSE_ENGINE_ERROR, true);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_RELEASE_ROOM, a)); /* a writer may live */
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    quiesced(l, T0 + 2, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, a));
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1); /* asked, not done */
    rk_ledger_slot_released(l, T0 + 3, a, &fx);
    assert_empty(l, T0);

    uint64_t b = arrive(l, T0, 2);
    announced(l, T0, 2);
    submit(l, T0, b);
    ended(l, T0 + 1, 2, RK_CAUSE_WAIT_TIMEOUT, false); /* never in an engine: nothing to wait for */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, b));
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_handed_off_decode_is_not_disturbed_by_its_twins_end) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    rk_ledger_first_output(l, T0, a, &fx);
    ended(l, T0, 1, RK_CAUSE_PEER_LOST, true);
    ck_assert_uint_eq(fx.count, 0);
    uint64_t b = arrive(l, T0, 2);
    announced(l, T0, 2);
    submit(l, T0, b);
    ended(l, T0, 2, RK_CAUSE_COMPLETED, true); /* its KV has gone out: the same as handed off */
    ended(l, T0, 2, RK_CAUSE_PEER_LOST, true);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_cancel(l, T0, b, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, b)); /* no need to wait any more */
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_cancelled_linked_decode_tells_its_twin_and_waits_for_its_quiet) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    uint64_t a = arrive(l, T0, 1);
    announced(l, T0, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_ENDED, a));
    ck_assert(effect_of(&fx, RK_FX_TELL_ENDED, a)->ever_submitted);
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    quiesced(l, T0 + 5, 1);
    quiesced(l, T0 + 6, 1); /* restated */
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE), 0);
    rk_ledger_slot_released(l, T0 + 7, a, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

/* ---- tombstones ---- */

START_TEST(a_room_that_died_before_its_leg_came_is_refused_once_with_the_causes_code) {
    rk_ledger *l = linked_ledger(RK_ROLE_DECODE);
    ended(l, T0, 1, RK_CAUSE_HELD_FULL, false);
    ck_assert_uint_eq(counts_of(l).tombstones, 1);
    (void)arrive(l, T0 + 1, 1);
    ck_assert(!v.accepted);
    ck_assert_int_eq(v.cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(v.twin_cause, RK_CAUSE_HELD_FULL);
    ck_assert_int_eq(v.code, RK_RESOURCE_EXHAUSTED);
    ck_assert(v.retry);
    (void)arrive(l, T0 + 2, 1); /* both legs have been here: the room may be used again */
    ck_assert(v.accepted);
    ended(l, T0, 2, RK_CAUSE_COMPLETED, true);
    ck_assert_uint_eq(counts_of(l).tombstones, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(tombstones_are_bounded_in_number_and_time) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 2, 8);
    o.linked = true;
    o.tombstones = 3;
    rk_ledger *l = rk_ledger_new(&o);
    for (int i = 1; i <= 5; i++)
        ended(l, T0 + (uint64_t)i, i, RK_CAUSE_CLIENT_CANCEL, false);
    ck_assert_uint_eq(counts_of(l).tombstones, 3);
    ck_assert_uint_eq(counts_of(l).tombstones_dropped, 2);
    (void)arrive(l, T0 + 10, 1); /* its stone was the oldest */
    ck_assert(v.accepted);
    rk_ledger_tick(l, T0 + 60004, &fx);
    ck_assert_uint_eq(counts_of(l).tombstones, 1);
    rk_ledger_tick(l, T0 + 60005, &fx);
    ck_assert_uint_eq(counts_of(l).tombstones, 0);
    rk_ledger_free(l);
}
END_TEST

/* ---- anything in any order ---- */

static unsigned pick(unsigned *seed, unsigned below) {
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

static void check_ends(const rk_effects *list, uint8_t *ends, size_t max) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].kind != RK_FX_END)
            continue;
        ck_assert_uint_lt(list->items[i].handle, max);
        ck_assert_uint_eq(ends[list->items[i].handle]++, 0); /* no leg ends twice */
    }
}

static void storm(rk_role role, unsigned seed) {
    enum { EVENTS = 60000 };
    static uint8_t ends[EVENTS + 1];
    memset(ends, 0, sizeof ends);
    rk_ledger_options o = options_of(role, 3, 5);
    o.linked = true;
    o.wait_ms = 500;
    o.announce_ms = 50;
    o.twin_ms = 200;
    o.handoff_ms = 300;
    o.transfer_ms = 2000;
    o.tombstones = 8;
    o.announced = 8;
    rk_ledger *l = rk_ledger_new(&o);
    uint64_t now = T0;
    uint64_t last = 0;
    for (int i = 0; i < EVENTS; i++) {
        int64_t number = 1 + pick(&seed, 20);
        rk_room room = room_of(number);
        uint64_t handle = last > 20 ? last - pick(&seed, 20) : 1 + pick(&seed, 5);
        rk_effects_clear(&fx);
        switch (pick(&seed, 14)) {
        case 0:
        case 1:
        case 2:
            last = arrive(l, now, number);
            break;
        case 3:
        case 4:
            (void)!rk_ledger_begin_submit(l, now, handle, &fx);
            break;
        case 5:
            rk_ledger_first_output(l, now, handle, &fx);
            break;
        case 6:
            rk_ledger_finished(l, now, handle, 0, RK_CAUSE_COMPLETED, &fx);
            break;
        case 7:
            rk_ledger_cancel(l, now, handle, RK_CAUSE_CLIENT_CANCEL, &fx);
            break;
        case 8:
            rk_ledger_aborted(l, now, handle, RK_LEDGER_ALL, &fx);
            break;
        case 9:
            (void)rk_ledger_twin_announced(l, now, 0, &room, &fx);
            break;
        case 10:
            (void)rk_ledger_twin_admitted(l, now, 0, &room, &fx);
            break;
        case 11:
            (void)rk_ledger_twin_ended(l, now, 0, &room, (rk_cause)(1 + pick(&seed, RK_CAUSES - 1)),
                                       pick(&seed, 2), &fx);
            break;
        case 12:
            (void)rk_ledger_twin_quiesced(l, now, 0, &room, &fx);
            break;
        default:
            now += pick(&seed, 40);
            rk_ledger_tick(l, now, &fx);
            break;
        }
        check_ends(&fx, ends, sizeof ends);
        rk_ledger_check(l);
    }
    for (int i = 0; i < 100; i++) { /* time alone brings everything to an end */
        now += 1000;
        rk_effects_clear(&fx);
        rk_ledger_tick(l, now, &fx);
        for (size_t k = 0; k < fx.count; k++)
            if (fx.items[k].kind == RK_FX_ADMIT)
                rk_ledger_cancel(l, now, fx.items[k].handle, RK_CAUSE_CLIENT_CANCEL, &fx);
    }
    rk_effects_clear(&fx);
    rk_ledger_end_all(l, now, RK_CAUSE_ENGINE_DEAD, &fx);
    assert_empty(l, now);
    rk_ledger_free(l);
}

START_TEST(no_order_of_link_events_breaks_a_decode) {
    storm(RK_ROLE_DECODE, 7);
}
END_TEST

START_TEST(no_order_of_link_events_breaks_a_prefill) {
    storm(RK_ROLE_PREFILL, 8);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        an_announced_prefill_is_held_until_its_decode_is_admitted,
        an_unannounced_prefill_goes_to_its_engine_after_announce_ms,
        where_nobody_announces_legs_are_not_held_until_a_link_appears,
        an_announcement_before_the_leg_is_remembered_for_twin_seconds,
        too_many_held_legs_are_a_refusal,
        a_held_leg_outlives_its_decodes_wait_and_not_much_more,
        a_prefill_whose_decode_ended_is_never_submitted_or_stopped_now,
        a_linked_decode_tells_its_twin_what_becomes_of_it,
        a_twin_that_never_shows_up_ends_the_decode,
        a_dead_prefill_ends_a_waiting_decode_at_once,
        a_submitted_decode_keeps_its_slot_until_no_prefill_can_write,
        a_handed_off_decode_is_not_disturbed_by_its_twins_end,
        a_cancelled_linked_decode_tells_its_twin_and_waits_for_its_quiet,
        a_room_that_died_before_its_leg_came_is_refused_once_with_the_causes_code,
        tombstones_are_bounded_in_number_and_time,
        no_order_of_link_events_breaks_a_decode,
        no_order_of_link_events_breaks_a_prefill,
    };
    return RUN_SUITE("ledger and twins", tests);
}
