/* A rank's load, for GetLoads and for the records on KV events. Any thread, from memory. */
#include <stdlib.h>

#include "rpc/internal.h"

#define FRESH_MS 5000 /* what the engine said before that is stale */

static void copy_engine_load(rk_servicer *servicer, rk_load_row *row, uint64_t now) {
    row->engine = (rk_engine_load){.rank = row->rank,
                                   .running = -1,
                                   .waiting = -1,
                                   .used_tokens = -1,
                                   .max_total_tokens = -1,
                                   .token_usage = -1,
                                   .active_token_usage = -1,
                                   .gen_throughput = -1,
                                   .cache_hit_rate = -1};
    (void)pthread_mutex_lock(&servicer->engine_lock);
    bool fresh = servicer->loads_ms > 0 && now - servicer->loads_ms <= FRESH_MS;
    for (size_t i = 0; fresh && i < servicer->load_count; i++) {
        if (servicer->loads[i].rank == row->rank) {
            row->engine = servicer->loads[i];
            row->engine_fresh = true;
            row->engine_age_ms = now - servicer->loads_ms;
        }
    }
    (void)pthread_mutex_unlock(&servicer->engine_lock);
}

/* Running and waiting from our own state. What is in the engine beyond its window (possible only where
 * nothing is gated) waits there, so it is counted as waiting. */
void rk_load_fill(rk_servicer *servicer, rk_load_row *row, const rk_rank_counts *counts, uint32_t held,
                  uint64_t now) {
    uint32_t window = servicer->config.report_window ? servicer->rooms.window : 0;
    uint32_t running = counts->running;
    uint32_t overflow = 0;
    if (servicer->rooms.window > 0 && running > servicer->rooms.window) {
        overflow = running - servicer->rooms.window;
        running = servicer->rooms.window;
    }
    row->running = running;
    row->waiting = counts->waiting_slots + overflow + held;
    row->window = window;
    copy_engine_load(servicer, row, now);
}

bool rk_load_read(rk_servicer *servicer, uint32_t rank, uint64_t now, rk_load_row *row) {
    uint32_t ranks = servicer->rooms.ranks;
    rk_rank_counts *counts = rank < ranks ? calloc(ranks, sizeof *counts) : NULL;
    if (!counts)
        return false;
    rk_ledger_counts all;
    rk_ledger_read(servicer->ledger, &all);
    (void)rk_ledger_read_ranks(servicer->ledger, now, counts, ranks);
    *row = (rk_load_row){.rank = (int32_t)rank};
    rk_load_fill(servicer, row, &counts[rank], rank == 0 ? all.held : 0, now);
    free(counts);
    return true;
}
