/* What the files of the rpc layer share: the servicer, its pollers, its calls.
 *
 * Threads. A *poller* owns a completion queue and every call bound to it; only it starts batches on them and
 * reads or writes their state, unless a field says otherwise. Everybody else posts to it. The *acceptor* owns
 * the plaintext listeners, the *clock* the deadlines. Engine threads come in through the sink.
 *
 * Locks, none of them held while calling out: the ledger's own; `calls_lock` (handle → call); `watch_lock`
 * (health watchers); `query_lock` (questions to the engine); `engine_lock` (what the engine last said).
 * `gate` is a read-write lock that engine threads hold (shared) while inside the sink, so that stop can wait
 * until they are out.
 */
#ifndef RK_RPC_INTERNAL_H
#define RK_RPC_INTERNAL_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/log.h"
#include "base/map.h"
#include "base/queue.h"
#include "dialects/dialect.h"
#include "roomkeeper/servicer.h"
#include "rpc/tls.h"

#if defined(__SANITIZE_THREAD__)
#define RK_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RK_TSAN 1
#endif
#endif
#ifdef RK_TSAN
/* gRPC core is not instrumented: tell the sanitizer that a batch happens before its completion. */
void __tsan_release(void *address);
void __tsan_acquire(void *address);
#define RK_HANDS_OVER(tag) __tsan_release(tag)
#define RK_TAKES_OVER(tag) __tsan_acquire(tag)
#else
#define RK_HANDS_OVER(tag) ((void)(tag))
#define RK_TAKES_OVER(tag) ((void)(tag))
#endif

typedef struct rk_poller rk_poller;
typedef struct rk_call rk_call;
typedef struct rk_acceptor rk_acceptor;
typedef struct rk_connection rk_connection;
struct rk_links;

/* The tag of a completion: what to run on the poller when it arrives. */
typedef struct rk_tag {
    void (*run)(struct rk_tag *tag, rk_poller *poller, bool ok);
} rk_tag;

/* Work for a poller from another thread (or from itself, for later in the same turn). */
typedef struct rk_post {
    rk_qnode node; /* must stay first: the queue hands it back */
    void (*run)(struct rk_post *post, rk_poller *poller);
} rk_post;

/* Calls that have something to write, by rk_call.due_next. Poller thread. */
typedef struct rk_due_list {
    rk_call *first;
    rk_call *last;
} rk_due_list;

#define RK_CORKED_MAX 16

struct rk_poller {
    rk_servicer *servicer;
    grpc_completion_queue *queue;
    pthread_t thread;
    bool started;    /* the thread is there to be joined */
    rk_queue inbox;  /* posts of other threads */
    rk_tag wake;     /* of the empty batches that say: look into the inbox */
    rk_qnode *first; /* posts of this poller to itself, oldest first */
    rk_qnode *last;
    rk_buf scratch; /* encoders write here, then it is copied into a slice */
    /* The burst at the end of a turn: burst.c. */
    rk_due_list due;
    rk_due_list held;                     /* those that wrote a moment ago */
    uint64_t held_until_us;               /* when to look at them again */
    uint64_t now_us;                      /* when the burst began */
    unsigned turn_events;                 /* completions since the last burst */
    uint64_t turn_began_us;               /* when the first of them had been handled */
    rk_connection *corked[RK_CORKED_MAX]; /* one reference each */
    size_t corked_count;
    uint64_t corked_us; /* when the first of them was corked */
    bool rested;        /* nothing has been submitted since it last had nothing to do */
    bool steps_aside;   /* at the end of this turn, which is now */
};

/* ---- methods ---- */

typedef struct rk_method_def {
    const char *path;  /* "/package.Service/Method" */
    bool reads_itself; /* the handler reads its messages (bidirectional streams) */
    size_t call_size;  /* bytes of the call struct, which begins with rk_call */
    /* Poller thread. The call has one reference, the handler's. `bytes` is NULL when the client sent no
     * message. */
    void (*handle)(rk_call *call, const uint8_t *bytes, size_t size);
    rk_method method; /* of a dialect; RK_METHODS for the others */
} rk_method_def;

/* ---- calls ---- */

struct rk_call {
    _Atomic uint32_t refs; /* one per batch in flight, post, table entry, or owner */
    rk_servicer *servicer;
    rk_poller *poller;
    const rk_method_def *method; /* NULL: a method nobody serves */
    const grpc_slice *message;   /* the bytes that `handle` is given, while it runs; NULL: there are none */
    grpc_call *grpc;
    const grpc_metadata_array *metadata; /* what came with it; only while `handle` runs, NULL later */
    rk_connection *connection;           /* for corking; NULL: not one of ours; one reference */
    rk_tag closed_tag;
    int cancelled;                    /* filled by gRPC core for closed_tag */
    void (*on_closed)(rk_call *call); /* the client has gone or the call is over; may be NULL */
    void (*destroy)(rk_call *call);   /* what the subtype holds; may be NULL */
    bool ended;                       /* its status has been handed to gRPC core, or it was cancelled */
    void (*write)(rk_call *call);     /* its part of a burst; NULL: it is never due */
    rk_call *due_next;
    bool due;               /* in one of the poller's lists, with a reference */
    uint64_t hold_until_us; /* no write before */
};

/* How long a call's next write waits for more, at least: far below the time of an engine's step. */
#define RK_CALL_APART_US 1000

rk_call *rk_call_ref(rk_call *call);
void rk_call_unref(rk_call *call);
/* Arms closed_tag. Once, first thing. */
void rk_call_watch_close(rk_call *call);
/* Poller thread. One message, then OK; or a status alone, before headers. The call's last words. */
void rk_call_reply(rk_call *call, const rk_buf *message);
void rk_call_fail(rk_call *call, const rk_status *status);
/* A batch with `tag`, counted by a reference that its tag->run must drop. */
void rk_call_batch(rk_call *call, const grpc_op *ops, size_t count, rk_tag *tag);
grpc_byte_buffer *rk_call_message(const rk_buf *message);
/* Any thread: run `post` on the call's poller. The post keeps what it needs alive. */
void rk_call_post(rk_call *call, rk_post *post, rk_poller *self);

/* ---- pollers ---- */

int rk_pollers_start(rk_servicer *servicer, char error[RK_ERROR_MAX]);
void rk_pollers_stop(rk_servicer *servicer); /* shuts the queues down and joins */
void rk_poller_post_local(rk_poller *poller, rk_post *post);
/* Arms one accept for every method on every poller. */
int rk_accept_all(rk_servicer *servicer);

/* ---- bursts: burst.c. Poller thread ---- */

/* The call's `write` is to run at the end of this turn, or a moment later. */
void rk_burst_add(rk_call *call);
/* A request has just been submitted to the engine: without room links the first one since a rest ends the
 * turn. */
void rk_burst_submitted(rk_poller *poller);
/* A completion has been handled. True: it was the turn's last, so write. */
bool rk_burst_turn_over(rk_poller *poller);
void rk_burst_write(rk_poller *poller);
/* No completion is left. False: something was written, so look again. */
bool rk_burst_idle(rk_poller *poller);
/* Forgets what is due: the queue has been shut down, and all calls are over. */
void rk_burst_drop(rk_poller *poller);

/* ---- Generate ---- */

extern const rk_method_def rk_health_methods[];
extern const size_t rk_health_method_count;
extern const rk_method_def rk_reflection_methods[];
extern const size_t rk_reflection_method_count;
/* Fills and returns `def`; its path comes from the dialect. */
const rk_method_def *rk_dialect_method(rk_method method, rk_method_def *def);

/* Generate, as the effects and the sink see it. */
typedef struct rk_generate rk_generate;
void rk_generate_handle(rk_call *call, const uint8_t *bytes, size_t size);
size_t rk_generate_size(void);
rk_call *rk_generate_call(rk_generate *generate);
enum { RK_POSTED_OPEN = 1u, RK_POSTED_ADMIT = 2u, RK_POSTED_END = 4u };
/* Any thread. Hands an effect to the call's poller; takes no reference of the caller's. */
void rk_generate_post_effect(rk_generate *generate, const rk_effect *effect, rk_poller *self);
/* Poller thread: one output, already copied; the bytes it points to live until the return. */
void rk_generate_output(rk_generate *generate, const rk_output *output);
/* Engine thread, under calls_lock: true the first time. */
bool rk_generate_first_output(rk_generate *generate);

/* What only the engine can do: asked.c, tokenizer.c. */
void rk_flush_cache_handle(rk_call *call, const uint8_t *bytes, size_t size);
void rk_start_profile_handle(rk_call *call, const uint8_t *bytes, size_t size);
void rk_stop_profile_handle(rk_call *call, const uint8_t *bytes, size_t size);
size_t rk_asked_size(void);
void rk_tokenizer_handle(rk_call *call, const uint8_t *bytes, size_t size);
size_t rk_tokenizer_size(void);

void rk_encode_handle(rk_call *call, const uint8_t *bytes, size_t size);
/* KV events: kv_call.c. */
void rk_kv_handle(rk_call *call, const uint8_t *bytes, size_t size);
size_t rk_kv_call_size(void);
int rk_kv_new(rk_servicer *servicer, char error[RK_ERROR_MAX]); /* no feed where there is no publisher */
int rk_kv_start(rk_servicer *servicer);
void rk_kv_tick(rk_servicer *servicer); /* heartbeats, and who takes nothing. Clock thread */
void rk_kv_end(rk_servicer *servicer);  /* ends all subscriptions; also those that come later */
void rk_kv_stop(rk_servicer *servicer); /* the feed's thread; the last call has been freed */
void rk_kv_free(rk_servicer *servicer);
typedef struct rk_kv_hub_counts {
    uint64_t subscribers;
    uint64_t slow; /* ended because they did not read */
} rk_kv_hub_counts;
struct rk_kv_feed *rk_kv_hub_read(const rk_servicer *servicer, rk_kv_hub_counts *counts); /* NULL: no feed */

/* ---- loads ---- */

void rk_load_fill(rk_servicer *servicer, rk_load_row *row, const rk_rank_counts *counts, uint32_t held,
                  uint64_t now);
bool rk_load_read(rk_servicer *servicer, uint32_t rank, uint64_t now, rk_load_row *row);

void rk_unary_handle(rk_call *call, const uint8_t *bytes, size_t size);

/* ---- effects and the ledger ---- */

/* Carries effects out, then goes on pumping until nothing is pending. `self` is the calling poller or NULL.
 */
void rk_effects_run(rk_servicer *servicer, rk_effects *fx, rk_poller *self);

/* The call of a handle with a reference, or NULL. */
rk_generate *rk_calls_find(rk_servicer *servicer, uint64_t handle);
int rk_calls_add(rk_servicer *servicer, uint64_t handle, rk_generate *generate); /* takes a reference */
void rk_calls_remove(rk_servicer *servicer, uint64_t handle);                    /* drops it */

/* ---- engine state, health, questions ---- */

/* Asks the engine; the answer, or its absence after `timeout_ms`, comes as `on_answer` on the call's poller.
 * `answer` is NULL when there is none, and freed afterwards. */
void rk_query_ask(rk_call *call, rk_query query, const rk_value *argument, uint64_t timeout_ms,
                  void (*on_answer)(rk_call *call, const rk_value *answer));
/* As above, for what is asked by another function than ops->query: `ask` gives it to the engine under this
 * id, before the return. -errno: the engine did not take it. */
void rk_query_post(rk_call *call, uint64_t timeout_ms,
                   int (*ask)(rk_servicer *servicer, uint64_t query_id, const void *what), const void *what,
                   void (*on_answer)(rk_call *call, const rk_value *answer));
void rk_query_expire(rk_servicer *servicer, uint64_t now); /* UINT64_MAX: all of them */

/* What an answer says that the call as a whole fails with; false: it says something else. */
bool rk_answer_is_failure(const rk_value *answer, rk_status *status);

typedef struct rk_engine_view {
    rk_engine_state state; /* with STALLED derived from missing beats */
    uint64_t silent_ms;    /* since the last beat or push */
    uint64_t heard_ms;     /* since the scheduler was last heard of (outputs, loads); UINT64_MAX: never */
    char why[128];
} rk_engine_view;
void rk_engine_look(rk_servicer *servicer, uint64_t now, rk_engine_view *view);

bool rk_is_serving(rk_servicer *servicer);
/* RK_OK when it serves; else the one line that a client reads, and why. */
rk_code rk_state_refusal(rk_servicer *servicer, rk_status *status);
/* Recomputes it, tells watchers, ends calls of a dead engine. Any thread. */
void rk_health_update(rk_servicer *servicer, uint64_t now);
void rk_watchers_end(rk_servicer *servicer);

int rk_clock_start(rk_servicer *servicer);
void rk_clock_stop(rk_servicer *servicer);

/* ---- listeners ---- */

rk_acceptor *rk_acceptor_new(rk_servicer *servicer);
/* Binds; the port or -errno with a line in `error`. */
int rk_acceptor_listen(rk_acceptor *acceptor, const char *host, const char *port, const char *shown,
                       char error[RK_ERROR_MAX]);
int rk_acceptor_start(rk_acceptor *acceptor);
void rk_acceptor_stop(rk_acceptor *acceptor);    /* no new connections; open ones go on */
void rk_acceptor_hang_up(rk_acceptor *acceptor); /* shuts the open ones: gRPC core then drops them */
void rk_acceptor_drop(rk_acceptor *acceptor); /* our side of all connections, once gRPC core's are closed */
void rk_acceptor_free(rk_acceptor *acceptor); /* after the server is gone */
/* By gRPC core's peer name, with a reference; NULL: not one of ours. */
rk_connection *rk_acceptor_connection(rk_acceptor *acceptor, const char *peer);
rk_connection *rk_connection_ref(rk_connection *connection);
void rk_connection_unref(rk_connection *connection);
void rk_connection_cork(rk_connection *connection, bool on);
/* A connection as one poller sees it. */
typedef struct rk_cork {
    uint32_t writes; /* of the burst that is being put together */
    bool on;         /* this poller has corked it */
} rk_cork;
rk_cork *rk_connection_mark(rk_connection *connection, const rk_poller *poller); /* that poller's thread */

/* ---- what a worker says of itself ---- */

typedef struct rk_info rk_info;
rk_info *rk_info_new(const rk_worker_info *info); /* a deep copy; NULL: out of memory */
void rk_info_free(rk_info *info);
const rk_worker_info *rk_info_get(const rk_info *info);
/* GetServerInfo's Structs as they are now; the caller frees them. NULL: out of memory. */
rk_value *rk_info_server_args(rk_servicer *servicer);
rk_value *rk_info_scheduler(rk_servicer *servicer);

/* ---- metrics over HTTP: scrape.c ---- */

int rk_scrape_listen(rk_servicer *servicer, const char *host, const char *port, const char *shown,
                     char error[RK_ERROR_MAX]);
int rk_scrape_start(rk_servicer *servicer);
void rk_scrape_stop(rk_servicer *servicer); /* a servicer without one is fine */

/* One line for a client: why its leg ended or was refused. */
void rk_cause_text(rk_cause cause, rk_cause twin_cause, const rk_verdict *numbers, const rk_config *config,
                   rk_status *status);

/* ---- the servicer ---- */

typedef enum rk_life { RK_LIFE_NEW, RK_LIFE_RUNNING, RK_LIFE_STOPPED } rk_life;

typedef struct rk_unix_path {
    rk_list link;
    char path[108];
} rk_unix_path;

struct rk_servicer {
    pid_t pid; /* who made it; a forked child keeps its hands off */
    rk_config config;
    rk_info *info;
    const rk_dialect *dialect;
    const rk_engine_ops *ops;
    void *engine;
    rk_ledger *ledger;
    rk_ledger_options rooms; /* as the ledger was made */
    rk_limits limits;
    rk_log log;
    size_t max_message_bytes;
    uint64_t start_ms;     /* monotonic */
    int64_t start_seconds; /* Unix time */

    pthread_mutex_t life_lock;
    rk_life life; /* under life_lock */

    grpc_server *server;
    rk_poller *pollers;
    unsigned poller_count;
    rk_method_def *methods; /* all that are registered */
    void **registered;      /* gRPC core's handles of them */
    size_t method_count;
    rk_acceptor *acceptor;
    struct rk_scrape *scrape; /* NULL: metrics are not served by HTTP */
    struct rk_links *links;   /* NULL: no room of this worker is ever linked */
    rk_tls tls;
    struct rk_kv_hub *kv; /* who subscribes to KV events; NULL: the engine publishes none */
    rk_list unix_paths;

    pthread_rwlock_t gate;
    bool closed; /* under gate: the sink does nothing any more */
    _Atomic bool draining;
    _Atomic uint64_t live_calls; /* structs that are not freed yet */
    _Atomic uint64_t open_generates;
    _Atomic uint64_t bad_traces; /* calls whose traceparent was none */

    pthread_mutex_t calls_lock;
    rk_map *calls; /* handle → rk_generate */

    pthread_mutex_t watch_lock;
    rk_list watchers; /* rk_watch.link */
    _Atomic int serving;

    pthread_mutex_t query_lock;
    rk_list queries;
    uint64_t next_query;

    pthread_mutex_t engine_lock;
    rk_engine_state engine_state;
    char engine_why[128];
    _Atomic uint64_t beat_ms;  /* last beat or push */
    _Atomic uint64_t heard_ms; /* last output or load; 0: never */
    rk_engine_load *loads;
    size_t load_count;
    uint64_t loads_ms; /* when they came; 0: never */
    char *weight_version;
    bool silent_told; /* the open calls of an engine that is silent for dead_seconds have been ended */
    bool gone_told;   /* and of one whose process has ended */

    pthread_t clock_thread;
    pthread_mutex_t clock_lock;
    pthread_cond_t clock_wake;
    bool clock_running;
    bool clock_stop;
};

/* Inside the sink: false when the servicer has closed (nothing is held then). */
bool rk_gate_enter(rk_servicer *servicer);
void rk_gate_leave(rk_servicer *servicer);

#endif
