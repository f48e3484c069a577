/* Writing KvEventBatch and what is in it (smg.grpc.common). Any thread; check out->failed at the end. */
#ifndef RK_KV_ENCODE_H
#define RK_KV_ENCODE_H

#include "base/buf.h"
#include "kv/msgpack.h"
#include "kv/record.h"

/* The fields of a batch that are no lists. A batch is these, then its events, in any order. */
void rk_kv_write_batch(rk_buf *out, uint64_t sequence, double time, int32_t rank);

typedef struct rk_kv_chunk {
    uint32_t index;
    uint32_t count;
    uint64_t blocks;
    uint64_t unknown_before;
} rk_kv_chunk;
void rk_kv_write_snapshot(rk_buf *out, const rk_kv_chunk *chunk);

/* A KvBlock's own bytes; `tokens` as in an event, which they are taken from. */
void rk_kv_write_block(rk_buf *out, uint64_t hash, rk_mp *tokens, uint32_t count);

/* One event is what is written between begin and end; what begin returns goes to end. Blocks of a store are
 * written one after the other. */
typedef struct rk_kv_open {
    size_t event;
    size_t inner;
} rk_kv_open;
rk_kv_open rk_kv_begin_stored(rk_buf *out, uint64_t event_id);
void rk_kv_write_stored_block(rk_buf *out, const uint8_t *bytes, size_t size);
void rk_kv_end_stored(rk_buf *out, rk_kv_open open, bool has_parent, uint64_t parent);
void rk_kv_write_removed(rk_buf *out, uint64_t event_id, rk_mp *hashes, size_t count);
void rk_kv_write_cleared(rk_buf *out, uint64_t event_id);

#endif
