/* Any text as JSON: the scanner says the same as a second reader, written by recursion from the grammar. */
#include "dialect_wire.h"
#include "dialects/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct text {
    const char *at;
    const char *end;
    unsigned depth;
} text;

static bool value(text *t);

static int peek(const text *t) {
    return t->at < t->end ? (unsigned char)*t->at : -1;
}

static bool next_is(text *t, int wanted) {
    if (peek(t) != wanted)
        return false;
    t->at++;
    return true;
}

static void space(text *t) {
    while (next_is(t, ' ') || next_is(t, '\t') || next_is(t, '\n') || next_is(t, '\r'))
        continue;
}

static size_t run_of(text *t, const char *set) {
    size_t count = 0;
    while (peek(t) > 0 && strchr(set, peek(t))) {
        t->at++;
        count++;
    }
    return count;
}

static bool number(text *t) {
    (void)next_is(t, '-');
    if (!next_is(t, '0') && run_of(t, "0123456789") == 0)
        return false;
    if (next_is(t, '.') && run_of(t, "0123456789") == 0)
        return false;
    if (!next_is(t, 'e') && !next_is(t, 'E'))
        return true;
    if (!next_is(t, '+'))
        (void)next_is(t, '-');
    return run_of(t, "0123456789") > 0;
}

static bool string(text *t) {
    if (!next_is(t, '"'))
        return false;
    for (int c = peek(t); c >= 0x20; c = peek(t)) {
        t->at++;
        if (c == '"')
            return true;
        if (c != '\\')
            continue;
        c = peek(t);
        if (c <= 0 || !strchr("\"\\/bfnrtu", c))
            return false;
        t->at++;
        for (int i = 0; c == 'u' && i < 4; i++, t->at++)
            if (peek(t) <= 0 || !strchr("0123456789abcdefABCDEF", peek(t)))
                return false;
    }
    return false;
}

static bool member(text *t, bool object) {
    if (object) {
        space(t);
        if (!string(t))
            return false;
        space(t);
        if (!next_is(t, ':'))
            return false;
    }
    return value(t);
}

/* Levels count from the first value in them: empty ones may be one deeper. */
static bool level(text *t, bool object) {
    t->at++;
    space(t);
    if (next_is(t, object ? '}' : ']'))
        return true;
    if (t->depth == RK_JSON_DEPTH_MAX)
        return false;
    t->depth++;
    do {
        if (!member(t, object))
            return false;
        space(t);
    } while (next_is(t, ','));
    t->depth--;
    return next_is(t, object ? '}' : ']');
}

static bool word(text *t, const char *wanted) {
    for (; *wanted; wanted++)
        if (!next_is(t, *wanted))
            return false;
    return true;
}

static bool value(text *t) {
    space(t);
    switch (peek(t)) {
    case '{':
        return level(t, true);
    case '[':
        return level(t, false);
    case '"':
        return string(t);
    case 't':
        return word(t, "true");
    case 'f':
        return word(t, "false");
    case 'n':
        return word(t, "null");
    default:
        return number(t);
    }
}

static bool is_json(const char *bytes, size_t size) {
    text t = {bytes, bytes + size, 0};
    if (!value(&t))
        return false;
    space(&t);
    return t.at == t.end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!rk_utf8_valid((const char *)data, size))
        return 0;
    char *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, data, size);
    size_t at = SIZE_MAX;
    const char *fault = rk_json_fault(copy, size, &at);
    ck_assert_uint_le(at, size);
    ck_assert_int_eq(fault == NULL, is_json(copy, size));
    if (fault)
        ck_assert(*fault && rk_utf8_valid(fault, strlen(fault)));
    else
        ck_assert_uint_eq(at, size);
    free(copy);
    return 0;
}
