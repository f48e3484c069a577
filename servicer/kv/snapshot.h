/* A rank's record as KvEventBatches: chunks with consecutive numbers that end at the last batch told, so that
 * what follows joins without a gap. Chunk 0 begins with "all cleared". */
#ifndef RK_KV_SNAPSHOT_H
#define RK_KV_SNAPSHOT_H

#include "kv/entry.h"
#include "kv/record.h"

typedef struct rk_kv_snapshot {
    _Atomic uint32_t refs;
    uint32_t count;
    rk_kv_entry *chunks[];
} rk_kv_snapshot;

typedef struct rk_kv_snapshot_at {
    uint64_t sequence; /* of the last batch that the record has been told of */
    double time;       /* its time */
    int32_t rank;
    size_t chunk_bytes; /* about; numbers run out before sizes do, so near number 0 chunks are larger */
} rk_kv_snapshot_at;

/* One reference; NULL: out of memory. */
rk_kv_snapshot *rk_kv_snapshot_new(rk_kv_record *record, const rk_kv_snapshot_at *at);
rk_kv_snapshot *rk_kv_snapshot_ref(rk_kv_snapshot *snapshot);
void rk_kv_snapshot_unref(rk_kv_snapshot *snapshot); /* NULL is fine */

#endif
