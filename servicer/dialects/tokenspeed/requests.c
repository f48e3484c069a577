/* The small requests: Abort, GetLoads, and those without fields. Any thread. */
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/tokenspeed/internal.h"
#include "rk_proto/fields.h"

/* ---- Abort ---- */

typedef struct abort_draft {
    rk_wire request_id;
    rk_wire reason; /* checked to be text; nobody reads it */
} abort_draft;

static const rk_row abort_rows[] = {
    [RK_TS_ABORT_REQUEST__REQUEST_ID] = {.kind = RK_ROW_TEXT,
                                         .path = "request_id",
                                         .offset = offsetof(abort_draft, request_id)},
    [RK_TS_ABORT_REQUEST__REASON] = {.kind = RK_ROW_TEXT,
                                     .path = "reason",
                                     .offset = offsetof(abort_draft, reason)},
};
static const rk_schema abort_schema = {"AbortRequest", abort_rows, RK_COUNT(abort_rows), 0};

rk_code rk_ts_decode_abort(const uint8_t *bytes, size_t size, char id[513], size_t *id_bytes,
                           rk_status *status) {
    abort_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &abort_schema, &draft);
    if (code != RK_OK)
        return code;
    size_t length = draft.request_id.at ? rk_wire_size(draft.request_id) : 0;
    if (length == 0)
        return rk_status_set(status, RK_INVALID_ARGUMENT, "request_id is empty; name the request to abort");
    if (length > RK_TS_REQUEST_ID_MAX)
        return rk_status_set(status, RK_INVALID_ARGUMENT, "request_id has %zu bytes; ids have at most %d",
                             length, RK_TS_REQUEST_ID_MAX);
    if (memchr(draft.request_id.at, '\0', length))
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "request_id has a NUL character in it; no request has such an id");
    memcpy(id, draft.request_id.at, length);
    id[length] = '\0';
    *id_bytes = length;
    return RK_OK;
}

/* ---- no fields ---- */

rk_code rk_ts_decode_empty(const uint8_t *bytes, size_t size, rk_status *status) {
    static const rk_schema no_fields = {"the request", NULL, 0, 0};
    rk_reader reader = {.status = status};
    return rk_read_call(&reader, bytes, size, &no_fields, NULL);
}

/* ---- GetLoads ---- */

enum { HAS_RANK = 1u };

typedef struct loads_draft {
    uint32_t has;
    rk_loads_query query;
    bool named; /* `include` names something */
} loads_draft;

static bool is_word(rk_wire text, const char *word) {
    size_t size = strlen(word);
    return rk_wire_size(text) == size && memcmp(text.at, word, size) == 0;
}

/* A part that is not known here is not an error: newer gateways may know more. */
static rk_code read_include(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    loads_draft *draft = target;
    rk_wire text;
    rk_code code = rk_read_text(reader, row->path, field, &text);
    if (code != RK_OK)
        return code;
    bool all = is_word(text, "all");
    draft->named = true;
    draft->query.core |= all || is_word(text, "core");
    draft->query.memory |= all || is_word(text, "memory");
    draft->query.queues |= all || is_word(text, "queues");
    draft->query.disagg |= all || is_word(text, "disagg");
    return RK_OK;
}

static const rk_row loads_rows[] = {
    [RK_TS_GET_LOADS_REQUEST__DP_RANK] = {.kind = RK_ROW_INT32,
                                          .path = "dp_rank",
                                          .offset = offsetof(loads_draft, query.rank),
                                          .has = HAS_RANK},
    [RK_TS_GET_LOADS_REQUEST__INCLUDE] = {.kind = RK_ROW_CUSTOM, .path = "include", .read = read_include},
};
static const rk_schema loads_schema = {"GetLoadsRequest", loads_rows, RK_COUNT(loads_rows),
                                       offsetof(loads_draft, has)};

rk_code rk_ts_decode_loads(const uint8_t *bytes, size_t size, rk_loads_query *query, rk_status *status) {
    loads_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &loads_schema, &draft);
    if (code != RK_OK)
        return code;
    *query = draft.query;
    query->has_rank = (draft.has & HAS_RANK) != 0;
    if (!draft.named)
        query->core = query->memory = query->queues = query->disagg = true;
    return RK_OK;
}
