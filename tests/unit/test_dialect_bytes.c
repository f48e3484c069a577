/* Bad bytes: what is no message is refused with the field it breaks in, and nothing that is sent can do harm.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "rk_proto/fields.h"

#define S(FIELD) RK_TS_SAMPLING_PARAMS__##FIELD
#define G(FIELD) RK_TS_GENERATE_REQUEST__##FIELD

static rk_limits limits;

static void setup(void) {
    limits = plain_limits();
    limits.role = RK_ROLE_DECODE;
}

static void raw_value_map(rk_buf *map) {
    rk_buf entry = RK_BUF_INIT, value = RK_BUF_INIT, list = RK_BUF_INIT, item = RK_BUF_INIT;
    raw_double(&item, RK_PB_VALUE__NUMBER_VALUE, 1.5);
    raw_message(&list, RK_PB_LIST_VALUE__VALUES, item);
    raw_message(&value, RK_PB_VALUE__LIST_VALUE, list);
    raw_text(&entry, 1, "key");
    raw_message(&entry, 2, value);
    raw_message(map, RK_PB_STRUCT__FIELDS, entry);
}

static rk_buf full_sampling(void) {
    rk_buf sampling = RK_BUF_INIT, bias = RK_BUF_INIT, map = RK_BUF_INIT;
    raw_float(&sampling, S(TEMPERATURE), 0.5f);
    raw_float(&sampling, S(TOP_P), 0.9f);
    raw_uint(&sampling, S(TOP_K), 20);
    raw_float(&sampling, S(MIN_P), 0.1f);
    raw_float(&sampling, S(FREQUENCY_PENALTY), 1);
    raw_float(&sampling, S(PRESENCE_PENALTY), -1);
    raw_float(&sampling, S(REPETITION_PENALTY), 1.1f);
    raw_uint(&sampling, S(MAX_NEW_TOKENS), 64);
    raw_uint(&sampling, S(MIN_NEW_TOKENS), 1);
    raw_text(&sampling, S(STOP), "stop");
    raw_text(&sampling, S(STOP), "héé");
    raw_bytes(&sampling, S(STOP_TOKEN_IDS), "\1\2\xFF\1", 4);
    raw_uint(&sampling, S(SKIP_SPECIAL_TOKENS), 1);
    raw_uint(&sampling, S(N), 1);
    raw_text(&bias, 1, "12");
    raw_float(&bias, 2, 3);
    raw_message(&sampling, S(LOGIT_BIAS), bias);
    raw_text(&sampling, S(JSON_SCHEMA), "{\"type\": [\"null\", 1.5e3]}");
    raw_value_map(&map);
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    raw_uint(&sampling, S(SAMPLING_SEED), 1234567890123);
    return sampling;
}

static rk_buf full_request(void) {
    rk_buf buf = RK_BUF_INIT, tokenized = RK_BUF_INIT, kv = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "request-é-1");
    raw_bytes(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\2\xFF\3\x80\1", 6);
    raw_text(&tokenized, RK_TS_TOKENIZED_INPUT__ORIGINAL_TEXT, "text");
    raw_message(&buf, G(TOKENIZED), tokenized);
    raw_message(&buf, G(SAMPLING_PARAMS), full_sampling());
    raw_uint(&buf, G(RETURN_LOGPROB), 1);
    raw_uint(&buf, G(LOGPROB_START_LEN), 0);
    raw_uint(&buf, G(TOP_LOGPROBS_NUM), 2);
    raw_bytes(&buf, G(TOKEN_IDS_LOGPROB), "\5\6", 2);
    raw_uint(&buf, G(STREAM), 1);
    raw_text(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_HOST, "10.0.0.1");
    raw_uint(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_PORT, 8998);
    raw_uint(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_ROOM, UINT64_C(1) << 62);
    raw_message(&buf, G(KV_BOOTSTRAP_INFO), kv);
    raw_uint(&buf, G(DATA_PARALLEL_RANK), 1);
    return buf;
}

/* ---- what any accepted request must be like ---- */

static void check_text(rk_text text) {
    ck_assert_int_eq(text.data[text.bytes], '\0');
    ck_assert(rk_utf8_valid(text.data, text.bytes));
}

static void check_tree(const rk_value *value, unsigned depth) {
    ck_assert_uint_le(depth, 64);
    if (value->kind == RK_VALUE_NUMBER)
        ck_assert(isfinite(value->number));
    if (value->kind == RK_VALUE_STRING)
        check_text((rk_text){value->string, value->string_bytes});
    for (size_t i = 0; i < value->count; i++) {
        if (value->kind == RK_VALUE_MAP)
            check_text((rk_text){value->keys[i], strlen(value->keys[i])});
        check_tree(value->items[i], depth + 1);
    }
}

static void check_sampling(const rk_sampling *s) {
    ck_assert(!(s->has & RK_HAS_TEMPERATURE) || (s->temperature >= 0 && isfinite(s->temperature)));
    ck_assert(!(s->has & RK_HAS_TOP_P) || (s->top_p > 0 && s->top_p <= 1));
    ck_assert(!(s->has & RK_HAS_MIN_P) || (s->min_p >= 0 && s->min_p <= 1));
    ck_assert(!(s->has & RK_HAS_TOP_K) || s->top_k == -1 || s->top_k > 0);
    ck_assert(!(s->has & RK_HAS_FREQUENCY_PENALTY) || fabsf(s->frequency_penalty) <= 2);
    ck_assert(!(s->has & RK_HAS_PRESENCE_PENALTY) || fabsf(s->presence_penalty) <= 2);
    ck_assert(!(s->has & RK_HAS_REPETITION_PENALTY) ||
              (s->repetition_penalty > 0 && s->repetition_penalty <= 2));
    ck_assert(!(s->has & RK_HAS_MAX_NEW_TOKENS) || s->min_new_tokens <= s->max_new_tokens);
    ck_assert(!(s->has & RK_HAS_SEED) || s->seed <= INT64_MAX);
    for (size_t i = 0; i < s->stop_count; i++)
        check_text(s->stop[i]);
    for (size_t i = 0; i < s->logit_bias_count; i++) {
        check_text(s->logit_bias[i].token);
        ck_assert_int_lt(atoi(s->logit_bias[i].token.data), 512);
        ck_assert(isfinite(s->logit_bias[i].bias));
    }
    if (s->constraint != RK_CONSTRAINT_NONE)
        check_text(s->constraint_text);
    if (s->custom_params)
        check_tree(s->custom_params, 0);
}

static void check_request(const rk_request *r) {
    check_text(r->request_id);
    ck_assert(r->request_id.bytes >= 1 && r->request_id.bytes <= 512);
    ck_assert_uint_eq(strlen(r->request_id.data), r->request_id.bytes);
    ck_assert(r->input_count > 0 && r->input_count < 100);
    for (size_t i = 0; i < r->input_count; i++)
        ck_assert_uint_lt(r->input_ids[i], 512);
    for (size_t i = 0; i < r->token_id_logprob_count; i++)
        ck_assert_uint_lt(r->token_ids_logprob[i], 512);
    check_sampling(&r->sampling);
    ck_assert_uint_eq(r->n, 1);
    ck_assert(r->logprob_start_len >= -1 && r->top_logprobs_num >= 0);
    ck_assert(r->has_bootstrap && r->bootstrap_port >= 1 && r->bootstrap_port <= 65535);
    check_text(r->bootstrap_host);
    ck_assert(r->bootstrap_room > 0 || strcmp(r->bootstrap_host.data, "2.2.2.2") == 0);
    ck_assert(!r->has_rank || (r->rank >= 0 && r->rank < 2));
}

/* Refused in one line, or a request that keeps to the rules; true when it was a request. */
static bool harmless(const rk_buf *buf) {
    rk_request *r;
    rk_status status;
    rk_code code = decode_generate(buf, &limits, &r, &status);
    if (code != RK_OK) {
        ck_assert(code == RK_INVALID_ARGUMENT || code == RK_UNIMPLEMENTED || code == RK_RESOURCE_EXHAUSTED);
        return false;
    }
    check_request(r);
    rk_request_unref(r);
    return true;
}

START_TEST(the_full_request_is_a_good_one) {
    rk_buf buf = full_request();
    ck_assert(harmless(&buf));
    rk_buf_free(&buf);
}
END_TEST

/* ---- no message ---- */

START_TEST(a_call_without_a_message_is_told_so) {
    const rk_dialect *d = &rk_dialect_tokenspeed;
    rk_request *r;
    rk_status s;
    char id[513];
    size_t id_bytes;
    rk_loads_query query;
    ck_assert_int_eq(d->decode_generate(NULL, 0, &limits, NULL, &r, &s), RK_INVALID_ARGUMENT);
    ck_assert_str_eq(s.text,
                     "the call has no message; send one GenerateRequest before closing the sending side");
    ck_assert_ptr_null(r);
    ck_assert_int_eq(d->decode_abort(NULL, 0, id, &id_bytes, &s), RK_INVALID_ARGUMENT);
    ck_assert_str_eq(s.text,
                     "the call has no message; send one AbortRequest before closing the sending side");
    ck_assert_int_eq(d->decode_empty(NULL, 0, &s), RK_INVALID_ARGUMENT);
    ck_assert_int_eq(d->decode_loads(NULL, 0, &query, &s), RK_INVALID_ARGUMENT);
}
END_TEST

START_TEST(a_message_cut_anywhere_is_refused_or_still_right) {
    rk_buf buf = full_request();
    size_t whole = buf.size;
    for (size_t size = 0; size < whole; size++) {
        buf.size = size;
        (void)harmless(&buf);
    }
    rk_buf_free(&buf);
}
END_TEST

START_TEST(a_message_cut_within_a_field_says_where) {
    rk_buf buf = full_request();
    buf.size = 5;
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "GenerateRequest is not a protobuf message: it breaks at byte 0 of its 5; check the client's "
            "encoding");
    rk_buf broken = RK_BUF_INIT;
    raw_bytes(&broken, G(SAMPLING_PARAMS), "\x0D\0\0", 3);
    refuses(broken, &limits, RK_INVALID_ARGUMENT,
            "sampling_params is not a protobuf message: it breaks at byte 0 of its 3; check the client's "
            "encoding");
}
END_TEST

static const struct {
    const char *bytes;
    size_t size;
} malformed[] = {
    {"\x00\x01", 2},                                          /* field number 0 */
    {"\x80\x80\x80\x80\x10\x00", 6},                          /* a tag of 33 bits */
    {"\x0E\x00", 2},                                          /* wire type 6 */
    {"\x0F\x00", 2},                                          /* wire type 7 */
    {"\x0C", 1},                                              /* a group ends that never began */
    {"\xA3\x06\x08\x01", 4},                                  /* a group that does not end */
    {"\xA3\x06\x9C\x06", 4},                                  /* a group that ends as another */
    {"\x20\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02", 11},     /* a varint of more than 64 bits */
    {"\x20\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 12}, /* a varint of 11 bytes */
    {"\x20", 1},                                              /* a tag and nothing */
    {"\x0A\xFF\xFF\xFF\xFF\x0F", 6},                          /* 4 GiB are announced */
    {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11},     /* 2^64 - 1 bytes are announced */
};

START_TEST(what_is_not_well_formed_is_refused) {
    rk_buf buf = full_request();
    size_t at = buf.size;
    char text[160];
    rk_buf_append(&buf, malformed[_i].bytes, malformed[_i].size);
    (void)snprintf(
        text, sizeof text,
        "GenerateRequest is not a protobuf message: it breaks at byte %zu of its %zu; check the client's "
        "encoding",
        at, buf.size);
    refuses(buf, &limits, RK_INVALID_ARGUMENT, text);
}
END_TEST

START_TEST(packed_ids_that_end_within_an_id_are_refused) {
    rk_buf buf = RK_BUF_INIT, tokenized = RK_BUF_INIT;
    raw_bytes(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\2\x80", 3);
    raw_text(&buf, G(REQUEST_ID), "r");
    raw_message(&buf, G(TOKENIZED), tokenized);
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "tokenized.input_ids is not a protobuf message: it breaks at byte 3 of its 3; check the client's "
            "encoding");
}
END_TEST

START_TEST(groups_have_a_depth_too) {
    rk_buf buf = full_request();
    for (int i = 0; i < 1000; i++)
        raw_tag(&buf, 100, GROUP);
    for (int i = 0; i < 1000; i++)
        raw_tag(&buf, 100, END_GROUP);
    ck_assert(!harmless(&buf));
    rk_buf_free(&buf);
}
END_TEST

/* ---- wire types ---- */

/* Every field with its path and the wire types that it takes, as bits. */
typedef struct field_types {
    uint32_t outer;  /* field of GenerateRequest; 0: `number` is one */
    uint32_t number; /* field of that message */
    unsigned types;
    const char *path;
} field_types;

#define V (1u << VARINT)
#define B (1u << BYTES)
#define F (1u << FIXED32)

static const field_types fields[] = {
    {0, G(REQUEST_ID), B, "request_id"},
    {0, G(TOKENIZED), B, "tokenized"},
    {0, G(SAMPLING_PARAMS), B, "sampling_params"},
    {0, G(RETURN_LOGPROB), V, "return_logprob"},
    {0, G(LOGPROB_START_LEN), V, "logprob_start_len"},
    {0, G(TOP_LOGPROBS_NUM), V, "top_logprobs_num"},
    {0, G(TOKEN_IDS_LOGPROB), V | B, "token_ids_logprob"},
    {0, G(STREAM), V, "stream"},
    {0, G(MM_INPUTS), B, "mm_inputs"},
    {0, G(ENCODE_BOOTSTRAP_INFO), B, "encode_bootstrap_info"},
    {0, G(KV_BOOTSTRAP_INFO), B, "kv_bootstrap_info"},
    {0, G(DATA_PARALLEL_RANK), V, "data_parallel_rank"},
    {G(TOKENIZED), RK_TS_TOKENIZED_INPUT__INPUT_IDS, V | B, "tokenized.input_ids"},
    {G(TOKENIZED), RK_TS_TOKENIZED_INPUT__ORIGINAL_TEXT, B, "tokenized.original_text"},
    {G(KV_BOOTSTRAP_INFO), RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_HOST, B, "kv_bootstrap_info.bootstrap_host"},
    {G(KV_BOOTSTRAP_INFO), RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_PORT, V, "kv_bootstrap_info.bootstrap_port"},
    {G(KV_BOOTSTRAP_INFO), RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_ROOM, V, "kv_bootstrap_info.bootstrap_room"},
    {G(SAMPLING_PARAMS), S(TEMPERATURE), F, "sampling_params.temperature"},
    {G(SAMPLING_PARAMS), S(TOP_P), F, "sampling_params.top_p"},
    {G(SAMPLING_PARAMS), S(TOP_K), V, "sampling_params.top_k"},
    {G(SAMPLING_PARAMS), S(MIN_P), F, "sampling_params.min_p"},
    {G(SAMPLING_PARAMS), S(FREQUENCY_PENALTY), F, "sampling_params.frequency_penalty"},
    {G(SAMPLING_PARAMS), S(PRESENCE_PENALTY), F, "sampling_params.presence_penalty"},
    {G(SAMPLING_PARAMS), S(REPETITION_PENALTY), F, "sampling_params.repetition_penalty"},
    {G(SAMPLING_PARAMS), S(MAX_NEW_TOKENS), V, "sampling_params.max_new_tokens"},
    {G(SAMPLING_PARAMS), S(MIN_NEW_TOKENS), V, "sampling_params.min_new_tokens"},
    {G(SAMPLING_PARAMS), S(STOP), B, "sampling_params.stop"},
    {G(SAMPLING_PARAMS), S(STOP_TOKEN_IDS), V | B, "sampling_params.stop_token_ids"},
    {G(SAMPLING_PARAMS), S(IGNORE_EOS), V, "sampling_params.ignore_eos"},
    {G(SAMPLING_PARAMS), S(SKIP_SPECIAL_TOKENS), V, "sampling_params.skip_special_tokens"},
    {G(SAMPLING_PARAMS), S(SPACES_BETWEEN_SPECIAL_TOKENS), V,
     "sampling_params.spaces_between_special_tokens"},
    {G(SAMPLING_PARAMS), S(N), V, "sampling_params.n"},
    {G(SAMPLING_PARAMS), S(LOGIT_BIAS), B, "sampling_params.logit_bias"},
    {G(SAMPLING_PARAMS), S(REGEX), B, "sampling_params.regex"},
    {G(SAMPLING_PARAMS), S(JSON_SCHEMA), B, "sampling_params.json_schema"},
    {G(SAMPLING_PARAMS), S(EBNF_GRAMMAR), B, "sampling_params.ebnf_grammar"},
    {G(SAMPLING_PARAMS), S(STRUCTURAL_TAG), B, "sampling_params.structural_tag"},
    {G(SAMPLING_PARAMS), S(CUSTOM_PARAMS), B, "sampling_params.custom_params"},
    {G(SAMPLING_PARAMS), S(NO_STOP_TRIM), V, "sampling_params.no_stop_trim"},
    {G(SAMPLING_PARAMS), S(SAMPLING_SEED), V, "sampling_params.sampling_seed"},
};

static void check_wrong_type(const field_types *field, unsigned type) {
    static const char *const names[] = {"varint", "64-bit", "length-delimited", "group", "", "32-bit"};
    rk_buf buf = RK_BUF_INIT, part = RK_BUF_INIT;
    rk_request *r;
    rk_status status;
    char head[160];
    raw_field(field->outer ? &part : &buf, field->number, type);
    if (field->outer)
        raw_message(&buf, field->outer, part);
    ck_assert_int_eq(decode_generate(&buf, &limits, &r, &status), RK_INVALID_ARGUMENT);
    (void)snprintf(head, sizeof head, "%s has the wire type %s; it must be ", field->path, names[type]);
    bool named = strncmp(status.text, head, strlen(head)) == 0;
    ck_assert_msg(named == !(field->types & 1u << type), "%s, type %u: %s", field->path, type, status.text);
    rk_buf_free(&buf);
}

START_TEST(a_field_of_the_wrong_wire_type_is_named) {
    for (unsigned type = 0; type <= FIXED32; type++)
        if (type != END_GROUP)
            check_wrong_type(&fields[_i], type);
}
END_TEST

/* ---- text ---- */

START_TEST(text_that_is_not_utf8_is_named) {
    static const char *const bad[] = {"\xFF\xFE", "ok\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF5\x80\x80\x80"};
    const field_types *field = &fields[_i];
    char line[160];
    static const char *const no_texts[] = {"tokenized",
                                           "sampling_params",
                                           "mm_inputs",
                                           "encode_bootstrap_info",
                                           "kv_bootstrap_info",
                                           "sampling_params.logit_bias",
                                           "sampling_params.custom_params"};
    for (size_t i = 0; i < sizeof no_texts / sizeof no_texts[0]; i++)
        if (strcmp(field->path, no_texts[i]) == 0)
            return;
    if (field->types != B)
        return;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rk_buf buf = full_request(), part = RK_BUF_INIT;
        raw_text(field->outer ? &part : &buf, field->number, bad[i]);
        if (field->outer)
            raw_message(&buf, field->outer, part);
        (void)snprintf(line, sizeof line,
                       "%s is not valid UTF-8; send text, or bytes that are encoded as text", field->path);
        refuses(buf, &limits, RK_INVALID_ARGUMENT, line);
    }
}
END_TEST

START_TEST(text_in_maps_is_utf8_too) {
    for (int where = 0; where < 3; where++) {
        rk_buf buf = full_request(), sampling = RK_BUF_INIT, entry = RK_BUF_INIT, map = RK_BUF_INIT;
        rk_buf value = RK_BUF_INIT;
        if (where == 0) {
            raw_text(&entry, 1, "\xFF");
            raw_message(&sampling, S(LOGIT_BIAS), entry);
        } else {
            raw_text(where == 1 ? &entry : &value, where == 1 ? 1 : RK_PB_VALUE__STRING_VALUE, "\xFF");
            if (where == 2)
                raw_message(&entry, 2, value);
            raw_message(&map, RK_PB_STRUCT__FIELDS, entry);
            raw_message(&sampling, S(CUSTOM_PARAMS), map);
        }
        raw_message(&buf, G(SAMPLING_PARAMS), sampling);
        refuses(
            buf, &limits, RK_INVALID_ARGUMENT,
            where
                ? "sampling_params.custom_params is not valid UTF-8; send text, or bytes that are encoded as "
                  "text"
                : "sampling_params.logit_bias key is not valid UTF-8; send text, or bytes that are encoded "
                  "as "
                  "text");
    }
}
END_TEST

/* ---- depth ---- */

/* custom_params with a list within a list …, `lists` of them: each is a Value and a ListValue. */
static rk_buf nested(unsigned lists) {
    rk_buf value = RK_BUF_INIT;
    for (unsigned i = 0; i < lists; i++) {
        rk_buf list = RK_BUF_INIT, outer = RK_BUF_INIT;
        if (i > 0)
            raw_message(&list, RK_PB_LIST_VALUE__VALUES, value);
        raw_message(&outer, RK_PB_VALUE__LIST_VALUE, list);
        value = outer;
    }
    rk_buf buf = full_request(), sampling = RK_BUF_INIT, map = RK_BUF_INIT, entry = RK_BUF_INIT;
    raw_message(&entry, 2, value);
    raw_message(&map, RK_PB_STRUCT__FIELDS, entry);
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    raw_message(&buf, G(SAMPLING_PARAMS), sampling);
    return buf;
}

START_TEST(messages_may_be_64_deep_and_no_deeper) {
    /* GenerateRequest, SamplingParams, Struct and its entry are 4, each list is 2 more */
    rk_request *r = accepts(nested(30), &limits);
    check_request(r);
    rk_request_unref(r);
    refuses(nested(31), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.custom_params is nested too deeply; a message may be at most 64 deep");
}
END_TEST

START_TEST(a_message_that_is_all_nesting_overflows_nothing) {
    rk_buf buf = nested(8500);
    ck_assert_uint_gt(buf.size, 34 * 1024);
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "sampling_params.custom_params is nested too deeply; a message may be at most 64 deep");
}
END_TEST

/* ---- random ---- */

static void mutate(rk_buf *buf, uint64_t *state) {
    size_t at = (size_t)random_below(state, buf->size);
    size_t other = (size_t)random_below(state, buf->size);
    size_t low = at < other ? at : other;
    size_t high = at < other ? other : at;
    switch (random_below(state, 6)) {
    case 0:
        buf->data[at] ^= (uint8_t)(1u << random_below(state, 8));
        break;
    case 1:
        buf->data[at] = (uint8_t)next_random(state);
        break;
    case 2:
        buf->data[at] = (uint8_t)(random_below(state, 2) ? 0xFF : 0x80);
        break;
    case 3: /* a piece taken out */
        memmove(buf->data + low, buf->data + high, buf->size - high);
        buf->size -= high - low;
        break;
    case 4: /* a piece copied over another */
        memmove(buf->data + at, buf->data + other, (buf->size - high) % 9);
        break;
    default:
        buf->size = at + 1;
        break;
    }
}

START_TEST(a_hundred_thousand_mutations_do_no_harm) {
    rk_buf good = full_request();
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)_i;
    unsigned accepted = 0;
    for (int round = 0; round < 25000; round++) {
        rk_buf buf = RK_BUF_INIT;
        rk_buf_append(&buf, good.data, good.size);
        for (uint64_t i = random_below(&state, 4) + 1; i > 0; i--)
            mutate(&buf, &state);
        accepted += harmless(&buf);
        rk_buf_free(&buf);
    }
    ck_assert_uint_gt(accepted, 0); /* else the checks of accepted ones have seen nothing */
    ck_assert_uint_lt(accepted, 25000);
    rk_buf_free(&good);
}
END_TEST

START_TEST(random_bytes_do_no_harm_to_any_decoder) {
    const rk_dialect *d = &rk_dialect_tokenspeed;
    uint64_t state = 77;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[48];
        size_t size = (size_t)random_below(&state, sizeof bytes);
        char id[513];
        size_t id_bytes;
        rk_loads_query query;
        rk_status status;
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(i % 2 ? next_random(&state) : random_below(&state, 32));
        if (d->decode_abort(bytes, size, id, &id_bytes, &status) == RK_OK) {
            ck_assert(id_bytes >= 1 && id_bytes <= 512 && strlen(id) == id_bytes);
            ck_assert(rk_utf8_valid(id, id_bytes));
        } else {
            check_line(&status);
        }
        if (d->decode_loads(bytes, size, &query, &status) != RK_OK)
            check_line(&status);
        if (d->decode_empty(bytes, size, &status) != RK_OK)
            check_line(&status);
    }
}
END_TEST

#define LOOP(tcase, test, table) tcase_add_loop_test(tcase, test, 0, (int)(sizeof table / sizeof table[0]))

int main(void) {
    TCase *form = tcase_create("form");
    tcase_add_checked_fixture(form, setup, NULL);
    tcase_add_test(form, the_full_request_is_a_good_one);
    tcase_add_test(form, a_call_without_a_message_is_told_so);
    tcase_add_test(form, a_message_cut_anywhere_is_refused_or_still_right);
    tcase_add_test(form, a_message_cut_within_a_field_says_where);
    LOOP(form, what_is_not_well_formed_is_refused, malformed);
    tcase_add_test(form, packed_ids_that_end_within_an_id_are_refused);
    tcase_add_test(form, groups_have_a_depth_too);
    LOOP(form, a_field_of_the_wrong_wire_type_is_named, fields);
    LOOP(form, text_that_is_not_utf8_is_named, fields);
    tcase_add_test(form, text_in_maps_is_utf8_too);
    tcase_add_test(form, messages_may_be_64_deep_and_no_deeper);
    tcase_add_test(form, a_message_that_is_all_nesting_overflows_nothing);
    TCase *random = tcase_create("random");
    tcase_add_checked_fixture(random, setup, NULL);
    tcase_set_timeout(random, 100);
    tcase_add_loop_test(random, a_hundred_thousand_mutations_do_no_harm, 0, 4);
    tcase_add_test(random, random_bytes_do_no_harm_to_any_decoder);
    Suite *suite = suite_create("dialect_bytes");
    suite_add_tcase(suite, form);
    suite_add_tcase(suite, random);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
