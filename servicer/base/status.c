/* Statuses: a code and one clean line. Any thread; no state. */
#include "roomkeeper/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

rk_code rk_status_set(rk_status *status, rk_code code, const char *format, ...) {
    /* A few bytes more than fit, so that the last character that does fit is seen whole. */
    char raw[RK_STATUS_TEXT_MAX + 8];
    va_list args;
    status->code = code;
    va_start(args, format);
    int length = vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    if (length < 0 || code == RK_OK)
        length = 0;
    size_t bytes = (size_t)length < sizeof raw ? (size_t)length : sizeof raw - 1;
    (void)rk_utf8_clean(status->text, sizeof status->text, raw, bytes);
    return code;
}

const char *rk_code_name(rk_code code) {
    static const char *const names[] = {
        [RK_OK] = "OK",
        [RK_CANCELLED] = "CANCELLED",
        [RK_UNKNOWN] = "UNKNOWN",
        [RK_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
        [RK_DEADLINE_EXCEEDED] = "DEADLINE_EXCEEDED",
        [RK_NOT_FOUND] = "NOT_FOUND",
        [RK_ALREADY_EXISTS] = "ALREADY_EXISTS",
        [RK_PERMISSION_DENIED] = "PERMISSION_DENIED",
        [RK_RESOURCE_EXHAUSTED] = "RESOURCE_EXHAUSTED",
        [RK_FAILED_PRECONDITION] = "FAILED_PRECONDITION",
        [RK_ABORTED] = "ABORTED",
        [RK_OUT_OF_RANGE] = "OUT_OF_RANGE",
        [RK_UNIMPLEMENTED] = "UNIMPLEMENTED",
        [RK_INTERNAL] = "INTERNAL",
        [RK_UNAVAILABLE] = "UNAVAILABLE",
        [RK_DATA_LOSS] = "DATA_LOSS",
        [RK_UNAUTHENTICATED] = "UNAUTHENTICATED",
    };
    unsigned number = (unsigned)code;
    return number < RK_COUNT(names) ? names[number] : "UNKNOWN";
}
