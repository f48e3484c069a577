/* An encoded KvEventBatch, shared by all who are to be sent it. Any thread: only the count ever changes. */
#ifndef RK_KV_ENTRY_H
#define RK_KV_ENTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rk_kv_entry {
    _Atomic uint32_t refs;
    bool resync;       /* it begins anew: nothing from before it is needed, or counts */
    uint64_t sequence; /* the publisher's number */
    uint64_t print;    /* of the payload that it was made from: tells a repeat from another life */
    size_t size;
    uint8_t bytes[];
} rk_kv_entry;

rk_kv_entry *rk_kv_entry_new(const uint8_t *bytes, size_t size); /* one reference; NULL: out of memory */
rk_kv_entry *rk_kv_entry_ref(rk_kv_entry *entry);
void rk_kv_entry_unref(rk_kv_entry *entry); /* NULL is fine */

#endif
