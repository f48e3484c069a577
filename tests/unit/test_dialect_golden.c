/* Bytes of google.protobuf, the runtime that most gateways are written with: read as they mean, written the
 * same. data/make_golden.py has made them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/golden.h"
#include "dialect_wire.h"

static const rk_dialect *const dialect = &rk_dialect_tokenspeed;

#define SAME(out, golden)                                                                                    \
    do {                                                                                                     \
        ck_assert_uint_eq((out).size, sizeof(golden));                                                       \
        ck_assert_mem_eq((out).data, (golden), sizeof(golden));                                              \
        rk_buf_free(&(out));                                                                                 \
    } while (0)

/* ---- read ---- */

static void check_numbers(const rk_sampling *s) {
    ck_assert_uint_eq(s->has, 0x1FF);
    ck_assert_float_eq(s->temperature, 0);
    ck_assert_float_eq(s->top_p, 0.5f);
    ck_assert_int_eq(s->top_k, -1);
    ck_assert_float_eq(s->min_p, 0.125f);
    ck_assert_float_eq(s->frequency_penalty, -2);
    ck_assert_float_eq(s->presence_penalty, 2);
    ck_assert_float_eq(s->repetition_penalty, 1.25f);
    ck_assert_uint_eq(s->max_new_tokens, 4000000000u);
    ck_assert_uint_eq(s->seed, INT64_MAX);
    ck_assert_uint_eq(s->min_new_tokens, 3);
    ck_assert(s->ignore_eos && s->skip_special_tokens && s->no_stop_trim &&
              !s->spaces_between_special_tokens);
}

static void check_lists(const rk_sampling *s) {
    ck_assert_uint_eq(s->stop_count, 3);
    ck_assert_str_eq(s->stop[0].data, "a");
    ck_assert_str_eq(s->stop[1].data, "");
    ck_assert_str_eq(s->stop[2].data, "€");
    ck_assert_uint_eq(s->stop_token_id_count, 2);
    ck_assert_uint_eq(s->stop_token_ids[1], 151645);
    ck_assert_uint_eq(s->logit_bias_count, 2);
    ck_assert_str_eq(s->logit_bias[0].token.data, "151935"); /* a map has no order; this is how it was sent */
    ck_assert_float_eq(s->logit_bias[0].bias, 0.5f);
    ck_assert_str_eq(s->logit_bias[1].token.data, "15");
    ck_assert_float_eq(s->logit_bias[1].bias, -100);
    ck_assert_int_eq(s->constraint, RK_CONSTRAINT_JSON_SCHEMA);
    ck_assert_str_eq(s->constraint_text.data, "{\"type\":\"object\"}");
    ck_assert_uint_eq(s->custom_params->count, 2);
    ck_assert_double_eq(rk_value_get(s->custom_params, "number")->number, -1.5);
    const rk_value *list = rk_value_get(s->custom_params, "list");
    ck_assert_uint_eq(list->count, 4);
    ck_assert_int_eq(list->items[1]->kind, RK_VALUE_NULL);
    ck_assert_str_eq(list->items[2]->string, "x");
    ck_assert(rk_value_get(list->items[3], "deep")->boolean);
}

START_TEST(a_request_of_google_protobuf_is_read_as_it_means) {
    rk_limits limits = {.role = RK_ROLE_DECODE, .rooms = true, .vocab_size = 151936, .ranks = 1};
    rk_buf buf = RK_BUF_INIT;
    rk_buf_append(&buf, golden_request, sizeof golden_request);
    rk_request *r = accepts(buf, &limits);
    static const uint32_t prompt[] = {0, 1, 127, 128, 300, 16384, 151935};
    ck_assert_str_eq(r->request_id.data, "gen-ü");
    ck_assert_uint_eq(r->input_count, 7);
    ck_assert_mem_eq(r->input_ids, prompt, sizeof prompt);
    check_numbers(&r->sampling);
    check_lists(&r->sampling);
    ck_assert_uint_eq(r->n, 1);
    ck_assert(r->stream && r->return_logprob);
    ck_assert_int_eq(r->logprob_start_len, 0);
    ck_assert_int_eq(r->top_logprobs_num, 20);
    ck_assert_uint_eq(r->token_id_logprob_count, 2);
    ck_assert_uint_eq(r->token_ids_logprob[1], 70000);
    ck_assert_str_eq(r->bootstrap_host.data, "fd00::1");
    ck_assert_int_eq(r->bootstrap_port, 65535);
    ck_assert_int_eq(r->bootstrap_room, INT64_MAX);
    ck_assert(r->has_rank);
    ck_assert_int_eq(r->rank, 0);
    rk_request_unref(r);
}
END_TEST

/* ---- write ---- */

START_TEST(a_chunk_is_written_as_google_protobuf_writes_it) {
    static const uint32_t ids[] = {300, 0, 151935}, ends[] = {2, 2, 3}, tops[] = {300, 7, 151935};
    static const float logprobs[] = {-0.5f, 0, -12.25f}, values[] = {-0.5f, -1, -12.25f};
    const rk_tokens tokens = {.ids = ids,
                              .count = 3,
                              .logprobs = logprobs,
                              .logprob_ids = ids,
                              .top_ends = ends,
                              .top_values = values,
                              .top_ids = tops,
                              .prompt_tokens = 7,
                              .completion_tokens = 3,
                              .cached_tokens = 128,
                              .index = 2,
                              .weight_version = ""};
    rk_buf out = RK_BUF_INIT;
    dialect->encode_chunk(&out, &(rk_text){"gen-ü", 6}, &tokens);
    SAME(out, golden_chunk);
}
END_TEST

START_TEST(completes_are_written_as_google_protobuf_writes_them) {
    static const uint32_t ids[] = {1, 2};
    rk_completion completion = {.tokens = {.ids = ids,
                                           .count = 2,
                                           .prompt_tokens = 7,
                                           .completion_tokens = 3,
                                           .weight_version = "v1"},
                                .finish = RK_FINISH_STOP,
                                .matched = RK_MATCHED_TOKEN,
                                .matched_token_id = 0,
                                .spec_accepted_tokens = 5,
                                .spec_draft_tokens = 9};
    rk_buf out = RK_BUF_INIT;
    dialect->encode_complete(&out, &(rk_text){"r", 1}, &completion);
    SAME(out, golden_complete_token);
    completion = (rk_completion){
        .finish = RK_FINISH_ABORT, .matched = RK_MATCHED_STRING, .matched_string = "END", .matched_bytes = 3};
    dialect->encode_complete(&out, &(rk_text){"r", 1}, &completion);
    SAME(out, golden_complete_string);
}
END_TEST

static rk_worker_info worker(void) {
    static const char *const architectures[] = {"A", "B"};
    static const int32_t eos[] = {2, -1}, modalities[] = {1, 3};
    return (rk_worker_info){.kv_tokens = 65536,
                            .vocab_size = 152064,
                            .max_context = 32768,
                            .model_path = "/m",
                            .tokenizer_path = "/t",
                            .served_model_name = "one",
                            .model_type = "llama",
                            .architectures = architectures,
                            .architecture_count = 2,
                            .max_req_input_len = 32000,
                            .eos_token_ids = eos,
                            .eos_token_id_count = 2,
                            .pad_token_id = -1,
                            .bos_token_id = 1,
                            .weight_version = "v1",
                            .default_sampling_params_json = "{}",
                            .supports_vision = true,
                            .modalities = modalities,
                            .modality_count = 2,
                            .model_dtype = "bfloat16",
                            .multimodal_encoder_dtype = "float16",
                            .engine_version = "0.1.1",
                            .constrained_decoding = "requested"};
}

START_TEST(model_info_is_written_as_google_protobuf_writes_it) {
    rk_worker_info info = worker();
    rk_buf out = RK_BUF_INIT;
    dialect->encode_model_info(&out, &info, NULL);
    SAME(out, golden_model_info);
}
END_TEST

START_TEST(server_info_is_written_as_google_protobuf_writes_it) {
    rk_worker_info info = worker();
    rk_value *args = rk_value_map(), *nested = rk_value_map(), *list = rk_value_list();
    ck_assert_int_eq(rk_value_append(list, rk_value_number(0)), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_bool(false)), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_null()), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_string("", 0)), 0);
    ck_assert_int_eq(rk_value_set(nested, "list", list), 0);
    ck_assert_int_eq(rk_value_set(args, "max_num_seqs", rk_value_number(4)), 0);
    ck_assert_int_eq(rk_value_set(args, "nested", nested), 0);
    rk_server_state state = {.info = &info,
                             .server_args = args,
                             .active_requests = 2,
                             .uptime_seconds = 1.5,
                             .start_seconds = 1790000000};
    rk_buf out = RK_BUF_INIT;
    dialect->encode_server_info(&out, &state);
    rk_value_free(args);
    SAME(out, golden_server_info);
}
END_TEST

START_TEST(loads_are_written_as_google_protobuf_writes_them) {
    const rk_load_row rows[] = {{.rank = 0, .window = 4, .engine = {.token_usage = 1}},
                                {.rank = 1,
                                 .running = 2,
                                 .waiting = 300,
                                 .window = 4,
                                 .engine_fresh = true,
                                 .engine = {.used_tokens = 1600,
                                            .max_total_tokens = 64000,
                                            .token_usage = 0.25,
                                            .gen_throughput = 10,
                                            .cache_hit_rate = 0.5}}};
    rk_buf out = RK_BUF_INIT;
    dialect->encode_loads(&out, &(rk_loads_query){.core = true}, rows, 2, 2, "2026-01-02T03:04:05Z");
    SAME(out, golden_loads);
}
END_TEST

START_TEST(the_health_list_is_written_as_google_protobuf_writes_it) {
    static const char *const services[] = {"a.B", ""}; /* in the order that a map had there */
    rk_buf out = RK_BUF_INIT;
    rk_health_encode_list(&out, services, 2, RK_NOT_SERVING);
    SAME(out, golden_health_list);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("golden");
    tcase_add_test(tcase, a_request_of_google_protobuf_is_read_as_it_means);
    tcase_add_test(tcase, a_chunk_is_written_as_google_protobuf_writes_it);
    tcase_add_test(tcase, completes_are_written_as_google_protobuf_writes_them);
    tcase_add_test(tcase, model_info_is_written_as_google_protobuf_writes_it);
    tcase_add_test(tcase, server_info_is_written_as_google_protobuf_writes_it);
    tcase_add_test(tcase, loads_are_written_as_google_protobuf_writes_them);
    tcase_add_test(tcase, the_health_list_is_written_as_google_protobuf_writes_it);
    Suite *suite = suite_create("dialect_golden");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
