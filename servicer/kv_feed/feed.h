/* The feed: one thread that reads every rank's publisher, by ZeroMQ, for all subscribers.
 *
 * A rank has a SUB socket, and, where the publisher answers replays, a DEALER that asks it for what was
 * published before, or was missed. Whenever the SUB has connected, the publisher is asked from the last
 * number known: its first answer shows whether it is still the same life of it.
 *
 * Without a configured publisher there is no feed. A forked child must not touch one. */
#ifndef RK_KV_FEED_FEED_H
#define RK_KV_FEED_FEED_H

#include "base/log.h"
#include "kv/rank.h"

typedef struct rk_kv_feed rk_kv_feed;

typedef struct rk_kv_feed_options {
    const char *endpoint; /* rank 0's, as the publisher has it; the other ranks' ports follow */
    const char *replay;   /* likewise; NULL or "": it answers no replays */
    const char *topic;    /* NULL or "": any */
    uint32_t ranks;
    size_t history_entries;
    size_t history_bytes; /* per rank, as record_bytes */
    size_t record_bytes;
    const rk_log *log;          /* outlives the feed */
    void (*on_news)(void *arg); /* feed thread, nothing locked: there may be more to read */
    void *arg;
} rk_kv_feed_options;

typedef struct rk_kv_feed_counts {
    rk_kv_rank_counts batches;
    uint64_t malformed_messages; /* that are no batch with a number */
    uint64_t replays;            /* asked for */
    uint64_t replays_failed;     /* of these, not answered in time */
    bool connected;
} rk_kv_feed_counts;

/* NULL with -errno in `*error`: -EINVAL for an endpoint that is none. Keeps nothing of the options but log,
 * on_news and arg. */
rk_kv_feed *rk_kv_feed_new(const rk_kv_feed_options *options, int *error);
int rk_kv_feed_start(rk_kv_feed *feed); /* 0 or -errno */
void rk_kv_feed_stop(rk_kv_feed *feed); /* joins; twice is fine, NULL is fine */
void rk_kv_feed_free(rk_kv_feed *feed);

/* Any thread: as rk_kv_rank_next, rk_kv_rank_peek and the counts of that rank. */
int rk_kv_feed_next(rk_kv_feed *feed, uint32_t rank, rk_kv_cursor *cursor, rk_kv_entry **entry);
int rk_kv_feed_peek(rk_kv_feed *feed, uint32_t rank, const rk_kv_cursor *cursor);
void rk_kv_feed_read(rk_kv_feed *feed, uint32_t rank, rk_kv_feed_counts *counts);

/* The address to connect to for a rank, as publishers shift theirs: the port plus the rank, and this host for
 * a wildcard. 0, or -EINVAL. */
int rk_kv_endpoint(const char *endpoint, uint32_t rank, char out[256]);

#endif
