/* The base helpers when memory is out: each allocation in turn fails; nothing is leaked, nothing half done.
 */
#include <check.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/map.h"
#include "failing_malloc.h"
#include "roomkeeper/value.h"

#ifndef OTHER_MALLOC

#define KEYS 100

/* Puts keys until one fails or all are in; every key that was taken must be found, the failed one not. */
static int fill_map(void) {
    static int value;
    rk_map *map = rk_map_new();
    if (!map)
        return -ENOMEM;
    int rc = 0;
    uint64_t key = 0;
    while (key < KEYS && (rc = rk_map_put(map, key, &value)) == 0)
        key++;
    bool right = rk_map_size(map) == key && !rk_map_get(map, key);
    for (uint64_t k = 0; k < key; k++)
        right &= rk_map_get(map, k) == &value;
    rk_map_free(map);
    return right ? rc : -EINVAL;
}

static int fill_bmap(void) {
    static int value;
    rk_bmap *map = rk_bmap_new();
    if (!map)
        return -ENOMEM;
    int rc = 0;
    uint64_t key = 0;
    while (key < KEYS && (rc = rk_bmap_put(map, &key, sizeof key, &value)) == 0)
        key++;
    bool right = rk_bmap_size(map) == key && !rk_bmap_get(map, &key, sizeof key);
    for (uint64_t k = 0; k < key; k++)
        right &= rk_bmap_get(map, &k, sizeof k) == &value;
    rk_bmap_free(map);
    return right ? rc : -EINVAL;
}

static int fill_buf(void) {
    rk_buf buf = RK_BUF_INIT;
    size_t written = 0;
    for (int i = 0; i < KEYS; i++) {
        size_t before = buf.size;
        rk_buf_printf(&buf, "%0*d", i, i);
        rk_buf_append(&buf, "xyz", 3);
        written += buf.size - before;
    }
    int rc = buf.failed ? -ENOMEM : 0;
    if (buf.size != written || (buf.failed && rk_buf_extend(&buf, 1)))
        rc = -EINVAL;
    rk_buf_free(&buf);
    return rc;
}

static int fill_arena(void) {
    rk_arena *arena = rk_arena_new(1 << 20);
    if (!arena)
        return -ENOMEM;
    int rc = 0;
    for (size_t i = 0; i < KEYS && rc == 0; i++) {
        size_t used = rk_arena_used(arena);
        if (!rk_arena_alloc(arena, i * 100))
            rc = rk_arena_used(arena) == used ? -ENOMEM : -EINVAL;
    }
    rk_arena_free(arena);
    return rc;
}

static int grow_tree(void) {
    rk_value *map = rk_value_map();
    int rc = map ? 0 : -ENOMEM;
    for (int i = 0; i < 20 && rc == 0; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "key%d", i);
        rk_value *list = rk_value_list();
        rk_value *text = rk_value_string(key, 3);
        rc = list && text ? 0 : -ENOMEM;
        if (rc < 0)
            rk_value_free(text);
        else
            rc = rk_value_append(list, text);
        if (rc < 0)
            rk_value_free(list);
        else
            rc = rk_value_set(map, key, list);
    }
    rk_value *copy = rc == 0 ? rk_value_copy(map) : NULL;
    if (rc == 0 && !copy)
        rc = -ENOMEM;
    rk_value_free(copy);
    rk_value_free(map);
    return rc;
}

static int write_line(void) {
    int fds[2];
    char line[512];
    if (pipe(fds) < 0)
        return -errno;
    const rk_log log = {.level = RK_LOG_INFO, .json = true, .fd = fds[1], .name = "memory"};
    rk_log_event(&log, RK_LOG_INFO, "said, or lost with a word", RK_FIELD_INT("a", 1));
    ssize_t got = read(fds[0], line, sizeof line); /* there is always a line */
    (void)close(fds[0]);
    (void)close(fds[1]);
    bool whole = got > 0 && line[got - 1] == '\n';
    return !whole ? -EINVAL : memcmp(line, "{\"time\"", 7) == 0 ? 0 : -ENOMEM;
}

/* Runs `once` with its first, second, … allocation failing, until none is left to fail. */
static void fail_each(int (*once)(void), long at_least) {
    bool reached = true;
    long n = 0;
    for (; reached; n++) {
        long before = live;
        left = n;
        int rc = once();
        reached = left < 0;
        left = -1;
        long leaked = live - before;
        ck_assert_msg(leaked == 0, "allocation %ld: %ld leaked", n, leaked);
        ck_assert_msg(rc == 0 || (reached && rc == -ENOMEM), "allocation %ld: %d", n, rc);
    }
    ck_assert_int_gt(n, at_least);
}

START_TEST(maps_survive_the_failure_of_any_allocation) {
    fail_each(fill_map, 4);
    fail_each(fill_bmap, KEYS);
}
END_TEST

START_TEST(buffers_and_arenas_survive_the_failure_of_any_allocation) {
    fail_each(fill_buf, 5);
    fail_each(fill_arena, 5);
}
END_TEST

START_TEST(trees_survive_the_failure_of_any_allocation) {
    fail_each(grow_tree, 150);
}
END_TEST

START_TEST(log_lines_survive_the_failure_of_any_allocation) {
    ck_assert_int_eq(write_line(), 0); /* the C library keeps its time zone from now on */
    fail_each(write_line, 2);
}
END_TEST

int main(void) {
    if (other_malloc())
        return EXIT_SUCCESS;
    Suite *suite = suite_create("base memory");
    TCase *tests = tcase_create("base memory");
    tcase_add_test(tests, maps_survive_the_failure_of_any_allocation);
    tcase_add_test(tests, buffers_and_arenas_survive_the_failure_of_any_allocation);
    tcase_add_test(tests, trees_survive_the_failure_of_any_allocation);
    tcase_add_test(tests, log_lines_survive_the_failure_of_any_allocation);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#else

int main(void) {
    return EXIT_SUCCESS;
}

#endif
