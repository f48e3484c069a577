/* MultimodalInputs and EncodeBootstrapInfo: bytes → drafts. Nothing is copied but shapes and lists. Any
 * thread. */
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/tokenspeed/media.h"
#include "rk_proto/fields.h"

#define MM "mm_inputs.items"
#define TENSOR MM " tensor"

static rk_wire nothing(void) {
    static const uint8_t none[1] = {0};
    return rk_wire_of(none, 0);
}

/* ---- TensorData ---- */

#define AT(field) offsetof(rk_ts_tensor, field)

static const rk_row shm_rows[] = {
    [RK_SMG_SHM_HANDLE__NAME] = {.kind = RK_ROW_TEXT, .path = TENSOR ".shm.name", .offset = AT(name)},
    [RK_SMG_SHM_HANDLE__OFFSET] = {.kind = RK_ROW_UINT64, .path = TENSOR ".shm.offset", .offset = AT(offset)},
    [RK_SMG_SHM_HANDLE__NBYTES] = {.kind = RK_ROW_UINT64, .path = TENSOR ".shm.nbytes", .offset = AT(nbytes)},
    [RK_SMG_SHM_HANDLE__OWNER_ID] = {.kind = RK_ROW_TEXT,
                                     .path = TENSOR ".shm.owner_id",
                                     .offset = AT(owner_id)},
};
static const rk_schema shm_schema = {TENSOR ".shm", shm_rows, RK_COUNT(shm_rows), 0};

static const rk_row remote_rows[] = {
    [RK_SMG_REMOTE_TENSOR_HANDLE__TRANSPORT] = {.kind = RK_ROW_TEXT,
                                                .path = TENSOR ".remote.transport",
                                                .offset = AT(transport)},
    [RK_SMG_REMOTE_TENSOR_HANDLE__DESCRIPTOR] = {.kind = RK_ROW_BYTES,
                                                 .path = TENSOR ".remote.descriptor",
                                                 .offset = AT(descriptor)},
    [RK_SMG_REMOTE_TENSOR_HANDLE__NBYTES] = {.kind = RK_ROW_UINT64,
                                             .path = TENSOR ".remote.nbytes",
                                             .offset = AT(nbytes)},
};
static const rk_schema remote_schema = {TENSOR ".remote", remote_rows, RK_COUNT(remote_rows), 0};

static void clear_payload(rk_ts_tensor *tensor) {
    tensor->bytes = nothing();
    tensor->name = nothing();
    tensor->owner_id = nothing();
    tensor->transport = nothing();
    tensor->descriptor = nothing();
    tensor->offset = 0;
    tensor->nbytes = 0;
}

static void clear_tensor(rk_ts_tensor *tensor) {
    *tensor = (rk_ts_tensor){.dtype = nothing()};
    clear_payload(tensor);
}

/* A oneof: the last one sent counts; the same message again merges. */
static rk_code read_payload(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_tensor *tensor = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (tensor->payload != field->number)
        clear_payload(tensor);
    tensor->payload = field->number;
    if (row->schema)
        return rk_read_message(reader, field->bytes, row->schema, tensor);
    tensor->bytes = field->bytes;
    return RK_OK;
}

static const rk_row tensor_rows[] = {
    [RK_TS_TENSOR_DATA__SHAPE] = {.kind = RK_ROW_IDS, .path = TENSOR ".shape", .offset = AT(shape)},
    [RK_TS_TENSOR_DATA__DTYPE] = {.kind = RK_ROW_TEXT, .path = TENSOR ".dtype", .offset = AT(dtype)},
    [RK_TS_TENSOR_DATA__INLINE] = {.kind = RK_ROW_CUSTOM, .path = TENSOR ".inline", .read = read_payload},
    [RK_TS_TENSOR_DATA__SHM] = {.kind = RK_ROW_CUSTOM,
                                .path = TENSOR ".shm",
                                .schema = &shm_schema,
                                .read = read_payload},
    [RK_TS_TENSOR_DATA__REMOTE] = {.kind = RK_ROW_CUSTOM,
                                   .path = TENSOR ".remote",
                                   .schema = &remote_schema,
                                   .read = read_payload},
};
static const rk_schema tensor_schema = {TENSOR, tensor_rows, RK_COUNT(tensor_rows), 0};

#undef AT

static rk_code read_tensor(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    rk_ts_tensor *tensor = (rk_ts_tensor *)(void *)((char *)target + row->offset);
    return code == RK_OK ? rk_read_message(reader, field->bytes, &tensor_schema, tensor) : code;
}

/* ---- MultimodalItem ---- */

static const rk_row named_rows[] = {
    [RK_TS_MULTIMODAL_ITEM_MODEL_SPECIFIC_TENSORS_ENTRY__KEY] = {.kind = RK_ROW_TEXT,
                                                                 .path = MM ".model_specific_tensors key",
                                                                 .offset = offsetof(rk_ts_named, name)},
    [RK_TS_MULTIMODAL_ITEM_MODEL_SPECIFIC_TENSORS_ENTRY__VALUE] = {.kind = RK_ROW_CUSTOM,
                                                                   .path = MM ".model_specific_tensors value",
                                                                   .offset = offsetof(rk_ts_named, tensor),
                                                                   .read = read_tensor},
};
static const rk_schema named_schema = {MM ".model_specific_tensors", named_rows, RK_COUNT(named_rows), 0};

static rk_code too_many(rk_reader *reader, const char *path, int limit) {
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT, "%s has more than %d entries; send fewer", path,
                         limit);
}

static rk_code read_named(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_item *item = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (item->tensor_count == RK_TS_TENSORS_MAX)
        return too_many(reader, row->path, RK_TS_TENSORS_MAX);
    rk_ts_named *tensors =
        rk_grow(reader->arena, item->tensors, item->tensor_count, &item->tensor_capacity, 1, sizeof *tensors);
    if (!tensors)
        return rk_no_memory(reader);
    item->tensors = tensors;
    rk_ts_named *named = &tensors[item->tensor_count++];
    named->name = nothing();
    clear_tensor(&named->tensor);
    return rk_read_message(reader, field->bytes, &named_schema, named);
}

static const rk_row range_rows[] = {
    [RK_TS_PLACEHOLDER_RANGE__OFFSET] = {.kind = RK_ROW_UINT32,
                                         .path = MM ".placeholders.offset",
                                         .offset = offsetof(rk_placeholder, offset)},
    [RK_TS_PLACEHOLDER_RANGE__LENGTH] = {.kind = RK_ROW_UINT32,
                                         .path = MM ".placeholders.length",
                                         .offset = offsetof(rk_placeholder, length)},
};
static const rk_schema range_schema = {MM ".placeholders", range_rows, RK_COUNT(range_rows), 0};

static rk_code read_range(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_item *item = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    rk_placeholder *ranges =
        rk_grow(reader->arena, item->ranges, item->range_count, &item->range_capacity, 1, sizeof *ranges);
    if (!ranges)
        return rk_no_memory(reader);
    item->ranges = ranges;
    rk_placeholder *range = &ranges[item->range_count++];
    *range = (rk_placeholder){0};
    return rk_read_message(reader, field->bytes, &range_schema, range);
}

#define AT(field) offsetof(rk_ts_item, field)

static const rk_row item_rows[] = {
    [RK_TS_MULTIMODAL_ITEM__MODALITY] = {.kind = RK_ROW_INT32,
                                         .path = MM ".modality",
                                         .offset = AT(modality)},
    [RK_TS_MULTIMODAL_ITEM__CONTENT_HASH] = {.kind = RK_ROW_BYTES,
                                             .path = MM ".content_hash",
                                             .offset = AT(content_hash)},
    [RK_TS_MULTIMODAL_ITEM__ENCODER_INPUT] = {.kind = RK_ROW_CUSTOM,
                                              .has = RK_TS_ITEM_HAS_INPUT,
                                              .path = MM ".encoder_input",
                                              .offset = AT(input),
                                              .read = read_tensor},
    [RK_TS_MULTIMODAL_ITEM__MODEL_SPECIFIC_TENSORS] = {.kind = RK_ROW_CUSTOM,
                                                       .path = MM ".model_specific_tensors",
                                                       .read = read_named},
    [RK_TS_MULTIMODAL_ITEM__PLACEHOLDERS] = {.kind = RK_ROW_CUSTOM,
                                             .path = MM ".placeholders",
                                             .read = read_range},
    [RK_TS_MULTIMODAL_ITEM__PLACEHOLDER_TOKEN_ID] = {.kind = RK_ROW_UINT32,
                                                     .has = RK_TS_ITEM_HAS_TOKEN_ID,
                                                     .path = MM ".placeholder_token_id",
                                                     .offset = AT(token_id)},
};
static const rk_schema item_schema = {MM, item_rows, RK_COUNT(item_rows), AT(has)};

#undef AT

/* ---- MultimodalInputs ---- */

static rk_code read_item(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_items *items = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (items->count == RK_TS_ITEMS_MAX)
        return too_many(reader, row->path, RK_TS_ITEMS_MAX);
    rk_ts_item *grown =
        rk_grow(reader->arena, items->items, items->count, &items->capacity, 1, sizeof *grown);
    if (!grown)
        return rk_no_memory(reader);
    items->items = grown;
    rk_ts_item *item = &grown[items->count++];
    *item = (rk_ts_item){.content_hash = nothing()};
    clear_tensor(&item->input);
    return rk_read_message(reader, field->bytes, &item_schema, item);
}

static const rk_row items_rows[] = {
    [RK_TS_MULTIMODAL_INPUTS__ITEMS] = {.kind = RK_ROW_CUSTOM, .path = MM, .read = read_item},
};
static const rk_schema items_schema = {"mm_inputs", items_rows, RK_COUNT(items_rows), 0};

rk_code rk_ts_read_items(rk_reader *reader, rk_wire message, rk_ts_items *items) {
    return rk_read_message(reader, message, &items_schema, items);
}

/* ---- EncodeBootstrapInfo ---- */

#define EB "encode_bootstrap_info.items"
#define AT(field) offsetof(rk_ts_encoder, field)

static const rk_row encoder_rows[] = {
    [RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__ITEM_INDEX] = {.kind = RK_ROW_UINT32,
                                                      .path = EB ".item_index",
                                                      .offset = AT(index)},
    [RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_HOST] = {.kind = RK_ROW_TEXT,
                                                          .path = EB ".bootstrap_host",
                                                          .offset = AT(host)},
    [RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_PORT] = {.kind = RK_ROW_INT32,
                                                          .path = EB ".bootstrap_port",
                                                          .offset = AT(port)},
    [RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_ROOM] = {.kind = RK_ROW_INT64,
                                                          .path = EB ".bootstrap_room",
                                                          .offset = AT(room)},
};
static const rk_schema encoder_schema = {EB, encoder_rows, RK_COUNT(encoder_rows), 0};

#undef AT

static rk_code read_encoder(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_ts_encoders *encoders = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (encoders->count == RK_TS_ITEMS_MAX)
        return too_many(reader, row->path, RK_TS_ITEMS_MAX);
    rk_ts_encoder *grown =
        rk_grow(reader->arena, encoders->items, encoders->count, &encoders->capacity, 1, sizeof *grown);
    if (!grown)
        return rk_no_memory(reader);
    encoders->items = grown;
    rk_ts_encoder *encoder = &grown[encoders->count++];
    *encoder = (rk_ts_encoder){.host = nothing()};
    return rk_read_message(reader, field->bytes, &encoder_schema, encoder);
}

static const rk_row encoders_rows[] = {
    [RK_TS_ENCODE_BOOTSTRAP_INFO__ITEMS] = {.kind = RK_ROW_CUSTOM, .path = EB, .read = read_encoder},
};
static const rk_schema encoders_schema = {"encode_bootstrap_info", encoders_rows, RK_COUNT(encoders_rows), 0};

rk_code rk_ts_read_encoders(rk_reader *reader, rk_wire message, rk_ts_encoders *encoders) {
    return rk_read_message(reader, message, &encoders_schema, encoders);
}
