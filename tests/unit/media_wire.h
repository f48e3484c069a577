/* Multimodal inputs put together byte by byte, for the tests of their decoding. */
#ifndef RK_TEST_MEDIA_WIRE_H
#define RK_TEST_MEDIA_WIRE_H

#include "dialect_wire.h"
#include "rk_proto/fields.h"

#define G(FIELD) RK_TS_GENERATE_REQUEST__##FIELD
#define I(FIELD) RK_TS_MULTIMODAL_ITEM__##FIELD
#define T(FIELD) RK_TS_TENSOR_DATA__##FIELD

/* What a tensor is put together from; 0 and NULL are left out. */
typedef struct tensor_parts {
    const char *dtype;
    const uint8_t *shape; /* dims of them, packed as they are: below 128 */
    size_t dims;
    const char *bytes; /* inline: `size` of them */
    size_t size;
    const char *segment;
    uint64_t offset;
    uint64_t nbytes; /* of the segment, or of what is remote */
    const char *transport;
    const char *descriptor; /* remote */
} tensor_parts;

static inline rk_buf tensor_of(tensor_parts parts) {
    rk_buf buf = RK_BUF_INIT, handle = RK_BUF_INIT;
    if (parts.dims)
        raw_bytes(&buf, T(SHAPE), parts.shape, parts.dims);
    if (parts.dtype)
        raw_text(&buf, T(DTYPE), parts.dtype);
    if (parts.bytes)
        raw_bytes(&buf, T(INLINE), parts.bytes, parts.size);
    if (parts.segment) {
        raw_text(&handle, RK_SMG_SHM_HANDLE__NAME, parts.segment);
        raw_uint(&handle, RK_SMG_SHM_HANDLE__OFFSET, parts.offset);
        raw_uint(&handle, RK_SMG_SHM_HANDLE__NBYTES, parts.nbytes);
        raw_message(&buf, T(SHM), handle);
    } else if (parts.descriptor) {
        raw_text(&handle, RK_SMG_REMOTE_TENSOR_HANDLE__TRANSPORT, parts.transport ? parts.transport : "");
        raw_text(&handle, RK_SMG_REMOTE_TENSOR_HANDLE__DESCRIPTOR, parts.descriptor);
        raw_uint(&handle, RK_SMG_REMOTE_TENSOR_HANDLE__NBYTES, parts.nbytes);
        raw_message(&buf, T(REMOTE), handle);
    }
    return buf;
}

#define TWO_BY_TWO .shape = (const uint8_t *)"\2\2", .dims = 2
#define FOUR_BYTES .dtype = "uint8", TWO_BY_TWO, .bytes = "\1\2\3\4", .size = 4

static inline void add_tensor(rk_buf *item, const char *name, tensor_parts parts) {
    rk_buf entry = RK_BUF_INIT;
    raw_text(&entry, RK_TS_MULTIMODAL_ITEM_MODEL_SPECIFIC_TENSORS_ENTRY__KEY, name);
    raw_message(&entry, RK_TS_MULTIMODAL_ITEM_MODEL_SPECIFIC_TENSORS_ENTRY__VALUE, tensor_of(parts));
    raw_message(item, I(MODEL_SPECIFIC_TENSORS), entry);
}

static inline void add_range(rk_buf *item, uint64_t offset, uint64_t length) {
    rk_buf range = RK_BUF_INIT;
    raw_uint(&range, RK_TS_PLACEHOLDER_RANGE__OFFSET, offset);
    raw_uint(&range, RK_TS_PLACEHOLDER_RANGE__LENGTH, length);
    raw_message(item, I(PLACEHOLDERS), range);
}

/* An image at positions 1 and 2. */
static inline rk_buf image(tensor_parts input) {
    rk_buf item = RK_BUF_INIT;
    raw_uint(&item, I(MODALITY), RK_MODALITY_IMAGE);
    raw_text(&item, I(CONTENT_HASH), "12345678abc");
    add_range(&item, 1, 2);
    if (input.dtype)
        raw_message(&item, I(ENCODER_INPUT), tensor_of(input));
    return item;
}

/* A GenerateRequest without inputs yet, its prompt of four tokens. */
static inline rk_buf four_tokens(void) {
    rk_buf buf = RK_BUF_INIT, tokenized = RK_BUF_INIT;
    raw_text(&buf, G(REQUEST_ID), "r");
    raw_bytes(&tokenized, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\2\3\4", 4);
    raw_message(&buf, G(TOKENIZED), tokenized);
    return buf;
}

/* MultimodalInputs may come in pieces: one item each. Frees `item`. */
static inline void add_item(rk_buf *buf, rk_buf item) {
    rk_buf inputs = RK_BUF_INIT;
    raw_message(&inputs, RK_TS_MULTIMODAL_INPUTS__ITEMS, item);
    raw_message(buf, G(MM_INPUTS), inputs);
}

static inline void add_encoder(rk_buf *buf, uint64_t index, const char *host, uint64_t port, uint64_t room) {
    rk_buf encoder = RK_BUF_INIT, info = RK_BUF_INIT;
    raw_uint(&encoder, RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__ITEM_INDEX, index);
    raw_text(&encoder, RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_HOST, host);
    raw_uint(&encoder, RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_PORT, port);
    raw_uint(&encoder, RK_TS_ENCODE_ITEM_BOOTSTRAP_INFO__BOOTSTRAP_ROOM, room);
    raw_message(&info, RK_TS_ENCODE_BOOTSTRAP_INFO__ITEMS, encoder);
    raw_message(buf, G(ENCODE_BOOTSTRAP_INFO), info);
}

/* The request with that one item. */
static inline rk_buf with_item(rk_buf item) {
    rk_buf buf = four_tokens();
    add_item(&buf, item);
    return buf;
}

#endif
