/* When a stream of KV events says how loaded the worker is, in made-up time. */
#include <check.h>
#include <stdlib.h>

#include "rpc/kv_call.h"

static const rk_load_row IDLE = {
    .window = 4,
    .engine_fresh = true,
    .engine = {.token_usage = 0.5, .active_token_usage = -1, .gen_throughput = -1}};

START_TEST(an_engine_without_a_throughput_has_not_changed) {
    rk_kv_pace pace = {0};
    ck_assert(rk_kv_pace_due(&pace, &IDLE, 1000));
    (void)rk_kv_pace_sent(&pace, &IDLE, true, 1000);
    ck_assert(!rk_kv_pace_due(&pace, &IDLE, 1000));
    ck_assert(!rk_kv_pace_due(&pace, &IDLE, 1999));
    ck_assert(rk_kv_pace_due(&pace, &IDLE, 2000));
    rk_load_row says = IDLE;
    says.engine.gen_throughput = 0;
    ck_assert(rk_kv_pace_due(&pace, &says, 1050));
    (void)rk_kv_pace_sent(&pace, &says, true, 1050);
    ck_assert(!rk_kv_pace_due(&pace, &says, 1200));
    ck_assert(rk_kv_pace_due(&pace, &IDLE, 1200));
}
END_TEST

START_TEST(changes_are_told_fifty_milliseconds_apart) {
    rk_kv_pace pace = {0};
    rk_load_row busy = IDLE;
    (void)rk_kv_pace_sent(&pace, &IDLE, true, 1000);
    busy.running = 1;
    ck_assert(!rk_kv_pace_due(&pace, &busy, 1049));
    ck_assert(rk_kv_pace_due(&pace, &busy, 1050));
    unsigned sent = 0;
    for (uint64_t now = 1001; now <= 2000; now++) {
        busy.running++;
        if (!rk_kv_pace_due(&pace, &busy, now))
            continue;
        (void)rk_kv_pace_sent(&pace, &busy, true, now);
        sent++;
    }
    ck_assert_uint_eq(sent, 20);
}
END_TEST

START_TEST(a_throughput_has_changed_by_a_twentieth_or_by_fifty) {
    rk_kv_pace pace = {0};
    rk_load_row row = IDLE;
    row.engine.gen_throughput = 100;
    (void)rk_kv_pace_sent(&pace, &row, true, 0);
    row.engine.gen_throughput = 104;
    ck_assert(!rk_kv_pace_due(&pace, &row, 500));
    row.engine.gen_throughput = 107;
    ck_assert(rk_kv_pace_due(&pace, &row, 500));
    row.engine.gen_throughput = 0;
    (void)rk_kv_pace_sent(&pace, &row, true, 500);
    ck_assert(!rk_kv_pace_due(&pace, &row, 900));
    row.engine_fresh = false; /* what it said is too old to count */
    ck_assert(rk_kv_pace_due(&pace, &row, 900));
}
END_TEST

START_TEST(silence_is_broken_each_second_and_when_nothing_is_new_every_five) {
    rk_kv_pace pace = {0};
    uint64_t at[5];
    unsigned count = 0;
    for (uint64_t now = 0; count < 5; now++)
        if (rk_kv_pace_due(&pace, &IDLE, now)) {
            const rk_load_stamp stamp = rk_kv_pace_sent(&pace, &IDLE, true, now);
            ck_assert_uint_eq(stamp.sample, count + 1);
            ck_assert(stamp.only && stamp.telemetry);
            at[count++] = now;
        }
    ck_assert_uint_eq(at[1] - at[0], 1000);
    ck_assert_uint_eq(at[2] - at[1], 1000);
    ck_assert_uint_eq(at[3] - at[2], 5000);
    ck_assert_uint_eq(at[4] - at[3], 5000);
    const rk_load_stamp batch = rk_kv_pace_sent(&pace, &IDLE, false, at[4] + 1);
    ck_assert(!batch.only && !batch.telemetry && batch.sample == 6);
    ck_assert_uint_eq(rk_kv_pace_sent(&pace, NULL, false, at[4] + 2).sample, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("kv_pace");
    TCase *tcase = tcase_create("kv_pace");
    tcase_add_test(tcase, an_engine_without_a_throughput_has_not_changed);
    tcase_add_test(tcase, changes_are_told_fifty_milliseconds_apart);
    tcase_add_test(tcase, a_throughput_has_changed_by_a_twentieth_or_by_fifty);
    tcase_add_test(tcase, silence_is_broken_each_second_and_when_nothing_is_new_every_five);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
