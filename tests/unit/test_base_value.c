/* Trees of values, and the arena: who owns what, and what the cap means. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base_support.h"
#include "roomkeeper/value.h"

START_TEST(a_tree_holds_what_was_put_into_it) {
    rk_value *map = rk_value_map();
    rk_value *list = rk_value_list();
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(rk_value_append(list, rk_value_number(i)), 0);
    ck_assert_int_eq(rk_value_set(map, "list", list), 0);
    ck_assert_int_eq(rk_value_set(map, "yes", rk_value_bool(true)), 0);
    ck_assert_int_eq(rk_value_set(map, "none", rk_value_null()), 0);
    ck_assert_int_eq(rk_value_set(map, "text", rk_value_string("a\0b\nc", 5)), 0);
    ck_assert_uint_eq(map->count, 4);
    ck_assert_uint_eq(rk_value_get(map, "list")->count, 20);
    ck_assert_double_eq(rk_value_get(map, "list")->items[19]->number, 19);
    ck_assert(rk_value_get(map, "yes")->boolean);
    ck_assert_int_eq(rk_value_get(map, "none")->kind, RK_VALUE_NULL);
    ck_assert_uint_eq(rk_value_get(map, "text")->string_bytes, 5);
    ck_assert_mem_eq(rk_value_get(map, "text")->string, "a\0b\nc", 6);
    ck_assert_ptr_null(rk_value_get(map, "nothing"));
    ck_assert_ptr_null(rk_value_get(list, "list"));
    ck_assert_ptr_null(rk_value_get(NULL, "list"));
    rk_value_free(map);
    rk_value_free(NULL);
}
END_TEST

START_TEST(an_equal_key_replaces_and_keeps_its_place) {
    rk_value *map = rk_value_map();
    ck_assert_int_eq(rk_value_set(map, "a", rk_value_number(1)), 0);
    ck_assert_int_eq(rk_value_set(map, "b", rk_value_number(2)), 0);
    ck_assert_int_eq(rk_value_set(map, "a", rk_value_string("new", 3)), 0);
    ck_assert_uint_eq(map->count, 2);
    ck_assert_str_eq(map->keys[0], "a");
    ck_assert_str_eq(map->items[0]->string, "new");
    rk_value_free(map);
}
END_TEST

START_TEST(a_wrong_kind_or_no_item_is_refused_and_the_item_freed) { /* a leak would show in the sanitizer */
    rk_value *map = rk_value_map();
    rk_value *list = rk_value_list();
    ck_assert_int_eq(rk_value_append(map, rk_value_number(1)), -EINVAL);
    ck_assert_int_eq(rk_value_set(list, "a", rk_value_number(1)), -EINVAL);
    ck_assert_int_eq(rk_value_append(list, NULL), -EINVAL);
    ck_assert_int_eq(rk_value_set(map, "a", NULL), -EINVAL);
    ck_assert_int_eq(rk_value_append(NULL, rk_value_null()), -EINVAL);
    ck_assert_uint_eq(map->count + list->count, 0);
    rk_value_free(map);
    rk_value_free(list);
}
END_TEST

START_TEST(strings_and_keys_are_made_valid_utf8) {
    rk_value *map = rk_value_map();
    ck_assert_int_eq(rk_value_set(map, "k\xFF", rk_value_string("\xC3\xA9\xFF\xE2\x82", 5)), 0);
    ck_assert_str_eq(map->keys[0], "k?");
    ck_assert_str_eq(map->items[0]->string, "\xC3\xA9???");
    ck_assert_ptr_eq(rk_value_get(map, "k?"), map->items[0]);
    rk_value_free(map);
}
END_TEST

START_TEST(keys_that_are_cleaned_to_the_same_name_are_one_key) {
    rk_value *map = rk_value_map();
    ck_assert_int_eq(rk_value_set(map, "k\xFF", rk_value_number(1)), 0);
    ck_assert_int_eq(rk_value_set(map, "k\xFE", rk_value_number(2)), 0);
    ck_assert_uint_eq(map->count, 1);
    ck_assert_double_eq(map->items[0]->number, 2);
    rk_value_free(map);
}
END_TEST

START_TEST(a_copy_shares_nothing_with_its_original) {
    rk_value *map = rk_value_map();
    rk_value *list = rk_value_list();
    ck_assert_int_eq(rk_value_append(list, rk_value_string("x", 1)), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_bool(false)), 0);
    ck_assert_int_eq(rk_value_append(list, rk_value_null()), 0);
    ck_assert_int_eq(rk_value_set(map, "list", list), 0);
    rk_value *copy = rk_value_copy(map);
    rk_value_free(map);
    const rk_value *items = rk_value_get(copy, "list");
    ck_assert_uint_eq(items->count, 3);
    ck_assert_str_eq(items->items[0]->string, "x");
    ck_assert_int_eq(items->items[2]->kind, RK_VALUE_NULL);
    rk_value_free(copy);
    ck_assert_ptr_null(rk_value_copy(NULL));
}
END_TEST

/* ---- the arena ---- */

START_TEST(pieces_of_an_arena_are_aligned_and_do_not_overlap) {
    enum { PIECES = 2000 };
    static unsigned char *pieces[PIECES];
    static size_t sizes[PIECES];
    unsigned seed = 5;
    rk_arena *arena = rk_arena_new(SIZE_MAX);
    for (int i = 0; i < PIECES; i++) {
        sizes[i] = next_random(&seed, i % 50 == 0 ? 60000 : 200);
        pieces[i] = rk_arena_alloc(arena, sizes[i]);
        ck_assert_ptr_nonnull(pieces[i]);
        ck_assert_uint_eq((uintptr_t)pieces[i] % 16, 0);
        memset(pieces[i], i & 0xFF, sizes[i]);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            ck_assert_int_eq(pieces[i][k], i & 0xFF);
    rk_arena_free(arena);
    rk_arena_free(NULL);
}
END_TEST

START_TEST(an_arena_hands_out_its_cap_and_not_a_byte_more) {
    rk_arena *arena = rk_arena_new(1024);
    size_t pieces = 0;
    while (rk_arena_alloc(arena, 1))
        pieces++;
    ck_assert_uint_eq(pieces, 1024 / 16); /* each piece counts as its alignment */
    ck_assert_uint_eq(rk_arena_used(arena), 1024);
    ck_assert_ptr_null(rk_arena_alloc(arena, 0));
    rk_arena_free(arena);
    arena = rk_arena_new(100000);
    ck_assert_ptr_null(rk_arena_alloc(arena, 100001));
    ck_assert_ptr_null(rk_arena_alloc(arena, SIZE_MAX));
    ck_assert_ptr_nonnull(rk_arena_alloc(arena, 99000)); /* a failure uses nothing up */
    ck_assert_ptr_nonnull(rk_arena_alloc(arena, 0));
    rk_arena_free(arena);
}
END_TEST

START_TEST(an_arena_copies_text_with_its_end) {
    rk_arena *arena = rk_arena_new(1 << 20);
    ck_assert_str_eq(rk_arena_strndup(arena, "abcdef", 3), "abc");
    ck_assert_str_eq(rk_arena_strndup(arena, NULL, 0), "");
    ck_assert_ptr_null(rk_arena_strndup(arena, "x", SIZE_MAX));
    rk_arena_free(arena);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_tree_holds_what_was_put_into_it,
        an_equal_key_replaces_and_keeps_its_place,
        a_wrong_kind_or_no_item_is_refused_and_the_item_freed,
        strings_and_keys_are_made_valid_utf8,
        keys_that_are_cleaned_to_the_same_name_are_one_key,
        a_copy_shares_nothing_with_its_original,
        pieces_of_an_arena_are_aligned_and_do_not_overlap,
        an_arena_hands_out_its_cap_and_not_a_byte_more,
        an_arena_copies_text_with_its_end,
    };
    return RUN_SUITE("base value and arena", tests);
}
