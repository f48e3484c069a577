/* What the ledger's tests share: options with the defaults' proportions, legs with short names, and the
 * effects of one operation, looked up by kind. */
#ifndef LEDGER_SUPPORT_H
#define LEDGER_SUPPORT_H

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rooms/ledger.h"

#define T0 1000000u /* a time to start from */

static inline rk_ledger_options options_of(rk_role role, uint32_t window, uint32_t places) {
    return (rk_ledger_options){
        .role = role,
        .enabled = true,
        .ranks = 1,
        .window = window,
        .waiting_places = places,
        .held_places = 1024,
        .wait_ms = 30000,
        .announce_ms = 500,
        .twin_ms = 10000,
        .handoff_ms = 30000,
        .transfer_ms = 300000,
        .tombstone_ms = 60000,
        .tombstones = 1000,
        .announced = 1000,
    };
}

static inline rk_room room_of(int64_t number) {
    rk_room room = {.host = "prefill.example", .port = 8998, .room = number};
    return room;
}

typedef struct leg_args {
    const char *id; /* NULL: "r<room>" */
    int64_t room;   /* 0: none */
    uint32_t n;     /* 0: 1 */
    uint64_t tokens;
    int32_t rank; /* pinned rank + 1; 0: not pinned */
    bool linked;
} leg_args;

/* Arrives; returns the handle. */
static inline uint64_t arrive_with(rk_ledger *ledger, uint64_t now, leg_args args, rk_verdict *verdict,
                                   rk_effects *fx) {
    char name[32];
    (void)snprintf(name, sizeof name, "r%lld", (long long)args.room);
    const char *id = args.id ? args.id : name;
    rk_room room = room_of(args.room);
    rk_leg_spec spec = {
        .handle = rk_ledger_new_handle(ledger),
        .request_id = id,
        .request_id_bytes = strlen(id),
        .room = args.room ? &room : NULL,
        .n = args.n ? args.n : 1,
        .prompt_tokens = args.tokens,
        .rank = args.rank - 1,
        .linked = args.linked,
    };
    rk_effects_clear(fx);
    ck_assert_int_eq(rk_ledger_arrive(ledger, now, &spec, verdict, fx), 0);
    return spec.handle;
}

static inline const rk_effect *effect_of(const rk_effects *fx, rk_effect_kind kind, uint64_t handle) {
    for (size_t i = 0; i < fx->count; i++)
        if (fx->items[i].kind == kind && fx->items[i].handle == handle)
            return &fx->items[i];
    return NULL;
}

static inline size_t count_of(const rk_effects *fx, rk_effect_kind kind) {
    size_t count = 0;
    for (size_t i = 0; i < fx->count; i++)
        count += fx->items[i].kind == kind ? 1 : 0;
    return count;
}

static inline rk_rank_counts rank_counts(rk_ledger *ledger, uint64_t now, uint32_t rank) {
    rk_rank_counts ranks[8];
    ck_assert_uint_gt(rk_ledger_read_ranks(ledger, now, ranks, 8), rank);
    return ranks[rank];
}

static inline rk_ledger_counts counts_of(rk_ledger *ledger) {
    rk_ledger_counts counts;
    rk_ledger_read(ledger, &counts);
    return counts;
}

/* Submits an admitted leg. */
static inline void submit(rk_ledger *ledger, uint64_t now, uint64_t handle) {
    rk_effects fx;
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_begin_submit(ledger, now, handle, &fx), 0);
}

/* Nothing is left: no legs, no slots, no tokens. */
static inline void assert_empty(rk_ledger *ledger, uint64_t now) {
    rk_ledger_check(ledger);
    rk_ledger_counts counts = counts_of(ledger);
    for (int state = 0; state < RK_LEG_STATES; state++)
        ck_assert_uint_eq(counts.legs[state], 0);
    rk_rank_counts ranks[8];
    uint32_t n = rk_ledger_read_ranks(ledger, now, ranks, 8);
    for (uint32_t i = 0; i < n && i < 8; i++) {
        ck_assert_uint_eq(ranks[i].held_slots + ranks[i].releasing + ranks[i].waiting + ranks[i].running, 0);
        ck_assert_uint_eq(ranks[i].claimed_tokens, 0);
    }
}

static inline int run_suite(const char *name, const TTest *const *tests, size_t count) {
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#define RUN_SUITE(name, tests) run_suite((name), (tests), sizeof(tests) / sizeof((tests)[0]))

#endif
