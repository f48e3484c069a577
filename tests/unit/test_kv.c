/* KV events, from the publisher's bytes to a KvEventBatch's: numbers, gaps, snapshots, hostile bytes. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/wire_read.h"
#include "kv/events.h"
#include "kv/rank.h"
#include "rk_proto/fields.h"

/* [1.0, [["BlockStored", [hash], parent or nil, [1, 2], 2]], 0] */
static size_t store(uint8_t out[64], uint8_t hash, uint8_t parent) {
    static const uint8_t head[] = {0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x91, 0x95, 0xab};
    size_t size = sizeof head;
    memcpy(out, head, size);
    memcpy(out + size, "BlockStored", 11);
    size += 11;
    const uint8_t tail[] = {0x91, hash, parent ? parent : 0xc0, 0x92, 1, 2, 2, 0};
    memcpy(out + size, tail, sizeof tail);
    return size + sizeof tail;
}

static size_t removal(uint8_t out[64], uint8_t hash) {
    memcpy(out,
           "\x93\x01\x91\x92\xac"
           "BlockRemoved\x91",
           18);
    out[18] = hash;
    out[19] = 0;
    return 20;
}

static rk_kv_rank *new_rank(size_t entries, size_t chunk_bytes) {
    const rk_kv_rank_options options = {.rank = 3,
                                        .history_entries = entries,
                                        .history_bytes = 1 << 20,
                                        .record_bytes = 1 << 20,
                                        .chunk_bytes = chunk_bytes};
    rk_kv_rank *rank = rk_kv_rank_new(&options);
    ck_assert_ptr_nonnull(rank);
    rk_kv_rank_settle(rank);
    return rank;
}

static rk_kv_taken take(rk_kv_rank *rank, uint64_t number, uint8_t hash, uint8_t parent, bool force) {
    uint8_t bytes[64];
    return rk_kv_rank_take(rank, number, bytes, store(bytes, hash, parent), force);
}

typedef struct seen {
    uint64_t number;
    bool snapshot;
    uint64_t index, count, blocks, unknown_before;
    unsigned cleared;
    uint64_t hashes[64];
    unsigned stored;
} seen;

static void see_event(rk_wire event, seen *s) {
    rk_wire_field field, inner, block;
    while (rk_wire_next(&event, &field) > 0) {
        s->cleared += field.number == RK_SMG_KV_CACHE_EVENT__CLEARED;
        if (field.number != RK_SMG_KV_CACHE_EVENT__STORED)
            continue;
        while (rk_wire_next(&field.bytes, &inner) > 0) {
            if (inner.number != RK_SMG_KV_BLOCKS_STORED__BLOCKS)
                continue;
            while (rk_wire_next(&inner.bytes, &block) > 0)
                if (block.number == RK_SMG_KV_BLOCK__BLOCK_HASH)
                    s->hashes[s->stored++] = block.value;
        }
    }
}

static seen see(rk_kv_entry *entry) {
    seen s = {0};
    rk_wire_field field, inner;
    rk_wire left = rk_wire_of(entry->bytes, entry->size);
    while (rk_wire_next(&left, &field) > 0) {
        if (field.number == RK_SMG_KV_EVENT_BATCH__SEQUENCE_NUMBER)
            s.number = field.value;
        else if (field.number == RK_SMG_KV_EVENT_BATCH__EVENTS)
            see_event(field.bytes, &s);
        else if (field.number == RK_SMG_KV_EVENT_BATCH__SNAPSHOT) {
            s.snapshot = true;
            uint64_t *values[] = {NULL, &s.index, &s.count, &s.blocks, &s.unknown_before};
            while (rk_wire_next(&field.bytes, &inner) > 0)
                *values[inner.number] = inner.value;
        }
    }
    rk_kv_entry_unref(entry);
    return s;
}

static seen next(rk_kv_rank *rank, rk_kv_cursor *cursor) {
    rk_kv_entry *entry;
    ck_assert_int_eq(rk_kv_rank_next(rank, cursor, &entry), 1);
    return see(entry);
}

START_TEST(batches_come_from_the_number_asked_for) {
    rk_kv_rank *rank = new_rank(100, 1000);
    rk_kv_entry *entry;
    for (uint8_t i = 0; i < 20; i++)
        ck_assert_int_eq(take(rank, i, i + 1, i, false), RK_KV_TAKEN);
    rk_kv_cursor cursor = {.start = 5};
    for (uint64_t i = 5; i < 20; i++) {
        seen s = next(rank, &cursor);
        ck_assert_uint_eq(s.number, i);
        ck_assert(!s.snapshot);
        ck_assert_uint_eq(s.hashes[0], i + 1);
    }
    ck_assert_int_eq(rk_kv_rank_next(rank, &cursor, &entry), 0);
    rk_kv_cursor live = {.start = 20};
    ck_assert_int_eq(rk_kv_rank_next(rank, &live, &entry), 0);
    (void)take(rank, 20, 60, 0, false);
    ck_assert_uint_eq(next(rank, &live).number, 20);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(what_is_gone_from_the_history_is_told_by_a_snapshot_whose_numbers_join) {
    rk_kv_rank *rank = new_rank(4, 40);
    for (uint8_t i = 0; i < 20; i++)
        (void)take(rank, i, i + 1, i, false);
    uint8_t bytes[64];
    ck_assert_int_eq(rk_kv_rank_take(rank, 20, bytes, removal(bytes, 20), false), RK_KV_TAKEN);
    rk_kv_cursor cursor = {.start = 0};
    seen s = next(rank, &cursor);
    uint64_t count = s.count;
    unsigned hashes = 0;
    ck_assert_uint_gt(count, 1);
    ck_assert_uint_eq(s.blocks, 19);
    ck_assert_uint_eq(s.unknown_before, 0);
    ck_assert_uint_eq(s.cleared, 1);
    for (uint64_t i = 0;; s = next(rank, &cursor)) {
        ck_assert_uint_eq(s.index, i);
        ck_assert_uint_eq(s.number, 20 - (count - 1 - i));
        for (unsigned h = 0; h < s.stored; h++)
            ck_assert_uint_eq(s.hashes[h], ++hashes); /* parents first */
        if (++i == count)
            break;
    }
    ck_assert_uint_eq(hashes, 19);
    (void)take(rank, 21, 70, 0, false);
    ck_assert_uint_eq(next(rank, &cursor).number, 21);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(a_parent_that_was_stored_again_still_comes_before_its_child) {
    rk_kv_rank *rank = new_rank(1, 1000);
    uint8_t bytes[64];
    (void)take(rank, 0, 1, 0, false);
    (void)take(rank, 1, 2, 1, false);
    (void)rk_kv_rank_take(rank, 2, bytes, removal(bytes, 1), false);
    (void)take(rank, 3, 1, 0, false);
    rk_kv_cursor cursor = {0};
    seen s = next(rank, &cursor);
    ck_assert_uint_eq(s.stored, 2);
    ck_assert_uint_eq(s.hashes[0], 1);
    ck_assert_uint_eq(s.hashes[1], 2);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(a_gap_is_said_and_what_was_before_it_is_not_claimed) {
    rk_kv_rank *rank = new_rank(100, 1000);
    rk_kv_cursor cursor = {0};
    (void)take(rank, 0, 1, 0, false);
    (void)next(rank, &cursor);
    ck_assert_int_eq(take(rank, 7, 9, 0, false), RK_KV_MISSING);
    ck_assert_int_eq(take(rank, 7, 9, 0, true), RK_KV_TAKEN);
    seen s = next(rank, &cursor);
    ck_assert(s.snapshot && s.number == 7 && s.unknown_before == 7 && s.stored == 1 && s.hashes[0] == 9);
    rk_kv_rank_counts counts;
    rk_kv_rank_read(rank, &counts);
    ck_assert_uint_eq(counts.gaps, 1);
    ck_assert_uint_eq(counts.lost, 6);
    ck_assert_int_eq(take(rank, 7, 9, 0, false), RK_KV_REPEAT);
    ck_assert_int_eq(take(rank, 7, 8, 0, false), RK_KV_ANEW);
    ck_assert_int_eq(take(rank, 0, 8, 0, true), RK_KV_TAKEN);
    s = next(rank, &cursor);
    ck_assert(s.snapshot && s.number == 0 && s.unknown_before == 0 && s.hashes[0] == 8);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(who_falls_behind_is_told_so) {
    rk_kv_rank *rank = new_rank(4, 1000);
    rk_kv_cursor cursor = {0};
    rk_kv_entry *entry;
    (void)take(rank, 0, 1, 0, false);
    (void)next(rank, &cursor);
    for (uint8_t i = 1; i < 6; i++)
        (void)take(rank, i, i + 1, 0, false);
    ck_assert_int_eq(rk_kv_rank_next(rank, &cursor, &entry), -ENOBUFS);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(a_record_over_its_bound_starts_anew_and_says_from_where) {
    const rk_kv_rank_options options = {
        .history_entries = 1, .history_bytes = 1 << 20, .record_bytes = 500, .chunk_bytes = 1000};
    rk_kv_rank *rank = rk_kv_rank_new(&options);
    rk_kv_rank_settle(rank);
    for (uint8_t i = 0; i < 20; i++)
        (void)take(rank, i, i + 1, 0, false);
    rk_kv_rank_counts counts;
    rk_kv_rank_read(rank, &counts);
    ck_assert_uint_gt(counts.forgotten, 0);
    ck_assert_uint_le(counts.record_bytes, 500);
    rk_kv_cursor cursor = {.start = 1000};
    seen s = next(rank, &cursor);
    ck_assert_uint_eq(s.blocks, s.stored);
    ck_assert_uint_gt(s.unknown_before, 0);
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(every_cut_and_every_flip_of_a_batch_is_taken_without_harm) {
    uint8_t whole[64];
    size_t size = store(whole, 5, 4);
    rk_kv_rank *rank = new_rank(1000, 1000);
    uint64_t number = 0;
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *bytes = malloc(cut ? cut : 1); /* so that a read past the end is seen */
        memcpy(bytes, whole, cut);
        rk_kv_batch batch;
        ck_assert_int_eq(rk_kv_batch_read(bytes, cut, &batch), -EBADMSG);
        ck_assert_int_eq(rk_kv_rank_take(rank, number++, bytes, cut, false), RK_KV_TAKEN);
        free(bytes);
    }
    rk_kv_rank_counts counts;
    rk_kv_rank_read(rank, &counts);
    ck_assert_uint_eq(counts.malformed_batches, size);
    for (size_t at = 0; at < size; at++)
        for (unsigned value = 0; value < 256; value++) {
            uint8_t bytes[64];
            memcpy(bytes, whole, size);
            bytes[at] = (uint8_t)value;
            ck_assert_int_eq(rk_kv_rank_take(rank, number++, bytes, size, false), RK_KV_TAKEN);
        }
    rk_kv_rank_free(rank);
}
END_TEST

START_TEST(a_digest_counts_by_its_last_eight_bytes_and_a_partial_block_is_left_out) {
    rk_mp hashes = {(const uint8_t *)"\xc4\x0a"
                                     "abABCDEFGH\xff",
                    NULL};
    hashes.end = hashes.at + 13;
    ck_assert_uint_eq(rk_kv_next_hash(&hashes), UINT64_C(0x4142434445464748));
    ck_assert_uint_eq(rk_kv_next_hash(&hashes), UINT64_MAX);
    uint8_t bytes[64];
    size_t size = store(bytes, 5, 0);
    bytes[size - 2] = 4; /* tokens of a block: there are two */
    rk_kv_batch batch;
    rk_kv_event event;
    ck_assert_int_eq(rk_kv_batch_read(bytes, size, &batch), 0);
    ck_assert(rk_kv_batch_next(&batch, &event));
    ck_assert_int_eq(event.kind, RK_KV_PARTIAL);
    ck_assert(!rk_kv_batch_next(&batch, &event));
    size = store(bytes, 5, 5); /* its own parent */
    ck_assert_int_eq(rk_kv_batch_read(bytes, size, &batch), 0);
    ck_assert(rk_kv_batch_next(&batch, &event));
    ck_assert_int_eq(event.kind, RK_KV_UNUSABLE);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("kv");
    TCase *tcase = tcase_create("kv");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, batches_come_from_the_number_asked_for);
    tcase_add_test(tcase, what_is_gone_from_the_history_is_told_by_a_snapshot_whose_numbers_join);
    tcase_add_test(tcase, a_parent_that_was_stored_again_still_comes_before_its_child);
    tcase_add_test(tcase, a_gap_is_said_and_what_was_before_it_is_not_claimed);
    tcase_add_test(tcase, who_falls_behind_is_told_so);
    tcase_add_test(tcase, a_record_over_its_bound_starts_anew_and_says_from_where);
    tcase_add_test(tcase, every_cut_and_every_flip_of_a_batch_is_taken_without_harm);
    tcase_add_test(tcase, a_digest_counts_by_its_last_eight_bytes_and_a_partial_block_is_left_out);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
