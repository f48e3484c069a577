/* Segments of shared memory: taken once, removed at once, never followed out of their folder. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/segment.h"

static char folder[] = "/tmp/roomkeeper-segments-XXXXXX";
static char path[128];

static void setup(void) {
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/one", folder);
}

static void teardown(void) {
    (void)unlink(path);
    (void)rmdir(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_file(const char *text) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static int take(uint64_t needed) {
    uint64_t size;
    return rk_segment_take(folder, "one", needed, true, &size);
}

START_TEST(it_is_taken_once_and_gone_at_once) {
    char bytes[4];
    write_file("12345678");
    int fd = take(8);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_lt(access(path, F_OK), 0);
    ck_assert_int_eq(take(8), -ENOENT);
    ck_assert_int_eq(rk_segment_read(fd, 2, bytes, 4), 0);
    ck_assert_mem_eq(bytes, "3456", 4);
    ck_assert_int_eq(rk_segment_read(fd, 5, bytes, 4), -ENODATA);
    ck_assert_int_eq(rk_segment_read(fd, UINT64_MAX, bytes, 1), -ENODATA);
    ck_assert_int_eq(rk_segment_read(fd, 8, bytes, 0), 0);
    (void)close(fd);
}
END_TEST

START_TEST(one_that_is_cut_short_afterwards_is_told_not_a_crash) {
    char bytes[8];
    write_file("12345678");
    int other = open(path, O_WRONLY);
    int fd = take(8);
    ck_assert_int_eq(ftruncate(other, 3), 0);
    ck_assert_int_eq(rk_segment_read(fd, 0, bytes, 8), -ENODATA);
    (void)close(fd);
    (void)close(other);
}
END_TEST

START_TEST(one_that_is_too_short_is_refused_and_gone) {
    uint64_t size = 0;
    write_file("123");
    ck_assert_int_eq(rk_segment_take(folder, "one", 4, true, &size), -ENODATA);
    ck_assert_uint_eq(size, 3);
    ck_assert_int_lt(access(path, F_OK), 0);
}
END_TEST

START_TEST(what_is_no_file_is_left_alone) {
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    ck_assert_int_eq(take(0), -ELOOP);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(take(0), -EINVAL);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(take(0), -EINVAL);
    struct stat there;
    ck_assert_int_eq(stat(path, &there), 0);
}
END_TEST

START_TEST(its_name_may_be_left_for_those_who_look_into_a_fault) {
    uint64_t size;
    write_file("1");
    int fd = rk_segment_take(folder, "one", 1, false, &size);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    (void)close(fd);
}
END_TEST

START_TEST(half_of_the_descriptors_are_not_for_segments) {
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit few = {32, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int result = 0;
    for (int i = 0; i < 32 && result >= 0; i++) { /* what is taken stays open until the test's process ends */
        write_file("1");
        result = take(1);
        ck_assert_int_lt(result, 16);
    }
    ck_assert_int_eq(result, -EMFILE);
    ck_assert_int_lt(access(path, F_OK), 0);
    int still = dup(0);
    ck_assert_int_ge(still, 0);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("segment");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, it_is_taken_once_and_gone_at_once);
    tcase_add_test(tcase, one_that_is_cut_short_afterwards_is_told_not_a_crash);
    tcase_add_test(tcase, one_that_is_too_short_is_refused_and_gone);
    tcase_add_test(tcase, what_is_no_file_is_left_alone);
    tcase_add_test(tcase, its_name_may_be_left_for_those_who_look_into_a_fault);
    tcase_add_test(tcase, half_of_the_descriptors_are_not_for_segments);
    Suite *suite = suite_create("base_segment");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
