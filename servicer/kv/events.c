/* See events.h. */
#include "kv/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

int rk_kv_batch_read(const uint8_t *bytes, size_t size, rk_kv_batch *batch) {
    rk_mp left = {bytes, bytes + size};
    rk_mp whole = left;
    rk_mp_item list, time, events;
    if (size == 0 || rk_mp_skip(&whole) < 0 || whole.at != whole.end)
        return -EBADMSG;
    if (rk_mp_next(&left, &list) < 0 || list.kind != RK_MP_LIST || list.count < 2)
        return -EBADMSG;
    const rk_mp at_time = left;
    if (rk_mp_next(&left, &time) < 0)
        return -EBADMSG;
    left = at_time;
    if (rk_mp_skip(&left) < 0 || rk_mp_next(&left, &events) < 0 || events.kind != RK_MP_LIST)
        return -EBADMSG;
    *batch = (rk_kv_batch){.count = events.count, .events = left};
    if (time.kind == RK_MP_FLOAT)
        batch->time = time.number;
    else if (time.kind == RK_MP_INT && !time.negative)
        batch->time = (double)time.bits;
    return 0;
}

static bool to_hash(const rk_mp_item *item, uint64_t *hash) {
    if (item->kind == RK_MP_INT) {
        *hash = item->bits;
        return true;
    }
    if (item->kind != RK_MP_BYTES)
        return false;
    *hash = 0;
    for (size_t i = item->count < 8 ? 0 : item->count - 8; i < item->count; i++)
        *hash = *hash << 8 | item->bytes[i];
    return true;
}

/* A list of hashes, at least one. */
static bool read_hashes(rk_mp *left, rk_kv_event *event) {
    rk_mp_item item;
    uint64_t hash;
    if (rk_mp_next(left, &item) < 0 || item.kind != RK_MP_LIST || item.count == 0)
        return false;
    event->count = item.count;
    event->hashes = *left;
    for (size_t i = 0; i < event->count; i++)
        if (rk_mp_next(left, &item) < 0 || !to_hash(&item, &hash))
            return false;
    return true;
}

static bool read_tokens(rk_mp *left, rk_kv_event *event, size_t *count) {
    rk_mp_item item;
    if (rk_mp_next(left, &item) < 0 || item.kind != RK_MP_LIST)
        return false;
    *count = item.count;
    event->tokens = *left;
    for (size_t i = 0; i < *count; i++)
        if (rk_mp_next(left, &item) < 0 || item.kind != RK_MP_INT || item.bits > UINT32_MAX)
            return false;
    return true;
}

static int by_number(const void *left, const void *right) {
    uint64_t a, b;
    memcpy(&a, left, sizeof a);
    memcpy(&b, right, sizeof b);
    return a < b ? -1 : a > b;
}

/* A block that follows itself, or comes twice in one store, would send whoever walks the chain in a circle.
 * Sorted, since a long prompt is thousands of blocks in one store. */
static bool is_chain(const rk_kv_event *event) {
    rk_mp left = event->hashes;
    size_t count = event->count + (event->has_parent ? 1 : 0);
    if (count == 1)
        return true;
    _cleanup_free_ uint64_t *hashes = malloc(count * sizeof *hashes);
    if (!hashes)
        return false;
    for (size_t i = 0; i < event->count; i++)
        hashes[i] = rk_kv_next_hash(&left);
    if (event->has_parent)
        hashes[event->count] = event->parent;
    qsort(hashes, count, sizeof *hashes, by_number);
    for (size_t i = 1; i < count; i++)
        if (hashes[i] == hashes[i - 1])
            return false;
    return true;
}

static rk_kv_kind read_stored(rk_mp *left, size_t fields, rk_kv_event *event) {
    rk_mp_item parent, width;
    size_t tokens;
    if (fields < 4 || !read_hashes(left, event) || rk_mp_next(left, &parent) < 0)
        return RK_KV_UNUSABLE;
    event->has_parent = parent.kind != RK_MP_NIL;
    if (event->has_parent && !to_hash(&parent, &event->parent))
        return RK_KV_UNUSABLE;
    if (!read_tokens(left, event, &tokens) || rk_mp_next(left, &width) < 0)
        return RK_KV_UNUSABLE;
    if (width.kind != RK_MP_INT || width.bits == 0 || width.bits > INT32_MAX)
        return RK_KV_UNUSABLE;
    event->block_tokens = (uint32_t)width.bits;
    bool fits = tokens % event->block_tokens == 0 && tokens / event->block_tokens == event->count;
    if (!fits) /* an engine tells of the block that a prompt ends in, too */
        return RK_KV_PARTIAL;
    return is_chain(event) ? RK_KV_STORED : RK_KV_UNUSABLE;
}

static bool is_kind(const rk_mp_item *item, const char *kind) {
    return item->count == strlen(kind) && memcmp(item->bytes, kind, item->count) == 0;
}

static void read_event(rk_mp left, rk_kv_event *event) {
    rk_mp_item list, kind;
    event->kind = RK_KV_UNUSABLE;
    if (rk_mp_next(&left, &list) < 0 || list.kind != RK_MP_LIST || list.count == 0 ||
        rk_mp_next(&left, &kind) < 0 || kind.kind != RK_MP_TEXT)
        return;
    size_t fields = list.count - 1;
    if (is_kind(&kind, "BlockStored"))
        event->kind = read_stored(&left, fields, event);
    else if (is_kind(&kind, "BlockRemoved"))
        event->kind = fields > 0 && read_hashes(&left, event) ? RK_KV_REMOVED : RK_KV_UNUSABLE;
    else
        event->kind = is_kind(&kind, "AllBlocksCleared") ? RK_KV_CLEARED : RK_KV_UNKNOWN;
}

bool rk_kv_batch_next(rk_kv_batch *batch, rk_kv_event *event) {
    if (batch->count == 0)
        return false;
    batch->count--;
    *event = (rk_kv_event){.kind = RK_KV_UNUSABLE};
    read_event(batch->events, event);
    (void)rk_mp_skip(&batch->events);
    return true;
}

uint64_t rk_kv_next_hash(rk_mp *hashes) {
    rk_mp_item item = {.kind = RK_MP_NIL};
    uint64_t hash = 0;
    if (rk_mp_next(hashes, &item) == 0)
        (void)to_hash(&item, &hash);
    return hash;
}

uint32_t rk_kv_next_token(rk_mp *tokens) {
    rk_mp_item item = {.kind = RK_MP_NIL};
    return rk_mp_next(tokens, &item) == 0 ? (uint32_t)item.bits : 0;
}
