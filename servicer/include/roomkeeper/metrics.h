/* The numbers of a servicer as Prometheus text (exposition format 0.0.4), for whoever scrapes them, and the
 * same for programs that embed the core. Names and meanings are in docs/metrics.md. */
#ifndef ROOMKEEPER_METRICS_H
#define ROOMKEEPER_METRICS_H

#include <stddef.h>

#include "roomkeeper/servicer.h"

/* Any thread, without the GIL, in bounded time. malloc'd and NUL-terminated, `*size` bytes without the NUL;
 * NULL: out of memory. */
RK_API char *rk_servicer_metrics(rk_servicer *servicer, size_t *size);
/* Serves it by HTTP at /metrics of "host:port", on a thread of its own; before start, once. Port 0: any free
 * one. Returns the port, or -errno with one line in `error`. */
RK_API int rk_servicer_listen_metrics(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]);

#endif
