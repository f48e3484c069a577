/* Reflection: questions and answers, read by another implementation. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "dialect_wire.h"
#include "grpc_reflection/v1/reflection.pb-c.h"
#include "rk_proto/descriptors.h"
#include "rk_proto/fields.h"

#define Q(FIELD) RK_REFLECTION_SERVER_REFLECTION_REQUEST__##FIELD
#define CASE(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

typedef Grpc__Reflection__V1__ServerReflectionResponse answer;

static rk_code ask(const rk_buf *question, answer **a) {
    rk_buf out = RK_BUF_INIT;
    rk_status status;
    static const uint8_t nothing[1] = {0};
    rk_code code =
        rk_reflection_answer(question->data ? question->data : nothing, question->size, NULL, &out, &status);
    if (code == RK_OK) {
        *a = grpc__reflection__v1__server_reflection_response__unpack(NULL, out.size, out.data);
        ck_assert_ptr_nonnull(*a);
    } else {
        check_line(&status);
    }
    rk_buf_free(&out);
    return code;
}

static answer *answer_to(uint32_t field, const char *text) {
    rk_buf question = RK_BUF_INIT;
    answer *a = NULL;
    raw_text(&question, Q(HOST), "worker:50051");
    raw_text(&question, field, text);
    ck_assert_int_eq(ask(&question, &a), RK_OK);
    ck_assert_str_eq(a->valid_host, "worker:50051");
    ck_assert_ptr_nonnull(a->original_request);
    ck_assert_str_eq(a->original_request->host, "worker:50051");
    rk_buf_free(&question);
    return a;
}

static void done(answer *a) {
    grpc__reflection__v1__server_reflection_response__free_unpacked(a, NULL);
}

/* Whether the n-th file of the answer is the file of that name. */
static bool is_file(const answer *a, size_t n, const char *name) {
    const ProtobufCBinaryData *file = &a->file_descriptor_response->file_descriptor_proto[n];
    size_t length = strlen(name);
    return file->len > length + 2 && file->data[0] == 0x0A && file->data[1] == length &&
           memcmp(file->data + 2, name, length) == 0;
}

START_TEST(every_service_is_listed) {
    static const char *const services[] = {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                           "grpc.reflection.v1alpha.ServerReflection",
                                           "tokenspeed.grpc.encoder.TokenSpeedEncoder",
                                           "tokenspeed.grpc.scheduler.TokenSpeedScheduler"};
    answer *a = answer_to(Q(LIST_SERVICES), "*");
    ck_assert_int_eq(a->message_response_case, CASE(LIST_SERVICES_RESPONSE));
    ck_assert_uint_eq(a->list_services_response->n_service, 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_str_eq(a->list_services_response->service[i]->name, services[i]);
    done(a);
}
END_TEST

static const struct {
    uint32_t field;
    const char *text;
    const char *files[6];
} found[] = {
    {Q(FILE_BY_FILENAME), "common.proto", {"common.proto"}},
    {Q(FILE_BY_FILENAME), "google/protobuf/struct.proto", {"google/protobuf/struct.proto"}},
    {Q(FILE_BY_FILENAME),
     "tokenspeed_scheduler.proto",
     {"tokenspeed_scheduler.proto", "google/protobuf/struct.proto", "google/protobuf/timestamp.proto",
      "common.proto"}},
    {Q(FILE_CONTAINING_SYMBOL),
     "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
     {"tokenspeed_scheduler.proto", "google/protobuf/struct.proto", "google/protobuf/timestamp.proto",
      "common.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.Health.Watch", {"grpc_health/v1/health.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.HealthCheckResponse", {"grpc_health/v1/health.proto"}},
    {Q(FILE_CONTAINING_SYMBOL),
     "grpc.health.v1.HealthCheckResponse.ServingStatus",
     {"grpc_health/v1/health.proto"}},
    {Q(FILE_CONTAINING_SYMBOL),
     "grpc.health.v1.HealthCheckResponse.SERVING",
     {"grpc_health/v1/health.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.HealthCheckRequest.service", {"grpc_health/v1/health.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "smg.grpc.common.Modality", {"common.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "smg.grpc.common.IMAGE", {"common.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "smg.grpc.common.KvCacheEvent.data", {"common.proto"}},
    {Q(FILE_CONTAINING_SYMBOL), "google.protobuf.NullValue", {"google/protobuf/struct.proto"}},
    {Q(FILE_CONTAINING_SYMBOL),
     "grpc.reflection.v1alpha.ServerReflection",
     {"grpc_reflection/v1alpha/reflection.proto"}},
};

START_TEST(a_file_comes_with_all_that_it_imports) {
    answer *a = answer_to(found[_i].field, found[_i].text);
    size_t count = 0;
    ck_assert_int_eq(a->message_response_case, CASE(FILE_DESCRIPTOR_RESPONSE));
    while (found[_i].files[count])
        count++;
    ck_assert_uint_eq(a->file_descriptor_response->n_file_descriptor_proto, count);
    ck_assert(is_file(a, 0, found[_i].files[0])); /* the one asked for first, the others in any order */
    for (size_t i = 1; i < count; i++) {
        bool there = false;
        for (size_t k = 1; k < count; k++)
            there |= is_file(a, k, found[_i].files[i]);
        ck_assert_msg(there, "%s is missing", found[_i].files[i]);
    }
    done(a);
}
END_TEST

static const struct {
    uint32_t field;
    const char *text;
    const char *message;
} missing[] = {
    {Q(FILE_BY_FILENAME), "other.proto",
     "no such file here; ask for a symbol of a listed service: other.proto"},
    {Q(FILE_BY_FILENAME), "common.prot",
     "no such file here; ask for a symbol of a listed service: common.prot"},
    {Q(FILE_BY_FILENAME), "", "no such file here; ask for a symbol of a listed service: "},
    {Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.Healt",
     "no such symbol here; ask for a full name, as list_services gives them: grpc.health.v1.Healt"},
    {Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.Healthy",
     "no such symbol here; ask for a full name, as list_services gives them: grpc.health.v1.Healthy"},
    {Q(FILE_CONTAINING_SYMBOL), ".grpc.health.v1.Health",
     "no such symbol here; ask for a full name, as list_services gives them: .grpc.health.v1.Health"},
    {Q(FILE_CONTAINING_SYMBOL), "",
     "no such symbol here; ask for a full name, as list_services gives them: "},
    {Q(ALL_EXTENSION_NUMBERS_OF_TYPE), "grpc.health.v1.Health",
     "no such message type here: grpc.health.v1.Health"},
    {Q(ALL_EXTENSION_NUMBERS_OF_TYPE), "no.Such", "no such message type here: no.Such"},
};

START_TEST(what_is_not_here_is_not_found_and_the_stream_goes_on) {
    answer *a = answer_to(missing[_i].field, missing[_i].text);
    ck_assert_int_eq(a->message_response_case, CASE(ERROR_RESPONSE));
    ck_assert_int_eq(a->error_response->error_code, RK_NOT_FOUND);
    ck_assert_str_eq(a->error_response->error_message, missing[_i].message);
    done(a);
}
END_TEST

START_TEST(nothing_is_extended) {
    answer *a = answer_to(Q(ALL_EXTENSION_NUMBERS_OF_TYPE), "grpc.health.v1.HealthCheckRequest");
    ck_assert_int_eq(a->message_response_case, CASE(ALL_EXTENSION_NUMBERS_RESPONSE));
    ck_assert_str_eq(a->all_extension_numbers_response->base_type_name, "grpc.health.v1.HealthCheckRequest");
    ck_assert_uint_eq(a->all_extension_numbers_response->n_extension_number, 0);
    done(a);
    rk_buf question = RK_BUF_INIT, extension = RK_BUF_INIT;
    raw_text(&extension, RK_REFLECTION_EXTENSION_REQUEST__CONTAINING_TYPE,
             "grpc.health.v1.HealthCheckRequest");
    raw_uint(&extension, RK_REFLECTION_EXTENSION_REQUEST__EXTENSION_NUMBER, 100);
    raw_message(&question, Q(FILE_CONTAINING_EXTENSION), extension);
    ck_assert_int_eq(ask(&question, &a), RK_OK);
    ck_assert_int_eq(a->error_response->error_code, RK_NOT_FOUND);
    ck_assert_str_eq(a->error_response->error_message,
                     "no such extension: nothing here is extended: grpc.health.v1.HealthCheckRequest");
    done(a);
    rk_buf_free(&question);
}
END_TEST

START_TEST(a_question_that_asks_nothing_is_answered_so) {
    rk_buf question = RK_BUF_INIT;
    answer *a = NULL;
    ck_assert_int_eq(ask(&question, &a), RK_OK);
    ck_assert_int_eq(a->error_response->error_code, RK_INVALID_ARGUMENT);
    done(a);
}
END_TEST

START_TEST(of_two_questions_in_one_the_last_counts) {
    rk_buf question = RK_BUF_INIT;
    answer *a = NULL;
    raw_text(&question, Q(FILE_BY_FILENAME), "other.proto");
    raw_text(&question, Q(LIST_SERVICES), "");
    ck_assert_int_eq(ask(&question, &a), RK_OK);
    ck_assert_int_eq(a->message_response_case, CASE(LIST_SERVICES_RESPONSE));
    done(a);
    rk_buf_free(&question);
}
END_TEST

START_TEST(a_nul_does_not_turn_a_symbol_into_another) {
    rk_buf question = RK_BUF_INIT;
    answer *a = NULL;
    raw_bytes(&question, Q(FILE_CONTAINING_SYMBOL), "grpc.health.v1.Health\0x", 23);
    ck_assert_int_eq(ask(&question, &a), RK_OK);
    ck_assert_int_eq(a->error_response->error_code, RK_NOT_FOUND);
    done(a);
    rk_buf_free(&question);
}
END_TEST

START_TEST(bytes_that_are_no_question_end_the_stream) {
    rk_buf question = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    rk_status status;
    answer *a = NULL;
    raw_text(&question, Q(FILE_BY_FILENAME), "\xFF");
    ck_assert_int_eq(ask(&question, &a), RK_INVALID_ARGUMENT);
    rk_buf_free(&question);
    ck_assert_int_eq(rk_reflection_answer(NULL, 0, NULL, &out, &status), RK_INVALID_ARGUMENT);
    ck_assert_uint_eq(out.size, 0);
}
END_TEST

START_TEST(the_tables_are_in_order) {
    for (size_t i = 1; i < rk_proto_symbol_count; i++)
        ck_assert_int_lt(strcmp(rk_proto_symbols[i - 1].name, rk_proto_symbols[i].name), 0);
    for (size_t i = 0; i < rk_proto_symbol_count; i++)
        ck_assert_uint_lt(rk_proto_symbols[i].file, rk_proto_file_count);
    for (size_t i = 0; i < rk_proto_file_count; i++)
        for (size_t k = 0; k < rk_proto_files[i].import_count; k++)
            ck_assert_uint_lt(rk_proto_files[i].imports[k], i);
}
END_TEST

#define LOOP(tcase, test, table) tcase_add_loop_test(tcase, test, 0, (int)(sizeof table / sizeof table[0]))

int main(void) {
    TCase *tcase = tcase_create("reflection");
    tcase_add_test(tcase, every_service_is_listed);
    LOOP(tcase, a_file_comes_with_all_that_it_imports, found);
    LOOP(tcase, what_is_not_here_is_not_found_and_the_stream_goes_on, missing);
    tcase_add_test(tcase, nothing_is_extended);
    tcase_add_test(tcase, a_question_that_asks_nothing_is_answered_so);
    tcase_add_test(tcase, of_two_questions_in_one_the_last_counts);
    tcase_add_test(tcase, a_nul_does_not_turn_a_symbol_into_another);
    tcase_add_test(tcase, bytes_that_are_no_question_end_the_stream);
    tcase_add_test(tcase, the_tables_are_in_order);
    Suite *suite = suite_create("reflection");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
