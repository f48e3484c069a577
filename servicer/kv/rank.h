/* One rank's batches: numbered, followed without a hole, kept for a while, and handed to subscribers.
 *
 * A publisher numbers its batches from 0. Here they become entries of a history that all subscribers share;
 * each has a cursor in it, so one that does not read costs nothing but its place, and is told when the
 * history has moved on past it. Where numbers are missing, or the publisher begins anew, the next entry is a
 * *resync*: a snapshot with all that is known from there on.
 *
 * Not synchronised, no I/O, no clock. */
#ifndef RK_KV_RANK_H
#define RK_KV_RANK_H

#include "kv/entry.h"
#include "kv/snapshot.h"

typedef struct rk_kv_rank rk_kv_rank;

typedef struct rk_kv_rank_options {
    int32_t rank;
    size_t history_entries; /* batches kept at most */
    size_t history_bytes;   /* and their bytes; the newest one is kept whatever its size */
    size_t record_bytes;    /* see record.h */
    size_t chunk_bytes;     /* of a snapshot */
} rk_kv_rank_options;

typedef struct rk_kv_rank_counts {
    uint64_t batches;           /* taken */
    uint64_t gaps;              /* times that numbers were missing for good */
    uint64_t lost;              /* the numbers that were missing then */
    uint64_t restarts;          /* times that the publisher began anew */
    uint64_t malformed_batches; /* payloads that are no batch: sent on without events */
    uint64_t malformed_events;  /* events left out of their batch */
    uint64_t forgotten;         /* times that the record was over its bound */
    uint64_t blocks;            /* known to be cached now */
    size_t history_bytes;
    size_t record_bytes;
} rk_kv_rank_counts;

rk_kv_rank *rk_kv_rank_new(const rk_kv_rank_options *options); /* NULL: out of memory */
void rk_kv_rank_free(rk_kv_rank *rank);                        /* NULL is fine */

typedef enum rk_kv_taken {
    RK_KV_TAKEN,   /* it is in the history now */
    RK_KV_REPEAT,  /* it was there already */
    RK_KV_MISSING, /* numbers before it are missing: nothing was done; find them, or force it */
    RK_KV_ANEW,    /* the number is from another life of the publisher: likewise */
    RK_KV_NO_ROOM, /* out of memory: it is lost, and the next one is a resync */
} rk_kv_taken;

/* A batch as the publisher sent it. `force`: what is missing before it cannot be had. */
rk_kv_taken rk_kv_rank_take(rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size,
                            bool force);
/* The last number taken in this life of the publisher; false: none yet. */
bool rk_kv_rank_last(const rk_kv_rank *rank, uint64_t *sequence);
/* Whether this payload is what was taken under the number. */
bool rk_kv_rank_has(const rk_kv_rank *rank, uint64_t sequence, const uint8_t *payload, size_t size);
/* The publisher has begun anew: its next batch, whatever its number, is a resync. */
void rk_kv_rank_restart(rk_kv_rank *rank);
/* What the publisher still had has been taken, or cannot be: subscribers may begin. */
void rk_kv_rank_settle(rk_kv_rank *rank);
void rk_kv_rank_read(const rk_kv_rank *rank, rk_kv_rank_counts *counts);

/* ---- subscribers ---- */

typedef struct rk_kv_cursor {
    uint64_t start; /* the number asked for; 0: whatever is known, and all that follows */
    bool placed;
    uint64_t next;            /* place in the history */
    rk_kv_snapshot *snapshot; /* to be sent first; NULL: none, or sent */
    uint32_t chunk;           /* of it, the next */
} rk_kv_cursor;

/* 1: `entry` is the next one, with a reference; 0: there is none yet; -ENOBUFS: it is gone, the subscriber
 * was too slow; -ENOMEM. A `start` whose batches are not in the history, be they gone or yet to come, begins
 * with a snapshot. */
int rk_kv_rank_next(rk_kv_rank *rank, rk_kv_cursor *cursor, rk_kv_entry **entry);
/* What rk_kv_rank_next would return, but for -ENOMEM. */
int rk_kv_rank_peek(const rk_kv_rank *rank, const rk_kv_cursor *cursor);
void rk_kv_cursor_clear(rk_kv_cursor *cursor);

#endif
