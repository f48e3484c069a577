/* Any bytes as a ServerReflectionRequest: refused in one line, or answered by one well-formed response that
 * gives the question back and says one thing. */
#include "dialect_wire.h"
#include "dialects/wire_read.h"
#include "rk_proto/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_answer(uint32_t number) {
    return number == RK_REFLECTION_SERVER_REFLECTION_RESPONSE__FILE_DESCRIPTOR_RESPONSE ||
           number == RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ALL_EXTENSION_NUMBERS_RESPONSE ||
           number == RK_REFLECTION_SERVER_REFLECTION_RESPONSE__LIST_SERVICES_RESPONSE ||
           number == RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ERROR_RESPONSE;
}

/* An error's message is a line. */
static void look_at_error(rk_wire error) {
    rk_wire_field field;
    int rc;
    while ((rc = rk_wire_next(&error, &field)) > 0)
        if (field.number == RK_REFLECTION_ERROR_RESPONSE__ERROR_MESSAGE) {
            rk_status line = {0};
            ck_assert_uint_lt(rk_wire_size(field.bytes), sizeof line.text);
            memcpy(line.text, field.bytes.at, rk_wire_size(field.bytes));
            check_line(&line);
        }
    ck_assert_int_eq(rc, 0);
}

static void look(const rk_buf *out, const uint8_t *asked, size_t size) {
    rk_wire left = rk_wire_of(out->data, out->size);
    rk_wire_field field;
    unsigned answers = 0, questions = 0;
    int rc;
    while ((rc = rk_wire_next(&left, &field)) > 0) {
        ck_assert_int_eq(field.type, RK_WIRE_BYTES);
        answers += is_answer(field.number);
        if (field.number == RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ERROR_RESPONSE)
            look_at_error(field.bytes);
        if (field.number != RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ORIGINAL_REQUEST)
            continue;
        questions++;
        ck_assert_uint_eq(rk_wire_size(field.bytes), size);
        ck_assert(size == 0 || memcmp(field.bytes.at, asked, size) == 0);
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(answers, 1);
    ck_assert_uint_eq(questions, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rk_buf out = RK_BUF_INIT;
    rk_status status;
    uint8_t *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, data, size);
    rk_code code = rk_reflection_answer(copy, size, NULL, &out, &status);
    if (code == RK_OK) {
        ck_assert(!out.failed);
        look(&out, copy, size);
    } else {
        ck_assert_int_eq(code, RK_INVALID_ARGUMENT);
        check_line(&status);
        ck_assert_uint_eq(out.size, 0);
    }
    rk_buf_free(&out);
    free(copy);
    return 0;
}
