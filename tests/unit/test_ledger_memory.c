/* The ledger when memory is out: an arrival that fails changes nothing, whatever the ledger holds at the
 * time; events that cannot fail keep it whole; and at the end nothing is left over. */
#include "failing_malloc.h"
#include "ledger_support.h"

#ifndef OTHER_MALLOC

typedef struct snapshot {
    rk_ledger_counts counts;
    rk_rank_counts ranks[2];
    uint64_t deadline;
} snapshot;

static snapshot look(rk_ledger *ledger, uint64_t now) {
    snapshot s;
    memset(&s, 0, sizeof s);
    rk_ledger_read(ledger, &s.counts);
    (void)rk_ledger_read_ranks(ledger, now, s.ranks, 2);
    s.deadline = rk_ledger_next_deadline(ledger);
    return s;
}

static unsigned pick(unsigned *seed, unsigned below) {
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

/* Arrives with each allocation failing in turn, until the arrival succeeds. Returns how many failed. */
static long arrive_against_odds(rk_ledger *ledger, uint64_t now, const rk_leg_spec *spec, rk_effects *fx) {
    for (long n = 0;; n++) {
        rk_verdict verdict;
        snapshot before = look(ledger, now);
        long held = live;
        rk_effects_clear(fx);
        left = n;
        int result = rk_ledger_arrive(ledger, now, spec, &verdict, fx);
        bool reached = left < 0;
        left = -1;
        if (result == 0)
            return n; /* a failure that only cost a memory of it is no failure of the arrival */
        ck_assert_int_eq(result, -ENOMEM);
        ck_assert(reached);
        ck_assert_int_eq(live, held);
        ck_assert_uint_eq(fx->count, 0);
        ck_assert(!verdict.accepted);
        snapshot after = look(ledger, now);
        ck_assert_mem_eq(&before, &after, sizeof before);
        rk_ledger_check(ledger);
    }
}

/* An event of the link as a whole. */
static void disturb_peer(rk_ledger *ledger, uint64_t now, const rk_room *room, unsigned *seed,
                         rk_effects *fx) {
    uint32_t peer = 1 + pick(seed, 2);
    switch (pick(seed, 8)) {
    case 0:
        rk_ledger_peer_expected(ledger, peer);
        break;
    case 1:
    case 2:
        rk_ledger_peer_up(ledger, now, peer, fx);
        break;
    case 3:
        rk_ledger_peer_lost(ledger, now, peer, fx);
        break;
    case 4:
        rk_ledger_peer_absent(ledger, now, peer, fx);
        break;
    case 5:
        rk_ledger_peer_folded(ledger, now, peer, pick(seed, 3), fx);
        break;
    case 6:
        rk_ledger_writers_gone(ledger, now, peer, fx);
        break;
    default:
        rk_ledger_turned_away(ledger, now, room, true, peer, RK_CAUSE_DRAIN, fx);
        break;
    }
}

/* One event of another kind, whose allocations may fail: it has no way to say so. */
static void disturb(rk_ledger *ledger, uint64_t now, uint64_t handle, unsigned *seed, rk_effects *fx) {
    rk_room room = room_of(1 + (int64_t)pick(seed, 30));
    rk_effects_clear(fx);
    left = (long)pick(seed, 3) - 1;
    uint32_t peer = pick(seed, 3);
    switch (pick(seed, 11)) {
    case 0:
        (void)!rk_ledger_begin_submit(ledger, now, handle, fx);
        break;
    case 1:
        rk_ledger_first_output(ledger, now, handle, fx);
        break;
    case 2:
        rk_ledger_finished(ledger, now, handle, 0, RK_CAUSE_COMPLETED, fx);
        break;
    case 3:
        rk_ledger_cancel(ledger, now, handle, RK_CAUSE_CLIENT_CANCEL, fx);
        break;
    case 4:
        (void)rk_ledger_twin_announced(ledger, now, peer, &room, fx);
        break;
    case 5:
        (void)rk_ledger_twin_ended(ledger, now, peer, &room, RK_CAUSE_CLIENT_CANCEL, pick(seed, 2), fx);
        break;
    case 6:
        (void)rk_ledger_twin_quiesced(ledger, now, peer, &room, fx);
        break;
    case 7:
        disturb_peer(ledger, now, &room, seed, fx);
        break;
    case 8:
        (void)rk_ledger_twin_handed_off(ledger, now, peer, &room, fx);
        break;
    case 9:
        rk_ledger_take_tells(ledger, fx);
        break;
    default:
        rk_ledger_tick(ledger, now, fx);
        break;
    }
    left = -1;
}

static void run(rk_role role) {
    rk_ledger_options o = options_of(role, 3, 5);
    o.ranks = 2;
    o.linked = true;
    o.tombstones = 4;
    o.announced = 4;
    o.peers = 3;
    o.peer_rooms = 3;
    o.tells_apart = true;
    long at_start = live;
    rk_ledger *ledger = rk_ledger_new(&o);
    ck_assert_ptr_nonnull(ledger);
    unsigned seed = 3;
    uint64_t now = T0;
    uint64_t last = 0;
    long failed = 0;
    rk_effects fx;
    for (int i = 0; i < 3000; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "id%u", pick(&seed, 12));
        rk_room room = room_of(1 + (int64_t)pick(&seed, 30));
        rk_leg_spec spec = {
            .handle = last = rk_ledger_new_handle(ledger),
            .request_id = id,
            .request_id_bytes = strlen(id),
            .room = &room,
            .n = 1,
            .rank = -1,
            .linked = pick(&seed, 2),
            .peer = pick(&seed, 3),
        };
        failed += arrive_against_odds(ledger, now, &spec, &fx);
        for (int k = 0; k < 4; k++)
            disturb(ledger, now, last - (last > 12 ? pick(&seed, 12) : 0), &seed, &fx);
        now += pick(&seed, 400);
    }
    ck_assert_int_gt(failed, 3000); /* each arrival at least once */
    rk_effects_clear(&fx);
    rk_ledger_end_all(ledger, now, RK_CAUSE_ENGINE_DEAD, &fx);
    assert_empty(ledger, now);
    rk_ledger_free(ledger);
    ck_assert_int_eq(live, at_start);
}

START_TEST(an_arrival_that_fails_for_want_of_memory_changes_nothing_in_a_decode) {
    run(RK_ROLE_DECODE);
}
END_TEST

START_TEST(an_arrival_that_fails_for_want_of_memory_changes_nothing_in_a_prefill) {
    run(RK_ROLE_PREFILL);
}
END_TEST

START_TEST(a_ledger_that_cannot_be_made_leaves_nothing_behind) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 3, 5);
    bool reached = true;
    long n = 0;
    for (; reached; n++) {
        long before = live;
        left = n;
        rk_ledger *ledger = rk_ledger_new(&o);
        reached = left < 0;
        left = -1;
        ck_assert_int_eq(ledger == NULL, reached);
        rk_ledger_free(ledger);
        ck_assert_int_eq(live, before);
    }
    ck_assert_int_gt(n, 8);
}
END_TEST

START_TEST(effects_that_nobody_took_go_with_the_ledger) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, 1, 200);
    long before = live;
    rk_ledger *ledger = rk_ledger_new(&o);
    rk_effects fx;
    rk_verdict v;
    for (int i = 1; i <= 150; i++)
        (void)arrive_with(ledger, T0, (leg_args){.room = i}, &v, &fx);
    rk_effects_clear(&fx);
    rk_ledger_drain(ledger, T0, &fx);
    ck_assert(fx.more);
    rk_ledger_free(ledger);
    ck_assert_int_eq(live, before);
}
END_TEST

int main(void) {
    if (other_malloc())
        return EXIT_SUCCESS;
    const TTest *const tests[] = {
        an_arrival_that_fails_for_want_of_memory_changes_nothing_in_a_decode,
        an_arrival_that_fails_for_want_of_memory_changes_nothing_in_a_prefill,
        a_ledger_that_cannot_be_made_leaves_nothing_behind,
        effects_that_nobody_took_go_with_the_ledger,
    };
    return RUN_SUITE("ledger memory", tests);
}

#else

int main(void) {
    return EXIT_SUCCESS;
}

#endif
