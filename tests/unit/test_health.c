/* The messages of grpc.health.v1. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "grpc_health/v1/health.pb-c.h"

static rk_code decode(const char *bytes, size_t size, char service[256]) {
    rk_status status;
    rk_code code = rk_health_decode((const uint8_t *)bytes, size, service, &status);
    if (code != RK_OK)
        check_line(&status);
    return code;
}

START_TEST(a_check_names_a_service_or_none) {
    char service[256];
    ck_assert_int_eq(decode("", 0, service), RK_OK);
    ck_assert_str_eq(service, "");
    ck_assert_int_eq(decode("\x0A\x03one", 5, service), RK_OK);
    ck_assert_str_eq(service, "one");
    ck_assert_int_eq(decode("\x0A\x03one\x0A\x03two", 10, service), RK_OK);
    ck_assert_str_eq(service, "two");
}
END_TEST

START_TEST(a_check_that_is_no_message_is_refused) {
    char service[256];
    ck_assert_int_eq(decode(NULL, 0, service), RK_INVALID_ARGUMENT);
    ck_assert_int_eq(decode("\x0A\x03on", 4, service), RK_INVALID_ARGUMENT);
    ck_assert_int_eq(decode("\x0A\x01\xFF", 3, service), RK_INVALID_ARGUMENT);
    ck_assert_int_eq(decode("\x08\x01", 2, service), RK_INVALID_ARGUMENT);
}
END_TEST

START_TEST(a_nul_does_not_turn_a_name_into_another) {
    char service[256];
    ck_assert_int_eq(decode("\x0A\x02\0x", 4, service), RK_INVALID_ARGUMENT);
}
END_TEST

START_TEST(a_name_too_long_is_cut_at_a_character_and_stays_unknown) {
    char service[256];
    rk_buf buf = RK_BUF_INIT;
    char name[301];
    memset(name, 'a', 300);
    name[300] = '\0';
    memcpy(name + 253, "€€", 6);
    raw_text(&buf, 1, name);
    ck_assert_int_eq(decode((const char *)buf.data, buf.size, service), RK_OK);
    ck_assert_uint_eq(strlen(service), 253);
    rk_buf_free(&buf);
}
END_TEST

START_TEST(each_status_reads_back) {
    rk_buf out = RK_BUF_INIT;
    static const uint8_t nothing[1] = {0};
    rk_health_encode(&out, (rk_serving)_i);
    Grpc__Health__V1__HealthCheckResponse *r =
        grpc__health__v1__health_check_response__unpack(NULL, out.size, out.data ? out.data : nothing);
    ck_assert_ptr_nonnull(r);
    ck_assert_int_eq(r->status, _i);
    grpc__health__v1__health_check_response__free_unpacked(r, NULL);
    rk_buf_free(&out);
}
END_TEST

START_TEST(the_list_has_every_service) {
    static const char *const services[] = {"", "one.Service", "two.Service"};
    rk_buf out = RK_BUF_INIT;
    rk_health_encode_list(&out, services, 3, RK_NOT_SERVING);
    Grpc__Health__V1__HealthListResponse *r =
        grpc__health__v1__health_list_response__unpack(NULL, out.size, out.data);
    ck_assert_ptr_nonnull(r);
    ck_assert_uint_eq(r->n_statuses, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(r->statuses[i]->key, services[i]);
        ck_assert_int_eq(r->statuses[i]->value->status,
                         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING);
    }
    grpc__health__v1__health_list_response__free_unpacked(r, NULL);
    rk_buf_free(&out);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("health");
    tcase_add_test(tcase, a_check_names_a_service_or_none);
    tcase_add_test(tcase, a_check_that_is_no_message_is_refused);
    tcase_add_test(tcase, a_nul_does_not_turn_a_name_into_another);
    tcase_add_test(tcase, a_name_too_long_is_cut_at_a_character_and_stays_unknown);
    tcase_add_loop_test(tcase, each_status_reads_back, 0, 4);
    tcase_add_test(tcase, the_list_has_every_service);
    Suite *suite = suite_create("health");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
