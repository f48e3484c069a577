/* Reading msgpack, an item at a time, never past the end.
 *
 * An item is a scalar with its value, or the head of a list or map whose items follow. Nothing is copied and
 * nothing recurses, so hostile nesting costs a counter. Any thread; nothing is kept. */
#ifndef RK_KV_MSGPACK_H
#define RK_KV_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rk_mp_kind {
    RK_MP_NIL,
    RK_MP_BOOL,
    RK_MP_INT,   /* `bits`, as two's complement; `negative` says how to read them */
    RK_MP_FLOAT, /* `number` */
    RK_MP_TEXT,  /* `bytes`, `count` of them */
    RK_MP_BYTES, /* likewise */
    RK_MP_LIST,  /* `count` items follow */
    RK_MP_MAP,   /* `count` keys with a value each follow */
    RK_MP_OTHER, /* an extension type, stepped over */
} rk_mp_kind;

/* What is left to read. Not owned. */
typedef struct rk_mp {
    const uint8_t *at;
    const uint8_t *end;
} rk_mp;

typedef struct rk_mp_item {
    rk_mp_kind kind;
    bool negative;
    uint64_t bits; /* INT; BOOL as 0 or 1 */
    double number;
    const uint8_t *bytes;
    size_t count;
} rk_mp_item;

/* The next item; 0 or -EBADMSG: it is cut off, or there is none. */
int rk_mp_next(rk_mp *left, rk_mp_item *item);
/* Steps over the next item with all that is in it; 0 or -EBADMSG. */
int rk_mp_skip(rk_mp *left);

#endif
