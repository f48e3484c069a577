/* For tests of a whole servicer in C: the stand-in engine behind it, and a client made of gRPC core's surface
 * API in front of it, so that sanitizers see every thread of the rpc layer and nothing of Python.
 *
 * A call has a completion queue of its own and blocks: any thread, one at a time. Waits are guards against
 * hangs, not measurements. */
#ifndef RK_TEST_RPC_HELPERS_H
#define RK_TEST_RPC_HELPERS_H

#include <check.h>
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rpc/internal.h"
#include "standin/standin.h"
#include "tokenspeed_scheduler.pb-c.h"

#define GUARD_MS 30000
#define VOCAB 32000u

#define SCHEDULER "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/"
#define HEALTH "/grpc.health.v1.Health/"

#ifdef RK_TSAN
/* gRPC core ends its own threads behind the last grpc_shutdown, sometimes later than the test. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "report_thread_leaks=0";
}
#endif

typedef Tokenspeed__Grpc__Scheduler__GenerateResponse response;

static inline void response_free(response *r) {
    tokenspeed__grpc__scheduler__generate_response__free_unpacked(r, NULL);
}

/* ---- the worker ---- */

typedef struct worker {
    rk_standin *engine;
    rk_servicer *servicer;
    char address[32]; /* "127.0.0.1:port" */
} worker;

/* How it is set up; all zero is an aggregated worker that answers as fast as it goes. */
typedef struct plan {
    rk_standin_options engine;
    rk_role role;
    uint32_t window;            /* the servicer's; the engine takes all that it gets */
    const char *const *options; /* key, value, …, NULL; of the configuration */
    const rk_engine_ops *ops;   /* NULL: the stand-in's */
} plan;

static inline rk_config make_config(const char *const *options) {
    static const char *const calm[] = {"log_level", "error", "pollers", "3", NULL};
    rk_config config;
    char error[RK_CONFIG_ERROR_MAX];
    ck_assert_int_eq(rk_config_init(&config), 0);
    for (size_t i = 0; calm[i]; i += 2)
        ck_assert_int_eq(rk_config_set(&config, calm[i], calm[i + 1], calm[i], error), 0);
    for (size_t i = 0; options && options[i]; i += 2)
        ck_assert_msg(rk_config_set(&config, options[i], options[i + 1], options[i], error) == 0, "%s",
                      error);
    return config;
}

static inline void worker_start(worker *w, plan p) {
    char error[RK_ERROR_MAX];
    rk_config config = make_config(p.options);
    w->engine = rk_standin_new(&p.engine);
    ck_assert_ptr_nonnull(w->engine);
    rk_worker_info info = {.role = p.role,
                           .ranks = 1,
                           .window = p.window,
                           .vocab_size = VOCAB,
                           .skip_warmup = true,
                           .model_path = "standin"};
    w->servicer = rk_servicer_new(&config, &info, p.ops ? p.ops : rk_standin_ops(), w->engine, error);
    ck_assert_msg(w->servicer != NULL, "%s", error);
    rk_config_free(&config);
    int port = rk_servicer_listen(w->servicer, "127.0.0.1:0", error);
    ck_assert_msg(port > 0, "%s", error);
    (void)snprintf(w->address, sizeof w->address, "127.0.0.1:%d", port);
    rk_standin_attach(w->engine, w->servicer);
    ck_assert_msg(rk_servicer_start(w->servicer, error) == 0, "%s", error);
    ck_assert_int_eq(rk_standin_start(w->engine), 0);
}

static inline void worker_end(worker *w) {
    rk_servicer_stop(w->servicer);
    rk_standin_stop(w->engine);
    rk_servicer_free(w->servicer);
    rk_standin_free(w->engine);
    *w = (worker){0};
}

/* Waits until `condition` holds. */
#define UNTIL(condition)                                                                                     \
    do {                                                                                                     \
        uint64_t until_ = rk_now_ms() + GUARD_MS;                                                            \
        while (!(condition) && rk_now_ms() < until_)                                                         \
            (void)usleep(1000);                                                                              \
        ck_assert_msg((condition), "still not so after %d ms: %s", GUARD_MS, #condition);                    \
    } while (0)

static inline rk_rank_counts rank_of(const worker *w) {
    rk_rank_counts counts;
    (void)rk_ledger_read_ranks(rk_servicer_ledger(w->servicer), rk_now_ms(), &counts, 1);
    return counts;
}

static inline bool is_idle(const worker *w) {
    rk_rank_counts counts = rank_of(w);
    return counts.held_slots == 0 && counts.releasing == 0 && counts.waiting == 0 && counts.running == 0 &&
           rk_servicer_open_calls(w->servicer) == 0;
}

/* ---- the client ---- */

static inline grpc_channel *channel_to(const char *address) {
    grpc_arg own = {.type = GRPC_ARG_INTEGER, /* connections are shared between channels otherwise */
                    .key = "grpc.use_local_subchannel_pool",
                    .value.integer = 1};
    grpc_channel_args args = {.num_args = 1, .args = &own};
    grpc_channel_credentials *insecure = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, insecure, &args);
    grpc_channel_credentials_release(insecure);
    ck_assert_ptr_nonnull(channel);
    return channel;
}

/* The tags of a call's batches: their own addresses. */
enum { SENT, HEADERS, READ, STATUS, TAGS };

typedef struct rpc {
    grpc_call *call;
    grpc_completion_queue *queue;
    grpc_metadata_array headers;
    grpc_metadata_array trailing;
    grpc_byte_buffer *message;
    grpc_status_code status;
    grpc_slice details;
    bool done[TAGS]; /* the batch has completed */
    char tags[TAGS];
} rpc;

static inline void rpc_batch(rpc *c, int tag, const grpc_op *ops, size_t count) {
    c->done[tag] = false;
    RK_HANDS_OVER(&c->tags[tag]);
    ck_assert_int_eq(grpc_call_start_batch(c->call, ops, count, &c->tags[tag], NULL), GRPC_CALL_OK);
}

/* Waits for a batch, `timeout_ms` at most; whether it has completed. */
static inline bool rpc_within(rpc *c, int tag, int64_t timeout_ms) {
    if (c->done[tag])
        return true;
    gpr_timespec until =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
    grpc_event event = grpc_completion_queue_pluck(c->queue, &c->tags[tag], until, NULL);
    c->done[tag] = event.type == GRPC_OP_COMPLETE;
    if (c->done[tag])
        RK_TAKES_OVER(&c->tags[tag]);
    return c->done[tag];
}

static inline void rpc_wait(rpc *c, int tag) {
    ck_assert_msg(rpc_within(c, tag, GUARD_MS), "batch %d of a call has not completed in %d ms", tag,
                  GUARD_MS);
}

/* Sends one message and half-closes. `bytes` NULL: no message. */
static inline void rpc_open(rpc *c, grpc_channel *channel, const char *path, const void *bytes, size_t size) {
    memset(c, 0, sizeof *c);
    c->queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_slice method = grpc_slice_from_copied_string(path);
    c->call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue, method, NULL,
                                       gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    grpc_slice_unref(method);
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailing);
    c->details = grpc_empty_slice();
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    status.data.recv_status_on_client.trailing_metadata = &c->trailing;
    status.data.recv_status_on_client.status = &c->status;
    status.data.recv_status_on_client.status_details = &c->details;
    rpc_batch(c, STATUS, &status, 1);
    grpc_op headers = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    headers.data.recv_initial_metadata.recv_initial_metadata = &c->headers;
    rpc_batch(c, HEADERS, &headers, 1);
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    grpc_byte_buffer *message = NULL;
    ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (bytes) {
        grpc_slice slice = grpc_slice_from_copied_buffer(bytes, size);
        message = grpc_raw_byte_buffer_create(&slice, 1);
        grpc_slice_unref(slice);
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = message;
    }
    ops[count++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    rpc_batch(c, SENT, ops, count);
    if (message)
        grpc_byte_buffer_destroy(message);
    c->done[READ] = true;
}

static inline void rpc_cancel(rpc *c) {
    (void)grpc_call_cancel(c->call, NULL);
}

/* Begins to read the next message. */
static inline void rpc_ask(rpc *c) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &c->message;
    rpc_batch(c, READ, &op, 1);
}

/* The message that was asked for, or NULL at the stream's end; the caller frees it (malloc). */
static inline uint8_t *rpc_take(rpc *c, size_t *size) {
    rpc_wait(c, READ);
    if (!c->message)
        return NULL;
    grpc_byte_buffer_reader reader;
    ck_assert(grpc_byte_buffer_reader_init(&reader, c->message));
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    *size = GRPC_SLICE_LENGTH(slice);
    uint8_t *bytes = malloc(*size + 1);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, GRPC_SLICE_START_PTR(slice), *size);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(c->message);
    c->message = NULL;
    return bytes;
}

/* The next message of a Generate stream; NULL at its end. */
static inline response *rpc_read(rpc *c) {
    size_t size = 0;
    rpc_ask(c);
    _cleanup_free_ uint8_t *bytes = rpc_take(c, &size);
    if (!bytes)
        return NULL;
    response *r = tokenspeed__grpc__scheduler__generate_response__unpack(NULL, size, bytes);
    ck_assert_ptr_nonnull(r);
    return r;
}

/* The call's status, once it is over; frees the call. The details are copied into `text` when given. */
static inline grpc_status_code rpc_end(rpc *c, char text[512]) {
    size_t size;
    bool more = true;
    while (more) { /* the status comes behind the last message */
        if (c->done[READ] && !c->message)
            rpc_ask(c);
        uint8_t *message = rpc_take(c, &size);
        more = message != NULL;
        free(message);
    }
    rpc_wait(c, STATUS);
    rpc_wait(c, HEADERS);
    rpc_wait(c, SENT);
    if (text)
        (void)snprintf(text, 512, "%.*s", (int)GRPC_SLICE_LENGTH(c->details),
                       (const char *)GRPC_SLICE_START_PTR(c->details));
    grpc_status_code status = c->status;
    grpc_slice_unref(c->details);
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailing);
    grpc_call_unref(c->call);
    grpc_completion_queue_shutdown(c->queue);
    (void)grpc_completion_queue_pluck(c->queue, NULL, gpr_inf_past(GPR_CLOCK_REALTIME), NULL);
    grpc_completion_queue_destroy(c->queue);
    return status;
}

/* A number of the trailing metadata, after the status has come; -1: it is not there. */
static inline long rpc_trailing(const rpc *c, const char *key) {
    for (size_t i = 0; i < c->trailing.count; i++) {
        const grpc_metadata *entry = &c->trailing.metadata[i];
        if (grpc_slice_str_cmp(entry->key, key) != 0)
            continue;
        char text[32];
        (void)snprintf(text, sizeof text, "%.*s", (int)GRPC_SLICE_LENGTH(entry->value),
                       (const char *)GRPC_SLICE_START_PTR(entry->value));
        return strtol(text, NULL, 10);
    }
    return -1;
}

/* ---- requests ---- */

typedef struct ask {
    const char *id;
    uint32_t tokens; /* 0: 4 */
    uint32_t n;
    int64_t room;    /* 0: none */
    uint32_t prompt; /* tokens of it; 0: 4 */
    bool whole;      /* not streamed */
    bool logprobs;
} ask;

static inline void generate(rpc *c, grpc_channel *channel, ask a) {
    Tokenspeed__Grpc__Scheduler__TokenizedInput input = TOKENSPEED__GRPC__SCHEDULER__TOKENIZED_INPUT__INIT;
    Tokenspeed__Grpc__Scheduler__SamplingParams sampling = TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS__INIT;
    Tokenspeed__Grpc__Scheduler__KvBootstrapInfo pair = TOKENSPEED__GRPC__SCHEDULER__KV_BOOTSTRAP_INFO__INIT;
    Tokenspeed__Grpc__Scheduler__GenerateRequest wire = TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST__INIT;
    uint32_t ids[64];
    input.n_input_ids = a.prompt ? a.prompt : 4;
    ck_assert_uint_le(input.n_input_ids, RK_COUNT(ids));
    for (uint32_t i = 0; i < input.n_input_ids; i++)
        ids[i] = i + 1;
    input.input_ids = ids;
    sampling.n = a.n;
    sampling._max_new_tokens_case =
        TOKENSPEED__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS;
    sampling.max_new_tokens = a.tokens ? a.tokens : 4;
    sampling.ignore_eos = true;
    pair.bootstrap_host = "127.0.0.1";
    pair.bootstrap_port = 8998;
    pair.bootstrap_room = a.room;
    wire.request_id = (char *)(uintptr_t)a.id;
    wire.tokenized = &input;
    wire.sampling_params = &sampling;
    wire.stream = !a.whole;
    wire.return_logprob = a.logprobs;
    if (a.room) {
        wire._kv_bootstrap_info_case =
            TOKENSPEED__GRPC__SCHEDULER__GENERATE_REQUEST___KV_BOOTSTRAP_INFO_KV_BOOTSTRAP_INFO;
        wire.kv_bootstrap_info = &pair;
    }
    size_t size = tokenspeed__grpc__scheduler__generate_request__get_packed_size(&wire);
    _cleanup_free_ uint8_t *bytes = malloc(size + 1);
    ck_assert_ptr_nonnull(bytes);
    (void)tokenspeed__grpc__scheduler__generate_request__pack(&wire, bytes);
    rpc_open(c, channel, SCHEDULER "Generate", bytes, size);
}

/* A call with one answer; its status. The answer, if wanted, is the caller's (malloc). */
static inline grpc_status_code unary(grpc_channel *channel, const char *path, const void *bytes, size_t size,
                                     uint8_t **answer, size_t *answer_size) {
    rpc c;
    size_t got = 0;
    rpc_open(&c, channel, path, bytes, size);
    rpc_ask(&c);
    uint8_t *message = rpc_take(&c, &got);
    if (answer) {
        *answer = message;
        *answer_size = got;
    } else {
        free(message);
    }
    return rpc_end(&c, NULL);
}

/* The Abort RPC: 1 it was live, 0 it was not, -1 the call failed. */
static inline int abort_request(grpc_channel *channel, const char *id) {
    uint8_t bytes[64];
    size_t length = strlen(id);
    ck_assert_uint_lt(length, sizeof bytes - 2);
    bytes[0] = 0x0A;
    bytes[1] = (uint8_t)length;
    memcpy(bytes + 2, id, length);
    uint8_t *answer = NULL;
    size_t size = 0;
    int result = -1;
    if (unary(channel, SCHEDULER "Abort", bytes, length + 2, &answer, &size) == GRPC_STATUS_OK)
        result = size >= 2 && answer[0] == 0x08 && answer[1] == 1;
    free(answer);
    return result;
}

/* grpc.health.v1: 1 SERVING, 2 NOT_SERVING, -1 the call failed. */
static inline int health(grpc_channel *channel) {
    uint8_t *answer = NULL;
    size_t size = 0;
    int result = -1;
    if (unary(channel, HEALTH "Check", "", 0, &answer, &size) == GRPC_STATUS_OK)
        result = size >= 2 && answer[0] == 0x08 ? answer[1] : 0;
    free(answer);
    return result;
}

#endif
