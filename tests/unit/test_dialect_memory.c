/* When memory is out: each allocation in turn fails, and the answer is one line, no request, nothing leaked.
 *
 * This executable brings its own arena and its own buffer instead of the core's. They fail on demand, and
 * give each allocation memory of its own, so that a sanitizer sees a step beyond it. */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "data/golden.h"
#include "media_wire.h"

static long left;   /* allocations until one fails; negative: none does */
static long arenas; /* that are not freed */

static bool fails(void) {
    return left >= 0 && left-- == 0;
}

/* ---- the arena ---- */

struct rk_arena {
    void **pieces;
    size_t count;
    size_t used;
};

rk_arena *rk_arena_new(size_t cap_bytes) {
    (void)cap_bytes;
    if (fails())
        return NULL;
    arenas++;
    return calloc(1, sizeof(rk_arena));
}

void rk_arena_free(rk_arena *arena) {
    if (!arena)
        return;
    for (size_t i = 0; i < arena->count; i++)
        free(arena->pieces[i]);
    free(arena->pieces);
    free(arena);
    arenas--;
}

void *rk_arena_alloc(rk_arena *arena, size_t bytes) {
    if (fails())
        return NULL;
    void *piece = malloc(bytes ? bytes : 1);
    arena->pieces = realloc(arena->pieces, (arena->count + 1) * sizeof(void *));
    arena->pieces[arena->count++] = piece;
    arena->used += bytes;
    memset(piece, 0xA5, bytes); /* nobody may count on zeros */
    return piece;
}

char *rk_arena_strndup(rk_arena *arena, const char *text, size_t bytes) {
    char *copy = rk_arena_alloc(arena, bytes + 1);
    if (!copy)
        return NULL;
    if (bytes)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

size_t rk_arena_used(const rk_arena *arena) {
    return arena->used;
}

/* ---- the buffer: exactly as large as it has to be ---- */

void rk_buf_free(rk_buf *buf) {
    free(buf->data);
    *buf = (rk_buf)RK_BUF_INIT;
}

uint8_t *rk_buf_extend(rk_buf *buf, size_t size) {
    if (buf->failed || fails()) {
        buf->failed = true;
        return NULL;
    }
    buf->data = realloc(buf->data, buf->size + size + 1);
    buf->size += size;
    buf->capacity = buf->size;
    return buf->data + buf->size - size;
}

void rk_buf_append(rk_buf *buf, const void *bytes, size_t size) {
    uint8_t *at = size ? rk_buf_extend(buf, size) : NULL;
    if (at)
        memcpy(at, bytes, size);
}

void rk_buf_printf(rk_buf *buf, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rk_buf_append(buf, text, (size_t)length);
}

/* ---- the tests ---- */

static void setup(void) {
    left = -1;
    arenas = 0;
}

START_TEST(a_request_without_memory_is_refused_whole) {
    rk_limits limits = {.role = RK_ROLE_DECODE, .rooms = true, .vocab_size = 151936, .ranks = 1};
    rk_buf buf = RK_BUF_INIT;
    rk_request *request = NULL;
    rk_code code = RK_RESOURCE_EXHAUSTED;
    rk_status status;
    long failing = 0;
    rk_buf_append(&buf, golden_request, sizeof golden_request);
    for (; code == RK_RESOURCE_EXHAUSTED; failing++) {
        left = failing;
        code = decode_generate(&buf, &limits, &request, &status);
        left = -1;
        if (code == RK_RESOURCE_EXHAUSTED)
            ck_assert_int_eq(arenas, 0);
    }
    ck_assert_int_eq(code, RK_OK); /* at last no allocation failed any more */
    ck_assert_int_gt(failing, 20);
    ck_assert_int_eq(arenas, 1);
    rk_request_unref(request);
    ck_assert_int_eq(arenas, 0);
    rk_buf_free(&buf);
}
END_TEST

START_TEST(multimodal_inputs_without_memory_are_refused_whole) {
    rk_limits limits = {.role = RK_ROLE_PREFILL, .ranks = 1};
    rk_buf item = image((tensor_parts){FOUR_BYTES});
    rk_request *request = NULL;
    rk_code code = RK_RESOURCE_EXHAUSTED;
    rk_status status;
    long failing = 0;
    add_tensor(&item, "shm", (tensor_parts){.dtype = "uint8", TWO_BY_TWO, .segment = "one", .nbytes = 4});
    add_tensor(&item, "far", (tensor_parts){.dtype = "uint8", TWO_BY_TWO, .bytes = "1234", .size = 4});
    rk_buf buf = with_item(item);
    add_item(&buf, image((tensor_parts){.dtype = "uint8", TWO_BY_TWO, .descriptor = "x", .nbytes = 4}));
    add_encoder(&buf, 1, "host", 1, 1);
    for (; code == RK_RESOURCE_EXHAUSTED; failing++) {
        left = failing;
        code = decode_generate(&buf, &limits, &request, &status);
        left = -1;
        if (code == RK_RESOURCE_EXHAUSTED)
            ck_assert_int_eq(arenas, 0);
    }
    ck_assert_int_eq(code, RK_OK);
    ck_assert_int_gt(failing, 20);
    rk_request_unref(request);
    ck_assert_int_eq(arenas, 0);
    rk_buf_free(&buf);
}
END_TEST

/* Runs `write` with each growth of the buffer failing in turn. */
static void each_growth_fails(void (*write)(rk_buf *out)) {
    for (long failing = 0;; failing++) {
        rk_buf out = RK_BUF_INIT;
        left = failing;
        write(&out);
        bool failed = out.failed;
        rk_buf_free(&out);
        ck_assert_int_lt(failing, 1000);
        if (!failed) {
            ck_assert_int_gt(failing, 0);
            return;
        }
    }
}

static void write_outputs(rk_buf *out) {
    static const uint32_t ids[] = {1, 2};
    const rk_completion completion = {.tokens = {.ids = ids, .count = 2}, .finish = RK_FINISH_STOP};
    rk_dialect_tokenspeed.encode_chunk(out, &(rk_text){"r", 1}, &completion.tokens);
    rk_dialect_tokenspeed.encode_complete(out, &(rk_text){"r", 1}, &completion);
}

static rk_value *args;

static void write_info(rk_buf *out) {
    static const int32_t eos[] = {1, 2};
    rk_worker_info info = {.model_path = "\xFF", .eos_token_ids = eos, .eos_token_id_count = 2};
    rk_server_state state = {.info = &info, .server_args = args};
    rk_load_row row = {.running = 1};
    rk_dialect_tokenspeed.encode_model_info(out, &info, NULL);
    rk_dialect_tokenspeed.encode_server_info(out, &state);
    rk_dialect_tokenspeed.encode_loads(out, &(rk_loads_query){.core = true}, &row, 1, 1, "now");
    rk_dialect_tokenspeed.encode_abort(out, true, "done");
    rk_dialect_tokenspeed.encode_health(out, true, "fine");
}

static void write_services(rk_buf *out) {
    static const char *const services[] = {"", "one.Service"};
    rk_status status;
    rk_health_encode_list(out, services, 2, RK_SERVING);
    for (uint8_t field = 3; field <= 7; field++) {
        const uint8_t question[] = {(uint8_t)(field << 3 | BYTES), 0};
        ck_assert_int_eq(rk_reflection_answer(question, sizeof question, NULL, out, &status), RK_OK);
    }
}

START_TEST(an_answer_without_memory_is_marked_as_failed) {
    char text[300];
    memset(text, '\xFF', sizeof text);
    args = rk_value_map();
    ck_assert_int_eq(rk_value_set(args, "text", rk_value_string(text, sizeof text)), 0);
    ck_assert_int_eq(rk_value_set(args, "list", rk_value_list()), 0);
    each_growth_fails(write_outputs);
    each_growth_fails(write_info);
    each_growth_fails(write_services);
    rk_value_free(args);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("memory");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, a_request_without_memory_is_refused_whole);
    tcase_add_test(tcase, multimodal_inputs_without_memory_are_refused_whole);
    tcase_add_test(tcase, an_answer_without_memory_is_marked_as_failed);
    Suite *suite = suite_create("dialect_memory");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
