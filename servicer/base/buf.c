/* The growable byte buffer: capacity doubles, a failure sticks. Not synchronised. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64u

void rk_buf_free(rk_buf *buf) {
    free(buf->data);
    *buf = (rk_buf)RK_BUF_INIT;
}

/* Room for `size` bytes past the end; false once it has failed. */
static bool reserve(rk_buf *buf, size_t size) {
    if (buf->failed)
        return false;
    if (size > SIZE_MAX / 2 - buf->size) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->size + size;
    if (buf->data && need <= buf->capacity)
        return true;
    size_t capacity = buf->capacity ? buf->capacity : FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    uint8_t *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

uint8_t *rk_buf_extend(rk_buf *buf, size_t size) {
    if (!reserve(buf, size))
        return NULL;
    uint8_t *at = buf->data + buf->size;
    buf->size += size;
    return at;
}

void rk_buf_append(rk_buf *buf, const void *bytes, size_t size) {
    if (size == 0)
        return;
    uint8_t *at = rk_buf_extend(buf, size);
    if (at)
        memcpy(at, bytes, size);
}

void rk_buf_printf(rk_buf *buf, const char *format, ...) {
    va_list args;
    va_list again;
    if (!reserve(buf, 0))
        return;
    va_start(args, format);
    va_copy(again, args);
    size_t free_bytes = buf->capacity - buf->size;
    int length = vsnprintf((char *)buf->data + buf->size, free_bytes, format, args);
    if (length < 0) {
        buf->failed = true;
    } else if ((size_t)length < free_bytes) {
        buf->size += (size_t)length;
    } else if (reserve(buf, (size_t)length + 1)) { /* + 1: vsnprintf writes a NUL, which is not kept */
        (void)vsnprintf((char *)buf->data + buf->size, (size_t)length + 1, format, again);
        buf->size += (size_t)length;
    }
    va_end(again);
    va_end(args);
}
