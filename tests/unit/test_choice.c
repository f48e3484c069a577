/* What a choice of a Generate call keeps of the engine's outputs, and what of it goes into which message. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "rpc/choice.h"

static rk_choice choice;

static void setup(void) {
    choice = (rk_choice){.index = 3};
}

static void teardown(void) {
    rk_choice_free(&choice);
}

static void add(const rk_output *output, bool with_logprobs, bool trim_stop) {
    ck_assert_int_eq(rk_choice_add(&choice, output, with_logprobs, trim_stop), 0);
}

static void add_ids(const uint32_t *ids, size_t count, bool cumulative) {
    add(&(rk_output){.token_ids = ids, .token_count = count, .cumulative = cumulative}, false, true);
}

static void expect_ids(const uint32_t *ids, size_t count) {
    rk_tokens tokens = rk_choice_tokens(&choice, 0, choice.count);
    ck_assert_uint_eq(tokens.count, count);
    if (count)
        ck_assert_mem_eq(tokens.ids, ids, count * sizeof *ids);
}

START_TEST(deltas_are_appended) {
    add_ids((uint32_t[]){1, 2}, 2, false);
    add_ids((uint32_t[]){3}, 1, false);
    add_ids(NULL, 0, false);
    expect_ids((uint32_t[]){1, 2, 3}, 3);
}
END_TEST

START_TEST(of_cumulative_outputs_only_the_new_tokens_are_taken) {
    add_ids((uint32_t[]){1, 2}, 2, true);
    add_ids((uint32_t[]){1, 2}, 2, true);
    add_ids((uint32_t[]){1, 2, 3, 4}, 4, true);
    expect_ids((uint32_t[]){1, 2, 3, 4}, 4);
}
END_TEST

START_TEST(a_cumulative_output_that_is_shorter_takes_nothing_back) {
    add_ids((uint32_t[]){1, 2, 3}, 3, true);
    add_ids((uint32_t[]){1}, 1, true);
    expect_ids((uint32_t[]){1, 2, 3}, 3);
}
END_TEST

START_TEST(a_message_carries_its_part_of_the_tokens_and_the_choices_index) {
    add_ids((uint32_t[]){1, 2, 3, 4, 5}, 5, false);
    rk_tokens tokens = rk_choice_tokens(&choice, 2, 4);
    ck_assert_uint_eq(tokens.count, 2);
    ck_assert_uint_eq(tokens.ids[0], 3);
    ck_assert_uint_eq(tokens.ids[1], 4);
    ck_assert_uint_eq(tokens.index, 3);
    ck_assert_ptr_null(tokens.logprobs);
}
END_TEST

START_TEST(a_choice_without_tokens_makes_an_empty_message) {
    rk_tokens tokens = rk_choice_tokens(&choice, 0, 0);
    ck_assert_uint_eq(tokens.count, 0);
    ck_assert_ptr_null(tokens.logprobs);
}
END_TEST

START_TEST(counts_and_version_are_those_of_the_last_output) {
    add(&(rk_output){.prompt_tokens = 7, .completion_tokens = 1, .weight_version = "v1"}, false, true);
    add(&(rk_output){.prompt_tokens = 7,
                     .completion_tokens = 2,
                     .cached_tokens = 4,
                     .spec_accepted_tokens = 5,
                     .spec_draft_tokens = 6,
                     .weight_version = "v2"},
        false, true);
    add(&(rk_output){.prompt_tokens = 7,
                     .completion_tokens = 3,
                     .cached_tokens = 4,
                     .spec_accepted_tokens = 5,
                     .spec_draft_tokens = 6,
                     .finish = RK_FINISH_LENGTH},
        false, true);
    rk_completion completion = rk_choice_completion(&choice);
    ck_assert_uint_eq(completion.tokens.prompt_tokens, 7);
    ck_assert_uint_eq(completion.tokens.completion_tokens, 3);
    ck_assert_uint_eq(completion.tokens.cached_tokens, 4);
    ck_assert_uint_eq(completion.spec_accepted_tokens, 5);
    ck_assert_uint_eq(completion.spec_draft_tokens, 6);
    ck_assert_str_eq(completion.tokens.weight_version, "v2");
    ck_assert_int_eq(completion.finish, RK_FINISH_LENGTH);
    ck_assert(choice.finished);
}
END_TEST

/* A last output of three tokens that a stop ended. */
static rk_output stopped(const uint32_t ids[3], rk_matched matched, uint32_t token) {
    return (rk_output){.token_ids = ids,
                       .token_count = 3,
                       .finish = RK_FINISH_STOP,
                       .matched = matched,
                       .matched_token_id = token};
}

START_TEST(a_matched_stop_token_is_trimmed_and_still_named) {
    rk_output output = stopped((uint32_t[]){1, 2, 9}, RK_MATCHED_TOKEN, 9);
    add(&output, false, true);
    expect_ids((uint32_t[]){1, 2}, 2);
    rk_completion completion = rk_choice_completion(&choice);
    ck_assert_int_eq(completion.matched, RK_MATCHED_TOKEN);
    ck_assert_uint_eq(completion.matched_token_id, 9);
}
END_TEST

START_TEST(a_matched_stop_token_stays_when_asked_for) {
    rk_output output = stopped((uint32_t[]){1, 2, 9}, RK_MATCHED_TOKEN, 9);
    add(&output, false, false);
    expect_ids((uint32_t[]){1, 2, 9}, 3);
}
END_TEST

START_TEST(a_last_token_that_is_not_the_matched_one_stays) {
    rk_output output = stopped((uint32_t[]){1, 2, 3}, RK_MATCHED_TOKEN, 9);
    add(&output, false, true);
    expect_ids((uint32_t[]){1, 2, 3}, 3);
}
END_TEST

START_TEST(a_stop_token_that_a_chunk_has_carried_stays) {
    add_ids((uint32_t[]){1, 9}, 2, false);
    choice.written = 2;
    add(&(rk_output){.finish = RK_FINISH_STOP, .matched = RK_MATCHED_TOKEN, .matched_token_id = 9}, false,
        true);
    expect_ids((uint32_t[]){1, 9}, 2);
}
END_TEST

START_TEST(a_matched_stop_string_is_kept_with_its_bytes) {
    add(&(rk_output){.finish = RK_FINISH_STOP,
                     .matched = RK_MATCHED_STRING,
                     .matched_string = "foo\0bar",
                     .matched_bytes = 7},
        false, true);
    rk_completion completion = rk_choice_completion(&choice);
    ck_assert_int_eq(completion.matched, RK_MATCHED_STRING);
    ck_assert_uint_eq(completion.matched_bytes, 7);
    ck_assert_mem_eq(completion.matched_string, "foo\0bar", 7);
}
END_TEST

/* ---- logprobs ---- */

static rk_output with_logprobs(const uint32_t *ids, const float *logprobs, size_t count) {
    return (rk_output){.token_ids = ids, .token_count = count, .logprobs = logprobs, .logprob_count = count};
}

START_TEST(logprobs_go_one_to_one_with_the_tokens_of_the_same_message) {
    rk_output first = with_logprobs((uint32_t[]){1, 2}, (float[]){-1, -2}, 2);
    rk_output second = with_logprobs((uint32_t[]){3}, (float[]){-3}, 1);
    add(&first, true, true);
    add(&second, true, true);
    rk_tokens tokens = rk_choice_tokens(&choice, 1, 3);
    ck_assert_ptr_nonnull(tokens.logprobs);
    ck_assert_float_eq(tokens.logprobs[0], -2);
    ck_assert_float_eq(tokens.logprobs[1], -3);
    ck_assert_uint_eq(tokens.logprob_ids[0], 2);
    ck_assert_uint_eq(tokens.logprob_ids[1], 3);
    ck_assert_uint_eq(tokens.top_begin, 0);
    ck_assert_uint_eq(tokens.top_ends[1], 0);
}
END_TEST

START_TEST(of_cumulative_logprobs_those_of_the_new_tokens_are_taken) {
    rk_output first = with_logprobs((uint32_t[]){1}, (float[]){-1}, 1);
    rk_output second = with_logprobs((uint32_t[]){1, 2, 3}, (float[]){-1, -2, -3}, 3);
    first.cumulative = second.cumulative = true;
    add(&first, true, true);
    add(&second, true, true);
    rk_tokens tokens = rk_choice_tokens(&choice, 0, 3);
    for (size_t i = 0; i < 3; i++)
        ck_assert_float_eq(tokens.logprobs[i], -1.0f * (float)(i + 1));
}
END_TEST

START_TEST(alternatives_keep_to_their_position_and_may_be_missing) {
    float values[] = {-0.5f, -0.6f};
    uint32_t ids[] = {11, 12};
    rk_top_logprobs top[] = {{values, ids, 2}, {NULL, NULL, 0}, {values + 1, ids + 1, 1}};
    rk_output output = with_logprobs((uint32_t[]){1, 2, 3}, (float[]){-1, -2, -3}, 3);
    output.top_logprobs = top;
    add(&output, true, true);
    rk_tokens all = rk_choice_tokens(&choice, 0, 3);
    ck_assert_uint_eq(all.top_ends[0], 2);
    ck_assert_uint_eq(all.top_ends[1], 2);
    ck_assert_uint_eq(all.top_ends[2], 3);
    rk_tokens last = rk_choice_tokens(&choice, 2, 3);
    ck_assert_uint_eq(last.top_begin, 2);
    ck_assert_uint_eq(last.top_ids[last.top_begin], 12);
    ck_assert_float_eq(last.top_values[last.top_begin], -0.6f);
}
END_TEST

START_TEST(a_trimmed_stop_token_takes_its_logprob_and_alternatives_along) {
    float value = -0.5f;
    uint32_t id = 11;
    rk_top_logprobs top[] = {{&value, &id, 1}, {&value, &id, 1}};
    rk_output output = with_logprobs((uint32_t[]){1, 9}, (float[]){-1, -2}, 2);
    output.top_logprobs = top;
    output.finish = RK_FINISH_STOP;
    output.matched = RK_MATCHED_TOKEN;
    output.matched_token_id = 9;
    add(&output, true, true);
    ck_assert_uint_eq(choice.count, 1);
    ck_assert_uint_eq(choice.logprob_count, 1);
    ck_assert_uint_eq(choice.top_count, 1);
    ck_assert_ptr_nonnull(rk_choice_completion(&choice).tokens.logprobs);
}
END_TEST

START_TEST(tokens_without_logprobs_end_the_alignment_rather_than_shift_it) {
    rk_output with = with_logprobs((uint32_t[]){1}, (float[]){-1}, 1);
    add(&with, true, true);
    add(&(rk_output){.token_ids = (uint32_t[]){2}, .token_count = 1}, true, true);
    rk_output late = with_logprobs((uint32_t[]){3}, (float[]){-3}, 1);
    add(&late, true, true);
    ck_assert_ptr_nonnull(rk_choice_tokens(&choice, 0, 1).logprobs);
    ck_assert_ptr_null(rk_choice_tokens(&choice, 0, 3).logprobs);
    ck_assert_ptr_null(rk_choice_tokens(&choice, 2, 3).logprobs);
    expect_ids((uint32_t[]){1, 2, 3}, 3);
}
END_TEST

START_TEST(logprobs_that_nobody_asked_for_are_not_kept) {
    rk_output output = with_logprobs((uint32_t[]){1}, (float[]){-1}, 1);
    add(&output, false, true);
    ck_assert_ptr_null(choice.logprobs);
    ck_assert_ptr_null(rk_choice_tokens(&choice, 0, 1).logprobs);
}
END_TEST

/* ---- what is held for the reader ---- */

START_TEST(the_backlog_is_what_no_chunk_has_carried) {
    add_ids((uint32_t[]){1, 2, 3, 4}, 4, false);
    ck_assert_uint_eq(rk_choice_backlog(&choice), 4 * sizeof(uint32_t));
    choice.written = 3;
    ck_assert_uint_eq(rk_choice_backlog(&choice), sizeof(uint32_t));
}
END_TEST

START_TEST(the_backlog_counts_logprobs_and_alternatives) {
    float value = -0.5f;
    uint32_t id = 11;
    rk_top_logprobs top[] = {{&value, &id, 1}, {&value, &id, 1}};
    rk_output output = with_logprobs((uint32_t[]){1, 2}, (float[]){-1, -2}, 2);
    output.top_logprobs = top;
    add(&output, true, true);
    size_t all = rk_choice_backlog(&choice);
    ck_assert_uint_gt(all, 2 * 4 * sizeof(uint32_t));
    choice.written = 1;
    ck_assert_uint_eq(rk_choice_backlog(&choice), all / 2);
}
END_TEST

START_TEST(a_long_answer_grows_without_losing_a_token) {
    enum { MANY = 10000 };
    for (uint32_t i = 0; i < MANY; i++) {
        float logprob = -(float)i;
        rk_output output = with_logprobs(&i, &logprob, 1);
        add(&output, true, true);
    }
    rk_tokens tokens = rk_choice_tokens(&choice, 0, MANY);
    ck_assert_uint_eq(tokens.count, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert_uint_eq(tokens.ids[i], i);
        ck_assert_float_eq(tokens.logprobs[i], -(float)i);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("choice");
    TCase *tests = tcase_create("choice");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, deltas_are_appended);
    tcase_add_test(tests, of_cumulative_outputs_only_the_new_tokens_are_taken);
    tcase_add_test(tests, a_cumulative_output_that_is_shorter_takes_nothing_back);
    tcase_add_test(tests, a_message_carries_its_part_of_the_tokens_and_the_choices_index);
    tcase_add_test(tests, a_choice_without_tokens_makes_an_empty_message);
    tcase_add_test(tests, counts_and_version_are_those_of_the_last_output);
    tcase_add_test(tests, a_matched_stop_token_is_trimmed_and_still_named);
    tcase_add_test(tests, a_matched_stop_token_stays_when_asked_for);
    tcase_add_test(tests, a_last_token_that_is_not_the_matched_one_stays);
    tcase_add_test(tests, a_stop_token_that_a_chunk_has_carried_stays);
    tcase_add_test(tests, a_matched_stop_string_is_kept_with_its_bytes);
    tcase_add_test(tests, logprobs_go_one_to_one_with_the_tokens_of_the_same_message);
    tcase_add_test(tests, of_cumulative_logprobs_those_of_the_new_tokens_are_taken);
    tcase_add_test(tests, alternatives_keep_to_their_position_and_may_be_missing);
    tcase_add_test(tests, a_trimmed_stop_token_takes_its_logprob_and_alternatives_along);
    tcase_add_test(tests, tokens_without_logprobs_end_the_alignment_rather_than_shift_it);
    tcase_add_test(tests, logprobs_that_nobody_asked_for_are_not_kept);
    tcase_add_test(tests, the_backlog_is_what_no_chunk_has_carried);
    tcase_add_test(tests, the_backlog_counts_logprobs_and_alternatives);
    tcase_add_test(tests, a_long_answer_grows_without_losing_a_token);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
