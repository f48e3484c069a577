/* One value from text, and what to say when it is none. Any thread: nothing is kept.
 *
 * Messages differ a little by where the value came from. A flag has just been named by `where`; in a file the
 * line has, so the key is named too. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "config/internal.h"
#include "config/number.h"

/* Who is being told off, and where to write it. */
typedef struct complaint {
    const rk_key *key;
    const char *value; /* as given */
    const char *where; /* opens the line */
    char *error;       /* RK_CONFIG_ERROR_MAX bytes */
} complaint;

static const struct {
    const char *word;
    bool value;
} bool_words[] = {
    {"on", true},  {"off", false}, {"true", true}, {"false", false},
    {"yes", true}, {"no", false},  {"1", true},    {"0", false},
};

bool rk_where_is_flag(const char *where) {
    return strncmp(where, "--", 2) == 0;
}

static int no_memory(const complaint *c) {
    rk_config_say(c->error, "%s: memory is out", c->where);
    return -ENOMEM;
}

/* Limits are short decimals: %g of them is exact. Not through the locale: whole or with a point of ours. */
static void limit_text(double limit, char out[RK_NUMBER_TEXT_MAX]) {
    if (rk_format_number(limit, out, RK_NUMBER_TEXT_MAX) < 0)
        (void)snprintf(out, RK_NUMBER_TEXT_MAX, "%lld", (long long)limit);
}

static void choices_text(const rk_key *key, char *out, size_t out_bytes) {
    size_t length = 0;
    for (const char *at = key->choices; *at && length + 3 < out_bytes; at++) {
        out[length++] = *at == '|' ? ',' : *at;
        if (*at == '|')
            out[length++] = ' ';
    }
    out[length] = '\0';
}

void rk_key_wants(const rk_key *key, char out[RK_WANTS_MAX]) {
    char min[RK_NUMBER_TEXT_MAX], max[RK_NUMBER_TEXT_MAX], choices[RK_WANTS_MAX - 8];
    switch (key->type) {
    case RK_KEY_BOOL:
        (void)snprintf(out, RK_WANTS_MAX, "on or off");
        break;
    case RK_KEY_INT:
    case RK_KEY_NUMBER:
        limit_text(key->min, min);
        limit_text(key->max, max);
        (void)snprintf(out, RK_WANTS_MAX, "a %s from %s to %s",
                       key->type == RK_KEY_INT ? "whole number" : "number", min, max);
        break;
    case RK_KEY_CHOICE:
        choices_text(key, choices, sizeof choices);
        (void)snprintf(out, RK_WANTS_MAX, "one of %s", choices);
        break;
    case RK_KEY_TEXT:
        (void)snprintf(out, RK_WANTS_MAX, "one line of UTF-8 text");
        break;
    }
}

/* `problem` is what the value is not; `advice` is what to do. */
static int wrong(const complaint *c, const char *problem, const char *advice) {
    char shown[RK_SHOWN_MAX];
    if (rk_where_is_flag(c->where))
        rk_config_say(c->error, "%s: \"%s\" is %s; %s", c->where, rk_shown(shown, c->value), problem, advice);
    else
        rk_config_say(c->error, "%s: %s is \"%s\", %s; %s", c->where, c->key->name, rk_shown(shown, c->value),
                      problem, advice);
    return -EINVAL;
}

static int not_a_number(const complaint *c, const char *problem) {
    char min[RK_NUMBER_TEXT_MAX], max[RK_NUMBER_TEXT_MAX], advice[RK_WANTS_MAX];
    limit_text(c->key->min, min);
    limit_text(c->key->max, max);
    (void)snprintf(advice, sizeof advice, "give one from %s to %s", min, max);
    return wrong(c, problem, advice);
}

static int out_of_range(const complaint *c) {
    char min[RK_NUMBER_TEXT_MAX], max[RK_NUMBER_TEXT_MAX], shown[RK_SHOWN_MAX];
    limit_text(c->key->min, min);
    limit_text(c->key->max, max);
    (void)rk_shown(shown, c->value);
    if (rk_where_is_flag(c->where))
        rk_config_say(c->error, "%s: %s is out of range; it must be from %s to %s", c->where, shown, min,
                      max);
    else
        rk_config_say(c->error, "%s: %s is %s; it must be from %s to %s", c->where, c->key->name, shown, min,
                      max);
    return -EINVAL;
}

static int no_value(const complaint *c) {
    char wants[RK_WANTS_MAX];
    rk_key_wants(c->key, wants);
    if (rk_where_is_flag(c->where))
        rk_config_say(c->error, "%s: it has no value; give %s", c->where, wants);
    else
        rk_config_say(c->error, "%s: %s has no value; give %s", c->where, c->key->name, wants);
    return -EINVAL;
}

/* ASCII only, whatever the locale. */
static bool same_word(const char *text, const char *lower) {
    for (; *text && *lower; text++, lower++) {
        char c = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
        if (c != *lower)
            return false;
    }
    return *text == *lower;
}

static int parse_bool(const complaint *c, rk_key_value *value) {
    for (size_t i = 0; i < RK_COUNT(bool_words); i++) {
        if (same_word(c->value, bool_words[i].word)) {
            value->boolean = bool_words[i].value;
            return 0;
        }
    }
    return wrong(c, "neither on nor off", "give on or off (true or false, yes or no, 1 or 0)");
}

static int parse_int(const complaint *c, rk_key_value *value) {
    int64_t number = 0;
    int rc = rk_parse_whole(c->value, &number);
    if (rc == -EINVAL)
        return not_a_number(c, "not a whole number");
    if (rc < 0 || (double)number < c->key->min || (double)number > c->key->max)
        return out_of_range(c);
    value->integer = number;
    return 0;
}

static int parse_number(const complaint *c, rk_key_value *value) {
    double number = 0;
    int rc = rk_parse_number(c->value, &number);
    if (rc == -ENOMEM)
        return no_memory(c);
    if (rc == -EINVAL)
        return not_a_number(c, "not a number");
    if (rc < 0 || number < c->key->min || number > c->key->max)
        return out_of_range(c);
    value->number = number;
    return 0;
}

static bool is_choice(const char *choices, const char *text) {
    size_t bytes = strlen(text);
    while (choices) {
        const char *bar = strchr(choices, '|');
        size_t size = bar ? (size_t)(bar - choices) : strlen(choices);
        if (size == bytes && memcmp(choices, text, bytes) == 0)
            return true;
        choices = bar ? bar + 1 : NULL;
    }
    return false;
}

static bool is_line(const char *text) {
    if (!rk_utf8_valid(text, strlen(text)))
        return false;
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            return false;
    }
    return true;
}

static int parse_text(const complaint *c, rk_key_value *value) {
    char wants[RK_WANTS_MAX], advice[RK_WANTS_MAX + 8];
    rk_key_wants(c->key, wants);
    (void)snprintf(advice, sizeof advice, "give %s", wants);
    if (c->key->type == RK_KEY_CHOICE && !is_choice(c->key->choices, c->value))
        return wrong(c, "not a known choice", advice);
    if (!is_line(c->value))
        return wrong(c, "not a plain line", advice);
    value->text = strdup(c->value);
    return value->text ? 0 : no_memory(c);
}

int rk_key_parse(const rk_key *key, const char *text, rk_key_value *value, const char *where,
                 char error[RK_CONFIG_ERROR_MAX]) {
    complaint c = {key, text, where, error};
    if (!*text && key->type != RK_KEY_TEXT)
        return no_value(&c);
    switch (key->type) {
    case RK_KEY_BOOL:
        return parse_bool(&c, value);
    case RK_KEY_INT:
        return parse_int(&c, value);
    case RK_KEY_NUMBER:
        return parse_number(&c, value);
    case RK_KEY_CHOICE:
    case RK_KEY_TEXT:
        return parse_text(&c, value);
    }
    return -EINVAL;
}
