/* What a GenerateRequest must keep to before it may become a request: each rule of the contract, one line to
 * the client when it is broken. Nothing that passes here can bring an engine down by its values. Any thread.
 */
#include <float.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/json.h"
#include "dialects/tokenspeed/internal.h"
#include "roomkeeper/rooms.h"

#define refuse(status, ...) rk_status_set((status), RK_INVALID_ARGUMENT, __VA_ARGS__)

/* ---- who and what ---- */

static rk_code check_request_id(const rk_ts_draft *draft, rk_status *status) {
    size_t size = rk_wire_size(draft->request_id);
    if (size == 0)
        return refuse(status, "request_id is empty; give each request one of 1 to %d bytes",
                      RK_TS_REQUEST_ID_MAX);
    if (size > RK_TS_REQUEST_ID_MAX)
        return refuse(status, "request_id has %zu bytes; it may have at most %d", size, RK_TS_REQUEST_ID_MAX);
    const uint8_t *nul = memchr(draft->request_id.at, '\0', size);
    if (nul)
        return refuse(status, "request_id has a NUL character at byte %zu; use an id without",
                      (size_t)(nul - draft->request_id.at));
    return RK_OK;
}

/* The largest first: in the usual case, where all is well, that is a loop without branches. */
static rk_code check_ids(const rk_ids *ids, const char *path, uint32_t vocab_size, rk_status *status) {
    uint32_t largest = 0;
    if (vocab_size == 0)
        return RK_OK;
    for (size_t i = 0; i < ids->count; i++)
        largest = ids->items[i] > largest ? ids->items[i] : largest;
    if (largest < vocab_size)
        return RK_OK;
    size_t at = 0;
    while (at < ids->count && ids->items[at] < vocab_size)
        at++;
    if (at == ids->count)
        return RK_OK;
    return refuse(status, "%s[%zu] is %" PRIu32 "; it must be below the vocabulary size, %" PRIu32, path, at,
                  ids->items[at], vocab_size);
}

static rk_code check_prompt(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    if (draft->input_ids.count == 0)
        return refuse(status, "tokenized.input_ids is empty; send the prompt as token ids");
    if (limits->max_context && draft->input_ids.count >= limits->max_context)
        return refuse(status,
                      "tokenized.input_ids has %zu tokens; the context holds %" PRIu32
                      " and a prompt must be shorter",
                      draft->input_ids.count, limits->max_context);
    return check_ids(&draft->input_ids, "tokenized.input_ids", limits->vocab_size, status);
}

/* ---- sampling ---- */

typedef struct range {
    size_t offset;     /* of the float in rk_sampling */
    const char *name;  /* of the field */
    const char *limit; /* as the client reads it */
    uint32_t has;      /* the RK_HAS_… bit */
    float low;         /* not below … */
    float high;        /* … and not above */
    bool above_low;    /* really above, not equal */
} range;

#define RANGE(BIT, field, low, above, high, limit)                                                           \
    { offsetof(rk_sampling, field), #field, limit, BIT, low, high, above }

static const range ranges[] = {
    RANGE(RK_HAS_TEMPERATURE, temperature, 0.0f, false, FLT_MAX, "0 (greedy) or more"),
    RANGE(RK_HAS_TOP_P, top_p, 0.0f, true, 1.0f, "in (0, 1]"),
    RANGE(RK_HAS_MIN_P, min_p, 0.0f, false, 1.0f, "in [0, 1]"),
    RANGE(RK_HAS_FREQUENCY_PENALTY, frequency_penalty, -2.0f, false, 2.0f, "in [-2, 2]"),
    RANGE(RK_HAS_PRESENCE_PENALTY, presence_penalty, -2.0f, false, 2.0f, "in [-2, 2]"),
    RANGE(RK_HAS_REPETITION_PENALTY, repetition_penalty, 0.0f, true, 2.0f, "in (0, 2]; 1 is off"),
};

static rk_code check_ranges(const rk_ts_draft *draft, rk_status *status) {
    for (size_t i = 0; i < RK_COUNT(ranges); i++) {
        const range *r = &ranges[i];
        float value;
        if (!(draft->has & r->has))
            continue;
        memcpy(&value, (const char *)&draft->sampling + r->offset, sizeof value);
        if (value < r->low || value > r->high || (r->above_low && value <= r->low))
            return refuse(status, "sampling_params.%s is %g; it must be %s", r->name, (double)value,
                          r->limit);
    }
    if (draft->has & RK_HAS_TOP_K && draft->sampling.top_k < -1)
        return refuse(status,
                      "sampling_params.top_k is %" PRId32 "; it must be at least 1, or -1 or 0 for off",
                      draft->sampling.top_k);
    if (draft->has & RK_HAS_MAX_NEW_TOKENS && draft->sampling.min_new_tokens > draft->sampling.max_new_tokens)
        return refuse(status,
                      "sampling_params.min_new_tokens is %" PRIu32
                      "; it must not be above max_new_tokens, %" PRIu32,
                      draft->sampling.min_new_tokens, draft->sampling.max_new_tokens);
    return RK_OK;
}

static rk_code check_choices(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    uint32_t n = draft->n;
    if (n > 1 && limits->rooms && limits->role != RK_ROLE_NULL)
        return refuse(status,
                      "sampling_params.n is %" PRIu32
                      "; a %s worker takes 1: send a call with a room of its own for "
                      "each choice",
                      n, limits->role == RK_ROLE_PREFILL ? "prefill" : "decode");
    if (limits->window && n > limits->window)
        return refuse(status,
                      "sampling_params.n is %" PRIu32 "; the running window is %" PRIu32
                      " and choices run together: ask for at most as many",
                      n, limits->window);
    if (n > RK_TS_CHOICES_MAX)
        return refuse(status, "sampling_params.n is %" PRIu32 "; at most %d choices are served", n,
                      RK_TS_CHOICES_MAX);
    /* Choice i samples with seed + i, and the engine keeps seeds in signed 64 bits. */
    uint64_t seed_max = (uint64_t)INT64_MAX - (n > 1 ? n - 1 : 0);
    if (draft->has & RK_HAS_SEED && draft->sampling.seed > seed_max)
        return refuse(status, "sampling_params.sampling_seed is %" PRIu64 "; it may be at most %" PRIu64,
                      draft->sampling.seed, seed_max);
    return RK_OK;
}

/* The token of a bias: decimal digits, below the vocabulary size. UINT64_MAX: it is not. */
static uint64_t bias_token(rk_wire key) {
    uint64_t token = 0;
    size_t size = rk_wire_size(key);
    if (size == 0 || size > 10)
        return UINT64_MAX;
    for (const uint8_t *at = key.at; at < key.end; at++) {
        if (*at < '0' || *at > '9')
            return UINT64_MAX;
        token = token * 10 + (uint64_t)(*at - '0');
    }
    return token;
}

static rk_code check_biases(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    uint64_t bound = limits->vocab_size ? limits->vocab_size : (uint64_t)UINT32_MAX + 1;
    for (size_t i = 0; i < draft->bias_count; i++) {
        rk_wire key = draft->biases[i].token;
        if (bias_token(key) < bound)
            continue;
        size_t shown = rk_wire_size(key) < 32 ? rk_wire_size(key) : 32;
        return refuse(
            status,
            "sampling_params.logit_bias has the key \"%.*s\"; keys are token ids in decimal, below %" PRIu64,
            (int)shown, (const char *)key.at, bound);
    }
    return RK_OK;
}

static rk_code check_constraint(const rk_ts_draft *draft, rk_status *status) {
    size_t at = 0;
    size_t size = rk_wire_size(draft->constraint);
    if (draft->sampling.constraint == RK_CONSTRAINT_REGEX && size == 0)
        return refuse(status, "sampling_params.regex is empty; send an expression, or leave it out");
    bool schema = draft->sampling.constraint == RK_CONSTRAINT_JSON_SCHEMA;
    if (!schema && draft->sampling.constraint != RK_CONSTRAINT_STRUCTURAL_TAG)
        return RK_OK;
    const char *fault = rk_json_fault((const char *)draft->constraint.at, size, &at);
    if (fault)
        return refuse(status, "sampling_params.%s is not JSON: %s at byte %zu of %zu",
                      schema ? "json_schema" : "structural_tag", fault, at, size);
    return RK_OK;
}

static rk_code check_logprobs(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    if (draft->has & RK_TS_HAS_LOGPROB_START && draft->logprob_start_len < -1)
        return refuse(status,
                      "logprob_start_len is %" PRId32 "; it must be a prompt position, or -1 for none",
                      draft->logprob_start_len);
    if (draft->top_logprobs_num < 0)
        return refuse(status, "top_logprobs_num is %" PRId32 "; it must be 0 or more",
                      draft->top_logprobs_num);
    return check_ids(&draft->token_ids_logprob, "token_ids_logprob", limits->vocab_size, status);
}

/* ---- rooms and ranks ---- */

/* What holds on any worker: the host is a name that fits. */
rk_code rk_ts_check_host(rk_wire host, const char *path, rk_status *status) {
    size_t size = rk_wire_size(host);
    if (size >= RK_ROOM_HOST_MAX)
        return refuse(status, "%s has %zu bytes; a host may have at most %d", path, size,
                      RK_ROOM_HOST_MAX - 1);
    for (size_t i = 0; i < size; i++)
        if (host.at[i] <= ' ' || host.at[i] == 0x7F)
            return refuse(status,
                          "%s has a space or control character at byte %zu; send a host name or an address",
                          path, i);
    return RK_OK;
}

static rk_code check_pair(const rk_ts_draft *draft, const char *role, rk_status *status) {
    static const char fake[] = RK_TS_FAKE_BOOTSTRAP_HOST;
    if (!(draft->has & RK_TS_HAS_KV_BOOTSTRAP))
        return refuse(
            status,
            "kv_bootstrap_info is missing; a %s worker needs the pair's bootstrap host, port and room", role);
    size_t size = rk_wire_size(draft->host);
    if (size == 0)
        return refuse(status, "kv_bootstrap_info.bootstrap_host is empty; a %s worker needs the prefill's",
                      role);
    if (draft->port < 1 || draft->port > 65535)
        return refuse(status, "kv_bootstrap_info.bootstrap_port is %" PRId32 "; it must be 1 to 65535",
                      draft->port);
    bool lone = size == sizeof fake - 1 && memcmp(draft->host.at, fake, size) == 0;
    if (draft->room < 0 || (draft->room == 0 && !lone))
        return refuse(status, "kv_bootstrap_info.bootstrap_room is %" PRId64 "; it must be 1 to %" PRId64,
                      draft->room, INT64_MAX);
    return RK_OK;
}

static rk_code check_room(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    rk_code code = rk_ts_check_host(draft->host, "kv_bootstrap_info.bootstrap_host", status);
    if (code != RK_OK || !limits->rooms)
        return code;
    if (limits->role != RK_ROLE_NULL)
        return check_pair(draft, limits->role == RK_ROLE_PREFILL ? "prefill" : "decode", status);
    if (rk_wire_size(draft->host))
        return rk_status_set(
            status, RK_FAILED_PRECONDITION,
            "kv_bootstrap_info is set; this worker is aggregated, without a twin: leave it out, or "
            "send the call to a prefill or decode worker");
    return RK_OK;
}

static rk_code check_rank(const rk_ts_draft *draft, const rk_limits *limits, rk_status *status) {
    int64_t ranks = limits->ranks ? limits->ranks : 1;
    if (!(draft->has & RK_TS_HAS_RANK) || (draft->rank >= 0 && draft->rank < ranks))
        return RK_OK;
    return refuse(status, "data_parallel_rank is %" PRId32 "; this worker has ranks 0 to %" PRId64,
                  draft->rank, ranks - 1);
}

/* ---- multimodal inputs ---- */

/* Who has a tower must be able to see the items, or somebody else must: the engine's would run over nothing.
 * A decode gets what came of them with the KV. */
static rk_code check_media(rk_ts_draft *draft, const rk_limits *limits, rk_arena *arena, rk_status *status) {
    bool encoders = (draft->has & RK_TS_HAS_ENCODE_BOOTSTRAP) != 0;
    if (!(draft->has & RK_TS_HAS_MULTIMODAL))
        return encoders
                   ? refuse(status, "encode_bootstrap_info is set, but mm_inputs is not; its items are those "
                                    "of mm_inputs")
                   : RK_OK;
    if (encoders && limits->rooms && limits->role == RK_ROLE_NULL)
        return rk_status_set(
            status, RK_FAILED_PRECONDITION,
            "encode_bootstrap_info is set; this worker is aggregated and sees the items itself: "
            "leave it out, or send the call to a prefill worker");
    rk_code code =
        rk_ts_check_encoders(&draft->encoders, draft->items.count, arena, &draft->has_encoder, status);
    if (code != RK_OK)
        return code;
    const rk_ts_media_rules rules = {.needs_input = limits->role != RK_ROLE_DECODE,
                                     .prompt = draft->input_ids.count,
                                     .has_encoder = draft->has_encoder};
    return rk_ts_check_items(&draft->items, &rules, status);
}

rk_code rk_ts_check(rk_ts_draft *draft, const rk_limits *limits, rk_arena *arena, rk_status *status) {
    rk_code code = check_request_id(draft, status);
    if (code == RK_OK)
        code = check_prompt(draft, limits, status);
    if (code == RK_OK)
        code = check_media(draft, limits, arena, status);
    if (code == RK_OK)
        code = check_ranges(draft, status);
    if (code == RK_OK)
        code = check_choices(draft, limits, status);
    if (code == RK_OK)
        code = check_biases(draft, limits, status);
    if (code == RK_OK)
        code = check_constraint(draft, status);
    if (code == RK_OK)
        code = check_logprobs(draft, limits, status);
    if (code == RK_OK)
        code = check_room(draft, limits, status);
    if (code == RK_OK)
        code = check_rank(draft, limits, status);
    return code;
}
