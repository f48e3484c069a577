/* The one seam between the servicer and an engine.
 *
 * Down: `rk_engine_ops`, a small table of functions that an engine (the Python bridge, the C stand-in)
 * fills in. Up: the `rk_sink_…` functions, which the engine calls with what it has produced. Requests
 * are neutral: no wire type, no Python in them.
 *
 * Names: a *handle* is the servicer's number for one leg (one Generate call), never reused in a process.
 * A leg with n > 1 choices is n engine requests; choice i of it is (handle, i).
 */
#ifndef ROOMKEEPER_ENGINE_H
#define ROOMKEEPER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roomkeeper/export.h"
#include "roomkeeper/status.h"
#include "roomkeeper/value.h"

typedef struct rk_servicer rk_servicer;

/* ---- what is asked of the engine ---- */

/* Which optional sampling fields the client has set. */
enum {
    RK_HAS_TEMPERATURE = 1u << 0,
    RK_HAS_TOP_P = 1u << 1,
    RK_HAS_TOP_K = 1u << 2,
    RK_HAS_MIN_P = 1u << 3,
    RK_HAS_FREQUENCY_PENALTY = 1u << 4,
    RK_HAS_PRESENCE_PENALTY = 1u << 5,
    RK_HAS_REPETITION_PENALTY = 1u << 6,
    RK_HAS_MAX_NEW_TOKENS = 1u << 7,
    RK_HAS_SEED = 1u << 8,
};

typedef struct rk_text {
    const char *data; /* NUL-terminated UTF-8 */
    size_t bytes;
} rk_text;

typedef struct rk_logit_bias {
    rk_text token; /* the map's key as sent, a decimal token id */
    float bias;
} rk_logit_bias;

typedef enum rk_constraint {
    RK_CONSTRAINT_NONE,
    RK_CONSTRAINT_REGEX,
    RK_CONSTRAINT_JSON_SCHEMA,
    RK_CONSTRAINT_EBNF,
    RK_CONSTRAINT_STRUCTURAL_TAG,
} rk_constraint;

typedef struct rk_sampling {
    uint32_t has; /* RK_HAS_… of what follows */
    float temperature;
    float top_p;
    int32_t top_k;
    float min_p;
    float frequency_penalty;
    float presence_penalty;
    float repetition_penalty;
    uint32_t max_new_tokens;
    uint64_t seed;
    uint32_t min_new_tokens; /* 0: none */
    const rk_text *stop;
    size_t stop_count;
    const uint32_t *stop_token_ids;
    size_t stop_token_id_count;
    bool ignore_eos;
    bool skip_special_tokens;
    bool spaces_between_special_tokens;
    bool no_stop_trim;
    const rk_logit_bias *logit_bias;
    size_t logit_bias_count;
    rk_constraint constraint;
    rk_text constraint_text;
    const rk_value *custom_params; /* a map, or NULL */
} rk_sampling;

/* ---- multimodal inputs ---- */

/* The numbers of smg.grpc.common.Modality. */
typedef enum rk_modality {
    RK_MODALITY_IMAGE = 1,
    RK_MODALITY_AUDIO = 2,
    RK_MODALITY_VIDEO = 3,
} rk_modality;

/* Where a tensor's bytes are. */
typedef enum rk_payload {
    RK_PAYLOAD_HERE,   /* in this process, inline or in a segment of shared memory: rk_request_read_tensor */
    RK_PAYLOAD_REMOTE, /* on another host, to be fetched by the engine's side */
} rk_payload;

typedef struct rk_tensor {
    const uint32_t *shape; /* dims of them; 0 dims: one element */
    size_t dims;
    const char *dtype; /* as numpy and torch call it: "bfloat16". Static */
    size_t nbytes;     /* of shape and dtype, and of the payload */
    rk_payload payload;
    const uint8_t *bytes; /* HERE: inline, or NULL: nbytes from `offset` on in segments[segment] */
    size_t segment;
    uint64_t offset;
    rk_text transport;         /* REMOTE: "nixl", or empty for the usual one */
    const uint8_t *descriptor; /* REMOTE: what the transport makes of it */
    size_t descriptor_bytes;
} rk_tensor;

typedef struct rk_named_tensor {
    rk_text name;
    rk_tensor tensor;
} rk_named_tensor;

/* Positions of the prompt that an item's embedding takes the place of. */
typedef struct rk_placeholder {
    uint32_t offset;
    uint32_t length; /* > 0 */
} rk_placeholder;

typedef struct rk_media {
    rk_modality modality;
    const uint8_t *content_hash;
    size_t content_hash_bytes; /* 0: none was given */
    bool has_encoder_input;
    rk_tensor encoder_input;
    const rk_named_tensor *tensors; /* names differ */
    size_t tensor_count;
    const rk_placeholder *placeholders;
    size_t placeholder_count; /* > 0 */
    bool has_token_id;        /* the prompt's token at these positions is known */
    uint32_t token_id;
    bool has_encoder; /* an encode worker makes the embedding; it is met as the three that follow say */
    rk_text encoder_host;
    int32_t encoder_port;
    int64_t encoder_room;
} rk_media;

/* A file under /dev/shm. Named by the client; opened and removed before anybody else sees the request. */
typedef struct rk_segment {
    rk_text name;
    uint64_t size; /* bytes that the tensors need of it */
} rk_segment;

/* One Generate call, decoded and checked. Immutable and shared: hold it by rk_request_ref, from any
 * thread; everything it points to lives as long as it does. */
typedef struct rk_request {
    rk_text request_id; /* as on the wire */
    const uint32_t *input_ids;
    size_t input_count; /* > 0 */
    rk_sampling sampling;
    uint32_t n; /* choices, >= 1 */
    bool stream;
    bool return_logprob;
    int32_t logprob_start_len; /* -1: no prompt logprobs */
    int32_t top_logprobs_num;
    const uint32_t *token_ids_logprob;
    size_t token_id_logprob_count;
    bool has_bootstrap; /* the three that follow are set */
    rk_text bootstrap_host;
    int32_t bootstrap_port;
    int64_t bootstrap_room;
    bool has_rank; /* the client pins a data-parallel rank */
    int32_t rank;
    const rk_media *media;
    size_t media_count;
    const rk_segment *segments; /* that tensors of `media` are in; names differ */
    size_t segment_count;
} rk_request;

RK_API rk_request *rk_request_ref(rk_request *request);
RK_API void rk_request_unref(rk_request *request); /* NULL is fine */
/* Copies a tensor's bytes (RK_PAYLOAD_HERE; nbytes of them). 0, -ENODATA: its segment has become shorter, or
 * the payloads have been dropped; or another -errno. The engine's side only, one thread at a time. */
RK_API int rk_request_read_tensor(const rk_request *request, const rk_tensor *tensor, void *bytes);
/* Lets go of what the tensors' bytes are in, which is much memory, while the request lives on. Again is fine.
 * As above; not while one is read. */
RK_API void rk_request_drop_payloads(rk_request *request);

/* An Encode call: an rk_request with a request_id (maybe empty) and one rk_media, nothing else set. */
typedef struct rk_encode {
    uint64_t query_id;   /* what rk_sink_answer names */
    rk_request *request; /* the callee refs it if it keeps it */
    int64_t room;        /* where a prefill asks for the embedding */
} rk_encode;

/* A leg on its way into the engine. */
typedef struct rk_submission {
    uint64_t handle;
    rk_request *request;   /* the callee refs it if it keeps it */
    const char *engine_id; /* "<request_id>~<counter>": what the engine calls it; a choice of n > 1 appends
                              "-n<i>". Valid during the call only. */
    int32_t rank;          /* the DP rank the ledger chose; -1: leave it to the engine */
} rk_submission;

#define RK_ALL_CHOICES UINT32_MAX

/* A question the engine answers with rk_sink_answer, sooner, later or never. */
typedef enum rk_query {
    RK_QUERY_PROBE,     /* generate one token; answer: bool */
    RK_QUERY_IS_PAUSED, /* answer: bool */
    /* The three that follow are answered by an outcome: a map of `success` (bool) and `message` (text); or,
     * when the call as a whole fails, of `code` (number: an rk_code) and `message`. */
    RK_QUERY_FLUSH_CACHE,   /* argument: a map of `timeout_s` (number): how long the engine may take to become
                               idle */
    RK_QUERY_START_PROFILE, /* argument: a map of the fields of StartProfileRequest that were set */
    RK_QUERY_STOP_PROFILE,
    /* Answer: a map of `fd` (number: a file with the whole archive, readable until the process ends), `size`
     * (bytes) and `sha256` (text, lower-case hex); or of `code` and `message`. */
    RK_QUERY_TOKENIZER,
    RK_QUERIES,
} rk_query;

RK_API const char *rk_query_name(rk_query query); /* "flush_cache"; static */

/* Every function is called from any thread, with no lock of the servicer held, and must not block:
 * it queues. None is called after rk_servicer_stop has returned. */
typedef struct rk_engine_ops {
    /* 0, or -errno: then the leg ends UNAVAILABLE. Outputs come by rk_sink_push. */
    int (*submit)(void *engine, const rk_submission *submission);
    /* Ends one choice, or all (RK_ALL_CHOICES). At most once per engine request. The engine answers
     * rk_sink_aborted once it has taken note; it need not push a final output. */
    void (*abort)(void *engine, uint64_t handle, uint32_t choice);
    /* NULL: this engine answers no questions. -errno: not this one. `argument` is NULL where the question has
     * none, and valid during the call only. */
    int (*query)(void *engine, rk_query query, uint64_t query_id, const rk_value *argument);
    /* Ends the room in the scheduler processes (the release agent); rk_sink_released once the engine has
     * let go. NULL: there is no agent, only `abort`. */
    int (*release_room)(void *engine, uint64_t handle, const char *bootstrap_host, int32_t bootstrap_port,
                        int64_t room, const char *reason);
    /* Takes an item to encode; answered by rk_sink_answer with an outcome, `success` once the engine has it.
     * NULL: not an engine that encodes. */
    int (*encode)(void *engine, const rk_encode *encode);
} rk_engine_ops;

/* ---- what the engine says ---- */

typedef enum rk_finish {
    RK_FINISH_NONE, /* more to come */
    RK_FINISH_STOP,
    RK_FINISH_LENGTH,
    RK_FINISH_ABORT, /* the engine gave up: http_status and message say why */
} rk_finish;

typedef enum rk_matched {
    RK_MATCHED_NONE,
    RK_MATCHED_TOKEN,
    RK_MATCHED_STRING,
} rk_matched;

typedef struct rk_top_logprobs { /* the alternatives at one position; count may be 0 */
    const float *values;
    const uint32_t *token_ids;
    size_t count;
} rk_top_logprobs;

/* What one choice got in one step. All pointers are the caller's and are read during the call only. */
typedef struct rk_output {
    uint64_t handle;
    uint32_t choice;
    const uint32_t *token_ids;
    size_t token_count;
    bool cumulative; /* token_ids are all of the choice's so far; false: only the new ones */
    /* The servicer counts: the three that follow are not looked at. The prompt's tokens are then the
     * request's and the completion's those that have come; cached ones stay as they were last said. */
    bool counted;
    uint32_t prompt_tokens;
    uint32_t completion_tokens; /* all of the choice's so far */
    uint32_t cached_tokens;
    uint32_t spec_accepted_tokens;
    uint32_t spec_draft_tokens;
    const char *weight_version; /* NUL-terminated; NULL: not said */
    /* Logprobs of the *last* logprob_count tokens of token_ids (<= token_count); 0: none. */
    const float *logprobs;
    const uint32_t *logprob_ids;         /* the token of each; NULL: as token_ids */
    const rk_top_logprobs *top_logprobs; /* logprob_count of them; NULL: none */
    size_t logprob_count;
    rk_finish finish;
    rk_matched matched; /* what matched, for RK_FINISH_STOP */
    uint32_t matched_token_id;
    const char *matched_string; /* RK_MATCHED_STRING: matched_bytes of it */
    size_t matched_bytes;
    int http_status;     /* RK_FINISH_ABORT: 400, 429, 503 …; 0: none given */
    const char *message; /* RK_FINISH_ABORT: message_bytes of it, any bytes; NULL: none */
    size_t message_bytes;
} rk_output;

/* What the engine reports of one DP rank. Negative: not known. */
typedef struct rk_engine_load {
    int32_t rank;
    int32_t running;
    int32_t waiting;
    int64_t used_tokens;
    int64_t max_total_tokens;
    double token_usage;        /* 0..1; resident pages, reclaimable ones included */
    double active_token_usage; /* 0..1; pages of live requests */
    double gen_throughput;     /* tokens/s */
    double cache_hit_rate;     /* 0..1 */
} rk_engine_load;

typedef enum rk_engine_state {
    RK_ENGINE_STARTING, /* up, not warmed up: NOT_SERVING */
    RK_ENGINE_READY,
    RK_ENGINE_STALLED, /* derived by the servicer from missing beats, or said by the engine's side */
    RK_ENGINE_DEAD,    /* its process is gone; final */
} rk_engine_state;

/* All sink functions: any thread, never block on I/O, safe until rk_servicer_free. Outputs of handles
 * that are not live are dropped. One call is one engine step: its writes go out together. */
RK_API void rk_sink_push(rk_servicer *servicer, const rk_output *outputs, size_t count);
/* The abort of this choice, or of all, has been handed to the engine's scheduler. */
RK_API void rk_sink_aborted(rk_servicer *servicer, uint64_t handle, uint32_t choice);
/* The release agent's acknowledgement: the engine holds nothing of this leg any more. */
RK_API void rk_sink_released(rk_servicer *servicer, uint64_t handle);
/* The engine's loop is alive. At least every second; any push counts too. */
RK_API void rk_sink_beat(rk_servicer *servicer);
/* The latest load of each rank; replaces what was there. */
RK_API void rk_sink_loads(rk_servicer *servicer, const rk_engine_load *loads, size_t count);
RK_API void rk_sink_state(rk_servicer *servicer, rk_engine_state state, const char *why);
/* Takes over `answer` (NULL: the query failed). Unknown ids are ignored. */
RK_API void rk_sink_answer(rk_servicer *servicer, uint64_t query_id, rk_value *answer);

#endif
