/* The peers of a worker and the links to them: who is there, who is dialled when, what is said and believed.
 *
 * No I/O here. A *transport* opens streams, brings bytes, takes bytes and says when a stream is over; the
 * ledger gets the events; `now` is an argument (ms, any monotonic clock). So tests run two workers against
 * each other without sockets, threads or sleeping.
 *
 * Any thread may call anything; one mutex guards all of it. It is never held while an op below is called, but
 * for `hold`; the ledger's own is taken within it.
 */
#ifndef RK_PEER_PEERS_H
#define RK_PEER_PEERS_H

#include "base/list.h"
#include "base/log.h"
#include "peer/addresses.h"
#include "peer/frame.h"
#include "peer/proof.h"

typedef struct rk_peers rk_peers;

/* What the transport and the servicer do for us. */
typedef struct rk_peers_ops {
    /* Connects to a peer, then rk_link_open, or rk_peers_dial_failed. `trusted`: configured by the operator,
     * so the address need not be in an allowed network. */
    void (*dial)(void *owner, uint32_t peer, const char *host, int32_t port, bool trusted);
    /* A reference to the stream, for a kick that follows. Must do nothing else. */
    void (*hold)(void *stream);
    /* rk_link_next has something, or rk_link_is_over. Drops the reference. */
    void (*kick)(void *stream);
    /* Carries ledger effects out; with fx->tells also rk_peers_tell. */
    void (*effects)(void *owner, rk_effects *fx);
    rk_link_engine (*engine)(void *owner);
} rk_peers_ops;

typedef struct rk_peers_options {
    rk_link_role role;
    uint32_t window; /* for the hello */
    bool releases;   /* there is a release agent */
    uint32_t links;  /* peers at a time */
    uint32_t dials_per_second;
    uint32_t heartbeat_ms;
    int64_t peer_port;           /* as the configuration has it: -1 for the rule */
    rk_peer_addresses addresses; /* taken over */
    rk_token token;
} rk_peers_options;

/* NULL: out of memory or of random numbers; `options->addresses` is freed then too. `ledger`, `log` and
 * `owner` outlive it; ledger options: peers = links + 1, tells_apart. */
rk_peers *rk_peers_new(rk_peers_options *options, rk_ledger *ledger, const rk_log *log,
                       const rk_peers_ops *ops, void *owner);
void rk_peers_free(rk_peers *peers); /* NULL is fine; no stream may be left */

/* ---- peers ---- */

/* Decode: the peer that prefills for this room, dialled if it is time for that. 0: none, serve it unlinked.
 */
uint32_t rk_peers_of_room(rk_peers *peers, uint64_t now, const rk_room *room);
/* Dials what is due, sends heartbeats, gives up links that are silent. Every 100 ms or oftener. */
void rk_peers_tick(rk_peers *peers, uint64_t now);
/* Takes from the ledger what twins are to be told. */
void rk_peers_tell(rk_peers *peers, uint64_t now);
/* A new engine state is said at once. */
void rk_peers_engine_changed(rk_peers *peers, uint64_t now);
/* Goodbye on every link; then they are over, and nothing is dialled or accepted any more. */
void rk_peers_stop(rk_peers *peers, uint64_t now);
/* Some peer does not take its goodbye: all links are over now. */
void rk_peers_abandon(rk_peers *peers);

/* Why a dial came to nothing. */
typedef enum rk_dial_end {
    RK_DIAL_FAILED,    /* no answer, no route, no such name, … */
    RK_DIAL_REFUSED,   /* the host itself says that nobody listens: proof that the worker is gone */
    RK_DIAL_GONE,      /* nor does anybody at the bootstrap server's port: no prefill runs there at all */
    RK_DIAL_FORBIDDEN, /* its address is in no allowed network */
} rk_dial_end;
void rk_peers_dial_failed(rk_peers *peers, uint64_t now, uint32_t peer, rk_dial_end end, const char *why);

/* ---- links: one for each stream ---- */

typedef enum rk_link_phase {
    RK_LINK_HELLO, /* waits for the other side's hello */
    RK_LINK_BEGIN, /* waits for the other side's Begin */
    RK_LINK_UP,
    RK_LINK_OVER,
} rk_link_phase;

/* Part of the transport's stream, which frees it after rk_link_closed. All fields are ours. */
typedef struct rk_link {
    void *stream;
    rk_list link;         /* in peers->links */
    struct rk_link *next; /* while it waits for its kick */
    bool kicked;
    bool dialled;
    rk_link_phase phase;
    uint32_t peer; /* 0: not known yet */
    uint64_t opened_ms;
    uint64_t heard_ms;
    uint64_t said_ms;
    rk_hello mine;
    rk_hello theirs;
    rk_link_engine engine; /* theirs, as heard last */
    bool stalled;          /* their engine is: legs have been ended */
    bool goodbye;          /* they have said it */
    bool hello_due;
    bool begin_due;
    bool back_due; /* a heartbeat that comes before what is told: our engine is back */
    bool beat_due;
    bool goodbye_due;
    rk_list chunks; /* rooms to be told, in frames' worth */
    uint32_t chunk_count;
    rk_status over; /* why; the status for the other side */
    char remote[64];
} rk_link;

/* Decode: a stream to the peer is there. False: nobody wants it any more; close it. */
bool rk_link_open(rk_peers *peers, uint64_t now, rk_link *link, uint32_t peer, void *stream,
                  const char *remote);
/* Prefill: somebody has opened a stream. False: refused, with the status to give in link->over. */
bool rk_link_accept(rk_peers *peers, uint64_t now, rk_link *link, void *stream, const char *remote);
/* The transport has turned somebody away: counted and logged. */
void rk_peers_refused(rk_peers *peers, const char *remote, const char *why);
/* A message has come. */
void rk_link_received(rk_peers *peers, uint64_t now, rk_link *link, const uint8_t *bytes, size_t size);
/* The next message to send: true, appended to `out`. One at a time, when the last one has been written. */
bool rk_link_next(rk_peers *peers, uint64_t now, rk_link *link, rk_buf *out);
/* To be ended, with the status to give; once rk_link_next has nothing more. */
bool rk_link_is_over(rk_peers *peers, rk_link *link, rk_status *status);
/* The stream is over: nothing here knows it any more. `code` and `why` as the other side gave them. */
void rk_link_closed(rk_peers *peers, uint64_t now, rk_link *link, rk_code code, const char *why);

/* ---- what an operator sees ---- */

typedef enum rk_peer_phase {
    RK_PEER_IS_ABSENT,   /* does not speak the link, or cannot be reached: its rooms are served unlinked */
    RK_PEER_IS_DIALLING, /* being connected to, or waiting for its hello */
    RK_PEER_IS_UP,
    RK_PEER_IS_LOST, /* was up; dialled again (decode), or expected to dial (prefill) */
} rk_peer_phase;

typedef struct rk_peer_row {
    uint32_t number;
    char name[RK_ROOM_HOST_MAX + 8];    /* decode: "bootstrap_host:port"; prefill: where it dialled from */
    char address[RK_ROOM_HOST_MAX + 8]; /* of the link, as dialled or as seen */
    char instance[2 * RK_INSTANCE_BYTES + 1]; /* "" while not known */
    char release[32];
    rk_peer_phase phase;
    rk_link_engine engine;
    bool releases;
    uint64_t since_ms; /* in this phase */
    uint64_t ups;      /* times that the link came up */
    uint64_t told;     /* room states sent */
    uint64_t heard;    /* room states taken */
    uint64_t refused;  /* room states refused */
    char why[160];     /* why it is absent or lost; "" otherwise */
} rk_peer_row;

typedef struct rk_peers_counts {
    uint32_t known; /* peers in the table */
    uint32_t up;
    uint64_t dials;
    uint64_t dials_failed;
    uint64_t streams_refused; /* wrong role, token, network, protocol, too many */
    uint64_t rooms_refused;
    uint64_t lost; /* links that were up and broke */
} rk_peers_counts;

const char *rk_peer_phase_name(rk_peer_phase phase);
/* Fills at most `max` rows; returns how many there are. */
uint32_t rk_peers_read(rk_peers *peers, uint64_t now, rk_peers_counts *counts, rk_peer_row *rows,
                       uint32_t max);
/* The bootstrap server of a peer that is dialled; false: it is not known any more. */
bool rk_peers_bootstrap(rk_peers *peers, uint32_t peer, char host[RK_ROOM_HOST_MAX], int32_t *port);
/* "host:port" of a peer's link for a log line, or "". */
void rk_peers_address(rk_peers *peers, uint32_t peer, char out[RK_ROOM_HOST_MAX + 8]);

#endif
