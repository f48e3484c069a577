/* The calls that go through to the engine: FlushCache, StartProfile, StopProfile, GetTokenizer. Any thread.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

static rk_code no_memory(rk_status *status) {
    return rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory: try again later");
}

/* ---- FlushCache ---- */

typedef struct flush_draft {
    float timeout_s;
} flush_draft;

static const rk_row flush_rows[] = {
    [RK_SMG_FLUSH_CACHE_REQUEST__TIMEOUT_S] = {.kind = RK_ROW_FLOAT,
                                               .path = "timeout_s",
                                               .offset = offsetof(flush_draft, timeout_s)},
};
static const rk_schema flush_schema = {"FlushCacheRequest", flush_rows, RK_COUNT(flush_rows), 0};

rk_code rk_ts_decode_flush(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status) {
    flush_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &flush_schema, &draft);
    if (code != RK_OK)
        return code;
    if (draft.timeout_s < 0)
        return rk_status_set(
            status, RK_INVALID_ARGUMENT,
            "timeout_s is %g; give the seconds that the engine may take to become idle, or 0",
            (double)draft.timeout_s);
    *argument = rk_value_map();
    if (*argument && rk_value_set(*argument, "timeout_s", rk_value_number((double)draft.timeout_s)) == 0)
        return RK_OK;
    rk_value_free(*argument);
    return no_memory(status);
}

/* ---- StartProfile ---- */

enum {
    HAS_OUTPUT_DIR = 1u << 0,
    HAS_START_STEP = 1u << 1,
    HAS_NUM_STEPS = 1u << 2,
    HAS_WITH_STACK = 1u << 3,
    HAS_RECORD_SHAPES = 1u << 4,
};

typedef struct profile_draft {
    uint32_t has;
    rk_wire output_dir;
    int32_t start_step;
    int32_t num_steps;
    bool with_stack;
    bool record_shapes;
    bool by_stage;
    rk_value *activities; /* NULL: none named */
} profile_draft;

static rk_code read_activity(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    profile_draft *draft = target;
    rk_wire text;
    rk_code code = rk_read_text(reader, row->path, field, &text);
    if (code != RK_OK)
        return code;
    if (rk_wire_size(text) == 0)
        return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                             "activities has an empty name; name an activity, or leave it out");
    if (!draft->activities)
        draft->activities = rk_value_list();
    if (!draft->activities ||
        rk_value_append(draft->activities, rk_value_string((const char *)text.at, rk_wire_size(text))) < 0)
        return rk_no_memory(reader);
    return RK_OK;
}

static const rk_row profile_rows[] = {
    [RK_SMG_START_PROFILE_REQUEST__OUTPUT_DIR] = {.kind = RK_ROW_TEXT,
                                                  .path = "output_dir",
                                                  .offset = offsetof(profile_draft, output_dir),
                                                  .has = HAS_OUTPUT_DIR},
    [RK_SMG_START_PROFILE_REQUEST__START_STEP] = {.kind = RK_ROW_INT32,
                                                  .path = "start_step",
                                                  .offset = offsetof(profile_draft, start_step),
                                                  .has = HAS_START_STEP},
    [RK_SMG_START_PROFILE_REQUEST__NUM_STEPS] = {.kind = RK_ROW_INT32,
                                                 .path = "num_steps",
                                                 .offset = offsetof(profile_draft, num_steps),
                                                 .has = HAS_NUM_STEPS},
    [RK_SMG_START_PROFILE_REQUEST__ACTIVITIES] = {.kind = RK_ROW_CUSTOM,
                                                  .path = "activities",
                                                  .read = read_activity},
    [RK_SMG_START_PROFILE_REQUEST__WITH_STACK] = {.kind = RK_ROW_BOOL,
                                                  .path = "with_stack",
                                                  .offset = offsetof(profile_draft, with_stack),
                                                  .has = HAS_WITH_STACK},
    [RK_SMG_START_PROFILE_REQUEST__RECORD_SHAPES] = {.kind = RK_ROW_BOOL,
                                                     .path = "record_shapes",
                                                     .offset = offsetof(profile_draft, record_shapes),
                                                     .has = HAS_RECORD_SHAPES},
    [RK_SMG_START_PROFILE_REQUEST__PROFILE_BY_STAGE] = {.kind = RK_ROW_BOOL,
                                                        .path = "profile_by_stage",
                                                        .offset = offsetof(profile_draft, by_stage)},
};
static const rk_schema profile_schema = {"StartProfileRequest", profile_rows, RK_COUNT(profile_rows),
                                         offsetof(profile_draft, has)};

static rk_code check_profile(const profile_draft *draft, rk_status *status) {
    size_t dir_bytes = rk_wire_size(draft->output_dir);
    if (draft->has & HAS_OUTPUT_DIR && dir_bytes == 0)
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "output_dir is empty; name a directory, or leave it out for the engine's own");
    if (dir_bytes && memchr(draft->output_dir.at, '\0', dir_bytes))
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "output_dir has a NUL character in it; name a directory without");
    if (draft->has & HAS_START_STEP && draft->start_step < 0)
        return rk_status_set(status, RK_INVALID_ARGUMENT, "start_step is %" PRId32 "; it must be 0 or more",
                             draft->start_step);
    if (draft->has & HAS_NUM_STEPS && draft->num_steps < 1)
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "num_steps is %" PRId32 "; it must be 1 or more, or left out for no end",
                             draft->num_steps);
    return RK_OK;
}

static bool put(rk_value *map, const char *key, bool wanted, rk_value *value) {
    if (wanted)
        return rk_value_set(map, key, value) == 0;
    rk_value_free(value);
    return true;
}

/* Takes over the draft's list. */
static rk_value *profile_argument(profile_draft *draft) {
    uint32_t has = draft->has;
    rk_value *map = rk_value_map();
    rk_value *dir = rk_value_string((const char *)draft->output_dir.at, rk_wire_size(draft->output_dir));
    bool listed = draft->activities != NULL;
    bool made = map != NULL;
    made &= put(map, "output_dir", has & HAS_OUTPUT_DIR, dir);
    made &= put(map, "start_step", has & HAS_START_STEP, rk_value_number(draft->start_step));
    made &= put(map, "num_steps", has & HAS_NUM_STEPS, rk_value_number(draft->num_steps));
    made &= put(map, "with_stack", has & HAS_WITH_STACK, rk_value_bool(draft->with_stack));
    made &= put(map, "record_shapes", has & HAS_RECORD_SHAPES, rk_value_bool(draft->record_shapes));
    made &= put(map, "profile_by_stage", true, rk_value_bool(draft->by_stage));
    made &= put(map, "activities", listed, draft->activities);
    draft->activities = NULL;
    if (made)
        return map;
    rk_value_free(map);
    return NULL;
}

rk_code rk_ts_decode_profile(const uint8_t *bytes, size_t size, rk_value **argument, rk_status *status) {
    profile_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &profile_schema, &draft);
    if (code == RK_OK)
        code = check_profile(&draft, status);
    if (code != RK_OK) {
        rk_value_free(draft.activities);
        return code;
    }
    *argument = profile_argument(&draft);
    return *argument ? RK_OK : no_memory(status);
}

/* ---- answers ---- */

/* FlushCacheResponse and ProfileResponse have the same fields. */
_Static_assert((int)RK_SMG_FLUSH_CACHE_RESPONSE__SUCCESS == (int)RK_SMG_PROFILE_RESPONSE__SUCCESS, "same");
_Static_assert((int)RK_SMG_FLUSH_CACHE_RESPONSE__MESSAGE == (int)RK_SMG_PROFILE_RESPONSE__MESSAGE, "same");

void rk_ts_encode_outcome(rk_buf *out, bool success, const char *message) {
    rk_write_bool(out, RK_SMG_FLUSH_CACHE_RESPONSE__SUCCESS, success);
    rk_write_text(out, RK_SMG_FLUSH_CACHE_RESPONSE__MESSAGE, message);
}

void rk_ts_encode_tokenizer(rk_buf *out, const uint8_t *bytes, size_t size, const char *sha256) {
    if (size > 0)
        rk_write_bytes_always(out, RK_SMG_GET_TOKENIZER_CHUNK__DATA, bytes, size);
    rk_write_text(out, RK_SMG_GET_TOKENIZER_CHUNK__SHA256, sha256);
}
