/* SubscribeKvEvents: the request, and the load that goes with a batch. Any thread. */
#include <stddef.h>

#include "base/cleanup.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

static const rk_row kv_rows[] = {
    [RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__START_SEQUENCE_NUMBER] = {.kind = RK_ROW_UINT64,
                                                                   .path = "start_sequence_number",
                                                                   .offset = offsetof(rk_kv_query, start)},
    [RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__LOAD_RECORDS_BEFORE_FIRST_BATCH] =
        {.kind = RK_ROW_BOOL,
         .path = "load_records_before_first_batch",
         .offset = offsetof(rk_kv_query, load_first)},
};
static const rk_schema kv_schema = {"SubscribeKvEventsRequest", kv_rows, RK_COUNT(kv_rows), 0};

rk_code rk_ts_decode_kv(const uint8_t *bytes, size_t size, rk_kv_query *query, rk_status *status) {
    *query = (rk_kv_query){0};
    rk_reader reader = {.status = status};
    return rk_read_call(&reader, bytes, size, &kv_schema, query);
}

static void write_telemetry(rk_buf *out, const rk_load_row *row) {
    const rk_engine_load *engine = &row->engine;
    if (engine->cache_hit_rate >= 0)
        rk_write_double_always(out, RK_SMG_ENGINE_LOAD__CACHE_HIT_RATE, engine->cache_hit_rate);
    if (engine->used_tokens >= 0 && engine->used_tokens <= INT32_MAX)
        rk_write_int_always(out, RK_SMG_ENGINE_LOAD__NUM_USED_TOKENS, engine->used_tokens);
    if (engine->max_total_tokens >= 0 && engine->max_total_tokens <= INT32_MAX)
        rk_write_int_always(out, RK_SMG_ENGINE_LOAD__MAX_TOTAL_NUM_TOKENS, engine->max_total_tokens);
}

void rk_ts_encode_kv_load(rk_buf *out, const rk_load_row *row, const rk_load_stamp *stamp) {
    const rk_engine_load *engine = &row->engine;
    size_t begun = rk_write_begin(out, RK_SMG_KV_EVENT_BATCH__LOAD);
    rk_write_uint(out, RK_SMG_ENGINE_LOAD__RUNNING_REQUESTS, row->running);
    rk_write_uint(out, RK_SMG_ENGINE_LOAD__WAITING_REQUESTS, row->waiting);
    if (row->engine_fresh && engine->token_usage >= 0)
        rk_write_double(out, RK_SMG_ENGINE_LOAD__TOKEN_USAGE, engine->token_usage);
    if (row->engine_fresh && engine->gen_throughput >= 0)
        rk_write_double(out, RK_SMG_ENGINE_LOAD__GEN_THROUGHPUT, engine->gen_throughput);
    rk_write_uint(out, RK_SMG_ENGINE_LOAD__MAX_RUNNING_REQUESTS, row->window);
    rk_write_uint(out, RK_SMG_ENGINE_LOAD__AGE_MS, stamp->age_ms);
    rk_write_uint(out, RK_SMG_ENGINE_LOAD__SAMPLE, stamp->sample);
    rk_write_bool(out, RK_SMG_ENGINE_LOAD__LOAD_ONLY, stamp->only);
    if (row->engine_fresh && stamp->telemetry)
        write_telemetry(out, row);
    if (row->engine_fresh && engine->active_token_usage >= 0)
        rk_write_double_always(out, RK_SMG_ENGINE_LOAD__ACTIVE_TOKEN_USAGE, engine->active_token_usage);
    rk_write_end(out, begun);
}
