/* Requests are shared between pollers and the engine's side: an atomic count, and one arena that holds all of
 * it, the request itself too. Any thread. */
#include "dialects/request.h"

#include <stdatomic.h>

#include "base/list.h"

typedef struct shared_request {
    rk_request request;
    atomic_uint references;
    rk_arena *arena; /* holds this struct and everything the request points to */
} shared_request;

rk_request *rk_request_in(rk_arena *arena) {
    shared_request *shared = rk_arena_alloc(arena, sizeof *shared);
    if (!shared)
        return NULL;
    shared->request = (rk_request){0};
    atomic_init(&shared->references, 1);
    shared->arena = arena;
    return &shared->request;
}

rk_request *rk_request_ref(rk_request *request) {
    shared_request *shared = RK_CONTAINER(request, shared_request, request);
    atomic_fetch_add_explicit(&shared->references, 1, memory_order_relaxed);
    return request;
}

void rk_request_unref(rk_request *request) {
    if (!request)
        return;
    shared_request *shared = RK_CONTAINER(request, shared_request, request);
    if (atomic_fetch_sub_explicit(&shared->references, 1, memory_order_acq_rel) == 1)
        rk_arena_free(shared->arena);
}
