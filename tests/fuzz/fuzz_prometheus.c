/* Any bytes as the values of labels, behind eight that are the sample's number: what is written is one line
 * of the text format, and reading it gives the values, cut at 200 bytes, and the number back. */
#include <math.h>

#include "dialect_wire.h"
#include "observe/prometheus.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LABELS 3
#define SHOWN_MAX 200

/* Steps over one label; its value is compared with what went in. */
static const char *read_label(const char *at, const char *end, const char *name, const char *value) {
    size_t seen = 0;
    size_t length = strlen(name);
    ck_assert(strncmp(at, name, length) == 0 && strncmp(at + length, "=\"", 2) == 0);
    for (at += length + 2; at < end && *at != '"'; at++, seen++) {
        char c = *at;
        ck_assert_int_ne(c, '\n');
        if (c == '\\') {
            at++;
            ck_assert(at < end && (*at == 'n' || *at == '"' || *at == '\\'));
            c = *at == 'n' ? '\n' : *at;
        }
        ck_assert_int_eq(c, value[seen]);
    }
    ck_assert_int_eq(*at, '"');
    ck_assert_uint_le(seen, SHOWN_MAX);
    bool whole = seen == strlen(value);
    ck_assert(rk_utf8_valid(value, seen));
    /* What is left out is a cut behind 200 bytes, or what is no text. */
    ck_assert(whole || seen + 4 > SHOWN_MAX || !rk_utf8_valid(value, strnlen(value, SHOWN_MAX)));
    return at + 1;
}

static void read_number(const char *at, double number) {
    char *end = NULL;
    double read = strtod(at, &end);
    ck_assert_str_eq(end, "\n");
    ck_assert(isnan(number) ? isnan(read) : !(read < number) && !(read > number));
    if (isinf(number))
        ck_assert(strcmp(at, "+Inf\n") == 0 || strcmp(at, "-Inf\n") == 0);
    if (isnan(number))
        ck_assert_str_eq(at, "NaN\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[LABELS] = {"one", "other", "third"};
    double number = 0;
    if (size < sizeof number)
        return 0;
    memcpy(&number, data, sizeof number);
    char *texts = calloc(1, size + LABELS); /* LABELS texts, whatever comes */
    memcpy(texts, data + sizeof number, size - sizeof number);
    rk_label labels[LABELS];
    const char *value = texts;
    for (size_t i = 0; i < LABELS; i++) {
        labels[i] = (rk_label){names[i], value};
        value += strlen(value) + (i + 1 < LABELS);
    }
    rk_buf out = RK_BUF_INIT;
    rk_sample(&out, "a_metric", labels, LABELS, number);
    rk_buf_append(&out, "", 1);
    ck_assert(!out.failed);
    const char *at = (const char *)out.data;
    const char *end = at + out.size - 1;
    ck_assert_uint_eq(strlen(at), out.size - 1);
    ck_assert_int_eq(strncmp(at, "a_metric{", 9), 0);
    at += 9;
    for (size_t i = 0; i < LABELS; i++) {
        at = read_label(at, end, names[i], labels[i].value);
        ck_assert_int_eq(*at++, i + 1 < LABELS ? ',' : '}');
    }
    ck_assert_int_eq(*at, ' ');
    read_number(at + 1, number);
    rk_buf_free(&out);
    free(texts);
    return 0;
}
