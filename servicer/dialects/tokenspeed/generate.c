/* GenerateRequest: bytes → draft → checked → request.
 *
 * One pass over the bytes, by the tables below, straight into the arena that the request will live in: ids
 * are unpacked once, into the array that the engine gets. Texts are copied only when everything is known to
 * be right.
 *
 * Any thread. The request owns the arena; nothing points into the client's bytes afterwards. */
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/request.h"
#include "dialects/struct_read.h"
#include "dialects/tokenspeed/internal.h"
#include "rk_proto/fields.h"

#define AT(field) offsetof(rk_ts_draft, field)

/* ---- the parts that are no plain values ---- */

static const rk_row bias_rows[] = {
    [RK_TS_SAMPLING_PARAMS_LOGIT_BIAS_ENTRY__KEY] = {.kind = RK_ROW_TEXT,
                                                     .path = "sampling_params.logit_bias key",
                                                     .offset = offsetof(rk_ts_bias, token)},
    [RK_TS_SAMPLING_PARAMS_LOGIT_BIAS_ENTRY__VALUE] = {.kind = RK_ROW_FLOAT,
                                                       .path = "sampling_params.logit_bias value",
                                                       .offset = offsetof(rk_ts_bias, bias)},
};
static const rk_schema bias_schema = {"sampling_params.logit_bias", bias_rows, RK_COUNT(bias_rows), 0};

static rk_code read_bias(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    static const uint8_t nothing[1] = {0};
    rk_ts_draft *draft = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    rk_ts_bias *biases =
        rk_grow(reader->arena, draft->biases, draft->bias_count, &draft->bias_capacity, 1, sizeof *biases);
    if (!biases)
        return rk_no_memory(reader);
    draft->biases = biases;
    rk_ts_bias *bias = &biases[draft->bias_count++];
    *bias = (rk_ts_bias){.token = rk_wire_of(nothing, 0)};
    return rk_read_message(reader, field->bytes, &bias_schema, bias);
}

/* A oneof: the last one sent counts. */
static rk_code read_constraint(rk_reader *reader, const rk_row *row, const rk_wire_field *field,
                               void *target) {
    rk_ts_draft *draft = target;
    switch (field->number) {
    case RK_TS_SAMPLING_PARAMS__REGEX:
        draft->sampling.constraint = RK_CONSTRAINT_REGEX;
        break;
    case RK_TS_SAMPLING_PARAMS__JSON_SCHEMA:
        draft->sampling.constraint = RK_CONSTRAINT_JSON_SCHEMA;
        break;
    case RK_TS_SAMPLING_PARAMS__EBNF_GRAMMAR:
        draft->sampling.constraint = RK_CONSTRAINT_EBNF;
        break;
    default:
        draft->sampling.constraint = RK_CONSTRAINT_STRUCTURAL_TAG;
        break;
    }
    return rk_read_text(reader, row->path, field, &draft->constraint);
}

static rk_code read_custom(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_draft *draft = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (!draft->custom_params)
        draft->custom_params = rk_struct_new(reader->arena);
    if (!draft->custom_params)
        return rk_no_memory(reader);
    return rk_read_struct(reader, row->path, field->bytes, draft->custom_params);
}

static rk_code read_media(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    return code == RK_OK ? rk_ts_read_items(reader, field->bytes, &((rk_ts_draft *)target)->items) : code;
}

static rk_code read_encoders(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    return code == RK_OK ? rk_ts_read_encoders(reader, field->bytes, &((rk_ts_draft *)target)->encoders)
                         : code;
}

/* ---- the tables ---- */

#define SAMPLING(FIELD, field, kind_, member)                                                                \
    [RK_TS_SAMPLING_PARAMS__##                                                                               \
        FIELD] = {.kind = (kind_), .path = "sampling_params." #field, .offset = AT(member)}
#define SAMPLING_OPTIONAL(FIELD, field, kind_, member, bit)                                                  \
    [RK_TS_SAMPLING_PARAMS__##                                                                               \
        FIELD] = {.kind = (kind_), .path = "sampling_params." #field, .offset = AT(member), .has = (bit)}
#define SAMPLING_CUSTOM(FIELD, field, function)                                                              \
    [RK_TS_SAMPLING_PARAMS__##                                                                               \
        FIELD] = {.kind = RK_ROW_CUSTOM, .path = "sampling_params." #field, .read = (function)}

static const rk_row sampling_rows[] = {
    SAMPLING_OPTIONAL(TEMPERATURE, temperature, RK_ROW_FLOAT, sampling.temperature, RK_HAS_TEMPERATURE),
    SAMPLING_OPTIONAL(TOP_P, top_p, RK_ROW_FLOAT, sampling.top_p, RK_HAS_TOP_P),
    SAMPLING_OPTIONAL(TOP_K, top_k, RK_ROW_INT32, sampling.top_k, RK_HAS_TOP_K),
    SAMPLING_OPTIONAL(MIN_P, min_p, RK_ROW_FLOAT, sampling.min_p, RK_HAS_MIN_P),
    SAMPLING_OPTIONAL(FREQUENCY_PENALTY, frequency_penalty, RK_ROW_FLOAT, sampling.frequency_penalty,
                      RK_HAS_FREQUENCY_PENALTY),
    SAMPLING_OPTIONAL(PRESENCE_PENALTY, presence_penalty, RK_ROW_FLOAT, sampling.presence_penalty,
                      RK_HAS_PRESENCE_PENALTY),
    SAMPLING_OPTIONAL(REPETITION_PENALTY, repetition_penalty, RK_ROW_FLOAT, sampling.repetition_penalty,
                      RK_HAS_REPETITION_PENALTY),
    SAMPLING_OPTIONAL(MAX_NEW_TOKENS, max_new_tokens, RK_ROW_UINT32, sampling.max_new_tokens,
                      RK_HAS_MAX_NEW_TOKENS),
    SAMPLING_OPTIONAL(SAMPLING_SEED, sampling_seed, RK_ROW_UINT64, sampling.seed, RK_HAS_SEED),
    SAMPLING(MIN_NEW_TOKENS, min_new_tokens, RK_ROW_UINT32, sampling.min_new_tokens),
    SAMPLING(STOP, stop, RK_ROW_TEXTS, stop),
    SAMPLING(STOP_TOKEN_IDS, stop_token_ids, RK_ROW_IDS, stop_token_ids),
    SAMPLING(IGNORE_EOS, ignore_eos, RK_ROW_BOOL, sampling.ignore_eos),
    SAMPLING(SKIP_SPECIAL_TOKENS, skip_special_tokens, RK_ROW_BOOL, sampling.skip_special_tokens),
    SAMPLING(SPACES_BETWEEN_SPECIAL_TOKENS, spaces_between_special_tokens, RK_ROW_BOOL,
             sampling.spaces_between_special_tokens),
    SAMPLING(N, n, RK_ROW_UINT32, n),
    SAMPLING(NO_STOP_TRIM, no_stop_trim, RK_ROW_BOOL, sampling.no_stop_trim),
    SAMPLING_CUSTOM(LOGIT_BIAS, logit_bias, read_bias),
    SAMPLING_CUSTOM(REGEX, regex, read_constraint),
    SAMPLING_CUSTOM(JSON_SCHEMA, json_schema, read_constraint),
    SAMPLING_CUSTOM(EBNF_GRAMMAR, ebnf_grammar, read_constraint),
    SAMPLING_CUSTOM(STRUCTURAL_TAG, structural_tag, read_constraint),
    SAMPLING_CUSTOM(CUSTOM_PARAMS, custom_params, read_custom),
};
static const rk_schema sampling_schema = {"sampling_params", sampling_rows, RK_COUNT(sampling_rows), AT(has)};

static const rk_row tokenized_rows[] = {
    [RK_TS_TOKENIZED_INPUT__INPUT_IDS] = {.kind = RK_ROW_IDS,
                                          .path = "tokenized.input_ids",
                                          .offset = AT(input_ids)},
    [RK_TS_TOKENIZED_INPUT__ORIGINAL_TEXT] = {.kind = RK_ROW_TEXT,
                                              .path = "tokenized.original_text",
                                              .offset = AT(original_text)},
};
static const rk_schema tokenized_schema = {"tokenized", tokenized_rows, RK_COUNT(tokenized_rows), AT(has)};

static const rk_row kv_rows[] = {
    [RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_HOST] = {.kind = RK_ROW_TEXT,
                                                 .path = "kv_bootstrap_info.bootstrap_host",
                                                 .offset = AT(host)},
    [RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_PORT] = {.kind = RK_ROW_INT32,
                                                 .path = "kv_bootstrap_info.bootstrap_port",
                                                 .offset = AT(port)},
    [RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_ROOM] = {.kind = RK_ROW_INT64,
                                                 .path = "kv_bootstrap_info.bootstrap_room",
                                                 .offset = AT(room)},
};
static const rk_schema kv_schema = {"kv_bootstrap_info", kv_rows, RK_COUNT(kv_rows), AT(has)};

#define REQUEST(FIELD, field, kind_, member)                                                                 \
    [RK_TS_GENERATE_REQUEST__##FIELD] = {.kind = (kind_), .path = #field, .offset = AT(member)}
#define REQUEST_PART(FIELD, field, kind_, schema_, bit)                                                      \
    [RK_TS_GENERATE_REQUEST__##FIELD] = {.kind = (kind_), .path = #field, .schema = (schema_), .has = (bit)}

static const rk_row generate_rows[] = {
    REQUEST(REQUEST_ID, request_id, RK_ROW_TEXT, request_id),
    REQUEST_PART(TOKENIZED, tokenized, RK_ROW_MESSAGE, &tokenized_schema, 0),
    REQUEST_PART(SAMPLING_PARAMS, sampling_params, RK_ROW_MESSAGE, &sampling_schema, 0),
    REQUEST(RETURN_LOGPROB, return_logprob, RK_ROW_BOOL, return_logprob),
    [RK_TS_GENERATE_REQUEST__LOGPROB_START_LEN] = {.kind = RK_ROW_INT32,
                                                   .path = "logprob_start_len",
                                                   .offset = AT(logprob_start_len),
                                                   .has = RK_TS_HAS_LOGPROB_START},
    REQUEST(TOP_LOGPROBS_NUM, top_logprobs_num, RK_ROW_INT32, top_logprobs_num),
    REQUEST(TOKEN_IDS_LOGPROB, token_ids_logprob, RK_ROW_IDS, token_ids_logprob),
    REQUEST(STREAM, stream, RK_ROW_BOOL, stream),
    [RK_TS_GENERATE_REQUEST__MM_INPUTS] = {.kind = RK_ROW_CUSTOM,
                                           .path = "mm_inputs",
                                           .has = RK_TS_HAS_MULTIMODAL,
                                           .read = read_media},
    [RK_TS_GENERATE_REQUEST__ENCODE_BOOTSTRAP_INFO] = {.kind = RK_ROW_CUSTOM,
                                                       .path = "encode_bootstrap_info",
                                                       .has = RK_TS_HAS_ENCODE_BOOTSTRAP,
                                                       .read = read_encoders},
    REQUEST_PART(KV_BOOTSTRAP_INFO, kv_bootstrap_info, RK_ROW_MESSAGE, &kv_schema, RK_TS_HAS_KV_BOOTSTRAP),
    [RK_TS_GENERATE_REQUEST__DATA_PARALLEL_RANK] = {.kind = RK_ROW_INT32,
                                                    .path = "data_parallel_rank",
                                                    .offset = AT(rank),
                                                    .has = RK_TS_HAS_RANK},
};
static const rk_schema generate_schema = {"GenerateRequest", generate_rows, RK_COUNT(generate_rows), AT(has)};

/* ---- from the draft to the request ---- */

/* False: no memory. */
static bool copy_text(rk_arena *arena, rk_wire from, rk_text *to) {
    to->bytes = rk_wire_size(from);
    to->data = rk_arena_strndup(arena, (const char *)from.at, to->bytes);
    return to->data != NULL;
}

/* All texts behind each other in one piece: a list of a million tiny stops stays small. */
static bool copy_stops(rk_arena *arena, const rk_slices *stops, rk_sampling *sampling) {
    size_t bytes = 0;
    if (stops->count == 0)
        return true;
    for (size_t i = 0; i < stops->count; i++)
        bytes += rk_wire_size(stops->items[i]) + 1;
    rk_text *texts = rk_arena_alloc(arena, stops->count * sizeof *texts);
    char *at = rk_arena_alloc(arena, bytes);
    if (!texts || !at)
        return false;
    for (size_t i = 0; i < stops->count; i++) {
        size_t size = rk_wire_size(stops->items[i]);
        if (size)
            memcpy(at, stops->items[i].at, size);
        at[size] = '\0';
        texts[i] = (rk_text){at, size};
        at += size + 1;
    }
    sampling->stop = texts;
    sampling->stop_count = stops->count;
    return true;
}

static bool copy_biases(rk_arena *arena, const rk_ts_draft *draft, rk_sampling *sampling) {
    size_t count = draft->bias_count;
    if (count == 0)
        return true;
    rk_logit_bias *biases = rk_arena_alloc(arena, count * sizeof *biases);
    const char **keys = rk_arena_alloc(arena, count * sizeof *keys);
    bool *keep = rk_arena_alloc(arena, count * sizeof *keep);
    if (!biases || !keys || !keep)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!copy_text(arena, draft->biases[i].token, &biases[i].token))
            return false;
        biases[i].bias = draft->biases[i].bias;
        keys[i] = biases[i].token.data;
    }
    if (rk_keep_last(arena, keys, count, keep) < 0)
        return false;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (keep[i])
            biases[kept++] = biases[i];
    sampling->logit_bias = biases;
    sampling->logit_bias_count = kept;
    return true;
}

static bool fill_sampling(rk_arena *arena, const rk_ts_draft *draft, rk_sampling *sampling) {
    *sampling = draft->sampling;
    sampling->has = draft->has & RK_TS_HAS_SAMPLING;
    if (sampling->has & RK_HAS_TOP_K && sampling->top_k == 0)
        sampling->top_k = -1; /* both are "off" on the wire, the engine knows only this one */
    sampling->stop_token_ids = draft->stop_token_ids.items;
    sampling->stop_token_id_count = draft->stop_token_ids.count;
    sampling->custom_params = draft->custom_params;
    if (sampling->constraint != RK_CONSTRAINT_NONE &&
        !copy_text(arena, draft->constraint, &sampling->constraint_text))
        return false;
    return copy_stops(arena, &draft->stop, sampling) && copy_biases(arena, draft, sampling);
}

static bool fill(rk_arena *arena, const rk_ts_draft *draft, const rk_keeper *keeper, rk_request *request) {
    request->input_ids = draft->input_ids.items;
    request->input_count = draft->input_ids.count;
    request->n = draft->n ? draft->n : 1;
    request->stream = draft->stream;
    request->return_logprob = draft->return_logprob;
    request->logprob_start_len = draft->has & RK_TS_HAS_LOGPROB_START ? draft->logprob_start_len : -1;
    request->top_logprobs_num = draft->top_logprobs_num;
    request->token_ids_logprob = draft->token_ids_logprob.items;
    request->token_id_logprob_count = draft->token_ids_logprob.count;
    request->has_rank = (draft->has & RK_TS_HAS_RANK) != 0;
    request->rank = request->has_rank ? draft->rank : 0;
    request->has_bootstrap = rk_wire_size(draft->host) > 0;
    if (request->has_bootstrap) {
        request->bootstrap_port = draft->port;
        request->bootstrap_room = draft->room;
        if (!copy_text(arena, draft->host, &request->bootstrap_host))
            return false;
    }
    return copy_text(arena, draft->request_id, &request->request_id) &&
           fill_sampling(arena, draft, &request->sampling) &&
           (!(draft->has & RK_TS_HAS_MULTIMODAL) ||
            rk_ts_fill_media(arena, &draft->items, &draft->encoders, keeper, request));
}

/* ---- all of it ---- */

/* What a message of `size` bytes may take: parts that take more than 32 times their bytes are no real
 * request, but someone's attempt to fill the memory. */
size_t rk_ts_memory_cap(size_t size, const rk_limits *limits) {
    size_t by_size = size < SIZE_MAX / 64 ? 32 * size + ((size_t)1 << 16) : SIZE_MAX;
    size_t by_limit = limits->max_message_bytes;
    by_limit = by_limit && by_limit < SIZE_MAX / 8 ? 4 * by_limit + ((size_t)1 << 20) : SIZE_MAX;
    return by_size < by_limit ? by_size : by_limit;
}

static rk_code decode(rk_arena *arena, const uint8_t *bytes, size_t size, const rk_limits *limits,
                      const rk_keeper *keeper, rk_request **out, rk_status *status) {
    static const uint8_t nothing[1] = {0};
    const rk_wire empty = rk_wire_of(nothing, 0);
    rk_ts_draft draft = {.request_id = empty, .original_text = empty, .constraint = empty, .host = empty};
    rk_reader reader = {.arena = arena, .status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &generate_schema, &draft);
    if (code == RK_OK && draft.custom_params)
        code = rk_struct_finish(&reader, draft.custom_params);
    if (code == RK_OK)
        code = rk_ts_check(&draft, limits, arena, status);
    if (code != RK_OK)
        return code;
    rk_request *request = rk_request_in(arena);
    if (!request || !fill(arena, &draft, keeper, request))
        return rk_no_memory(&reader);
    *out = request;
    return RK_OK;
}

rk_code rk_ts_decode_generate(const uint8_t *bytes, size_t size, const rk_limits *limits,
                              const rk_keeper *keeper, rk_request **out, rk_status *status) {
    *out = NULL;
    rk_arena *arena = rk_arena_new(rk_ts_memory_cap(size, limits));
    if (!arena)
        return rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory; try again later");
    rk_code code = decode(arena, bytes, size, limits, keeper, out, status);
    if (code != RK_OK)
        rk_arena_free(arena);
    return code;
}
