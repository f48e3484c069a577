/* What the files of the feed share. Everything but what `lock` guards is the feed thread's. */
#ifndef RK_KV_FEED_INTERNAL_H
#define RK_KV_FEED_INTERNAL_H

#include <pthread.h>
#include <zmq.h>

#include "kv_feed/feed.h"

#define RK_KV_BURST 256 /* messages of a rank before the others' turn */

typedef struct rk_kv_source {
    rk_kv_feed *feed;
    uint32_t rank;
    char endpoint[256];
    char replay[256]; /* "": none */
    void *sub;
    void *monitor;        /* of sub */
    void *dealer;         /* NULL: no replay is under way */
    bool first;           /* no batch has been answered yet */
    bool asked_all;       /* from number 0 */
    uint64_t deadline_ms; /* of the answer */
    uint64_t check_ms;    /* ask once more then; 0: no need */
    bool holds;           /* `held` is a batch that waits for those before it */
    uint64_t held_number;
    zmq_msg_t held;
    uint64_t warned_ms; /* the last line about what was malformed */
    uint64_t warned_count;
    /* under lock */
    rk_kv_rank *batches;
    rk_kv_feed_counts counts;
} rk_kv_source;

struct rk_kv_feed {
    rk_kv_feed_options options;
    char topic[256];
    void *context;
    int wake; /* eventfd: stop */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    rk_kv_source *sources;
    zmq_pollitem_t *items; /* wake, then sub, monitor and dealer of each source */
    bool news;
};

/* The frames of one message, the caller's to close; how many it had (those beyond `max` are dropped), -1:
 * there is none. */
int rk_kv_receive(void *socket, zmq_msg_t frames[], int max);
bool rk_kv_read_number(zmq_msg_t *frame, uint64_t *number); /* eight bytes, big-endian */

/* Feed thread. A batch that has come on the SUB socket; it takes over `payload` if it keeps it. */
void rk_kv_source_live(rk_kv_source *source, uint64_t number, zmq_msg_t *payload);
void rk_kv_source_connected(rk_kv_source *source, bool connected);
void rk_kv_replay_read(rk_kv_source *source);
void rk_kv_replay_tick(rk_kv_source *source, uint64_t now);
void rk_kv_source_malformed(rk_kv_source *source, const char *what);
void rk_kv_source_close(rk_kv_source *source);

#endif
