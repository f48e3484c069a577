/* Writing protobuf's wire format into an rk_buf: the bytes that any proto3 runtime would write.
 *
 * A message inside a message is written between rk_write_begin and rk_write_end, which puts its length in
 * front of it. That moves the inner bytes when the length takes more than one byte, so what is sent for each
 * token does not use it: tokenspeed/outputs.c works out its sizes first.
 *
 * Any thread; nothing is kept. Check out->failed once at the end. */
#ifndef RK_DIALECTS_WIRE_WRITE_H
#define RK_DIALECTS_WIRE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "roomkeeper/value.h"

/* Bytes that a varint takes: one for each seven bits begun. */
static inline size_t rk_varint_size(uint64_t value) {
    unsigned bits = 64u - (unsigned)__builtin_clzll(value | 1u);
    return (bits * 9u + 64u) / 64u;
}

static inline uint8_t *rk_put_varint(uint8_t *at, uint64_t value) {
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80u);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

/* As proto3 has it: a zero, false or empty value is left out. NULL is the empty text. */
void rk_write_uint(rk_buf *out, uint32_t number, uint64_t value);
void rk_write_int(rk_buf *out, uint32_t number, int64_t value); /* int32, int64 and enums */
void rk_write_bool(rk_buf *out, uint32_t number, bool value);
void rk_write_double(rk_buf *out, uint32_t number, double value);
void rk_write_text(rk_buf *out, uint32_t number, const char *text);
void rk_write_packed_ints(rk_buf *out, uint32_t number, const int32_t *values, size_t count);

/* For fields with presence, and for items of a list: written whatever the value. */
void rk_write_int_always(rk_buf *out, uint32_t number, int64_t value);
void rk_write_bool_always(rk_buf *out, uint32_t number, bool value);
void rk_write_double_always(rk_buf *out, uint32_t number, double value);
void rk_write_bytes_always(rk_buf *out, uint32_t number, const void *bytes, size_t size);
/* Bytes that are not UTF-8 are written as '?': a client could not read the message otherwise. */
void rk_write_text_always(rk_buf *out, uint32_t number, const char *text, size_t bytes);

size_t rk_write_begin(rk_buf *out, uint32_t number); /* what rk_write_end wants back */
void rk_write_end(rk_buf *out, size_t begun);

/* As a google.protobuf.Struct: its fields, without tag and length. A value that is no map is an empty one. */
void rk_write_struct(rk_buf *out, const rk_value *map);

/* Each byte that is not UTF-8 becomes '?'; the length stays. */
void rk_make_utf8(char *text, size_t bytes);

#endif
