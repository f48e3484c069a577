/* A dialect turns wire bytes into requests and outputs into wire bytes. One per wire contract.
 *
 * It knows protobuf, not gRPC: bytes in, bytes out, no calls, no threads, no state. The rpc layer picks the
 * dialect by the method's name and never looks inside a message.
 *
 * Encoders append one whole message (no gRPC frame header) to a buffer; check `out->failed` once at the end.
 */
#ifndef RK_DIALECTS_DIALECT_H
#define RK_DIALECTS_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "roomkeeper/engine.h"
#include "roomkeeper/rooms.h"
#include "roomkeeper/servicer.h"
#include "roomkeeper/status.h"

/* What a request is checked against. */
typedef struct rk_limits {
    rk_role role;
    bool rooms;           /* the PD rules apply (false: `--rooms off`, bootstrap info as it comes) */
    uint32_t vocab_size;  /* 0: unchecked */
    uint32_t max_context; /* 0: unchecked; a prompt must be shorter */
    uint32_t ranks;
    uint32_t window;          /* per rank; n above it is refused; 0: unchecked */
    size_t max_message_bytes; /* caps what a decoded message may take in memory: 4 x this + 1 MiB */
} rk_limits;

/* The client's bytes, for a request that would rather keep them than copy: they may be 256 MiB. `keep` gives
 * what `drop` lets go of; NULL: no memory. */
typedef struct rk_keeper {
    void *(*keep)(void *of);
    void (*drop)(void *kept); /* any thread */
    void *of;
} rk_keeper;

/* Told the plain name of a segment of shared memory, NUL-terminated. */
typedef void rk_segment_found(void *context, const char *name);

/* One Chunk, or the token part of a Complete. Positions without alternatives have an empty top entry. */
typedef struct rk_tokens {
    const uint32_t *ids;
    size_t count;
    const float *logprobs;       /* NULL: no logprobs in this message; else `count` of them */
    const uint32_t *logprob_ids; /* `count` of them */
    /* alternatives: position i has top_ends[i] - top_ends[i-1] entries (top_ends[-1] = top_begin) in the two
     * arrays below, which start at entry 0 = absolute index 0. NULL: all empty. */
    const uint32_t *top_ends;
    uint32_t top_begin;
    const float *top_values;
    const uint32_t *top_ids;
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t cached_tokens;
    uint32_t index;             /* the choice */
    const char *weight_version; /* NULL: left out */
} rk_tokens;

typedef struct rk_completion {
    rk_tokens tokens;
    rk_finish finish; /* STOP, LENGTH or ABORT */
    rk_matched matched;
    uint32_t matched_token_id;
    const char *matched_string;
    size_t matched_bytes;
    uint32_t spec_accepted_tokens;
    uint32_t spec_draft_tokens;
} rk_completion;

typedef struct rk_loads_query {
    bool has_rank;
    int32_t rank;
    bool core; /* which parts to include; an empty `include` means all. A rank's counters are always sent:
                  left out they would read as an idle worker */
    bool memory;
    bool queues;
    bool disagg;
} rk_loads_query;

/* One rank as GetLoads reports it. Negative: not known, left out (or 0 where the wire has no presence). */
typedef struct rk_load_row {
    int32_t rank;
    uint32_t running;
    uint32_t waiting;
    uint32_t window;
    rk_engine_load engine;
    uint64_t engine_age_ms; /* of the engine numbers */
    bool engine_fresh;      /* the engine numbers are known and not older than 5 s */
} rk_load_row;

typedef struct rk_server_state {
    const rk_worker_info *info;
    const rk_value *server_args;    /* complete, ready to encode */
    const rk_value *scheduler_info; /* complete, `roomkeeper` included */
    int32_t active_requests;
    bool is_paused;
    double uptime_seconds;
    int64_t start_seconds; /* Unix time */
    const char *weight_version;
} rk_server_state;

/* SubscribeKvEvents. */
typedef struct rk_kv_query {
    uint64_t start;  /* 0: the current state */
    bool load_first; /* load records before the first batch too */
} rk_kv_query;

/* What is said of a load beyond the row. */
typedef struct rk_load_stamp {
    uint64_t sample; /* of the stream, from 1 */
    bool only;       /* the batch carries nothing else */
    bool telemetry;  /* also what no routing looks at */
    uint32_t age_ms; /* of the engine's numbers */
} rk_load_stamp;

/* The RPCs of a generation service, as the rpc layer tells them apart. */
typedef enum rk_method {
    RK_METHOD_GENERATE,
    RK_METHOD_ABORT,
    RK_METHOD_HEALTH_CHECK,
    RK_METHOD_GET_MODEL_INFO,
    RK_METHOD_GET_SERVER_INFO,
    RK_METHOD_GET_LOADS,
    RK_METHOD_FLUSH_CACHE,
    RK_METHOD_START_PROFILE,
    RK_METHOD_STOP_PROFILE,
    RK_METHOD_GET_TOKENIZER,
    RK_METHOD_SUBSCRIBE_KV_EVENTS,
    RK_METHOD_ENCODE, /* of the encode service; served by encode workers alone */
    RK_METHODS,
} rk_method;

typedef struct rk_dialect {
    const char *name;                /* "tokenspeed" */
    const char *service;             /* "tokenspeed.grpc.scheduler.TokenSpeedScheduler" */
    const char *encode_service;      /* that of an encode worker; NULL: this contract has none */
    const char *methods[RK_METHODS]; /* full paths: "/tokenspeed.…/Generate" */

    /* Any thread, all of them; nothing is kept of `bytes`. `bytes` NULL: the client sent no message. */

    /* On RK_OK `*out` is a request with one reference. Its segments are named, not opened. Without a keeper
     * (NULL) nothing of it points into `bytes`. */
    rk_code (*decode_generate)(const uint8_t *bytes, size_t size, const rk_limits *limits,
                               const rk_keeper *keeper, rk_request **out, rk_status *status);
    rk_code (*decode_encode)(const uint8_t *bytes, size_t size, const rk_limits *limits,
                             const rk_keeper *keeper, rk_request **out, int64_t *room, rk_status *status);
    /* The segments that a Generate or an Encode names, as far as its bytes can be read: for one that was
     * refused. A name may be told more than once. */
    void (*each_segment)(const uint8_t *bytes, size_t size, bool encode, rk_segment_found *found,
                         void *context);
    /* The id is written NUL-terminated into `id` (512 bytes at most + NUL). */
    rk_code (*decode_abort)(const uint8_t *bytes, size_t size, char id[513], size_t *id_bytes,
                            rk_status *status);
    /* For requests without fields we read: only checks that the bytes are a message. */
    rk_code (*decode_empty)(const uint8_t *bytes, size_t size, rk_status *status);
    rk_code (*decode_loads)(const uint8_t *bytes, size_t size, rk_loads_query *query, rk_status *status);
    /* On RK_OK `*argument` is the engine's, as RK_QUERY_… describes it; the caller's to free. */
    rk_code (*decode_flush)(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status);
    rk_code (*decode_profile)(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status);

    rk_code (*decode_kv)(const uint8_t *bytes, size_t size, rk_kv_query *query, rk_status *status);

    void (*encode_chunk)(rk_buf *out, const rk_text *request_id, const rk_tokens *tokens);
    void (*encode_complete)(rk_buf *out, const rk_text *request_id, const rk_completion *completion);
    void (*encode_abort)(rk_buf *out, bool success, const char *message);
    void (*encode_outcome)(rk_buf *out, bool success, const char *message); /* FlushCache, profiling */
    /* A piece of the archive; `sha256` NULL but on the last one. */
    void (*encode_tokenizer)(rk_buf *out, const uint8_t *bytes, size_t size, const char *sha256);
    void (*encode_accepted)(rk_buf *out, bool accepted); /* Encode */
    /* The `load` of a KvEventBatch, to be appended to its bytes. */
    void (*encode_kv_load)(rk_buf *out, const rk_load_row *row, const rk_load_stamp *stamp);
    void (*encode_health)(rk_buf *out, bool healthy, const char *message);
    void (*encode_model_info)(rk_buf *out, const rk_worker_info *info, const char *weight_version);
    void (*encode_server_info)(rk_buf *out, const rk_server_state *state);
    void (*encode_loads)(rk_buf *out, const rk_loads_query *query, const rk_load_row *rows, size_t count,
                         uint32_t rank_count, const char *timestamp);
} rk_dialect;

extern const rk_dialect rk_dialect_tokenspeed;

/* ---- beside the dialects: grpc.health.v1 and reflection, in dialects/health.c and reflection.c ---- */

/* The service asked for ("" for the server), NUL-terminated in `service` (256 bytes with the NUL). */
rk_code rk_health_decode(const uint8_t *bytes, size_t size, char service[256], rk_status *status);
typedef enum rk_serving {
    RK_SERVING_UNKNOWN = 0,
    RK_SERVING = 1,
    RK_NOT_SERVING = 2,
    RK_SERVICE_UNKNOWN = 3
} rk_serving;
void rk_health_encode(rk_buf *out, rk_serving serving);
void rk_health_encode_list(rk_buf *out, const char *const *services, size_t count, rk_serving serving);

/* Answers one ServerReflectionRequest (v1 and v1alpha have the same bytes) from the descriptor set built in.
 * `unlisted`: a service that is described but not served here; NULL: all are. */
rk_code rk_reflection_answer(const uint8_t *bytes, size_t size, const char *unlisted, rk_buf *out,
                             rk_status *status);

/* gRPC code of an engine's abort: 400 → INVALID_ARGUMENT, … (CONTRACT). */
rk_code rk_code_of_http(int http_status);

#endif
