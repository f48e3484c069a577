/* The table of keys, single values and rules between keys. Files are in test_config_file.c. */
#include <check.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "config/internal.h"
#include "config/nearest.h"
#include "config/number.h"

static char error[RK_CONFIG_ERROR_MAX];
static rk_config config;

static void setup(void) {
    ck_assert_int_eq(rk_config_init(&config), 0);
    memset(error, 'x', sizeof error);
}

static void teardown(void) {
    rk_config_free(&config);
    rk_config_free(&config);
}

static void refuses(const char *where, const char *key, const char *value, const char *line) {
    ck_assert_int_eq(rk_config_set(&config, key, value, where, error), -EINVAL);
    ck_assert_str_eq(error, line);
}

static void takes(const char *key, const char *value, const char *shown) {
    ck_assert_int_eq(rk_config_set(&config, key, value, "--room-x", error), 0);
    ck_assert_str_eq(error, "");
    _cleanup_free_ char *text = rk_config_get(&config, key);
    ck_assert_str_eq(text, shown);
}

START_TEST(the_defaults_are_those_of_the_table) {
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    ck_assert_uint_eq(count, RK_KEY_TOTAL);
    for (size_t i = 0; i < count; i++) {
        _cleanup_free_ char *text = rk_config_get(&config, keys[i].name);
        ck_assert_str_eq(text, keys[i].default_text);
        ck_assert_msg(*keys[i].help, "%s has no help", keys[i].name);
    }
    ck_assert(config.rooms);
    ck_assert_int_eq(config.waiting, -1);
    ck_assert_double_eq(config.wait_seconds, 30);
    ck_assert_int_eq(config.backlog_bytes, 4194304);
    ck_assert_str_eq(config.log_level, "info");
    ck_assert_int_eq(rk_config_check(&config, error), 0);
    ck_assert_str_eq(error, "");
}
END_TEST

START_TEST(every_value_reads_back_from_its_own_text) {
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    takes("wait_seconds", "0.125", "0.125");
    takes("kv_tokens", "1000000000000", "1000000000000");
    takes("log_format", "json", "json");
    rk_config other;
    ck_assert_int_eq(rk_config_init(&other), 0);
    for (size_t i = 0; i < count; i++) {
        _cleanup_free_ char *text = rk_config_get(&config, keys[i].name);
        ck_assert_int_eq(rk_config_set(&other, keys[i].name, text, "a test", error), 0);
        _cleanup_free_ char *again = rk_config_get(&other, keys[i].name);
        ck_assert_str_eq(text, again);
    }
    rk_config_free(&other);
}
END_TEST

START_TEST(a_switch_takes_the_usual_words_in_any_case) {
    static const char *const on[] = {"on", "true", "yes", "1", "ON", "True", "YES"};
    static const char *const off[] = {"off", "false", "no", "0", "OFF", "False", "No"};
    for (size_t i = 0; i < RK_COUNT(on); i++) {
        takes("rooms", off[i], "off");
        ck_assert(!config.rooms);
        takes("rooms", on[i], "on");
        ck_assert(config.rooms);
    }
}
END_TEST

START_TEST(a_switch_refuses_other_words) {
    refuses("--rooms", "rooms", "maybe",
            "--rooms: \"maybe\" is neither on nor off; give on or off (true or false, yes or no, 1 or 0)");
    refuses(
        "rooms.yaml:7", "cork", "2",
        "rooms.yaml:7: cork is \"2\", neither on nor off; give on or off (true or false, yes or no, 1 or 0)");
    refuses("--rooms", "rooms", "onn",
            "--rooms: \"onn\" is neither on nor off; give on or off (true or false, yes or no, 1 or 0)");
}
END_TEST

START_TEST(a_whole_number_that_is_none_is_refused_with_its_limits) {
    static const char *const none[] = {"x",  "1.5", "0x10",  "1e3", " 5",       "5 ",
                                       "--", "-",   "1_000", "5s",  "\xC3\xA9", "nan"};
    for (size_t i = 0; i < RK_COUNT(none); i++)
        ck_assert_msg(rk_config_set(&config, "waiting", none[i], "--room-waiting", error) == -EINVAL &&
                          strstr(error, "is not a whole number; give one from -1 to 1000000"),
                      "\"%s\" gave: %s", none[i], error);
    refuses("--room-waiting", "waiting", "x",
            "--room-waiting: \"x\" is not a whole number; give one from -1 to 1000000");
    refuses("rooms.yaml:3", "waiting", "x",
            "rooms.yaml:3: waiting is \"x\", not a whole number; give one from -1 to 1000000");
}
END_TEST

START_TEST(a_number_out_of_range_is_refused_with_its_limits) {
    refuses("rooms.yaml:4", "wait_seconds", "0",
            "rooms.yaml:4: wait_seconds is 0; it must be from 0.001 to 86400");
    refuses("--room-wait-seconds", "wait_seconds", "-1",
            "--room-wait-seconds: -1 is out of range; it must be from 0.001 to 86400");
    refuses("rooms.yaml:4", "waiting", "-2", "rooms.yaml:4: waiting is -2; it must be from -1 to 1000000");
    refuses("rooms.yaml:4", "waiting", "99999999999999999999",
            "rooms.yaml:4: waiting is 99999999999999999999; it must be from -1 to 1000000");
    refuses("rooms.yaml:4", "wait_seconds", "1e999",
            "rooms.yaml:4: wait_seconds is 1e999; it must be from 0.001 to 86400");
    refuses("rooms.yaml:4", "kv_tokens", "1000000000001",
            "rooms.yaml:4: kv_tokens is 1000000000001; it must be from -1 to 1000000000000");
    refuses("rooms.yaml:4", "max_message_bytes", "2147483648",
            "rooms.yaml:4: max_message_bytes is 2147483648; it must be from -1 to 2147483647");
    ck_assert_int_eq(config.waiting, -1);
    ck_assert_double_eq(config.wait_seconds, 30);
}
END_TEST

START_TEST(every_limit_itself_is_taken) {
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    for (size_t i = 0; i < count; i++) {
        char min[RK_NUMBER_TEXT_MAX], max[RK_NUMBER_TEXT_MAX];
        if (keys[i].type != RK_KEY_INT && keys[i].type != RK_KEY_NUMBER)
            continue;
        ck_assert_int_eq(rk_format_number(keys[i].min, min, sizeof min), 0);
        ck_assert_int_eq(rk_format_number(keys[i].max, max, sizeof max), 0);
        takes(keys[i].name, min, min);
        takes(keys[i].name, max, max);
    }
}
END_TEST

START_TEST(a_number_has_no_hexadecimal_and_no_nan) {
    static const char *const none[] = {"nan", "inf", "-inf", "infinity", ".nan",  ".inf", "0x1p3",
                                       "1e",  "1e+", ".",    "1,5",      "1.2.3", "1 ",   "30s"};
    for (size_t i = 0; i < RK_COUNT(none); i++)
        ck_assert_msg(rk_config_set(&config, "wait_seconds", none[i], "--room-wait-seconds", error) ==
                              -EINVAL &&
                          strstr(error, "is not a number; give one from 0.001 to 86400"),
                      "\"%s\" gave: %s", none[i], error);
}
END_TEST

START_TEST(a_number_may_be_written_in_any_decimal_way) {
    takes("wait_seconds", "30", "30");
    takes("wait_seconds", "30.", "30");
    takes("wait_seconds", ".5", "0.5");
    takes("wait_seconds", "+2.50", "2.5");
    takes("wait_seconds", "1.5e2", "150");
    takes("wait_seconds", "0.1", "0.1");
    takes("drain_seconds", "-0", "0");
    ck_assert(!signbit(config.drain_seconds));
    takes("waiting", "+7", "7");
    takes("waiting", "007", "7");
}
END_TEST

START_TEST(numbers_do_not_depend_on_the_locale) {
    static const char *const with_comma[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < RK_COUNT(with_comma) && !found; i++)
        found = setlocale(LC_NUMERIC, with_comma[i]) != NULL;
    takes("wait_seconds", "0.25", "0.25");
    ck_assert_double_eq(config.wait_seconds, 0.25);
    refuses("rooms.yaml:1", "wait_seconds", "0,25",
            "rooms.yaml:1: wait_seconds is \"0,25\", not a number; give one from 0.001 to 86400");
    (void)setlocale(LC_NUMERIC, "C");
}
END_TEST

START_TEST(a_choice_is_one_of_its_words) {
    takes("log_level", "debug", "debug");
    takes("log_level", "error", "error");
    refuses(
        "rooms.yaml:2", "log_level", "inf",
        "rooms.yaml:2: log_level is \"inf\", not a known choice; give one of debug, info, warning, error");
    refuses("--room-log-format", "log_format", "text|json",
            "--room-log-format: \"text|json\" is not a known choice; give one of text, json");
    ck_assert_str_eq(config.log_level, "error");
}
END_TEST

START_TEST(no_value_is_said_to_be_none) {
    refuses("rooms.yaml:2", "waiting", "",
            "rooms.yaml:2: waiting has no value; give a whole number from -1 to 1000000");
    refuses("--room-wait-seconds", "wait_seconds", "",
            "--room-wait-seconds: it has no value; give a number from 0.001 to 86400");
    refuses("rooms.yaml:2", "log_format", "",
            "rooms.yaml:2: log_format has no value; give one of text, json");
    refuses("rooms.yaml:2", "rooms", NULL, "rooms.yaml:2: rooms has no value; give on or off");
}
END_TEST

START_TEST(an_unknown_key_names_the_nearest_one) {
    refuses("rooms.yaml:3", "wating", "5", "rooms.yaml:3: unknown key \"wating\"; did you mean \"waiting\"?");
    refuses("rooms.yaml:3", "Wait-Seconds", "5",
            "rooms.yaml:3: unknown key \"Wait-Seconds\"; did you mean \"wait_seconds\"?");
    refuses("rooms.yaml:3", "room_waiting", "5",
            "rooms.yaml:3: unknown key \"room_waiting\"; did you mean \"waiting\"?");
    refuses("rooms.yaml:3", "--room-waiting", "5",
            "rooms.yaml:3: unknown key \"--room-waiting\"; did you mean \"waiting\"?");
    refuses("--room-wating", "wating", "5",
            "--room-wating: there is no such flag; did you mean --room-waiting?");
    refuses("--room", "", "5", "--room: there is no such flag; the nearest one is --room-held");
    refuses("rooms.yaml:3", "zebra_crossing", "5",
            "rooms.yaml:3: unknown key \"zebra_crossing\"; the nearest one is \"waiting\"");
    refuses(NULL, "rom", "1", "configuration: unknown key \"rom\"; did you mean \"rooms\"?");
    refuses("--rom", "rom", "1", "--rom: there is no such flag; did you mean --rooms?");
    ck_assert_ptr_null(rk_config_get(&config, "wating"));
}
END_TEST

START_TEST(word_distance_counts_letters_and_swaps) {
    ck_assert_uint_eq(rk_word_distance("waiting", "waiting"), 0);
    ck_assert_uint_eq(rk_word_distance("", "held"), 4);
    ck_assert_uint_eq(rk_word_distance("held", ""), 4);
    ck_assert_uint_eq(rk_word_distance("hedl", "held"), 1);
    ck_assert_uint_eq(rk_word_distance("ehld", "held"), 1);
    ck_assert_uint_eq(rk_word_distance("hed", "held"), 1);
    ck_assert_uint_eq(rk_word_distance("helds", "held"), 1);
    ck_assert_uint_eq(rk_word_distance("hold", "held"), 1);
    ck_assert_uint_eq(rk_word_distance("KV-Tokens", "kv_tokens"), 0);
    ck_assert_uint_eq(rk_word_distance("kitten", "sitting"), 3);
}
END_TEST

START_TEST(an_error_stays_one_clean_line_whatever_the_value) {
    char *huge = malloc(1u << 20);
    ck_assert_ptr_nonnull(huge);
    memset(huge, 'k', (1u << 20) - 1);
    huge[(1u << 20) - 1] = '\0';
    ck_assert_int_eq(rk_config_set(&config, huge, "1", huge, error), -EINVAL);
    ck_assert_uint_lt(strlen(error), RK_CONFIG_ERROR_MAX);
    ck_assert_int_eq(rk_config_set(&config, "waiting", huge, "rooms.yaml:1", error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error, "kkk...\", not a whole number; give one from -1 to 1000000"));
    refuses("rooms.yaml:1", "waiting", "a\nb\x01\xFF\t",
            "rooms.yaml:1: waiting is \"a b ? \", not a whole number; give one from -1 to 1000000");
    free(huge);
}
END_TEST

START_TEST(a_long_text_is_cut_at_a_whole_character) {
    char out[RK_SHOWN_MAX], text[400];
    for (size_t lead = 0; lead < 5; lead++) {
        memset(text, 'a', lead);
        for (size_t at = lead; at + 4 < sizeof text; at += 4)
            memcpy(text + at, "\xF0\x9F\x9A\xAA", 5);
        (void)rk_shown(out, text);
        ck_assert(rk_utf8_valid(out, strlen(out)));
        ck_assert_ptr_null(strchr(out, '?'));
        ck_assert_str_eq(out + strlen(out) - 3, "...");
    }
    ck_assert_str_eq(rk_shown(out, "short"), "short");
}
END_TEST

START_TEST(a_text_key_takes_one_line_of_utf8) {
    const rk_key key = {.name = "greeting", .type = RK_KEY_TEXT, .choices = ""};
    rk_key_value value = {0};
    ck_assert_int_eq(rk_key_parse(&key, "gr\xC3\xBC\xC3\x9F dich", &value, "rooms.yaml:1", error), 0);
    ck_assert_str_eq(value.text, "gr\xC3\xBC\xC3\x9F dich");
    free(value.text);
    ck_assert_int_eq(rk_key_parse(&key, "", &value, "rooms.yaml:1", error), 0);
    ck_assert_str_eq(value.text, "");
    free(value.text);
    ck_assert_int_eq(rk_key_parse(&key, "two\nlines", &value, "rooms.yaml:1", error), -EINVAL);
    ck_assert_str_eq(
        error, "rooms.yaml:1: greeting is \"two lines\", not a plain line; give one line of UTF-8 text");
    ck_assert_int_eq(rk_key_parse(&key, "\xFF", &value, "--room-greeting", error), -EINVAL);
    ck_assert_str_eq(error, "--room-greeting: \"?\" is not a plain line; give one line of UTF-8 text");
}
END_TEST

START_TEST(a_copy_lives_on_its_own) {
    rk_config copy;
    takes("log_level", "debug", "debug");
    takes("window", "12", "12");
    ck_assert_int_eq(rk_config_copy(&copy, &config), 0);
    takes("log_level", "error", "error");
    ck_assert_str_eq(copy.log_level, "debug");
    ck_assert_int_eq(copy.window, 12);
    rk_config_free(&copy);
    ck_assert_str_eq(config.log_level, "error");
}
END_TEST

START_TEST(an_engine_cannot_be_dead_before_it_is_stalled) {
    takes("dead_seconds", "5", "5");
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    ck_assert_str_eq(error,
                     "configuration: dead_seconds is 5, below stall_seconds (10); raise dead_seconds or "
                     "lower stall_seconds");
    takes("stall_seconds", "5", "5");
    ck_assert_int_eq(rk_config_check(&config, error), 0);
}
END_TEST

START_TEST(a_message_limit_leaves_room_for_a_request) {
    takes("max_message_bytes", "0", "0");
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    ck_assert_str_eq(error, "configuration: max_message_bytes is 0, too little for any request; give -1 or a "
                            "number from 1024 up");
    takes("max_message_bytes", "1024", "1024");
    ck_assert_int_eq(rk_config_check(&config, error), 0);
    takes("max_message_bytes", "-1", "-1");
    ck_assert_int_eq(rk_config_check(&config, error), 0);
}
END_TEST

START_TEST(what_a_program_filled_in_is_checked_too) {
    config.wait_seconds = NAN;
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error, "configuration: wait_seconds is \""));
    config.wait_seconds = INFINITY;
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    config.wait_seconds = 1;
    config.pollers = 65;
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    ck_assert_str_eq(error, "configuration: pollers is 65; it must be from 0 to 64");
    config.pollers = 0;
    free(config.log_level);
    config.log_level = NULL;
    ck_assert_int_eq(rk_config_check(&config, error), -EINVAL);
    ck_assert_str_eq(error, "configuration: log_level has no value; give one of debug, info, warning, error");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("config");
    TCase *tests = tcase_create("config");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, the_defaults_are_those_of_the_table);
    tcase_add_test(tests, every_value_reads_back_from_its_own_text);
    tcase_add_test(tests, a_switch_takes_the_usual_words_in_any_case);
    tcase_add_test(tests, a_switch_refuses_other_words);
    tcase_add_test(tests, a_whole_number_that_is_none_is_refused_with_its_limits);
    tcase_add_test(tests, a_number_out_of_range_is_refused_with_its_limits);
    tcase_add_test(tests, every_limit_itself_is_taken);
    tcase_add_test(tests, a_number_has_no_hexadecimal_and_no_nan);
    tcase_add_test(tests, a_number_may_be_written_in_any_decimal_way);
    tcase_add_test(tests, numbers_do_not_depend_on_the_locale);
    tcase_add_test(tests, a_choice_is_one_of_its_words);
    tcase_add_test(tests, no_value_is_said_to_be_none);
    tcase_add_test(tests, an_unknown_key_names_the_nearest_one);
    tcase_add_test(tests, word_distance_counts_letters_and_swaps);
    tcase_add_test(tests, an_error_stays_one_clean_line_whatever_the_value);
    tcase_add_test(tests, a_long_text_is_cut_at_a_whole_character);
    tcase_add_test(tests, a_text_key_takes_one_line_of_utf8);
    tcase_add_test(tests, a_copy_lives_on_its_own);
    tcase_add_test(tests, an_engine_cannot_be_dead_before_it_is_stalled);
    tcase_add_test(tests, a_message_limit_leaves_room_for_a_request);
    tcase_add_test(tests, what_a_program_filled_in_is_checked_too);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
