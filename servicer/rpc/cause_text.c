/* The one line a client reads when its leg is refused or ended: what, which value, what limit, what to do. */
#include <inttypes.h>

#include "rpc/internal.h"

static void refused_full(const rk_verdict *v, rk_status *status) {
    (void)rk_status_set(status, RK_RESOURCE_EXHAUSTED,
                        "the running window is full: %" PRIu32 " of %" PRIu32 " slots taken, %" PRIu32
                        " of %" PRIu32 " places in line taken; retry later or on another worker",
                        v->admitted, v->window, v->waiting, v->waiting_places);
}

static void refused_never_fits(const rk_verdict *v, rk_status *status) {
    if (v->need_tokens > 0)
        (void)rk_status_set(status, RK_INVALID_ARGUMENT,
                            "the request needs %" PRIu64 " KV tokens and the worker has %" PRIu64
                            "; shorten the prompt or lower n",
                            v->need_tokens, v->kv_tokens);
    else
        (void)rk_status_set(status, RK_INVALID_ARGUMENT,
                            "the request asks for more choices than the running window of %" PRIu32
                            " slots can ever hold; lower n",
                            v->window);
}

static void twin_text(rk_cause cause, rk_status *status) {
    (void)rk_status_set(status, RK_ABORTED, "the other leg of this room ended first: %s",
                        rk_cause_name(cause));
}

/* Refusals at arrival, which come with numbers. */
static bool refusal_text(rk_cause cause, const rk_verdict *v, const rk_config *config, rk_status *status) {
    switch (cause) {
    case RK_CAUSE_FULL:
        refused_full(v, status);
        return true;
    case RK_CAUSE_HELD_FULL:
        (void)rk_status_set(status, RK_RESOURCE_EXHAUSTED,
                            "%" PRId64
                            " prefill legs are held already (held); retry later or on another worker",
                            config->held);
        return true;
    case RK_CAUSE_NEVER_FITS:
        refused_never_fits(v, status);
        return true;
    case RK_CAUSE_BAD_RANK:
        (void)rk_status_set(status, RK_INVALID_ARGUMENT,
                            "data_parallel_rank is out of range; see dp_rank_count of GetLoads");
        return true;
    default:
        return false;
    }
}

void rk_cause_text(rk_cause cause, rk_cause twin_cause, const rk_verdict *numbers, const rk_config *config,
                   rk_status *status) {
    if (numbers && refusal_text(cause, numbers, config, status))
        return;
    switch (cause) {
    case RK_CAUSE_WAIT_TIMEOUT:
        (void)rk_status_set(
            status, RK_RESOURCE_EXHAUSTED,
            "no slot of the running window came free within %.3f s (wait_seconds); retry later",
            config->wait_seconds);
        return;
    case RK_CAUSE_HELD_TIMEOUT:
        (void)rk_status_set(
            status, RK_RESOURCE_EXHAUSTED,
            "the decode did not admit this room within %.3f s (wait_seconds + 5); retry later",
            config->wait_seconds + 5);
        return;
    case RK_CAUSE_TWIN_MISSING:
        (void)rk_status_set(status, RK_RESOURCE_EXHAUSTED,
                            "the other leg of this room did not arrive within %.3f s (twin_seconds); retry",
                            config->twin_seconds);
        return;
    case RK_CAUSE_DUPLICATE_ROOM:
        (void)rk_status_set(status, RK_ALREADY_EXISTS,
                            "another live request is in this bootstrap room; use a new room");
        return;
    case RK_CAUSE_DUPLICATE_ID:
        (void)rk_status_set(status, RK_ALREADY_EXISTS,
                            "a request with this request_id is live; use a new request_id");
        return;
    case RK_CAUSE_SUPERSEDED:
        (void)rk_status_set(status, RK_ABORTED, "the same request_id came again with another room");
        return;
    case RK_CAUSE_DRAIN:
        (void)rk_status_set(status, RK_UNAVAILABLE,
                            "the worker is shutting down; send the request to another");
        return;
    case RK_CAUSE_ENGINE_DEAD:
        (void)rk_status_set(status, RK_UNAVAILABLE,
                            "the engine is gone or has been silent for %.3f s (dead_seconds)",
                            config->dead_seconds);
        return;
    case RK_CAUSE_PEER_LOST:
        (void)rk_status_set(status, RK_RESOURCE_EXHAUSTED, "the worker of the other leg was lost; retry");
        return;
    case RK_CAUSE_TWIN_ENDED:
        twin_text(twin_cause, status);
        return;
    case RK_CAUSE_NO_MEMORY:
        (void)rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory: try again later");
        return;
    default:
        (void)rk_status_set(status, rk_cause_code(cause), "the request ended: %s", rk_cause_name(cause));
        return;
    }
}
