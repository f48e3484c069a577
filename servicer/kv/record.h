/* Which blocks a rank's cache holds, as its batches have told: what a subscriber that comes late is given
 * instead of all that went before.
 *
 * A block is remembered with its parent and as it is written on the wire, with one copy for each time that it
 * was stored and not removed. What is not known is not claimed: where batches were lost the record starts
 * anew, and says from which number on it knows. It forgets everything likewise when it would outgrow its
 * bound.
 *
 * Not synchronised. */
#ifndef RK_KV_RECORD_H
#define RK_KV_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef struct rk_kv_record rk_kv_record;

typedef struct rk_kv_block {
    uint64_t hash;
    bool has_parent;
    uint64_t parent;
    const uint8_t *bytes; /* a KvBlock */
    size_t size;
} rk_kv_block;

rk_kv_record *rk_kv_record_new(size_t limit_bytes); /* NULL: out of memory */
void rk_kv_record_free(rk_kv_record *record);       /* NULL is fine */

/* What follows is told at batch `sequence`. */
void rk_kv_record_store(rk_kv_record *record, uint64_t sequence, const rk_kv_block *block);
void rk_kv_record_remove(rk_kv_record *record, uint64_t hash);
void rk_kv_record_clear(rk_kv_record *record);
/* Batches before `sequence` are not known, whatever they said. */
void rk_kv_record_forget(rk_kv_record *record, uint64_t sequence);
/* Something that was told up to `sequence` is missing; what is there may still stand. */
void rk_kv_record_doubt(rk_kv_record *record, uint64_t sequence);

uint64_t rk_kv_record_blocks(const rk_kv_record *record); /* copies counted */
size_t rk_kv_record_bytes(const rk_kv_record *record);
uint64_t rk_kv_record_unknown_before(const rk_kv_record *record);
uint64_t rk_kv_record_forgotten(const rk_kv_record *record); /* times that the bound was reached */

/* The blocks with every parent before its children, each copy by itself. False: out of memory. */
bool rk_kv_record_each(rk_kv_record *record, bool (*visit)(const rk_kv_block *block, void *arg), void *arg);

#endif
