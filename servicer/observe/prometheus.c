/* The text format: names and labels as given, label values escaped, numbers that read back as they were. */
#include "observe/prometheus.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "config/number.h"

#define VALUE_MAX 200 /* bytes of a label's value */
#define NUMBER_TEXT_MAX 40

void rk_family(rk_buf *out, const char *name, const char *type, const char *help) {
    rk_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_value(rk_buf *out, const char *text) {
    size_t size = strnlen(text, VALUE_MAX);
    while (size > 0 && !rk_utf8_valid(text, size))
        size--;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\n')
            rk_buf_append(out, "\\n", 2);
        else if (text[i] == '"' || text[i] == '\\')
            rk_buf_printf(out, "\\%c", text[i]);
        else
            rk_buf_append(out, &text[i], 1);
    }
}

static void write_labels(rk_buf *out, const rk_label *labels, size_t count) {
    for (size_t i = 0; i < count; i++) {
        rk_buf_printf(out, "%s%s=\"", i ? "," : "{", labels[i].name);
        write_value(out, labels[i].value);
        rk_buf_append(out, "\"", 1);
    }
    if (count > 0)
        rk_buf_append(out, "}", 1);
}

void rk_sample(rk_buf *out, const char *name, const rk_label *labels, size_t count, double value) {
    char number[NUMBER_TEXT_MAX];
    if (!isfinite(value)) /* spelt as the format has it; the C library writes "nan" and "inf" */
        (void)snprintf(number, sizeof number, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
    else if (rk_format_number(value, number, sizeof number) < 0)
        return;
    rk_buf_append(out, name, strlen(name));
    write_labels(out, labels, count);
    rk_buf_printf(out, " %s\n", number);
}

void rk_sample_histogram(rk_buf *out, const char *name, const rk_histogram *histogram) {
    const uint32_t *bounds = rk_histogram_bounds_ms();
    uint64_t below = 0;
    char series[128];
    char bound[NUMBER_TEXT_MAX];
    (void)snprintf(series, sizeof series, "%s_bucket", name);
    for (size_t i = 0; i < RK_HISTOGRAM_BUCKETS; i++) {
        below += histogram->buckets[i];
        bool last = i + 1 == RK_HISTOGRAM_BUCKETS;
        if (last || rk_format_number(bounds[i] / 1000.0, bound, sizeof bound) < 0)
            (void)snprintf(bound, sizeof bound, "+Inf");
        rk_sample(out, series, &(rk_label){"le", bound}, 1, (double)below);
    }
    (void)snprintf(series, sizeof series, "%s_sum", name);
    rk_sample(out, series, NULL, 0, (double)histogram->sum_ms / 1000);
    (void)snprintf(series, sizeof series, "%s_count", name);
    rk_sample(out, series, NULL, 0, (double)histogram->count);
}
