/* What the files of this folder share. The table that others see is rk_dialect_tokenspeed. */
#ifndef RK_DIALECTS_TOKENSPEED_INTERNAL_H
#define RK_DIALECTS_TOKENSPEED_INTERNAL_H

#include "dialects/dialect.h"
#include "dialects/tokenspeed/media.h"
#include "dialects/wire_read.h"

#define RK_TS_REQUEST_ID_MAX 512 /* bytes */
#define RK_TS_CHOICES_MAX 4096   /* n, where no window limits it */

/* The bootstrap host that means a transfer to nobody, with which a leg can be warmed up alone; the one host
 * that may come with room 0. */
#define RK_TS_FAKE_BOOTSTRAP_HOST "2.2.2.2"

/* Beside the RK_HAS_… bits of sampling, which share the same word. */
enum {
    RK_TS_HAS_MULTIMODAL = 1u << 16,
    RK_TS_HAS_ENCODE_BOOTSTRAP = 1u << 17,
    RK_TS_HAS_KV_BOOTSTRAP = 1u << 18,
    RK_TS_HAS_RANK = 1u << 19,
    RK_TS_HAS_LOGPROB_START = 1u << 20,
};
#define RK_TS_HAS_SAMPLING 0xFFFFu

typedef struct rk_ts_bias {
    rk_wire token; /* the key, as sent */
    float bias;
} rk_ts_bias;

/* A GenerateRequest as it was read, before it is checked. Texts are slices of the client's bytes, ids and
 * lists are in the arena of the request to be. */
typedef struct rk_ts_draft {
    uint32_t has; /* RK_HAS_…, RK_TS_HAS_… */
    rk_wire request_id;
    rk_ids input_ids;
    rk_wire original_text; /* checked to be text, otherwise not looked at */
    rk_sampling sampling;  /* its numbers and flags only */
    rk_slices stop;
    rk_ids stop_token_ids;
    rk_ts_bias *biases; /* in the arena; keys may repeat */
    size_t bias_count;
    size_t bias_capacity;
    rk_wire constraint; /* of the kind in sampling.constraint */
    rk_value *custom_params;
    uint32_t n;
    bool stream;
    bool return_logprob;
    int32_t logprob_start_len;
    int32_t top_logprobs_num;
    rk_ids token_ids_logprob;
    rk_wire host;
    int32_t port;
    int64_t room;
    int32_t rank;
    rk_ts_items items;
    rk_ts_encoders encoders;
    const bool *has_encoder; /* of each item, once checked; in the arena; NULL: of none */
} rk_ts_draft;

typedef struct rk_ts_dtype {
    const char *name; /* as numpy and torch call it */
    uint64_t bytes;   /* of an element */
} rk_ts_dtype;

const rk_ts_dtype *rk_ts_dtype_of(rk_wire name); /* NULL: there is none of that name */
/* Of all elements; somewhere above 2^40 it stops counting. */
uint64_t rk_ts_tensor_bytes(const rk_ids *shape, uint64_t element);

/* What a message of `size` bytes may take in memory. */
size_t rk_ts_memory_cap(size_t size, const rk_limits *limits);
/* A host that fits and has no spaces; `path` names the field. */
rk_code rk_ts_check_host(rk_wire host, const char *path, rk_status *status);

/* Whether the draft may become a request; else the refusal, in `status`. Fills in draft->has_encoder. */
rk_code rk_ts_check(rk_ts_draft *draft, const rk_limits *limits, rk_arena *arena, rk_status *status);

/* The functions of the table. */
rk_code rk_ts_decode_generate(const uint8_t *bytes, size_t size, const rk_limits *limits,
                              const rk_keeper *keeper, rk_request **out, rk_status *status);
rk_code rk_ts_decode_encode(const uint8_t *bytes, size_t size, const rk_limits *limits,
                            const rk_keeper *keeper, rk_request **out, int64_t *room, rk_status *status);
void rk_ts_each_segment(const uint8_t *bytes, size_t size, bool encode, rk_segment_found *found,
                        void *context);
void rk_ts_encode_accepted(rk_buf *out, bool accepted);
rk_code rk_ts_decode_abort(const uint8_t *bytes, size_t size, char id[513], size_t *id_bytes,
                           rk_status *status);
rk_code rk_ts_decode_empty(const uint8_t *bytes, size_t size, rk_status *status);
rk_code rk_ts_decode_loads(const uint8_t *bytes, size_t size, rk_loads_query *query, rk_status *status);
rk_code rk_ts_decode_flush(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status);
rk_code rk_ts_decode_profile(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status);
rk_code rk_ts_decode_kv(const uint8_t *bytes, size_t size, rk_kv_query *query, rk_status *status);
void rk_ts_encode_kv_load(rk_buf *out, const rk_load_row *row, const rk_load_stamp *stamp);
void rk_ts_encode_outcome(rk_buf *out, bool success, const char *message);
void rk_ts_encode_tokenizer(rk_buf *out, const uint8_t *bytes, size_t size, const char *sha256);
void rk_ts_encode_chunk(rk_buf *out, const rk_text *request_id, const rk_tokens *tokens);
void rk_ts_encode_complete(rk_buf *out, const rk_text *request_id, const rk_completion *completion);
void rk_ts_encode_abort(rk_buf *out, bool success, const char *message);
void rk_ts_encode_health(rk_buf *out, bool healthy, const char *message);
void rk_ts_encode_model_info(rk_buf *out, const rk_worker_info *info, const char *weight_version);
void rk_ts_encode_server_info(rk_buf *out, const rk_server_state *state);
void rk_ts_encode_loads(rk_buf *out, const rk_loads_query *query, const rk_load_row *rows, size_t count,
                        uint32_t rank_count, const char *timestamp);

#endif
