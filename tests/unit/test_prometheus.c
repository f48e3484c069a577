/* The text format of the metrics: numbers and labels as a scraper reads them. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "observe/prometheus.h"

static void writes(double value, const char *label, const char *line) {
    rk_buf out = RK_BUF_INIT;
    rk_sample(&out, "m", &(rk_label){"l", label}, 1, value);
    rk_buf_append(&out, "", 1);
    ck_assert_str_eq((const char *)out.data, line);
    rk_buf_free(&out);
}

START_TEST(what_is_no_finite_number_is_spelt_as_the_format_has_it) {
    writes(0.1, "a", "m{l=\"a\"} 0.1\n");
    writes(NAN, "a", "m{l=\"a\"} NaN\n");
    writes(-NAN, "a", "m{l=\"a\"} NaN\n");
    writes(INFINITY, "a", "m{l=\"a\"} +Inf\n");
    writes(-INFINITY, "a", "m{l=\"a\"} -Inf\n");
}
END_TEST

START_TEST(a_label_is_one_line_whatever_is_in_it) {
    writes(1, "a \"b\"\n\\", "m{l=\"a \\\"b\\\"\\n\\\\\"} 1\n");
    writes(1, "", "m{l=\"\"} 1\n");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("prometheus");
    TCase *cases = tcase_create("text");
    tcase_add_test(cases, what_is_no_finite_number_is_spelt_as_the_format_has_it);
    tcase_add_test(cases, a_label_is_one_line_whatever_is_in_it);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
