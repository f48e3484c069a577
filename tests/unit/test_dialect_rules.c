/* What a GenerateRequest must keep to: each rule, and the line a client reads when it is broken. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "rk_proto/fields.h"

#define S(FIELD) RK_TS_SAMPLING_PARAMS__##FIELD
#define G(FIELD) RK_TS_GENERATE_REQUEST__##FIELD

static rk_limits limits;

static void setup(void) {
    limits = plain_limits();
}

static void add_prompt(rk_buf *buf, const char *ids, size_t count) {
    rk_buf tokenized = RK_BUF_INIT;
    raw_bytes(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, ids, count);
    raw_message(buf, G(TOKENIZED), tokenized);
}

static rk_buf plain(void) {
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    add_prompt(&buf, "\1\2\3", 3);
    return buf;
}

static rk_buf with_sampling(rk_buf sampling) {
    rk_buf buf = plain();
    raw_message(&buf, G(SAMPLING_PARAMS), sampling);
    return buf;
}

/* ---- id and prompt ---- */

START_TEST(an_id_is_required) {
    rk_buf buf = RK_BUF_INIT;
    add_prompt(&buf, "\1", 1);
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "request_id is empty; give each request one of 1 to 512 bytes");
}
END_TEST

START_TEST(an_id_may_have_512_bytes_and_no_more) {
    char id[514];
    memset(id, 'i', sizeof id);
    id[512] = '\0';
    rk_buf buf = plain();
    raw_text(&buf, G(REQUEST_ID), id);
    rk_request *r = accepts(buf, &limits);
    ck_assert_uint_eq(r->request_id.bytes, 512);
    rk_request_unref(r);
    id[512] = 'i';
    id[513] = '\0';
    buf = plain();
    raw_text(&buf, G(REQUEST_ID), id);
    refuses(buf, &limits, RK_INVALID_ARGUMENT, "request_id has 513 bytes; it may have at most 512");
}
END_TEST

START_TEST(an_id_has_no_nul) {
    rk_buf buf = plain();
    raw_bytes(&buf, G(REQUEST_ID), "ab\0c", 4);
    refuses(buf, &limits, RK_INVALID_ARGUMENT, "request_id has a NUL character at byte 2; use an id without");
}
END_TEST

START_TEST(a_prompt_is_required) {
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    if (_i)
        add_prompt(&buf, "", 0);
    refuses(buf, &limits, RK_INVALID_ARGUMENT, "tokenized.input_ids is empty; send the prompt as token ids");
}
END_TEST

START_TEST(the_first_id_beyond_the_vocabulary_is_named) {
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    add_prompt(&buf, "\xFF\x03\x80\x04\xD0\x8C\x01", 7); /* 511, 512, 18000 */
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "tokenized.input_ids[1] is 512; it must be below the vocabulary size, 512");
}
END_TEST

START_TEST(any_id_of_32_bits_passes_while_the_vocabulary_is_unknown) {
    limits.vocab_size = 0;
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    add_prompt(&buf, "\xFF\xFF\xFF\xFF\x0F", 5);
    rk_request *r = accepts(buf, &limits);
    ck_assert_uint_eq(r->input_ids[0], UINT32_MAX);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_prompt_is_shorter_than_the_context) {
    char ids[100] = {0};
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    add_prompt(&buf, ids, 99);
    rk_request *r = accepts(buf, &limits);
    ck_assert_uint_eq(r->input_count, 99);
    rk_request_unref(r);
    buf = (rk_buf)RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    add_prompt(&buf, ids, 100);
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "tokenized.input_ids has 100 tokens; the context holds 100 and a prompt must be shorter");
}
END_TEST

/* ---- numbers ---- */

static const struct {
    uint32_t number;
    float value;
    const char *refusal; /* NULL: accepted */
} floats[] = {
    {S(TEMPERATURE), 0, NULL},
    {S(TEMPERATURE), 1e30f, NULL},
    {S(TEMPERATURE), -0.5f, "sampling_params.temperature is -0.5; it must be 0 (greedy) or more"},
    {S(TEMPERATURE), NAN, "sampling_params.temperature is NaN; it must be a finite number"},
    {S(TEMPERATURE), INFINITY, "sampling_params.temperature is infinite; it must be a finite number"},
    {S(TOP_P), 1, NULL},
    {S(TOP_P), 1e-6f, NULL},
    {S(TOP_P), 0, "sampling_params.top_p is 0; it must be in (0, 1]"},
    {S(TOP_P), 1.5f, "sampling_params.top_p is 1.5; it must be in (0, 1]"},
    {S(TOP_P), -INFINITY, "sampling_params.top_p is minus infinite; it must be a finite number"},
    {S(MIN_P), 0, NULL},
    {S(MIN_P), 1, NULL},
    {S(MIN_P), 1.25f, "sampling_params.min_p is 1.25; it must be in [0, 1]"},
    {S(MIN_P), -1, "sampling_params.min_p is -1; it must be in [0, 1]"},
    {S(MIN_P), NAN, "sampling_params.min_p is NaN; it must be a finite number"},
    {S(FREQUENCY_PENALTY), -2, NULL},
    {S(FREQUENCY_PENALTY), 2.5f, "sampling_params.frequency_penalty is 2.5; it must be in [-2, 2]"},
    {S(FREQUENCY_PENALTY), NAN, "sampling_params.frequency_penalty is NaN; it must be a finite number"},
    {S(PRESENCE_PENALTY), 2, NULL},
    {S(PRESENCE_PENALTY), -3, "sampling_params.presence_penalty is -3; it must be in [-2, 2]"},
    {S(PRESENCE_PENALTY), NAN, "sampling_params.presence_penalty is NaN; it must be a finite number"},
    {S(REPETITION_PENALTY), 2, NULL},
    {S(REPETITION_PENALTY), 0, "sampling_params.repetition_penalty is 0; it must be in (0, 2]; 1 is off"},
    {S(REPETITION_PENALTY), -1, "sampling_params.repetition_penalty is -1; it must be in (0, 2]; 1 is off"},
    {S(REPETITION_PENALTY), 3, "sampling_params.repetition_penalty is 3; it must be in (0, 2]; 1 is off"},
    {S(REPETITION_PENALTY), NAN, "sampling_params.repetition_penalty is NaN; it must be a finite number"},
};

static void judge(rk_buf buf, const char *refusal) {
    if (refusal)
        refuses(buf, &limits, RK_INVALID_ARGUMENT, refusal);
    else
        rk_request_unref(accepts(buf, &limits));
}

START_TEST(a_number_that_makes_no_sense_is_named_with_its_range) {
    rk_buf sampling = RK_BUF_INIT;
    raw_float(&sampling, floats[_i].number, floats[_i].value);
    judge(with_sampling(sampling), floats[_i].refusal);
}
END_TEST

static const struct {
    uint32_t number;
    uint64_t value;
    const char *refusal;
} integers[] = {
    {S(TOP_K), 1, NULL},
    {S(TOP_K), INT32_MAX, NULL},
    {S(TOP_K), (uint64_t)-2, "sampling_params.top_k is -2; it must be at least 1, or -1 or 0 for off"},
    {S(TOP_K), UINT64_C(0x80000000),
     "sampling_params.top_k is 2147483648; it must fit 32 bits, -2147483648 to 2147483647"},
    {S(TOP_K), UINT64_C(0xFFFFFFFF),
     "sampling_params.top_k is 4294967295; it must fit 32 bits, -2147483648 to 2147483647"},
    {S(MAX_NEW_TOKENS), UINT32_MAX, NULL},
    {S(MAX_NEW_TOKENS), UINT64_C(1) << 40 | 7,
     "sampling_params.max_new_tokens is 1099511627783; it must fit 32 bits, 0 to 4294967295"},
    {S(MIN_NEW_TOKENS), UINT64_MAX,
     "sampling_params.min_new_tokens is 18446744073709551615; it must fit 32 bits, 0 to 4294967295"},
    {S(IGNORE_EOS), 1, NULL},
    {S(IGNORE_EOS), 2, "sampling_params.ignore_eos is 2; it must fit a bool, 0 or 1"},
    {S(SAMPLING_SEED), INT64_MAX, NULL},
    {S(SAMPLING_SEED), UINT64_C(1) << 63,
     "sampling_params.sampling_seed is 9223372036854775808; it may be at most 9223372036854775807"},
    {S(STOP_TOKEN_IDS), UINT64_C(1) << 32,
     "sampling_params.stop_token_ids[0] is 4294967296; it must fit 32 bits, 0 to 4294967295"},
    {S(N), 8, NULL},
    {S(N), 9,
     "sampling_params.n is 9; the running window is 8 and choices run together: ask for at most as many"},
};

START_TEST(an_integer_out_of_range_is_refused_and_never_narrowed) {
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, integers[_i].number, integers[_i].value);
    judge(with_sampling(sampling), integers[_i].refusal);
}
END_TEST

static const struct {
    uint32_t number;
    uint64_t value;
    const char *refusal;
} outer[] = {
    {G(LOGPROB_START_LEN), 0, NULL},
    {G(LOGPROB_START_LEN), UINT64_MAX, NULL},
    {G(LOGPROB_START_LEN), (uint64_t)-2,
     "logprob_start_len is -2; it must be a prompt position, or -1 for none"},
    {G(TOP_LOGPROBS_NUM), 20, NULL},
    {G(TOP_LOGPROBS_NUM), UINT64_MAX, "top_logprobs_num is -1; it must be 0 or more"},
    {G(TOKEN_IDS_LOGPROB), 511, NULL},
    {G(TOKEN_IDS_LOGPROB), 512, "token_ids_logprob[0] is 512; it must be below the vocabulary size, 512"},
    {G(DATA_PARALLEL_RANK), 1, NULL},
    {G(DATA_PARALLEL_RANK), 2, "data_parallel_rank is 2; this worker has ranks 0 to 1"},
    {G(DATA_PARALLEL_RANK), UINT64_MAX, "data_parallel_rank is -1; this worker has ranks 0 to 1"},
    {G(DATA_PARALLEL_RANK), UINT64_C(1) << 40 | 1,
     "data_parallel_rank is 1099511627777; it must fit 32 bits, -2147483648 to 2147483647"},
    {G(STREAM), 256, "stream is 256; it must fit a bool, 0 or 1"},
};

START_TEST(a_number_of_the_request_itself_is_named_too) {
    rk_buf buf = plain();
    raw_uint(&buf, outer[_i].number, outer[_i].value);
    judge(buf, outer[_i].refusal);
}
END_TEST

START_TEST(choices_have_a_limit_also_while_the_window_is_unknown) {
    rk_buf sampling = RK_BUF_INIT;
    limits.window = 0;
    raw_uint(&sampling, S(N), 4097);
    refuses(with_sampling(sampling), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.n is 4097; at most 4096 choices are served");
}
END_TEST

START_TEST(the_seed_of_the_last_choice_must_fit_too) {
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, S(N), 3);
    raw_uint(&sampling, S(SAMPLING_SEED), (uint64_t)INT64_MAX - 1);
    refuses(with_sampling(sampling), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.sampling_seed is 9223372036854775806; it may be at most 9223372036854775805");
}
END_TEST

START_TEST(fewer_tokens_than_the_fewest_make_no_sense) {
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, S(MAX_NEW_TOKENS), 4);
    raw_uint(&sampling, S(MIN_NEW_TOKENS), 5);
    refuses(with_sampling(sampling), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.min_new_tokens is 5; it must not be above max_new_tokens, 4");
}
END_TEST

/* ---- texts ---- */

static const struct {
    const char *key;
    float bias;
    const char *refusal;
} biases[] = {
    {"0", -100, NULL},
    {"511", 100, NULL},
    {"512", 1, "sampling_params.logit_bias has the key \"512\"; keys are token ids in decimal, below 512"},
    {"", 1, "sampling_params.logit_bias has the key \"\"; keys are token ids in decimal, below 512"},
    {"-1", 1, "sampling_params.logit_bias has the key \"-1\"; keys are token ids in decimal, below 512"},
    {"1e2", 1, "sampling_params.logit_bias has the key \"1e2\"; keys are token ids in decimal, below 512"},
    {"99999999999999999999999999999999999999", 1,
     "sampling_params.logit_bias has the key \"99999999999999999999999999999999\"; keys are token ids in "
     "decimal, "
     "below 512"},
    {"1", NAN, "sampling_params.logit_bias value is NaN; it must be a finite number"},
};

START_TEST(a_bias_is_for_a_token_and_finite) {
    rk_buf sampling = RK_BUF_INIT, entry = RK_BUF_INIT;
    raw_text(&entry, 1, biases[_i].key);
    raw_float(&entry, 2, biases[_i].bias);
    raw_message(&sampling, S(LOGIT_BIAS), entry);
    judge(with_sampling(sampling), biases[_i].refusal);
}
END_TEST

static const struct {
    uint32_t number;
    const char *text;
    const char *refusal;
} constraints[] = {
    {S(REGEX), "a+", NULL},
    {S(REGEX), "(", NULL}, /* the grammar backend's to refuse */
    {S(REGEX), "", "sampling_params.regex is empty; send an expression, or leave it out"},
    {S(JSON_SCHEMA), "{\"type\":\"object\"}", NULL},
    {S(JSON_SCHEMA), "{", "sampling_params.json_schema is not JSON: a string is missing at byte 1 of 1"},
    {S(JSON_SCHEMA), "", "sampling_params.json_schema is not JSON: a value is missing at byte 0 of 0"},
    {S(JSON_SCHEMA), "{} {}",
     "sampling_params.json_schema is not JSON: something follows the value at byte 3 of 5"},
    {S(STRUCTURAL_TAG), "{\"format\":{}}", NULL},
    {S(STRUCTURAL_TAG), "{",
     "sampling_params.structural_tag is not JSON: a string is missing at byte 1 of 1"},
};

START_TEST(a_constraint_that_cannot_be_one_is_refused_here) {
    rk_buf sampling = RK_BUF_INIT;
    raw_text(&sampling, constraints[_i].number, constraints[_i].text);
    judge(with_sampling(sampling), constraints[_i].refusal);
}
END_TEST

START_TEST(a_number_in_custom_params_is_finite) {
    rk_buf sampling = RK_BUF_INIT, map = RK_BUF_INIT, entry = RK_BUF_INIT, value = RK_BUF_INIT;
    raw_double(&value, RK_PB_VALUE__NUMBER_VALUE, NAN);
    raw_message(&entry, 2, value);
    raw_message(&map, 1, entry);
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    refuses(with_sampling(sampling), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.custom_params is NaN; it must be a finite number");
}
END_TEST

START_TEST(a_key_in_custom_params_has_no_nul) {
    rk_buf sampling = RK_BUF_INIT, map = RK_BUF_INIT, entry = RK_BUF_INIT;
    raw_bytes(&entry, 1, "a\0b", 3);
    raw_message(&map, 1, entry);
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    refuses(with_sampling(sampling), &limits, RK_INVALID_ARGUMENT,
            "sampling_params.custom_params has a key with a NUL character in it; use keys without");
}
END_TEST

/* ---- rooms ---- */

typedef struct bootstrap {
    const char *host; /* NULL: no host field */
    uint64_t port;
    uint64_t room;
} bootstrap;

static rk_buf with_bootstrap(bootstrap b) {
    rk_buf buf = plain();
    rk_buf kv = RK_BUF_INIT;
    if (b.host)
        raw_text(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_HOST, b.host);
    raw_uint(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_PORT, b.port);
    raw_uint(&kv, RK_TS_KV_BOOTSTRAP_INFO__BOOTSTRAP_ROOM, b.room);
    raw_message(&buf, G(KV_BOOTSTRAP_INFO), kv);
    return buf;
}

static const struct {
    bootstrap b;
    const char *refusal;
} pairs[] = {
    {{"h", 1, 1}, NULL},
    {{"::1", 65535, INT64_MAX}, NULL},
    {{"2.2.2.2", 1, 0}, NULL}, /* a transfer to nobody */
    {{NULL, 1, 1}, "kv_bootstrap_info.bootstrap_host is empty; a decode worker needs the prefill's"},
    {{"", 1, 1}, "kv_bootstrap_info.bootstrap_host is empty; a decode worker needs the prefill's"},
    {{"h", 0, 1}, "kv_bootstrap_info.bootstrap_port is 0; it must be 1 to 65535"},
    {{"h", 65536, 1}, "kv_bootstrap_info.bootstrap_port is 65536; it must be 1 to 65535"},
    {{"h", UINT64_MAX, 1}, "kv_bootstrap_info.bootstrap_port is -1; it must be 1 to 65535"},
    {{"h", UINT64_C(1) << 32 | 80, 1},
     "kv_bootstrap_info.bootstrap_port is 4294967376; it must fit 32 bits, -2147483648 to 2147483647"},
    {{"h", 1, 0}, "kv_bootstrap_info.bootstrap_room is 0; it must be 1 to 9223372036854775807"},
    {{"h", 1, UINT64_MAX}, "kv_bootstrap_info.bootstrap_room is -1; it must be 1 to 9223372036854775807"},
    {{"2.2.2.2", 1, UINT64_MAX},
     "kv_bootstrap_info.bootstrap_room is -1; it must be 1 to 9223372036854775807"},
    {{"a b", 1, 1},
     "kv_bootstrap_info.bootstrap_host has a space or control character at byte 1; send a host name or an "
     "address"},
};

START_TEST(a_pair_worker_needs_a_host_a_port_and_a_room) {
    limits.role = RK_ROLE_DECODE;
    judge(with_bootstrap(pairs[_i].b), pairs[_i].refusal);
}
END_TEST

START_TEST(a_pair_worker_needs_bootstrap_info) {
    limits.role = _i ? RK_ROLE_DECODE : RK_ROLE_PREFILL;
    refuses(
        plain(), &limits, RK_INVALID_ARGUMENT,
        _i ? "kv_bootstrap_info is missing; a decode worker needs the pair's bootstrap host, port and room"
           : "kv_bootstrap_info is missing; a prefill worker needs the pair's bootstrap host, port and room");
}
END_TEST

START_TEST(a_pair_worker_takes_one_choice_a_call) {
    limits.role = RK_ROLE_PREFILL;
    rk_buf buf = with_bootstrap((bootstrap){"h", 1, 1});
    rk_buf sampling = RK_BUF_INIT;
    raw_uint(&sampling, S(N), 2);
    raw_message(&buf, G(SAMPLING_PARAMS), sampling);
    refuses(buf, &limits, RK_INVALID_ARGUMENT,
            "sampling_params.n is 2; a prefill worker takes 1: send a call with a room of its own for each "
            "choice");
}
END_TEST

START_TEST(an_aggregated_worker_has_no_rooms) {
    refuses(with_bootstrap((bootstrap){"h", 1, 1}), &limits, RK_FAILED_PRECONDITION,
            "kv_bootstrap_info is set; this worker is aggregated, without a twin: leave it out, or send the "
            "call to "
            "a prefill or decode worker");
}
END_TEST

START_TEST(bootstrap_info_without_a_host_is_none) {
    rk_request *r = accepts(with_bootstrap((bootstrap){"", 1, 1}), &limits);
    ck_assert(!r->has_bootstrap);
    rk_request_unref(r);
}
END_TEST

START_TEST(a_host_fits_where_rooms_are_kept) {
    char host[257];
    memset(host, 'h', sizeof host);
    limits.role = RK_ROLE_DECODE;
    host[255] = '\0';
    rk_request *r = accepts(with_bootstrap((bootstrap){host, 1, 1}), &limits);
    ck_assert_uint_eq(r->bootstrap_host.bytes, 255);
    rk_request_unref(r);
    host[255] = 'h';
    host[256] = '\0';
    refuses(with_bootstrap((bootstrap){host, 1, 1}), &limits, RK_INVALID_ARGUMENT,
            "kv_bootstrap_info.bootstrap_host has 256 bytes; a host may have at most 255");
}
END_TEST

START_TEST(with_rooms_off_bootstrap_info_passes_as_it_comes) {
    const rk_role roles[] = {RK_ROLE_NULL, RK_ROLE_PREFILL, RK_ROLE_DECODE};
    limits.rooms = false;
    limits.role = roles[_i];
    rk_request *r = accepts(with_bootstrap((bootstrap){"h", 70000, UINT64_MAX}), &limits);
    ck_assert(r->has_bootstrap);
    ck_assert_int_eq(r->bootstrap_port, 70000);
    ck_assert_int_eq(r->bootstrap_room, -1);
    rk_request_unref(r);
    rk_request_unref(accepts(plain(), &limits));
}
END_TEST

/* ---- memory ---- */

START_TEST(parts_that_take_far_more_memory_than_bytes_are_refused) {
    rk_buf sampling = RK_BUF_INIT, map = RK_BUF_INIT;
    limits.max_message_bytes = 256u << 20;
    for (int i = 0; i < 1000000; i++)
        raw_text(&map, RK_PB_STRUCT__FIELDS, "");
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    refuses(with_sampling(sampling), &limits, RK_RESOURCE_EXHAUSTED,
            "the request takes too much memory once decoded; send fewer and larger parts");
}
END_TEST

START_TEST(the_message_limit_bounds_memory_too) {
    rk_buf sampling = RK_BUF_INIT, map = RK_BUF_INIT;
    limits.max_message_bytes = 1 << 16;
    for (int i = 0; i < 60000; i++) {
        rk_buf entry = RK_BUF_INIT;
        raw_text(&entry, 1, "a key that makes the entry large enough");
        raw_message(&map, RK_PB_STRUCT__FIELDS, entry);
    }
    raw_message(&sampling, S(CUSTOM_PARAMS), map);
    refuses(with_sampling(sampling), &limits, RK_RESOURCE_EXHAUSTED,
            "the request takes too much memory once decoded; send fewer and larger parts");
}
END_TEST

#define LOOP(tcase, test, table) tcase_add_loop_test(tcase, test, 0, (int)(sizeof table / sizeof table[0]))

int main(void) {
    TCase *basic = tcase_create("id and prompt");
    tcase_add_checked_fixture(basic, setup, NULL);
    tcase_add_test(basic, an_id_is_required);
    tcase_add_test(basic, an_id_may_have_512_bytes_and_no_more);
    tcase_add_test(basic, an_id_has_no_nul);
    tcase_add_loop_test(basic, a_prompt_is_required, 0, 2);
    tcase_add_test(basic, the_first_id_beyond_the_vocabulary_is_named);
    tcase_add_test(basic, any_id_of_32_bits_passes_while_the_vocabulary_is_unknown);
    tcase_add_test(basic, a_prompt_is_shorter_than_the_context);
    TCase *values = tcase_create("values");
    tcase_add_checked_fixture(values, setup, NULL);
    LOOP(values, a_number_that_makes_no_sense_is_named_with_its_range, floats);
    LOOP(values, an_integer_out_of_range_is_refused_and_never_narrowed, integers);
    LOOP(values, a_number_of_the_request_itself_is_named_too, outer);
    LOOP(values, a_bias_is_for_a_token_and_finite, biases);
    LOOP(values, a_constraint_that_cannot_be_one_is_refused_here, constraints);
    tcase_add_test(values, choices_have_a_limit_also_while_the_window_is_unknown);
    tcase_add_test(values, the_seed_of_the_last_choice_must_fit_too);
    tcase_add_test(values, fewer_tokens_than_the_fewest_make_no_sense);
    tcase_add_test(values, a_number_in_custom_params_is_finite);
    tcase_add_test(values, a_key_in_custom_params_has_no_nul);
    TCase *rooms = tcase_create("rooms");
    tcase_add_checked_fixture(rooms, setup, NULL);
    LOOP(rooms, a_pair_worker_needs_a_host_a_port_and_a_room, pairs);
    tcase_add_loop_test(rooms, a_pair_worker_needs_bootstrap_info, 0, 2);
    tcase_add_test(rooms, a_pair_worker_takes_one_choice_a_call);
    tcase_add_test(rooms, an_aggregated_worker_has_no_rooms);
    tcase_add_test(rooms, bootstrap_info_without_a_host_is_none);
    tcase_add_test(rooms, a_host_fits_where_rooms_are_kept);
    tcase_add_loop_test(rooms, with_rooms_off_bootstrap_info_passes_as_it_comes, 0, 3);
    TCase *memory = tcase_create("memory");
    tcase_add_checked_fixture(memory, setup, NULL);
    tcase_set_timeout(memory, 60);
    tcase_add_test(memory, parts_that_take_far_more_memory_than_bytes_are_refused);
    tcase_add_test(memory, the_message_limit_bounds_memory_too);
    Suite *suite = suite_create("dialect_rules");
    suite_add_tcase(suite, basic);
    suite_add_tcase(suite, values);
    suite_add_tcase(suite, rooms);
    suite_add_tcase(suite, memory);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
