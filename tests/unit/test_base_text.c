/* Text: strict UTF-8, statuses that are one clean line, growing buffers, log lines. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "base_support.h"
#include "roomkeeper/status.h"

/* ---- UTF-8 ---- */

typedef struct sample {
    const char *text;
    size_t bytes;
} sample;

#define SAMPLE(literal)                                                                                      \
    { literal, sizeof(literal) - 1 }

START_TEST(whole_characters_are_valid_up_to_the_last_one) {
    static const sample good[] = {
        SAMPLE(""),
        SAMPLE("plain"),
        SAMPLE("\x7F"),
        SAMPLE("\xC2\x80"),
        SAMPLE("\xDF\xBF"),
        SAMPLE("\xE0\xA0\x80"),
        SAMPLE("\xED\x9F\xBF"),
        SAMPLE("\xEE\x80\x80"),
        SAMPLE("\xEF\xBF\xBF"),
        SAMPLE("a\0b"),
        SAMPLE("\xF0\x90\x80\x80"),
        SAMPLE("\xF4\x8F\xBF\xBF"),
        SAMPLE("eight bytes and then \xC3\xA9"),
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(rk_utf8_valid(good[i].text, good[i].bytes), "sample %zu", i);
}
END_TEST

START_TEST(overlong_surrogate_truncated_and_stray_bytes_are_invalid) {
    static const sample bad[] = {
        SAMPLE("\x80"),
        SAMPLE("\xBF"),
        SAMPLE("\xC0\x80"),
        SAMPLE("\xC1\xBF"),
        SAMPLE("\xC2"),
        SAMPLE("\xC2\x20"),
        SAMPLE("\xE0\x9F\xBF"),
        SAMPLE("\xE1\x80"),
        SAMPLE("\xED\xA0\x80"),
        SAMPLE("\xED\xBF\xBF"),
        SAMPLE("\xF0\x8F\xBF\xBF"),
        SAMPLE("\xF0\x90\x80"),
        SAMPLE("\xF4\x90\x80\x80"),
        SAMPLE("\xF5\x80\x80\x80"),
        SAMPLE("\xFE"),
        SAMPLE("\xFF"),
        SAMPLE("12345678\x80"),
        SAMPLE("1234567\xC3"),
        SAMPLE("\xE2\x82\x20"),
        SAMPLE("\xF0\x9F\x98\x20"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!rk_utf8_valid(bad[i].text, bad[i].bytes), "sample %zu", i);
}
END_TEST

/* By the book: decode by value, and look at the value. */
static size_t slow_char(const unsigned char *t, size_t bytes) {
    static const struct {
        unsigned mask, lead, tails;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0, 0}, {0xE0, 0xC0, 1, 0x80}, {0xF0, 0xE0, 2, 0x800}, {0xF8, 0xF0, 3, 0x10000}};
    for (size_t f = 0; f < 4 && bytes > 0; f++) {
        if ((t[0] & forms[f].mask) != forms[f].lead)
            continue;
        uint32_t value = t[0] & ~forms[f].mask & 0xFFu;
        if (bytes < forms[f].tails + 1)
            return 0;
        for (unsigned i = 1; i <= forms[f].tails; i++) {
            if ((t[i] & 0xC0) != 0x80)
                return 0;
            value = value << 6 | (t[i] & 0x3Fu);
        }
        bool fine = value >= forms[f].least && value <= 0x10FFFF && !(value >= 0xD800 && value <= 0xDFFF);
        return fine ? forms[f].tails + 1 : 0;
    }
    return 0;
}

START_TEST(all_beginnings_of_characters_are_judged_by_the_book) {
    unsigned char t[4];
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            for (unsigned rest = 0; rest < 4; rest++) {
                t[0] = (unsigned char)a;
                t[1] = (unsigned char)b;
                t[2] = rest & 1 ? 0x80 : 0x41;
                t[3] = rest & 2 ? 0xBF : 0xC2;
                for (size_t bytes = 0; bytes <= 4; bytes++)
                    ck_assert_uint_eq(rk_utf8_char((const char *)t, bytes), slow_char(t, bytes));
            }
        }
    }
}
END_TEST

START_TEST(cleaning_keeps_the_good_and_cuts_at_a_character) {
    char out[8];
    ck_assert_uint_eq(rk_utf8_clean(out, sizeof out, "a\xFF\nb", 4), 4);
    ck_assert_str_eq(out, "a? b");
    ck_assert_uint_eq(rk_utf8_clean(out, sizeof out, "12345\xE2\x82\xAC", 8), 5); /* the euro would be cut */
    ck_assert_str_eq(out, "12345");
    ck_assert_uint_eq(rk_utf8_clean(out, sizeof out, "1234\xE2\x82\xAC", 7), 7);
    ck_assert_str_eq(out, "1234\xE2\x82\xAC");
    ck_assert_uint_eq(rk_utf8_clean(out, 1, "abc", 3), 0);
    ck_assert_str_eq(out, "");
    ck_assert_uint_eq(rk_utf8_clean(out, 0, "abc", 3), 0);
}
END_TEST

/* ---- statuses ---- */

START_TEST(a_status_is_cut_at_a_character_and_returns_its_code) {
    rk_status status;
    char text[RK_STATUS_TEXT_MAX + 100];
    ck_assert_int_eq(rk_status_set(&status, RK_NOT_FOUND, "no %s, %d", "such thing", 5), RK_NOT_FOUND);
    ck_assert_str_eq(status.text, "no such thing, 5");
    memset(text, 'x', sizeof text);
    memcpy(text + RK_STATUS_TEXT_MAX - 2, "\xE2\x82\xAC", 3); /* begins at the last byte that fits */
    text[sizeof text - 1] = '\0';
    (void)rk_status_set(&status, RK_INTERNAL, "%s", text);
    ck_assert_uint_eq(strlen(status.text), RK_STATUS_TEXT_MAX - 2);
    ck_assert(rk_utf8_valid(status.text, strlen(status.text)));
}
END_TEST

START_TEST(a_status_is_one_valid_line_whatever_it_is_made_of) {
    rk_status status;
    (void)rk_status_set(&status, RK_INTERNAL, "%s", "two\nlines, \x1B[31mred\xC3");
    ck_assert_str_eq(status.text, "two lines,  [31mred?");
    (void)rk_status_set(&status, RK_OK, "%s", "ignored");
    ck_assert_str_eq(status.text, "");
    (void)rk_status_set(&status, RK_INTERNAL, "one");
    (void)rk_status_set(&status, RK_INTERNAL, "%s and two", status.text); /* of itself */
    ck_assert_str_eq(status.text, "one and two");
}
END_TEST

START_TEST(codes_have_the_names_that_grpc_gives_them) {
    ck_assert_str_eq(rk_code_name(RK_OK), "OK");
    ck_assert_str_eq(rk_code_name(RK_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
    ck_assert_str_eq(rk_code_name(RK_UNAUTHENTICATED), "UNAUTHENTICATED");
    ck_assert_str_eq(rk_code_name((rk_code)17), "UNKNOWN");
    ck_assert_str_eq(rk_code_name((rk_code)-1), "UNKNOWN");
}
END_TEST

/* ---- buffers ---- */

START_TEST(a_buffer_holds_what_was_appended_in_order) {
    rk_buf buf = RK_BUF_INIT;
    rk_buf_append(&buf, NULL, 0);
    rk_buf_append(&buf, "ab", 2);
    rk_buf_printf(&buf, "%d-%s", 12, "cd");
    uint8_t *at = rk_buf_extend(&buf, 1);
    ck_assert_ptr_nonnull(at);
    *at = '!';
    ck_assert(!buf.failed);
    ck_assert_uint_eq(buf.size, 8);
    ck_assert_mem_eq(buf.data, "ab12-cd!", 8);
    rk_buf_free(&buf);
    ck_assert_ptr_null(buf.data);
    ck_assert_uint_eq(buf.size, 0);
}
END_TEST

START_TEST(printing_grows_the_buffer_exactly_as_far_as_needed) {
    for (int pad = 0; pad < 300; pad++) { /* the text ends before, at and after each capacity */
        rk_buf buf = RK_BUF_INIT;
        char expected[320];
        rk_buf_printf(&buf, "%*s", pad, "");
        rk_buf_printf(&buf, "end");
        ck_assert_int_eq(snprintf(expected, sizeof expected, "%*send", pad, ""), (int)buf.size);
        ck_assert_mem_eq(buf.data, expected, buf.size);
        rk_buf_free(&buf);
    }
}
END_TEST

START_TEST(an_impossible_size_fails_and_stays_failed) {
    rk_buf buf = RK_BUF_INIT;
    rk_buf_append(&buf, "x", 1);
    ck_assert_ptr_null(rk_buf_extend(&buf, SIZE_MAX - 2));
    ck_assert(buf.failed);
    rk_buf_append(&buf, "y", 1);
    rk_buf_printf(&buf, "z");
    ck_assert_uint_eq(buf.size, 1);
    rk_buf_free(&buf);
    ck_assert(!buf.failed);
}
END_TEST

/* ---- log lines ---- */

/* What one log event writes. */
static void read_line(int fds[2], char *line, size_t size) {
    ssize_t got = read(fds[0], line, size - 1);
    ck_assert_int_gt(got, 0);
    line[got] = '\0';
    ck_assert_int_eq(line[got - 1], '\n');
    ck_assert_ptr_eq(strchr(line, '\n'), line + got - 1); /* one line */
}

START_TEST(a_log_line_quotes_what_needs_it) {
    int fds[2];
    char line[4096];
    ck_assert_int_eq(pipe(fds), 0);
    rk_log log = {.level = RK_LOG_INFO, .json = false, .fd = fds[1], .name = "127.0.0.1:50051"};
    rk_log_event(&log, RK_LOG_DEBUG, "not said", RK_FIELD_INT("a", 1));
    rk_log_event(&log, RK_LOG_INFO, "room\nended", RK_FIELD_INT("room", INT64_MIN),
                 RK_FIELD_TEXT("cause", "full"), RK_FIELD_TEXT("text", "a \"b\"\x01\xFF"),
                 RK_FIELD_TEXT("none", NULL));
    read_line(fds, line, sizeof line);
    ck_assert_ptr_nonnull(
        strstr(line, "Z info roomkeeper[127.0.0.1:50051]: room ended "
                     "room=-9223372036854775808 cause=full text=\"a \\\"b\\\"\\u0001?\" none=\"\"\n"));
    ck_assert_int_eq(line[4], '-');
    ck_assert_int_eq(line[10], 'T');
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

START_TEST(a_json_log_line_is_an_object) {
    int fds[2];
    char line[4096];
    ck_assert_int_eq(pipe(fds), 0);
    rk_log log = {.level = RK_LOG_DEBUG, .json = true, .fd = fds[1], .name = NULL};
    rk_log_event(&log, RK_LOG_ERROR, "it \\ broke", RK_FIELD_TEXT("line", "1\n2"), RK_FIELD_INT("n", 7));
    read_line(fds, line, sizeof line);
    ck_assert_int_eq(strncmp(line, "{\"time\":\"", 9), 0);
    ck_assert_ptr_nonnull(
        strstr(line, "\"level\":\"error\",\"message\":\"it \\\\ broke\",\"line\":\"1\\n2\",\"n\":7}\n"));
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

START_TEST(a_very_long_text_is_cut_at_a_character) {
    int fds[2];
    char line[4096];
    char text[3000];
    ck_assert_int_eq(pipe(fds), 0);
    rk_log log = {.level = RK_LOG_DEBUG, .json = true, .fd = fds[1], .name = NULL};
    for (size_t i = 0; i + 1 < sizeof text; i++)
        text[i] = "\xE2\x82\xAC"[i % 3];
    text[sizeof text - 1] = '\0';
    rk_log_event(&log, RK_LOG_INFO, "long", RK_FIELD_TEXT("text", text));
    read_line(fds, line, sizeof line);
    ck_assert_uint_lt(strlen(line), 1200);
    ck_assert(rk_utf8_valid(line, strlen(line)));
    ck_assert_ptr_null(strchr(line, '?'));
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

START_TEST(a_log_without_a_place_says_nothing_and_levels_have_names) {
    rk_log log = {.level = RK_LOG_DEBUG, .json = false, .fd = -1, .name = NULL};
    rk_log_event(&log, RK_LOG_ERROR, "nowhere", RK_FIELD_INT("a", 1));
    const rk_log *none = NULL;
    rk_log_event(none, RK_LOG_ERROR, "nobody", RK_FIELD_INT("a", 1));
    ck_assert_int_eq(rk_log_level_of("debug"), RK_LOG_DEBUG);
    ck_assert_int_eq(rk_log_level_of("error"), RK_LOG_ERROR);
    ck_assert_int_eq(rk_log_level_of("loud"), -1);
    ck_assert_int_eq(rk_log_level_of(NULL), -1);
}
END_TEST

START_TEST(the_clock_does_not_step_back) {
    uint64_t last = rk_now_us();
    for (int i = 0; i < 10000; i++) {
        uint64_t now = rk_now_us();
        ck_assert_uint_ge(now, last);
        last = now;
    }
    ck_assert_uint_ge(rk_now_ms(), last / 1000);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        whole_characters_are_valid_up_to_the_last_one,
        overlong_surrogate_truncated_and_stray_bytes_are_invalid,
        all_beginnings_of_characters_are_judged_by_the_book,
        cleaning_keeps_the_good_and_cuts_at_a_character,
        a_status_is_cut_at_a_character_and_returns_its_code,
        a_status_is_one_valid_line_whatever_it_is_made_of,
        codes_have_the_names_that_grpc_gives_them,
        a_buffer_holds_what_was_appended_in_order,
        printing_grows_the_buffer_exactly_as_far_as_needed,
        an_impossible_size_fails_and_stays_failed,
        a_log_line_quotes_what_needs_it,
        a_json_log_line_is_an_object,
        a_very_long_text_is_cut_at_a_character,
        a_log_without_a_place_says_nothing_and_levels_have_names,
        the_clock_does_not_step_back,
    };
    return RUN_SUITE("base text", tests);
}
