/* Reading Structs. Clients choose what is in them, so: depth is counted, memory is the arena's, and keys that
 * repeat are sorted out once at the end, in n log n, instead of being looked up one by one. */
#include "dialects/struct_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rk_proto/fields.h"

rk_value *rk_struct_new(rk_arena *arena) {
    rk_value *map = rk_arena_alloc(arena, sizeof *map);
    if (map)
        *map = (rk_value){.kind = RK_VALUE_MAP};
    return map;
}

/* A value whose kind changes starts anew; a map or a list in pieces goes on. */
static void become(rk_value *value, rk_value_kind kind) {
    if (value->kind != kind)
        *value = (rk_value){.kind = kind};
}

/* A new, null item at the end of a list or a map. The key is set by the caller. */
static rk_value *add_item(rk_arena *arena, rk_value *container) {
    size_t capacity = container->capacity;
    rk_value **items = rk_grow(arena, container->items, container->count, &capacity, 1, sizeof(void *));
    if (!items)
        return NULL;
    container->items = items;
    if (container->kind == RK_VALUE_MAP) {
        size_t key_capacity = container->capacity;
        char **keys = rk_grow(arena, container->keys, container->count, &key_capacity, 1, sizeof(void *));
        if (!keys)
            return NULL;
        container->keys = keys;
    }
    rk_value *item = rk_arena_alloc(arena, sizeof *item);
    if (!item)
        return NULL;
    *item = (rk_value){.kind = RK_VALUE_NULL};
    container->capacity = capacity;
    container->items[container->count++] = item;
    return item;
}

static rk_code read_list(rk_reader *reader, const char *path, rk_wire message, rk_value *list);
static rk_code read_value(rk_reader *reader, const char *path, rk_wire message, rk_value *value);

static rk_code read_string(rk_reader *reader, const char *path, const rk_wire_field *field, rk_value *value) {
    rk_wire text;
    rk_code code = rk_read_text(reader, path, field, &text);
    if (code != RK_OK)
        return code;
    *value = (rk_value){.kind = RK_VALUE_STRING, .string_bytes = rk_wire_size(text)};
    value->string = rk_arena_strndup(reader->arena, (const char *)text.at, value->string_bytes);
    return value->string ? RK_OK : rk_no_memory(reader);
}

static rk_code read_value_field(rk_reader *reader, const char *path, const rk_wire_field *field,
                                rk_value *value) {
    rk_code code;
    switch (field->number) {
    case RK_PB_VALUE__NULL_VALUE:
        *value = (rk_value){.kind = RK_VALUE_NULL};
        return rk_expect_type(reader, path, field, RK_WIRE_VARINT);
    case RK_PB_VALUE__NUMBER_VALUE:
        *value = (rk_value){.kind = RK_VALUE_NUMBER};
        return rk_read_double(reader, path, field, &value->number);
    case RK_PB_VALUE__STRING_VALUE:
        return read_string(reader, path, field, value);
    case RK_PB_VALUE__BOOL_VALUE:
        *value = (rk_value){.kind = RK_VALUE_BOOL, .boolean = field->value != 0};
        return rk_expect_type(reader, path, field, RK_WIRE_VARINT);
    case RK_PB_VALUE__STRUCT_VALUE:
        become(value, RK_VALUE_MAP);
        code = rk_expect_type(reader, path, field, RK_WIRE_BYTES);
        return code == RK_OK ? rk_read_struct(reader, path, field->bytes, value) : code;
    case RK_PB_VALUE__LIST_VALUE:
        become(value, RK_VALUE_LIST);
        code = rk_expect_type(reader, path, field, RK_WIRE_BYTES);
        return code == RK_OK ? read_list(reader, path, field->bytes, value) : code;
    default:
        return RK_OK;
    }
}

static rk_code read_value(rk_reader *reader, const char *path, rk_wire message, rk_value *value) {
    rk_wire left = message;
    rk_wire_field field = {0};
    int rc = 0;
    rk_code code = rk_enter(reader, path);
    while (code == RK_OK && (rc = rk_wire_next(&left, &field)) > 0)
        code = read_value_field(reader, path, &field, value);
    rk_leave(reader);
    return code == RK_OK && rc < 0 ? rk_broken(reader, path, message, left.at) : code;
}

static rk_code read_list(rk_reader *reader, const char *path, rk_wire message, rk_value *list) {
    rk_wire left = message;
    rk_wire_field field = {0};
    int rc = 0;
    rk_code code = rk_enter(reader, path);
    while (code == RK_OK && (rc = rk_wire_next(&left, &field)) > 0) {
        if (field.number != RK_PB_LIST_VALUE__VALUES)
            continue;
        code = rk_expect_type(reader, path, &field, RK_WIRE_BYTES);
        rk_value *item = code == RK_OK ? add_item(reader->arena, list) : NULL;
        if (item)
            code = read_value(reader, path, field.bytes, item);
        else if (code == RK_OK)
            code = rk_no_memory(reader);
    }
    rk_leave(reader);
    return code == RK_OK && rc < 0 ? rk_broken(reader, path, message, left.at) : code;
}

/* Keys end in a NUL in the tree, so none may be inside: it would name another key. */
static rk_code set_key(rk_reader *reader, const char *path, rk_wire key, char **slot) {
    size_t size = rk_wire_size(key);
    if (size && memchr(key.at, '\0', size))
        return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                             "%s has a key with a NUL character in it; use keys without", path);
    *slot = rk_arena_strndup(reader->arena, (const char *)key.at, size);
    return *slot ? RK_OK : rk_no_memory(reader);
}

static rk_code read_entry(rk_reader *reader, const char *path, rk_wire message, rk_value *map) {
    static const uint8_t nothing[1] = {0};
    rk_wire left = message;
    rk_wire key = rk_wire_of(nothing, 0);
    rk_wire_field field = {0};
    int rc = 0;
    rk_value *item = add_item(reader->arena, map);
    if (!item)
        return rk_no_memory(reader);
    rk_code code = rk_enter(reader, path);
    while (code == RK_OK && (rc = rk_wire_next(&left, &field)) > 0) {
        if (field.number == RK_PB_STRUCT_FIELDS_ENTRY__KEY) {
            code = rk_read_text(reader, path, &field, &key);
        } else if (field.number == RK_PB_STRUCT_FIELDS_ENTRY__VALUE) {
            code = rk_expect_type(reader, path, &field, RK_WIRE_BYTES);
            if (code == RK_OK)
                code = read_value(reader, path, field.bytes, item);
        }
    }
    rk_leave(reader);
    if (code == RK_OK && rc < 0)
        code = rk_broken(reader, path, message, left.at);
    return code == RK_OK ? set_key(reader, path, key, &map->keys[map->count - 1]) : code;
}

rk_code rk_read_struct(rk_reader *reader, const char *path, rk_wire message, rk_value *map) {
    rk_wire left = message;
    rk_wire_field field = {0};
    int rc = 0;
    rk_code code = rk_enter(reader, path);
    while (code == RK_OK && (rc = rk_wire_next(&left, &field)) > 0) {
        if (field.number != RK_PB_STRUCT__FIELDS)
            continue;
        code = rk_expect_type(reader, path, &field, RK_WIRE_BYTES);
        if (code == RK_OK)
            code = read_entry(reader, path, field.bytes, map);
    }
    rk_leave(reader);
    return code == RK_OK && rc < 0 ? rk_broken(reader, path, message, left.at) : code;
}

/* ---- keys that repeat ---- */

typedef struct placed_key {
    const char *key;
    size_t place; /* where it stands in the message */
} placed_key;

static int by_key_then_place(const void *left, const void *right) {
    const placed_key *a = left;
    const placed_key *b = right;
    int order = strcmp(a->key, b->key);
    return order ? order : (a->place > b->place) - (a->place < b->place);
}

int rk_keep_last(rk_arena *arena, const char *const *keys, size_t count, bool *keep) {
    if (count > SIZE_MAX / sizeof(placed_key))
        return -ENOMEM;
    placed_key *sorted = rk_arena_alloc(arena, count * sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        sorted[i] = (placed_key){keys[i], i};
    qsort(sorted, count, sizeof *sorted, by_key_then_place);
    for (size_t i = 0; i < count; i++)
        keep[sorted[i].place] = i + 1 == count || strcmp(sorted[i].key, sorted[i + 1].key) != 0;
    return 0;
}

static rk_code drop_repeated(rk_reader *reader, rk_value *map) {
    bool *keep = rk_arena_alloc(reader->arena, map->count);
    if (!keep || rk_keep_last(reader->arena, (const char *const *)map->keys, map->count, keep) < 0)
        return rk_no_memory(reader);
    size_t kept = 0;
    for (size_t i = 0; i < map->count; i++) {
        if (!keep[i])
            continue;
        map->keys[kept] = map->keys[i];
        map->items[kept++] = map->items[i];
    }
    map->count = kept;
    return RK_OK;
}

rk_code rk_struct_finish(rk_reader *reader, rk_value *map) {
    rk_code code = map->kind == RK_VALUE_MAP && map->count > 1 ? drop_repeated(reader, map) : RK_OK;
    for (size_t i = 0; code == RK_OK && i < map->count; i++)
        if (map->items[i]->kind == RK_VALUE_MAP || map->items[i]->kind == RK_VALUE_LIST)
            code = rk_struct_finish(reader, map->items[i]);
    return code;
}
