/* Any bytes as one of the small messages, which the first byte chooses: read, or refused in one line; what
 * was read and is written again reads the same.
 *
 *   0 AbortRequest   1 a request without fields (HealthCheck, GetModelInfo, GetServerInfo, StopProfile,
 *   GetTokenizer)    2 GetLoadsRequest   3 FlushCacheRequest   4 StartProfileRequest   5 HealthCheckRequest
 * of grpc.health.v1 (Check, Watch)   6 EncodeRequest   7 SubscribeKvEventsRequest */
#include <math.h>

#include "dialect_wire.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const rk_dialect *const dialect = &rk_dialect_tokenspeed;

static bool taken(rk_code code, const rk_status *status) {
    if (code == RK_OK)
        return true;
    ck_assert_int_eq(code, RK_INVALID_ARGUMENT);
    ck_assert_int_eq(status->code, code);
    check_line(status);
    return false;
}

static void is_text(const char *text, size_t bytes) {
    ck_assert_uint_eq(strlen(text), bytes);
    ck_assert(rk_utf8_valid(text, bytes));
}

/* ---- each of them ---- */

static void abort_request(const uint8_t *data, size_t size) {
    char id[513], again[513];
    size_t bytes = 0, bytes_again = 0;
    rk_status status;
    if (!taken(dialect->decode_abort(data, size, id, &bytes, &status), &status))
        return;
    ck_assert_uint_ge(bytes, 1);
    is_text(id, bytes);
    rk_buf out = RK_BUF_INIT;
    raw_bytes(&out, RK_TS_ABORT_REQUEST__REQUEST_ID, id, bytes);
    ck_assert_int_eq(dialect->decode_abort(out.data, out.size, again, &bytes_again, &status), RK_OK);
    ck_assert_str_eq(id, again);
    ck_assert_uint_eq(bytes, bytes_again);
    rk_buf_free(&out);
}

/* Whatever fields it has, twice the same message is a message too. */
static void no_fields(const uint8_t *data, size_t size) {
    rk_status status;
    if (!taken(dialect->decode_empty(data, size, &status), &status))
        return;
    rk_buf twice = RK_BUF_INIT;
    rk_buf_append(&twice, data, size);
    rk_buf_append(&twice, data, size);
    ck_assert_int_eq(dialect->decode_empty(twice.data ? twice.data : data, twice.size, &status), RK_OK);
    rk_buf_free(&twice);
}

static void loads(const uint8_t *data, size_t size) {
    rk_loads_query query, again;
    rk_status status;
    if (!taken(dialect->decode_loads(data, size, &query, &status), &status))
        return;
    rk_buf out = RK_BUF_INIT;
    if (query.has_rank)
        rk_write_int_always(&out, RK_TS_GET_LOADS_REQUEST__DP_RANK, query.rank);
    const char *const names[] = {query.core ? "core" : "", query.memory ? "memory" : "",
                                 query.queues ? "queues" : "", query.disagg ? "disagg" : ""};
    for (size_t i = 0; i < 4; i++)
        raw_text(&out, RK_TS_GET_LOADS_REQUEST__INCLUDE, names[i]);
    ck_assert_int_eq(dialect->decode_loads(out.data, out.size, &again, &status), RK_OK);
    rk_buf_free(&out);
    ck_assert(query.has_rank == again.has_rank && query.rank == again.rank);
    ck_assert(query.core == again.core && query.memory == again.memory);
    ck_assert(query.queues == again.queues && query.disagg == again.disagg);
}

static double number_of(const rk_value *map, const char *key) {
    const rk_value *value = rk_value_get(map, key);
    ck_assert(value && value->kind == RK_VALUE_NUMBER && isfinite(value->number));
    return value->number;
}

static void flush(const uint8_t *data, size_t size) {
    rk_value *argument = NULL, *again = NULL;
    rk_status status;
    if (!taken(dialect->decode_flush(data, size, &argument, &status), &status))
        return;
    double seconds = number_of(argument, "timeout_s");
    ck_assert(seconds >= 0);
    rk_buf out = RK_BUF_INIT;
    raw_float(&out, RK_SMG_FLUSH_CACHE_REQUEST__TIMEOUT_S, (float)seconds);
    ck_assert_int_eq(dialect->decode_flush(out.data, out.size, &again, &status), RK_OK);
    ck_assert_double_eq(number_of(again, "timeout_s"), seconds);
    rk_buf_free(&out);
    rk_value_free(argument);
    rk_value_free(again);
}

/* Once what has come is in a Struct's bytes it can be compared. */
static rk_buf bytes_of(const rk_value *map) {
    rk_buf out = RK_BUF_INIT;
    rk_write_struct(&out, map);
    ck_assert(!out.failed);
    return out;
}

static void write_number(rk_buf *out, uint32_t number, const rk_value *value) {
    if (value)
        rk_write_int_always(out, number, (int64_t)value->number);
}

static void write_flag(rk_buf *out, uint32_t number, const rk_value *value) {
    if (value)
        rk_write_bool_always(out, number, value->boolean);
}

static void profile(const uint8_t *data, size_t size) {
    rk_value *map = NULL, *again = NULL;
    rk_status status;
    if (!taken(dialect->decode_profile(data, size, &map, &status), &status))
        return;
    rk_buf out = RK_BUF_INIT;
    const rk_value *dir = rk_value_get(map, "output_dir");
    const rk_value *activities = rk_value_get(map, "activities");
    if (dir) {
        ck_assert(rk_utf8_valid(dir->string, dir->string_bytes));
        raw_bytes(&out, RK_SMG_START_PROFILE_REQUEST__OUTPUT_DIR, dir->string, dir->string_bytes);
    }
    write_number(&out, RK_SMG_START_PROFILE_REQUEST__START_STEP, rk_value_get(map, "start_step"));
    write_number(&out, RK_SMG_START_PROFILE_REQUEST__NUM_STEPS, rk_value_get(map, "num_steps"));
    write_flag(&out, RK_SMG_START_PROFILE_REQUEST__WITH_STACK, rk_value_get(map, "with_stack"));
    write_flag(&out, RK_SMG_START_PROFILE_REQUEST__RECORD_SHAPES, rk_value_get(map, "record_shapes"));
    write_flag(&out, RK_SMG_START_PROFILE_REQUEST__PROFILE_BY_STAGE, rk_value_get(map, "profile_by_stage"));
    for (size_t i = 0; activities && i < activities->count; i++)
        raw_bytes(&out, RK_SMG_START_PROFILE_REQUEST__ACTIVITIES, activities->items[i]->string,
                  activities->items[i]->string_bytes);
    ck_assert_int_eq(dialect->decode_profile(out.data, out.size, &again, &status), RK_OK);
    rk_buf one = bytes_of(map), other = bytes_of(again);
    ck_assert_uint_eq(one.size, other.size);
    ck_assert_int_eq(memcmp(one.data, other.data, one.size), 0);
    rk_buf_free(&one);
    rk_buf_free(&other);
    rk_buf_free(&out);
    rk_value_free(map);
    rk_value_free(again);
}

static void health(const uint8_t *data, size_t size) {
    char service[256], again[256];
    rk_status status;
    memset(service, 'x', sizeof service);
    if (!taken(rk_health_decode(data, size, service, &status), &status))
        return;
    ck_assert_ptr_nonnull(memchr(service, '\0', sizeof service));
    is_text(service, strlen(service));
    rk_buf out = RK_BUF_INIT;
    raw_text(&out, RK_HEALTH_HEALTH_CHECK_REQUEST__SERVICE, service);
    ck_assert_int_eq(rk_health_decode(out.data, out.size, again, &status), RK_OK);
    ck_assert_str_eq(service, again);
    rk_buf_free(&out);
}

/* Without a keeper nothing of a request points into the bytes. */
static void encode(const uint8_t *data, size_t size) {
    rk_limits limits = plain_limits();
    rk_request *request = NULL;
    int64_t room = 0;
    rk_status status;
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    rk_code code = dialect->decode_encode(copy, size, &limits, NULL, &request, &room, &status);
    memset(copy, 0xAA, size);
    free(copy);
    ck_assert_int_eq(status.code, code);
    if (code == RK_OK) {
        ck_assert_ptr_nonnull(request);
        rk_request_unref(request);
        return;
    }
    ck_assert_ptr_null(request);
    check_line(&status);
}

static void subscribe(const uint8_t *data, size_t size) {
    rk_kv_query query, again;
    rk_status status;
    if (!taken(dialect->decode_kv(data, size, &query, &status), &status))
        return;
    rk_buf out = RK_BUF_INIT;
    rk_write_uint(&out, RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__START_SEQUENCE_NUMBER, query.start);
    rk_write_bool_always(&out, RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__LOAD_RECORDS_BEFORE_FIRST_BATCH,
                         query.load_first);
    ck_assert_int_eq(dialect->decode_kv(out.data, out.size, &again, &status), RK_OK);
    rk_buf_free(&out);
    ck_assert_uint_eq(query.start, again.start);
    ck_assert(query.load_first == again.load_first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const messages[])(const uint8_t *, size_t) = {abort_request, no_fields, loads,  flush,
                                                                profile,       health,    encode, subscribe};
    if (size == 0)
        return 0;
    uint8_t *copy = malloc(size); /* ends where its memory ends; a message of no bytes is one as well */
    memcpy(copy, data + 1, size - 1);
    messages[data[0] % (sizeof messages / sizeof messages[0])](copy, size - 1);
    free(copy);
    return 0;
}
