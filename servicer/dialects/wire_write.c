/* The writer. What is written here is small and rare, so it is simple: append, and put lengths in afterwards.
 */
#include "dialects/wire_write.h"

#include <string.h>

#include "base/utf8.h"
#include "rk_proto/fields.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };

static void append_varint(rk_buf *out, uint64_t value) {
    uint8_t bytes[10];
    uint8_t *end = rk_put_varint(bytes, value);
    rk_buf_append(out, bytes, (size_t)(end - bytes));
}

static void append_tag(rk_buf *out, uint32_t number, unsigned type) {
    append_varint(out, (uint64_t)number << 3 | type);
}

void rk_write_int_always(rk_buf *out, uint32_t number, int64_t value) {
    append_tag(out, number, VARINT);
    append_varint(out, (uint64_t)value);
}

void rk_write_bool_always(rk_buf *out, uint32_t number, bool value) {
    rk_write_int_always(out, number, value);
}

void rk_write_double_always(rk_buf *out, uint32_t number, double value) {
    uint64_t bits;
    uint8_t bytes[8];
    memcpy(&bits, &value, sizeof bits);
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(bits >> (8 * i));
    append_tag(out, number, FIXED64);
    rk_buf_append(out, bytes, sizeof bytes);
}

void rk_write_bytes_always(rk_buf *out, uint32_t number, const void *bytes, size_t size) {
    append_tag(out, number, BYTES);
    append_varint(out, size);
    rk_buf_append(out, bytes, size);
}

void rk_make_utf8(char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t length = rk_utf8_char(text + at, bytes - at);
        if (length == 0) {
            text[at] = '?';
            length = 1;
        }
        at += length;
    }
}

void rk_write_text_always(rk_buf *out, uint32_t number, const char *text, size_t bytes) {
    rk_write_bytes_always(out, number, text, bytes);
    if (!out->failed && bytes && !rk_utf8_valid(text, bytes))
        rk_make_utf8((char *)out->data + out->size - bytes, bytes);
}

void rk_write_uint(rk_buf *out, uint32_t number, uint64_t value) {
    if (value)
        rk_write_int_always(out, number, (int64_t)value);
}

void rk_write_int(rk_buf *out, uint32_t number, int64_t value) {
    if (value)
        rk_write_int_always(out, number, value);
}

void rk_write_bool(rk_buf *out, uint32_t number, bool value) {
    if (value)
        rk_write_bool_always(out, number, value);
}

/* Minus zero is not the default value: its bits are not zero. */
void rk_write_double(rk_buf *out, uint32_t number, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (bits)
        rk_write_double_always(out, number, value);
}

void rk_write_text(rk_buf *out, uint32_t number, const char *text) {
    if (text && *text)
        rk_write_text_always(out, number, text, strlen(text));
}

void rk_write_packed_ints(rk_buf *out, uint32_t number, const int32_t *values, size_t count) {
    if (count == 0)
        return;
    size_t begun = rk_write_begin(out, number);
    for (size_t i = 0; i < count; i++)
        append_varint(out, (uint64_t)(int64_t)values[i]);
    rk_write_end(out, begun);
}

size_t rk_write_begin(rk_buf *out, uint32_t number) {
    append_tag(out, number, BYTES);
    (void)rk_buf_extend(out, 1); /* for the length, as far as it takes one byte */
    return out->size;
}

void rk_write_end(rk_buf *out, size_t begun) {
    if (out->failed)
        return;
    size_t size = out->size - begun;
    size_t extra = rk_varint_size(size) - 1;
    if (extra && !rk_buf_extend(out, extra))
        return;
    if (extra)
        memmove(out->data + begun + extra, out->data + begun, size);
    (void)rk_put_varint(out->data + begun - 1, size);
}

/* ---- Struct ---- */

static void write_value(rk_buf *out, const rk_value *value) {
    size_t begun;
    switch (value->kind) {
    case RK_VALUE_NULL:
        rk_write_int_always(out, RK_PB_VALUE__NULL_VALUE, 0);
        break;
    case RK_VALUE_BOOL:
        rk_write_bool_always(out, RK_PB_VALUE__BOOL_VALUE, value->boolean);
        break;
    case RK_VALUE_NUMBER:
        rk_write_double_always(out, RK_PB_VALUE__NUMBER_VALUE, value->number);
        break;
    case RK_VALUE_STRING:
        rk_write_text_always(out, RK_PB_VALUE__STRING_VALUE, value->string, value->string_bytes);
        break;
    case RK_VALUE_MAP:
        begun = rk_write_begin(out, RK_PB_VALUE__STRUCT_VALUE);
        rk_write_struct(out, value);
        rk_write_end(out, begun);
        break;
    case RK_VALUE_LIST:
        begun = rk_write_begin(out, RK_PB_VALUE__LIST_VALUE);
        for (size_t i = 0; i < value->count; i++) {
            size_t item = rk_write_begin(out, RK_PB_LIST_VALUE__VALUES);
            write_value(out, value->items[i]);
            rk_write_end(out, item);
        }
        rk_write_end(out, begun);
        break;
    }
}

void rk_write_struct(rk_buf *out, const rk_value *map) {
    if (!map || map->kind != RK_VALUE_MAP)
        return;
    for (size_t i = 0; i < map->count; i++) {
        size_t entry = rk_write_begin(out, RK_PB_STRUCT__FIELDS);
        rk_write_text_always(out, RK_PB_STRUCT_FIELDS_ENTRY__KEY, map->keys[i], strlen(map->keys[i]));
        size_t value = rk_write_begin(out, RK_PB_STRUCT_FIELDS_ENTRY__VALUE);
        write_value(out, map->items[i]);
        rk_write_end(out, value);
        rk_write_end(out, entry);
    }
}
