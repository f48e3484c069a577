/* The dialect's calls with one answer: Abort, HealthCheck, GetModelInfo, GetServerInfo, GetLoads.
 *
 * All are answered from memory, without the GIL. Two ask the engine when there is something only it knows
 * (a probe, whether it is paused), with a bound and an answer either way.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "rpc/generate.h"

#define PROBE_MS 20000      /* the contract's bound of a health probe */
#define HEARD_FRESH_MS 5000 /* the engine has been heard from: no probe needed */
#define PAUSED_MS 1000      /* GetServerInfo waits so long for is_paused */

static void reply_health(rk_call *call, bool healthy, const char *message) {
    rk_buf out = RK_BUF_INIT;
    call->servicer->dialect->encode_health(&out, healthy, message);
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

/* ---- HealthCheck ---- */

static void probed(rk_call *call, const rk_value *answer) {
    if (answer && answer->kind == RK_VALUE_BOOL)
        reply_health(call, answer->boolean,
                     answer->boolean ? "Health check passed" : "the engine failed a one-token request");
    else
        reply_health(call, false, "the engine did not answer a one-token request within 20 s");
}

static void handle_health_check(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    rk_status status;
    if (servicer->dialect->decode_empty(bytes, size, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    rk_engine_view view;
    rk_engine_look(servicer, rk_now_ms(), &view);
    char text[256];
    if (atomic_load(&servicer->draining)) {
        reply_health(call, false, "Server is shutting down");
    } else if (view.state == RK_ENGINE_STARTING) {
        (void)snprintf(text, sizeof text, "the engine has not warmed up yet%s%s", view.why[0] ? ": " : "",
                       view.why);
        reply_health(call, false, text);
    } else if (view.state == RK_ENGINE_DEAD) {
        (void)snprintf(text, sizeof text, "the engine is gone%s%s", view.why[0] ? ": " : "", view.why);
        reply_health(call, false, text);
    } else if (view.state == RK_ENGINE_STALLED) {
        (void)snprintf(text, sizeof text, "the engine is stalled: nothing heard for %" PRIu64 " ms",
                       view.silent_ms);
        reply_health(call, false, text);
    } else if (servicer->rooms.role != RK_ROLE_NULL) {
        reply_health(call, true, "Health check passed (disaggregation worker; shallow probe)");
    } else if (view.heard_ms <= HEARD_FRESH_MS) {
        reply_health(call, true, "Health check passed");
    } else {
        rk_query_ask(call, RK_QUERY_PROBE, NULL, PROBE_MS, probed);
    }
}

/* ---- Abort ---- */

static void handle_abort(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    char id[513];
    size_t id_bytes = 0;
    rk_status status;
    if (servicer->dialect->decode_abort(bytes, size, id, &id_bytes, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    rk_effects fx;
    rk_effects_clear(&fx);
    uint32_t hit = rk_ledger_abort(servicer->ledger, rk_now_ms(), id, id_bytes, &fx);
    char text[640];
    if (hit > 0)
        (void)snprintf(text, sizeof text, "Aborted %" PRIu32 " request(s) for %s", hit, id);
    else
        (void)snprintf(text, sizeof text, "Request %s not found", id);
    rk_buf out = RK_BUF_INIT;
    servicer->dialect->encode_abort(&out, hit > 0, text);
    rk_call_reply(call, &out);
    rk_buf_free(&out);
    rk_effects_run(servicer, &fx, call->poller);
}

/* ---- GetModelInfo ---- */

static char *weight_version(rk_servicer *servicer) {
    (void)pthread_mutex_lock(&servicer->engine_lock);
    char *copy = strdup(servicer->weight_version ? servicer->weight_version : "");
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    return copy;
}

static void handle_model_info(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    rk_status status;
    if (servicer->dialect->decode_empty(bytes, size, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    char *version = weight_version(servicer);
    rk_buf out = RK_BUF_INIT;
    servicer->dialect->encode_model_info(&out, rk_info_get(servicer->info), version ? version : "");
    free(version);
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

/* ---- GetServerInfo ---- */

static void reply_server_info(rk_call *call, const rk_value *answer) {
    rk_servicer *servicer = call->servicer;
    uint64_t now = rk_now_ms();
    rk_value *args = rk_info_server_args(servicer);
    rk_value *scheduler = rk_info_scheduler(servicer);
    char *version = weight_version(servicer);
    rk_buf out = RK_BUF_INIT;
    rk_ledger_counts counts;
    rk_ledger_read(servicer->ledger, &counts);
    uint64_t active = 0;
    for (int state = RK_LEG_ARRIVED; state < RK_LEG_ENDED; state++)
        active += counts.legs[state];
    rk_server_state state = {
        .info = rk_info_get(servicer->info),
        .server_args = args,
        .scheduler_info = scheduler,
        .active_requests = (int32_t)active,
        .is_paused = answer && answer->kind == RK_VALUE_BOOL && answer->boolean,
        .uptime_seconds = (double)(now - servicer->start_ms) / 1000,
        .start_seconds = servicer->start_seconds,
        .weight_version = version ? version : "",
    };
    if (args && scheduler)
        servicer->dialect->encode_server_info(&out, &state);
    else
        out.failed = true;
    rk_call_reply(call, &out);
    rk_buf_free(&out);
    rk_value_free(args);
    rk_value_free(scheduler);
    free(version);
}

static void handle_server_info(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    rk_status status;
    if (servicer->dialect->decode_empty(bytes, size, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    rk_engine_view view;
    rk_engine_look(servicer, rk_now_ms(), &view);
    if (view.state == RK_ENGINE_READY && servicer->rooms.role != RK_ROLE_ENCODE)
        rk_query_ask(call, RK_QUERY_IS_PAUSED, NULL, PAUSED_MS, reply_server_info);
    else /* an engine that is not up, stuck, or answers no such question is not asked: discovery must not wait
          */
        reply_server_info(call, NULL);
}

/* ---- GetLoads ---- */

static void timestamp(char *text, size_t size) {
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    char seconds[32];
    (void)strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text, size, "%s.%06ld+00:00", seconds, now.tv_nsec / 1000);
}

static void handle_loads(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    rk_loads_query query;
    rk_status status;
    if (servicer->dialect->decode_loads(bytes, size, &query, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    uint64_t now = rk_now_ms();
    uint32_t ranks =
        servicer->rooms.role == RK_ROLE_ENCODE ? 0 : servicer->rooms.ranks; /* nothing is scheduled */
    rk_rank_counts *counts = calloc(ranks + 1u, sizeof *counts);
    rk_load_row *rows = calloc(ranks + 1u, sizeof *rows);
    rk_buf out = RK_BUF_INIT;
    if (counts && rows) {
        rk_ledger_counts all;
        rk_ledger_read(servicer->ledger, &all);
        (void)rk_ledger_read_ranks(servicer->ledger, now, counts, ranks);
        size_t count = 0;
        for (uint32_t i = 0; i < ranks; i++) {
            if (query.has_rank && query.rank != (int32_t)i)
                continue;
            rows[count].rank = (int32_t)i;
            rk_load_fill(servicer, &rows[count], &counts[i], i == 0 ? all.held : 0, now);
            count++;
        }
        char text[64];
        timestamp(text, sizeof text);
        servicer->dialect->encode_loads(&out, &query, rows, count, ranks, text);
    } else {
        out.failed = true;
    }
    rk_call_reply(call, &out);
    rk_buf_free(&out);
    free(counts);
    free(rows);
}

/* The paths are the dialect's. The sizes of some calls are other files' to know, so the table is filled once.
 */
const rk_method_def *rk_dialect_method(rk_method method, rk_method_def *def) {
    static const struct {
        void (*handle)(rk_call *call, const uint8_t *bytes, size_t size);
        size_t (*size)(void);
    } table[RK_METHODS] = {
        [RK_METHOD_GENERATE] = {rk_generate_handle, rk_generate_size},
        [RK_METHOD_ABORT] = {handle_abort, NULL},
        [RK_METHOD_HEALTH_CHECK] = {handle_health_check, NULL},
        [RK_METHOD_GET_MODEL_INFO] = {handle_model_info, NULL},
        [RK_METHOD_GET_SERVER_INFO] = {handle_server_info, NULL},
        [RK_METHOD_GET_LOADS] = {handle_loads, NULL},
        [RK_METHOD_FLUSH_CACHE] = {rk_flush_cache_handle, rk_asked_size},
        [RK_METHOD_START_PROFILE] = {rk_start_profile_handle, rk_asked_size},
        [RK_METHOD_STOP_PROFILE] = {rk_stop_profile_handle, rk_asked_size},
        [RK_METHOD_GET_TOKENIZER] = {rk_tokenizer_handle, rk_tokenizer_size},
        [RK_METHOD_ENCODE] = {rk_encode_handle, NULL},
        [RK_METHOD_SUBSCRIBE_KV_EVENTS] = {rk_kv_handle, rk_kv_call_size},
    };
    *def = (rk_method_def){
        .call_size = table[method].size ? table[method].size() : sizeof(rk_call),
        .handle = table[method].handle,
        .method = method,
    };
    return def;
}
