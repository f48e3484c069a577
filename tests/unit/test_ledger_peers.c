/* What becomes of legs when the link to their twin's worker comes up, is lost, or never was; whom a worker
 * believes; and what twins are told when that is kept apart. */
#include "ledger_support.h"

#include <stdlib.h>

static rk_verdict v;
static rk_effects fx;
static rk_effects tells;

static rk_ledger_options peer_options(rk_role role) {
    rk_ledger_options o = options_of(role, 2, 8);
    o.linked = true;
    o.tells_apart = true;
    o.peers = 4;
    o.peer_rooms = 5;
    return o;
}

static rk_ledger *ledger_of(rk_role role) {
    rk_ledger_options o = peer_options(role);
    return rk_ledger_new(&o);
}

static uint64_t arrive(rk_ledger *l, uint64_t now, int64_t number, uint32_t peer) {
    char id[32];
    (void)snprintf(id, sizeof id, "r%lld", (long long)number);
    rk_room room = room_of(number);
    rk_leg_spec spec = {
        .handle = rk_ledger_new_handle(l),
        .request_id = id,
        .request_id_bytes = strlen(id),
        .room = &room,
        .n = 1,
        .rank = -1,
        .linked = peer != 0,
        .peer = peer,
    };
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_arrive(l, now, &spec, &v, &fx), 0);
    return spec.handle;
}

static const rk_leg *leg_of(rk_ledger *l, uint64_t handle) {
    return rk_ledger_find(l, handle);
}

static void take(rk_ledger *l) {
    rk_effects_clear(&tells);
    rk_ledger_take_tells(l, &tells);
}

static size_t told(rk_effect_kind kind, uint64_t handle) {
    size_t count = 0;
    for (size_t i = 0; i < tells.count; i++)
        count += tells.items[i].kind == kind && tells.items[i].handle == handle ? 1 : 0;
    return count;
}

static void up(rk_ledger *l, uint32_t peer) {
    rk_effects_clear(&fx);
    rk_ledger_peer_up(l, T0, peer, &fx);
}

static void lost(rk_ledger *l, uint32_t peer) {
    rk_effects_clear(&fx);
    rk_ledger_peer_lost(l, T0, peer, &fx);
}

static bool announced(rk_ledger *l, uint64_t now, uint32_t peer, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    return rk_ledger_twin_announced(l, now, peer, &room, &fx);
}

static bool admitted(rk_ledger *l, uint32_t peer, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    return rk_ledger_twin_admitted(l, T0, peer, &room, &fx);
}

static bool ended(rk_ledger *l, uint32_t peer, int64_t number, rk_cause cause) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    return rk_ledger_twin_ended(l, T0, peer, &room, cause, true, &fx);
}

static bool handed_off(rk_ledger *l, uint32_t peer, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    return rk_ledger_twin_handed_off(l, T0, peer, &room, &fx);
}

static bool quiesced(rk_ledger *l, uint32_t peer, int64_t number) {
    rk_room room = room_of(number);
    rk_effects_clear(&fx);
    return rk_ledger_twin_quiesced(l, T0, peer, &room, &fx);
}

/* ---- linked, bound, unlinked ---- */

START_TEST(a_leg_is_linked_from_the_time_on_that_its_peer_is_expected) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    ck_assert(!leg_of(l, arrive(l, T0, 1, 1))->linked);
    rk_ledger_peer_expected(l, 1);
    const rk_leg *expected = leg_of(l, arrive(l, T0, 2, 1));
    ck_assert(expected->linked && !expected->bound);
    up(l, 1);
    ck_assert(expected->bound);
    const rk_leg *bound = leg_of(l, arrive(l, T0, 3, 1));
    ck_assert(bound->linked && bound->bound);
    ck_assert(!leg_of(l, arrive(l, T0, 4, 2))->linked); /* another peer */
    ck_assert(!leg_of(l, arrive(l, T0, 5, 0))->linked); /* none */
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_peer_that_comes_up_hears_how_each_of_its_legs_stands) {
    rk_ledger_options o = peer_options(RK_ROLE_DECODE);
    o.window = 3;
    rk_ledger *l = rk_ledger_new(&o);
    rk_ledger_peer_expected(l, 1);
    uint64_t legs[5];
    for (int i = 0; i < 5; i++)
        legs[i] = arrive(l, T0, i + 1, i == 1 ? 2 : 1);
    submit(l, T0, legs[0]);
    rk_ledger_cancel(l, T0, legs[0], RK_CAUSE_CLIENT_CANCEL, &fx);
    submit(l, T0, legs[2]);
    take(l); /* nobody is there to read it */
    up(l, 1);
    ck_assert(fx.tells);
    take(l);
    ck_assert_uint_eq(told(RK_FX_TELL_ENDED, legs[0]), 1);
    ck_assert_uint_eq(told(RK_FX_TELL_OPENED, legs[0]), 0);
    ck_assert_uint_eq(told(RK_FX_TELL_OPENED, legs[2]) + told(RK_FX_TELL_ADMITTED, legs[2]), 2);
    ck_assert_uint_eq(told(RK_FX_TELL_OPENED, legs[3]), 1);
    ck_assert_uint_eq(told(RK_FX_TELL_ADMITTED, legs[3]), 0); /* it waits */
    for (size_t i = 0; i < tells.count; i++) {
        ck_assert_uint_eq(tells.items[i].peer, 1);
        ck_assert_uint_ne(tells.items[i].handle, legs[1]);
    }
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_peer_that_is_not_there_leaves_legs_without_a_link_and_bound_ones_as_they_are) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    uint64_t bound = arrive(l, T0, 1, 1);
    submit(l, T0, bound);
    rk_ledger_first_output(l, T0, bound, &fx);
    lost(l, 1);
    uint64_t late = arrive(l, T0, 2, 1);
    submit(l, T0, late);
    ck_assert(leg_of(l, late)->linked);
    rk_effects_clear(&fx);
    rk_ledger_peer_absent(l, T0, 1, &fx);
    ck_assert(leg_of(l, bound)->linked);
    ck_assert(!leg_of(l, late)->linked);
    take(l);
    ck_assert_uint_eq(told(RK_FX_TELL_OPENED, late) + told(RK_FX_TELL_ADMITTED, late), 0);
    rk_ledger_tick(l, T0 + 20000, &fx); /* twin_ms is over */
    ck_assert_int_eq(leg_of(l, late)->state, RK_LEG_SUBMITTED);
    rk_ledger_free(l);
}
END_TEST

/* ---- lost ---- */

START_TEST(a_lost_peer_ends_its_legs_but_those_that_have_their_kv) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    up(l, 2);
    uint64_t legs[4];
    for (int i = 0; i < 4; i++)
        legs[i] = arrive(l, T0, i + 1, i == 3 ? 2 : 1);
    submit(l, T0, legs[0]);
    rk_ledger_first_output(l, T0, legs[0], &fx);
    submit(l, T0, legs[1]);
    lost(l, 1);
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, legs[0]));
    for (int i = 1; i < 3; i++) {
        const rk_effect *end = effect_of(&fx, RK_FX_END, legs[i]);
        ck_assert_ptr_nonnull(end);
        ck_assert_int_eq(end->cause, RK_CAUSE_PEER_LOST);
        ck_assert_int_eq(end->code, RK_RESOURCE_EXHAUSTED);
        ck_assert(end->retry);
    }
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, legs[3])); /* another peer's */
    ck_assert_uint_eq(count_of(&fx, RK_FX_ABORT_ENGINE) + count_of(&fx, RK_FX_RELEASE_ROOM), 0);
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    lost(l, 1);
    ck_assert_uint_eq(fx.count, 0); /* once */
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_whose_decode_is_lost_ends_what_it_holds_and_remembers_what_was_announced) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    uint64_t held = arrive(l, T0, 1, 0);
    uint64_t writes = arrive(l, T0, 2, 0);
    uint64_t done = arrive(l, T0, 3, 0);
    uint64_t nobodys = arrive(l, T0, 4, 0);
    ck_assert(announced(l, T0, 1, 1) && admitted(l, 1, 2) && admitted(l, 1, 3) && announced(l, T0, 1, 9));
    submit(l, T0, writes);
    submit(l, T0, done);
    ck_assert(handed_off(l, 1, 3));
    lost(l, 1);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, held)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_int_eq(effect_of(&fx, RK_FX_END, writes)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, writes));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, writes));
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, done)); /* its decode has the KV, whatever became of it */
    ck_assert_ptr_null(effect_of(&fx, RK_FX_END, nobodys));
    ck_assert_uint_eq(counts_of(l).announced, 0);
    (void)arrive(l, T0, 9, 0);
    ck_assert_int_eq(v.cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(v.twin_cause, RK_CAUSE_PEER_LOST);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_handoff_of_what_was_never_submitted_protects_nothing) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    uint64_t held = arrive(l, T0, 1, 0);
    ck_assert(handed_off(l, 1, 1)); /* a decode that lies, or is confused */
    lost(l, 1);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_END, held));
    rk_ledger_free(l);
}
END_TEST

/* ---- two names ---- */

START_TEST(legs_of_a_peer_with_another_name_are_told_over_the_link_that_is_up) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    rk_ledger_peer_expected(l, 2);
    uint64_t a = arrive(l, T0, 1, 2);
    take(l);
    rk_effects_clear(&fx);
    rk_ledger_peer_folded(l, T0, 2, 1, &fx);
    take(l);
    ck_assert_uint_eq(told(RK_FX_TELL_OPENED, a) + told(RK_FX_TELL_ADMITTED, a), 2);
    ck_assert_uint_eq(tells.items[0].peer, 1);
    ck_assert(leg_of(l, a)->bound);
    ck_assert(announced(l, T0, 1, 1));
    ck_assert(!leg_of(l, arrive(l, T0, 2, 2))->linked); /* the other name is nobody's now */
    rk_ledger_free(l);
}
END_TEST

START_TEST(legs_that_are_given_to_nobody_are_told_to_nobody_and_nothing_is_proof_for_them) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    uint64_t a = arrive(l, T0, 1, 1);
    submit(l, T0, a);
    lost(l, 1);
    take(l);
    rk_ledger_peer_folded(l, T0, 1, 0, &fx);
    rk_effects_clear(&fx);
    up(l, 1); /* the number's next owner */
    rk_ledger_writers_gone(l, T0, 1, &fx);
    rk_ledger_nobody_there(l, T0, 1, &fx);
    ck_assert(!quiesced(l, 1, 1));
    take(l);
    ck_assert_uint_eq(tells.count, 0);
    ck_assert_uint_eq(fx.count, 0);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 300000, &fx); /* the engine's own deadline */
    assert_empty(l, T0);
    rk_ledger_free(l);
}
END_TEST

/* ---- proof ---- */

START_TEST(that_the_writers_are_gone_releases_ended_legs_that_were_linked_to_them) {
    rk_ledger_options o = peer_options(RK_ROLE_DECODE);
    o.window = 8;
    rk_ledger *l = rk_ledger_new(&o);
    up(l, 1);
    up(l, 2);
    uint64_t ended_leg = arrive(l, T0, 1, 1);
    uint64_t live = arrive(l, T0, 2, 1);
    uint64_t other = arrive(l, T0, 3, 2);
    uint64_t unsubmitted = arrive(l, T0, 4, 1);
    submit(l, T0, ended_leg);
    submit(l, T0, live);
    submit(l, T0, other);
    rk_ledger_cancel(l, T0, ended_leg, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_cancel(l, T0, other, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_cancel(l, T0, unsubmitted, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_writers_gone(l, T0, 1, &fx);
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, ended_leg));
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ABORT_ENGINE, ended_leg));
    ck_assert_uint_eq(fx.count, 2);
    rk_effects_clear(&fx);
    rk_ledger_writers_gone(l, T0, 1, &fx);
    ck_assert_uint_eq(fx.count, 0); /* once */
    rk_ledger_slot_released(l, T0, ended_leg, &fx);
    ck_assert_uint_eq(rank_counts(l, T0, 0).releasing, 1);
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_leg_that_was_never_linked_to_the_worker_is_not_released_by_its_end) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    rk_ledger_peer_expected(l, 1);
    uint64_t a = arrive(l, T0, 1, 1);
    submit(l, T0, a);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_writers_gone(l, T0, 1, &fx);
    ck_assert_uint_eq(fx.count, 0);        /* whoever it was may have written to another one */
    rk_ledger_nobody_there(l, T0, 1, &fx); /* but if no prefill runs there at all, none does */
    ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_RELEASE_ROOM, a));
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_has_no_writers_to_lose) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    uint64_t a = arrive(l, T0, 1, 0);
    ck_assert(admitted(l, 1, 1));
    submit(l, T0, a);
    rk_ledger_cancel(l, T0, a, RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_effects_clear(&fx);
    rk_ledger_writers_gone(l, T0, 1, &fx);
    rk_ledger_nobody_there(l, T0, 1, &fx);
    ck_assert_uint_eq(fx.count, 0);
    rk_ledger_free(l);
}
END_TEST

/* ---- whom to believe ---- */

START_TEST(only_a_peer_that_is_up_has_a_say) {
    for (int role = 0; role < 2; role++) {
        rk_ledger *l = ledger_of(role ? RK_ROLE_DECODE : RK_ROLE_PREFILL);
        for (int round = 0; round < 3; round++) {
            if (round == 1)
                rk_ledger_peer_expected(l, 1);
            if (round == 2) {
                up(l, 1);
                lost(l, 1);
            }
            ck_assert(!announced(l, T0, 1, 1) && !admitted(l, 1, 1) && !handed_off(l, 1, 1));
            ck_assert(!ended(l, 1, 1, RK_CAUSE_FULL) && !quiesced(l, 1, 1));
        }
        ck_assert(!announced(l, T0, 4, 1) && !announced(l, T0, UINT32_MAX, 1)); /* there is no such peer */
        ck_assert_uint_eq(counts_of(l).announced + counts_of(l).tombstones, 0);
        up(l, 1);
        ck_assert(announced(l, T0, 1, 1));
        rk_ledger_free(l);
    }
}
END_TEST

START_TEST(a_room_is_of_the_peer_that_announced_it) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    up(l, 2);
    ck_assert(announced(l, T0, 1, 1));
    ck_assert(!announced(l, T0, 2, 1) && !admitted(l, 2, 1) && !ended(l, 2, 1, RK_CAUSE_FULL));
    uint64_t a = arrive(l, T0, 1, 0);
    ck_assert(!announced(l, T0, 2, 1) && !admitted(l, 2, 1) && !handed_off(l, 2, 1) &&
              !ended(l, 2, 1, RK_CAUSE_FULL));
    ck_assert_int_eq(leg_of(l, a)->state, RK_LEG_HELD);
    ck_assert(ended(l, 1, 7, RK_CAUSE_FULL));
    ck_assert(!announced(l, T0, 2, 7)); /* the stone is peer 1's */
    ck_assert(announced(l, T0, 1, 7));
    rk_ledger_free(l);
}
END_TEST

START_TEST(each_peer_has_its_share_of_what_is_remembered) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    up(l, 2);
    for (int64_t i = 1; i <= 5; i++)
        ck_assert(announced(l, T0, 1, i));
    ck_assert(!announced(l, T0, 1, 6));
    ck_assert(announced(l, T0, 1, 5)); /* known already */
    ck_assert(announced(l, T0, 2, 6));
    ck_assert(ended(l, 1, 1, RK_CAUSE_FULL)); /* gives its place back, and takes one among the stones */
    ck_assert(announced(l, T0, 1, 7));
    for (int64_t i = 2; i <= 5; i++)
        ck_assert(ended(l, 1, i, RK_CAUSE_FULL));
    take(l);
    ck_assert(!ended(l, 1, 8, RK_CAUSE_FULL));
    take(l);
    ck_assert_uint_eq(tells.count, 0); /* not remembered, so no quiet is promised */
    ck_assert_uint_eq(counts_of(l).tombstones, 5);
    rk_effects_clear(&fx);
    rk_ledger_tick(l, T0 + 60000, &fx);
    ck_assert(ended(l, 1, 8, RK_CAUSE_FULL)); /* they have gone */
    rk_ledger_free(l);
}
END_TEST

/* ---- turned away ---- */

START_TEST(a_leg_that_was_turned_away_is_told_of_as_one_that_was_refused) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    rk_room room = room_of(1);
    rk_effects_clear(&fx);
    rk_ledger_turned_away(l, T0, &room, true, 1, RK_CAUSE_DRAIN, &fx);
    take(l);
    ck_assert_uint_eq(tells.count, 1);
    ck_assert_int_eq(tells.items[0].kind, RK_FX_TELL_ENDED);
    ck_assert_int_eq(tells.items[0].cause, RK_CAUSE_DRAIN);
    ck_assert_uint_eq(tells.items[0].peer, 1);
    ck_assert_int_eq(tells.items[0].room.room, 1);
    (void)arrive(l, T0, 2, 1);
    take(l);
    room = room_of(2);
    rk_ledger_turned_away(l, T0, &room, true, 1, RK_CAUSE_DRAIN, &fx); /* that room is another leg's */
    take(l);
    ck_assert_uint_eq(tells.count, 0);
    room = room_of(0);
    rk_ledger_turned_away(l, T0, &room, true, 1, RK_CAUSE_DRAIN, &fx);
    rk_ledger_turned_away(l, T0, &room, false, 0, RK_CAUSE_DRAIN, &fx);
    take(l);
    ck_assert_uint_eq(tells.count, 0); /* room 0 is nobody's */
    rk_ledger_free(l);
}
END_TEST

START_TEST(a_prefill_that_turned_a_leg_away_says_so_now_or_to_whoever_announces_it) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    rk_room room = room_of(1);
    rk_effects_clear(&fx);
    rk_ledger_turned_away(l, T0, &room, false, 0, RK_CAUSE_ENGINE_DEAD, &fx);
    ck_assert_uint_eq(count_of(&fx, RK_FX_RELEASE_ROOM), 1);
    take(l);
    ck_assert_uint_eq(tells.count, 0);
    ck_assert(announced(l, T0, 1, 1));
    take(l);
    ck_assert_int_eq(tells.items[0].kind, RK_FX_TELL_ENDED);
    ck_assert_int_eq(tells.items[0].cause, RK_CAUSE_ENGINE_DEAD);
    ck_assert(announced(l, T0, 1, 2));
    room = room_of(2);
    rk_effects_clear(&fx);
    rk_ledger_turned_away(l, T0, &room, false, 0, RK_CAUSE_DRAIN, &fx);
    take(l);
    ck_assert_uint_eq(tells.items[0].peer, 1);
    ck_assert_int_eq(tells.items[0].cause, RK_CAUSE_DRAIN);
    rk_ledger_free(l);
}
END_TEST

/* ---- holding ---- */

START_TEST(legs_are_held_from_the_time_on_that_decodes_can_announce_them) {
    rk_ledger_options o = peer_options(RK_ROLE_PREFILL);
    o.linked = false;
    rk_ledger *l = rk_ledger_new(&o);
    (void)arrive(l, T0, 1, 0);
    ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
    rk_ledger_set_linked(l, true);
    (void)arrive(l, T0, 2, 0);
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    rk_ledger_set_linked(l, false);
    (void)arrive(l, T0, 3, 0);
    ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
    rk_ledger_free(l);
}
END_TEST

/* How many announce times pass until the leg goes to the engine unannounced. */
static unsigned announce_times(rk_ledger *l, uint64_t *now, int64_t room) {
    uint64_t a = arrive(l, *now, room, 0);
    ck_assert_int_eq(v.state, RK_LEG_HELD);
    for (unsigned times = 1;; times++) {
        *now += 500;
        rk_effects_clear(&fx);
        rk_ledger_tick(l, *now, &fx);
        if (leg_of(l, a)->state != RK_LEG_HELD) {
            ck_assert_ptr_nonnull(effect_of(&fx, RK_FX_ADMIT, a));
            return times;
        }
        ck_assert_uint_lt(times, 100);
    }
}

START_TEST(where_all_legs_are_announced_a_late_announcement_is_waited_for_longer) {
    rk_ledger *l = ledger_of(RK_ROLE_PREFILL);
    uint64_t now = T0;
    ck_assert_uint_eq(announce_times(l, &now, 1), 1); /* no decode is linked */
    rk_ledger_free(l);

    l = ledger_of(RK_ROLE_PREFILL);
    up(l, 1);
    ck_assert_uint_eq(announce_times(l, &now, 1), 1 + RK_PATIENCE_MAX);
    ck_assert_uint_eq(announce_times(l, &now, 2), 1); /* part of the fleet announces nothing */
    int64_t room = 100;
    for (unsigned i = 0; i < RK_MISTRUST_LEGS; i++, room++) {
        if (i + 1 == RK_MISTRUST_LEGS)
            ck_assert_uint_gt(l->mistrust, 0);
        (void)arrive(l, now, room, 0);
        ck_assert(announced(l, now, 1, room));
        ck_assert(ended(l, 1, room, RK_CAUSE_CLIENT_CANCEL));
    }
    ck_assert_uint_eq(announce_times(l, &now, 3), 1 + RK_PATIENCE_MAX); /* it is believed again */
    rk_ledger_free(l);
}
END_TEST

/* ---- tells apart ---- */

START_TEST(twins_are_told_in_the_order_in_which_it_happened_and_not_among_the_effects) {
    rk_ledger *l = ledger_of(RK_ROLE_DECODE);
    up(l, 1);
    uint64_t a = arrive(l, T0, 1, 1);
    ck_assert(fx.tells);
    uint64_t b = arrive(l, T0, 2, 1);
    submit(l, T0, a);
    rk_effects_clear(&fx);
    rk_ledger_cancel(l, T0, b, RK_CAUSE_CLIENT_CANCEL, &fx); /* gone, but not told of yet */
    ck_assert_ptr_null(leg_of(l, b));
    for (size_t i = 0; i < fx.count; i++)
        ck_assert_int_lt(fx.items[i].kind, RK_FX_TELL_OPENED);
    take(l);
    static const rk_effect_kind wanted[] = {RK_FX_TELL_OPENED, RK_FX_TELL_ADMITTED, RK_FX_TELL_OPENED,
                                            RK_FX_TELL_ADMITTED, RK_FX_TELL_ENDED};
    ck_assert_uint_eq(tells.count, 5);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(tells.items[i].kind, wanted[i]);
        ck_assert_uint_eq(tells.items[i].handle, i < 2 ? a : b);
    }
    take(l);
    ck_assert_uint_eq(tells.count, 0);
    ck_assert(!tells.more);
    rk_ledger_free(l);
}
END_TEST

START_TEST(more_tells_than_a_list_holds_come_one_list_after_the_other) {
    rk_ledger_options o = peer_options(RK_ROLE_DECODE);
    o.waiting_places = 200;
    rk_ledger *l = rk_ledger_new(&o);
    up(l, 1);
    uint64_t legs[100];
    for (int i = 0; i < 100; i++)
        legs[i] = arrive(l, T0, i + 1, 1);
    take(l);
    ck_assert_uint_eq(tells.count, RK_EFFECTS_MAX);
    ck_assert(tells.more);
    rk_effects_clear(&fx);
    rk_ledger_drain(l, T0, &fx); /* those in line end while their first words are still unsaid */
    size_t opened = RK_EFFECTS_MAX - 2;
    size_t over = 0;
    bool more = true;
    while (more) {
        take(l);
        more = tells.more;
        opened += count_of(&tells, RK_FX_TELL_OPENED);
        over += count_of(&tells, RK_FX_TELL_ENDED);
    }
    ck_assert_uint_eq(opened, 100);
    ck_assert_uint_eq(over, 98);
    while (fx.more) {
        rk_effects_clear(&fx);
        rk_ledger_pump(l, T0, &fx);
    }
    rk_ledger_cancel(l, T0, legs[0], RK_CAUSE_CLIENT_CANCEL, &fx);
    rk_ledger_cancel(l, T0, legs[1], RK_CAUSE_CLIENT_CANCEL, &fx);
    assert_empty(l, T0);
    rk_ledger_free(l); /* with two ends that nobody took */
}
END_TEST

START_TEST(with_rooms_off_peers_are_nothing) {
    rk_ledger_options o = peer_options(RK_ROLE_DECODE);
    o.enabled = false;
    rk_ledger *l = rk_ledger_new(&o);
    rk_ledger_peer_expected(l, 1);
    up(l, 1);
    uint64_t a = arrive(l, T0, 1, 1);
    ck_assert(!leg_of(l, a)->linked);
    submit(l, T0, a);
    lost(l, 1);
    rk_ledger_peer_absent(l, T0, 1, &fx);
    rk_ledger_peer_folded(l, T0, 1, 2, &fx);
    rk_ledger_writers_gone(l, T0, 1, &fx);
    rk_ledger_nobody_there(l, T0, 1, &fx);
    ck_assert_uint_eq(fx.count, 0);
    ck_assert_int_eq(leg_of(l, a)->state, RK_LEG_SUBMITTED);
    rk_ledger_free(l);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_leg_is_linked_from_the_time_on_that_its_peer_is_expected,
        a_peer_that_comes_up_hears_how_each_of_its_legs_stands,
        a_peer_that_is_not_there_leaves_legs_without_a_link_and_bound_ones_as_they_are,
        a_lost_peer_ends_its_legs_but_those_that_have_their_kv,
        a_prefill_whose_decode_is_lost_ends_what_it_holds_and_remembers_what_was_announced,
        a_handoff_of_what_was_never_submitted_protects_nothing,
        legs_of_a_peer_with_another_name_are_told_over_the_link_that_is_up,
        legs_that_are_given_to_nobody_are_told_to_nobody_and_nothing_is_proof_for_them,
        that_the_writers_are_gone_releases_ended_legs_that_were_linked_to_them,
        a_leg_that_was_never_linked_to_the_worker_is_not_released_by_its_end,
        a_prefill_has_no_writers_to_lose,
        only_a_peer_that_is_up_has_a_say,
        a_room_is_of_the_peer_that_announced_it,
        each_peer_has_its_share_of_what_is_remembered,
        a_leg_that_was_turned_away_is_told_of_as_one_that_was_refused,
        a_prefill_that_turned_a_leg_away_says_so_now_or_to_whoever_announces_it,
        legs_are_held_from_the_time_on_that_decodes_can_announce_them,
        where_all_legs_are_announced_a_late_announcement_is_waited_for_longer,
        twins_are_told_in_the_order_in_which_it_happened_and_not_among_the_effects,
        more_tells_than_a_list_holds_come_one_list_after_the_other,
        with_rooms_off_peers_are_nothing,
    };
    return RUN_SUITE("ledger and peers", tests);
}
