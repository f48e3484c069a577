/* The JSON-like tree. Trees are made by the engine's side, never from what a client sends, so walking them by
 * recursion is safe: their depth is the maker's. Not synchronised: one owner at a time. */
#include "roomkeeper/value.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static rk_value *make(rk_value_kind kind) {
    rk_value *value = calloc(1, sizeof *value);
    if (value)
        value->kind = kind;
    return value;
}

rk_value *rk_value_null(void) {
    return make(RK_VALUE_NULL);
}

rk_value *rk_value_bool(bool boolean) {
    rk_value *value = make(RK_VALUE_BOOL);
    if (value)
        value->boolean = boolean;
    return value;
}

rk_value *rk_value_number(double number) {
    rk_value *value = make(RK_VALUE_NUMBER);
    if (value)
        value->number = number;
    return value;
}

/* Only what is not UTF-8 is replaced; line breaks and the like are a value's own. */
static void replace_invalid(char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t length = rk_utf8_char(text + at, bytes - at);
        if (length == 0) {
            text[at] = '?';
            length = 1;
        }
        at += length;
    }
}

rk_value *rk_value_string(const char *text, size_t bytes) {
    if (bytes == SIZE_MAX)
        return NULL;
    rk_value *value = make(RK_VALUE_STRING);
    if (!value)
        return NULL;
    value->string = malloc(bytes + 1);
    if (!value->string) {
        free(value);
        return NULL;
    }
    if (bytes)
        memcpy(value->string, text, bytes);
    value->string[bytes] = '\0';
    value->string_bytes = bytes;
    replace_invalid(value->string, bytes);
    return value;
}

rk_value *rk_value_list(void) {
    return make(RK_VALUE_LIST);
}

rk_value *rk_value_map(void) {
    return make(RK_VALUE_MAP);
}

static int reserve_one(rk_value *value) {
    if (value->count < value->capacity)
        return 0;
    size_t capacity = value->capacity ? value->capacity * 2 : 8;
    if (capacity > SIZE_MAX / sizeof *value->items)
        return -ENOMEM;
    rk_value **items = realloc(value->items, capacity * sizeof *items);
    if (!items)
        return -ENOMEM;
    value->items = items;
    if (value->kind == RK_VALUE_MAP) {
        char **keys = realloc(value->keys, capacity * sizeof *keys);
        if (!keys)
            return -ENOMEM;
        value->keys = keys;
    }
    value->capacity = capacity;
    return 0;
}

int rk_value_append(rk_value *list, rk_value *item) {
    if (!list || !item || list->kind != RK_VALUE_LIST) {
        rk_value_free(item);
        return -EINVAL;
    }
    int rc = reserve_one(list);
    if (rc < 0) {
        rk_value_free(item);
        return rc;
    }
    list->items[list->count++] = item;
    return 0;
}

static size_t find_key(const rk_value *map, const char *key) {
    size_t at = 0;
    while (at < map->count && strcmp(map->keys[at], key) != 0)
        at++;
    return at;
}

int rk_value_set(rk_value *map, const char *key, rk_value *item) {
    if (!map || !key || !item || map->kind != RK_VALUE_MAP) {
        rk_value_free(item);
        return -EINVAL;
    }
    char *name = strdup(key);
    if (!name) {
        rk_value_free(item);
        return -ENOMEM;
    }
    replace_invalid(name, strlen(name)); /* before looking: two bad keys may be the same good one */
    size_t at = find_key(map, name);
    if (at < map->count) {
        rk_value_free(map->items[at]);
        map->items[at] = item;
        free(name);
        return 0;
    }
    if (reserve_one(map) < 0) {
        free(name);
        rk_value_free(item);
        return -ENOMEM;
    }
    map->keys[at] = name;
    map->items[at] = item;
    map->count++;
    return 0;
}

const rk_value *rk_value_get(const rk_value *map, const char *key) {
    if (!map || map->kind != RK_VALUE_MAP)
        return NULL;
    size_t at = find_key(map, key);
    return at < map->count ? map->items[at] : NULL;
}

static rk_value *copy_items(const rk_value *value, rk_value *copy) {
    for (size_t i = 0; copy && i < value->count; i++) {
        rk_value *item = rk_value_copy(value->items[i]);
        int rc = value->kind == RK_VALUE_MAP ? rk_value_set(copy, value->keys[i], item)
                                             : rk_value_append(copy, item);
        if (rc < 0) {
            rk_value_free(copy);
            return NULL;
        }
    }
    return copy;
}

rk_value *rk_value_copy(const rk_value *value) {
    if (!value)
        return NULL;
    switch (value->kind) {
    case RK_VALUE_NULL:
        return rk_value_null();
    case RK_VALUE_BOOL:
        return rk_value_bool(value->boolean);
    case RK_VALUE_NUMBER:
        return rk_value_number(value->number);
    case RK_VALUE_STRING:
        return rk_value_string(value->string, value->string_bytes);
    case RK_VALUE_LIST:
    case RK_VALUE_MAP:
        return copy_items(value, make(value->kind));
    }
    return NULL;
}

void rk_value_free(rk_value *value) {
    if (!value)
        return;
    for (size_t i = 0; i < value->count; i++) {
        rk_value_free(value->items[i]);
        if (value->keys)
            free(value->keys[i]);
    }
    free(value->items);
    free(value->keys);
    free(value->string);
    free(value);
}
