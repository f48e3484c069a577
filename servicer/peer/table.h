/* The inside of peers.h, shared by this folder's files. Everything under peers->lock. */
#ifndef RK_PEER_TABLE_H
#define RK_PEER_TABLE_H

#include <pthread.h>

#include "base/map.h"
#include "peer/peers.h"

#define RK_PEER_NAMES_MAX 8
/* A leg that names an absent peer has it dialled, but not oftener than this. */
#define RK_DIAL_PAUSE_MS 250u
/* A peer that was up is dialled at once when it is lost, then with pauses that grow to this. */
#define RK_REDIAL_MOST_MS 500u
/* One that never was (and is configured), or has been gone for RK_RECENT_MS, to this. */
#define RK_DIAL_MOST_MS 30000u
#define RK_RECENT_MS 600000u
/* A host that refuses the connection is proof that the worker is gone, but its scheduler processes end a
 * moment after it: refused for so long, nothing of it writes any more. */
#define RK_GONE_MS 250u
/* One that stops in order closes its listener first, and gives its engine's processes up to 5 s after that.
 */
#define RK_GONE_IN_ORDER_MS 6000u
/* A lost peer that has not come back for so long is served without. */
#define RK_LOST_MOST_MS 30000u
/* A peer that may be forgotten when the table is full: gone for so long. */
#define RK_FORGET_MS 60000u
/* Rooms gathered for one frame, and frames that wait for a reader. */
#define RK_CHUNK_BYTES ((size_t)256 * 1024)
#define RK_CHUNKS_MAX 64u
/* Heartbeats missed in a row that a link survives, and the one that it does not. */
#define RK_BEATS_MISSED 3u

typedef struct rk_peer {
    bool used;
    bool configured;
    bool known; /* has been up: `instance` is set */
    rk_peer_phase phase;
    rk_peer_address names[RK_PEER_NAMES_MAX]; /* decode; host and port: where to dial */
    uint32_t name_count;
    uint8_t instance[RK_INSTANCE_BYTES];
    rk_link *link;
    uint64_t since_ms;
    uint64_t lost_ms;
    uint64_t dialled_ms; /* the last time */
    uint64_t next_dial_ms;
    unsigned failures; /* dials in a row */
    bool refused;      /* the last dial was, and all since refused_ms */
    bool in_order;     /* the link was closed with a goodbye */
    uint64_t refused_ms;
    rk_peer_row row; /* the texts and counters of it */
} rk_peer;

typedef struct rk_chunk {
    rk_list link;
    rk_buf entries;
} rk_chunk;

struct rk_peers {
    pthread_mutex_t lock;
    rk_peers_options options;
    uint8_t instance[RK_INSTANCE_BYTES];
    rk_ledger *ledger;
    const rk_log *log;
    const rk_peers_ops *ops;
    void *owner;
    rk_peer *table;   /* options.links + 1 of them; 0 is unused */
    rk_bmap *by_name; /* decode: bootstrap host and port -> rk_peer */
    rk_list links;    /* all streams */
    rk_link *kicks;   /* to be kicked when the lock is let go */
    uint32_t due[64]; /* peers to be dialled when the lock is let go */
    uint32_t due_count;
    uint64_t second_ms;    /* dials per second: when this one began … */
    uint32_t second_dials; /* … and how many there have been in it */
    bool named;            /* the configured ones are in the table */
    bool stalled;          /* our engine is, or was when its state changed last */
    bool stopped;
    rk_peers_counts counts;
};

/* Threads read the clock before they take the lock, so `now` may be a little earlier than what is noted. */
static inline uint64_t rk_since(uint64_t now, uint64_t then) {
    return now > then ? now - then : 0;
}

/* ---- peers.c ---- */

void rk_peers_enter(rk_peers *peers);
/* Lets go, then dials and kicks what is due and carries `fx` out (NULL: nothing). */
void rk_peers_leave(rk_peers *peers, rk_effects *fx);
uint32_t rk_peer_number(const rk_peers *peers, const rk_peer *peer);
void rk_peer_move(rk_peer *peer, rk_peer_phase phase, uint64_t now);
/* A free place, or that of a peer that nobody would miss; NULL: the table is full of others. */
rk_peer *rk_peer_new(rk_peers *peers, uint64_t now, rk_effects *fx);
void rk_peer_forget(rk_peers *peers, rk_peer *peer);
rk_peer *rk_peer_by_name(const rk_peers *peers, const char *host, int32_t port);
rk_peer *rk_peer_by_instance(const rk_peers *peers, const uint8_t instance[RK_INSTANCE_BYTES]);
/* All names of `from` are `to`'s from now on. */
void rk_peer_fold(rk_peers *peers, rk_peer *from, rk_peer *to);
/* A dial, or the stream that it gave, has come to nothing. */
void rk_peer_dial_ended(rk_peers *peers, rk_peer *peer, uint64_t now, rk_dial_end end, const char *why,
                        rk_effects *fx);
/* The link that was up is gone. */
void rk_peer_lose(rk_peers *peers, rk_peer *peer, uint64_t now, const char *why, bool in_order,
                  rk_effects *fx);

/* ---- link.c ---- */

void rk_link_kick(rk_peers *peers, rk_link *link);
/* Takes it off its peer; the transport ends the stream with this status. */
void rk_link_end(rk_peers *peers, rk_link *link, rk_code code, const char *why);
/* Appends a room; false: too much is waiting already. */
bool rk_link_add_room(rk_link *link, const rk_room_news *news);
void rk_link_drop_chunks(rk_link *link);

#endif
