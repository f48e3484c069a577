/* A request and the memory it lives in. */
#ifndef RK_DIALECTS_REQUEST_H
#define RK_DIALECTS_REQUEST_H

#include "base/arena.h"
#include "roomkeeper/engine.h"

/* An empty request in `arena`, with one reference; the last one to go frees the arena. NULL: no memory, and
 * the arena is still the caller's. */
rk_request *rk_request_in(rk_arena *arena);

#endif
