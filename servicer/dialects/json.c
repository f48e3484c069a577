/* The JSON check: one pass, a stack of bits instead of recursion. Any thread; no state. */
#include "dialects/json.h"

#include <stdint.h>
#include <string.h>

typedef struct scanner {
    const char *at;
    const char *end;
    unsigned depth;
    uint8_t objects[RK_JSON_DEPTH_MAX]; /* what each level is: 1 an object, 0 a list */
} scanner;

static bool at_char(const scanner *s, char wanted) {
    return s->at < s->end && *s->at == wanted;
}

static bool eat(scanner *s, char wanted) {
    if (!at_char(s, wanted))
        return false;
    s->at++;
    return true;
}

static void skip_space(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool digits(scanner *s) {
    const char *begin = s->at;
    while (s->at < s->end && is_digit(*s->at))
        s->at++;
    return s->at > begin;
}

static const char *scan_number(scanner *s) {
    (void)eat(s, '-');
    bool zero = at_char(s, '0');
    const char *begin = s->at;
    if (!digits(s))
        return "a digit is missing";
    if (zero && s->at - begin > 1)
        return "a number begins with 0";
    if (eat(s, '.') && !digits(s))
        return "a digit is missing after the decimal point";
    if (eat(s, 'e') || eat(s, 'E')) {
        if (!eat(s, '+'))
            (void)eat(s, '-');
        if (!digits(s))
            return "a digit is missing in the exponent";
    }
    return NULL;
}

static const char *scan_escape(scanner *s) {
    if (s->at == s->end)
        return "a string is not closed";
    char c = *s->at++;
    if (c != 'u')
        return c && strchr("\"\\/bfnrt", c) ? NULL : "an escape is unknown";
    for (int i = 0; i < 4; i++, s->at++)
        if (s->at == s->end || !is_hex(*s->at))
            return "\\u needs four hexadecimal digits";
    return NULL;
}

static const char *scan_string(scanner *s) {
    if (!eat(s, '"'))
        return "a string is missing";
    while (s->at < s->end) {
        unsigned char c = (unsigned char)*s->at++;
        if (c == '"')
            return NULL;
        const char *fault = c == '\\'  ? scan_escape(s)
                            : c < 0x20 ? "a control character is not escaped"
                                       : NULL;
        if (fault)
            return fault;
    }
    return "a string is not closed";
}

static const char *scan_word(scanner *s, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, word, length) != 0)
        return "a value is missing";
    s->at += length;
    return NULL;
}

/* A key and its colon. */
static const char *scan_key(scanner *s) {
    skip_space(s);
    const char *fault = scan_string(s);
    if (fault)
        return fault;
    skip_space(s);
    return eat(s, ':') ? NULL : "a colon is missing";
}

/* Steps into a list or an object. *inside: it is not empty, so that a value comes next. */
static const char *open_level(scanner *s, bool object, bool *inside) {
    s->at++;
    skip_space(s);
    *inside = !eat(s, object ? '}' : ']');
    if (!*inside)
        return NULL;
    if (s->depth == RK_JSON_DEPTH_MAX)
        return "it is nested too deeply";
    s->objects[s->depth++] = object;
    return object ? scan_key(s) : NULL;
}

/* One value; a list or an object only up to its first value. *inside: another value comes next. */
static const char *scan_value(scanner *s, bool *inside) {
    *inside = false;
    skip_space(s);
    if (s->at == s->end)
        return "a value is missing";
    switch (*s->at) {
    case '{':
        return open_level(s, true, inside);
    case '[':
        return open_level(s, false, inside);
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return *s->at == '-' || is_digit(*s->at) ? scan_number(s) : "a value is missing";
    }
}

/* After a value: closes what ends here. *more: a comma, another value comes next. */
static const char *after_value(scanner *s, bool *more) {
    *more = false;
    for (;;) {
        skip_space(s);
        if (s->depth == 0)
            return s->at == s->end ? NULL : "something follows the value";
        bool object = s->objects[s->depth - 1];
        if (eat(s, ',')) {
            *more = true;
            return object ? scan_key(s) : NULL;
        }
        if (!eat(s, object ? '}' : ']'))
            return object ? "a comma or } is missing" : "a comma or ] is missing";
        s->depth--;
    }
}

const char *rk_json_fault(const char *text, size_t bytes, size_t *at) {
    scanner s = {.at = text, .end = text + bytes};
    const char *fault = NULL;
    bool more = true;
    while (more && !fault) {
        fault = scan_value(&s, &more);
        if (!more && !fault)
            fault = after_value(&s, &more);
    }
    *at = (size_t)(s.at - text);
    return fault;
}
