/* Questions to the engine, with a bound: the answer comes later, or the bound passes, and either goes to the
 * call's poller. A question is never withdrawn from the engine; a late answer finds nobody and is dropped. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/internal.h"

typedef struct rk_pending {
    rk_post post;
    rk_list link;  /* in servicer->queries while nobody has answered */
    rk_call *call; /* one reference */
    uint64_t id;
    uint64_t due_ms;
    rk_value *answer; /* NULL: none came */
    void (*on_answer)(rk_call *call, const rk_value *answer);
} rk_pending;

static void answered(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_pending *pending = (rk_pending *)post;
    pending->on_answer(pending->call, pending->answer);
    rk_value_free(pending->answer);
    rk_call_unref(pending->call);
    free(pending);
}

const char *rk_query_name(rk_query query) {
    static const char *const names[RK_QUERIES] = {
        [RK_QUERY_PROBE] = "probe",
        [RK_QUERY_IS_PAUSED] = "is_paused",
        [RK_QUERY_FLUSH_CACHE] = "flush_cache",
        [RK_QUERY_START_PROFILE] = "start_profile",
        [RK_QUERY_STOP_PROFILE] = "stop_profile",
        [RK_QUERY_TOKENIZER] = "tokenizer",
    };
    return (unsigned)query < RK_QUERIES ? names[query] : "unknown";
}

/* An answer that the call as a whole fails with; NULL: no memory. */
static rk_value *failure(rk_code code, const char *text) {
    rk_value *map = rk_value_map();
    if (map && rk_value_set(map, "code", rk_value_number(code)) == 0 &&
        rk_value_set(map, "message", rk_value_string(text, strlen(text))) == 0)
        return map;
    rk_value_free(map);
    return NULL;
}

/* What an engine that does not take a question answers to a call of its own; NULL to the others, which have
 * words for that themselves. */
static rk_value *not_taken(rk_query query) {
    if (query < RK_QUERY_FLUSH_CACHE)
        return NULL;
    char text[96];
    (void)snprintf(text, sizeof text, "this engine does not take %s", rk_query_name(query));
    return failure(RK_UNIMPLEMENTED, text);
}

/* A question on the list; NULL: no memory. */
static rk_pending *pending_new(rk_call *call, uint64_t timeout_ms,
                               void (*on_answer)(rk_call *call, const rk_value *answer)) {
    rk_servicer *servicer = call->servicer;
    rk_pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        return NULL;
    pending->post.run = answered;
    pending->call = rk_call_ref(call);
    pending->on_answer = on_answer;
    pending->due_ms = rk_now_ms() + timeout_ms;
    (void)pthread_mutex_lock(&servicer->query_lock);
    pending->id = ++servicer->next_query;
    rk_list_push_back(&servicer->queries, &pending->link);
    (void)pthread_mutex_unlock(&servicer->query_lock);
    return pending;
}

void rk_query_post(rk_call *call, uint64_t timeout_ms,
                   int (*ask)(rk_servicer *servicer, uint64_t query_id, const void *what), const void *what,
                   void (*on_answer)(rk_call *call, const rk_value *answer)) {
    rk_pending *pending = pending_new(call, timeout_ms, on_answer);
    if (!pending) {
        rk_value *answer = failure(RK_RESOURCE_EXHAUSTED, "out of memory; try again later");
        on_answer(call, answer);
        rk_value_free(answer);
        return;
    }
    uint64_t id = pending->id; /* once asked, it may have been answered, and freed */
    if (ask(call->servicer, id, what) < 0)
        rk_sink_answer(call->servicer, id, failure(RK_UNAVAILABLE, "the engine did not take the request"));
}

void rk_query_ask(rk_call *call, rk_query query, const rk_value *argument, uint64_t timeout_ms,
                  void (*on_answer)(rk_call *call, const rk_value *answer)) {
    rk_servicer *servicer = call->servicer;
    rk_pending *pending = servicer->ops->query ? pending_new(call, timeout_ms, on_answer) : NULL;
    if (!pending) {
        rk_value *answer = servicer->ops->query ? NULL : not_taken(query);
        on_answer(call, answer);
        rk_value_free(answer);
        return;
    }
    uint64_t id = pending->id;
    if (servicer->ops->query(servicer->engine, query, id, argument) < 0)
        rk_sink_answer(servicer, id, not_taken(query));
}

/* Takes a question off the list: by id, or the first that is due. */
static rk_pending *take(rk_servicer *servicer, uint64_t id, uint64_t now) {
    rk_pending *found = NULL;
    (void)pthread_mutex_lock(&servicer->query_lock);
    for (rk_list *node = servicer->queries.next; node != &servicer->queries && !found; node = node->next) {
        rk_pending *pending = RK_CONTAINER(node, rk_pending, link);
        if (id ? pending->id == id : pending->due_ms <= now)
            found = pending;
    }
    if (found)
        rk_list_remove(&found->link);
    (void)pthread_mutex_unlock(&servicer->query_lock);
    return found;
}

void rk_sink_answer(rk_servicer *servicer, uint64_t query_id, rk_value *answer) {
    if (!rk_gate_enter(servicer)) {
        rk_value_free(answer);
        return;
    }
    rk_pending *pending = query_id ? take(servicer, query_id, 0) : NULL;
    if (pending) {
        pending->answer = answer;
        rk_call_post(pending->call, &pending->post, NULL);
    } else {
        rk_value_free(answer);
    }
    rk_gate_leave(servicer);
}

void rk_query_expire(rk_servicer *servicer, uint64_t now) {
    rk_pending *pending;
    while ((pending = take(servicer, 0, now)) != NULL)
        rk_call_post(pending->call, &pending->post, NULL);
}
