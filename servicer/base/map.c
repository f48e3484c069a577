/* Hash maps by linear probing in a table of a power of two, at most three quarters full.
 *
 * A removed entry is not marked: the entries behind it move up, so a map that lives long and changes much
 * (every call comes and goes) stays as fast as a new one. Not synchronised: one owner at a time. */
#include "base/map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define FIRST_CAPACITY 16u

typedef struct entry {
    uint64_t hash;
    uint64_t number; /* rk_map: the key; rk_bmap: its length in bytes */
    void *bytes;     /* rk_bmap: the key, ours; rk_map: NULL */
    void *value;     /* NULL: the place is empty */
} entry;

typedef struct table {
    entry *entries;  /* `capacity` places */
    size_t capacity; /* a power of two */
    size_t size;     /* places taken */
} table;

struct rk_map {
    table table;
};

struct rk_bmap {
    table table;
    rk_hash_seed seed;
};

static int table_init(table *t) {
    t->entries = calloc(FIRST_CAPACITY, sizeof *t->entries);
    t->capacity = FIRST_CAPACITY;
    t->size = 0;
    return t->entries ? 0 : -ENOMEM;
}

static bool same(const entry *e, uint64_t hash, uint64_t number, const void *bytes) {
    if (e->hash != hash || e->number != number)
        return false;
    return !bytes || number == 0 || memcmp(e->bytes, bytes, (size_t)number) == 0;
}

/* The place of the key, or the empty place where it would go. */
static size_t find(const table *t, uint64_t hash, uint64_t number, const void *bytes) {
    size_t mask = t->capacity - 1;
    size_t at = (size_t)hash & mask;
    while (t->entries[at].value && !same(&t->entries[at], hash, number, bytes))
        at = (at + 1) & mask;
    return at;
}

static int grow(table *t) {
    if ((t->size + 1) * 4 <= t->capacity * 3)
        return 0;
    table bigger = {.capacity = t->capacity * 2, .size = t->size};
    bigger.entries = calloc(bigger.capacity, sizeof *bigger.entries);
    if (!bigger.entries)
        return t->size + 1 < t->capacity ? 0 : -ENOMEM; /* one place must stay empty: it ends the search */
    for (size_t i = 0; i < t->capacity; i++) {
        const entry *e = &t->entries[i];
        if (!e->value)
            continue;
        size_t at = (size_t)e->hash & (bigger.capacity - 1);
        while (bigger.entries[at].value)
            at = (at + 1) & (bigger.capacity - 1);
        bigger.entries[at] = *e;
    }
    free(t->entries);
    *t = bigger;
    return 0;
}

static int put(table *t, entry new_entry) {
    if (t->entries[find(t, new_entry.hash, new_entry.number, new_entry.bytes)].value)
        return -EEXIST;
    int rc = grow(t);
    if (rc < 0)
        return rc;
    t->entries[find(t, new_entry.hash, new_entry.number, new_entry.bytes)] = new_entry;
    t->size++;
    return 0;
}

/* Empties the place and moves up what was pushed past it by collisions. */
static void vacate(table *t, size_t hole) {
    size_t mask = t->capacity - 1;
    for (size_t at = (hole + 1) & mask; t->entries[at].value; at = (at + 1) & mask) {
        size_t home = (size_t)t->entries[at].hash & mask;
        if (((at - home) & mask) < ((at - hole) & mask))
            continue; /* its home lies behind the hole: it may not go there */
        t->entries[hole] = t->entries[at];
        hole = at;
    }
    t->entries[hole] = (entry){0};
    t->size--;
}

rk_map *rk_map_new(void) {
    rk_map *map = malloc(sizeof *map);
    if (map && table_init(&map->table) < 0) {
        free(map);
        return NULL;
    }
    return map;
}

void rk_map_free(rk_map *map) {
    if (!map)
        return;
    free(map->table.entries);
    free(map);
}

int rk_map_put(rk_map *map, uint64_t key, void *value) {
    return put(&map->table, (entry){rk_hash_number(key), key, NULL, value});
}

void *rk_map_get(const rk_map *map, uint64_t key) {
    return map->table.entries[find(&map->table, rk_hash_number(key), key, NULL)].value;
}

void *rk_map_remove(rk_map *map, uint64_t key) {
    size_t at = find(&map->table, rk_hash_number(key), key, NULL);
    void *value = map->table.entries[at].value;
    if (value)
        vacate(&map->table, at);
    return value;
}

size_t rk_map_size(const rk_map *map) {
    return map->table.size;
}

void rk_map_each(const rk_map *map, void (*visit)(uint64_t key, void *value, void *arg), void *arg) {
    for (size_t i = 0; i < map->table.capacity; i++) {
        if (map->table.entries[i].value)
            visit(map->table.entries[i].number, map->table.entries[i].value, arg);
    }
}

rk_bmap *rk_bmap_new(void) {
    rk_bmap *map = malloc(sizeof *map);
    if (map && table_init(&map->table) < 0) {
        free(map);
        return NULL;
    }
    if (map)
        map->seed = rk_hash_seed_new();
    return map;
}

void rk_bmap_free(rk_bmap *map) {
    if (!map)
        return;
    for (size_t i = 0; i < map->table.capacity; i++)
        free(map->table.entries[i].bytes);
    free(map->table.entries);
    free(map);
}

int rk_bmap_put(rk_bmap *map, const void *key, size_t key_bytes, void *value) {
    void *copy = malloc(key_bytes ? key_bytes : 1);
    if (!copy)
        return -ENOMEM;
    if (key_bytes)
        memcpy(copy, key, key_bytes);
    int rc = put(&map->table, (entry){rk_hash_bytes(map->seed, key, key_bytes), key_bytes, copy, value});
    if (rc < 0)
        free(copy);
    return rc;
}

static size_t bfind(const rk_bmap *map, const void *key, size_t key_bytes) {
    return find(&map->table, rk_hash_bytes(map->seed, key, key_bytes), key_bytes, key);
}

int rk_bmap_replace(rk_bmap *map, const void *key, size_t key_bytes, void *value) {
    entry *e = &map->table.entries[bfind(map, key, key_bytes)];
    if (!e->value)
        return -ENOENT;
    e->value = value;
    return 0;
}

void *rk_bmap_get(const rk_bmap *map, const void *key, size_t key_bytes) {
    return map->table.entries[bfind(map, key, key_bytes)].value;
}

void *rk_bmap_remove(rk_bmap *map, const void *key, size_t key_bytes) {
    size_t at = bfind(map, key, key_bytes);
    void *value = map->table.entries[at].value;
    if (value) {
        free(map->table.entries[at].bytes);
        vacate(&map->table, at);
    }
    return value;
}

size_t rk_bmap_size(const rk_bmap *map) {
    return map->table.size;
}
