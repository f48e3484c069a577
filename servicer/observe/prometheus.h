/* Writing Prometheus' text format: a family at a time, its samples behind it. Any thread; check out->failed
 * once at the end. */
#ifndef RK_OBSERVE_PROMETHEUS_H
#define RK_OBSERVE_PROMETHEUS_H

#include <stdint.h>

#include "base/buf.h"
#include "roomkeeper/rooms.h"

typedef struct rk_label {
    const char *name;
    const char *value; /* any bytes; escaped, and cut at 200 */
} rk_label;

/* "# HELP" and "# TYPE" of what follows; `type` is counter, gauge or histogram. */
void rk_family(rk_buf *out, const char *name, const char *type, const char *help);
void rk_sample(rk_buf *out, const char *name, const rk_label *labels, size_t count, double value);
/* All samples of a histogram of durations, in seconds. */
void rk_sample_histogram(rk_buf *out, const char *name, const rk_histogram *histogram);

#endif
