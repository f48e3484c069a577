/* See msgpack.h. The format: one byte of type, then a big-endian number, then bytes or items. */
#include "kv/msgpack.h"

#include <errno.h>
#include <string.h>

/* A big-endian number of `size` bytes. */
static int take(rk_mp *left, size_t size, uint64_t *value) {
    if ((size_t)(left->end - left->at) < size)
        return -EBADMSG;
    *value = 0;
    for (size_t i = 0; i < size; i++)
        *value = *value << 8 | left->at[i];
    left->at += size;
    return 0;
}

static int take_bytes(rk_mp *left, size_t size, rk_mp_item *item) {
    if ((size_t)(left->end - left->at) < size)
        return -EBADMSG;
    item->bytes = left->at;
    item->count = size;
    left->at += size;
    return 0;
}

static int sized_bytes(rk_mp *left, rk_mp_kind kind, size_t size_bytes, rk_mp_item *item) {
    uint64_t size;
    item->kind = kind;
    return take(left, size_bytes, &size) < 0 ? -EBADMSG : take_bytes(left, (size_t)size, item);
}

/* One byte of the extension's own type, then its data. */
static int extension(rk_mp *left, size_t size_bytes, size_t size, rk_mp_item *item) {
    uint64_t wide = size;
    item->kind = RK_MP_OTHER;
    if (size_bytes > 0 && take(left, size_bytes, &wide) < 0)
        return -EBADMSG;
    return take_bytes(left, (size_t)wide + 1, item);
}

static int head(rk_mp *left, rk_mp_kind kind, size_t size_bytes, rk_mp_item *item) {
    uint64_t count;
    item->kind = kind;
    if (take(left, size_bytes, &count) < 0)
        return -EBADMSG;
    item->count = (size_t)count;
    return 0;
}

static int unsigned_number(rk_mp *left, size_t size, rk_mp_item *item) {
    item->kind = RK_MP_INT;
    return take(left, size, &item->bits);
}

static int signed_number(rk_mp *left, size_t size, rk_mp_item *item) {
    item->kind = RK_MP_INT;
    if (take(left, size, &item->bits) < 0)
        return -EBADMSG;
    unsigned width = (unsigned)size * 8;
    item->negative = item->bits >> (width - 1) & 1;
    if (item->negative && width < 64)
        item->bits |= UINT64_MAX << width;
    return 0;
}

static int real_number(rk_mp *left, size_t size, rk_mp_item *item) {
    uint64_t bits;
    item->kind = RK_MP_FLOAT;
    if (take(left, size, &bits) < 0)
        return -EBADMSG;
    if (size == 8) {
        memcpy(&item->number, &bits, sizeof item->number);
    } else {
        uint32_t narrow = (uint32_t)bits;
        float number;
        memcpy(&number, &narrow, sizeof number);
        item->number = (double)number;
    }
    return 0;
}

/* Types from 0xc0 to 0xdf. */
static int next_typed(rk_mp *left, uint8_t type, rk_mp_item *item) {
    switch (type) {
    case 0xc0:
        item->kind = RK_MP_NIL;
        return 0;
    case 0xc2:
    case 0xc3:
        item->kind = RK_MP_BOOL;
        item->bits = type & 1u;
        return 0;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return sized_bytes(left, RK_MP_BYTES, (size_t)1 << (type - 0xc4), item);
    case 0xc7:
    case 0xc8:
    case 0xc9:
        return extension(left, (size_t)1 << (type - 0xc7), 0, item);
    case 0xca:
    case 0xcb:
        return real_number(left, (size_t)4 << (type - 0xca), item);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        return unsigned_number(left, (size_t)1 << (type - 0xcc), item);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return signed_number(left, (size_t)1 << (type - 0xd0), item);
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
        return extension(left, 0, (size_t)1 << (type - 0xd4), item);
    case 0xd9:
    case 0xda:
    case 0xdb:
        return sized_bytes(left, RK_MP_TEXT, (size_t)1 << (type - 0xd9), item);
    case 0xdc:
    case 0xdd:
        return head(left, RK_MP_LIST, (size_t)2 << (type - 0xdc), item);
    case 0xde:
    case 0xdf:
        return head(left, RK_MP_MAP, (size_t)2 << (type - 0xde), item);
    default: /* 0xc1 is never used */
        return -EBADMSG;
    }
}

int rk_mp_next(rk_mp *left, rk_mp_item *item) {
    if (left->at == left->end)
        return -EBADMSG;
    uint8_t type = *left->at++;
    *item = (rk_mp_item){.kind = RK_MP_INT};
    if (type < 0x80) {
        item->bits = type;
    } else if (type < 0x90) {
        item->kind = RK_MP_MAP;
        item->count = type & 0x0fu;
    } else if (type < 0xa0) {
        item->kind = RK_MP_LIST;
        item->count = type & 0x0fu;
    } else if (type < 0xc0) {
        item->kind = RK_MP_TEXT;
        return take_bytes(left, type & 0x1fu, item);
    } else if (type >= 0xe0) {
        item->negative = true;
        item->bits = UINT64_MAX << 8 | type;
    } else {
        return next_typed(left, type, item);
    }
    return 0;
}

int rk_mp_skip(rk_mp *left) {
    /* Every item takes a byte at least, so what is claimed beyond the bytes fails soon. */
    for (uint64_t open = 1; open > 0; open--) {
        rk_mp_item item;
        if (rk_mp_next(left, &item) < 0)
            return -EBADMSG;
        uint64_t inside = item.kind == RK_MP_LIST ? item.count : item.kind == RK_MP_MAP ? item.count * 2 : 0;
        if (inside > (uint64_t)(left->end - left->at))
            return -EBADMSG;
        open += inside;
    }
    return 0;
}
