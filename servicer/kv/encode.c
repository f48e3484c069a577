/* See encode.h. */
#include "kv/encode.h"

#include "dialects/wire_write.h"
#include "kv/events.h"
#include "rk_proto/fields.h"

/* TokenSpeed publishes what its devices hold, and nobody else's. */
#define TIER_DEVICE 1
#define LOCALITY_LOCAL 1

void rk_kv_write_batch(rk_buf *out, uint64_t sequence, double time, int32_t rank) {
    rk_write_uint(out, RK_SMG_KV_EVENT_BATCH__SEQUENCE_NUMBER, sequence);
    rk_write_double(out, RK_SMG_KV_EVENT_BATCH__TIMESTAMP, time);
    rk_write_int_always(out, RK_SMG_KV_EVENT_BATCH__DP_RANK, rank);
}

void rk_kv_write_snapshot(rk_buf *out, const rk_kv_chunk *chunk) {
    size_t begun = rk_write_begin(out, RK_SMG_KV_EVENT_BATCH__SNAPSHOT);
    rk_write_uint(out, RK_SMG_KV_SNAPSHOT_CHUNK__INDEX, chunk->index);
    rk_write_uint(out, RK_SMG_KV_SNAPSHOT_CHUNK__COUNT, chunk->count);
    rk_write_uint(out, RK_SMG_KV_SNAPSHOT_CHUNK__BLOCKS, chunk->blocks);
    rk_write_uint(out, RK_SMG_KV_SNAPSHOT_CHUNK__UNKNOWN_BEFORE, chunk->unknown_before);
    rk_write_end(out, begun);
}

void rk_kv_write_block(rk_buf *out, uint64_t hash, rk_mp *tokens, uint32_t count) {
    rk_write_int(out, RK_SMG_KV_BLOCK__BLOCK_HASH, (int64_t)hash);
    size_t begun = rk_write_begin(out, RK_SMG_KV_BLOCK__TOKEN_IDS);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t bytes[10];
        const uint8_t *end = rk_put_varint(bytes, rk_kv_next_token(tokens));
        rk_buf_append(out, bytes, (size_t)(end - bytes));
    }
    rk_write_end(out, begun);
    rk_write_int(out, RK_SMG_KV_BLOCK__BLOCK_SIZE, count);
}

rk_kv_open rk_kv_begin_stored(rk_buf *out, uint64_t event_id) {
    rk_kv_open open;
    open.event = rk_write_begin(out, RK_SMG_KV_EVENT_BATCH__EVENTS);
    rk_write_uint(out, RK_SMG_KV_CACHE_EVENT__EVENT_ID, event_id);
    open.inner = rk_write_begin(out, RK_SMG_KV_CACHE_EVENT__STORED);
    return open;
}

void rk_kv_write_stored_block(rk_buf *out, const uint8_t *bytes, size_t size) {
    rk_write_bytes_always(out, RK_SMG_KV_BLOCKS_STORED__BLOCKS, bytes, size);
}

void rk_kv_end_stored(rk_buf *out, rk_kv_open open, bool has_parent, uint64_t parent) {
    if (has_parent)
        rk_write_int_always(out, RK_SMG_KV_BLOCKS_STORED__PARENT_BLOCK_HASH, (int64_t)parent);
    rk_write_int_always(out, RK_SMG_KV_BLOCKS_STORED__TIER, TIER_DEVICE);
    rk_write_int_always(out, RK_SMG_KV_BLOCKS_STORED__LOCALITY, LOCALITY_LOCAL);
    rk_write_end(out, open.inner);
    rk_write_end(out, open.event);
}

void rk_kv_write_removed(rk_buf *out, uint64_t event_id, rk_mp *hashes, size_t count) {
    size_t event = rk_write_begin(out, RK_SMG_KV_EVENT_BATCH__EVENTS);
    rk_write_uint(out, RK_SMG_KV_CACHE_EVENT__EVENT_ID, event_id);
    size_t removed = rk_write_begin(out, RK_SMG_KV_CACHE_EVENT__REMOVED);
    size_t packed = rk_write_begin(out, RK_SMG_KV_BLOCKS_REMOVED__BLOCK_HASHES);
    for (size_t i = 0; i < count; i++) {
        uint8_t bytes[10];
        const uint8_t *end = rk_put_varint(bytes, rk_kv_next_hash(hashes));
        rk_buf_append(out, bytes, (size_t)(end - bytes));
    }
    rk_write_end(out, packed);
    rk_write_int_always(out, RK_SMG_KV_BLOCKS_REMOVED__TIER, TIER_DEVICE);
    rk_write_int_always(out, RK_SMG_KV_BLOCKS_REMOVED__LOCALITY, LOCALITY_LOCAL);
    rk_write_end(out, removed);
    rk_write_end(out, event);
}

void rk_kv_write_cleared(rk_buf *out, uint64_t event_id) {
    size_t event = rk_write_begin(out, RK_SMG_KV_EVENT_BATCH__EVENTS);
    rk_write_uint(out, RK_SMG_KV_CACHE_EVENT__EVENT_ID, event_id);
    rk_write_end(out, rk_write_begin(out, RK_SMG_KV_CACHE_EVENT__CLEARED));
    rk_write_end(out, event);
}
