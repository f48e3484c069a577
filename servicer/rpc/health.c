/* Whether the worker serves, who has asked to be told, and grpc.health.v1.
 *
 * SERVING means: the engine is ready and beats, and nobody has begun to shut down. It is computed from what
 * is known here, never by asking the engine, so it is answered while Python is stuck, which is when it
 * matters.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/generate.h"
#include "rpc/links.h"

void rk_engine_look(rk_servicer *servicer, uint64_t now, rk_engine_view *view) {
    (void)pthread_mutex_lock(&servicer->engine_lock);
    view->state = servicer->engine_state;
    memcpy(view->why, servicer->engine_why, sizeof view->why);
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    uint64_t beat = atomic_load_explicit(&servicer->beat_ms, memory_order_relaxed);
    uint64_t heard = atomic_load_explicit(&servicer->heard_ms, memory_order_relaxed);
    view->silent_ms = now > beat ? now - beat : 0;
    view->heard_ms = heard == 0 ? UINT64_MAX : now > heard ? now - heard : 0;
    if (view->state == RK_ENGINE_READY && (double)view->silent_ms > servicer->config.stall_seconds * 1000)
        view->state = RK_ENGINE_STALLED;
}

bool rk_is_serving(rk_servicer *servicer) {
    if (atomic_load(&servicer->draining))
        return false;
    rk_engine_view view;
    rk_engine_look(servicer, rk_now_ms(), &view);
    return view.state == RK_ENGINE_READY;
}

rk_code rk_state_refusal(rk_servicer *servicer, rk_status *status) {
    if (atomic_load(&servicer->draining))
        return rk_status_set(status, RK_UNAVAILABLE,
                             "the worker is shutting down; send the request to another");
    rk_engine_view view;
    rk_engine_look(servicer, rk_now_ms(), &view);
    const char *colon = view.why[0] ? ": " : "";
    if (view.state == RK_ENGINE_STARTING)
        return rk_status_set(status, RK_UNAVAILABLE, "the engine has not warmed up yet%s%s", colon, view.why);
    if (view.state == RK_ENGINE_DEAD)
        return rk_status_set(status, RK_UNAVAILABLE, "the engine is gone%s%s", colon, view.why);
    if (view.state == RK_ENGINE_STALLED)
        return rk_status_set(status, RK_UNAVAILABLE,
                             "the engine is stalled: nothing heard for %" PRIu64
                             " ms, the limit is %.3f s (stall_seconds)",
                             view.silent_ms, servicer->config.stall_seconds);
    return RK_OK;
}

/* ---- watchers ---- */

typedef struct rk_watch {
    rk_call call; /* must stay first */
    rk_list link; /* in servicer->watchers, under watch_lock; holds one reference while linked */
    rk_post post;
    _Atomic bool posted; /* the post is queued */
    _Atomic bool over;   /* end it with a status: the servicer stops */
    rk_tag write_tag;
    bool known;   /* the service is one of ours */
    bool writing; /* poller thread from here on */
    bool headers_sent;
    bool released;
    int told; /* the status last written; -1: none yet */
} rk_watch;

static void watch_pump(rk_watch *watch);

static void watch_release(rk_watch *watch) {
    if (watch->released)
        return;
    watch->released = true;
    rk_servicer *servicer = watch->call.servicer;
    (void)pthread_mutex_lock(&servicer->watch_lock);
    bool linked = rk_list_linked(&watch->link);
    rk_list_remove(&watch->link);
    (void)pthread_mutex_unlock(&servicer->watch_lock);
    if (linked)
        rk_call_unref(&watch->call);
    rk_call_unref(&watch->call);
}

static void watch_written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_watch *watch = RK_CONTAINER(tag, rk_watch, write_tag);
    watch->writing = false;
    if (!ok || watch->call.ended)
        watch_release(watch);
    else
        watch_pump(watch);
    rk_call_unref(&watch->call);
}

static void watch_write(rk_watch *watch, bool end) {
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!watch->headers_sent) {
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
        watch->headers_sent = true;
    }
    grpc_byte_buffer *bytes = NULL;
    grpc_slice text = grpc_slice_from_static_string("the worker is shutting down");
    if (end) {
        watch->call.ended = true;
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status = GRPC_STATUS_UNAVAILABLE;
        ops[count++].data.send_status_from_server.status_details = &text;
    } else {
        rk_buf *scratch = &watch->call.poller->scratch;
        scratch->size = 0;
        scratch->failed = false;
        rk_health_encode(scratch, (rk_serving)watch->told);
        bytes = rk_call_message(scratch);
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = bytes;
    }
    watch->writing = true;
    rk_call_batch(&watch->call, ops, count, &watch->write_tag);
    if (bytes)
        grpc_byte_buffer_destroy(bytes);
}

static void watch_pump(rk_watch *watch) {
    if (watch->writing || watch->call.ended)
        return;
    int now = watch->known ? atomic_load(&watch->call.servicer->serving) : (int)RK_SERVICE_UNKNOWN;
    if (now != watch->told) {
        watch->told = now;
        watch_write(watch, false);
    } else if (atomic_load(&watch->over)) {
        watch_write(watch, true);
    }
}

static void watch_posted(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_watch *watch = RK_CONTAINER(post, rk_watch, post);
    atomic_store(&watch->posted, false);
    watch_pump(watch);
    rk_call_unref(&watch->call);
}

static void watch_closed(rk_call *call) {
    rk_watch *watch = (rk_watch *)call;
    if (!call->cancelled)
        return;
    call->ended = true;
    if (!watch->writing)
        watch_release(watch);
}

/* Any thread. */
static void tell_watchers(rk_servicer *servicer, bool over) {
    (void)pthread_mutex_lock(&servicer->watch_lock);
    for (rk_list *node = servicer->watchers.next; node != &servicer->watchers; node = node->next) {
        rk_watch *watch = RK_CONTAINER(node, rk_watch, link);
        if (over)
            atomic_store(&watch->over, true);
        if (!atomic_exchange(&watch->posted, true)) {
            rk_call_ref(&watch->call);
            rk_call_post(&watch->call, &watch->post, NULL); /* never runs here: it only queues */
        }
    }
    (void)pthread_mutex_unlock(&servicer->watch_lock);
}

void rk_watchers_end(rk_servicer *servicer) {
    tell_watchers(servicer, true);
}

/* ---- the state, as it changes ---- */

static void log_change(rk_servicer *servicer, bool serving, const rk_engine_view *view) {
    static const char *const states[] = {"starting", "ready", "stalled", "dead"};
    rk_log_event(&servicer->log, serving ? RK_LOG_INFO : RK_LOG_WARNING, serving ? "SERVING" : "NOT_SERVING",
                 RK_FIELD_TEXT("engine", states[view->state]), RK_FIELD_INT("silent_ms", view->silent_ms),
                 RK_FIELD_TEXT("why", view->why), RK_FIELD_INT("draining", atomic_load(&servicer->draining)));
}

void rk_health_update(rk_servicer *servicer, uint64_t now) {
    rk_engine_view view;
    rk_engine_look(servicer, now, &view);
    bool serving = view.state == RK_ENGINE_READY && !atomic_load(&servicer->draining);
    int value = serving ? RK_SERVING : RK_NOT_SERVING;
    if (atomic_exchange(&servicer->serving, value) != value) {
        log_change(servicer, serving, &view);
        tell_watchers(servicer, false);
    }
    bool gone = view.state == RK_ENGINE_DEAD;
    bool silent =
        view.state == RK_ENGINE_STALLED && (double)view.silent_ms > servicer->config.dead_seconds * 1000;
    (void)pthread_mutex_lock(&servicer->engine_lock);
    bool tell_gone = gone && !servicer->gone_told;
    bool tell_silent = silent && !servicer->silent_told;
    servicer->gone_told = gone;
    servicer->silent_told = silent;
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    if (!tell_gone && !tell_silent)
        return;
    rk_effects fx;
    rk_effects_clear(&fx);
    if (tell_gone)
        rk_ledger_end_all(servicer->ledger, now, RK_CAUSE_ENGINE_DEAD, &fx);
    else
        rk_ledger_engine_silent(servicer->ledger, now, &fx);
    rk_effects_run(servicer, &fx, NULL);
}

/* ---- grpc.health.v1 ---- */

static const char *const health_services[] = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
};

static bool is_ours(const rk_servicer *servicer, const char *service) {
    if (service[0] == '\0' || strcmp(service, servicer->dialect->service) == 0)
        return true;
    if (servicer->rooms.role == RK_ROLE_ENCODE && strcmp(service, servicer->dialect->encode_service) == 0)
        return true;
    for (size_t i = 0; i < sizeof health_services / sizeof health_services[0]; i++)
        if (strcmp(service, health_services[i]) == 0)
            return true;
    return false;
}

static rk_serving serving_now(rk_servicer *servicer) {
    return rk_is_serving(servicer) ? RK_SERVING : RK_NOT_SERVING;
}

static void handle_check(rk_call *call, const uint8_t *bytes, size_t size) {
    char service[256];
    rk_status status;
    if (rk_health_decode(bytes, size, service, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    if (!is_ours(call->servicer, service)) {
        (void)rk_status_set(&status, RK_NOT_FOUND, "service %.200s is not served here", service);
        rk_call_fail(call, &status);
        return;
    }
    rk_buf out = RK_BUF_INIT;
    rk_health_encode(&out, serving_now(call->servicer));
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

static void handle_list(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_status status;
    if (call->servicer->dialect->decode_empty(bytes, size, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    const rk_servicer *servicer = call->servicer;
    const char *services[3 + sizeof health_services / sizeof health_services[0]];
    size_t count = 0;
    services[count++] = "";
    services[count++] = servicer->dialect->service;
    if (servicer->rooms.role == RK_ROLE_ENCODE)
        services[count++] = servicer->dialect->encode_service;
    for (size_t i = 0; i < sizeof health_services / sizeof health_services[0]; i++)
        services[count++] = health_services[i];
    rk_buf out = RK_BUF_INIT;
    rk_health_encode_list(&out, services, count, serving_now(call->servicer));
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

static void handle_watch(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_watch *watch = (rk_watch *)call;
    rk_list_init(&watch->link);
    char service[256];
    rk_status status;
    if (rk_health_decode(bytes, size, service, &status) != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    rk_servicer *servicer = call->servicer;
    watch->known = is_ours(servicer, service);
    watch->told = -1;
    watch->post.run = watch_posted;
    watch->write_tag.run = watch_written;
    call->on_closed = watch_closed;
    (void)pthread_mutex_lock(&servicer->watch_lock);
    rk_call_ref(call);
    rk_list_push_back(&servicer->watchers, &watch->link);
    (void)pthread_mutex_unlock(&servicer->watch_lock);
    watch_pump(watch);
}

const rk_method_def rk_health_methods[] = {
    {"/grpc.health.v1.Health/Check", false, sizeof(rk_call), handle_check, RK_METHODS},
    {"/grpc.health.v1.Health/List", false, sizeof(rk_call), handle_list, RK_METHODS},
    {"/grpc.health.v1.Health/Watch", false, sizeof(rk_watch), handle_watch, RK_METHODS},
};
const size_t rk_health_method_count = sizeof rk_health_methods / sizeof rk_health_methods[0];
