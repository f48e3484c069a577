/* Chunks and Completes: what is written for every token of every stream.
 *
 * The size of each part is worked out first, then the buffer grows once and everything is put in its place,
 * in the order of the field numbers and as any proto3 runtime would: zeros left out, lists packed. All field
 * numbers here are below 16, so that a tag is one byte. Any thread. */
#include <string.h>

#include "base/utf8.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

/* What was worked out about the token part of a message. */
typedef struct plan {
    size_t ids;         /* bytes of the packed ids */
    size_t logprob_ids; /* bytes of the packed ids beside the logprobs */
    size_t logprobs;    /* bytes of the OutputLogProbs; 0: none */
    size_t version;     /* bytes of the weight version */
} plan;

/* ---- sizes ---- */

static size_t ids_size(const uint32_t *ids, size_t count) {
    size_t size = count;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = ids[i];
        size += (size_t)(id >= 1u << 7) + (id >= 1u << 14) + (id >= 1u << 21) + (id >= 1u << 28);
    }
    return size;
}

static size_t uint_size(uint32_t value) {
    return value ? 1 + rk_varint_size(value) : 0;
}

static size_t bytes_size(size_t bytes) {
    return 1 + rk_varint_size(bytes) + bytes;
}

/* A list is left out when it is empty. */
static size_t list_size(size_t bytes) {
    return bytes ? bytes_size(bytes) : 0;
}

static uint32_t top_begin(const rk_tokens *tokens, size_t position) {
    return position ? tokens->top_ends[position - 1] : tokens->top_begin;
}

static size_t top_size(const rk_tokens *tokens, size_t position) {
    if (!tokens->top_ends)
        return 0;
    uint32_t begin = top_begin(tokens, position);
    size_t count = tokens->top_ends[position] - begin;
    return list_size(count * sizeof(float)) + list_size(ids_size(tokens->top_ids + begin, count));
}

static plan plan_tokens(const rk_tokens *tokens) {
    plan p = {.ids = ids_size(tokens->ids, tokens->count)};
    if (tokens->weight_version)
        p.version = strlen(tokens->weight_version);
    if (!tokens->logprobs || tokens->count == 0)
        return p;
    p.logprob_ids = ids_size(tokens->logprob_ids, tokens->count);
    p.logprobs = list_size(tokens->count * sizeof(float)) + list_size(p.logprob_ids);
    for (size_t i = 0; i < tokens->count; i++)
        p.logprobs += bytes_size(top_size(tokens, i));
    return p;
}

/* Of the fields that Chunks and Completes share. */
static size_t tokens_size(const rk_tokens *tokens, const plan *p) {
    return list_size(p->ids) + uint_size(tokens->prompt_tokens) + uint_size(tokens->completion_tokens) +
           uint_size(tokens->cached_tokens) + list_size(p->logprobs) + uint_size(tokens->index) +
           (tokens->weight_version ? bytes_size(p->version) : 0);
}

/* ---- putting in place ---- */

enum { VARINT = 0, BYTES = 2 };

static uint8_t *put_uint_always(uint8_t *at, unsigned number, uint32_t value) {
    *at++ = (uint8_t)(number << 3 | VARINT);
    return rk_put_varint(at, value);
}

static uint8_t *put_uint(uint8_t *at, unsigned number, uint32_t value) {
    return value ? put_uint_always(at, number, value) : at;
}

static uint8_t *put_head(uint8_t *at, unsigned number, size_t bytes) {
    *at++ = (uint8_t)(number << 3 | BYTES);
    return rk_put_varint(at, bytes);
}

static uint8_t *put_bytes(uint8_t *at, unsigned number, const void *bytes, size_t size) {
    at = put_head(at, number, size);
    if (size)
        memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_text(uint8_t *at, unsigned number, const char *text, size_t size) {
    at = put_bytes(at, number, text, size);
    if (size && !rk_utf8_valid(text, size))
        rk_make_utf8((char *)at - size, size);
    return at;
}

static uint8_t *put_ids(uint8_t *at, unsigned number, const uint32_t *ids, size_t count, size_t size) {
    if (count == 0)
        return at;
    at = put_head(at, number, size);
    for (size_t i = 0; i < count; i++)
        at = rk_put_varint(at, ids[i]);
    return at;
}

static uint8_t *put_floats(uint8_t *at, unsigned number, const float *values, size_t count) {
    if (count == 0)
        return at;
    at = put_head(at, number, count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        for (unsigned byte = 0; byte < sizeof bits; byte++)
            *at++ = (uint8_t)(bits >> (8 * byte));
    }
    return at;
}

static uint8_t *put_top(uint8_t *at, const rk_tokens *tokens, size_t position) {
    at = put_head(at, RK_TS_OUTPUT_LOG_PROBS__TOP_LOGPROBS, top_size(tokens, position));
    if (!tokens->top_ends)
        return at;
    uint32_t begin = top_begin(tokens, position);
    size_t count = tokens->top_ends[position] - begin;
    const uint32_t *ids = tokens->top_ids + begin;
    at = put_floats(at, RK_TS_TOP_LOG_PROBS__VALUES, tokens->top_values + begin, count);
    return put_ids(at, RK_TS_TOP_LOG_PROBS__TOKEN_IDS, ids, count, ids_size(ids, count));
}

static uint8_t *put_logprobs(uint8_t *at, unsigned number, const rk_tokens *tokens, const plan *p) {
    if (p->logprobs == 0)
        return at;
    at = put_head(at, number, p->logprobs);
    at = put_floats(at, RK_TS_OUTPUT_LOG_PROBS__TOKEN_LOGPROBS, tokens->logprobs, tokens->count);
    at = put_ids(at, RK_TS_OUTPUT_LOG_PROBS__TOKEN_IDS, tokens->logprob_ids, tokens->count, p->logprob_ids);
    for (size_t i = 0; i < tokens->count; i++)
        at = put_top(at, tokens, i);
    return at;
}

static uint8_t *put_version(uint8_t *at, unsigned number, const rk_tokens *tokens, const plan *p) {
    return tokens->weight_version ? put_text(at, number, tokens->weight_version, p->version) : at;
}

/* The GenerateResponse around a Chunk or a Complete of `body` bytes. NULL: no memory. */
static uint8_t *open_response(rk_buf *out, const rk_text *request_id, unsigned number, size_t body) {
    size_t size = list_size(request_id->bytes) + bytes_size(body);
    uint8_t *at = rk_buf_extend(out, size);
    if (!at)
        return NULL;
    if (request_id->bytes)
        at = put_bytes(at, RK_TS_GENERATE_RESPONSE__REQUEST_ID, request_id->data, request_id->bytes);
    return put_head(at, number, body);
}

/* ---- the two messages ---- */

void rk_ts_encode_chunk(rk_buf *out, const rk_text *request_id, const rk_tokens *tokens) {
    plan p = plan_tokens(tokens);
    uint8_t *at = open_response(out, request_id, RK_TS_GENERATE_RESPONSE__CHUNK, tokens_size(tokens, &p));
    if (!at)
        return;
    at = put_ids(at, RK_TS_GENERATE_STREAM_CHUNK__TOKEN_IDS, tokens->ids, tokens->count, p.ids);
    at = put_uint(at, RK_TS_GENERATE_STREAM_CHUNK__PROMPT_TOKENS, tokens->prompt_tokens);
    at = put_uint(at, RK_TS_GENERATE_STREAM_CHUNK__COMPLETION_TOKENS, tokens->completion_tokens);
    at = put_uint(at, RK_TS_GENERATE_STREAM_CHUNK__CACHED_TOKENS, tokens->cached_tokens);
    at = put_logprobs(at, RK_TS_GENERATE_STREAM_CHUNK__OUTPUT_LOGPROBS, tokens, &p);
    at = put_uint(at, RK_TS_GENERATE_STREAM_CHUNK__INDEX, tokens->index);
    (void)put_version(at, RK_TS_GENERATE_STREAM_CHUNK__WEIGHT_VERSION, tokens, &p);
}

static const char *finish_name(rk_finish finish) {
    return finish == RK_FINISH_LENGTH ? "length" : finish == RK_FINISH_ABORT ? "abort" : "stop";
}

static size_t matched_size(const rk_completion *completion) {
    switch (completion->matched) {
    case RK_MATCHED_TOKEN:
        return 1 + rk_varint_size(completion->matched_token_id);
    case RK_MATCHED_STRING:
        return bytes_size(completion->matched_bytes);
    default:
        return 0;
    }
}

/* One of a oneof: there is no zero to leave out. */
static uint8_t *put_matched(uint8_t *at, const rk_completion *completion) {
    switch (completion->matched) {
    case RK_MATCHED_TOKEN:
        return put_uint_always(at, RK_TS_GENERATE_COMPLETE__MATCHED_TOKEN_ID, completion->matched_token_id);
    case RK_MATCHED_STRING:
        return put_text(at, RK_TS_GENERATE_COMPLETE__MATCHED_STOP_STR, completion->matched_string,
                        completion->matched_bytes);
    default:
        return at;
    }
}

void rk_ts_encode_complete(rk_buf *out, const rk_text *request_id, const rk_completion *completion) {
    const rk_tokens *tokens = &completion->tokens;
    const char *finish = finish_name(completion->finish);
    plan p = plan_tokens(tokens);
    size_t body = tokens_size(tokens, &p) + bytes_size(strlen(finish)) + matched_size(completion) +
                  uint_size(completion->spec_accepted_tokens) + uint_size(completion->spec_draft_tokens);
    uint8_t *at = open_response(out, request_id, RK_TS_GENERATE_RESPONSE__COMPLETE, body);
    if (!at)
        return;
    at = put_ids(at, RK_TS_GENERATE_COMPLETE__OUTPUT_IDS, tokens->ids, tokens->count, p.ids);
    at = put_bytes(at, RK_TS_GENERATE_COMPLETE__FINISH_REASON, finish, strlen(finish));
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__PROMPT_TOKENS, tokens->prompt_tokens);
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__COMPLETION_TOKENS, tokens->completion_tokens);
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__CACHED_TOKENS, tokens->cached_tokens);
    at = put_logprobs(at, RK_TS_GENERATE_COMPLETE__OUTPUT_LOGPROBS, tokens, &p);
    at = put_matched(at, completion);
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__INDEX, tokens->index);
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__SPEC_ACCEPTED_TOKENS, completion->spec_accepted_tokens);
    at = put_uint(at, RK_TS_GENERATE_COMPLETE__SPEC_DRAFT_TOKENS, completion->spec_draft_tokens);
    (void)put_version(at, RK_TS_GENERATE_COMPLETE__WEIGHT_VERSION, tokens, &p);
}
