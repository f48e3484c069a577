/* Chunks and Completes: the same bytes as another implementation writes for the same fields. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "tokenspeed_scheduler.pb-c.h"

#define TS(name) Tokenspeed__Grpc__Scheduler__##name
#define TS_INIT(name) TOKENSPEED__GRPC__SCHEDULER__##name##__INIT

#define TOKENS_MAX 40
#define TOPS_MAX 8

/* One random message: the numbers, as the encoder takes them and as protobuf-c does. */
typedef struct sample {
    uint32_t ids[TOKENS_MAX];
    uint32_t logprob_ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    uint32_t top_ends[TOKENS_MAX];
    uint32_t top_ids[TOKENS_MAX * TOPS_MAX + 3];
    float top_values[TOKENS_MAX * TOPS_MAX + 3];
    char version[12];
    char matched[12];
    char id[20];
    rk_text request_id;
    rk_completion completion; /* its tokens are those of a Chunk too */
    TS(TopLogProbs) tops[TOKENS_MAX];
    TS(TopLogProbs) * top_list[TOKENS_MAX];
    TS(OutputLogProbs) output_logprobs;
} sample;

/* Small numbers, large ones and zeros, so that every length of a varint comes up. */
static uint32_t any_number(uint64_t *state) {
    return (uint32_t)(next_random(state) >> (32 + random_below(state, 33)) % 64) &
           (random_below(state, 4) ? UINT32_MAX : 0);
}

static float any_float(uint64_t *state) {
    static const float special[] = {0, -0.0f, -INFINITY, NAN, 1e-40f};
    return random_below(state, 8) ? -(float)random_below(state, 100000) / 1000
                                  : special[random_below(state, 5)];
}

static void any_text(uint64_t *state, char *text, size_t size) {
    size_t length = (size_t)random_below(state, size);
    for (size_t i = 0; i < length; i++)
        text[i] = (char)('a' + random_below(state, 26));
    text[length] = '\0';
}

static void make_tops(sample *s, uint64_t *state, size_t count) {
    uint32_t at = (uint32_t)random_below(state, 4); /* entries before those of this message */
    s->completion.tokens.top_begin = at;
    for (size_t i = 0; i < count; i++) {
        uint32_t top = (uint32_t)random_below(state, TOPS_MAX + 1);
        tokenspeed__grpc__scheduler__top_log_probs__init(&s->tops[i]);
        s->tops[i].values = s->top_values + at;
        s->tops[i].token_ids = s->top_ids + at;
        s->tops[i].n_values = s->tops[i].n_token_ids = top;
        for (uint32_t k = 0; k < top; k++) {
            s->top_ids[at] = any_number(state);
            s->top_values[at++] = any_float(state);
        }
        s->top_ends[i] = at;
    }
    s->completion.tokens.top_ends = s->top_ends;
    s->completion.tokens.top_ids = s->top_ids;
    s->completion.tokens.top_values = s->top_values;
}

static void make_logprobs(sample *s, uint64_t *state, size_t count) {
    for (size_t i = 0; i < count; i++) {
        s->logprobs[i] = any_float(state);
        s->logprob_ids[i] = any_number(state);
        tokenspeed__grpc__scheduler__top_log_probs__init(&s->tops[i]);
        s->top_list[i] = &s->tops[i];
    }
    s->completion.tokens.logprobs = s->logprobs;
    s->completion.tokens.logprob_ids = s->logprob_ids;
    if (random_below(state, 2))
        make_tops(s, state, count);
    tokenspeed__grpc__scheduler__output_log_probs__init(&s->output_logprobs);
    s->output_logprobs.token_logprobs = s->logprobs;
    s->output_logprobs.token_ids = s->logprob_ids;
    s->output_logprobs.top_logprobs = s->top_list;
    s->output_logprobs.n_token_logprobs = s->output_logprobs.n_token_ids = s->output_logprobs.n_top_logprobs =
        count;
}

static void make(sample *s, uint64_t *state) {
    rk_tokens *tokens = &s->completion.tokens;
    memset(s, 0, sizeof *s);
    any_text(state, s->id, sizeof s->id);
    any_text(state, s->version, sizeof s->version);
    any_text(state, s->matched, sizeof s->matched);
    s->request_id = (rk_text){s->id, strlen(s->id)};
    tokens->count = (size_t)random_below(state, TOKENS_MAX);
    tokens->ids = s->ids;
    for (size_t i = 0; i < tokens->count; i++)
        s->ids[i] = any_number(state);
    tokens->prompt_tokens = any_number(state);
    tokens->completion_tokens = any_number(state);
    tokens->cached_tokens = any_number(state);
    tokens->index = any_number(state);
    if (random_below(state, 2))
        tokens->weight_version = s->version;
    if (random_below(state, 2))
        make_logprobs(s, state, tokens->count);
    s->completion.finish = (rk_finish)(1 + random_below(state, 3));
    s->completion.matched = (rk_matched)random_below(state, 3);
    s->completion.matched_token_id = any_number(state);
    s->completion.matched_string = s->matched;
    s->completion.matched_bytes = strlen(s->matched);
    s->completion.spec_accepted_tokens = any_number(state);
    s->completion.spec_draft_tokens = any_number(state);
}

static void check_same(const rk_buf *ours, TS(GenerateResponse) * theirs) {
    size_t size = tokenspeed__grpc__scheduler__generate_response__get_packed_size(theirs);
    uint8_t *bytes = malloc(size ? size : 1);
    tokenspeed__grpc__scheduler__generate_response__pack(theirs, bytes);
    ck_assert(!ours->failed);
    ck_assert_uint_eq(ours->size, size);
    ck_assert_mem_eq(ours->data, bytes, size);
    free(bytes);
}

static void check_chunk(sample *s) {
    const rk_tokens *tokens = &s->completion.tokens;
    TS(GenerateStreamChunk) chunk = TS_INIT(GENERATE_STREAM_CHUNK);
    TS(GenerateResponse) response = TS_INIT(GENERATE_RESPONSE);
    rk_buf out = RK_BUF_INIT;
    response.request_id = s->id;
    response.response_case = TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK;
    response.chunk = &chunk;
    chunk.token_ids = s->ids;
    chunk.n_token_ids = tokens->count;
    chunk.prompt_tokens = tokens->prompt_tokens;
    chunk.completion_tokens = tokens->completion_tokens;
    chunk.cached_tokens = tokens->cached_tokens;
    chunk.index = tokens->index;
    if (tokens->logprobs && tokens->count)
        chunk.output_logprobs = &s->output_logprobs;
    if (tokens->weight_version) {
        chunk._weight_version_case =
            TOKENSPEED__GRPC__SCHEDULER__GENERATE_STREAM_CHUNK___WEIGHT_VERSION_WEIGHT_VERSION;
        chunk.weight_version = s->version;
    }
    rk_dialect_tokenspeed.encode_chunk(&out, &s->request_id, tokens);
    check_same(&out, &response);
    rk_buf_free(&out);
}

static void set_matched(TS(GenerateComplete) * complete, sample *s) {
    if (s->completion.matched == RK_MATCHED_TOKEN) {
        complete->matched_stop_case =
            TOKENSPEED__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        complete->matched_token_id = s->completion.matched_token_id;
    } else if (s->completion.matched == RK_MATCHED_STRING) {
        complete->matched_stop_case =
            TOKENSPEED__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        complete->matched_stop_str = s->matched;
    }
}

static void check_complete(sample *s) {
    static char *names[] = {"", "stop", "length", "abort"};
    const rk_tokens *tokens = &s->completion.tokens;
    TS(GenerateComplete) complete = TS_INIT(GENERATE_COMPLETE);
    TS(GenerateResponse) response = TS_INIT(GENERATE_RESPONSE);
    rk_buf out = RK_BUF_INIT;
    response.request_id = s->id;
    response.response_case = TOKENSPEED__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    response.complete = &complete;
    complete.output_ids = s->ids;
    complete.n_output_ids = tokens->count;
    complete.finish_reason = names[s->completion.finish];
    complete.prompt_tokens = tokens->prompt_tokens;
    complete.completion_tokens = tokens->completion_tokens;
    complete.cached_tokens = tokens->cached_tokens;
    complete.index = tokens->index;
    complete.spec_accepted_tokens = s->completion.spec_accepted_tokens;
    complete.spec_draft_tokens = s->completion.spec_draft_tokens;
    set_matched(&complete, s);
    if (tokens->logprobs && tokens->count)
        complete.output_logprobs = &s->output_logprobs;
    if (tokens->weight_version) {
        complete._weight_version_case =
            TOKENSPEED__GRPC__SCHEDULER__GENERATE_COMPLETE___WEIGHT_VERSION_WEIGHT_VERSION;
        complete.weight_version = s->version;
    }
    rk_dialect_tokenspeed.encode_complete(&out, &s->request_id, &s->completion);
    check_same(&out, &response);
    rk_buf_free(&out);
}

START_TEST(random_outputs_are_written_as_protobuf_c_writes_them) {
    static sample s;
    uint64_t state = 1 + (uint64_t)_i;
    for (int round = 0; round < 10000; round++) {
        make(&s, &state);
        check_chunk(&s);
        check_complete(&s);
    }
}
END_TEST

START_TEST(an_empty_chunk_is_a_chunk_all_the_same) {
    rk_buf out = RK_BUF_INIT;
    rk_tokens tokens = {0};
    rk_dialect_tokenspeed.encode_chunk(&out, &(rk_text){"r", 1}, &tokens);
    ck_assert_uint_eq(out.size, 5);
    ck_assert_mem_eq(out.data, "\x0A\x01r\x12\x00", 5);
    rk_buf_free(&out);
}
END_TEST

START_TEST(messages_are_appended_to_what_is_there) {
    rk_buf out = RK_BUF_INIT;
    rk_tokens tokens = {0};
    rk_buf_append(&out, "head", 4);
    rk_dialect_tokenspeed.encode_chunk(&out, &(rk_text){"r", 1}, &tokens);
    ck_assert_uint_eq(out.size, 9);
    ck_assert_mem_eq(out.data, "head\x0A\x01r\x12\x00", 9);
    rk_buf_free(&out);
}
END_TEST

START_TEST(text_of_the_engine_that_is_not_utf8_is_made_so) {
    rk_buf out = RK_BUF_INIT;
    rk_completion completion = {.finish = RK_FINISH_STOP,
                                .matched = RK_MATCHED_STRING,
                                .matched_string = "a\xFF\xE2\x82z",
                                .matched_bytes = 5};
    completion.tokens.weight_version = "v\xC3";
    rk_dialect_tokenspeed.encode_complete(&out, &(rk_text){"r", 1}, &completion);
    TS(GenerateResponse) *back =
        tokenspeed__grpc__scheduler__generate_response__unpack(NULL, out.size, out.data);
    ck_assert_ptr_nonnull(back);
    ck_assert_str_eq(back->complete->matched_stop_str, "a???z");
    ck_assert_str_eq(back->complete->weight_version, "v?");
    tokenspeed__grpc__scheduler__generate_response__free_unpacked(back, NULL);
    rk_buf_free(&out);
}
END_TEST

START_TEST(a_buffer_that_has_failed_stays_as_it_is) {
    rk_buf out = RK_BUF_INIT;
    rk_tokens tokens = {.ids = (const uint32_t[]){1}, .count = 1};
    rk_completion completion = {.tokens = tokens, .finish = RK_FINISH_STOP};
    out.failed = true;
    rk_dialect_tokenspeed.encode_chunk(&out, &(rk_text){"r", 1}, &tokens);
    rk_dialect_tokenspeed.encode_complete(&out, &(rk_text){"r", 1}, &completion);
    ck_assert(out.failed);
    ck_assert_uint_eq(out.size, 0);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("outputs");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, random_outputs_are_written_as_protobuf_c_writes_them, 0, 2);
    tcase_add_test(tcase, an_empty_chunk_is_a_chunk_all_the_same);
    tcase_add_test(tcase, messages_are_appended_to_what_is_there);
    tcase_add_test(tcase, text_of_the_engine_that_is_not_utf8_is_made_so);
    tcase_add_test(tcase, a_buffer_that_has_failed_stays_as_it_is);
    Suite *suite = suite_create("dialect_outputs");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
