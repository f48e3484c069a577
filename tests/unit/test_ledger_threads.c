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

int main(void) {
    const TTest *const tests[] = {four_threads_leave_an_empty_ledger_behind};
    return RUN_SUITE("ledger and threads", tests);
}
