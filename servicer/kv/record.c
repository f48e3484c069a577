/* See record.h. */
#include "kv/record.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/map.h"

#define COPIES_MAX 8 /* as gateways count them */
/* What a block takes besides its bytes, its place in the table included. */
#define BLOCK_OVERHEAD (sizeof(kept_block) + 48)

typedef struct kept_block {
    rk_list link;             /* in order of their first store */
    struct kept_block *below; /* while visited: the child that waits for this one */
    uint64_t hash;
    uint64_t parent;
    uint64_t visited; /* the visit that has shown it */
    uint32_t copies;
    bool has_parent;
    size_t size;
    uint8_t bytes[];
} kept_block;

struct rk_kv_record {
    rk_map *by_hash;
    rk_list blocks;
    size_t limit;
    size_t bytes;
    uint64_t copies;
    uint64_t unknown_before;
    uint64_t forgotten;
    uint64_t visits;
};

rk_kv_record *rk_kv_record_new(size_t limit_bytes) {
    rk_kv_record *record = calloc(1, sizeof *record);
    if (!record)
        return NULL;
    record->by_hash = rk_map_new();
    record->limit = limit_bytes;
    rk_list_init(&record->blocks);
    if (record->by_hash)
        return record;
    free(record);
    return NULL;
}

void rk_kv_record_clear(rk_kv_record *record) {
    rk_list *node;
    while ((node = rk_list_pop_front(&record->blocks)) != NULL) {
        kept_block *block = RK_CONTAINER(node, kept_block, link);
        (void)rk_map_remove(record->by_hash, block->hash);
        free(block);
    }
    record->bytes = 0;
    record->copies = 0;
}

void rk_kv_record_free(rk_kv_record *record) {
    if (!record)
        return;
    rk_kv_record_clear(record);
    rk_map_free(record->by_hash);
    free(record);
}

void rk_kv_record_forget(rk_kv_record *record, uint64_t sequence) {
    rk_kv_record_clear(record);
    record->unknown_before = sequence;
}

void rk_kv_record_doubt(rk_kv_record *record, uint64_t sequence) {
    record->unknown_before = sequence + 1;
}

/* No room for one more: nothing is claimed any more, rather than something wrong. */
static void give_up(rk_kv_record *record, uint64_t sequence) {
    rk_kv_record_forget(record, sequence + 1);
    record->forgotten++;
}

static void add_block(rk_kv_record *record, uint64_t sequence, const rk_kv_block *from) {
    kept_block *block = NULL;
    if (record->bytes + from->size + BLOCK_OVERHEAD <= record->limit)
        block = calloc(1, sizeof *block + from->size);
    if (!block) {
        give_up(record, sequence);
        return;
    }
    block->hash = from->hash;
    block->has_parent = from->has_parent;
    block->parent = from->parent;
    block->copies = 1;
    block->size = from->size;
    memcpy(block->bytes, from->bytes, from->size);
    if (rk_map_put(record->by_hash, block->hash, block) < 0) {
        free(block);
        give_up(record, sequence);
        return;
    }
    rk_list_push_back(&record->blocks, &block->link);
    record->bytes += block->size + BLOCK_OVERHEAD;
    record->copies++;
}

void rk_kv_record_store(rk_kv_record *record, uint64_t sequence, const rk_kv_block *from) {
    kept_block *block = rk_map_get(record->by_hash, from->hash);
    if (!block) {
        add_block(record, sequence, from);
    } else if (block->copies < COPIES_MAX) {
        block->copies++;
        record->copies++;
    }
}

void rk_kv_record_remove(rk_kv_record *record, uint64_t hash) {
    kept_block *block = rk_map_get(record->by_hash, hash);
    if (!block)
        return;
    record->copies--;
    if (--block->copies > 0)
        return;
    (void)rk_map_remove(record->by_hash, hash);
    rk_list_remove(&block->link);
    record->bytes -= block->size + BLOCK_OVERHEAD;
    free(block);
}

uint64_t rk_kv_record_blocks(const rk_kv_record *record) {
    return record->copies;
}

size_t rk_kv_record_bytes(const rk_kv_record *record) {
    return record->bytes;
}

uint64_t rk_kv_record_unknown_before(const rk_kv_record *record) {
    return record->unknown_before;
}

uint64_t rk_kv_record_forgotten(const rk_kv_record *record) {
    return record->forgotten;
}

static bool show(kept_block *block, bool (*visit)(const rk_kv_block *block, void *arg), void *arg) {
    const rk_kv_block shown = {.hash = block->hash,
                               .has_parent = block->has_parent,
                               .parent = block->parent,
                               .bytes = block->bytes,
                               .size = block->size};
    for (uint32_t copy = 0; copy < block->copies; copy++)
        if (!visit(&shown, arg))
            return false;
    return true;
}

bool rk_kv_record_each(rk_kv_record *record, bool (*visit)(const rk_kv_block *block, void *arg), void *arg) {
    uint64_t now = ++record->visits;
    for (rk_list *node = record->blocks.next; node != &record->blocks; node = node->next) {
        kept_block *block = RK_CONTAINER(node, kept_block, link);
        if (block->visited == now)
            continue;
        /* Up to the first parent that has been shown or is not there. A block is marked on the way, so that
         * a chain in a circle, which no sane engine tells of, ends as well. */
        block->below = NULL;
        block->visited = now;
        while (block->has_parent) {
            kept_block *parent = rk_map_get(record->by_hash, block->parent);
            if (!parent || parent->visited == now)
                break;
            parent->below = block;
            parent->visited = now;
            block = parent;
        }
        for (; block; block = block->below)
            if (!show(block, visit, arg))
                return false;
    }
    return true;
}
