/* Requests are shared between pollers and the engine's side: an atomic count, and one arena that holds all of
 * it, the request itself too. Any thread. */
#include "dialects/request.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/segment.h"

typedef struct shared_request {
    rk_request request;
    atomic_uint references;
    rk_arena *arena; /* holds this struct and everything the request points to */
    void *kept;      /* the client's bytes; NULL: none are kept, or no longer */
    void (*drop)(void *kept);
    int *fds; /* of request.segments; NULL: they were never opened */
    bool dropped;
} shared_request;

static shared_request *shared_of(const rk_request *request) {
    return (shared_request *)(uintptr_t)request; /* its first member */
}

rk_request *rk_request_in(rk_arena *arena) {
    shared_request *shared = rk_arena_alloc(arena, sizeof *shared);
    if (!shared)
        return NULL;
    memset(shared, 0, sizeof *shared);
    atomic_init(&shared->references, 1);
    shared->arena = arena;
    return &shared->request;
}

rk_request *rk_request_ref(rk_request *request) {
    atomic_fetch_add_explicit(&shared_of(request)->references, 1, memory_order_relaxed);
    return request;
}

void rk_request_unref(rk_request *request) {
    if (!request)
        return;
    shared_request *shared = shared_of(request);
    if (atomic_fetch_sub_explicit(&shared->references, 1, memory_order_acq_rel) != 1)
        return;
    rk_request_drop_payloads(request);
    rk_arena_free(shared->arena);
}

void rk_request_keep(rk_request *request, void *kept, void (*drop)(void *kept)) {
    shared_of(request)->kept = kept;
    shared_of(request)->drop = drop;
}

int *rk_request_descriptors(rk_request *request) {
    shared_request *shared = shared_of(request);
    int *fds = rk_arena_alloc(shared->arena, request->segment_count * sizeof *fds);
    for (size_t i = 0; fds && i < request->segment_count; i++)
        fds[i] = -1;
    shared->fds = fds;
    return fds;
}

void rk_request_drop_payloads(rk_request *request) {
    shared_request *shared = shared_of(request);
    if (shared->kept)
        shared->drop(shared->kept);
    shared->kept = NULL;
    for (size_t i = 0; shared->fds && i < request->segment_count; i++)
        if (shared->fds[i] >= 0)
            (void)close(shared->fds[i]);
    shared->fds = NULL;
    shared->dropped = true;
}

int rk_request_read_tensor(const rk_request *request, const rk_tensor *tensor, void *bytes) {
    const shared_request *shared = shared_of(request);
    if (tensor->payload != RK_PAYLOAD_HERE)
        return -EINVAL;
    if (tensor->nbytes == 0)
        return 0;
    if (shared->dropped)
        return -ENODATA;
    if (tensor->bytes) {
        memcpy(bytes, tensor->bytes, tensor->nbytes);
        return 0;
    }
    if (!shared->fds)
        return -ENODATA;
    return rk_segment_read(shared->fds[tensor->segment], tensor->offset, bytes, tensor->nbytes);
}
