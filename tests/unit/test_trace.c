/* traceparent: which are taken, and which are not. */
#include <check.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <string.h>

#include "base_support.h"
#include "rpc/trace.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define SOUND "00-" TRACE "-" PARENT "-01"

static bool read_two(const char *first, const char *second, char id[RK_TRACE_ID_SIZE]) {
    grpc_metadata items[3];
    memset(items, 0, sizeof items);
    items[0].key = grpc_slice_from_static_string("user-agent");
    items[0].value = grpc_slice_from_static_string("test");
    items[1].key = items[2].key = grpc_slice_from_static_string("traceparent");
    items[1].value = grpc_slice_from_static_string(first ? first : "");
    items[2].value = grpc_slice_from_static_string(second ? second : "");
    const grpc_metadata_array metadata = {
        .count = 1u + (first ? 1 : 0) + (second ? 1 : 0), .capacity = 3, .metadata = items};
    return rk_trace_read(&metadata, id);
}

static const struct {
    const char *text;
    bool taken;
} table[] = {
    {SOUND, true},
    {"00-" TRACE "-" PARENT "-00", true},
    {"01-" TRACE "-" PARENT "-01", true},
    {"cc-" TRACE "-" PARENT "-01-what-comes-later", true},
    {"01-" TRACE "-" PARENT "-01.more", false},
    {SOUND "-more", false},
    {"ff-" TRACE "-" PARENT "-01", false},
    {"0g-" TRACE "-" PARENT "-01", false},
    {"00-" TRACE "-" PARENT "-0", false},
    {"00-" TRACE "-" PARENT "-0x", false},
    {"00-00000000000000000000000000000000-" PARENT "-01", false},
    {"00-" TRACE "-0000000000000000-01", false},
    {"00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01", false},
    {"00_" TRACE "-" PARENT "-01", false},
    {"00-" TRACE "_" PARENT "-01", false},
    {"00-" TRACE "-" PARENT "_01", false},
    {"00", false},
    {"", false},
};

START_TEST(a_traceparent_is_taken_or_ignored_as_a_whole) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char id[RK_TRACE_ID_SIZE] = "before";
        ck_assert_msg(read_two(table[i].text, NULL, id) == table[i].taken, "%s", table[i].text);
        ck_assert_str_eq(id, table[i].taken ? TRACE : "");
    }
}
END_TEST

START_TEST(none_is_no_fault_and_two_are_nobodys) {
    char id[RK_TRACE_ID_SIZE];
    ck_assert(read_two(NULL, NULL, id));
    ck_assert_str_eq(id, "");
    ck_assert(!read_two(SOUND, SOUND, id));
    ck_assert_str_eq(id, "");
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_traceparent_is_taken_or_ignored_as_a_whole,
        none_is_no_fault_and_two_are_nobodys,
    };
    return RUN_SUITE("trace", tests);
}
