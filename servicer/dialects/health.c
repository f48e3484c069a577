/* grpc.health.v1: its messages. Who is serving is the rpc layer's to know. Any thread. */
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "dialects/dialect.h"
#include "dialects/wire_read.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

#define SERVICE_BYTES 256 /* with the NUL */

typedef struct check_draft {
    rk_wire service;
} check_draft;

static const rk_row check_rows[] = {
    [RK_HEALTH_HEALTH_CHECK_REQUEST__SERVICE] = {.kind = RK_ROW_TEXT,
                                                 .path = "service",
                                                 .offset = offsetof(check_draft, service)},
};
static const rk_schema check_schema = {"HealthCheckRequest", check_rows, RK_COUNT(check_rows), 0};

/* A name that is too long is cut, at a whole character: no service has one of that length, so it stays
 * unknown. */
static size_t fitting(rk_wire name) {
    size_t size = rk_wire_size(name);
    if (size < SERVICE_BYTES)
        return size;
    size = SERVICE_BYTES - 1;
    while (size && !rk_utf8_valid((const char *)name.at, size))
        size--;
    return size;
}

rk_code rk_health_decode(const uint8_t *bytes, size_t size, char service[256], rk_status *status) {
    check_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &check_schema, &draft);
    if (code != RK_OK)
        return code;
    size_t length = draft.service.at ? fitting(draft.service) : 0;
    if (length && memchr(draft.service.at, '\0', length))
        return rk_status_set(
            status, RK_INVALID_ARGUMENT,
            "service has a NUL character in it; send a full service name, or none for the server");
    if (length)
        memcpy(service, draft.service.at, length);
    service[length] = '\0';
    return RK_OK;
}

void rk_health_encode(rk_buf *out, rk_serving serving) {
    rk_write_int(out, RK_HEALTH_HEALTH_CHECK_RESPONSE__STATUS, serving);
}

void rk_health_encode_list(rk_buf *out, const char *const *services, size_t count, rk_serving serving) {
    for (size_t i = 0; i < count; i++) {
        size_t entry = rk_write_begin(out, RK_HEALTH_HEALTH_LIST_RESPONSE__STATUSES);
        rk_write_text_always(out, RK_HEALTH_HEALTH_LIST_RESPONSE_STATUSES_ENTRY__KEY, services[i],
                             strlen(services[i]));
        size_t value = rk_write_begin(out, RK_HEALTH_HEALTH_LIST_RESPONSE_STATUSES_ENTRY__VALUE);
        rk_health_encode(out, serving);
        rk_write_end(out, value);
        rk_write_end(out, entry);
    }
}
