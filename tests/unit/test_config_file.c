/* Configuration files: what is taken, and the one line that says what is wrong where. */
#include <check.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "roomkeeper/config.h"

static char error[RK_CONFIG_ERROR_MAX];
static rk_config config;
static char before[PATH_MAX]; /* where the test started */
static char folder[64];       /* where it runs: a directory of its own */

static void setup(void) {
    ck_assert_ptr_nonnull(getcwd(before, sizeof before));
    strcpy(folder, "/tmp/rk-config-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(rk_config_init(&config), 0);
}

static void teardown(void) {
    rk_config_free(&config);
    (void)unlink("rooms.yaml");
    ck_assert_int_eq(chdir(before), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_file(const char *bytes, size_t size) {
    FILE *file = fopen("rooms.yaml", "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static int load(const char *text) {
    write_file(text, strlen(text));
    memset(error, 'x', sizeof error);
    return rk_config_load(&config, "rooms.yaml", error);
}

/* The file is refused with this line, and nothing of it is applied. */
static void refuses(const char *text, const char *line) {
    ck_assert_int_eq(load(text), -EINVAL);
    ck_assert_str_eq(error, line);
    ck_assert_int_eq(config.waiting, -1);
    ck_assert_double_eq(config.wait_seconds, 30);
}

START_TEST(a_file_sets_keys_of_every_type) {
    ck_assert_int_eq(load("# a worker\n"
                          "rooms: on\n"
                          "cork: no\n"
                          "waiting: 12   # places\n"
                          "wait_seconds: 2.5\n"
                          "log_level: 'debug'\n"
                          "log_format: \"json\"\n"
                          "window: -1\n"),
                     0);
    ck_assert_str_eq(error, "");
    ck_assert(config.rooms && !config.cork);
    ck_assert_int_eq(config.waiting, 12);
    ck_assert_double_eq(config.wait_seconds, 2.5);
    ck_assert_str_eq(config.log_level, "debug");
    ck_assert_str_eq(config.log_format, "json");
    ck_assert_int_eq(config.held, 1024);
}
END_TEST

START_TEST(all_ways_to_write_a_mapping_are_the_same) {
    static const char *const files[] = {
        "{waiting: 3, rooms: off}\n",
        "waiting: 3\nrooms: off",
        "---\nwaiting: 3\nrooms: off\n...\n",
        "%YAML 1.1\n---\nwaiting: 3\nrooms: off\n",
        "\xEF\xBB\xBFwaiting: 3\nrooms: off\n",
        "waiting: 3\r\nrooms: off\r\n",
        "? waiting\n: 3\n? rooms\n: off\n",
        "{\"waiting\": \"3\", 'rooms': 'off'}",
        "waiting:\n  3\nrooms: \"o\\\n  ff\"\n",
    };
    for (size_t i = 0; i < RK_COUNT(files); i++) {
        config.waiting = -1;
        config.rooms = true;
        ck_assert_msg(load(files[i]) == 0, "file %zu: %s", i, error);
        ck_assert_int_eq(config.waiting, 3);
        ck_assert(!config.rooms);
    }
}
END_TEST

START_TEST(flags_win_over_the_file_and_the_file_over_defaults) {
    ck_assert_int_eq(load("waiting: 3\nheld: 7\n"), 0);
    ck_assert_int_eq(rk_config_set(&config, "waiting", "9", "--room-waiting", error), 0);
    ck_assert_int_eq(config.waiting, 9);
    ck_assert_int_eq(config.held, 7);
    ck_assert_int_eq(config.pushback_ms, 500);
}
END_TEST

START_TEST(every_default_may_be_written_into_a_file) {
    size_t count = 0;
    const rk_key *keys = rk_config_keys(&count);
    char text[8192] = "";
    for (size_t i = 0; i < count; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s: %s\n", keys[i].name,
                       keys[i].default_text);
    ck_assert_msg(load(text) == 0, "%s", error);
    ck_assert_int_eq(rk_config_check(&config, error), 0);
}
END_TEST

START_TEST(a_wrong_key_or_value_names_file_and_line) {
    refuses("waiting: 1\n\nwating: 5\n", "rooms.yaml:3: unknown key \"wating\"; did you mean \"waiting\"?");
    refuses("waiting: 1\nrooms: on\n# x\nwait_seconds: 0\n",
            "rooms.yaml:4: wait_seconds is 0; it must be from 0.001 to 86400");
    refuses("waiting: 1\nwait_seconds: .nan\n",
            "rooms.yaml:2: wait_seconds is \".nan\", not a number; give one from 0.001 to 86400");
    refuses("waiting: 0x10\n",
            "rooms.yaml:1: waiting is \"0x10\", not a whole number; give one from -1 to 1000000");
    refuses("waiting:\n", "rooms.yaml:1: waiting has no value; give a whole number from -1 to 1000000");
    refuses("waiting: ~\n",
            "rooms.yaml:1: waiting is \"~\", not a whole number; give one from -1 to 1000000");
    refuses("roomkeeper:\n  waiting: 1\n",
            "rooms.yaml:1: unknown key \"roomkeeper\"; the nearest one is \"rooms\"");
    refuses("<<: {waiting: 1}\n", "rooms.yaml:1: unknown key \"<<\"; the nearest one is \"held\"");
}
END_TEST

START_TEST(a_key_given_twice_is_refused) {
    refuses("waiting: 1\nheld: 2\nwaiting: 3\n",
            "rooms.yaml:3: waiting is given twice, first in line 1; keep one");
    refuses("{waiting: 1, \"waiting\": 1}\n",
            "rooms.yaml:1: waiting is given twice, first in line 1; keep one");
}
END_TEST

START_TEST(other_shapes_are_refused) {
    refuses("- waiting: 1\n", "rooms.yaml:1: the file is a list; write one \"key: value\" a line");
    refuses("\n\nwaiting\n", "rooms.yaml:3: the file is a single value; write one \"key: value\" a line");
    refuses("waiting=3\n", "rooms.yaml:1: the file is a single value; write one \"key: value\" a line");
    refuses("held: 1\nwaiting:\n  places: 3\n",
            "rooms.yaml:3: waiting is a mapping; give a whole number from -1 to 1000000");
    refuses("waiting: [1, 2]\n", "rooms.yaml:1: waiting is a list; give a whole number from -1 to 1000000");
    refuses("? [waiting]\n: 1\n",
            "rooms.yaml:1: a list is in the place of a key; write one \"key: value\" a line");
    refuses("{{a: b}: c}\n",
            "rooms.yaml:1: a mapping is in the place of a key; write one \"key: value\" a line");
    refuses("waiting: 1\n---\nwaiting: 2\n", "rooms.yaml:2: a second document begins; keep one");
}
END_TEST

START_TEST(an_empty_file_is_refused) {
    refuses("",
            "rooms.yaml:1: the file says nothing; write one \"key: value\" a line, or do without the file");
    refuses("# nothing\n\n",
            "rooms.yaml:3: the file says nothing; write one \"key: value\" a line, or do without the file");
    refuses("---\n...\n",
            "rooms.yaml:2: the file says nothing; write one \"key: value\" a line, or do without the file");
    ck_assert_int_eq(load("{}\n"), 0);
}
END_TEST

START_TEST(anchors_aliases_and_tags_are_refused) {
    refuses("waiting: &places 3\nheld: *places\n",
            "rooms.yaml:1: anchors (\"&places\") are not taken; leave it out");
    refuses("&all\nwaiting: 3\n", "rooms.yaml:1: anchors (\"&all\") are not taken; leave it out");
    refuses("&key waiting: 3\n", "rooms.yaml:1: anchors (\"&key\") are not taken; leave it out");
    refuses("held: 1\nwaiting: *places\n",
            "rooms.yaml:2: aliases (\"*places\") are not taken; write the value out");
    refuses("waiting: !!int 3\n",
            "rooms.yaml:1: tags (\"tag:yaml.org,2002:int\") are not taken; write the plain value");
    refuses("waiting: !env WAITING\n", "rooms.yaml:1: tags (\"!env\") are not taken; write the plain value");
    refuses("a: &a [x,x]\nb: &b [*a,*a]\n", "rooms.yaml:1: unknown key \"a\"; the nearest one is \"held\"");
    refuses("waiting: &a [x,x,x]\nheld: &b [*a,*a,*a]\nwindow: [*b,*b,*b]\n",
            "rooms.yaml:1: anchors (\"&a\") are not taken; leave it out");
}
END_TEST

/* The reason is libyaml's and may differ between its versions; place and advice are ours. */
static void not_yaml(const char *text, const char *place) {
    static const char advice[] = "; write one \"key: value\" a line";
    char start[64];
    (void)snprintf(start, sizeof start, "%s: it is not YAML: ", place);
    ck_assert_int_eq(load(text), -EINVAL);
    ck_assert_msg(strncmp(error, start, strlen(start)) == 0, "%s", error);
    ck_assert_str_eq(error + strlen(error) - (sizeof advice - 1), advice);
    ck_assert_int_eq(config.waiting, -1);
}

START_TEST(what_is_not_yaml_names_its_line) {
    not_yaml("waiting: 1\n\theld: 2\n", "rooms.yaml:2");
    not_yaml("waiting: 1\nheld: \"2\n", "rooms.yaml:3");
    not_yaml("waiting: 1\nheld 2\n", "rooms.yaml:3");
    not_yaml("waiting: 1\nheld: \x01\n", "rooms.yaml:2");
    not_yaml("{waiting: 1\n", "rooms.yaml:2");
    not_yaml("%YAML 9.9\n---\nwaiting: 1\n", "rooms.yaml:1");
    not_yaml("held: @1\n", "rooms.yaml:1");
    refuses("waiting: \"1\\0\"\n",
            "rooms.yaml:1: waiting holds a NUL character; give a whole number from -1 to 1000000");
    refuses("\"wait\\0ing\": 1\n",
            "rooms.yaml:1: a key holds a NUL character; write one \"key: value\" a line");
}
END_TEST

START_TEST(what_is_not_utf8_names_its_line) {
    static const char utf16[] = "\xFF\xFEw\0a\0i\0t\0i\0n\0g\0";
    refuses("waiting: 1\n# caf\xE9\n", "rooms.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8");
    write_file(utf16, sizeof utf16 - 1);
    ck_assert_int_eq(rk_config_load(&config, "rooms.yaml", error), -EINVAL);
    ck_assert_str_eq(error, "rooms.yaml:1: byte 0xff is not UTF-8; save the file as UTF-8");
    write_file("held: 1\n\0waiting: 2\n", 20);
    ck_assert_int_eq(rk_config_load(&config, "rooms.yaml", error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error, "rooms.yaml:2: it is not YAML: "));
}
END_TEST

START_TEST(what_cannot_be_read_says_why) {
    ck_assert_int_eq(rk_config_load(&config, "none.yaml", error), -ENOENT);
    ck_assert_str_eq(error, "none.yaml: cannot read it: No such file or directory; check the path and its "
                            "permissions");
    ck_assert_int_eq(rk_config_load(&config, "", error), -ENOENT);
    ck_assert_int_eq(rk_config_load(&config, ".", error), -EISDIR);
    ck_assert_str_eq(error, ".: it is a directory; give a YAML file");
    ck_assert_int_eq(rk_config_load(&config, "/dev/null", error), -EINVAL);
    ck_assert_str_eq(error, "/dev/null: it is not a regular file; give a YAML file");
}
END_TEST

START_TEST(a_pipe_without_a_writer_is_refused_and_not_waited_for) {
    ck_assert_int_eq(mkfifo("rooms.yaml", 0600), 0);
    ck_assert_int_eq(rk_config_load(&config, "rooms.yaml", error), -EINVAL);
    ck_assert_str_eq(error, "rooms.yaml: it is not a regular file; give a YAML file");
}
END_TEST

START_TEST(a_file_that_may_not_be_read_says_so) {
    write_file("waiting: 1\n", 11);
    ck_assert_int_eq(chmod("rooms.yaml", 0), 0);
    int rc = rk_config_load(&config, "rooms.yaml", error);
    if (geteuid() == 0) { /* who may read everything reads it */
        ck_assert_int_eq(rc, 0);
        return;
    }
    ck_assert_int_eq(rc, -EACCES);
    ck_assert_str_eq(error,
                     "rooms.yaml: cannot read it: Permission denied; check the path and its permissions");
}
END_TEST

START_TEST(a_file_may_have_one_mebibyte_and_no_more) {
    size_t limit = 1048576;
    char *text = malloc(limit + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, '\n', limit + 1);
    memcpy(text, "waiting: 4\n#", 12);
    write_file(text, limit);
    ck_assert_int_eq(rk_config_load(&config, "rooms.yaml", error), 0);
    ck_assert_int_eq(config.waiting, 4);
    write_file(text, limit + 1);
    ck_assert_int_eq(rk_config_load(&config, "rooms.yaml", error), -EFBIG);
    ck_assert_str_eq(error, "rooms.yaml: it has more than 1048576 bytes, the limit; is it the right file?");
    free(text);
}
END_TEST

START_TEST(deep_nesting_is_refused_at_its_first_level) {
    static const char *const openers[] = {"waiting: ", "", "? "};
    for (size_t i = 0; i < RK_COUNT(openers); i++) {
        size_t lead = strlen(openers[i]), size = 500000;
        char *text = malloc(size + 1);
        ck_assert_ptr_nonnull(text);
        memset(text, i % 2 ? '{' : '[', size);
        memcpy(text, openers[i], lead);
        text[size] = '\0';
        ck_assert_int_eq(load(text), -EINVAL);
        ck_assert_int_eq(strncmp(error, "rooms.yaml:1: ", 14), 0);
        free(text);
    }
}
END_TEST

START_TEST(a_long_path_is_shown_by_its_end) {
    char path[900];
    memset(path, 'd', sizeof path);
    for (size_t i = 0; i + 100 < sizeof path; i += 100)
        path[i] = '/';
    strcpy(path + sizeof path - 12, "/rooms.yaml");
    ck_assert_int_eq(rk_config_load(&config, path, error), -ENOENT);
    ck_assert_int_eq(strncmp(error, "...", 3), 0);
    ck_assert_ptr_nonnull(strstr(error, "/rooms.yaml: cannot read it: No such file"));
    ck_assert_int_eq(rk_config_load(&config, "no\nsuch\xFF.yaml", error), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error, "no such?.yaml: cannot read it"));
}
END_TEST

/* A small generator, so that a failing file can be made again from its number. */
static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t scramble(uint32_t seed, char *out, size_t size) {
    static const char *const pieces[] = {"waiting",
                                         "wait_seconds",
                                         "rooms",
                                         ": ",
                                         ":",
                                         "\n",
                                         "- ",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ", ",
                                         "&a ",
                                         "*a",
                                         "!!int ",
                                         "'",
                                         "\"",
                                         "\\",
                                         "#",
                                         "|\n",
                                         ">",
                                         "? ",
                                         "---\n",
                                         "...\n",
                                         "%YAML 1.1\n",
                                         "1",
                                         "-1",
                                         "on",
                                         "1e9",
                                         "\t",
                                         "  ",
                                         "\xC3\xA9",
                                         "\xEF\xBB\xBF",
                                         "\xE2\x80\xA8",
                                         "\xFF",
                                         "\x00",
                                         "~",
                                         "<<",
                                         "@",
                                         "`"};
    uint32_t state = seed * 2654435761u + 1u;
    size_t length = 0, wanted = draw(&state) % 40;
    for (size_t i = 0; i < wanted; i++) {
        const char *piece = pieces[draw(&state) % RK_COUNT(pieces)];
        size_t bytes = *piece ? strlen(piece) : 1;
        char byte = (char)(draw(&state) & 0xFF);
        if (draw(&state) % 8 == 0) { /* any byte at all */
            piece = &byte;
            bytes = 1;
        }
        if (length + bytes > size)
            break;
        memcpy(out + length, piece, bytes);
        length += bytes;
    }
    return length;
}

START_TEST(no_file_of_random_bytes_gets_past_the_checks) {
    unsigned refused = 0, taken = 0;
    char bytes[1024];
    for (uint32_t seed = 0; seed < 20000; seed++) {
        rk_config copy;
        write_file(bytes, scramble(seed, bytes, sizeof bytes));
        ck_assert_int_eq(rk_config_copy(&copy, &config), 0);
        int rc = rk_config_load(&copy, "rooms.yaml", error);
        size_t length = strnlen(error, sizeof error);
        ck_assert_msg(length < sizeof error && rk_utf8_valid(error, length), "file %u", seed);
        ck_assert_msg(rc == 0 ? length == 0 : strncmp(error, "rooms.yaml:", 11) == 0, "file %u: %s", seed,
                      error);
        for (size_t i = 0; i < length; i++)
            ck_assert_msg((unsigned char)error[i] >= 0x20, "file %u: %s", seed, error);
        char check_error[RK_CONFIG_ERROR_MAX];
        ck_assert_msg(rk_config_check(&copy, check_error) == 0, "file %u: %s", seed, check_error);
        taken += rc == 0;
        refused += rc < 0;
        rk_config_free(&copy);
    }
    ck_assert_uint_gt(refused, 1000);
    ck_assert_uint_gt(taken, 0); /* else nothing but the first check was reached */
}
END_TEST

int main(void) {
    Suite *suite = suite_create("config file");
    TCase *tests = tcase_create("config file");
    tcase_set_timeout(tests, 250);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_file_sets_keys_of_every_type);
    tcase_add_test(tests, all_ways_to_write_a_mapping_are_the_same);
    tcase_add_test(tests, flags_win_over_the_file_and_the_file_over_defaults);
    tcase_add_test(tests, every_default_may_be_written_into_a_file);
    tcase_add_test(tests, a_wrong_key_or_value_names_file_and_line);
    tcase_add_test(tests, a_key_given_twice_is_refused);
    tcase_add_test(tests, other_shapes_are_refused);
    tcase_add_test(tests, an_empty_file_is_refused);
    tcase_add_test(tests, anchors_aliases_and_tags_are_refused);
    tcase_add_test(tests, what_is_not_yaml_names_its_line);
    tcase_add_test(tests, what_is_not_utf8_names_its_line);
    tcase_add_test(tests, what_cannot_be_read_says_why);
    tcase_add_test(tests, a_pipe_without_a_writer_is_refused_and_not_waited_for);
    tcase_add_test(tests, a_file_that_may_not_be_read_says_so);
    tcase_add_test(tests, a_file_may_have_one_mebibyte_and_no_more);
    tcase_add_test(tests, deep_nesting_is_refused_at_its_first_level);
    tcase_add_test(tests, a_long_path_is_shown_by_its_end);
    tcase_add_test(tests, no_file_of_random_bytes_gets_past_the_checks);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
