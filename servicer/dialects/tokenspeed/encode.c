/* The encode worker's own call, and what is left to do for a message that was refused: its segments of shared
 * memory are named in it, and nobody else will remove them. Any thread. */
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/segment.h"
#include "dialects/request.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/tokenspeed/media.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

/* ---- EncodeRequest ---- */

typedef struct assignment {
    int64_t room;
} assignment;

typedef struct encode_draft {
    rk_wire request_id;
    rk_ts_items items;
    size_t assignments;
    assignment last;
} encode_draft;

static rk_code read_items(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    encode_draft *draft = target;
    return code == RK_OK ? rk_ts_read_items(reader, field->bytes, &draft->items) : code;
}

static const rk_row assignment_rows[] = {
    [RK_TSE_ENCODE_ITEM_ASSIGNMENT__BOOTSTRAP_ROOM] = {.kind = RK_ROW_INT64,
                                                       .path = "items.bootstrap_room",
                                                       .offset = offsetof(assignment, room)},
};
static const rk_schema assignment_schema = {"items", assignment_rows, RK_COUNT(assignment_rows), 0};

static rk_code read_assignment(rk_reader *reader, const rk_row *row, const rk_wire_field *field,
                               void *target) {
    encode_draft *draft = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    draft->assignments++;
    draft->last = (assignment){0};
    return rk_read_message(reader, field->bytes, &assignment_schema, &draft->last);
}

static const rk_row encode_rows[] = {
    [RK_TSE_ENCODE_REQUEST__REQUEST_ID] = {.kind = RK_ROW_TEXT,
                                           .path = "request_id",
                                           .offset = offsetof(encode_draft, request_id)},
    [RK_TSE_ENCODE_REQUEST__MM_INPUTS] = {.kind = RK_ROW_CUSTOM, .path = "mm_inputs", .read = read_items},
    [RK_TSE_ENCODE_REQUEST__ITEMS] = {.kind = RK_ROW_CUSTOM, .path = "items", .read = read_assignment},
};
static const rk_schema encode_schema = {"EncodeRequest", encode_rows, RK_COUNT(encode_rows), 0};

static rk_code check(const encode_draft *draft, rk_status *status) {
    static const rk_ts_media_rules rules = {.encode = true, .needs_input = true, .prompt = SIZE_MAX};
    size_t size = rk_wire_size(draft->request_id);
    if (size > RK_TS_REQUEST_ID_MAX)
        return rk_status_set(status, RK_INVALID_ARGUMENT, "request_id has %zu bytes; it may have at most %d",
                             size, RK_TS_REQUEST_ID_MAX);
    if (size && memchr(draft->request_id.at, '\0', size))
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "request_id has a NUL character in it; use an id without");
    if (draft->items.count != 1)
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "mm_inputs.items has %zu items; an Encode takes one: send a call for each",
                             draft->items.count);
    if (draft->assignments != 1)
        return rk_status_set(status, RK_INVALID_ARGUMENT, "items has %zu rooms; the one item needs one",
                             draft->assignments);
    if (draft->last.room < 0)
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "items[0].bootstrap_room is %lld; it must be 0 to 9223372036854775807",
                             (long long)draft->last.room);
    return rk_ts_check_items(&draft->items, &rules, status);
}

static bool fill(rk_arena *arena, const encode_draft *draft, const rk_keeper *keeper, rk_request *request) {
    static const rk_ts_encoders none = {0};
    request->n = 1;
    request->request_id.bytes = rk_wire_size(draft->request_id);
    request->request_id.data =
        rk_arena_strndup(arena, (const char *)draft->request_id.at, request->request_id.bytes);
    return request->request_id.data && rk_ts_fill_media(arena, &draft->items, &none, keeper, request);
}

rk_code rk_ts_decode_encode(const uint8_t *bytes, size_t size, const rk_limits *limits,
                            const rk_keeper *keeper, rk_request **out, int64_t *room, rk_status *status) {
    static const uint8_t nothing[1] = {0};
    *out = NULL;
    rk_arena *arena = rk_arena_new(rk_ts_memory_cap(size, limits));
    if (!arena)
        return rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory; try again later");
    encode_draft draft = {.request_id = rk_wire_of(nothing, 0)};
    rk_reader reader = {.arena = arena, .status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &encode_schema, &draft);
    if (code == RK_OK)
        code = check(&draft, status);
    rk_request *request = code == RK_OK ? rk_request_in(arena) : NULL;
    if (code == RK_OK && (!request || !fill(arena, &draft, keeper, request)))
        code = rk_no_memory(&reader);
    if (code == RK_OK) {
        *out = request;
        *room = draft.last.room;
    } else {
        rk_arena_free(arena);
    }
    return code;
}

void rk_ts_encode_accepted(rk_buf *out, bool accepted) {
    rk_write_bool(out, RK_TSE_ENCODE_RESPONSE__ACCEPTED, accepted);
}

/* ---- the segments that a refused message names ---- */

/* Way down to a name: the numbers of the messages within each other. Two ways, since encoder_input and a
 * map's entry are not equally deep. */
static const uint32_t input_way[] = {RK_TS_MULTIMODAL_INPUTS__ITEMS, RK_TS_MULTIMODAL_ITEM__ENCODER_INPUT,
                                     RK_TS_TENSOR_DATA__SHM, RK_SMG_SHM_HANDLE__NAME};
static const uint32_t named_way[] = {RK_TS_MULTIMODAL_INPUTS__ITEMS,
                                     RK_TS_MULTIMODAL_ITEM__MODEL_SPECIFIC_TENSORS,
                                     RK_TS_MULTIMODAL_ITEM_MODEL_SPECIFIC_TENSORS_ENTRY__VALUE,
                                     RK_TS_TENSOR_DATA__SHM, RK_SMG_SHM_HANDLE__NAME};

typedef struct finder {
    rk_segment_found *found;
    void *context;
    size_t left; /* names that are still told: as many as a message that is not refused could have */
} finder;

static void tell(finder *f, rk_wire given) {
    char text[RK_SEGMENT_NAME_MAX + 1];
    rk_wire name;
    if (f->left == 0 || !rk_ts_segment_name(given, &name))
        return;
    f->left--;
    memcpy(text, name.at, rk_wire_size(name));
    text[rk_wire_size(name)] = '\0';
    f->found(f->context, text);
}

/* As far as the bytes make sense. */
static void walk(finder *f, rk_wire message, const uint32_t *way, size_t steps) {
    rk_wire_field field = {0};
    while (rk_wire_next(&message, &field) > 0) {
        if (field.number != way[0] || field.type != RK_WIRE_BYTES)
            continue;
        if (steps == 1)
            tell(f, field.bytes);
        else
            walk(f, field.bytes, way + 1, steps - 1);
    }
}

void rk_ts_each_segment(const uint8_t *bytes, size_t size, bool encode, rk_segment_found *found,
                        void *context) {
    finder f = {found, context, (size_t)RK_TS_ITEMS_MAX * (RK_TS_TENSORS_MAX + 1)};
    uint32_t inputs = encode ? RK_TSE_ENCODE_REQUEST__MM_INPUTS : RK_TS_GENERATE_REQUEST__MM_INPUTS;
    rk_wire message = rk_wire_of(bytes, size);
    rk_wire_field field = {0};
    while (bytes && rk_wire_next(&message, &field) > 0) {
        if (field.number != inputs || field.type != RK_WIRE_BYTES)
            continue;
        walk(&f, field.bytes, input_way, RK_COUNT(input_way));
        walk(&f, field.bytes, named_way, RK_COUNT(named_way));
    }
}
