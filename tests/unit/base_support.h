/* What the tests of the base helpers share. */
#ifndef BASE_SUPPORT_H
#define BASE_SUPPORT_H

#include <check.h>
#include <stddef.h>

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

/* Numbers that look random and are the same every time. */
static inline unsigned next_random(unsigned *seed, unsigned below) {
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

#endif
