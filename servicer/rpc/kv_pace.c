/* When a stream of KV events says how loaded the worker is: with every batch; by itself when it has changed
 * (50 ms apart), after a second of silence, and after five when the last two had nothing new. */
#include <math.h>

#include "rpc/kv_call.h"

#define CHANGED_HEARTBEAT_MS 50 /* however often it changes */
#define HEARTBEAT_MS 1000
#define QUIET_HEARTBEAT_MS 5000
#define USAGE_STEP 0.005 /* of the KV budget, that is worth telling */

static double active(const rk_load_row *row) {
    return row->engine.active_token_usage >= 0 ? row->engine.active_token_usage : row->engine.token_usage;
}

static bool changed(const rk_load_row *last, const rk_load_row *now) {
    if (last->running != now->running || last->waiting != now->waiting || last->window != now->window ||
        last->engine_fresh != now->engine_fresh)
        return true;
    if (!now->engine_fresh)
        return false;
    if (fabs(last->engine.token_usage - now->engine.token_usage) > USAGE_STEP ||
        fabs(active(last) - active(now)) > USAGE_STEP)
        return true;
    /* Below 0: the engine does not say. */
    if (last->engine.gen_throughput < 0 || now->engine.gen_throughput < 0)
        return (last->engine.gen_throughput < 0) != (now->engine.gen_throughput < 0);
    double delta = fabs(last->engine.gen_throughput - now->engine.gen_throughput);
    double larger = last->engine.gen_throughput > now->engine.gen_throughput ? last->engine.gen_throughput
                                                                             : now->engine.gen_throughput;
    return delta > 50 || delta > 0.05 * larger;
}

bool rk_kv_pace_due(const rk_kv_pace *pace, const rk_load_row *now_row, uint64_t now) {
    if (!pace->known)
        return true;
    uint64_t silent_ms = now - pace->sent_ms;
    if (changed(&pace->last, now_row))
        return silent_ms >= CHANGED_HEARTBEAT_MS;
    return silent_ms >= (pace->quiet >= 2 ? QUIET_HEARTBEAT_MS : HEARTBEAT_MS);
}

rk_load_stamp rk_kv_pace_sent(rk_kv_pace *pace, const rk_load_row *row, bool only, uint64_t now) {
    pace->sent_ms = now;
    if (!row)
        return (rk_load_stamp){0};
    bool news = !only || !pace->known || changed(&pace->last, row);
    pace->quiet = news ? 0 : pace->quiet + 1;
    pace->known = true;
    pace->last = *row;
    pace->sample++;
    return (rk_load_stamp){.sample = pace->sample,
                           .only = only,
                           .telemetry = only || pace->sample == 1,
                           .age_ms = row->engine_fresh ? (uint32_t)row->engine_age_ms : 0};
}
