/* The JSON check: what is JSON, what is not, and where it stops being so. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "dialects/json.h"

static const char *const good[] = {
    "{}",
    "[]",
    "null",
    "true",
    "false",
    "0",
    "-0",
    "12.5e-3",
    "1E+9",
    "\"\"",
    " \t\r\n{ } ",
    "\"\\u00e9\\ud800\"",
    "{\"a\":[1,2,{\"b\":null}],\"c\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}",
    "[[],[[]],{}]",
    "\"\x7F é\"",
    "{\"a\":1,\"a\":2}",
    "123456789012345678901234567890",
};

START_TEST(what_is_json_passes) {
    size_t at = 0;
    const char *fault = rk_json_fault(good[_i], strlen(good[_i]), &at);
    ck_assert_msg(fault == NULL, "%s: %s at %zu", good[_i], fault, at);
}
END_TEST

static const struct {
    const char *text;
    const char *fault;
    size_t at;
} bad[] = {
    {"", "a value is missing", 0},
    {"  ", "a value is missing", 2},
    {"{", "a string is missing", 1},
    {"[", "a value is missing", 1},
    {"[1,]", "a value is missing", 3},
    {"[1 2]", "a comma or ] is missing", 3},
    {"{\"a\"}", "a colon is missing", 4},
    {"{\"a\":}", "a value is missing", 5},
    {"{\"a\":1,}", "a string is missing", 7},
    {"{\"a\":1 \"b\":2}", "a comma or } is missing", 7},
    {"{a:1}", "a string is missing", 1},
    {"[1}", "a comma or ] is missing", 2},
    {"{\"a\":1]", "a comma or } is missing", 6},
    {"]", "a value is missing", 0},
    {"nul", "a value is missing", 0},
    {"nullx", "something follows the value", 4},
    {"True", "a value is missing", 0},
    {"NaN", "a value is missing", 0},
    {"-", "a digit is missing", 1},
    {"+1", "a value is missing", 0},
    {"01", "a number begins with 0", 2},
    {"1.", "a digit is missing after the decimal point", 2},
    {".5", "a value is missing", 0},
    {"1e", "a digit is missing in the exponent", 2},
    {"1e+-2", "a digit is missing in the exponent", 3},
    {"\"a", "a string is not closed", 2},
    {"\"\\", "a string is not closed", 2},
    {"\"\\x\"", "an escape is unknown", 3},
    {"\"\\u12g4\"", "\\u needs four hexadecimal digits", 5},
    {"\"a\nb\"", "a control character is not escaped", 3},
    {"'a'", "a value is missing", 0},
    {"{} {}", "something follows the value", 3},
    {"// no", "a value is missing", 0},
};

START_TEST(what_is_not_json_is_told_where) {
    size_t at = 9999;
    const char *fault = rk_json_fault(bad[_i].text, strlen(bad[_i].text), &at);
    ck_assert_msg(fault != NULL, "%s passed", bad[_i].text);
    ck_assert_str_eq(fault, bad[_i].fault);
    ck_assert_uint_eq(at, bad[_i].at);
}
END_TEST

START_TEST(a_nul_does_not_end_the_text) {
    size_t at = 0;
    ck_assert_str_eq(rk_json_fault("{}\0", 3, &at), "something follows the value");
    ck_assert_uint_eq(at, 2);
}
END_TEST

static const char *nested_fault(size_t depth, const char *open, const char *close) {
    size_t step = strlen(open);
    char *text = malloc(depth * (step + strlen(close)) + 2);
    size_t size = 0, at;
    for (size_t i = 0; i < depth; i++, size += step)
        memcpy(text + size, open, step);
    text[size++] = '1';
    for (size_t i = 0; i < depth; i++)
        text[size++] = *close;
    const char *fault = rk_json_fault(text, size, &at);
    free(text);
    return fault;
}

START_TEST(depth_is_bounded) {
    const char *open = _i ? "{\"a\":" : "[", *close = _i ? "}" : "]";
    ck_assert_ptr_null(nested_fault(RK_JSON_DEPTH_MAX, open, close));
    ck_assert_str_eq(nested_fault(RK_JSON_DEPTH_MAX + 1, open, close), "it is nested too deeply");
    ck_assert_str_eq(nested_fault(1000000, open, close), "it is nested too deeply");
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("json");
    tcase_add_loop_test(tcase, what_is_json_passes, 0, (int)(sizeof good / sizeof good[0]));
    tcase_add_loop_test(tcase, what_is_not_json_is_told_where, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(tcase, a_nul_does_not_end_the_text);
    tcase_add_loop_test(tcase, depth_is_bounded, 0, 2);
    Suite *suite = suite_create("dialect_json");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
