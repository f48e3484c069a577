/* What a worker says of itself: GetModelInfo, GetServerInfo, GetLoads, and the answers of HealthCheck and
 * Abort. Fields are written in the order of their numbers. Any thread. */
#include <string.h>

#include "dialects/tokenspeed/internal.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

/* The wire has 32 bits where we count in more. */
static int32_t clamp(uint64_t value) {
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

void rk_ts_encode_abort(rk_buf *out, bool success, const char *message) {
    rk_write_bool(out, RK_TS_ABORT_RESPONSE__SUCCESS, success);
    rk_write_text(out, RK_TS_ABORT_RESPONSE__MESSAGE, message);
}

void rk_ts_encode_health(rk_buf *out, bool healthy, const char *message) {
    rk_write_bool(out, RK_TS_HEALTH_CHECK_RESPONSE__HEALTHY, healthy);
    rk_write_text(out, RK_TS_HEALTH_CHECK_RESPONSE__MESSAGE, message);
}

/* ---- GetModelInfo ---- */

static void write_modalities(rk_buf *out, const rk_worker_info *info) {
    rk_write_bool(out, RK_TS_GET_MODEL_INFO_RESPONSE__SUPPORTS_VISION, info->supports_vision);
    rk_write_bool(out, RK_TS_GET_MODEL_INFO_RESPONSE__SUPPORTS_MULTIMODAL, info->modality_count > 0);
    rk_write_packed_ints(out, RK_TS_GET_MODEL_INFO_RESPONSE__SUPPORTED_MODALITIES, info->modalities,
                         info->modality_count);
}

void rk_ts_encode_model_info(rk_buf *out, const rk_worker_info *info, const char *weight_version) {
    /* Gateways list the model by this name; without one every request would be a 404 there. */
    bool named = info->served_model_name && *info->served_model_name;
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__MODEL_PATH, info->model_path);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__TOKENIZER_PATH, info->tokenizer_path);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__SERVED_MODEL_NAME,
                  named ? info->served_model_name : info->model_path);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__MODEL_TYPE, info->model_type);
    for (size_t i = 0; i < info->architecture_count; i++)
        rk_write_text_always(out, RK_TS_GET_MODEL_INFO_RESPONSE__ARCHITECTURES, info->architectures[i],
                             strlen(info->architectures[i]));
    rk_write_int(out, RK_TS_GET_MODEL_INFO_RESPONSE__MAX_CONTEXT_LENGTH, clamp(info->max_context));
    rk_write_int(out, RK_TS_GET_MODEL_INFO_RESPONSE__MAX_REQ_INPUT_LEN, clamp(info->max_req_input_len));
    rk_write_int(out, RK_TS_GET_MODEL_INFO_RESPONSE__VOCAB_SIZE, clamp(info->vocab_size));
    rk_write_packed_ints(out, RK_TS_GET_MODEL_INFO_RESPONSE__EOS_TOKEN_IDS, info->eos_token_ids,
                         info->eos_token_id_count);
    rk_write_int(out, RK_TS_GET_MODEL_INFO_RESPONSE__PAD_TOKEN_ID, info->pad_token_id);
    rk_write_int(out, RK_TS_GET_MODEL_INFO_RESPONSE__BOS_TOKEN_ID, info->bos_token_id);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__WEIGHT_VERSION,
                  weight_version ? weight_version : info->weight_version);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__DEFAULT_SAMPLING_PARAMS_JSON,
                  info->default_sampling_params_json);
    write_modalities(out, info);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__MODEL_DTYPE, info->model_dtype);
    rk_write_text(out, RK_TS_GET_MODEL_INFO_RESPONSE__MULTIMODAL_ENCODER_DTYPE,
                  info->multimodal_encoder_dtype);
}

/* ---- GetServerInfo ---- */

/* Present also when empty. */
static void write_map(rk_buf *out, uint32_t number, const rk_value *map) {
    size_t begun = rk_write_begin(out, number);
    rk_write_struct(out, map);
    rk_write_end(out, begun);
}

void rk_ts_encode_server_info(rk_buf *out, const rk_server_state *state) {
    write_map(out, RK_TS_GET_SERVER_INFO_RESPONSE__SERVER_ARGS, state->server_args);
    write_map(out, RK_TS_GET_SERVER_INFO_RESPONSE__SCHEDULER_INFO, state->scheduler_info);
    rk_write_int(out, RK_TS_GET_SERVER_INFO_RESPONSE__ACTIVE_REQUESTS, state->active_requests);
    rk_write_bool(out, RK_TS_GET_SERVER_INFO_RESPONSE__IS_PAUSED, state->is_paused);
    rk_write_double(out, RK_TS_GET_SERVER_INFO_RESPONSE__UPTIME_SECONDS, state->uptime_seconds);
    rk_write_int(out, RK_TS_GET_SERVER_INFO_RESPONSE__MAX_TOTAL_NUM_TOKENS, clamp(state->info->kv_tokens));
    rk_write_text(out, RK_TS_GET_SERVER_INFO_RESPONSE__TOKENSPEED_VERSION, state->info->engine_version);
    size_t begun = rk_write_begin(out, RK_TS_GET_SERVER_INFO_RESPONSE__START_TIME);
    rk_write_int(out, RK_PB_TIMESTAMP__SECONDS, state->start_seconds);
    rk_write_end(out, begun);
    rk_write_text(out, RK_TS_GET_SERVER_INFO_RESPONSE__CONSTRAINED_DECODING,
                  state->info->constrained_decoding);
}

/* ---- GetLoads ---- */

/* A mean over the ranks that know the number. */
typedef struct mean {
    double sum;
    size_t count;
} mean;

static void add_to(mean *m, bool known, double value) {
    if (known) {
        m->sum += value;
        m->count++;
    }
}

static double mean_of(const mean *m) {
    return m->count ? m->sum / (double)m->count : 0;
}

static double utilization(const rk_load_row *row) {
    return row->window ? (double)row->running / row->window : 0;
}

/* Written when the engine has said it, and lately. */
static void write_known(rk_buf *out, const rk_load_row *row, uint32_t number, double value) {
    if (row->engine_fresh && value >= 0)
        rk_write_double(out, number, value);
}

static void write_row(rk_buf *out, const rk_load_row *row) {
    const rk_engine_load *engine = &row->engine;
    uint64_t total = (uint64_t)row->running + row->waiting;
    rk_write_int(out, RK_TS_SCHEDULER_LOAD__DP_RANK, row->rank);
    rk_write_int(out, RK_TS_SCHEDULER_LOAD__NUM_RUNNING_REQS, clamp(row->running));
    rk_write_int(out, RK_TS_SCHEDULER_LOAD__NUM_WAITING_REQS, clamp(row->waiting));
    rk_write_int(out, RK_TS_SCHEDULER_LOAD__NUM_TOTAL_REQS, clamp(total));
    if (row->engine_fresh && engine->used_tokens >= 0)
        rk_write_int(out, RK_TS_SCHEDULER_LOAD__NUM_USED_TOKENS, clamp((uint64_t)engine->used_tokens));
    if (row->engine_fresh && engine->max_total_tokens >= 0)
        rk_write_int(out, RK_TS_SCHEDULER_LOAD__MAX_TOTAL_NUM_TOKENS,
                     clamp((uint64_t)engine->max_total_tokens));
    rk_write_int(out, RK_TS_SCHEDULER_LOAD__MAX_RUNNING_REQUESTS, clamp(row->window));
    write_known(out, row, RK_TS_SCHEDULER_LOAD__TOKEN_USAGE, engine->token_usage);
    write_known(out, row, RK_TS_SCHEDULER_LOAD__GEN_THROUGHPUT, engine->gen_throughput);
    write_known(out, row, RK_TS_SCHEDULER_LOAD__CACHE_HIT_RATE, engine->cache_hit_rate);
    rk_write_double(out, RK_TS_SCHEDULER_LOAD__UTILIZATION, utilization(row));
    if (row->engine_fresh && engine->active_token_usage >= 0)
        rk_write_double_always(out, RK_TS_SCHEDULER_LOAD__ACTIVE_TOKEN_USAGE, engine->active_token_usage);
}

typedef struct totals {
    uint64_t running;
    uint64_t waiting;
    mean token_usage;
    mean throughput;
    mean utilization;
} totals;

static void add_row(totals *sum, const rk_load_row *row) {
    const rk_engine_load *engine = &row->engine;
    sum->running += row->running;
    sum->waiting += row->waiting;
    add_to(&sum->token_usage, row->engine_fresh && engine->token_usage >= 0, engine->token_usage);
    add_to(&sum->throughput, row->engine_fresh && engine->gen_throughput >= 0, engine->gen_throughput);
    add_to(&sum->utilization, row->window > 0, utilization(row));
}

static void write_totals(rk_buf *out, const totals *sum) {
    rk_write_int(out, RK_TS_AGGREGATE_METRICS__TOTAL_RUNNING_REQS, clamp(sum->running));
    rk_write_int(out, RK_TS_AGGREGATE_METRICS__TOTAL_WAITING_REQS, clamp(sum->waiting));
    rk_write_int(out, RK_TS_AGGREGATE_METRICS__TOTAL_REQS, clamp(sum->running + sum->waiting));
    rk_write_double(out, RK_TS_AGGREGATE_METRICS__AVG_TOKEN_USAGE, mean_of(&sum->token_usage));
    rk_write_double(out, RK_TS_AGGREGATE_METRICS__AVG_THROUGHPUT, mean_of(&sum->throughput));
    rk_write_double(out, RK_TS_AGGREGATE_METRICS__AVG_UTILIZATION, mean_of(&sum->utilization));
}

/* The counters of a rank are always sent, whatever `include` names: left out they would read as an idle
 * worker. `memory` and `queues` stay away: this engine reports neither, and their fields know no "unknown".
 */
void rk_ts_encode_loads(rk_buf *out, const rk_loads_query *query, const rk_load_row *rows, size_t count,
                        uint32_t rank_count, const char *timestamp) {
    totals sum = {0};
    rk_write_text(out, RK_TS_GET_LOADS_RESPONSE__TIMESTAMP, timestamp);
    rk_write_text(out, RK_TS_GET_LOADS_RESPONSE__VERSION, "tokenspeed");
    rk_write_int(out, RK_TS_GET_LOADS_RESPONSE__DP_RANK_COUNT, clamp(rank_count));
    for (size_t i = 0; i < count; i++) {
        if (query->has_rank && rows[i].rank != query->rank)
            continue;
        size_t begun = rk_write_begin(out, RK_TS_GET_LOADS_RESPONSE__LOADS);
        write_row(out, &rows[i]);
        rk_write_end(out, begun);
        add_row(&sum, &rows[i]);
    }
    size_t begun = rk_write_begin(out, RK_TS_GET_LOADS_RESPONSE__AGGREGATE);
    write_totals(out, &sum);
    rk_write_end(out, begun);
}
