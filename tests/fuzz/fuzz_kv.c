/* Any bytes as a publisher's batch: taken or left out without harm; what is written is read by our own
 * reader, and a snapshot claims as many blocks as it says. */
#include <check.h>
#include <stdlib.h>

#include "dialects/wire_read.h"
#include "kv/rank.h"
#include "rk_proto/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The blocks that a batch stores. */
static uint64_t walk(const rk_kv_entry *entry, uint64_t *claimed) {
    rk_wire left = rk_wire_of(entry->bytes, entry->size);
    rk_wire_field field, event, inner;
    uint64_t stored = 0;
    int rc;
    while ((rc = rk_wire_next(&left, &field)) > 0) {
        if (field.number == RK_SMG_KV_EVENT_BATCH__SNAPSHOT)
            while (rk_wire_next(&field.bytes, &inner) > 0)
                if (inner.number == RK_SMG_KV_SNAPSHOT_CHUNK__BLOCKS)
                    *claimed = inner.value;
        if (field.number != RK_SMG_KV_EVENT_BATCH__EVENTS)
            continue;
        while ((rc = rk_wire_next(&field.bytes, &event)) > 0)
            if (event.number == RK_SMG_KV_CACHE_EVENT__STORED)
                while ((rc = rk_wire_next(&event.bytes, &inner)) > 0)
                    stored += inner.number == RK_SMG_KV_BLOCKS_STORED__BLOCKS;
        ck_assert_int_eq(rc, 0);
    }
    ck_assert_int_eq(rc, 0);
    return stored;
}

/* The input is a run of batches: two bytes of length, one that moves the number on, the payload. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const rk_kv_rank_options options = {
        .history_entries = 4, .history_bytes = 4096, .record_bytes = 4096, .chunk_bytes = 256};
    rk_kv_rank *rank = rk_kv_rank_new(&options);
    uint64_t number = 0;
    rk_kv_rank_settle(rank);
    while (size >= 3) {
        size_t bytes = ((size_t)data[0] << 8 | data[1]) % (size - 2);
        number += (uint64_t)(int64_t)(int8_t)data[2];
        (void)rk_kv_rank_take(rank, number, data + 3, bytes, true);
        number++;
        data += 3 + bytes;
        size -= 3 + bytes;
    }
    rk_kv_cursor cursor = {.start = UINT64_MAX};
    rk_kv_entry *entry;
    uint64_t stored = 0;
    uint64_t claimed = 0;
    while (rk_kv_rank_next(rank, &cursor, &entry) > 0) {
        stored += walk(entry, &claimed);
        rk_kv_entry_unref(entry);
    }
    ck_assert_uint_eq(stored, claimed);
    rk_kv_cursor_clear(&cursor);
    rk_kv_rank_free(rank);
    return 0;
}
