/* What multimodal inputs must keep to. What passes here fits the engine's own assumptions, which it does not
 * check: a tensor of the wrong size, or positions beyond the prompt, would end its scheduler. Any thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/segment.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/tokenspeed/media.h"
#include "rk_proto/fields.h"
#include "roomkeeper/rooms.h"

#define refuse(status, ...) rk_status_set((status), RK_INVALID_ARGUMENT, __VA_ARGS__)
#define LABEL_MAX 128
#define SHOWN_MAX 40
#define TENSOR_BYTES_MAX ((uint64_t)1 << 40)

/* A text as it is shown in a refusal. */
#define SHOWN(wire)                                                                                          \
    (int)(rk_wire_size(wire) < SHOWN_MAX ? rk_wire_size(wire) : SHOWN_MAX), (const char *)(wire).at

static bool is(rk_wire text, const char *word) {
    size_t size = strlen(word);
    return rk_wire_size(text) == size && memcmp(text.at, word, size) == 0;
}

/* ---- tensors ---- */

const rk_ts_dtype *rk_ts_dtype_of(rk_wire name) {
    static const rk_ts_dtype dtypes[] = {
        {"bfloat16", 2}, {"float16", 2}, {"float32", 4}, {"float64", 8}, {"int8", 1},
        {"int16", 2},    {"int32", 4},   {"int64", 8},   {"uint8", 1},   {"uint16", 2},
        {"uint32", 4},   {"uint64", 8},  {"bool", 1},
    };
    for (size_t i = 0; i < RK_COUNT(dtypes); i++)
        if (is(name, dtypes[i].name))
            return &dtypes[i];
    return NULL;
}

uint64_t rk_ts_tensor_bytes(const rk_ids *shape, uint64_t element) {
    uint64_t bytes = element;
    for (size_t i = 0; i < shape->count; i++) {
        if (shape->items[i] == 0)
            return 0;
        bytes = bytes <= TENSOR_BYTES_MAX ? bytes * shape->items[i] : bytes; /* no overflow: 2^40 x 2^32 */
    }
    return bytes;
}

bool rk_ts_segment_name(rk_wire given, rk_wire *name) {
    while (given.at < given.end && *given.at == '/')
        given.at++;
    *name = given;
    size_t size = rk_wire_size(given);
    return size > 0 && size <= RK_SEGMENT_NAME_MAX && !memchr(given.at, '/', size) &&
           !memchr(given.at, '\0', size) && !is(given, ".") && !is(given, "..");
}

static rk_code check_segment(const rk_ts_tensor *tensor, const char *label, uint64_t bytes,
                             rk_status *status) {
    rk_wire name;
    if (!rk_ts_segment_name(tensor->name, &name))
        return refuse(
            status,
            "%s.shm.name is \"%.*s\"; it must be the plain name of a file under /dev/shm, 1 to %d bytes",
            label, SHOWN(tensor->name), RK_SEGMENT_NAME_MAX);
    if (tensor->nbytes != bytes)
        return refuse(status, "%s.shm.nbytes is %" PRIu64 "; its shape and dtype make %" PRIu64, label,
                      tensor->nbytes, bytes);
    if (tensor->offset > (uint64_t)INT64_MAX - bytes)
        return refuse(status, "%s.shm.offset is %" PRIu64 "; no segment is that long", label, tensor->offset);
    return RK_OK;
}

static rk_code check_remote(const rk_ts_tensor *tensor, const char *label, uint64_t bytes,
                            rk_status *status) {
    if (rk_wire_size(tensor->transport) && !is(tensor->transport, "nixl"))
        return refuse(status, "%s.remote.transport is \"%.*s\"; nixl is the one that is known here", label,
                      SHOWN(tensor->transport));
    if (rk_wire_size(tensor->descriptor) == 0)
        return refuse(status, "%s.remote.descriptor is empty; it must say where the tensor is", label);
    if (tensor->nbytes != bytes)
        return refuse(status, "%s.remote.nbytes is %" PRIu64 "; its shape and dtype make %" PRIu64, label,
                      tensor->nbytes, bytes);
    return RK_OK;
}

static rk_code check_tensor(const rk_ts_tensor *tensor, const char *label, bool may_be_remote,
                            rk_status *status) {
    const rk_ts_dtype *dtype = rk_ts_dtype_of(tensor->dtype);
    if (!dtype)
        return refuse(
            status,
            "%s.dtype is \"%.*s\"; it must be bfloat16, float16, float32 or float64, an int or uint "
            "of 8, 16, 32 or 64 bits, or bool",
            label, SHOWN(tensor->dtype));
    if (tensor->shape.count > RK_TS_DIMS_MAX)
        return refuse(status, "%s.shape has %zu dimensions; at most %d are possible", label,
                      tensor->shape.count, RK_TS_DIMS_MAX);
    uint64_t bytes = rk_ts_tensor_bytes(&tensor->shape, dtype->bytes);
    if (bytes > TENSOR_BYTES_MAX)
        return refuse(status, "%s.shape makes more than 2^40 bytes; no tensor is that large", label);
    switch (tensor->payload) {
    case RK_TS_TENSOR_DATA__INLINE:
        if (rk_wire_size(tensor->bytes) == bytes)
            return RK_OK;
        return refuse(status, "%s.inline has %zu bytes; its shape and dtype make %" PRIu64, label,
                      rk_wire_size(tensor->bytes), bytes);
    case RK_TS_TENSOR_DATA__SHM:
        return check_segment(tensor, label, bytes, status);
    case RK_TS_TENSOR_DATA__REMOTE:
        if (may_be_remote)
            return check_remote(tensor, label, bytes, status);
        return refuse(status, "%s is remote; only an encoder_input may be: send it inline", label);
    default:
        return refuse(status, "%s has no payload; send inline, shm or remote", label);
    }
}

/* ---- items ---- */

static bool has_tensor(const rk_ts_item *item, const char *name) {
    for (size_t i = 0; i < item->tensor_count; i++)
        if (is(item->tensors[i].name, name))
            return true;
    return false;
}

static rk_code check_tensors(const rk_ts_item *item, size_t at, rk_status *status) {
    char label[LABEL_MAX];
    rk_code code = RK_OK;
    if (item->has & RK_TS_ITEM_HAS_INPUT) {
        (void)snprintf(label, sizeof label, "mm_inputs.items[%zu].encoder_input", at);
        code = check_tensor(&item->input, label, true, status);
    }
    for (size_t i = 0; code == RK_OK && i < item->tensor_count; i++) {
        const rk_ts_named *named = &item->tensors[i];
        if (rk_wire_size(named->name) && memchr(named->name.at, '\0', rk_wire_size(named->name)))
            return refuse(status, "mm_inputs.items[%zu].model_specific_tensors has a name with NUL in it",
                          at);
        (void)snprintf(label, sizeof label, "mm_inputs.items[%zu].model_specific_tensors[\"%.*s\"]", at,
                       SHOWN(named->name));
        code = check_tensor(&named->tensor, label, false, status);
    }
    return code;
}

/* The grids by which the engine finds an item's positions are named by modality. */
static rk_code check_grids(const rk_ts_item *item, size_t at, rk_status *status) {
    bool image = has_tensor(item, "image_grid_thw");
    bool video = has_tensor(item, "video_grid_thw");
    const char *wrong = item->modality != RK_MODALITY_VIDEO && video   ? "video_grid_thw"
                        : item->modality != RK_MODALITY_IMAGE && image ? "image_grid_thw"
                                                                       : NULL;
    if (wrong)
        return refuse(
            status, "mm_inputs.items[%zu].model_specific_tensors has %s, but the item's modality is %" PRId32,
            at, wrong, item->modality);
    if (item->modality == RK_MODALITY_VIDEO && !video)
        return refuse(status,
                      "mm_inputs.items[%zu].model_specific_tensors has no video_grid_thw; a video needs it",
                      at);
    return RK_OK;
}

static rk_code check_ranges(const rk_ts_item *item, size_t at, size_t prompt, rk_status *status) {
    if (item->range_count == 0)
        return refuse(status,
                      "mm_inputs.items[%zu].placeholders is empty; say where the item is in the prompt", at);
    size_t bound = prompt < INT32_MAX ? prompt : INT32_MAX;
    for (size_t i = 0; i < item->range_count; i++) {
        const rk_placeholder *range = &item->ranges[i];
        if (range->length == 0)
            return refuse(status, "mm_inputs.items[%zu].placeholders[%zu].length is 0; it must be 1 or more",
                          at, i);
        if ((uint64_t)range->offset + range->length > bound)
            return refuse(status,
                          "mm_inputs.items[%zu].placeholders[%zu] is %" PRIu32 " to %" PRIu64
                          "; it must be within the prompt's %zu tokens",
                          at, i, range->offset, (uint64_t)range->offset + range->length - 1, bound);
    }
    return RK_OK;
}

static rk_code check_item(const rk_ts_item *item, size_t at, const rk_ts_media_rules *rules,
                          rk_status *status) {
    bool unsaid = rules->encode && item->modality == 0; /* an image, as gateways have always meant it */
    if (!unsaid && (item->modality < RK_MODALITY_IMAGE || item->modality > RK_MODALITY_VIDEO))
        return refuse(status,
                      "mm_inputs.items[%zu].modality is %" PRId32
                      "; it must be 1 (image), 2 (audio) or 3 (video)",
                      at, item->modality);
    rk_code code = check_ranges(item, at, rules->prompt, status);
    if (code == RK_OK)
        code = check_tensors(item, at, status);
    if (code == RK_OK && !rules->encode)
        code = check_grids(item, at, status);
    if (code != RK_OK || item->has & RK_TS_ITEM_HAS_INPUT)
        return code;
    if (rules->needs_input && !(rules->has_encoder && rules->has_encoder[at]))
        return refuse(status, "mm_inputs.items[%zu] has no encoder_input%s", at,
                      rules->encode ? "; there is nothing to encode"
                                    : " and no encode_bootstrap_info; nobody could see it");
    if (rk_wire_size(item->content_hash) == 0)
        return refuse(
            status,
            "mm_inputs.items[%zu].content_hash is empty, and so is encoder_input; without both the item "
            "would be taken for any other",
            at);
    return RK_OK;
}

/* The engine keeps one placeholder token a request, for images, and one for videos. */
static rk_code check_token_ids(const rk_ts_items *items, rk_status *status) {
    size_t first[RK_MODALITY_VIDEO + 1] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    for (size_t i = 0; i < items->count; i++) {
        const rk_ts_item *item = &items->items[i];
        if (!(item->has & RK_TS_ITEM_HAS_TOKEN_ID) || item->modality == RK_MODALITY_AUDIO)
            continue;
        size_t *other = &first[item->modality];
        if (*other == SIZE_MAX)
            *other = i;
        else if (items->items[*other].token_id != item->token_id)
            return refuse(status,
                          "mm_inputs.items[%zu].placeholder_token_id is %" PRIu32 ", but %" PRIu32
                          " in item %zu; items of one modality share theirs",
                          i, item->token_id, items->items[*other].token_id, *other);
    }
    return RK_OK;
}

rk_code rk_ts_check_items(const rk_ts_items *items, const rk_ts_media_rules *rules, rk_status *status) {
    if (items->count == 0)
        return refuse(status, "mm_inputs.items is empty; send an item, or leave mm_inputs out");
    for (size_t i = 0; i < items->count; i++) {
        rk_code code = check_item(&items->items[i], i, rules, status);
        if (code != RK_OK)
            return code;
    }
    return rules->encode ? RK_OK : check_token_ids(items, status);
}

/* ---- encode workers ---- */

static rk_code check_encoder(const rk_ts_encoder *encoder, size_t at, size_t items, rk_status *status) {
    char label[LABEL_MAX];
    if (encoder->index >= items)
        return refuse(status,
                      "encode_bootstrap_info.items[%zu].item_index is %" PRIu32
                      "; mm_inputs has %zu items, so it must be below",
                      at, encoder->index, items);
    (void)snprintf(label, sizeof label, "encode_bootstrap_info.items[%zu].bootstrap_host", at);
    if (rk_wire_size(encoder->host) == 0)
        return refuse(status, "%s is empty; name the encode worker", label);
    rk_code code = rk_ts_check_host(encoder->host, label, status);
    if (code != RK_OK)
        return code;
    if (encoder->port < 1 || encoder->port > 65535)
        return refuse(status,
                      "encode_bootstrap_info.items[%zu].bootstrap_port is %" PRId32 "; it must be 1 to 65535",
                      at, encoder->port);
    if (encoder->room < 0)
        return refuse(status,
                      "encode_bootstrap_info.items[%zu].bootstrap_room is %" PRId64
                      "; it must be 0 to %" PRId64,
                      at, encoder->room, INT64_MAX);
    return RK_OK;
}

rk_code rk_ts_check_encoders(const rk_ts_encoders *encoders, size_t items, rk_arena *arena, const bool **seen,
                             rk_status *status) {
    *seen = NULL;
    if (encoders->count == 0)
        return RK_OK;
    bool *marks = rk_arena_alloc(arena, items ? items * sizeof *marks : 1);
    if (!marks)
        return rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory; try again later");
    memset(marks, 0, items * sizeof *marks);
    for (size_t i = 0; i < encoders->count; i++) {
        const rk_ts_encoder *encoder = &encoders->items[i];
        rk_code code = check_encoder(encoder, i, items, status);
        if (code != RK_OK)
            return code;
        if (marks[encoder->index])
            return refuse(status,
                          "encode_bootstrap_info.items[%zu].item_index is %" PRIu32
                          " again; one encode worker makes an item",
                          i, encoder->index);
        marks[encoder->index] = true;
    }
    *seen = marks;
    return RK_OK;
}
