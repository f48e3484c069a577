/* GenerateRequest: every field from wire to request, and how messages merge. What is refused is in
 * test_dialect_rules.c, bytes that are no message in test_dialect_bytes.c. */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "rk_proto/fields.h"
#include "tokenspeed_scheduler.pb-c.h"

static rk_limits limits;

static void setup(void) {
    limits = plain_limits();
}

/* An id and a prompt of 3 tokens; `sampling`, when it holds something, goes in and is freed. */
static rk_buf request_with(rk_buf sampling) {
    rk_buf buf = RK_BUF_INIT;
    rk_buf tokenized = RK_BUF_INIT;
    raw_text(&buf, RK_TS_GENERATE_REQUEST__REQUEST_ID, "r");
    raw_bytes(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\2\3", 3);
    raw_message(&buf, RK_TS_GENERATE_REQUEST__TOKENIZED, tokenized);
    if (sampling.size)
        raw_message(&buf, RK_TS_GENERATE_REQUEST__SAMPLING_PARAMS, sampling);
    return buf;
}

static void check_ids(const uint32_t *ids, size_t count, size_t wanted, ...) {
    va_list args;
    ck_assert_uint_eq(count, wanted);
    va_start(args, wanted);
    for (size_t i = 0; i < wanted; i++)
        ck_assert_uint_eq(ids[i], va_arg(args, uint32_t));
    va_end(args);
}

START_TEST(an_id_and_a_prompt_are_enough_and_the_rest_is_off) {
    rk_request *r = accepts(request_with((rk_buf)RK_BUF_INIT), &limits);
    ck_assert_uint_eq(r->request_id.bytes, 1);
    ck_assert_str_eq(r->request_id.data, "r");
    check_ids(r->input_ids, r->input_count, 3, 1u, 2u, 3u);
    ck_assert_uint_eq(r->n, 1);
    ck_assert_uint_eq(r->sampling.has, 0);
    ck_assert_int_eq(r->logprob_start_len, -1);
    ck_assert(!r->stream && !r->return_logprob && !r->has_bootstrap && !r->has_rank);
    ck_assert_uint_eq(r->sampling.stop_count + r->sampling.stop_token_id_count + r->sampling.logit_bias_count,
                      0);
    ck_assert_uint_eq(r->token_id_logprob_count, 0);
    ck_assert_int_eq(r->sampling.constraint, RK_CONSTRAINT_NONE);
    ck_assert_ptr_null(r->sampling.custom_params);
    ck_assert(!r->sampling.ignore_eos && !r->sampling.skip_special_tokens);
    ck_assert(!r->sampling.spaces_between_special_tokens && !r->sampling.no_stop_trim);
    rk_request_unref(r);
}
END_TEST

/* ---- every field, packed by another implementation ---- */

#define TS(name) Tokenspeed__Grpc__Scheduler__##name
#define TS_INIT(name) TOKENSPEED__GRPC__SCHEDULER__##name##__INIT

static void fill_sampling(TS(SamplingParams) * s) {
    static char *stop[] = {"one", "", "drei €"};
    static uint32_t stop_ids[] = {7, 300};
    static TS(SamplingParams__LogitBiasEntry) bias[2];
    static TS(SamplingParams__LogitBiasEntry) * biases[] = {&bias[0], &bias[1]};
    tokenspeed__grpc__scheduler__sampling_params__logit_bias_entry__init(&bias[0]);
    tokenspeed__grpc__scheduler__sampling_params__logit_bias_entry__init(&bias[1]);
    bias[0].key = "17";
    bias[0].value = -1.5f;
    bias[1].key = "511";
    bias[1].value = 100;
    s->_temperature_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    s->temperature = 0.25f;
    s->_top_p_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___TOP_P_TOP_P;
    s->top_p = 0.5f;
    s->_top_k_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___TOP_K_TOP_K;
    s->top_k = 40;
    s->_min_p_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___MIN_P_MIN_P;
    s->min_p = 0.125f;
    s->_frequency_penalty_case =
        TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___FREQUENCY_PENALTY_FREQUENCY_PENALTY;
    s->frequency_penalty = -2;
    s->_presence_penalty_case =
        TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___PRESENCE_PENALTY_PRESENCE_PENALTY;
    s->presence_penalty = 2;
    s->_repetition_penalty_case =
        TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___REPETITION_PENALTY_REPETITION_PENALTY;
    s->repetition_penalty = 1.25f;
    s->_max_new_tokens_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS;
    s->max_new_tokens = 4000000000u;
    s->_sampling_seed_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___SAMPLING_SEED_SAMPLING_SEED;
    s->sampling_seed = (uint64_t)INT64_MAX - 2;
    s->min_new_tokens = 5;
    s->n = 3;
    s->ignore_eos = s->skip_special_tokens = s->spaces_between_special_tokens = s->no_stop_trim = true;
    s->stop = stop;
    s->n_stop = 3;
    s->stop_token_ids = stop_ids;
    s->n_stop_token_ids = 2;
    s->logit_bias = biases;
    s->n_logit_bias = 2;
    s->constraint_case = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_EBNF_GRAMMAR;
    s->ebnf_grammar = "root ::= \"a\"";
}

static rk_buf everything(void) {
    static uint32_t prompt[] = {0, 1, 127, 128, 300, 511};
    static uint32_t logprob_ids[] = {3, 4};
    TS(GenerateRequest) r = TS_INIT(GENERATE_REQUEST);
    TS(TokenizedInput) tokenized = TS_INIT(TOKENIZED_INPUT);
    TS(SamplingParams) sampling = TS_INIT(SAMPLING_PARAMS);
    TS(KvBootstrapInfo) kv = TS_INIT(KV_BOOTSTRAP_INFO);
    tokenized.input_ids = prompt;
    tokenized.n_input_ids = 6;
    tokenized.original_text = "hello";
    fill_sampling(&sampling);
    kv.bootstrap_host = "prefill.example";
    kv.bootstrap_port = 8998;
    kv.bootstrap_room = INT64_MAX;
    r.request_id = "gen-ü";
    r.tokenized = &tokenized;
    r.sampling_params = &sampling;
    r.return_logprob = true;
    r._logprob_start_len_case =
        TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST___LOGPROB_START_LEN_LOGPROB_START_LEN;
    r.logprob_start_len = 0;
    r.top_logprobs_num = 5;
    r.token_ids_logprob = logprob_ids;
    r.n_token_ids_logprob = 2;
    r.stream = true;
    r._kv_bootstrap_info_case =
        TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST___KV_BOOTSTRAP_INFO_KV_BOOTSTRAP_INFO;
    r.kv_bootstrap_info = &kv;
    r._data_parallel_rank_case =
        TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST___DATA_PARALLEL_RANK_DATA_PARALLEL_RANK;
    r.data_parallel_rank = 1;
    rk_buf buf = RK_BUF_INIT;
    uint8_t *at = rk_buf_extend(&buf, tokenspeed__grpc__scheduler__generate_request__get_packed_size(&r));
    tokenspeed__grpc__scheduler__generate_request__pack(&r, at);
    return buf;
}

static void check_sampling(const rk_sampling *s) {
    ck_assert_uint_eq(s->has, 0x1FF);
    ck_assert_float_eq(s->temperature, 0.25f);
    ck_assert_float_eq(s->top_p, 0.5f);
    ck_assert_int_eq(s->top_k, 40);
    ck_assert_float_eq(s->min_p, 0.125f);
    ck_assert_float_eq(s->frequency_penalty, -2);
    ck_assert_float_eq(s->presence_penalty, 2);
    ck_assert_float_eq(s->repetition_penalty, 1.25f);
    ck_assert_uint_eq(s->max_new_tokens, 4000000000u);
    ck_assert_uint_eq(s->seed, (uint64_t)INT64_MAX - 2);
    ck_assert_uint_eq(s->min_new_tokens, 5);
    ck_assert(s->ignore_eos && s->skip_special_tokens && s->spaces_between_special_tokens && s->no_stop_trim);
    ck_assert_uint_eq(s->stop_count, 3);
    ck_assert_str_eq(s->stop[0].data, "one");
    ck_assert_str_eq(s->stop[1].data, "");
    ck_assert_str_eq(s->stop[2].data, "drei €");
    ck_assert_uint_eq(s->stop[2].bytes, strlen("drei €"));
    check_ids(s->stop_token_ids, s->stop_token_id_count, 2, 7u, 300u);
    ck_assert_uint_eq(s->logit_bias_count, 2);
    ck_assert_str_eq(s->logit_bias[0].token.data, "17");
    ck_assert_float_eq(s->logit_bias[0].bias, -1.5f);
    ck_assert_str_eq(s->logit_bias[1].token.data, "511");
    ck_assert_float_eq(s->logit_bias[1].bias, 100);
    ck_assert_int_eq(s->constraint, RK_CONSTRAINT_EBNF);
    ck_assert_str_eq(s->constraint_text.data, "root ::= \"a\"");
}

START_TEST(every_field_arrives) {
    limits.rooms = false; /* rooms would want n = 1 or no bootstrap info */
    rk_request *r = accepts(everything(), &limits);
    ck_assert_str_eq(r->request_id.data, "gen-ü");
    check_ids(r->input_ids, r->input_count, 6, 0u, 1u, 127u, 128u, 300u, 511u);
    check_sampling(&r->sampling);
    ck_assert_uint_eq(r->n, 3);
    ck_assert(r->stream && r->return_logprob);
    ck_assert_int_eq(r->logprob_start_len, 0);
    ck_assert_int_eq(r->top_logprobs_num, 5);
    check_ids(r->token_ids_logprob, r->token_id_logprob_count, 2, 3u, 4u);
    ck_assert(r->has_bootstrap);
    ck_assert_str_eq(r->bootstrap_host.data, "prefill.example");
    ck_assert_int_eq(r->bootstrap_port, 8998);
    ck_assert_int_eq(r->bootstrap_room, INT64_MAX);
    ck_assert(r->has_rank);
    ck_assert_int_eq(r->rank, 1);
    rk_request_unref(r);
}
END_TEST

START_TEST(each_constraint_is_known_by_its_kind) {
    const struct {
        uint32_t number;
        rk_constraint kind;
    } kinds[] = {{RK_TS_SAMPLING_PARAMS__REGEX, RK_CONSTRAINT_REGEX},
                 {RK_TS_SAMPLING_PARAMS__JSON_SCHEMA, RK_CONSTRAINT_JSON_SCHEMA},
                 {RK_TS_SAMPLING_PARAMS__EBNF_GRAMMAR, RK_CONSTRAINT_EBNF},
                 {RK_TS_SAMPLING_PARAMS__STRUCTURAL_TAG, RK_CONSTRAINT_STRUCTURAL_TAG}};
    rk_buf sampling = RK_BUF_INIT;
    raw_text(&sampling, RK_TS_SAMPLING_PARAMS__REGEX, "first");
    raw_text(&sampling, kinds[_i].number, "{}");
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_int_eq(r->sampling.constraint, kinds[_i].kind); /* of a oneof the last one counts */
    ck_assert_str_eq(r->sampling.constraint_text.data, "{}");
    rk_request_unref(r);
}
END_TEST

/* ---- zero and absent ---- */

START_TEST(an_optional_zero_is_there_and_an_absent_one_is_not) {
    rk_buf sampling = RK_BUF_INIT;
    raw_float(&sampling, RK_TS_SAMPLING_PARAMS__TEMPERATURE, 0);
    raw_float(&sampling, RK_TS_SAMPLING_PARAMS__MIN_P, 0);
    raw_float(&sampling, RK_TS_SAMPLING_PARAMS__FREQUENCY_PENALTY, -0.0f);
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__MAX_NEW_TOKENS, 0);
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__SAMPLING_SEED, 0);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.has, RK_HAS_TEMPERATURE | RK_HAS_MIN_P | RK_HAS_FREQUENCY_PENALTY |
                                           RK_HAS_MAX_NEW_TOKENS | RK_HAS_SEED);
    ck_assert_float_eq(r->sampling.temperature, 0);
    rk_request_unref(r);
}
END_TEST

START_TEST(top_k_0_and_minus_1_are_both_off) {
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__TOP_K, _i ? UINT64_MAX : 0);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.has, RK_HAS_TOP_K);
    ck_assert_int_eq(r->sampling.top_k, -1);
    rk_request_unref(r);
}
END_TEST

START_TEST(no_choices_are_one_choice) {
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__N, 0);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->n, 1);
    rk_request_unref(r);
}
END_TEST

/* ---- merging ---- */

START_TEST(ids_keep_their_order_packed_unpacked_and_in_pieces) {
    rk_buf buf = RK_BUF_INIT;
    rk_buf first = RK_BUF_INIT;
    rk_buf second = RK_BUF_INIT;
    raw_text(&buf, RK_TS_GENERATE_REQUEST__REQUEST_ID, "r");
    raw_uint(&first, RK_TS_TOKENIZED_INPUT__INPUT_IDS, 300);
    raw_bytes(&first, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\x80\x01\2", 4);
    raw_bytes(&first, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "", 0);
    raw_uint(&second, RK_TS_TOKENIZED_INPUT__INPUT_IDS, 0);
    raw_bytes(&second, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\xFF\x80\x00\x04",
              4); /* 127, not in its shortest form */
    raw_message(&buf, RK_TS_GENERATE_REQUEST__TOKENIZED, first);
    raw_message(&buf, RK_TS_GENERATE_REQUEST__TOKENIZED, second);
    rk_request *r = accepts(buf, &limits);
    check_ids(r->input_ids, r->input_count, 7, 300u, 1u, 128u, 2u, 0u, 127u, 4u);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_message_in_two_pieces_loses_nothing) {
    rk_buf buf = RK_BUF_INIT;
    rk_buf first = RK_BUF_INIT;
    rk_buf second = RK_BUF_INIT;
    raw_float(&first, RK_TS_SAMPLING_PARAMS__TEMPERATURE, 0.5f);
    raw_float(&first, RK_TS_SAMPLING_PARAMS__TOP_P, 0.5f);
    raw_text(&first, RK_TS_SAMPLING_PARAMS__STOP, "a");
    raw_float(&second, RK_TS_SAMPLING_PARAMS__TOP_P, 0.75f);
    raw_text(&second, RK_TS_SAMPLING_PARAMS__STOP, "b");
    raw_message(&buf, RK_TS_GENERATE_REQUEST__SAMPLING_PARAMS, first);
    rk_buf rest = request_with(second);
    rk_buf_append(&buf, rest.data, rest.size);
    rk_buf_free(&rest);
    rk_request *r = accepts(buf, &limits);
    ck_assert_uint_eq(r->sampling.has, RK_HAS_TEMPERATURE | RK_HAS_TOP_P);
    ck_assert_float_eq(r->sampling.temperature, 0.5f);
    ck_assert_float_eq(r->sampling.top_p, 0.75f);
    ck_assert_uint_eq(r->sampling.stop_count, 2);
    ck_assert_str_eq(r->sampling.stop[0].data, "a");
    ck_assert_str_eq(r->sampling.stop[1].data, "b");
    rk_request_unref(r);
}
END_TEST

START_TEST(bootstrap_info_in_pieces_is_one) {
    limits.role = RK_ROLE_DECODE;
    rk_buf buf = request_with((rk_buf)RK_BUF_INIT);
    rk_buf host = RK_BUF_INIT;
    rk_buf room = RK_BUF_INIT;
    raw_text(&host, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_HOST, "h");
    raw_uint(&host, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_PORT, 1);
    raw_uint(&room, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_ROOM, 9);
    raw_message(&buf, RK_TS_GENERATE_REQUEST__KV_BOOTSTRAP_INFO, host);
    raw_message(&buf, RK_TS_GENERATE_REQUEST__KV_BOOTSTRAP_INFO, room);
    rk_request *r = accepts(buf, &limits);
    ck_assert_str_eq(r->bootstrap_host.data, "h");
    ck_assert_int_eq(r->bootstrap_port, 1);
    ck_assert_int_eq(r->bootstrap_room, 9);
    rk_request_unref(r);
}
END_TEST

START_TEST(fields_that_nobody_knows_are_skipped) {
    rk_buf sampling = RK_BUF_INIT;
    for (unsigned type = 0; type <= FIXED32; type++)
        if (type != END_GROUP)
            raw_field(&sampling, 1000 + type, type);
    raw_tag(&sampling, 500, GROUP);
    raw_tag(&sampling, 501, GROUP);
    raw_text(&sampling, 3, "not top_k, it is in a group");
    raw_tag(&sampling, 501, END_GROUP);
    raw_tag(&sampling, 500, END_GROUP);
    raw_uint(&sampling, 536870911, 1);
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__MIN_NEW_TOKENS, 2);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.has, 0);
    ck_assert_uint_eq(r->sampling.min_new_tokens, 2);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_text_keeps_its_nuls_where_they_mean_nothing) {
    rk_buf sampling = RK_BUF_INIT;
    raw_bytes(&sampling, RK_TS_SAMPLING_PARAMS__STOP, "a\0b", 3);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.stop[0].bytes, 3);
    ck_assert_mem_eq(r->sampling.stop[0].data, "a\0b", 4);
    rk_request_unref(r);
}
END_TEST

/* ---- maps ---- */

static void raw_bias(rk_buf *sampling, const char *key, float bias) {
    rk_buf entry = RK_BUF_INIT;
    raw_text(&entry, 1, key);
    raw_float(&entry, 2, bias);
    raw_message(sampling, RK_TS_SAMPLING_PARAMS__LOGIT_BIAS, entry);
}

START_TEST(of_a_key_that_repeats_the_last_value_counts) {
    rk_buf sampling = RK_BUF_INIT;
    raw_bias(&sampling, "7", 1);
    raw_bias(&sampling, "8", 2);
    raw_bias(&sampling, "7", 3);
    raw_bias(&sampling, "9", 4);
    raw_bias(&sampling, "8", 5);
    rk_request *r = accepts(request_with(sampling), &limits);
    const rk_logit_bias *bias = r->sampling.logit_bias;
    ck_assert_uint_eq(r->sampling.logit_bias_count, 3);
    ck_assert_str_eq(bias[0].token.data, "7");
    ck_assert_float_eq(bias[0].bias, 3);
    ck_assert_str_eq(bias[1].token.data, "9");
    ck_assert_str_eq(bias[2].token.data, "8");
    ck_assert_float_eq(bias[2].bias, 5);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_bias_without_a_value_is_zero) {
    rk_buf sampling = RK_BUF_INIT;
    rk_buf entry = RK_BUF_INIT;
    raw_text(&entry, 1, "7");
    raw_message(&sampling, RK_TS_SAMPLING_PARAMS__LOGIT_BIAS, entry);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.logit_bias_count, 1);
    ck_assert_float_eq(r->sampling.logit_bias[0].bias, 0);
    rk_request_unref(r);
}
END_TEST

/* A field of a Struct: takes the Value, frees it. */
static void raw_entry(rk_buf *map, const char *key, rk_buf value) {
    rk_buf entry = RK_BUF_INIT;
    raw_text(&entry, RK_PB_STRUCT_FIELDS_ENTRY__KEY, key);
    raw_message(&entry, RK_PB_STRUCT_FIELDS_ENTRY__VALUE, value);
    raw_message(map, RK_PB_STRUCT__FIELDS, entry);
}

static rk_buf number_value(double number) {
    rk_buf value = RK_BUF_INIT;
    raw_double(&value, RK_PB_VALUE__NUMBER_VALUE, number);
    return value;
}

static rk_buf map_value(rk_buf map) {
    rk_buf value = RK_BUF_INIT;
    raw_message(&value, RK_PB_VALUE__STRUCT_VALUE, map);
    return value;
}

static rk_request *accepts_custom(rk_buf map) {
    rk_buf sampling = RK_BUF_INIT;
    raw_message(&sampling, RK_TS_SAMPLING_PARAMS__CUSTOM_PARAMS, map);
    return accepts(request_with(sampling), &limits);
}

START_TEST(custom_params_become_a_tree_of_every_kind_of_value) {
    rk_buf map = RK_BUF_INIT;
    rk_buf text = RK_BUF_INIT, yes = RK_BUF_INIT, null = RK_BUF_INIT, list = RK_BUF_INIT,
           values = RK_BUF_INIT;
    rk_buf inner = RK_BUF_INIT, unset = RK_BUF_INIT;
    raw_bytes(&text, RK_PB_VALUE__STRING_VALUE, "x\0y", 3);
    raw_uint(&yes, RK_PB_VALUE__BOOL_VALUE, 1);
    raw_uint(&null, RK_PB_VALUE__NULL_VALUE, 0);
    raw_message(&values, RK_PB_LIST_VALUE__VALUES, number_value(1));
    raw_message(&values, RK_PB_LIST_VALUE__VALUES, number_value(2.5));
    raw_message(&list, RK_PB_VALUE__LIST_VALUE, values);
    raw_entry(&inner, "deep", number_value(-3));
    raw_entry(&map, "text", text);
    raw_entry(&map, "yes", yes);
    raw_entry(&map, "null", null);
    raw_entry(&map, "unset", unset);
    raw_entry(&map, "list", list);
    raw_entry(&map, "map", map_value(inner));
    rk_request *r = accepts_custom(map);
    const rk_value *custom = r->sampling.custom_params;
    ck_assert_uint_eq(custom->count, 6);
    ck_assert_int_eq(rk_value_get(custom, "text")->kind, RK_VALUE_STRING);
    ck_assert_uint_eq(rk_value_get(custom, "text")->string_bytes, 3);
    ck_assert_mem_eq(rk_value_get(custom, "text")->string, "x\0y", 4);
    ck_assert(rk_value_get(custom, "yes")->boolean);
    ck_assert_int_eq(rk_value_get(custom, "null")->kind, RK_VALUE_NULL);
    ck_assert_int_eq(rk_value_get(custom, "unset")->kind, RK_VALUE_NULL);
    ck_assert_uint_eq(rk_value_get(custom, "list")->count, 2);
    ck_assert_double_eq(rk_value_get(custom, "list")->items[1]->number, 2.5);
    ck_assert_double_eq(rk_value_get(rk_value_get(custom, "map"), "deep")->number, -3);
    rk_request_unref(r);
}
END_TEST

START_TEST(custom_params_that_are_empty_are_an_empty_map) {
    rk_request *r = accepts_custom((rk_buf)RK_BUF_INIT);
    ck_assert_ptr_nonnull(r->sampling.custom_params);
    ck_assert_int_eq(r->sampling.custom_params->kind, RK_VALUE_MAP);
    ck_assert_uint_eq(r->sampling.custom_params->count, 0);
    rk_request_unref(r);
}
END_TEST

START_TEST(custom_params_merge_and_the_last_of_a_key_counts) {
    rk_buf sampling = RK_BUF_INIT, first = RK_BUF_INIT, second = RK_BUF_INIT, inner = RK_BUF_INIT;
    raw_entry(&inner, "x", number_value(1));
    raw_entry(&inner, "x", number_value(2));
    raw_entry(&first, "a", number_value(1));
    raw_entry(&first, "b", map_value(inner));
    raw_entry(&second, "a", number_value(3));
    raw_entry(&second, "c", number_value(4));
    raw_message(&sampling, RK_TS_SAMPLING_PARAMS__CUSTOM_PARAMS, first);
    raw_message(&sampling, RK_TS_SAMPLING_PARAMS__CUSTOM_PARAMS, second);
    rk_request *r = accepts(request_with(sampling), &limits);
    const rk_value *custom = r->sampling.custom_params;
    ck_assert_uint_eq(custom->count, 3);
    ck_assert_double_eq(rk_value_get(custom, "a")->number, 3);
    ck_assert_double_eq(rk_value_get(custom, "c")->number, 4);
    ck_assert_uint_eq(rk_value_get(custom, "b")->count, 1);
    ck_assert_double_eq(rk_value_get(rk_value_get(custom, "b"), "x")->number, 2);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_value_in_pieces_goes_on_and_one_that_changes_its_kind_starts_anew) {
    rk_buf map = RK_BUF_INIT, goes_on = RK_BUF_INIT, anew = RK_BUF_INIT, one = RK_BUF_INIT, two = RK_BUF_INIT;
    rk_buf three = RK_BUF_INIT, four = RK_BUF_INIT;
    raw_entry(&one, "p", number_value(1));
    raw_entry(&two, "q", number_value(2));
    raw_message(&goes_on, RK_PB_VALUE__STRUCT_VALUE, one);
    raw_message(&goes_on, RK_PB_VALUE__STRUCT_VALUE, two);
    raw_entry(&three, "p", number_value(1));
    raw_entry(&four, "q", number_value(2));
    raw_message(&anew, RK_PB_VALUE__STRUCT_VALUE, three);
    raw_double(&anew, RK_PB_VALUE__NUMBER_VALUE, 7);
    raw_message(&anew, RK_PB_VALUE__STRUCT_VALUE, four);
    raw_entry(&map, "goes_on", goes_on);
    raw_entry(&map, "anew", anew);
    rk_request *r = accepts_custom(map);
    ck_assert_uint_eq(rk_value_get(r->sampling.custom_params, "goes_on")->count, 2);
    ck_assert_uint_eq(rk_value_get(r->sampling.custom_params, "anew")->count, 1);
    ck_assert_ptr_nonnull(rk_value_get(rk_value_get(r->sampling.custom_params, "anew"), "q"));
    rk_request_unref(r);
}
END_TEST

START_TEST(many_keys_are_sorted_out_in_reasonable_time) {
    rk_buf sampling = RK_BUF_INIT, map = RK_BUF_INIT;
    limits.vocab_size = 0;
    limits.max_message_bytes = 64u << 20;
    for (int i = 0; i < 200000; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i % 100000);
        raw_entry(&map, key, number_value(i));
        raw_bias(&sampling, key, (float)i);
    }
    raw_message(&sampling, RK_TS_SAMPLING_PARAMS__CUSTOM_PARAMS, map);
    rk_request *r = accepts(request_with(sampling), &limits);
    ck_assert_uint_eq(r->sampling.logit_bias_count, 100000);
    ck_assert_float_eq(r->sampling.logit_bias[0].bias, 100000);
    ck_assert_uint_eq(r->sampling.custom_params->count, 100000);
    ck_assert_double_eq(r->sampling.custom_params->items[0]->number, 100000);
    rk_request_unref(r);
}
END_TEST

/* ---- life ---- */

START_TEST(a_request_lives_until_its_last_reference_goes) {
    rk_request *r = accepts(request_with((rk_buf)RK_BUF_INIT), &limits);
    ck_assert_ptr_eq(rk_request_ref(r), r);
    rk_request_unref(r);
    ck_assert_str_eq(r->request_id.data, "r");
    rk_request_unref(r);
    rk_request_unref(NULL);
}
END_TEST

START_TEST(a_long_prompt_arrives_whole) {
    rk_buf buf = RK_BUF_INIT, tokenized = RK_BUF_INIT, ids = RK_BUF_INIT;
    uint64_t state = 5;
    limits.vocab_size = 0;
    limits.max_context = 0;
    limits.max_message_bytes = 0;
    for (int i = 0; i < 100000; i++)
        raw_varint(&ids, random_below(&state, UINT64_C(1) << (i % 33)));
    raw_message(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, ids);
    raw_text(&buf, RK_TS_GENERATE_REQUEST__REQUEST_ID, "long");
    raw_message(&buf, RK_TS_GENERATE_REQUEST__TOKENIZED, tokenized);
    rk_request *r = accepts(buf, &limits);
    ck_assert_uint_eq(r->input_count, 100000);
    state = 5;
    for (int i = 0; i < 100000; i++)
        ck_assert_uint_eq(r->input_ids[i], random_below(&state, UINT64_C(1) << (i % 33)));
    rk_request_unref(r);
}
END_TEST

int main(void) {
    TCase *fields = tcase_create("fields");
    tcase_add_checked_fixture(fields, setup, NULL);
    tcase_add_test(fields, an_id_and_a_prompt_are_enough_and_the_rest_is_off);
    tcase_add_test(fields, every_field_arrives);
    tcase_add_loop_test(fields, each_constraint_is_known_by_its_kind, 0, 4);
    tcase_add_test(fields, an_optional_zero_is_there_and_an_absent_one_is_not);
    tcase_add_loop_test(fields, top_k_0_and_minus_1_are_both_off, 0, 2);
    tcase_add_test(fields, no_choices_are_one_choice);
    tcase_add_test(fields, a_text_keeps_its_nuls_where_they_mean_nothing);
    tcase_add_test(fields, a_long_prompt_arrives_whole);
    tcase_add_test(fields, a_request_lives_until_its_last_reference_goes);
    TCase *merging = tcase_create("merging");
    tcase_add_checked_fixture(merging, setup, NULL);
    tcase_add_test(merging, ids_keep_their_order_packed_unpacked_and_in_pieces);
    tcase_add_test(merging, a_message_in_two_pieces_loses_nothing);
    tcase_add_test(merging, bootstrap_info_in_pieces_is_one);
    tcase_add_test(merging, fields_that_nobody_knows_are_skipped);
    TCase *maps = tcase_create("maps");
    tcase_add_checked_fixture(maps, setup, NULL);
    tcase_set_timeout(maps, 60);
    tcase_add_test(maps, of_a_key_that_repeats_the_last_value_counts);
    tcase_add_test(maps, a_bias_without_a_value_is_zero);
    tcase_add_test(maps, custom_params_become_a_tree_of_every_kind_of_value);
    tcase_add_test(maps, custom_params_that_are_empty_are_an_empty_map);
    tcase_add_test(maps, custom_params_merge_and_the_last_of_a_key_counts);
    tcase_add_test(maps, a_value_in_pieces_goes_on_and_one_that_changes_its_kind_starts_anew);
    tcase_add_test(maps, many_keys_are_sorted_out_in_reasonable_time);
    Suite *suite = suite_create("dialect_generate");
    suite_add_tcase(suite, fields);
    suite_add_tcase(suite, merging);
    suite_add_tcase(suite, maps);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
