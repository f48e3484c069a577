/* For tests of the C stand-in: a sink that writes down what the engine says, requests made through the
 * dialect as in the servicer, and an engine to start. Waits are guards against hangs, not measurements. */
#ifndef RK_TEST_STANDIN_HELPERS_H
#define RK_TEST_STANDIN_HELPERS_H

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "dialects/dialect.h"
#include "standin/standin.h"
#include "tokenspeed_scheduler.pb-c.h"

#define GUARD_MS 20000u
#define VOCAB 32000u

/* ---- a sink that remembers ---- */

typedef struct said {
    uint64_t handle;
    uint64_t push; /* the number of the push it came with, from 1 */
    rk_output output;
    uint32_t *ids; /* copies, as are the next ones */
    float *logprobs;
    uint32_t *top_ids; /* of all positions, one after the other */
    size_t top_count;
    char message[64];
} said;

typedef struct acknowledged {
    uint64_t handle;
    uint32_t choice;
} acknowledged;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    said *outputs;
    size_t count;
    uint64_t pushes;
    uint64_t beats;
    acknowledged aborted[64];
    size_t aborted_count;
    uint64_t released;
    rk_engine_load load; /* the last one */
    int states[8];
    size_t state_count;
    int answers[8]; /* by query id; -1: none yet */
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void lock(void) {
    (void)pthread_mutex_lock(&heard.lock);
}

static void unlock(void) {
    (void)pthread_cond_broadcast(&heard.changed);
    (void)pthread_mutex_unlock(&heard.lock);
}

static void *duplicate(const void *bytes, size_t size) {
    void *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    if (size)
        memcpy(copy, bytes, size);
    return copy;
}

static void remember(const rk_output *output) {
    heard.outputs = realloc(heard.outputs, (heard.count + 1) * sizeof *heard.outputs);
    if (!heard.outputs)
        abort();
    said *entry = &heard.outputs[heard.count++];
    *entry = (said){.handle = output->handle, .push = heard.pushes, .output = *output};
    entry->ids = duplicate(output->token_ids, output->token_count * sizeof(uint32_t));
    entry->logprobs = duplicate(output->logprobs, output->logprob_count * sizeof(float));
    for (size_t i = 0; output->top_logprobs && i < output->logprob_count; i++) {
        size_t more = output->top_logprobs[i].count;
        entry->top_ids = realloc(entry->top_ids, (entry->top_count + more + 1) * sizeof(uint32_t));
        if (!entry->top_ids)
            abort();
        memcpy(entry->top_ids + entry->top_count, output->top_logprobs[i].token_ids, more * sizeof(uint32_t));
        entry->top_count += more;
    }
    if (output->message_bytes < sizeof entry->message)
        memcpy(entry->message, output->message ? output->message : "", output->message_bytes);
}

static void hear_push(rk_servicer *servicer, const rk_output *outputs, size_t count) {
    (void)servicer;
    lock();
    heard.pushes++;
    for (size_t i = 0; i < count; i++)
        remember(&outputs[i]);
    unlock();
}

static void hear_aborted(rk_servicer *servicer, uint64_t handle, uint32_t choice) {
    (void)servicer;
    lock();
    if (heard.aborted_count < RK_COUNT(heard.aborted))
        heard.aborted[heard.aborted_count++] = (acknowledged){handle, choice};
    unlock();
}

static void hear_released(rk_servicer *servicer, uint64_t handle) {
    (void)servicer;
    lock();
    heard.released = handle;
    unlock();
}

static void hear_beat(rk_servicer *servicer) {
    (void)servicer;
    lock();
    heard.beats++;
    unlock();
}

static void hear_loads(rk_servicer *servicer, const rk_engine_load *loads, size_t count) {
    (void)servicer;
    lock();
    if (count == 1)
        heard.load = loads[0];
    unlock();
}

static void hear_state(rk_servicer *servicer, rk_engine_state state, const char *why) {
    (void)servicer, (void)why;
    lock();
    if (heard.state_count < RK_COUNT(heard.states))
        heard.states[heard.state_count++] = (int)state;
    unlock();
}

static void hear_answer(rk_servicer *servicer, uint64_t query_id, rk_value *answer) {
    (void)servicer;
    lock();
    if (query_id < RK_COUNT(heard.answers))
        heard.answers[query_id] = answer && answer->kind == RK_VALUE_BOOL ? answer->boolean : -2;
    rk_value_free(answer);
    unlock();
}

static const rk_standin_sink sink = {hear_push,  hear_aborted, hear_released, hear_beat,
                                     hear_loads, hear_state,   hear_answer};

/* Waits until `condition` holds, looked at with the lock held. */
#define WAIT_FOR(condition)                                                                                  \
    do {                                                                                                     \
        struct timespec until_;                                                                              \
        int timed_out_ = 0;                                                                                  \
        (void)clock_gettime(CLOCK_REALTIME, &until_);                                                        \
        until_.tv_sec += GUARD_MS / 1000;                                                                    \
        lock();                                                                                              \
        while (!(condition) && timed_out_ == 0)                                                              \
            timed_out_ = pthread_cond_timedwait(&heard.changed, &heard.lock, &until_);                       \
        bool held_ = (condition);                                                                            \
        unlock();                                                                                            \
        ck_assert_msg(held_, "still not so after %u ms: %s", GUARD_MS, #condition);                          \
    } while (0)

static size_t finished(uint64_t handle) {
    size_t count = 0;
    for (size_t i = 0; i < heard.count; i++)
        count += (handle == 0 || heard.outputs[i].handle == handle) &&
                 heard.outputs[i].output.finish != RK_FINISH_NONE;
    return count;
}

/* The last output of a choice; only after WAIT_FOR, or with the engine stopped. */
static const said *last_of(uint64_t handle, uint32_t choice) {
    for (size_t i = heard.count; i-- > 0;) {
        if (heard.outputs[i].handle == handle && heard.outputs[i].output.choice == choice)
            return &heard.outputs[i];
    }
    ck_abort_msg("nothing of %llu.%u", (unsigned long long)handle, choice);
    return NULL;
}

/* All new ids of a choice, joined. */
static size_t tokens_of(uint64_t handle, uint32_t choice, uint32_t *ids, size_t room) {
    size_t count = 0;
    for (size_t i = 0; i < heard.count; i++) {
        const said *entry = &heard.outputs[i];
        if (entry->handle != handle || entry->output.choice != choice)
            continue;
        ck_assert_uint_le(count + entry->output.token_count, room);
        memcpy(ids + count, entry->ids, entry->output.token_count * sizeof *ids);
        count += entry->output.token_count;
    }
    return count;
}

/* ---- requests ---- */

typedef struct wish {
    uint32_t prompt; /* its tokens are 1, 2, 3, …; 0: 4 of them */
    int64_t max_new; /* -1: not given */
    uint32_t min_new;
    uint32_t n;       /* 0: 1 */
    int64_t seed;     /* 0: not given */
    uint32_t stop_id; /* 0: none */
    bool ignore_eos;
    bool logprobs;
    int32_t tops;
} wish;

static rk_request *make_request(wish w) {
    Tokenspeed__Grpc__Scheduler__TokenizedInput input = TOKENSPEED__GRPC__SCHEDULER__TOKENIZED_INPUT__INIT;
    Tokenspeed__Grpc__Scheduler__SamplingParams sampling = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS__INIT;
    Tokenspeed__Grpc__Scheduler__GenerateRequest wire = TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST__INIT;
    uint32_t ids[64];
    input.n_input_ids = w.prompt ? w.prompt : 4;
    ck_assert_uint_le(input.n_input_ids, RK_COUNT(ids));
    for (uint32_t i = 0; i < input.n_input_ids; i++)
        ids[i] = i + 1;
    input.input_ids = ids;
    sampling.n = w.n ? w.n : 1;
    sampling.min_new_tokens = w.min_new;
    sampling.ignore_eos = w.ignore_eos;
    if (w.max_new >= 0) {
        sampling._max_new_tokens_case =
            TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS;
        sampling.max_new_tokens = (uint32_t)w.max_new;
    }
    if (w.seed) {
        sampling._sampling_seed_case =
            TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___SAMPLING_SEED_SAMPLING_SEED;
        sampling.sampling_seed = (uint64_t)w.seed;
    }
    if (w.stop_id) {
        sampling.n_stop_token_ids = 1;
        sampling.stop_token_ids = &w.stop_id;
    }
    wire.request_id = "r";
    wire.tokenized = &input;
    wire.sampling_params = &sampling;
    wire.stream = true;
    wire.return_logprob = w.logprobs;
    wire.top_logprobs_num = w.tops;
    size_t size = tokenspeed__grpc__scheduler__generate_request__get_packed_size(&wire);
    _cleanup_free_ uint8_t *bytes = malloc(size);
    ck_assert_ptr_nonnull(bytes);
    (void)tokenspeed__grpc__scheduler__generate_request__pack(&wire, bytes);
    rk_limits limits = {.rooms = true, .ranks = 1, .max_message_bytes = 1u << 20};
    rk_request *request = NULL;
    rk_status status = {0};
    rk_code code = rk_dialect_tokenspeed.decode_generate(bytes, size, &limits, NULL, &request, &status);
    ck_assert_msg(code == RK_OK, "%s", status.text);
    return request;
}

/* ---- the engine under test ---- */

static rk_standin *engine;

static void start(rk_standin_options options) {
    options.sink = &sink;
    engine = rk_standin_new(&options);
    ck_assert_ptr_nonnull(engine);
    rk_standin_attach(engine, NULL);
    ck_assert_int_eq(rk_standin_start(engine), 0);
}

static void setup(void) {
    for (size_t i = 0; i < RK_COUNT(heard.answers); i++)
        heard.answers[i] = -1;
}

static void teardown(void) {
    rk_standin_free(engine);
    for (size_t i = 0; i < heard.count; i++) {
        free(heard.outputs[i].ids);
        free(heard.outputs[i].logprobs);
        free(heard.outputs[i].top_ids);
    }
    free(heard.outputs);
}

static void submit_request(uint64_t handle, rk_request *request) {
    rk_submission submission = {.handle = handle, .request = request, .engine_id = "r~1", .rank = -1};
    ck_assert_int_eq(rk_standin_ops()->submit(engine, &submission), 0);
}

static void submit(uint64_t handle, wish w) {
    rk_request *request = make_request(w);
    submit_request(handle, request);
    rk_request_unref(request);
}

static void abort_one(uint64_t handle, uint32_t choice) {
    rk_standin_ops()->abort(engine, handle, choice);
}

/* All that was asked for so far has been taken up: an abort of nobody comes back. */
static void all_carried_out(void) {
    const uint64_t nobody = 999999;
    abort_one(nobody, 0);
    WAIT_FOR(heard.aborted_count > 0 && heard.aborted[heard.aborted_count - 1].handle == nobody);
}

/* A choice leaves the engine a moment after its last output has been pushed. */
static void lets_go_of_all(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    uint64_t guard = rk_now_ms() + GUARD_MS;
    while (rk_standin_live(engine) > 0 && rk_now_ms() < guard)
        (void)nanosleep(&moment, NULL);
    ck_assert_uint_eq(rk_standin_live(engine), 0);
}

#endif
