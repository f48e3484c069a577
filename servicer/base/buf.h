/* A growable byte buffer. After a failed append `failed` stays set and later appends do nothing, so
 * that a run of appends is checked once at its end. Not synchronised. */
#ifndef RK_BASE_BUF_H
#define RK_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roomkeeper/export.h"

typedef struct rk_buf {
    uint8_t *data; /* malloc'd, `size` bytes used of `capacity`; NULL while empty */
    size_t size;
    size_t capacity;
    bool failed; /* an append ran out of memory; the content is incomplete */
} rk_buf;

#define RK_BUF_INIT                                                                                          \
    { NULL, 0, 0, false }

void rk_buf_free(rk_buf *buf); /* back to RK_BUF_INIT */
void rk_buf_append(rk_buf *buf, const void *bytes, size_t size);
void rk_buf_printf(rk_buf *buf, const char *format, ...) RK_PRINTF(2, 3);
/* Makes room for `size` more bytes and returns where they go (size grows by it); NULL when it failed. */
uint8_t *rk_buf_extend(rk_buf *buf, size_t size);

#endif
