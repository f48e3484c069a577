/* The trace a call belongs to, as W3C Trace Context names it in its metadata: for log lines. */
#ifndef RK_RPC_TRACE_H
#define RK_RPC_TRACE_H

#include <grpc/grpc.h>
#include <stdbool.h>

#define RK_TRACE_ID_SIZE 33 /* 32 hex digits and a NUL */

/* Any thread. `id` is "" where the call names none. False: what it has is no traceparent; it is to be
 * ignored. */
bool rk_trace_read(const grpc_metadata_array *metadata, char id[RK_TRACE_ID_SIZE]);

#endif
