/* See entry.h. */
#include "kv/entry.h"

#include <stdlib.h>
#include <string.h>

rk_kv_entry *rk_kv_entry_new(const uint8_t *bytes, size_t size) {
    rk_kv_entry *entry = calloc(1, sizeof *entry + size);
    if (!entry)
        return NULL;
    atomic_init(&entry->refs, 1);
    entry->size = size;
    if (size > 0)
        memcpy(entry->bytes, bytes, size);
    return entry;
}

rk_kv_entry *rk_kv_entry_ref(rk_kv_entry *entry) {
    atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
    return entry;
}

void rk_kv_entry_unref(rk_kv_entry *entry) {
    if (entry && atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel) == 1)
        free(entry);
}
