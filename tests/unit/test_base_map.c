/* Hash maps and hashes: what was put is found, what was removed is not, in any order and number. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "base_support.h"

static int values[4096]; /* something to point to */

START_TEST(a_number_is_found_until_it_is_removed) {
    rk_map *map = rk_map_new();
    ck_assert_ptr_null(rk_map_get(map, 7));
    ck_assert_int_eq(rk_map_put(map, 7, &values[7]), 0);
    ck_assert_int_eq(rk_map_put(map, 7, &values[8]), -EEXIST);
    ck_assert_ptr_eq(rk_map_get(map, 7), &values[7]);
    ck_assert_uint_eq(rk_map_size(map), 1);
    ck_assert_ptr_eq(rk_map_remove(map, 7), &values[7]);
    ck_assert_ptr_null(rk_map_remove(map, 7));
    ck_assert_ptr_null(rk_map_get(map, 7));
    ck_assert_uint_eq(rk_map_size(map), 0);
    rk_map_free(map);
    rk_map_free(NULL);
}
END_TEST

START_TEST(numbers_at_the_edges_are_keys_like_others) {
    static const uint64_t keys[] = {0, 1, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63, UINT64_C(1) << 32};
    rk_map *map = rk_map_new();
    for (size_t i = 0; i < 6; i++)
        ck_assert_int_eq(rk_map_put(map, keys[i], &values[i]), 0);
    for (size_t i = 0; i < 6; i++)
        ck_assert_ptr_eq(rk_map_get(map, keys[i]), &values[i]);
    rk_map_free(map);
}
END_TEST

static void add_up(uint64_t key, void *value, void *arg) {
    uint64_t *sums = arg;
    sums[0] += key;
    sums[1] += (uint64_t)((int *)value - values);
    sums[2]++;
}

START_TEST(every_entry_is_visited_once) {
    rk_map *map = rk_map_new();
    for (unsigned i = 0; i < 1000; i++)
        ck_assert_int_eq(rk_map_put(map, i * 3u, &values[i]), 0);
    uint64_t sums[3] = {0};
    rk_map_each(map, add_up, sums);
    ck_assert_uint_eq(sums[0], 3u * 999u * 500u);
    ck_assert_uint_eq(sums[1], 999u * 500u);
    ck_assert_uint_eq(sums[2], 1000u);
    rk_map_free(map);
}
END_TEST

/* Keys share few buckets, so that entries are pushed past each other and moved up when one goes. */
START_TEST(random_changes_leave_what_an_array_would_hold) {
    enum { KEYS = 600 };
    bool there[KEYS] = {false};
    size_t size = 0;
    unsigned seed = 1;
    rk_map *map = rk_map_new();
    for (int i = 0; i < 200000; i++) {
        unsigned k = next_random(&seed, KEYS);
        uint64_t key = (uint64_t)k << 40; /* the low bits are the same */
        if (next_random(&seed, 2)) {
            ck_assert_int_eq(rk_map_put(map, key, &values[k]), there[k] ? -EEXIST : 0);
            size += there[k] ? 0 : 1;
            there[k] = true;
        } else {
            ck_assert_ptr_eq(rk_map_remove(map, key), there[k] ? &values[k] : NULL);
            size -= there[k] ? 1 : 0;
            there[k] = false;
        }
        unsigned other = next_random(&seed, KEYS);
        ck_assert_ptr_eq(rk_map_get(map, (uint64_t)other << 40), there[other] ? &values[other] : NULL);
        ck_assert_uint_eq(rk_map_size(map), size);
    }
    rk_map_free(map);
}
END_TEST

START_TEST(bytes_are_keys_by_content_and_are_copied) {
    char key[8] = "abc";
    rk_bmap *map = rk_bmap_new();
    ck_assert_int_eq(rk_bmap_put(map, key, 3, &values[1]), 0);
    ck_assert_int_eq(rk_bmap_put(map, "ab", 2, &values[2]), 0);
    ck_assert_int_eq(rk_bmap_put(map, "", 0, &values[3]), 0);
    ck_assert_int_eq(rk_bmap_put(map, "a\0c", 3, &values[4]), 0);
    strcpy(key, "xyz");
    ck_assert_ptr_eq(rk_bmap_get(map, "abc", 3), &values[1]);
    ck_assert_ptr_eq(rk_bmap_get(map, "ab", 2), &values[2]);
    ck_assert_ptr_eq(rk_bmap_get(map, "", 0), &values[3]);
    ck_assert_ptr_eq(rk_bmap_get(map, "a\0c", 3), &values[4]);
    ck_assert_ptr_null(rk_bmap_get(map, "a\0d", 3));
    ck_assert_int_eq(rk_bmap_put(map, "abc", 3, &values[5]), -EEXIST);
    ck_assert_int_eq(rk_bmap_replace(map, "abc", 3, &values[6]), 0);
    ck_assert_int_eq(rk_bmap_replace(map, "abd", 3, &values[6]), -ENOENT);
    ck_assert_ptr_eq(rk_bmap_remove(map, "abc", 3), &values[6]);
    ck_assert_ptr_null(rk_bmap_remove(map, "abc", 3));
    ck_assert_uint_eq(rk_bmap_size(map), 3);
    rk_bmap_free(map);
    rk_bmap_free(NULL);
}
END_TEST

START_TEST(many_byte_keys_come_and_go) {
    enum { KEYS = 3000 };
    char key[16];
    rk_bmap *map = rk_bmap_new();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < KEYS; i++)
            ck_assert_int_eq(rk_bmap_put(map, key, (size_t)sprintf(key, "key-%d", i), &values[i]), 0);
        for (int i = 0; i < KEYS; i += 2)
            ck_assert_ptr_eq(rk_bmap_remove(map, key, (size_t)sprintf(key, "key-%d", i)), &values[i]);
        for (int i = 0; i < KEYS; i++)
            ck_assert_ptr_eq(rk_bmap_get(map, key, (size_t)sprintf(key, "key-%d", i)),
                             i % 2 ? &values[i] : NULL);
        for (int i = 1; i < KEYS; i += 2)
            ck_assert_ptr_eq(rk_bmap_remove(map, key, (size_t)sprintf(key, "key-%d", i)), &values[i]);
        ck_assert_uint_eq(rk_bmap_size(map), 0);
    }
    rk_bmap_free(map);
}
END_TEST

START_TEST(the_hash_is_siphash_2_4) { /* the vectors of its authors */
    const rk_hash_seed seed = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    unsigned char text[16];
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)i;
    ck_assert(rk_hash_bytes(seed, text, 0) == UINT64_C(0x726fdb47dd0e0e31));
    ck_assert(rk_hash_bytes(seed, text, 8) == UINT64_C(0x93f5f5799a932462));
    ck_assert(rk_hash_bytes(seed, text, 15) == UINT64_C(0xa129ca6149be45e5));
}
END_TEST

START_TEST(two_seeds_differ) {
    rk_hash_seed a = rk_hash_seed_new();
    rk_hash_seed b = rk_hash_seed_new();
    ck_assert(a.k0 != b.k0 || a.k1 != b.k1);
    ck_assert(rk_hash_bytes(a, "x", 1) != rk_hash_bytes(b, "x", 1));
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_number_is_found_until_it_is_removed,
        numbers_at_the_edges_are_keys_like_others,
        every_entry_is_visited_once,
        random_changes_leave_what_an_array_would_hold,
        bytes_are_keys_by_content_and_are_copied,
        many_byte_keys_come_and_go,
        the_hash_is_siphash_2_4,
        two_seeds_differ,
    };
    return RUN_SUITE("base map", tests);
}
