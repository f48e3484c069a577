/* Helpers of the dialect tests: messages put together byte by byte, so that they can be as wrong as needed,
 * and the calls under test with what they left behind checked. */
#ifndef RK_TEST_DIALECT_WIRE_H
#define RK_TEST_DIALECT_WIRE_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "dialects/dialect.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, GROUP = 3, END_GROUP = 4, FIXED32 = 5 };

static inline void raw_varint(rk_buf *buf, uint64_t value) {
    while (value >= 0x80) {
        rk_buf_append(buf, &(uint8_t){(uint8_t)(value | 0x80)}, 1);
        value >>= 7;
    }
    rk_buf_append(buf, &(uint8_t){(uint8_t)value}, 1);
}

static inline void raw_tag(rk_buf *buf, uint32_t number, unsigned type) {
    raw_varint(buf, (uint64_t)number << 3 | type);
}

static inline void raw_uint(rk_buf *buf, uint32_t number, uint64_t value) {
    raw_tag(buf, number, VARINT);
    raw_varint(buf, value);
}

static inline void raw_float(rk_buf *buf, uint32_t number, float value) {
    raw_tag(buf, number, FIXED32);
    rk_buf_append(buf, &value, sizeof value);
}

static inline void raw_double(rk_buf *buf, uint32_t number, double value) {
    raw_tag(buf, number, FIXED64);
    rk_buf_append(buf, &value, sizeof value);
}

static inline void raw_bytes(rk_buf *buf, uint32_t number, const void *bytes, size_t size) {
    raw_tag(buf, number, BYTES);
    raw_varint(buf, size);
    rk_buf_append(buf, bytes, size);
}

static inline void raw_text(rk_buf *buf, uint32_t number, const char *text) {
    raw_bytes(buf, number, text, strlen(text));
}

/* Puts `part` into `buf` as a message, and frees it. */
static inline void raw_message(rk_buf *buf, uint32_t number, rk_buf part) {
    raw_bytes(buf, number, part.data, part.size);
    rk_buf_free(&part);
}

/* A field of that number and wire type, well-formed, with some value. */
static inline void raw_field(rk_buf *buf, uint32_t number, unsigned type) {
    raw_tag(buf, number, type);
    switch (type) {
    case VARINT:
        raw_varint(buf, 1);
        break;
    case FIXED64:
        rk_buf_append(buf, "\1\0\0\0\0\0\0\0", 8);
        break;
    case BYTES:
        raw_varint(buf, 0);
        break;
    case GROUP:
        raw_tag(buf, number, END_GROUP);
        break;
    default:
        rk_buf_append(buf, "\0\0\0\0", 4);
        break;
    }
}

/* A generator of numbers that is the same everywhere (xorshift64*). */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
    return next_random(state) % bound;
}

/* One line, printable, not empty: what every refusal must be. */
static inline void check_line(const rk_status *status) {
    size_t length = strlen(status->text);
    ck_assert_uint_gt(length, 0);
    ck_assert(rk_utf8_valid(status->text, length));
    ck_assert_ptr_null(strpbrk(status->text, "\r\n\t"));
}

static inline rk_limits plain_limits(void) {
    return (rk_limits){.role = RK_ROLE_NULL,
                       .rooms = true,
                       .vocab_size = 512,
                       .max_context = 100,
                       .ranks = 2,
                       .window = 8,
                       .max_message_bytes = 1 << 20};
}

/* Decodes a copy that ends where its memory ends, so that a sanitizer sees a step too far. */
static inline rk_code decode_generate(const rk_buf *buf, const rk_limits *limits, rk_request **out,
                                      rk_status *status) {
    uint8_t *copy = malloc(buf->size ? buf->size : 1);
    if (buf->size)
        memcpy(copy, buf->data, buf->size);
    memset(status, 0x55, sizeof *status);
    rk_code code = rk_dialect_tokenspeed.decode_generate(copy, buf->size, limits, NULL, out, status);
    memset(copy, 0xAA, buf->size); /* nothing of the request may still point here */
    free(copy);
    ck_assert_int_eq(status->code, code);
    if (code == RK_OK) {
        ck_assert_ptr_nonnull(*out);
        ck_assert_str_eq(status->text, "");
    } else {
        ck_assert_ptr_null(*out);
        check_line(status);
    }
    return code;
}

/* Frees `buf`. */
static inline rk_request *accepts(rk_buf buf, const rk_limits *limits) {
    rk_request *request;
    rk_status status;
    rk_code code = decode_generate(&buf, limits, &request, &status);
    ck_assert_msg(code == RK_OK, "refused: %s", status.text);
    rk_buf_free(&buf);
    return request;
}

static inline void refuses(rk_buf buf, const rk_limits *limits, rk_code code, const char *text) {
    rk_request *request;
    rk_status status;
    rk_code got = decode_generate(&buf, limits, &request, &status);
    rk_buf_free(&buf);
    ck_assert_str_eq(status.text, text);
    ck_assert_int_eq(got, code);
}

#endif
