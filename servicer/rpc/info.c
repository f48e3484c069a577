/* What a worker says of itself: a deep copy of what the engine's side gave, and the live part of
 * GetServerInfo (`scheduler_info.roomkeeper`), which `roomkeeper status` reads. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "rpc/links.h"

struct rk_info {
    rk_worker_info info; /* points into the arena and to the two values */
    rk_arena *arena;
    rk_value *server_args;
    rk_value *scheduler_info;
};

#define INFO_BYTES_MAX (1u << 20)

static const char *keep_text(rk_info *info, const char *text, bool *failed) {
    if (!text)
        return NULL;
    char *copy = rk_arena_strndup(info->arena, text, strlen(text));
    *failed |= copy == NULL;
    return copy;
}

static const int32_t *keep_numbers(rk_info *info, const int32_t *numbers, size_t count, bool *failed) {
    int32_t *copy = rk_arena_alloc(info->arena, count * sizeof *numbers);
    if (copy && count > 0)
        memcpy(copy, numbers, count * sizeof *numbers);
    *failed |= copy == NULL;
    return copy;
}

static void keep_architectures(rk_info *info, const rk_worker_info *from, bool *failed) {
    size_t count = from->architecture_count;
    const char **copy = rk_arena_alloc(info->arena, count * sizeof *copy);
    *failed |= copy == NULL;
    for (size_t i = 0; i < count && copy; i++)
        copy[i] = keep_text(info, from->architectures[i], failed);
    info->info.architectures = (const char *const *)copy;
}

static void keep_all(rk_info *info, const rk_worker_info *from, bool *failed) {
    rk_worker_info *to = &info->info;
    *to = *from;
    to->model_path = keep_text(info, from->model_path, failed);
    to->tokenizer_path = keep_text(info, from->tokenizer_path, failed);
    to->served_model_name = keep_text(info, from->served_model_name, failed);
    to->model_type = keep_text(info, from->model_type, failed);
    to->weight_version = keep_text(info, from->weight_version, failed);
    to->default_sampling_params_json = keep_text(info, from->default_sampling_params_json, failed);
    to->model_dtype = keep_text(info, from->model_dtype, failed);
    to->multimodal_encoder_dtype = keep_text(info, from->multimodal_encoder_dtype, failed);
    to->engine_version = keep_text(info, from->engine_version, failed);
    to->constrained_decoding = keep_text(info, from->constrained_decoding, failed);
    to->kv_endpoint = keep_text(info, from->kv_endpoint, failed);
    to->kv_replay_endpoint = keep_text(info, from->kv_replay_endpoint, failed);
    to->kv_topic = keep_text(info, from->kv_topic, failed);
    to->eos_token_ids = keep_numbers(info, from->eos_token_ids, from->eos_token_id_count, failed);
    to->modalities = keep_numbers(info, from->modalities, from->modality_count, failed);
    keep_architectures(info, from, failed);
    info->server_args = from->server_args ? rk_value_copy(from->server_args) : rk_value_map();
    info->scheduler_info = from->scheduler_info ? rk_value_copy(from->scheduler_info) : rk_value_map();
    *failed |= !info->server_args || !info->scheduler_info;
    to->server_args = info->server_args;
    to->scheduler_info = info->scheduler_info;
}

rk_info *rk_info_new(const rk_worker_info *from) {
    rk_info *info = calloc(1, sizeof *info);
    if (!info)
        return NULL;
    bool failed = false;
    info->arena = rk_arena_new(INFO_BYTES_MAX);
    if (info->arena)
        keep_all(info, from, &failed);
    if (!info->arena || failed) {
        rk_info_free(info);
        return NULL;
    }
    return info;
}

void rk_info_free(rk_info *info) {
    if (!info)
        return;
    rk_value_free(info->server_args);
    rk_value_free(info->scheduler_info);
    rk_arena_free(info->arena);
    free(info);
}

const rk_worker_info *rk_info_get(const rk_info *info) {
    return &info->info;
}

/* ---- server_args ---- */

/* Gateways read their admission window from max_num_seqs, else max_running_requests: it must be the window
 * that is enforced here, or not be there at all. */
rk_value *rk_info_server_args(rk_servicer *servicer) {
    rk_value *args = rk_value_copy(rk_info_get(servicer->info)->server_args);
    if (!args)
        return NULL;
    bool failed = false;
    if (!servicer->config.report_window) {
        failed |= rk_value_set(args, "max_num_seqs", rk_value_null()) < 0;
        failed |= rk_value_set(args, "max_running_requests", rk_value_null()) < 0;
    } else if (servicer->rooms.window > 0 || servicer->config.window >= 0) { /* shares are rounded down */
        double window = (double)servicer->rooms.window * servicer->rooms.ranks;
        failed |= rk_value_set(args, "max_num_seqs", rk_value_number(window)) < 0;
    }
    if (!failed)
        return args;
    rk_value_free(args);
    return NULL;
}

/* ---- scheduler_info.roomkeeper ---- */

static bool set_number(rk_value *map, const char *key, double number) {
    return rk_value_set(map, key, rk_value_number(number)) == 0;
}

static bool set_bool(rk_value *map, const char *key, bool boolean) {
    return rk_value_set(map, key, rk_value_bool(boolean)) == 0;
}

static bool set_text(rk_value *map, const char *key, const char *text) {
    return rk_value_set(map, key, rk_value_string(text, strlen(text))) == 0;
}

static bool add_engine(rk_servicer *servicer, rk_value *map, uint64_t now) {
    static const char *const states[] = {"starting", "ready", "stalled", "dead"};
    rk_engine_view view;
    rk_engine_look(servicer, now, &view);
    rk_value *engine = rk_value_map();
    return engine && set_text(engine, "state", states[view.state]) && set_text(engine, "why", view.why) &&
           set_number(engine, "silent_ms", (double)view.silent_ms) &&
           rk_value_set(map, "engine", engine) == 0;
}

static bool add_legs(rk_value *map, const rk_ledger_counts *counts) {
    rk_value *legs = rk_value_map();
    bool ok = legs != NULL;
    for (int state = RK_LEG_WAITING; ok && state <= RK_LEG_ENDED; state++) {
        const char *name = state == RK_LEG_ENDED ? "releasing" : rk_leg_state_name((rk_leg_state)state);
        ok = set_number(legs, name, counts->legs[state]);
    }
    return ok && rk_value_set(map, "legs", legs) == 0;
}

static bool add_causes(rk_value *map, const char *key, const uint64_t counts[RK_CAUSES]) {
    rk_value *causes = rk_value_map();
    bool ok = causes != NULL;
    for (int cause = RK_CAUSE_NONE + 1; ok && cause < RK_CAUSES; cause++)
        if (counts[cause] > 0)
            ok = set_number(causes, rk_cause_name((rk_cause)cause), (double)counts[cause]);
    return ok && rk_value_set(map, key, causes) == 0;
}

static rk_value *rank_map(uint32_t rank, const rk_rank_counts *counts) {
    rk_value *map = rk_value_map();
    bool ok = map && set_number(map, "rank", rank) && set_number(map, "window", counts->window) &&
              set_number(map, "held_slots", counts->held_slots) &&
              set_number(map, "releasing", counts->releasing) &&
              set_number(map, "waiting", counts->waiting) &&
              set_number(map, "waiting_slots", counts->waiting_slots) &&
              set_number(map, "running", counts->running) &&
              set_number(map, "claimed_tokens", (double)counts->claimed_tokens) &&
              set_number(map, "kv_tokens", (double)counts->kv_tokens) &&
              set_number(map, "oldest_releasing_ms", (double)counts->oldest_releasing_ms) &&
              set_number(map, "oldest_waiting_ms", (double)counts->oldest_waiting_ms);
    if (ok)
        return map;
    rk_value_free(map);
    return NULL;
}

static bool add_ranks(rk_servicer *servicer, rk_value *map, uint64_t now) {
    uint32_t count = servicer->rooms.ranks;
    rk_rank_counts *counts = calloc(count, sizeof *counts);
    rk_value *ranks = rk_value_list();
    bool ok = counts && ranks;
    if (ok)
        (void)rk_ledger_read_ranks(servicer->ledger, now, counts, count);
    for (uint32_t i = 0; ok && i < count; i++)
        ok = rk_value_append(ranks, rank_map(i, &counts[i])) == 0;
    free(counts);
    if (ok)
        return rk_value_set(map, "ranks", ranks) == 0;
    rk_value_free(ranks);
    return false;
}

#define PEERS_SHOWN 256

static rk_value *peer_map(const rk_peer_row *row) {
    rk_value *map = rk_value_map();
    bool ok = map && set_text(map, "name", row->name) && set_text(map, "address", row->address) &&
              set_text(map, "instance", row->instance) && set_text(map, "version", row->release) &&
              set_text(map, "state", rk_peer_phase_name(row->phase)) &&
              set_text(map, "engine", rk_link_engine_name(row->engine)) &&
              set_bool(map, "release", row->releases) && set_text(map, "why", row->why) &&
              set_number(map, "since_ms", (double)row->since_ms) &&
              set_number(map, "links", (double)row->ups) && set_number(map, "told", (double)row->told) &&
              set_number(map, "heard", (double)row->heard) &&
              set_number(map, "refused", (double)row->refused);
    if (ok)
        return map;
    rk_value_free(map);
    return NULL;
}

static bool add_peers(rk_value *map, const rk_peer_row *rows, uint32_t count) {
    rk_value *peers = rk_value_list();
    bool ok = peers != NULL;
    for (uint32_t i = 0; ok && i < count; i++)
        ok = rk_value_append(peers, peer_map(&rows[i])) == 0;
    if (ok)
        return rk_value_set(map, "peers", peers) == 0;
    rk_value_free(peers);
    return false;
}

/* The room link: who is there, and what has been refused. */
static bool add_links(const rk_servicer *servicer, rk_value *map, uint64_t now) {
    rk_peer_row *rows = calloc(PEERS_SHOWN, sizeof *rows);
    rk_value *links = rk_value_map();
    rk_peers_counts counts = {0};
    uint32_t known = 0;
    bool ok = rows && links;
    if (ok && servicer->links)
        known = rk_peers_read(servicer->links->peers, now, &counts, rows, PEERS_SHOWN);
    ok = ok && set_text(links, "listening", servicer->links ? servicer->links->address : "") &&
         set_number(links, "up", counts.up) && set_number(links, "known", counts.known) &&
         set_number(links, "lost", (double)counts.lost) && set_number(links, "dials", (double)counts.dials) &&
         set_number(links, "dials_failed", (double)counts.dials_failed) &&
         set_number(links, "streams_refused", (double)counts.streams_refused) &&
         set_number(links, "rooms_refused", (double)counts.rooms_refused) &&
         add_peers(links, rows, known < PEERS_SHOWN ? known : PEERS_SHOWN);
    free(rows);
    if (ok)
        return rk_value_set(map, "links", links) == 0;
    rk_value_free(links);
    return false;
}

static bool fill(rk_servicer *servicer, rk_value *map, uint64_t now) {
    rk_ledger_counts counts;
    rk_ledger_read(servicer->ledger, &counts);
    return set_text(map, "version", rk_version()) &&
           set_text(map, "role", rk_role_name(servicer->rooms.role)) &&
           set_bool(map, "rooms", servicer->rooms.enabled) && set_bool(map, "link", servicer->rooms.linked) &&
           add_links(servicer, map, now) && set_bool(map, "release", servicer->ops->release_room != NULL) &&
           set_number(map, "window", servicer->rooms.window) &&
           set_number(map, "waiting_places", servicer->rooms.waiting_places) &&
           set_number(map, "held_places", servicer->rooms.held_places) && add_engine(servicer, map, now) &&
           add_legs(map, &counts) && add_ranks(servicer, map, now) &&
           set_number(map, "arrived", (double)counts.arrived) &&
           set_number(map, "admitted", (double)counts.admitted) &&
           add_causes(map, "refused", counts.refused) && add_causes(map, "ended", counts.ended) &&
           set_number(map, "stranded", (double)counts.stranded) &&
           set_number(map, "tombstones", counts.tombstones) &&
           set_number(map, "announced", counts.announced) &&
           set_number(map, "open_streams", (double)atomic_load(&servicer->open_generates)) &&
           set_bool(map, "draining", counts.draining);
}

rk_value *rk_info_scheduler(rk_servicer *servicer) {
    rk_value *scheduler = rk_value_copy(rk_info_get(servicer->info)->scheduler_info);
    rk_value *own = rk_value_map();
    if (!scheduler || !own || !fill(servicer, own, rk_now_ms())) {
        rk_value_free(scheduler);
        rk_value_free(own);
        return NULL;
    }
    if (rk_value_set(scheduler, "roomkeeper", own) < 0) {
        rk_value_free(scheduler);
        return NULL;
    }
    return scheduler;
}
