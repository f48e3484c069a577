/* Generate calls through a whole servicer: what arrives, when, and how they end. */
#include "rpc_helpers.h"

static worker w;
static grpc_channel *channel;

static void setup(void) {
    grpc_init();
}

static void begin(plan p) {
    worker_start(&w, p);
    channel = channel_to(w.address);
}

static void teardown(void) {
    grpc_channel_destroy(channel);
    worker_end(&w);
    grpc_shutdown();
}

static const char *const strict[] = {"waiting", "0", NULL};
static const char *const one_waits[] = {"waiting", "1", NULL};

/* The tokens the engine is going to give. */
static void expect_tokens(const ask *a, uint32_t choice, const uint32_t *ids, size_t count) {
    uint32_t prompt[64];
    for (uint32_t i = 0; i < RK_COUNT(prompt); i++)
        prompt[i] = i + 1;
    rk_request request = {
        .input_ids = prompt, .input_count = a->prompt ? a->prompt : 4, .n = a->n ? a->n : 1};
    ck_assert_uint_eq(count, a->tokens ? a->tokens : 4);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(ids[i], rk_standin_token(&request, choice, i, VOCAB));
}

START_TEST(a_streams_chunks_join_to_what_its_complete_says) {
    ask a = {.id = "r", .tokens = 20};
    uint32_t ids[32];
    size_t count = 0;
    rpc c;
    begin((plan){0});
    generate(&c, channel, a);
    response *r;
    bool complete = false;
    while ((r = rpc_read(&c)) != NULL) {
        ck_assert_str_eq(r->request_id, "r");
        ck_assert(!complete);
        if (r->response_case == TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK) {
            ck_assert_uint_le(count + r->chunk->n_token_ids, RK_COUNT(ids));
            memcpy(ids + count, r->chunk->token_ids, r->chunk->n_token_ids * sizeof *ids);
            count += r->chunk->n_token_ids;
        } else {
            complete = true;
            ck_assert_str_eq(r->complete->finish_reason, "length");
            ck_assert_uint_eq(r->complete->n_output_ids, count);
            ck_assert_mem_eq(r->complete->output_ids, ids, count * sizeof *ids);
            ck_assert_uint_eq(r->complete->completion_tokens, 20);
            ck_assert_uint_eq(r->complete->prompt_tokens, 4);
        }
        response_free(r);
    }
    ck_assert(complete);
    expect_tokens(&a, 0, ids, count);
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(cumulative_outputs_are_sent_as_deltas) {
    ask a = {.id = "r", .tokens = 50, .logprobs = true};
    uint32_t ids[64];
    size_t count = 0;
    rpc c;
    begin((plan){.engine = {.cumulative = true, .step_us = 200}});
    generate(&c, channel, a);
    response *r;
    while ((r = rpc_read(&c)) != NULL) {
        if (r->response_case == TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK) {
            const Tokenspeed__Grpc__Scheduler__GenerateStreamChunk *chunk = r->chunk;
            ck_assert_uint_le(count + chunk->n_token_ids, RK_COUNT(ids));
            memcpy(ids + count, chunk->token_ids, chunk->n_token_ids * sizeof *ids);
            count += chunk->n_token_ids;
            if (chunk->n_token_ids > 0) {
                ck_assert_ptr_nonnull(chunk->output_logprobs);
                ck_assert_uint_eq(chunk->output_logprobs->n_token_logprobs, chunk->n_token_ids);
                ck_assert_uint_eq(chunk->output_logprobs->n_top_logprobs, chunk->n_token_ids);
            }
        }
        response_free(r);
    }
    expect_tokens(&a, 0, ids, count);
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
}
END_TEST

START_TEST(without_streaming_each_choice_is_one_message) {
    ask a = {.id = "r", .tokens = 9, .n = 5, .whole = true};
    rpc c;
    begin((plan){.engine = {.step_us = 100}});
    generate(&c, channel, a);
    for (uint32_t i = 0; i < 5; i++) {
        response *r = rpc_read(&c);
        ck_assert_ptr_nonnull(r);
        ck_assert_int_eq(r->response_case, TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE);
        ck_assert_uint_eq(r->complete->index, i);
        expect_tokens(&a, i, r->complete->output_ids, r->complete->n_output_ids);
        response_free(r);
    }
    ck_assert_ptr_null(rpc_read(&c));
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
}
END_TEST

START_TEST(headers_come_with_the_admission_and_not_before) {
    rpc first, second;
    begin((plan){.engine = {.step_us = 1000}, .role = RK_ROLE_DECODE, .window = 1});
    generate(&first, channel, (ask){.id = "first", .tokens = 100000, .room = 1});
    rpc_wait(&first, HEADERS);
    generate(&second, channel, (ask){.id = "second", .room = 2});
    UNTIL(rank_of(&w).waiting == 1);
    ck_assert(!rpc_within(&second, HEADERS, 50));
    response_free(rpc_read(&first)); /* its KV is here, so that it lets go when it is cancelled */
    rpc_cancel(&first);
    rpc_wait(&second, HEADERS);
    ck_assert_int_eq(rpc_end(&second, NULL), GRPC_STATUS_OK);
    ck_assert_int_eq(rpc_end(&first, NULL), GRPC_STATUS_CANCELLED);
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(beyond_the_line_the_refusal_has_the_numbers) {
    rpc first, second, third;
    char text[512];
    begin((plan){.engine = {.step_us = 1000}, .role = RK_ROLE_DECODE, .window = 1, .options = one_waits});
    generate(&first, channel, (ask){.id = "first", .tokens = 100000, .room = 1});
    rpc_wait(&first, HEADERS);
    generate(&second, channel, (ask){.id = "second", .room = 2});
    UNTIL(rank_of(&w).waiting == 1);
    generate(&third, channel, (ask){.id = "third", .room = 3});
    rpc_wait(&third, STATUS);
    ck_assert_int_eq(rpc_trailing(&third, "grpc-retry-pushback-ms"), 500);
    ck_assert_int_eq(rpc_trailing(&third, "roomkeeper-window"), 1);
    ck_assert_int_eq(rpc_trailing(&third, "roomkeeper-admitted"), 1);
    ck_assert_int_eq(rpc_trailing(&third, "roomkeeper-waiting"), 1);
    ck_assert_int_eq(rpc_end(&third, text), GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(text, "1 of 1 slots"));
    response_free(rpc_read(&first));
    rpc_cancel(&second);
    rpc_cancel(&first);
    ck_assert_int_eq(rpc_end(&second, NULL), GRPC_STATUS_CANCELLED);
    ck_assert_int_eq(rpc_end(&first, NULL), GRPC_STATUS_CANCELLED);
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(a_prefill_opens_with_an_empty_chunk) {
    rpc c;
    begin((plan){.engine = {.step_us = 1000}, .role = RK_ROLE_PREFILL, .window = 1});
    rk_standin_silence(w.engine, true);
    generate(&c, channel, (ask){.id = "p", .room = 1, .tokens = 1});
    response *r = rpc_read(&c);
    if (!r) {
        char text[512];
        grpc_status_code code = rpc_end(&c, text);
        ck_abort_msg("the call ended %d without a message: %s", (int)code, text);
    }
    ck_assert_int_eq(r->response_case, TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK);
    ck_assert_uint_eq(r->chunk->n_token_ids, 0);
    response_free(r);
    rk_standin_silence(w.engine, false);
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
}
END_TEST

START_TEST(a_live_id_is_refused_and_a_live_room_too) {
    rpc first, again, room;
    begin((plan){.engine = {.step_us = 1000}, .role = RK_ROLE_DECODE, .window = 4, .options = strict});
    generate(&first, channel, (ask){.id = "same", .tokens = 100000, .room = 1});
    UNTIL(rk_standin_submitted(w.engine) == 1);
    generate(&again, channel, (ask){.id = "same", .room = 2});
    ck_assert_int_eq(rpc_end(&again, NULL), GRPC_STATUS_ALREADY_EXISTS);
    generate(&room, channel, (ask){.id = "other", .room = 1});
    ck_assert_int_eq(rpc_end(&room, NULL), GRPC_STATUS_ALREADY_EXISTS);
    response_free(rpc_read(&first));
    ck_assert_int_eq(abort_request(channel, "same"), 1);
    ck_assert_int_eq(rpc_end(&first, NULL), GRPC_STATUS_OK);
    ck_assert_uint_eq(rk_standin_submitted(w.engine), 1);
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(a_cancelled_call_is_aborted_once_and_leaves_nothing) {
    rpc c;
    char id[16];
    begin((plan){.engine = {.step_us = 500}});
    for (int turn = 0; turn < 20; turn++) {
        (void)snprintf(id, sizeof id, "r%d", turn); /* the cancel may overtake the call */
        generate(&c, channel, (ask){.id = id, .tokens = 100000, .n = 3});
        if (turn % 2)
            response_free(rpc_read(&c));
        rpc_cancel(&c);
        ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_CANCELLED);
        UNTIL(is_idle(&w) && rk_standin_live(w.engine) == 0);
    }
    ck_assert_uint_le(rk_standin_aborts(w.engine), rk_standin_submitted(w.engine));
}
END_TEST

START_TEST(an_abort_ends_the_stream_with_a_complete_that_says_so) {
    rpc c;
    begin((plan){.engine = {.step_us = 500}});
    generate(&c, channel, (ask){.id = "r", .tokens = 100000});
    response_free(rpc_read(&c));
    ck_assert_int_eq(abort_request(channel, "r"), 1);
    ck_assert_int_eq(abort_request(channel, "r"), 0);
    response *r;
    bool aborted = false;
    while ((r = rpc_read(&c)) != NULL) {
        if (r->response_case == TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE)
            aborted = strcmp(r->complete->finish_reason, "abort") == 0;
        response_free(r);
    }
    ck_assert(aborted);
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
    UNTIL(is_idle(&w) && rk_standin_live(w.engine) == 0);
    ck_assert_uint_eq(rk_standin_aborts(w.engine), 1);
}
END_TEST

START_TEST(one_choice_may_be_aborted_and_the_others_go_on) {
    rpc c;
    begin((plan){.engine = {.step_us = 2000}});
    generate(&c, channel, (ask){.id = "r", .tokens = 100, .n = 3});
    response_free(rpc_read(&c));
    ck_assert_int_eq(abort_request(channel, "r-n1"), 1);
    response *r;
    size_t completes = 0;
    while ((r = rpc_read(&c)) != NULL) {
        if (r->response_case == TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE) {
            completes++;
            ck_assert_str_eq(r->complete->finish_reason, r->complete->index == 1 ? "abort" : "length");
        }
        response_free(r);
    }
    ck_assert_uint_eq(completes, 3);
    ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_OK);
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(an_engine_error_is_the_calls_status) {
    rpc c;
    char text[512];
    begin((plan){
        .engine = {.fails = true, .fail_after = 3, .fail_status = 429, .fail_message = "too\xff many"}});
    generate(&c, channel, (ask){.id = "r", .tokens = 10, .n = 2});
    ck_assert_int_eq(rpc_end(&c, text), GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(text, "too? many");
    UNTIL(is_idle(&w) && rk_standin_live(w.engine) == 0);
}
END_TEST

START_TEST(an_engine_that_takes_nothing_makes_calls_unavailable) {
    rpc c;
    begin((plan){.engine = {.submit_error = -ENOMEM}, .role = RK_ROLE_DECODE, .window = 1});
    for (int64_t room = 1; room < 4; room++) {
        generate(&c, channel, (ask){.id = "r", .room = room});
        ck_assert_int_eq(rpc_end(&c, NULL), GRPC_STATUS_UNAVAILABLE);
    }
    UNTIL(is_idle(&w));
}
END_TEST

START_TEST(a_reader_that_stops_is_ended_and_its_memory_is_bounded) {
    static const char *const small[] = {"backlog_bytes", "65536", NULL};
    rpc slow, other;
    char text[512];
    begin((plan){.engine = {.step_us = 100, .step_tokens = 20000, .max_tokens = 1048576}, .options = small});
    grpc_channel *apart = channel_to(w.address);
    generate(&slow, channel, (ask){.id = "slow", .tokens = 1048576, .n = 16});
    UNTIL(rk_servicer_open_calls(w.servicer) == 0 || rk_standin_aborts(w.engine) > 0);
    generate(&other, apart, (ask){.id = "other"});
    ck_assert_int_eq(rpc_end(&other, NULL), GRPC_STATUS_OK);
    ck_assert_int_eq(rpc_end(&slow, text), GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(text, "backlog_bytes"));
    UNTIL(is_idle(&w) && rk_standin_live(w.engine) == 0);
    grpc_channel_destroy(apart);
}
END_TEST

START_TEST(bytes_that_are_no_request_and_none_at_all_are_refused) {
    begin((plan){0});
    ck_assert_int_eq(unary(channel, SCHEDULER "Generate", "\xff\xff", 2, NULL, NULL),
                     GRPC_STATUS_INVALID_ARGUMENT);
    ck_assert_int_eq(unary(channel, SCHEDULER "Generate", NULL, 0, NULL, NULL), GRPC_STATUS_INVALID_ARGUMENT);
    ck_assert_int_eq(unary(channel, SCHEDULER "Abort", NULL, 0, NULL, NULL), GRPC_STATUS_INVALID_ARGUMENT);
    ck_assert_int_eq(unary(channel, "/no.such/Method", "", 0, NULL, NULL), GRPC_STATUS_UNIMPLEMENTED);
    ck_assert_int_eq(unary(channel, SCHEDULER "FlushCache", "", 0, NULL, NULL), GRPC_STATUS_UNIMPLEMENTED);
    ck_assert_int_eq(health(channel), 1);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("rpc_generate");
    TCase *tests = tcase_create("rpc_generate");
    tcase_set_timeout(tests, 100);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_streams_chunks_join_to_what_its_complete_says);
    tcase_add_test(tests, cumulative_outputs_are_sent_as_deltas);
    tcase_add_test(tests, without_streaming_each_choice_is_one_message);
    tcase_add_test(tests, headers_come_with_the_admission_and_not_before);
    tcase_add_test(tests, beyond_the_line_the_refusal_has_the_numbers);
    tcase_add_test(tests, a_prefill_opens_with_an_empty_chunk);
    tcase_add_test(tests, a_live_id_is_refused_and_a_live_room_too);
    tcase_add_test(tests, a_cancelled_call_is_aborted_once_and_leaves_nothing);
    tcase_add_test(tests, an_abort_ends_the_stream_with_a_complete_that_says_so);
    tcase_add_test(tests, one_choice_may_be_aborted_and_the_others_go_on);
    tcase_add_test(tests, an_engine_error_is_the_calls_status);
    tcase_add_test(tests, an_engine_that_takes_nothing_makes_calls_unavailable);
    tcase_add_test(tests, a_reader_that_stops_is_ended_and_its_memory_is_bounded);
    tcase_add_test(tests, bytes_that_are_no_request_and_none_at_all_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
