/* A request and the memory it lives in. */
#ifndef RK_DIALECTS_REQUEST_H
#define RK_DIALECTS_REQUEST_H

#include "base/arena.h"
#include "roomkeeper/engine.h"

/* An empty request in `arena`, with one reference; the last one to go frees the arena. NULL: no memory, and
 * the arena is still the caller's. */
rk_request *rk_request_in(rk_arena *arena);

/* Where the bytes of tensors are, besides the arena. Both are let go of by rk_request_drop_payloads or with
 * the request. Before anybody else has the request.
 *
 * The client's bytes, kept by whoever gave them: `drop` frees `kept`. */
void rk_request_keep(rk_request *request, void *kept, void (*drop)(void *kept));
/* A place for the open descriptor of each of request->segments, -1 so far. NULL: no memory. */
int *rk_request_descriptors(rk_request *request);

#endif
