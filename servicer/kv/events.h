/* What a publisher's payload says: a batch of cache events, as TokenSpeed's publisher packs them.
 *
 * A batch is the list [time, events, rank]. An event is a list that begins with its kind:
 * ["BlockStored", hashes, parent or nil, token ids, tokens per block], ["BlockRemoved", hashes],
 * ["AllBlocksCleared"]. What a newer engine appends to either is stepped over. A batch that is no batch is
 * an error; an event in it that cannot be used is said to be so, and the others count.
 *
 * Any thread; nothing is kept, everything points into the payload. */
#ifndef RK_KV_EVENTS_H
#define RK_KV_EVENTS_H

#include "kv/msgpack.h"

typedef enum rk_kv_kind {
    RK_KV_STORED,
    RK_KV_REMOVED,
    RK_KV_CLEARED,
    RK_KV_UNKNOWN,  /* a kind of a newer engine */
    RK_KV_PARTIAL,  /* a store of blocks that are not full: nobody can route by them */
    RK_KV_UNUSABLE, /* a field is missing or makes no sense */
} rk_kv_kind;

typedef struct rk_kv_event {
    rk_kv_kind kind;
    size_t count; /* hashes; STORED and REMOVED */
    rk_mp hashes; /* `count` of them, checked */
    bool has_parent;
    uint64_t parent;
    uint32_t block_tokens; /* STORED: tokens of each block, > 0 */
    rk_mp tokens;          /* STORED: count * block_tokens of them, checked */
} rk_kv_event;

typedef struct rk_kv_batch {
    double time;  /* Unix seconds as the publisher has it; 0: it has none */
    size_t count; /* events that have not been read yet */
    rk_mp events;
} rk_kv_batch;

/* 0 or -EBADMSG: this is no batch, or not one alone. The whole payload has been walked through then. */
int rk_kv_batch_read(const uint8_t *bytes, size_t size, rk_kv_batch *batch);
/* The next event of a batch that was read; false: there is none left. */
bool rk_kv_batch_next(rk_kv_batch *batch, rk_kv_event *event);

/* The next of the hashes or tokens of an event, which have been checked. An engine's hash is a number, or a
 * digest of which the last eight bytes count. */
uint64_t rk_kv_next_hash(rk_mp *hashes);
uint32_t rk_kv_next_token(rk_mp *tokens);

#endif
