/* The small calls: what a worker says of itself, and the requests that ask for it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "google/protobuf/struct.pb-c.h"
#include "rk_proto/fields.h"
#include "tokenspeed_scheduler.pb-c.h"

#define TS(name) Tokenspeed__Grpc__Scheduler__##name

static const rk_dialect *const dialect = &rk_dialect_tokenspeed;

/* ---- the table ---- */

START_TEST(the_dialect_names_its_service_and_methods) {
    ck_assert_str_eq(dialect->name, "tokenspeed");
    ck_assert_str_eq(dialect->service, "tokenspeed.grpc.scheduler.TokenSpeedScheduler");
    ck_assert_str_eq(dialect->encode_service, "tokenspeed.grpc.encoder.TokenSpeedEncoder");
    for (int i = 0; i < RK_METHODS; i++) {
        const char *service = i == RK_METHOD_ENCODE ? dialect->encode_service : dialect->service;
        ck_assert_ptr_nonnull(dialect->methods[i]);
        ck_assert_int_eq(strncmp(dialect->methods[i] + 1, service, strlen(service)), 0);
    }
    ck_assert_str_eq(dialect->methods[RK_METHOD_GET_LOADS],
                     "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/GetLoads");
}
END_TEST

START_TEST(an_engines_http_status_has_a_grpc_code) {
    const struct {
        int http;
        rk_code code;
    } codes[] = {{400, RK_INVALID_ARGUMENT},   {404, RK_NOT_FOUND},   {408, RK_DEADLINE_EXCEEDED},
                 {429, RK_RESOURCE_EXHAUSTED}, {503, RK_UNAVAILABLE}, {504, RK_DEADLINE_EXCEEDED},
                 {500, RK_INTERNAL},           {0, RK_INTERNAL},      {-1, RK_INTERNAL}};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        ck_assert_int_eq(rk_code_of_http(codes[i].http), codes[i].code);
}
END_TEST

/* ---- Abort and HealthCheck ---- */

static rk_code decode_abort(rk_buf buf, char id[513], rk_status *status) {
    size_t bytes = 9999;
    static const uint8_t nothing[1] = {0};
    rk_code code = dialect->decode_abort(buf.data ? buf.data : nothing, buf.size, id, &bytes, status);
    rk_buf_free(&buf);
    if (code == RK_OK)
        ck_assert_uint_eq(bytes, strlen(id));
    else
        check_line(status);
    return code;
}

START_TEST(an_abort_names_its_request) {
    char id[513];
    rk_status status;
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, RK_TS_ABORT_REQUEST__REQUEST_ID, "gen-ü");
    raw_text(&buf, RK_TS_ABORT_REQUEST__REASON, "enough");
    ck_assert_int_eq(decode_abort(buf, id, &status), RK_OK);
    ck_assert_str_eq(id, "gen-ü");
}
END_TEST

START_TEST(an_abort_of_nothing_or_of_an_impossible_id_is_refused) {
    char id[513], long_id[514];
    rk_status status;
    memset(long_id, 'i', sizeof long_id);
    long_id[513] = '\0';
    ck_assert_int_eq(decode_abort((rk_buf)RK_BUF_INIT, id, &status), RK_INVALID_ARGUMENT);
    ck_assert_str_eq(status.text, "request_id is empty; name the request to abort");
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, RK_TS_ABORT_REQUEST__REQUEST_ID, long_id);
    ck_assert_int_eq(decode_abort(buf, id, &status), RK_INVALID_ARGUMENT);
    ck_assert_str_eq(status.text, "request_id has 513 bytes; ids have at most 512");
    buf = (rk_buf)RK_BUF_INIT;
    raw_bytes(&buf, RK_TS_ABORT_REQUEST__REQUEST_ID, "a\0b", 3);
    ck_assert_int_eq(decode_abort(buf, id, &status), RK_INVALID_ARGUMENT);
    buf = (rk_buf)RK_BUF_INIT;
    raw_text(&buf, RK_TS_ABORT_REQUEST__REASON, "\xFF");
    ck_assert_int_eq(decode_abort(buf, id, &status), RK_INVALID_ARGUMENT);
    ck_assert_str_eq(status.text, "reason is not valid UTF-8; send text, or bytes that are encoded as text");
}
END_TEST

START_TEST(an_abort_of_the_longest_id_arrives_whole) {
    char id[513], long_id[513];
    rk_status status;
    rk_buf buf = RK_BUF_INIT;
    memset(long_id, 'i', sizeof long_id);
    long_id[512] = '\0';
    raw_text(&buf, RK_TS_ABORT_REQUEST__REQUEST_ID, long_id);
    ck_assert_int_eq(decode_abort(buf, id, &status), RK_OK);
    ck_assert_str_eq(id, long_id);
}
END_TEST

START_TEST(answers_of_abort_and_health_read_back) {
    for (int yes = 0; yes < 2; yes++) {
        rk_buf out = RK_BUF_INIT;
        dialect->encode_abort(&out, yes, "what\xFF");
        TS(AbortResponse) *a = tokenspeed__grpc__scheduler__abort_response__unpack(NULL, out.size, out.data);
        ck_assert_int_eq(a->success, yes);
        ck_assert_str_eq(a->message, "what?");
        tokenspeed__grpc__scheduler__abort_response__free_unpacked(a, NULL);
        rk_buf_free(&out);
        dialect->encode_health(&out, yes, yes ? "Health check passed" : NULL);
        TS(HealthCheckResponse) *h =
            tokenspeed__grpc__scheduler__health_check_response__unpack(NULL, out.size, out.data);
        ck_assert_int_eq(h->healthy, yes);
        ck_assert_str_eq(h->message, yes ? "Health check passed" : "");
        tokenspeed__grpc__scheduler__health_check_response__free_unpacked(h, NULL);
        rk_buf_free(&out);
    }
}
END_TEST

START_TEST(a_request_without_fields_must_still_be_a_message) {
    rk_status status;
    const uint8_t unknown[] = {0xA0, 0x06, 0x01};
    ck_assert_int_eq(dialect->decode_empty(unknown, 0, &status), RK_OK);
    ck_assert_int_eq(dialect->decode_empty(unknown, 3, &status), RK_OK);
    ck_assert_int_eq(dialect->decode_empty(unknown, 2, &status), RK_INVALID_ARGUMENT);
    check_line(&status);
}
END_TEST

/* ---- GetModelInfo ---- */

static rk_worker_info full_info(void) {
    static const char *const architectures[] = {"OneForCausalLM", ""};
    static const int32_t eos[] = {2, 100000, -1};
    static const int32_t modalities[] = {1, 3};
    return (rk_worker_info){.role = RK_ROLE_NULL,
                            .kv_tokens = UINT64_C(1) << 40,
                            .vocab_size = 152064,
                            .max_context = 32768,
                            .model_path = "/models/one",
                            .tokenizer_path = "/models/one-tok",
                            .served_model_name = "one",
                            .model_type = "one",
                            .architectures = architectures,
                            .architecture_count = 2,
                            .max_req_input_len = 32000,
                            .eos_token_ids = eos,
                            .eos_token_id_count = 3,
                            .pad_token_id = -1,
                            .bos_token_id = 1,
                            .weight_version = "w0",
                            .default_sampling_params_json = "{\"top_p\":0.9}",
                            .supports_vision = true,
                            .modalities = modalities,
                            .modality_count = 2,
                            .model_dtype = "bfloat16",
                            .multimodal_encoder_dtype = "float16",
                            .engine_version = "0.1.1",
                            .constrained_decoding = "requested"};
}

static TS(GetModelInfoResponse) * model_info(const rk_worker_info *info, const char *weight_version) {
    rk_buf out = RK_BUF_INIT;
    dialect->encode_model_info(&out, info, weight_version);
    static const uint8_t nothing[1] = {0};
    TS(GetModelInfoResponse) *m = tokenspeed__grpc__scheduler__get_model_info_response__unpack(
        NULL, out.size, out.data ? out.data : nothing);
    ck_assert_ptr_nonnull(m);
    rk_buf_free(&out);
    return m;
}

START_TEST(model_info_says_every_field) {
    rk_worker_info info = full_info();
    TS(GetModelInfoResponse) *m = model_info(&info, "w7");
    ck_assert_str_eq(m->model_path, "/models/one");
    ck_assert_str_eq(m->tokenizer_path, "/models/one-tok");
    ck_assert_str_eq(m->served_model_name, "one");
    ck_assert_str_eq(m->model_type, "one");
    ck_assert_uint_eq(m->n_architectures, 2);
    ck_assert_str_eq(m->architectures[0], "OneForCausalLM");
    ck_assert_str_eq(m->architectures[1], "");
    ck_assert_int_eq(m->max_context_length, 32768);
    ck_assert_int_eq(m->max_req_input_len, 32000);
    ck_assert_int_eq(m->vocab_size, 152064);
    ck_assert_uint_eq(m->n_eos_token_ids, 3);
    ck_assert_int_eq(m->eos_token_ids[1], 100000);
    ck_assert_int_eq(m->eos_token_ids[2], -1);
    ck_assert_int_eq(m->pad_token_id, -1);
    ck_assert_int_eq(m->bos_token_id, 1);
    ck_assert_str_eq(m->weight_version, "w7");
    ck_assert_str_eq(m->default_sampling_params_json, "{\"top_p\":0.9}");
    ck_assert(m->supports_vision && m->supports_multimodal);
    ck_assert_uint_eq(m->n_supported_modalities, 2);
    ck_assert_int_eq(m->supported_modalities[1], SMG__GRPC__COMMON__MODALITY__VIDEO);
    ck_assert_str_eq(m->model_dtype, "bfloat16");
    ck_assert_str_eq(m->multimodal_encoder_dtype, "float16");
    tokenspeed__grpc__scheduler__get_model_info_response__free_unpacked(m, NULL);
}
END_TEST

START_TEST(a_model_without_a_name_is_listed_by_its_path) {
    rk_worker_info info = {.model_path = "/models/one", .served_model_name = _i ? "" : NULL};
    info.vocab_size = UINT32_MAX;
    TS(GetModelInfoResponse) *m = model_info(&info, NULL);
    ck_assert_str_eq(m->served_model_name, "/models/one");
    ck_assert_str_eq(m->weight_version, "");
    ck_assert_int_eq(m->vocab_size, INT32_MAX);
    ck_assert(!m->supports_multimodal);
    tokenspeed__grpc__scheduler__get_model_info_response__free_unpacked(m, NULL);
}
END_TEST

/* ---- GetServerInfo ---- */

static Google__Protobuf__Value *field_of(Google__Protobuf__Struct *map, const char *key) {
    for (size_t i = 0; i < map->n_fields; i++)
        if (strcmp(map->fields[i]->key, key) == 0)
            return map->fields[i]->value;
    return NULL;
}

static rk_value *tree(void) {
    rk_value *map = rk_value_map();
    rk_value *list = rk_value_list();
    rk_value *inner = rk_value_map();
    char text[400];
    memset(text, 't', sizeof text);
    ck_assert_int_eq(rk_value_append(list, rk_value_number(-0.0)), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_null()), 0);
    ck_assert_int_eq(rk_value_set(inner, "long", rk_value_string(text, sizeof text)), 0);
    ck_assert_int_eq(rk_value_append(list, inner), 0);
    ck_assert_int_eq(rk_value_set(map, "max_num_seqs", rk_value_number(4)), 0);
    ck_assert_int_eq(rk_value_set(map, "zero", rk_value_number(0)), 0);
    ck_assert_int_eq(rk_value_set(map, "off", rk_value_bool(false)), 0);
    ck_assert_int_eq(rk_value_set(map, "text", rk_value_string("", 0)), 0);
    ck_assert_int_eq(rk_value_set(map, "list", list), 0);
    ck_assert_int_eq(rk_value_set(map, "empty", rk_value_map()), 0);
    return map;
}

static void check_tree(Google__Protobuf__Struct *map) {
    ck_assert_uint_eq(map->n_fields, 6);
    ck_assert_double_eq(field_of(map, "max_num_seqs")->number_value, 4);
    ck_assert_int_eq(field_of(map, "zero")->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE);
    ck_assert_int_eq(field_of(map, "off")->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_BOOL_VALUE);
    ck_assert_int_eq(field_of(map, "text")->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_STRING_VALUE);
    ck_assert_int_eq(field_of(map, "empty")->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_STRUCT_VALUE);
    Google__Protobuf__ListValue *list = field_of(map, "list")->list_value;
    ck_assert_uint_eq(list->n_values, 3);
    ck_assert_int_eq(list->values[0]->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE);
    ck_assert_int_eq(list->values[1]->kind_case, GOOGLE__PROTOBUF__VALUE__KIND_NULL_VALUE);
    ck_assert_uint_eq(strlen(field_of(list->values[2]->struct_value, "long")->string_value), 400);
}

START_TEST(server_info_says_every_field) {
    rk_worker_info info = full_info();
    rk_value *args = tree();
    rk_server_state state = {.info = &info,
                             .server_args = args,
                             .active_requests = 3,
                             .is_paused = true,
                             .uptime_seconds = 12.5,
                             .start_seconds = 1790000000};
    rk_buf out = RK_BUF_INIT;
    dialect->encode_server_info(&out, &state);
    TS(GetServerInfoResponse) *s =
        tokenspeed__grpc__scheduler__get_server_info_response__unpack(NULL, out.size, out.data);
    ck_assert_ptr_nonnull(s);
    check_tree(s->server_args);
    ck_assert_ptr_nonnull(s->scheduler_info); /* there, though empty */
    ck_assert_uint_eq(s->scheduler_info->n_fields, 0);
    ck_assert_int_eq(s->active_requests, 3);
    ck_assert(s->is_paused);
    ck_assert_double_eq(s->uptime_seconds, 12.5);
    ck_assert_int_eq(s->max_total_num_tokens, INT32_MAX); /* the wire has no more bits */
    ck_assert_str_eq(s->tokenspeed_version, "0.1.1");
    ck_assert_int_eq(s->start_time->seconds, 1790000000);
    ck_assert_str_eq(s->constrained_decoding, "requested");
    tokenspeed__grpc__scheduler__get_server_info_response__free_unpacked(s, NULL);
    rk_buf_free(&out);
    rk_value_free(args);
}
END_TEST

/* ---- GetLoads ---- */

static rk_loads_query query_of(rk_buf buf) {
    static const uint8_t nothing[1] = {0};
    rk_loads_query query;
    rk_status status;
    ck_assert_int_eq(dialect->decode_loads(buf.data ? buf.data : nothing, buf.size, &query, &status), RK_OK);
    rk_buf_free(&buf);
    return query;
}

START_TEST(a_loads_query_without_fields_asks_for_everything) {
    rk_loads_query q = query_of((rk_buf)RK_BUF_INIT);
    ck_assert(!q.has_rank && q.core && q.memory && q.queues && q.disagg);
}
END_TEST

START_TEST(a_loads_query_names_parts_and_a_rank) {
    rk_buf buf = RK_BUF_INIT;
    raw_text(&buf, RK_TS_GET_LOADS_REQUEST__INCLUDE, "core");
    raw_text(&buf, RK_TS_GET_LOADS_REQUEST__INCLUDE, "queues");
    raw_text(&buf, RK_TS_GET_LOADS_REQUEST__INCLUDE, "of a later version");
    raw_uint(&buf, RK_TS_GET_LOADS_REQUEST__DP_RANK, 0);
    rk_loads_query q = query_of(buf);
    ck_assert(q.has_rank && q.core && q.queues && !q.memory && !q.disagg);
    ck_assert_int_eq(q.rank, 0);
    buf = (rk_buf)RK_BUF_INIT;
    raw_text(&buf, RK_TS_GET_LOADS_REQUEST__INCLUDE, "all");
    q = query_of(buf);
    ck_assert(q.core && q.memory && q.queues && q.disagg);
}
END_TEST

static const rk_engine_load unknown = {.rank = 0,
                                       .running = -1,
                                       .waiting = -1,
                                       .used_tokens = -1,
                                       .max_total_tokens = -1,
                                       .token_usage = -1,
                                       .active_token_usage = -1,
                                       .gen_throughput = -1,
                                       .cache_hit_rate = -1};

static TS(GetLoadsResponse) *
    loads_of(const rk_loads_query *query, const rk_load_row *rows, size_t count, uint32_t ranks) {
    rk_buf out = RK_BUF_INIT;
    dialect->encode_loads(&out, query, rows, count, ranks, "2026-01-02T03:04:05.678Z");
    TS(GetLoadsResponse) *l =
        tokenspeed__grpc__scheduler__get_loads_response__unpack(NULL, out.size, out.data);
    ck_assert_ptr_nonnull(l);
    rk_buf_free(&out);
    return l;
}

START_TEST(loads_say_what_is_known_of_each_rank_and_all_together) {
    rk_loads_query query = {.core = true};
    rk_load_row rows[] = {
        {.rank = 0, .running = 3, .waiting = 2, .window = 4, .engine = unknown, .engine_fresh = true},
        {.rank = 1, .running = 1, .waiting = 0, .window = 4, .engine_fresh = true},
    };
    rows[1].engine = (rk_engine_load){.rank = 1,
                                      .running = 7, /* our own counts are the ones to tell */
                                      .waiting = 9,
                                      .used_tokens = 1600,
                                      .max_total_tokens = 64000,
                                      .token_usage = 0.5,
                                      .active_token_usage = 0,
                                      .gen_throughput = 100.5,
                                      .cache_hit_rate = 0.25};
    TS(GetLoadsResponse) *l = loads_of(&query, rows, 2, 2);
    ck_assert_str_eq(l->timestamp, "2026-01-02T03:04:05.678Z");
    ck_assert_str_eq(l->version, "tokenspeed");
    ck_assert_int_eq(l->dp_rank_count, 2);
    ck_assert_uint_eq(l->n_loads, 2);
    const TS(SchedulerLoad) *a = l->loads[0], *b = l->loads[1];
    ck_assert_int_eq(a->dp_rank, 0);
    ck_assert_int_eq(a->num_running_reqs, 3);
    ck_assert_int_eq(a->num_waiting_reqs, 2);
    ck_assert_int_eq(a->num_total_reqs, 5);
    ck_assert_int_eq(a->max_running_requests, 4);
    ck_assert_int_eq(a->num_used_tokens + a->max_total_num_tokens, 0);
    ck_assert_int_eq(a->_active_token_usage_case, 0);
    ck_assert_double_eq(a->utilization, 0.75);
    ck_assert_int_eq(b->dp_rank, 1);
    ck_assert_int_eq(b->num_running_reqs, 1);
    ck_assert_int_eq(b->num_total_reqs, 1);
    ck_assert_int_eq(b->num_used_tokens, 1600);
    ck_assert_int_eq(b->max_total_num_tokens, 64000);
    ck_assert_double_eq(b->token_usage, 0.5);
    ck_assert_int_ne(b->_active_token_usage_case, 0); /* a known zero is there */
    ck_assert_double_eq(b->active_token_usage, 0);
    ck_assert_double_eq(b->gen_throughput, 100.5);
    ck_assert_double_eq(b->cache_hit_rate, 0.25);
    ck_assert_ptr_null(b->memory);
    ck_assert_ptr_null(b->queues);
    ck_assert_int_eq(l->aggregate->total_running_reqs, 4);
    ck_assert_int_eq(l->aggregate->total_waiting_reqs, 2);
    ck_assert_int_eq(l->aggregate->total_reqs, 6);
    ck_assert_double_eq(l->aggregate->avg_token_usage, 0.5); /* of the one rank that knows it */
    ck_assert_double_eq(l->aggregate->avg_throughput, 100.5);
    ck_assert_double_eq(l->aggregate->avg_utilization, 0.5);
    tokenspeed__grpc__scheduler__get_loads_response__free_unpacked(l, NULL);
}
END_TEST

START_TEST(stale_numbers_of_the_engine_are_left_out) {
    rk_loads_query query = {.core = true};
    rk_load_row row = {.running = 1, .window = 2, .engine_fresh = false};
    row.engine = (rk_engine_load){.used_tokens = 9,
                                  .max_total_tokens = 9,
                                  .token_usage = 1,
                                  .active_token_usage = 1,
                                  .gen_throughput = 1,
                                  .cache_hit_rate = 1};
    TS(GetLoadsResponse) *l = loads_of(&query, &row, 1, 1);
    ck_assert_int_eq(l->loads[0]->num_used_tokens + l->loads[0]->max_total_num_tokens, 0);
    ck_assert_double_eq(l->loads[0]->token_usage + l->loads[0]->gen_throughput + l->loads[0]->cache_hit_rate,
                        0);
    ck_assert_int_eq(l->loads[0]->_active_token_usage_case, 0);
    ck_assert_double_eq(l->aggregate->avg_token_usage, 0);
    tokenspeed__grpc__scheduler__get_loads_response__free_unpacked(l, NULL);
}
END_TEST

START_TEST(a_rank_that_is_asked_for_comes_alone_and_an_unknown_one_not_at_all) {
    rk_load_row rows[] = {{.rank = 0, .running = 3}, {.rank = 1, .running = 1}};
    rk_loads_query query = {.has_rank = true, .rank = 1, .core = true};
    TS(GetLoadsResponse) *l = loads_of(&query, rows, 2, 2);
    ck_assert_uint_eq(l->n_loads, 1);
    ck_assert_int_eq(l->loads[0]->dp_rank, 1);
    ck_assert_int_eq(l->aggregate->total_running_reqs, 1);
    ck_assert_int_eq(l->dp_rank_count, 2);
    tokenspeed__grpc__scheduler__get_loads_response__free_unpacked(l, NULL);
    query.rank = 99;
    l = loads_of(&query, rows, 2, 2);
    ck_assert_uint_eq(l->n_loads, 0);
    ck_assert_ptr_nonnull(l->aggregate);
    ck_assert_int_eq(l->aggregate->total_running_reqs, 0);
    tokenspeed__grpc__scheduler__get_loads_response__free_unpacked(l, NULL);
}
END_TEST

int main(void) {
    TCase *calls = tcase_create("calls");
    tcase_add_test(calls, the_dialect_names_its_service_and_methods);
    tcase_add_test(calls, an_engines_http_status_has_a_grpc_code);
    tcase_add_test(calls, an_abort_names_its_request);
    tcase_add_test(calls, an_abort_of_nothing_or_of_an_impossible_id_is_refused);
    tcase_add_test(calls, an_abort_of_the_longest_id_arrives_whole);
    tcase_add_test(calls, answers_of_abort_and_health_read_back);
    tcase_add_test(calls, a_request_without_fields_must_still_be_a_message);
    TCase *info = tcase_create("info");
    tcase_add_test(info, model_info_says_every_field);
    tcase_add_loop_test(info, a_model_without_a_name_is_listed_by_its_path, 0, 2);
    tcase_add_test(info, server_info_says_every_field);
    TCase *loads = tcase_create("loads");
    tcase_add_test(loads, a_loads_query_without_fields_asks_for_everything);
    tcase_add_test(loads, a_loads_query_names_parts_and_a_rank);
    tcase_add_test(loads, loads_say_what_is_known_of_each_rank_and_all_together);
    tcase_add_test(loads, stale_numbers_of_the_engine_are_left_out);
    tcase_add_test(loads, a_rank_that_is_asked_for_comes_alone_and_an_unknown_one_not_at_all);
    Suite *suite = suite_create("dialect_info");
    suite_add_tcase(suite, calls);
    suite_add_tcase(suite, info);
    suite_add_tcase(suite, loads);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
