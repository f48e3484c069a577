/* The C stand-in engine, listened to by a sink that writes down what it says. */
#include "standin_helpers.h"

START_TEST(a_request_gets_its_tokens_and_ends_by_length) {
    rk_request *request = make_request((wish){.max_new = 10, .prompt = 7});
    uint32_t ids[16];
    start((rk_standin_options){.weight_version = "v1"});
    submit_request(5, request);
    WAIT_FOR(finished(5) == 1);
    ck_assert_uint_eq(tokens_of(5, 0, ids, 16), 10);
    for (uint32_t i = 0; i < 10; i++)
        ck_assert_uint_eq(ids[i], rk_standin_token(request, 0, i, VOCAB));
    const said *last = last_of(5, 0);
    ck_assert_int_eq(last->output.finish, RK_FINISH_LENGTH);
    ck_assert_uint_eq(last->output.completion_tokens, 10);
    ck_assert_uint_eq(last->output.prompt_tokens, 7);
    ck_assert_str_eq(last->output.weight_version, "v1");
    ck_assert_uint_eq(heard.count, 10);
    lets_go_of_all();
    rk_request_unref(request);
}
END_TEST

START_TEST(the_same_request_gets_the_same_answer_and_another_seed_another) {
    uint32_t one[16], same[16], other[16];
    start((rk_standin_options){0});
    submit(1, (wish){.max_new = 16, .seed = 7});
    submit(2, (wish){.max_new = 16, .seed = 7});
    submit(3, (wish){.max_new = 16, .seed = 8});
    WAIT_FOR(finished(0) == 3);
    ck_assert_uint_eq(tokens_of(1, 0, one, 16), 16);
    ck_assert_uint_eq(tokens_of(2, 0, same, 16), 16);
    ck_assert_uint_eq(tokens_of(3, 0, other, 16), 16);
    ck_assert_mem_eq(one, same, sizeof one);
    ck_assert_mem_ne(one, other, sizeof one);
}
END_TEST

START_TEST(cumulative_outputs_carry_all_tokens_so_far) {
    rk_request *request = make_request((wish){.max_new = 5, .logprobs = true});
    start((rk_standin_options){.cumulative = true});
    submit_request(1, request);
    WAIT_FOR(finished(1) == 1);
    ck_assert_uint_eq(heard.count, 5);
    for (size_t i = 0; i < heard.count; i++) {
        ck_assert(heard.outputs[i].output.cumulative);
        ck_assert_uint_eq(heard.outputs[i].output.token_count, i + 1);
        ck_assert_uint_eq(heard.outputs[i].output.logprob_count, 1);
        for (uint32_t k = 0; k <= i; k++)
            ck_assert_uint_eq(heard.outputs[i].ids[k], rk_standin_token(request, 0, k, VOCAB));
    }
    rk_request_unref(request);
}
END_TEST

START_TEST(a_request_without_a_limit_gets_the_default_and_nobody_more_than_the_most) {
    start((rk_standin_options){.tokens = 9, .max_tokens = 12});
    submit(1, (wish){.max_new = -1});
    submit(2, (wish){.max_new = 4000000000});
    WAIT_FOR(finished(0) == 2);
    ck_assert_uint_eq(last_of(1, 0)->output.completion_tokens, 9);
    ck_assert_uint_eq(last_of(2, 0)->output.completion_tokens, 12);
    ck_assert_int_eq(last_of(2, 0)->output.finish, RK_FINISH_LENGTH);
}
END_TEST

START_TEST(several_tokens_may_come_in_one_step) {
    start((rk_standin_options){.step_tokens = 4});
    submit(1, (wish){.max_new = 10});
    WAIT_FOR(finished(1) == 1);
    ck_assert_uint_eq(heard.count, 3);
    ck_assert_uint_eq(heard.outputs[0].output.token_count, 4);
    ck_assert_uint_eq(heard.outputs[2].output.token_count, 2);
}
END_TEST

START_TEST(the_window_runs_first_come_first_served) {
    uint64_t ended = 0;
    start((rk_standin_options){.window = 2});
    rk_standin_pause(engine, true);
    for (uint64_t handle = 1; handle <= 6; handle++)
        submit(handle, (wish){.max_new = 3});
    all_carried_out();
    rk_standin_pause(engine, false);
    WAIT_FOR(finished(0) == 6);
    for (size_t i = 0, in_push = 0; i < heard.count; i++) {
        in_push = i && heard.outputs[i].push == heard.outputs[i - 1].push ? in_push + 1 : 1;
        ck_assert_uint_le(in_push, 2);
        if (heard.outputs[i].output.finish != RK_FINISH_NONE)
            ck_assert_uint_eq(heard.outputs[i].handle, ++ended);
    }
    ck_assert_uint_eq(ended, 6);
}
END_TEST

START_TEST(the_outputs_of_a_step_come_in_one_push) {
    start((rk_standin_options){0});
    rk_standin_pause(engine, true);
    for (uint64_t handle = 1; handle <= 20; handle++)
        submit(handle, (wish){.max_new = 5});
    all_carried_out();
    rk_standin_pause(engine, false);
    WAIT_FOR(finished(0) == 20);
    ck_assert_uint_eq(heard.pushes, 5);
    ck_assert_uint_eq(heard.count, 100);
}
END_TEST

START_TEST(each_choice_is_an_engine_request_of_its_own) {
    rk_request *request = make_request((wish){.max_new = 4, .n = 3});
    uint32_t ids[4];
    start((rk_standin_options){.window = 2});
    submit_request(1, request);
    WAIT_FOR(finished(1) == 3);
    for (uint32_t choice = 0; choice < 3; choice++) {
        ck_assert_uint_eq(tokens_of(1, choice, ids, 4), 4);
        for (uint32_t i = 0; i < 4; i++)
            ck_assert_uint_eq(ids[i], rk_standin_token(request, choice, i, VOCAB));
    }
    ck_assert_uint_eq(rk_standin_submitted(engine), 3);
    ck_assert_uint_ne(rk_standin_token(request, 0, 0, VOCAB), rk_standin_token(request, 1, 0, VOCAB));
    rk_request_unref(request);
}
END_TEST

START_TEST(a_stop_token_ends_a_choice_and_is_named) {
    start((rk_standin_options){.stop_after = 3, .eos_token_id = 2});
    submit(1, (wish){.max_new = 10, .stop_id = 77});
    submit(2, (wish){.max_new = 10});
    submit(3, (wish){.max_new = 10, .ignore_eos = true});
    WAIT_FOR(finished(0) == 3);
    for (uint64_t handle = 1; handle <= 2; handle++) {
        const said *last = last_of(handle, 0);
        uint32_t stop = handle == 1 ? 77 : 2;
        ck_assert_int_eq(last->output.finish, RK_FINISH_STOP);
        ck_assert_int_eq(last->output.matched, RK_MATCHED_TOKEN);
        ck_assert_uint_eq(last->output.matched_token_id, stop);
        ck_assert_uint_eq(last->output.completion_tokens, 3);
        ck_assert_uint_eq(last->ids[last->output.token_count - 1], stop);
    }
    ck_assert_int_eq(last_of(3, 0)->output.finish, RK_FINISH_LENGTH);
    ck_assert_uint_eq(last_of(3, 0)->output.completion_tokens, 10);
}
END_TEST

START_TEST(a_stop_token_that_comes_up_by_itself_counts_past_the_minimum) {
    rk_request *plain = make_request((wish){.max_new = 10});
    uint32_t fourth = rk_standin_token(plain, 0, 3, VOCAB);
    rk_request_unref(plain);
    start((rk_standin_options){0});
    submit(1, (wish){.max_new = 10, .stop_id = fourth});
    submit(2, (wish){.max_new = 10, .stop_id = fourth, .min_new = 4});
    WAIT_FOR(finished(0) == 2);
    ck_assert_uint_eq(last_of(1, 0)->output.completion_tokens, 4);
    ck_assert_int_eq(last_of(1, 0)->output.finish, RK_FINISH_STOP);
    ck_assert_uint_eq(last_of(2, 0)->output.completion_tokens, 10);
    ck_assert_int_eq(last_of(2, 0)->output.finish, RK_FINISH_LENGTH);
}
END_TEST

START_TEST(logprobs_come_one_for_each_new_token) {
    start((rk_standin_options){.step_tokens = 2});
    submit(1, (wish){.max_new = 5, .logprobs = true, .tops = 3});
    submit(2, (wish){.max_new = 5});
    submit(3, (wish){.max_new = 5, .logprobs = true});
    WAIT_FOR(finished(0) == 3);
    for (size_t i = 0; i < heard.count; i++) {
        const said *entry = &heard.outputs[i];
        size_t wanted = entry->handle == 2 ? 0 : entry->output.token_count;
        ck_assert_uint_eq(entry->output.logprob_count, wanted);
        for (size_t k = 0; k < wanted; k++)
            ck_assert(entry->logprobs[k] <= 0 && entry->logprobs[k] >= -1);
        ck_assert_uint_eq(entry->top_count, entry->handle == 1 ? 3 * wanted : 0);
        for (size_t k = 0; k < entry->top_count; k += 3) /* the first alternative is the chosen token */
            ck_assert_uint_eq(entry->top_ids[k], entry->ids[k / 3]);
    }
}
END_TEST

START_TEST(an_engine_error_comes_after_its_tokens_with_status_and_message) {
    start(
        (rk_standin_options){.fails = true, .fail_after = 2, .fail_status = 503, .fail_message = "no pages"});
    submit(1, (wish){.max_new = 10});
    WAIT_FOR(finished(1) == 1);
    const said *last = last_of(1, 0);
    ck_assert_int_eq(last->output.finish, RK_FINISH_ABORT);
    ck_assert_int_eq(last->output.http_status, 503);
    ck_assert_str_eq(last->message, "no pages");
    ck_assert_uint_eq(last->output.completion_tokens, 2);
}
END_TEST

START_TEST(an_engine_that_takes_nothing_says_so) {
    start((rk_standin_options){.submit_error = -EAGAIN});
    rk_request *request = make_request((wish){.max_new = 1});
    rk_submission submission = {.handle = 1, .request = request, .engine_id = "r~1", .rank = -1};
    ck_assert_int_eq(rk_standin_ops()->submit(engine, &submission), -EAGAIN);
    ck_assert_uint_eq(rk_standin_live(engine), 0);
    rk_request_unref(request);
}
END_TEST

START_TEST(an_abort_ends_what_runs_and_what_waits_and_is_acknowledged) {
    start((rk_standin_options){.window = 1, .step_us = 1000});
    submit(1, (wish){.max_new = 1000000});
    submit(2, (wish){.max_new = 1000000});
    submit(3, (wish){.max_new = 2});
    WAIT_FOR(heard.count > 0);
    abort_one(2, RK_ALL_CHOICES);
    abort_one(1, RK_ALL_CHOICES);
    abort_one(99, RK_ALL_CHOICES);
    WAIT_FOR(finished(3) == 1 && heard.aborted_count == 3);
    ck_assert_uint_eq(heard.aborted[0].handle, 2);
    ck_assert_uint_eq(heard.aborted[1].handle, 1);
    ck_assert_uint_eq(heard.aborted[2].handle, 99);
    ck_assert_uint_eq(finished(1), 0);
    lets_go_of_all();
    ck_assert_uint_eq(rk_standin_aborts(engine), 3);
}
END_TEST

START_TEST(one_choice_may_be_aborted_and_the_others_go_on) {
    start((rk_standin_options){.step_us = 1000});
    submit(1, (wish){.max_new = 300, .n = 3});
    abort_one(1, 1);
    abort_one(1, 7);
    WAIT_FOR(finished(1) == 2);
    ck_assert_int_eq(last_of(1, 0)->output.finish, RK_FINISH_LENGTH);
    ck_assert_int_eq(last_of(1, 2)->output.finish, RK_FINISH_LENGTH);
    ck_assert_uint_eq(heard.aborted_count, 2);
    ck_assert_uint_eq(heard.aborted[0].choice, 1);
    abort_one(1, RK_ALL_CHOICES); /* late: it is over */
    WAIT_FOR(heard.aborted_count == 3);
    lets_go_of_all();
}
END_TEST

START_TEST(a_released_room_is_over_and_acknowledged) {
    ck_assert_ptr_null(rk_standin_ops()->release_room);
    start((rk_standin_options){.step_us = 1000});
    submit(4, (wish){.max_new = 1000000, .n = 2});
    ck_assert_int_eq(rk_standin_ops_releasing()->release_room(engine, 4, "127.0.0.1", 1, 2, "twin_ended"), 0);
    WAIT_FOR(heard.released == 4);
    lets_go_of_all();
}
END_TEST

START_TEST(questions_are_answered_unless_it_is_silent) {
    start((rk_standin_options){0});
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_PROBE, 1, NULL), 0);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_IS_PAUSED, 2, NULL), 0);
    WAIT_FOR(heard.answers[1] == 1 && heard.answers[2] == 0);
    rk_standin_pause(engine, true);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_PROBE, 3, NULL), 0);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_IS_PAUSED, 4, NULL), 0);
    WAIT_FOR(heard.answers[4] == 1);
    ck_assert_int_eq(heard.answers[3], -1); /* a probe is a token, and there are none */
    rk_standin_pause(engine, false);
    WAIT_FOR(heard.answers[3] == 1);
    rk_standin_silence(engine, true);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_PROBE, 5, NULL), 0);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_IS_PAUSED, 6, NULL), 0);
    abort_one(1, 0); /* comes after them, so once it is acknowledged they have been looked at */
    WAIT_FOR(heard.aborted_count == 1);
    ck_assert_int_eq(heard.answers[5], -1);
    ck_assert_int_eq(heard.answers[6], -1);
}
END_TEST

START_TEST(a_silent_engine_beats_and_takes_aborts_but_says_nothing) {
    start((rk_standin_options){.beat_ms = 1});
    rk_standin_silence(engine, true);
    submit(1, (wish){.max_new = 1});
    WAIT_FOR(heard.beats > 3 && heard.load.waiting == 1);
    ck_assert_uint_eq(heard.count, 0);
    abort_one(1, RK_ALL_CHOICES);
    WAIT_FOR(heard.aborted_count == 1 && heard.load.waiting == 0);
    lets_go_of_all();
}
END_TEST

START_TEST(a_stalled_engine_does_nothing_until_it_is_back) {
    start((rk_standin_options){.beat_ms = 1});
    WAIT_FOR(heard.beats > 0);
    rk_standin_stall(engine, true);
    submit(1, (wish){.max_new = 1});
    abort_one(2, 0);
    /* The turn that was under way may still take both; after that nothing moves. */
    const struct timespec moment = {.tv_nsec = 50000000};
    (void)nanosleep(&moment, NULL);
    lock();
    uint64_t beats = heard.beats;
    size_t count = heard.count;
    unlock();
    (void)nanosleep(&moment, NULL);
    lock();
    ck_assert_uint_eq(heard.beats, beats);
    ck_assert_uint_eq(heard.count, count);
    unlock();
    rk_standin_stall(engine, false);
    WAIT_FOR(finished(1) == 1 && heard.aborted_count == 1 && heard.beats > beats);
}
END_TEST

START_TEST(it_says_ready_and_reports_its_load) {
    start((rk_standin_options){.beat_ms = 1, .window = 2, .kv_tokens = 100, .step_us = 1000});
    WAIT_FOR(heard.state_count == 1);
    ck_assert_int_eq(heard.states[0], RK_ENGINE_READY);
    for (uint64_t handle = 1; handle <= 3; handle++)
        submit(handle, (wish){.max_new = 1000000, .prompt = 10});
    WAIT_FOR(heard.load.running == 2 && heard.load.waiting == 1 && heard.load.used_tokens > 20);
    ck_assert_int_eq(heard.load.max_total_tokens, 100);
    ck_assert(heard.load.token_usage > 0.2 && heard.load.token_usage <= 1);
    for (uint64_t handle = 1; handle <= 3; handle++)
        abort_one(handle, RK_ALL_CHOICES);
    WAIT_FOR(heard.aborted_count == 3 && heard.load.running == 0 && heard.load.used_tokens == 0);
}
END_TEST

START_TEST(a_step_is_never_early) {
    uint64_t before = rk_now_us();
    start((rk_standin_options){.step_us = 2000});
    submit(1, (wish){.max_new = 20});
    WAIT_FOR(finished(1) == 1);
    ck_assert_uint_ge(rk_now_us() - before, 40000);
}
END_TEST

START_TEST(stopping_lets_go_of_what_runs_and_what_comes_late) {
    start((rk_standin_options){.window = 1, .step_us = 1000});
    submit(1, (wish){.max_new = 1000000, .n = 2});
    submit(2, (wish){.max_new = 1000000});
    ck_assert_int_eq(rk_standin_start(engine), -EALREADY);
    WAIT_FOR(heard.count > 0);
    rk_standin_stop(engine);
    rk_standin_stop(engine);
    size_t count = heard.count;
    submit(3, (wish){.max_new = 1});
    abort_one(1, RK_ALL_CHOICES);
    ck_assert_int_eq(rk_standin_ops()->query(engine, RK_QUERY_PROBE, 1, NULL), 0);
    ck_assert_uint_eq(heard.count, count);
    ck_assert_uint_eq(rk_standin_live(engine), 4);
}
END_TEST

static void *submit_many(void *arg) {
    uint64_t first = *(uint64_t *)arg;
    for (uint64_t i = 0; i < 200; i++) {
        rk_request *request = make_request((wish){.max_new = (int64_t)(i % 5)});
        rk_submission submission = {.handle = first + i, .request = request, .engine_id = "r", .rank = -1};
        if (rk_standin_ops()->submit(engine, &submission) < 0)
            abort();
        rk_request_unref(request);
        if (i % 3 == 0)
            rk_standin_ops()->abort(engine, first + i, RK_ALL_CHOICES);
    }
    return NULL;
}

START_TEST(requests_of_many_threads_end_at_most_once_and_leave_nothing) {
    pthread_t threads[4];
    uint64_t firsts[4] = {1000, 2000, 3000, 4000};
    start((rk_standin_options){.window = 8});
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, submit_many, &firsts[i]), 0);
    for (size_t i = 0; i < 4; i++)
        (void)pthread_join(threads[i], NULL);
    submit(1, (wish){.max_new = 1}); /* behind all others */
    WAIT_FOR(finished(1) == 1);
    lets_go_of_all();
    rk_standin_stop(engine);
    for (size_t t = 0; t < 4; t++) {
        for (uint64_t i = 0; i < 200; i++)
            ck_assert(finished(firsts[t] + i) == 1 || (i % 3 == 0 && finished(firsts[t] + i) == 0));
    }
    ck_assert_uint_eq(rk_standin_submitted(engine), 801);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("standin");
    TCase *tests = tcase_create("standin");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_request_gets_its_tokens_and_ends_by_length);
    tcase_add_test(tests, the_same_request_gets_the_same_answer_and_another_seed_another);
    tcase_add_test(tests, cumulative_outputs_carry_all_tokens_so_far);
    tcase_add_test(tests, a_request_without_a_limit_gets_the_default_and_nobody_more_than_the_most);
    tcase_add_test(tests, several_tokens_may_come_in_one_step);
    tcase_add_test(tests, the_window_runs_first_come_first_served);
    tcase_add_test(tests, the_outputs_of_a_step_come_in_one_push);
    tcase_add_test(tests, each_choice_is_an_engine_request_of_its_own);
    tcase_add_test(tests, a_stop_token_ends_a_choice_and_is_named);
    tcase_add_test(tests, a_stop_token_that_comes_up_by_itself_counts_past_the_minimum);
    tcase_add_test(tests, logprobs_come_one_for_each_new_token);
    tcase_add_test(tests, an_engine_error_comes_after_its_tokens_with_status_and_message);
    tcase_add_test(tests, an_engine_that_takes_nothing_says_so);
    tcase_add_test(tests, an_abort_ends_what_runs_and_what_waits_and_is_acknowledged);
    tcase_add_test(tests, one_choice_may_be_aborted_and_the_others_go_on);
    tcase_add_test(tests, a_released_room_is_over_and_acknowledged);
    tcase_add_test(tests, questions_are_answered_unless_it_is_silent);
    tcase_add_test(tests, a_silent_engine_beats_and_takes_aborts_but_says_nothing);
    tcase_add_test(tests, a_stalled_engine_does_nothing_until_it_is_back);
    tcase_add_test(tests, it_says_ready_and_reports_its_load);
    tcase_add_test(tests, a_step_is_never_early);
    tcase_add_test(tests, stopping_lets_go_of_what_runs_and_what_comes_late);
    tcase_add_test(tests, requests_of_many_threads_end_at_most_once_and_leave_nothing);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
