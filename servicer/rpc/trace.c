/* See trace.h. "00-<trace id>-<parent id>-<flags>", hex digits in lower case; later versions may append "-…".
 */
#include "rpc/trace.h"

#include <grpc/slice.h>
#include <string.h>

#define LENGTH 55 /* of version 00; the least of later ones */
#define TRACE_AT 3
#define PARENT_AT 36
#define FLAGS_AT 53

static bool is_hex(const char *text, size_t digits) {
    for (size_t i = 0; i < digits; i++) {
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
    }
    return true;
}

static bool is_id(const char *text, size_t digits) {
    return is_hex(text, digits) && strspn(text, "0") < digits; /* all zeros is nobody's; a - follows */
}

static bool is_traceparent(const char *text, size_t size) {
    if (size < LENGTH || text[TRACE_AT - 1] != '-' || text[PARENT_AT - 1] != '-' || text[FLAGS_AT - 1] != '-')
        return false;
    bool first = text[0] == '0' && text[1] == '0';
    if (size > LENGTH && (first || text[LENGTH] != '-'))
        return false;
    return is_hex(text, 2) && memcmp(text, "ff", 2) != 0 && is_id(text + TRACE_AT, 32) &&
           is_id(text + PARENT_AT, 16) && is_hex(text + FLAGS_AT, 2);
}

bool rk_trace_read(const grpc_metadata_array *metadata, char id[RK_TRACE_ID_SIZE]) {
    const grpc_slice *found = NULL;
    id[0] = '\0';
    for (size_t i = 0; i < metadata->count; i++) {
        if (grpc_slice_str_cmp(metadata->metadata[i].key, "traceparent") != 0)
            continue;
        if (found) /* which of the two is meant? */
            return false;
        found = &metadata->metadata[i].value;
    }
    if (!found)
        return true;
    const char *text = (const char *)GRPC_SLICE_START_PTR(*found);
    if (!is_traceparent(text, GRPC_SLICE_LENGTH(*found)))
        return false;
    memcpy(id, text + TRACE_AT, RK_TRACE_ID_SIZE - 1);
    id[RK_TRACE_ID_SIZE - 1] = '\0';
    return true;
}
