/* The table of keys as data, and the config as a set of fields reached through it.
 *
 * Everything about a key but its meaning comes from RK_CONFIG_KEYS: its field's offset, its default, its
 * limits. So a new key is one line in config.h. Not synchronised: a config has one owner at a time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "config/internal.h"
#include "config/nearest.h"
#include "config/number.h"

#define DEFAULT_TEXT_BOOL(value, text) ((value) ? "on" : "off")
#define DEFAULT_TEXT_INT(value, text) text
#define DEFAULT_TEXT_NUMBER(value, text) text
#define DEFAULT_TEXT_CHOICE(value, text) value
#define DEFAULT_TEXT_TEXT(value, text) value

#define KEY_ROW(type, name, def, min, max, choices, unit, help)                                              \
    {#name, RK_KEY_##type, DEFAULT_TEXT_##type(def, #def), min, max, choices, unit, help},
#define KEY_OFFSET(type, name, def, min, max, choices, unit, help) offsetof(rk_config, name),

static const rk_key table[] = {RK_CONFIG_KEYS(KEY_ROW)};
static const size_t offsets[] = {RK_CONFIG_KEYS(KEY_OFFSET)};

const rk_key *rk_config_keys(size_t *count) {
    *count = RK_COUNT(table);
    return table;
}

int rk_key_find(const char *name) {
    for (size_t i = 0; i < RK_COUNT(table); i++) {
        if (strcmp(table[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static void *field(rk_config *config, size_t key) {
    return (char *)config + offsets[key];
}

static const void *field_of(const rk_config *config, size_t key) {
    return (const char *)config + offsets[key];
}

static bool holds_text(rk_key_type type) {
    return type == RK_KEY_CHOICE || type == RK_KEY_TEXT;
}

void rk_key_store(rk_config *config, size_t key, const rk_key_value *value) {
    switch (table[key].type) {
    case RK_KEY_BOOL:
        *(bool *)field(config, key) = value->boolean;
        break;
    case RK_KEY_INT:
        *(int64_t *)field(config, key) = value->integer;
        break;
    case RK_KEY_NUMBER:
        *(double *)field(config, key) = value->number;
        break;
    case RK_KEY_CHOICE:
    case RK_KEY_TEXT:
        free(*(char **)field(config, key));
        *(char **)field(config, key) = value->text;
        break;
    }
}

/* The value as it stands; its text stays the config's. */
static rk_key_value look(const rk_config *config, size_t key) {
    rk_key_value value = {0};
    switch (table[key].type) {
    case RK_KEY_BOOL:
        value.boolean = *(const bool *)field_of(config, key);
        break;
    case RK_KEY_INT:
        value.integer = *(const int64_t *)field_of(config, key);
        break;
    case RK_KEY_NUMBER:
        value.number = *(const double *)field_of(config, key);
        break;
    case RK_KEY_CHOICE:
    case RK_KEY_TEXT:
        value.text = *(char *const *)field_of(config, key);
        break;
    }
    return value;
}

int rk_config_init(rk_config *config) {
    char error[RK_CONFIG_ERROR_MAX];
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < RK_COUNT(table); i++) {
        int rc = rk_config_set(config, table[i].name, table[i].default_text, "the default", error);
        if (rc < 0) {
            rk_config_free(config);
            return rc;
        }
    }
    return 0;
}

void rk_config_free(rk_config *config) {
    if (!config)
        return;
    for (size_t i = 0; i < RK_COUNT(table); i++) {
        if (holds_text(table[i].type))
            free(*(char **)field(config, i));
    }
    memset(config, 0, sizeof *config);
}

int rk_config_copy(rk_config *to, const rk_config *from) {
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < RK_COUNT(table); i++) {
        rk_key_value value = look(from, i);
        if (value.text) {
            value.text = strdup(value.text);
            if (!value.text) {
                rk_config_free(to);
                return -ENOMEM;
            }
        }
        rk_key_store(to, i, &value);
    }
    return 0;
}

int rk_key_to_text(const rk_key *key, const rk_key_value *value, char **text) {
    char number[RK_NUMBER_TEXT_MAX];
    const char *shown = number;
    switch (key->type) {
    case RK_KEY_BOOL:
        shown = value->boolean ? "on" : "off";
        break;
    case RK_KEY_INT:
        (void)snprintf(number, sizeof number, "%lld", (long long)value->integer);
        break;
    case RK_KEY_NUMBER:
        if (rk_format_number(value->number, number, sizeof number) < 0)
            return -ENOMEM;
        break;
    case RK_KEY_CHOICE:
    case RK_KEY_TEXT:
        shown = value->text ? value->text : "";
        break;
    }
    *text = strdup(shown);
    return *text ? 0 : -ENOMEM;
}

char *rk_config_get(const rk_config *config, const char *key) {
    char *text = NULL;
    int at = rk_key_find(key);
    if (at < 0)
        return NULL;
    rk_key_value value = look(config, (size_t)at);
    return rk_key_to_text(&table[at], &value, &text) < 0 ? NULL : text;
}

/* What people put before a key when they mix up file and flags. */
static const char *without_prefix(const char *word) {
    if (strncmp(word, "--", 2) == 0)
        word += 2;
    bool prefixed = strncmp(word, "room_", 5) == 0 || strncmp(word, "room-", 5) == 0;
    return prefixed ? word + 5 : word;
}

static const rk_key *nearest_key(const char *word, size_t *distance) {
    const rk_key *nearest = &table[0];
    *distance = SIZE_MAX;
    for (size_t i = 0; i < RK_COUNT(table); i++) {
        size_t this_distance = rk_word_distance(without_prefix(word), table[i].name);
        if (this_distance < *distance) {
            *distance = this_distance;
            nearest = &table[i];
        }
    }
    return nearest;
}

/* "waiting" as the command line has it: --room-waiting. */
static void flag_of(const rk_key *key, char *out, size_t out_bytes) {
    (void)snprintf(out, out_bytes, "%s%s", strcmp(key->name, "rooms") == 0 ? "--" : "--room-", key->name);
    for (char *at = out; *at; at++) {
        if (*at == '_')
            *at = '-';
    }
}

static int unknown_key(const char *word, const char *where, char error[RK_CONFIG_ERROR_MAX]) {
    char shown[RK_SHOWN_MAX], meant[RK_SHOWN_MAX];
    size_t distance;
    const rk_key *key = nearest_key(word, &distance);
    bool close = distance <= 1 + strlen(key->name) / 2;
    const char *guess = close ? "did you mean" : "the nearest one is";
    const char *mark = close ? "?" : "";
    if (rk_where_is_flag(where)) {
        flag_of(key, meant, sizeof meant);
        rk_config_say(error, "%s: there is no such flag; %s %s%s", where, guess, meant, mark);
    } else {
        rk_config_say(error, "%s: unknown key \"%s\"; %s \"%s\"%s", where, rk_shown(shown, word), guess,
                      key->name, mark);
    }
    return -EINVAL;
}

int rk_config_set(rk_config *config, const char *key, const char *value, const char *where,
                  char error[RK_CONFIG_ERROR_MAX]) {
    rk_key_value parsed = {0};
    error[0] = '\0';
    if (!where || !*where)
        where = "configuration";
    int at = rk_key_find(key);
    if (at < 0)
        return unknown_key(key, where, error);
    int rc = rk_key_parse(&table[at], value ? value : "", &parsed, where, error);
    if (rc == 0)
        rk_key_store(config, (size_t)at, &parsed);
    return rc;
}
