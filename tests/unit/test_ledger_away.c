/* Legs that name a prefill which is away for the moment: served without it, linked as soon as it is back, and
 * released when nobody is there who could write. */
#include "ledger_support.h"

static rk_verdict v;
static rk_effects fx;

enum { PEER = 1, OTHER = 2 };

static rk_ledger *decode(void) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 4, 4);
    o.linked = true;
    o.peers = 3;
    return rk_ledger_new(&o);
}

static uint64_t arrive_for(rk_ledger *l, uint32_t peer, int64_t number) {
    char id[24];
    rk_room room = room_of(number);
    (void)snprintf(id, sizeof id, "r%lld", (long long)number);
    rk_leg_spec spec = {.handle = rk_ledger_new_handle(l),
                        .request_id = id,
                        .request_id_bytes = strlen(id),
                        .room = &room,
                        .n = 1,
                        .rank = -1,
                        .linked = true,
                        .peer = peer};
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_arrive(l, T0, &spec, &v, &fx), 0);
    ck_assert(v.accepted);
    return spec.handle;
}

static uint64_t submitted_for(rk_ledger *l, uint32_t peer, int64_t number) {
    uint64_t handle = arrive_for(l, peer, number);
    ck_assert_int_eq(rk_ledger_begin_submit(l, T0, handle, &fx), 0);
    return handle;
}

START_TEST(a_leg_that_names_an_absent_peer_is_linked_when_it_comes_up) {
    rk_ledger *l = decode();
    uint64_t a = submitted_for(l, PEER, 1);
    uint64_t b = submitted_for(l, OTHER, 2);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_OPENED), 0);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0 + 1, PEER, &fx);
    const rk_effect *told = effect_of(&fx, RK_FX_TELL_ADMITTED, a);
    ck_assert_ptr_nonnull(told);
    ck_assert_uint_eq(told->peer, PEER);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_TELL_OPENED, a));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_TELL_OPENED, b)); /* another peer's */
    /* From now on its twin must come, as that of any linked leg. */
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 1 + 10000, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, a)->cause, RK_CAUSE_TWIN_MISSING);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, b));
    rk_ledger_free(l);
}
END_TEST

START_TEST(one_that_ended_while_its_peer_was_away_is_told_of_and_released_by_its_quiet) {
    rk_ledger *l = decode();
    uint64_t a = submitted_for(l, PEER, 1);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0 + 1, PEER, &fx);
    ck_assert_int_eq(effect_of(&fx, RK_FX_TELL_ENDED, a)->cause, RK_CAUSE_CLIENT_CANCEL);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_RELEASE_ROOM, a)); /* it may be written into */
    rk_room room = room_of(1);
    ck_assert(rk_ledger_twin_quiesced(l, T0 + 2, PEER, &room, &fx));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, a));
    rk_ledger_slot_released(l, T0 + 3, a, &fx);
    assert_empty(l, T0 + 3);
    rk_ledger_free(l);
}
END_TEST

START_TEST(where_nobody_is_nobody_writes) {
    rk_ledger *l = decode();
    uint64_t unlinked = submitted_for(l, PEER, 1);
    rk_ledger_peer_expected(l, PEER);
    uint64_t expected = submitted_for(l, PEER, 2);
    uint64_t live = submitted_for(l, PEER, 3);
    uint64_t others = submitted_for(l, OTHER, 4);
    uint64_t ended[] = {unlinked, expected, others};
    for (size_t i = 0; i < 3; i++)
        rk_ledger_cancel(l, T0, ended[i], RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_writers_gone(l, T0, PEER, &fx); /* proof for those that were told to the dead worker: none */
    ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), 0);
    rk_ledger_nobody_there(l, T0, PEER, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, unlinked));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, expected));
    ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), 2);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, live));
    rk_effects_clear(&fx);
    rk_ledger_nobody_there(l, T0, PEER, &fx); /* asked once */
    ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_leg_that_is_handed_off_is_left_alone) {
    rk_ledger *l = decode();
    uint64_t a = submitted_for(l, PEER, 1);
    rk_ledger_first_output(l, T0, a, &fx);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0, PEER, &fx);
    rk_ledger_nobody_there(l, T0, PEER, &fx);
    rk_ledger_peer_lost(l, T0, PEER, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_free(l);
}
END_TEST

START_TEST(an_end_that_came_before_the_link_is_told_when_it_is_up) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 1);
    o.linked = true;
    o.peers = 3;
    rk_ledger *l = rk_ledger_new(&o);
    rk_room refused = room_of(9);
    rk_ledger_peer_expected(l, PEER);
    (void)submitted_for(l, PEER, 1);
    uint64_t waiting = arrive_for(l, PEER, 2);
    rk_leg_spec spec = {.handle = rk_ledger_new_handle(l),
                        .request_id = "x",
                        .request_id_bytes = 1,
                        .room = &refused,
                        .n = 1,
                        .rank = -1,
                        .linked = true,
                        .peer = PEER};
    ck_assert_int_eq(rk_ledger_arrive(l, T0, &spec, &v, &fx), 0);
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    rk_ledger_cancel(l, T0, waiting, RK_CAUSE_CLIENT_CANCEL, &fx);
    ck_assert_uint_eq(counts_of(l).tombstones, 2);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0 + 1, OTHER, &fx); /* nothing of it concerns this one */
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 0);
    rk_ledger_peer_up(l, T0 + 1, PEER, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 2);
    for (size_t i = 0; i < fx.count; i++) {
        if (fx.items[i].kind != RK_FX_TELL_ENDED)
            continue;
        bool full = fx.items[i].room.room == 9;
        ck_assert_int_eq(fx.items[i].cause, full ? RK_CAUSE_FULL : RK_CAUSE_CLIENT_CANCEL);
        ck_assert_uint_eq(fx.items[i].peer, PEER);
        ck_assert(!fx.items[i].ever_submitted);
    }
    ck_assert_uint_eq(counts_of(l).tombstones, 0); /* told once */
    rk_ledger_free(l);
}
END_TEST

START_TEST(legs_in_line_that_a_lost_link_ends_are_told_of_on_the_next_one) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 1);
    o.linked = true;
    o.peers = 3;
    rk_ledger *l = rk_ledger_new(&o);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0, PEER, &fx);
    (void)submitted_for(l, PEER, 1);
    (void)arrive_for(l, PEER, 2);
    rk_ledger_peer_lost(l, T0, PEER, &fx);
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0 + 1, PEER, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_TELL_ENDED), 2); /* the one in its engine, and the one in line */
    rk_ledger_free(l);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_leg_that_names_an_absent_peer_is_linked_when_it_comes_up,
        one_that_ended_while_its_peer_was_away_is_told_of_and_released_by_its_quiet,
        where_nobody_is_nobody_writes,
        a_leg_that_is_handed_off_is_left_alone,
        an_end_that_came_before_the_link_is_told_when_it_is_up,
        legs_in_line_that_a_lost_link_ends_are_told_of_on_the_next_one,
    };
    return RUN_SUITE("ledger and peers that are away", tests);
}
