/* Configuration when memory is out: each allocation in turn fails, and the answer is -ENOMEM, one line, an
 * untouched config and nothing leaked. This executable's own malloc counts and fails; sanitizers and valgrind
 * bring theirs, so under them there is nothing to test. */
#include <check.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failing_malloc.h"
#include "roomkeeper/config.h"

#ifndef OTHER_MALLOC

static char path[] = "/tmp/rk-config-memory-XXXXXX";

static void setup(void) {
    static const char text[] = "waiting: 5\nwait_seconds: 2.5\nlog_level: debug\nlog_format: json\n";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, sizeof text - 1), (ssize_t)(sizeof text - 1));
    ck_assert_int_eq(close(fd), 0);
}

static void teardown(void) {
    (void)unlink(path);
}

/* What one run with a failing allocation came to; looked at when nothing of it is held any more. */
typedef struct result {
    int rc;
    bool reached;     /* the failure did happen */
    bool unchanged;   /* the config was as before */
    long still_there; /* allocations left over */
    char error[RK_CONFIG_ERROR_MAX];
} result;

static result load_once(long failing) {
    result got = {0};
    rk_config config;
    long before = live;
    if (rk_config_init(&config) < 0)
        abort();
    left = failing;
    got.rc = rk_config_load(&config, path, got.error);
    got.reached = left < 0;
    left = -1;
    got.unchanged = config.waiting == -1 && strcmp(config.log_level, "info") == 0;
    rk_config_free(&config);
    got.still_there = live - before;
    return got;
}

START_TEST(loading_survives_the_failure_of_any_allocation) {
    long n = 0;
    for (result got = load_once(n); got.reached; got = load_once(++n)) {
        ck_assert_msg(got.still_there == 0, "allocation %ld: %ld leaked", n, got.still_there);
        if (got.rc == 0) /* a failure that the C library or libyaml got over is fine too */
            continue;
        ck_assert_msg(got.rc == -ENOMEM, "allocation %ld: %d, %s", n, got.rc, got.error);
        ck_assert_msg(strstr(got.error, "memory is out"), "allocation %ld: %s", n, got.error);
        ck_assert(got.unchanged);
    }
    ck_assert_int_gt(n, 10);
    ck_assert_int_eq(load_once(-1).rc, 0);
}
END_TEST

static result copy_once(long failing) {
    result got = {0};
    rk_config config, copy;
    long before = live;
    left = failing;
    got.rc = rk_config_init(&config);
    if (got.rc == 0) {
        got.rc = rk_config_copy(&copy, &config);
        if (got.rc == 0)
            rk_config_free(&copy);
        rk_config_free(&config);
    }
    got.reached = left < 0;
    left = -1;
    got.still_there = live - before;
    return got;
}

START_TEST(making_and_copying_survive_the_failure_of_any_allocation) {
    long n = 0;
    for (result got = copy_once(n); got.reached; got = copy_once(++n)) {
        ck_assert_msg(got.still_there == 0, "allocation %ld: %ld leaked", n, got.still_there);
        ck_assert(got.rc == -ENOMEM || got.rc == 0);
    }
    ck_assert_int_gt(n, 3);
    ck_assert_int_eq(copy_once(-1).rc, 0);
}
END_TEST

START_TEST(checking_and_reading_survive_the_failure_of_any_allocation) {
    rk_config config;
    char error[RK_CONFIG_ERROR_MAX];
    ck_assert_int_eq(rk_config_init(&config), 0);
    config.dead_seconds = 1; /* below stall_seconds */
    bool reached = true;
    for (long n = 0; reached; n++) {
        long before = live;
        left = n;
        int rc = rk_config_check(&config, error);
        reached = left < 0;
        left = -1;
        long leaked = live - before;
        ck_assert_msg(leaked == 0, "allocation %ld: %ld leaked", n, leaked);
        ck_assert(rc == -EINVAL || (reached && rc == -ENOMEM));
        ck_assert_str_ne(error, "");
    }
    left = 0;
    char *text = rk_config_get(&config, "waiting");
    left = -1;
    ck_assert_ptr_null(text);
    rk_config_free(&config);
}
END_TEST

int main(void) {
    if (other_malloc())
        return EXIT_SUCCESS;
    Suite *suite = suite_create("config memory");
    TCase *tests = tcase_create("config memory");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, loading_survives_the_failure_of_any_allocation);
    tcase_add_test(tests, making_and_copying_survive_the_failure_of_any_allocation);
    tcase_add_test(tests, checking_and_reading_survive_the_failure_of_any_allocation);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#else

int main(void) {
    return EXIT_SUCCESS;
}

#endif
