/* See rank.h. Places in the history count from the first entry ever, whatever the publisher's numbers do. */
#include "kv/rank.h"

#include <errno.h>
#include <stdlib.h>

#include "base/hash.h"
#include "kv/encode.h"
#include "kv/events.h"

struct rk_kv_rank {
    rk_kv_rank_options options;
    rk_hash_seed seed;
    rk_kv_entry **ring; /* `capacity` of them; entry at place p is ring[p % capacity] */
    size_t capacity;
    uint64_t first; /* place of the oldest entry that is kept */
    uint64_t end;   /* place of the next one */
    uint64_t begun; /* place of the resync, or of number 0, since which no number is missing */
    size_t bytes;   /* of the entries kept */
    bool settled;
    bool any;      /* a batch of this life has been taken */
    bool again;    /* the next batch is a resync whatever its number */
    uint64_t last; /* its number */
    double time;   /* its time */
    uint64_t event_id;
    rk_kv_record *record;
    rk_kv_snapshot *snapshot; /* of the record as it is; NULL: not made */
    rk_buf out;
    rk_buf block;
    rk_kv_rank_counts counts;
};

rk_kv_rank *rk_kv_rank_new(const rk_kv_rank_options *options) {
    rk_kv_rank *rank = calloc(1, sizeof *rank);
    if (!rank)
        return NULL;
    rank->options = *options;
    rank->seed = rk_hash_seed_new();
    rank->record = rk_kv_record_new(options->record_bytes);
    if (rank->record)
        return rank;
    free(rank);
    return NULL;
}

static rk_kv_entry **at_place(const rk_kv_rank *rank, uint64_t place) {
    /* The ring is there as soon as anything is in it. */
    return &rank->ring[place % rank->capacity]; /* NOLINT(clang-analyzer-core.DivideZero) */
}

static void drop_oldest(rk_kv_rank *rank) {
    rk_kv_entry *entry = *at_place(rank, rank->first);
    rank->bytes -= entry->size;
    rank->first++;
    rk_kv_entry_unref(entry);
}

void rk_kv_rank_free(rk_kv_rank *rank) {
    if (!rank)
        return;
    while (rank->first < rank->end)
        drop_oldest(rank);
    free(rank->ring);
    rk_kv_snapshot_unref(rank->snapshot);
    rk_kv_record_free(rank->record);
    rk_buf_free(&rank->out);
    rk_buf_free(&rank->block);
    free(rank);
}

/* ---- the history ---- */

static bool grow(rk_kv_rank *rank) {
    size_t capacity = rank->capacity ? rank->capacity * 2 : 64;
    if (capacity > rank->options.history_entries)
        capacity = rank->options.history_entries;
    rk_kv_entry **ring = calloc(capacity, sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t place = rank->first; place < rank->end; place++)
        ring[place % capacity] = *at_place(rank, place);
    free(rank->ring);
    rank->ring = ring;
    rank->capacity = capacity;
    return true;
}

static bool append(rk_kv_rank *rank, rk_kv_entry *entry) {
    if (rank->end - rank->first == rank->capacity) {
        bool full = rank->capacity >= rank->options.history_entries;
        if (!full && !grow(rank))
            return false;
        if (full)
            drop_oldest(rank);
    }
    *at_place(rank, rank->end++) = entry;
    rank->bytes += entry->size;
    while (rank->bytes > rank->options.history_bytes && rank->end - rank->first > 1)
        drop_oldest(rank);
    return true;
}

/* The oldest place from which no number is missing up to the last. */
static uint64_t oldest(const rk_kv_rank *rank) {
    return rank->begun > rank->first ? rank->begun : rank->first;
}

/* The entry of a number of this life; NULL: it is not kept. */
static rk_kv_entry *entry_of(const rk_kv_rank *rank, uint64_t sequence) {
    if (!rank->any || sequence > rank->last || rank->last - sequence >= rank->end - oldest(rank))
        return NULL;
    return *at_place(rank, rank->end - 1 - (rank->last - sequence));
}

/* ---- batches ---- */

static void take_stored(rk_kv_rank *rank, uint64_t sequence, rk_kv_event *event) {
    rk_kv_open open = rk_kv_begin_stored(&rank->out, rank->event_id);
    rk_kv_block block = {.has_parent = event->has_parent, .parent = event->parent};
    for (size_t i = 0; i < event->count; i++) {
        block.hash = rk_kv_next_hash(&event->hashes);
        rank->block.size = 0;
        rk_kv_write_block(&rank->block, block.hash, &event->tokens, event->block_tokens);
        if (rank->block.failed)
            break;
        block.bytes = rank->block.data;
        block.size = rank->block.size;
        rk_kv_write_stored_block(&rank->out, block.bytes, block.size);
        rk_kv_record_store(rank->record, sequence, &block);
        block.has_parent = true;
        block.parent = block.hash;
    }
    rk_kv_end_stored(&rank->out, open, event->has_parent, event->parent);
}

static void take_event(rk_kv_rank *rank, uint64_t sequence, rk_kv_event *event) {
    rank->event_id++;
    rk_mp hashes = event->hashes;
    switch (event->kind) {
    case RK_KV_STORED:
        take_stored(rank, sequence, event);
        break;
    case RK_KV_REMOVED:
        rk_kv_write_removed(&rank->out, rank->event_id, &event->hashes, event->count);
        for (size_t i = 0; i < event->count; i++)
            rk_kv_record_remove(rank->record, rk_kv_next_hash(&hashes));
        break;
    case RK_KV_CLEARED:
        rk_kv_write_cleared(&rank->out, rank->event_id);
        rk_kv_record_clear(rank->record);
        break;
    case RK_KV_UNKNOWN:
    case RK_KV_PARTIAL:
        break;
    case RK_KV_UNUSABLE:
        rank->counts.malformed_events++;
        break;
    }
}

/* The batch as an entry, and into the record. */
static rk_kv_entry *make_entry(rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size) {
    rk_kv_batch batch;
    rk_kv_event event;
    rank->out.size = 0;
    rank->out.failed = rank->block.failed = false;
    bool sound = rk_kv_batch_read(payload, size, &batch) == 0;
    rank->time = sound ? batch.time : 0;
    rk_kv_write_batch(&rank->out, sequence, rank->time, rank->options.rank);
    while (sound && rk_kv_batch_next(&batch, &event))
        take_event(rank, sequence, &event);
    if (!sound) {
        rank->counts.malformed_batches++;
        rk_kv_record_doubt(rank->record, sequence);
    }
    if (rank->out.failed || rank->block.failed)
        return NULL;
    return rk_kv_entry_new(rank->out.data, rank->out.size);
}

/* All that is known since, and including, a batch that nothing known leads up to. */
static rk_kv_entry *make_resync(rk_kv_rank *rank, uint64_t sequence) {
    const rk_kv_snapshot_at at = {
        .sequence = sequence, .time = rank->time, .rank = rank->options.rank, .chunk_bytes = SIZE_MAX};
    rk_kv_snapshot *snapshot = rk_kv_snapshot_new(rank->record, &at);
    if (!snapshot)
        return NULL;
    rk_kv_entry *entry = rk_kv_entry_ref(snapshot->chunks[0]);
    rk_kv_snapshot_unref(snapshot);
    return entry;
}

static uint64_t print_of(const rk_kv_rank *rank, const uint8_t *payload, size_t size) {
    return rk_hash_bytes(rank->seed, payload, size);
}

static rk_kv_taken add(rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size,
                       bool resync) {
    rk_kv_snapshot_unref(rank->snapshot);
    rank->snapshot = NULL;
    if (resync)
        rk_kv_record_forget(rank->record, sequence);
    rk_kv_entry *entry = make_entry(rank, sequence, payload, size);
    if (entry && resync) {
        rk_kv_entry_unref(entry);
        entry = make_resync(rank, sequence);
    }
    if (!entry || !append(rank, entry)) {
        rk_kv_entry_unref(entry);
        rank->again = true;
        return RK_KV_NO_ROOM;
    }
    entry->sequence = sequence;
    entry->print = print_of(rank, payload, size);
    if (resync || sequence == 0)
        rank->begun = rank->end - 1;
    rank->any = true;
    rank->again = false;
    rank->last = sequence;
    rank->counts.batches++;
    return RK_KV_TAKEN;
}

rk_kv_taken rk_kv_rank_take(rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size,
                            bool force) {
    if (!rank->any)
        return add(rank, sequence, payload, size, rank->again || sequence > 0);
    if (sequence <= rank->last) {
        if (rk_kv_rank_has(rank, sequence, payload, size))
            return RK_KV_REPEAT;
        if (!force)
            return RK_KV_ANEW;
        rk_kv_rank_restart(rank);
        return add(rank, sequence, payload, size, true);
    }
    if (sequence == rank->last + 1)
        return add(rank, sequence, payload, size, rank->again);
    if (!force)
        return RK_KV_MISSING;
    rank->counts.gaps++;
    rank->counts.lost += sequence - rank->last - 1;
    return add(rank, sequence, payload, size, true);
}

bool rk_kv_rank_last(const rk_kv_rank *rank, uint64_t *sequence) {
    *sequence = rank->last;
    return rank->any;
}

bool rk_kv_rank_has(const rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size) {
    const rk_kv_entry *entry = entry_of(rank, sequence);
    return entry && entry->print == print_of(rank, payload, size);
}

void rk_kv_rank_restart(rk_kv_rank *rank) {
    rank->any = false;
    rank->again = true;
    rank->counts.restarts++;
}

void rk_kv_rank_settle(rk_kv_rank *rank) {
    rank->settled = true;
}

void rk_kv_rank_read(const rk_kv_rank *rank, rk_kv_rank_counts *counts) {
    *counts = rank->counts;
    counts->forgotten = rk_kv_record_forgotten(rank->record);
    counts->blocks = rk_kv_record_blocks(rank->record);
    counts->history_bytes = rank->bytes;
    counts->record_bytes = rk_kv_record_bytes(rank->record);
}

/* ---- subscribers ---- */

static int place_by_snapshot(rk_kv_rank *rank, rk_kv_cursor *cursor) {
    const rk_kv_snapshot_at at = {.sequence = rank->last,
                                  .time = rank->time,
                                  .rank = rank->options.rank,
                                  .chunk_bytes = rank->options.chunk_bytes};
    if (!rank->snapshot)
        rank->snapshot = rk_kv_snapshot_new(rank->record, &at);
    if (!rank->snapshot)
        return -ENOMEM;
    cursor->snapshot = rk_kv_snapshot_ref(rank->snapshot);
    cursor->chunk = 0;
    cursor->next = rank->end;
    cursor->placed = true;
    return 0;
}

/* Before anything of this life is known there is no telling where a subscriber has to begin. */
static bool can_place(const rk_kv_rank *rank) {
    return rank->settled && rank->any;
}

static int place(rk_kv_rank *rank, rk_kv_cursor *cursor) {
    uint64_t from = oldest(rank);
    uint64_t from_sequence = rank->last - (rank->end - 1 - from);
    if (cursor->start > 0 && cursor->start >= from_sequence && cursor->start <= rank->last + 1)
        cursor->next = rank->end - (rank->last + 1 - cursor->start);
    else if (cursor->start <= from_sequence && from == rank->begun)
        cursor->next = from; /* number 0, or a resync: what was before it is not needed */
    else
        return place_by_snapshot(rank, cursor);
    cursor->placed = true;
    return 0;
}

int rk_kv_rank_peek(const rk_kv_rank *rank, const rk_kv_cursor *cursor) {
    if (!cursor->placed)
        return can_place(rank) ? 1 : 0;
    if (cursor->next < rank->first)
        return -ENOBUFS;
    return cursor->snapshot || cursor->next < rank->end ? 1 : 0;
}

int rk_kv_rank_next(rk_kv_rank *rank, rk_kv_cursor *cursor, rk_kv_entry **entry) {
    if (!cursor->placed && can_place(rank) && place(rank, cursor) < 0)
        return -ENOMEM;
    int found = rk_kv_rank_peek(rank, cursor);
    if (found <= 0)
        return found;
    if (!cursor->snapshot) {
        *entry = rk_kv_entry_ref(*at_place(rank, cursor->next++));
        return 1;
    }
    *entry = rk_kv_entry_ref(cursor->snapshot->chunks[cursor->chunk++]);
    if (cursor->chunk == cursor->snapshot->count)
        rk_kv_cursor_clear(cursor);
    return 1;
}

void rk_kv_cursor_clear(rk_kv_cursor *cursor) {
    rk_kv_snapshot_unref(cursor->snapshot);
    cursor->snapshot = NULL;
}
