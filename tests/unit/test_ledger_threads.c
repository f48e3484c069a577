/* Four threads at one ledger: nothing is lost, nothing is left. For the thread sanitizer above all. */
#include "ledger_support.h"

#include <stdatomic.h>
#include <stdlib.h>

#define THREADS 4
#define LEGS_EACH 2000
#define WINDOW 8

typedef struct crowd {
    rk_ledger *ledger;
    _Atomic uint64_t now;
    _Atomic uint64_t admitted;
    _Atomic uint64_t ended;
    _Atomic uint64_t refused;
} crowd;

typedef struct member {
    pthread_t thread;
    crowd *crowd;
    unsigned number;
} member;

/* Carries out what the ledger decided, as the servicer would: an admitted leg runs and finishes, here at
 * once. */
static void carry_out(crowd *c, rk_effects *fx) {
    rk_effects todo = *fx;
    rk_effects_clear(fx);
    for (;;) {
        for (size_t i = 0; i < todo.count; i++) {
            uint64_t handle = todo.items[i].handle;
            if (todo.items[i].kind == RK_FX_END)
                atomic_fetch_add(&c->ended, 1);
            if (todo.items[i].kind != RK_FX_ADMIT)
                continue;
            if (rk_ledger_begin_submit(c->ledger, atomic_load(&c->now), handle, fx) < 0)
                continue;
            atomic_fetch_add(&c->admitted, 1);
            rk_ledger_first_output(c->ledger, atomic_load(&c->now), handle, fx);
            if (handle % 3 == 0) {
                rk_ledger_cancel(c->ledger, atomic_load(&c->now), handle, RK_CAUSE_CLIENT_CANCEL, fx);
                rk_ledger_aborted(c->ledger, atomic_load(&c->now), handle, RK_LEDGER_ALL, fx);
            } else {
                rk_ledger_finished(c->ledger, atomic_load(&c->now), handle, 0, RK_CAUSE_COMPLETED, fx);
            }
        }
        bool more = fx->more;
        if (more && fx->count == 0) {
            fx->more = false;
            rk_ledger_pump(c->ledger, atomic_load(&c->now), fx);
        }
        if (fx->count == 0)
            return;
        todo = *fx;
        bool again = todo.more;
        rk_effects_clear(fx);
        fx->more = again;
    }
}

static void *run_member(void *arg) {
    member *m = arg;
    crowd *c = m->crowd;
    for (unsigned i = 0; i < LEGS_EACH; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "t%u-%u", m->number, i);
        rk_room room = room_of((int64_t)(m->number * 100000 + i + 1));
        rk_leg_spec spec = {
            .handle = rk_ledger_new_handle(c->ledger),
            .request_id = id,
            .request_id_bytes = strlen(id),
            .room = &room,
            .n = 1,
            .rank = -1,
        };
        rk_verdict verdict;
        rk_effects fx;
        rk_effects_clear(&fx);
        uint64_t now = atomic_fetch_add(&c->now, 1);
        ck_assert_int_eq(rk_ledger_arrive(c->ledger, now, &spec, &verdict, &fx), 0);
        if (!verdict.accepted)
            atomic_fetch_add(&c->refused, 1);
        if (i % 7 == 0)
            rk_ledger_tick(c->ledger, now, &fx);
        if (i % 11 == 0) {
            rk_ledger_counts counts;
            rk_ledger_read(c->ledger, &counts);
        }
        carry_out(c, &fx);
    }
    return NULL;
}

START_TEST(four_threads_leave_an_empty_ledger_behind) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, WINDOW, 16);
    crowd c = {.ledger = rk_ledger_new(&o)};
    atomic_init(&c.now, T0);
    member members[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        members[i] = (member){.crowd = &c, .number = i};
        ck_assert_int_eq(pthread_create(&members[i].thread, NULL, run_member, &members[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(members[i].thread, NULL);
    assert_empty(c.ledger, T0);
    ck_assert_uint_eq(atomic_load(&c.admitted) + atomic_load(&c.refused), THREADS * LEGS_EACH);
    ck_assert_uint_eq(counts_of(c.ledger).arrived, THREADS * LEGS_EACH);
    rk_ledger_free(c.ledger);
}
END_TEST

/* ---- anything from anywhere ---- */

typedef struct meddler {
    pthread_t thread;
    rk_ledger *ledger;
    unsigned seed;
    _Atomic uint64_t *now;
    _Atomic uint64_t *last; /* handle */
} meddler;

static unsigned pick(meddler *m, unsigned below) {
    m->seed = m->seed * 1103515245u + 12345u;
    return (m->seed >> 16) % below;
}

static void meddler_arrives(meddler *m, uint64_t now, const rk_room *room, rk_effects *fx) {
    char id[16];
    (void)snprintf(id, sizeof id, "id%u", pick(m, 20));
    rk_verdict verdict;
    rk_leg_spec spec = {
        .handle = rk_ledger_new_handle(m->ledger),
        .request_id = id,
        .request_id_bytes = strlen(id),
        .room = room,
        .n = 1 + pick(m, 2),
        .rank = -1,
        .linked = pick(m, 2),
    };
    atomic_store(m->last, spec.handle);
    ck_assert_int_eq(rk_ledger_arrive(m->ledger, now, &spec, &verdict, fx), 0);
}

/* Legs of all threads, by all threads: whatever one does, the ledger's own checks hold (debug builds). */
static void meddle_once(meddler *m, rk_effects *fx) {
    uint64_t now = atomic_fetch_add(m->now, pick(m, 8));
    uint64_t last = atomic_load(m->last);
    uint64_t handle = last > 30 ? last - pick(m, 30) : 1 + pick(m, 5);
    rk_room room = room_of(1 + (int64_t)pick(m, 30));
    rk_rank_counts ranks[2];
    switch (pick(m, 14)) {
    case 0:
        (void)!rk_ledger_begin_submit(m->ledger, now, handle, fx);
        break;
    case 1:
        rk_ledger_first_output(m->ledger, now, handle, fx);
        break;
    case 2:
        rk_ledger_finished(m->ledger, now, handle, pick(m, 2), RK_CAUSE_COMPLETED, fx);
        break;
    case 3:
        rk_ledger_cancel(m->ledger, now, handle, RK_CAUSE_CLIENT_CANCEL, fx);
        break;
    case 4:
        rk_ledger_aborted(m->ledger, now, handle, RK_LEDGER_ALL, fx);
        break;
    case 5:
        rk_ledger_slot_released(m->ledger, now, handle, fx);
        break;
    case 6:
        (void)rk_ledger_abort(m->ledger, now, "id3", 3, fx);
        break;
    case 7:
        (void)rk_ledger_twin_announced(m->ledger, now, 0, &room, fx);
        break;
    case 8:
        (void)rk_ledger_twin_ended(m->ledger, now, 0, &room, RK_CAUSE_ENGINE_ERROR, pick(m, 2), fx);
        break;
    case 9:
        rk_ledger_tick(m->ledger, now, fx);
        (void)rk_ledger_next_deadline(m->ledger);
        break;
    case 10:
        ck_assert_uint_eq(rk_ledger_read_ranks(m->ledger, now, ranks, 2), 1);
        ck_assert_uint_le(ranks[0].held_slots + ranks[0].releasing, WINDOW);
        break;
    default:
        meddler_arrives(m, now, &room, fx);
        break;
    }
}

static void *meddle(void *arg) {
    meddler *m = arg;
    for (int i = 0; i < 10000; i++) {
        rk_effects fx;
        rk_effects_clear(&fx);
        meddle_once(m, &fx);
        while (fx.more) {
            rk_effects_clear(&fx);
            rk_ledger_pump(m->ledger, T0, &fx);
        }
    }
    return NULL;
}

START_TEST(four_threads_that_meddle_with_each_others_legs_break_nothing) {
    rk_ledger_options o = options_of(RK_ROLE_DECODE, WINDOW, 16);
    o.linked = true;
    rk_ledger *ledger = rk_ledger_new(&o);
    _Atomic uint64_t now = T0;
    _Atomic uint64_t last = 0;
    meddler members[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        members[i] = (meddler){.ledger = ledger, .seed = i + 1, .now = &now, .last = &last};
        ck_assert_int_eq(pthread_create(&members[i].thread, NULL, meddle, &members[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(members[i].thread, NULL);
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_end_all(ledger, atomic_load(&now), RK_CAUSE_ENGINE_DEAD, &fx);
    assert_empty(ledger, T0);
    rk_ledger_counts counts = counts_of(ledger);
    uint64_t over = 0;
    for (int c = 0; c < RK_CAUSES; c++)
        over += counts.ended[c] + counts.refused[c];
    ck_assert_uint_eq(over, counts.arrived);
    rk_ledger_free(ledger);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        four_threads_leave_an_empty_ledger_behind,
        four_threads_that_meddle_with_each_others_legs_break_nothing,
    };
    return RUN_SUITE("ledger and threads", tests);
}
