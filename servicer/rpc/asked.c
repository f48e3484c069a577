/* Calls that only the engine can carry out: FlushCache, StartProfile, StopProfile. Forwarded with a bound.
 *
 * The engine's refusal is an answer (success=false, with its message); silence past the bound is
 * DEADLINE_EXCEEDED. */
#include <inttypes.h>

#include "base/clock.h"
#include "rpc/internal.h"

#define BOUND_MS 60000
/* The engine's own answer comes a little after the time that it was given. */
#define MARGIN_MS 5000
#define FLUSH_MOST_S 3600.0

typedef struct rk_asked {
    rk_call call; /* must stay first */
    rk_query query;
    uint64_t bound_ms;
} rk_asked;

size_t rk_asked_size(void) {
    return sizeof(rk_asked);
}

bool rk_answer_is_failure(const rk_value *answer, rk_status *status) {
    const rk_value *code = answer ? rk_value_get(answer, "code") : NULL;
    const rk_value *message = answer ? rk_value_get(answer, "message") : NULL;
    if (!code || code->kind != RK_VALUE_NUMBER)
        return false;
    bool known = code->number > RK_OK && code->number <= RK_UNAUTHENTICATED;
    (void)rk_status_set(status, known ? (rk_code)code->number : RK_INTERNAL, "%s",
                        message && message->kind == RK_VALUE_STRING ? message->string
                                                                    : "the engine failed it");
    return true;
}

static void answered(rk_call *call, const rk_value *answer) {
    rk_asked *asked = (rk_asked *)call;
    rk_status status;
    if (!answer || answer->kind != RK_VALUE_MAP) {
        (void)rk_status_set(&status, RK_DEADLINE_EXCEEDED,
                            "the engine did not answer %s within %" PRIu64 " ms; is it busy or stuck?",
                            rk_query_name(asked->query), asked->bound_ms);
        rk_call_fail(call, &status);
        return;
    }
    if (rk_answer_is_failure(answer, &status)) {
        rk_call_fail(call, &status);
        return;
    }
    const rk_value *success = rk_value_get(answer, "success");
    const rk_value *message = rk_value_get(answer, "message");
    rk_buf out = RK_BUF_INIT;
    call->servicer->dialect->encode_outcome(
        &out, success && success->kind == RK_VALUE_BOOL && success->boolean,
        message && message->kind == RK_VALUE_STRING ? message->string : "");
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

/* An engine that is not up, or stuck, is not asked; nor is one that encodes: it hears of items only. */
static bool can_be_asked(rk_call *call, rk_status *status) {
    if (call->servicer->rooms.role == RK_ROLE_ENCODE) {
        (void)rk_status_set(status, RK_UNIMPLEMENTED,
                            "an encode worker has no cache to flush and is not profiled from here");
        return false;
    }
    rk_engine_view view;
    rk_engine_look(call->servicer, rk_now_ms(), &view);
    static const char *const states[] = {"has not warmed up yet", "is ready", "is stalled", "is gone"};
    if (view.state == RK_ENGINE_READY)
        return true;
    (void)rk_status_set(status, RK_UNAVAILABLE, "the engine %s%s%s", states[view.state],
                        view.why[0] ? ": " : "", view.why);
    return false;
}

/* Takes over `argument`. */
static void ask(rk_call *call, rk_query query, rk_value *argument, uint64_t bound_ms) {
    rk_asked *asked = (rk_asked *)call;
    rk_status status;
    asked->query = query;
    asked->bound_ms = bound_ms;
    if (can_be_asked(call, &status))
        rk_query_ask(call, query, argument, bound_ms, answered);
    else
        rk_call_fail(call, &status);
    rk_value_free(argument);
}

void rk_flush_cache_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_value *argument = NULL;
    rk_status status;
    if (call->servicer->dialect->decode_flush(bytes, size, &argument, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    const rk_value *timeout = rk_value_get(argument, "timeout_s");
    double seconds = timeout ? timeout->number : 0;
    uint64_t wanted = (uint64_t)((seconds < FLUSH_MOST_S ? seconds : FLUSH_MOST_S) * 1000) + MARGIN_MS;
    ask(call, RK_QUERY_FLUSH_CACHE, argument, wanted > BOUND_MS ? wanted : BOUND_MS);
}

void rk_start_profile_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_value *argument = NULL;
    rk_status status;
    if (call->servicer->dialect->decode_profile(bytes, size, &argument, &status) == RK_OK)
        ask(call, RK_QUERY_START_PROFILE, argument, BOUND_MS);
    else
        rk_call_fail(call, &status);
}

void rk_stop_profile_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_status status;
    if (call->servicer->dialect->decode_empty(bytes, size, &status) == RK_OK)
        ask(call, RK_QUERY_STOP_PROFILE, NULL, BOUND_MS);
    else
        rk_call_fail(call, &status);
}
