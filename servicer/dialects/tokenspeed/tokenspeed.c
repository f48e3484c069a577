/* The TokenSpeed dialect: the table that the rpc layer works with. */
#include "dialects/tokenspeed/internal.h"

#define SERVICE "tokenspeed.grpc.scheduler.TokenSpeedScheduler"
#define ENCODE_SERVICE "tokenspeed.grpc.encoder.TokenSpeedEncoder"
#define PATH(method) ("/" SERVICE "/" method)
#define ENCODE_PATH(method) ("/" ENCODE_SERVICE "/" method)

const rk_dialect rk_dialect_tokenspeed = {
    .name = "tokenspeed",
    .service = SERVICE,
    .encode_service = ENCODE_SERVICE,
    .methods =
        {
            [RK_METHOD_GENERATE] = PATH("Generate"),
            [RK_METHOD_ABORT] = PATH("Abort"),
            [RK_METHOD_HEALTH_CHECK] = PATH("HealthCheck"),
            [RK_METHOD_GET_MODEL_INFO] = PATH("GetModelInfo"),
            [RK_METHOD_GET_SERVER_INFO] = PATH("GetServerInfo"),
            [RK_METHOD_GET_LOADS] = PATH("GetLoads"),
            [RK_METHOD_FLUSH_CACHE] = PATH("FlushCache"),
            [RK_METHOD_START_PROFILE] = PATH("StartProfile"),
            [RK_METHOD_STOP_PROFILE] = PATH("StopProfile"),
            [RK_METHOD_GET_TOKENIZER] = PATH("GetTokenizer"),
            [RK_METHOD_ENCODE] = ENCODE_PATH("Encode"),
            [RK_METHOD_SUBSCRIBE_KV_EVENTS] = PATH("SubscribeKvEvents"),
        },
    .decode_generate = rk_ts_decode_generate,
    .decode_encode = rk_ts_decode_encode,
    .each_segment = rk_ts_each_segment,
    .decode_abort = rk_ts_decode_abort,
    .decode_empty = rk_ts_decode_empty,
    .decode_loads = rk_ts_decode_loads,
    .decode_flush = rk_ts_decode_flush,
    .decode_profile = rk_ts_decode_profile,
    .decode_kv = rk_ts_decode_kv,
    .encode_kv_load = rk_ts_encode_kv_load,
    .encode_chunk = rk_ts_encode_chunk,
    .encode_complete = rk_ts_encode_complete,
    .encode_abort = rk_ts_encode_abort,
    .encode_outcome = rk_ts_encode_outcome,
    .encode_tokenizer = rk_ts_encode_tokenizer,
    .encode_accepted = rk_ts_encode_accepted,
    .encode_health = rk_ts_encode_health,
    .encode_model_info = rk_ts_encode_model_info,
    .encode_server_info = rk_ts_encode_server_info,
    .encode_loads = rk_ts_encode_loads,
};
