/* See snapshot.h. */
#include "kv/snapshot.h"

#include <stdlib.h>

#include "kv/encode.h"

/* A block's share of a chunk besides its own bytes: tags, lengths, parent, tier, locality. */
#define BLOCK_OVERHEAD 32

typedef struct maker {
    const rk_kv_snapshot_at *at;
    const rk_kv_record *record;
    rk_kv_snapshot *made; /* NULL while chunks are counted */
    uint32_t count;       /* chunks, when known */
    uint32_t index;       /* the chunk that is being filled */
    size_t filled;        /* its bytes, about */
    rk_buf out;
} maker;

static void open_chunk(maker *m) {
    m->filled = 0;
    if (!m->made)
        return;
    m->out.size = 0;
    uint64_t sequence = m->at->sequence - (m->count - 1 - m->index);
    rk_kv_write_batch(&m->out, sequence, m->at->time, m->at->rank);
    const rk_kv_chunk chunk = {.index = m->index,
                               .count = m->count,
                               .blocks = rk_kv_record_blocks(m->record),
                               .unknown_before = rk_kv_record_unknown_before(m->record)};
    rk_kv_write_snapshot(&m->out, &chunk);
    if (m->index == 0)
        rk_kv_write_cleared(&m->out, 0);
}

static bool close_chunk(maker *m) {
    if (!m->made)
        return true;
    rk_kv_entry *entry = m->out.failed ? NULL : rk_kv_entry_new(m->out.data, m->out.size);
    if (!entry)
        return false;
    entry->resync = true;
    entry->sequence = m->at->sequence - (m->count - 1 - m->index);
    m->made->chunks[m->index] = entry;
    return true;
}

static bool add_block(const rk_kv_block *block, void *arg) {
    maker *m = arg;
    size_t size = block->size + BLOCK_OVERHEAD;
    /* One number for each chunk, and none below 0. */
    bool last = m->made ? m->index + 1 == m->count : m->index >= m->at->sequence;
    if (m->filled > 0 && m->filled + size > m->at->chunk_bytes && !last) {
        if (!close_chunk(m))
            return false;
        m->index++;
        open_chunk(m);
    }
    m->filled += size;
    if (!m->made)
        return true;
    rk_kv_open open = rk_kv_begin_stored(&m->out, 0);
    rk_kv_write_stored_block(&m->out, block->bytes, block->size);
    rk_kv_end_stored(&m->out, open, block->has_parent, block->parent);
    return !m->out.failed;
}

rk_kv_snapshot *rk_kv_snapshot_new(rk_kv_record *record, const rk_kv_snapshot_at *at) {
    maker counted = {.at = at, .record = record};
    (void)rk_kv_record_each(record, add_block, &counted);
    uint32_t count = counted.index + 1;
    rk_kv_snapshot *made = calloc(1, sizeof *made + count * sizeof made->chunks[0]);
    if (!made)
        return NULL;
    atomic_init(&made->refs, 1);
    made->count = count;
    maker m = {.at = at, .record = record, .made = made, .count = count, .out = RK_BUF_INIT};
    open_chunk(&m);
    bool ok = rk_kv_record_each(record, add_block, &m) && close_chunk(&m);
    rk_buf_free(&m.out);
    if (ok)
        return made;
    rk_kv_snapshot_unref(made);
    return NULL;
}

rk_kv_snapshot *rk_kv_snapshot_ref(rk_kv_snapshot *snapshot) {
    atomic_fetch_add_explicit(&snapshot->refs, 1, memory_order_relaxed);
    return snapshot;
}

void rk_kv_snapshot_unref(rk_kv_snapshot *snapshot) {
    if (!snapshot || atomic_fetch_sub_explicit(&snapshot->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < snapshot->count; i++)
        rk_kv_entry_unref(snapshot->chunks[i]);
    free(snapshot);
}
