/* What a servicer counts, as Prometheus text. Read from the ledger and from atomics: no GIL, no waiting for
 * the engine. */
#include "roomkeeper/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kv_feed/feed.h"
#include "observe/prometheus.h"
#include "rpc/links.h"

#define PEERS_SHOWN 64 /* label sets of the link's families at most */

static const char *const role_names[] = {"null", "prefill", "decode"};

static void one(rk_buf *out, const char *name, const char *type, const char *help, double value) {
    rk_family(out, name, type, help);
    rk_sample(out, name, NULL, 0, value);
}

static void write_worker(const rk_servicer *servicer, rk_buf *out) {
    const rk_label labels[] = {{"version", rk_version()}, {"role", role_names[servicer->rooms.role]}};
    rk_family(out, "roomkeeper_build_info", "gauge", "Release and role of the worker; always 1.");
    rk_sample(out, "roomkeeper_build_info", labels, 2, 1);
    one(out, "roomkeeper_start_time_seconds", "gauge", "Unix time at which the servicer was made.",
        (double)servicer->start_seconds);
}

static void write_engine(rk_servicer *servicer, rk_buf *out, uint64_t now) {
    static const char *const states[] = {"starting", "ready", "stalled", "dead"};
    rk_engine_view view;
    rk_engine_look(servicer, now, &view);
    rk_family(out, "roomkeeper_engine_state", "gauge", "1 for the state that the engine is in.");
    for (unsigned i = 0; i < 4; i++)
        rk_sample(out, "roomkeeper_engine_state", &(rk_label){"state", states[i]}, 1, view.state == i);
    one(out, "roomkeeper_engine_silent_seconds", "gauge", "Time since the engine's last beat or output.",
        (double)view.silent_ms / 1000);
    one(out, "roomkeeper_serving", "gauge", "1 while health is SERVING.", rk_is_serving(servicer));
    one(out, "roomkeeper_open_streams", "gauge", "Generate calls that are open.",
        (double)atomic_load(&servicer->open_generates));
    one(out, "roomkeeper_bad_traceparents_total", "counter",
        "Generate calls whose traceparent was malformed and ignored.",
        (double)atomic_load(&servicer->bad_traces));
}

/* ---- by rank ---- */

typedef struct rank_family {
    const char *name;
    const char *help;
    double (*value)(const rk_rank_counts *rank);
} rank_family;

static double window_of(const rk_rank_counts *r) {
    return r->window;
}
static double held_of(const rk_rank_counts *r) {
    return r->held_slots;
}
static double releasing_of(const rk_rank_counts *r) {
    return r->releasing;
}
static double waiting_of(const rk_rank_counts *r) {
    return r->waiting;
}
static double running_of(const rk_rank_counts *r) {
    return r->running;
}
static double tokens_of(const rk_rank_counts *r) {
    return (double)r->claimed_tokens;
}
static double limit_of(const rk_rank_counts *r) {
    return (double)r->kv_tokens;
}
static double releasing_age_of(const rk_rank_counts *r) {
    return (double)r->oldest_releasing_ms / 1000;
}
static double waiting_age_of(const rk_rank_counts *r) {
    return (double)r->oldest_waiting_ms / 1000;
}

static const rank_family rank_families[] = {
    {"roomkeeper_window_slots", "Slots of the running window that are enforced; 0: none.", window_of},
    {"roomkeeper_held_slots", "Slots of live legs.", held_of},
    {"roomkeeper_releasing_slots", "Slots whose leg is over and which the engine has not let go of.",
     releasing_of},
    {"roomkeeper_releasing_oldest_seconds", "Age of the oldest releasing slot.", releasing_age_of},
    {"roomkeeper_waiting_legs", "Legs in line.", waiting_of},
    {"roomkeeper_waiting_oldest_seconds", "How long the first in line has waited.", waiting_age_of},
    {"roomkeeper_running_requests", "Engine requests that are submitted and not over.", running_of},
    {"roomkeeper_claimed_kv_tokens", "KV tokens claimed by admitted legs.", tokens_of},
    {"roomkeeper_kv_tokens", "KV tokens that are gated by; 0: they are not.", limit_of},
};

static void write_ranks(rk_servicer *servicer, rk_buf *out, uint64_t now) {
    uint32_t count = servicer->rooms.ranks;
    rk_rank_counts *ranks = calloc(count, sizeof *ranks);
    if (!ranks) {
        out->failed = true;
        return;
    }
    (void)rk_ledger_read_ranks(servicer->ledger, now, ranks, count);
    for (size_t f = 0; f < sizeof rank_families / sizeof rank_families[0]; f++) {
        const rank_family *family = &rank_families[f];
        rk_family(out, family->name, "gauge", family->help);
        for (uint32_t i = 0; i < count; i++) {
            char rank[12];
            (void)snprintf(rank, sizeof rank, "%" PRIu32, i);
            rk_sample(out, family->name, &(rk_label){"rank", rank}, 1, family->value(&ranks[i]));
        }
    }
    free(ranks);
}

/* ---- the ledger as a whole ---- */

static void write_causes(rk_buf *out, const char *name, const char *help, const uint64_t counts[RK_CAUSES]) {
    rk_family(out, name, "counter", help);
    for (int cause = RK_CAUSE_NONE + 1; cause < RK_CAUSES; cause++)
        rk_sample(out, name, &(rk_label){"cause", rk_cause_name((rk_cause)cause)}, 1, (double)counts[cause]);
}

static void write_ledger(rk_servicer *servicer, rk_buf *out) {
    rk_ledger_counts counts;
    rk_ledger_read(servicer->ledger, &counts);
    rk_family(out, "roomkeeper_legs", "gauge", "Legs by state; releasing ones are over for their client.");
    for (int state = RK_LEG_WAITING; state < RK_LEG_STATES; state++) {
        const char *name = state == RK_LEG_ENDED ? "releasing" : rk_leg_state_name((rk_leg_state)state);
        rk_sample(out, "roomkeeper_legs", &(rk_label){"state", name}, 1, counts.legs[state]);
    }
    one(out, "roomkeeper_arrived_total", "counter", "Legs that have arrived.", (double)counts.arrived);
    one(out, "roomkeeper_admitted_total", "counter", "Legs that were admitted.", (double)counts.admitted);
    write_causes(out, "roomkeeper_refused_total", "Legs refused at arrival, by cause.", counts.refused);
    write_causes(out, "roomkeeper_ended_total", "Legs ended, by cause.", counts.ended);
    one(out, "roomkeeper_stranded_total", "counter", "Legs ended because of their twin or its worker.",
        (double)counts.stranded);
    one(out, "roomkeeper_tombstones", "gauge", "Dead rooms that are remembered.", counts.tombstones);
    one(out, "roomkeeper_announced_rooms", "gauge", "Rooms announced by a peer whose leg has not come.",
        counts.announced);
    rk_family(out, "roomkeeper_wait_seconds", "histogram", "Time from a leg's arrival to its admission.");
    rk_sample_histogram(out, "roomkeeper_wait_seconds", &counts.waits);
    rk_family(out, "roomkeeper_handoff_seconds", "histogram", "Time from submission to the first output.");
    rk_sample_histogram(out, "roomkeeper_handoff_seconds", &counts.handoffs);
    rk_family(out, "roomkeeper_release_seconds", "histogram",
              "Time from a leg's end until the engine let go of its last slot.");
    rk_sample_histogram(out, "roomkeeper_release_seconds", &counts.releases);
}

/* ---- the link ---- */

static void write_peers(rk_buf *out, const rk_peer_row *rows, uint32_t count) {
    rk_family(out, "roomkeeper_link_up", "gauge", "1 while the link to the peer is up.");
    for (uint32_t i = 0; i < count; i++)
        rk_sample(out, "roomkeeper_link_up", &(rk_label){"peer", rows[i].name}, 1,
                  rows[i].phase == RK_PEER_IS_UP);
    rk_family(out, "roomkeeper_link_rooms_told_total", "counter", "Room states told to the peer.");
    for (uint32_t i = 0; i < count; i++)
        rk_sample(out, "roomkeeper_link_rooms_told_total", &(rk_label){"peer", rows[i].name}, 1,
                  (double)rows[i].told);
    rk_family(out, "roomkeeper_link_rooms_heard_total", "counter", "Room states taken from the peer.");
    for (uint32_t i = 0; i < count; i++)
        rk_sample(out, "roomkeeper_link_rooms_heard_total", &(rk_label){"peer", rows[i].name}, 1,
                  (double)rows[i].heard);
}

static void write_links(const rk_servicer *servicer, rk_buf *out, uint64_t now) {
    rk_peer_row *rows = calloc(PEERS_SHOWN, sizeof *rows);
    if (!rows) {
        out->failed = true;
        return;
    }
    rk_peers_counts counts = {0};
    uint32_t known = 0;
    if (servicer->links)
        known = rk_peers_read(servicer->links->peers, now, &counts, rows, PEERS_SHOWN);
    one(out, "roomkeeper_links", "gauge", "Peers whose link is up.", counts.up);
    one(out, "roomkeeper_link_lost_total", "counter", "Links that were up and broke.", (double)counts.lost);
    one(out, "roomkeeper_link_dials_total", "counter", "Links that a decode tried to open.",
        (double)counts.dials);
    one(out, "roomkeeper_link_dials_failed_total", "counter", "Of these, those that came to nothing.",
        (double)counts.dials_failed);
    one(out, "roomkeeper_link_streams_refused_total", "counter",
        "Links refused for a wrong role, token, network, protocol or frame.", (double)counts.streams_refused);
    one(out, "roomkeeper_link_rooms_refused_total", "counter",
        "Room states of rooms that were not the peer's.", (double)counts.rooms_refused);
    write_peers(out, rows, known < PEERS_SHOWN ? known : PEERS_SHOWN);
    free(rows);
}

/* ---- certificates ---- */

static void write_tls(rk_servicer *servicer, rk_buf *out) {
    static const char *const names[] = {"server", "link"};
    rk_tls_files *const files[] = {servicer->tls.server, servicer->tls.link};
    rk_tls_counts counts[2] = {{0}};
    for (unsigned i = 0; i < 2; i++) {
        if (files[i])
            rk_tls_files_read(files[i], &counts[i]);
    }
    rk_family(out, "roomkeeper_tls_reloads_total", "counter",
              "Changes of certificate files that were taken into use.");
    for (unsigned i = 0; i < 2; i++)
        rk_sample(out, "roomkeeper_tls_reloads_total", &(rk_label){"files", names[i]}, 1,
                  (double)counts[i].reloads);
    rk_family(out, "roomkeeper_tls_reload_failures_total", "counter",
              "Changes of certificate files that cannot be used; the last good ones stay.");
    for (unsigned i = 0; i < 2; i++)
        rk_sample(out, "roomkeeper_tls_reload_failures_total", &(rk_label){"files", names[i]}, 1,
                  (double)counts[i].failures);
    rk_family(out, "roomkeeper_tls_certificate_expiry_time_seconds", "gauge",
              "Unix time at which the certificate in use expires; 0: there is none.");
    for (unsigned i = 0; i < 2; i++)
        rk_sample(out, "roomkeeper_tls_certificate_expiry_time_seconds", &(rk_label){"files", names[i]}, 1,
                  (double)counts[i].expires_seconds);
}

/* ---- KV events ---- */

typedef struct kv_family {
    const char *name;
    const char *type;
    const char *help;
    double (*value)(const rk_kv_feed_counts *counts);
} kv_family;

static double kv_connected(const rk_kv_feed_counts *c) {
    return c->connected;
}
static double kv_batches(const rk_kv_feed_counts *c) {
    return (double)c->batches.batches;
}
static double kv_blocks(const rk_kv_feed_counts *c) {
    return (double)c->batches.blocks;
}
static double kv_gaps(const rk_kv_feed_counts *c) {
    return (double)c->batches.gaps;
}
static double kv_lost(const rk_kv_feed_counts *c) {
    return (double)c->batches.lost;
}
static double kv_restarts(const rk_kv_feed_counts *c) {
    return (double)c->batches.restarts;
}
static double kv_forgotten(const rk_kv_feed_counts *c) {
    return (double)c->batches.forgotten;
}
static double kv_malformed(const rk_kv_feed_counts *c) {
    return (double)(c->malformed_messages + c->batches.malformed_batches + c->batches.malformed_events);
}
static double kv_replays(const rk_kv_feed_counts *c) {
    return (double)c->replays;
}
static double kv_replays_failed(const rk_kv_feed_counts *c) {
    return (double)c->replays_failed;
}
static double kv_bytes(const rk_kv_feed_counts *c) {
    return (double)(c->batches.history_bytes + c->batches.record_bytes);
}

static const kv_family kv_families[] = {
    {"roomkeeper_kv_connected", "gauge", "1 while the rank's publisher of KV events is connected.",
     kv_connected},
    {"roomkeeper_kv_batches_total", "counter", "Batches of KV events read.", kv_batches},
    {"roomkeeper_kv_blocks", "gauge", "Blocks that the rank's cache is known to hold.", kv_blocks},
    {"roomkeeper_kv_gaps_total", "counter", "Times that batches were missing for good.", kv_gaps},
    {"roomkeeper_kv_lost_batches_total", "counter", "Batches that were missing for good.", kv_lost},
    {"roomkeeper_kv_restarts_total", "counter", "Times that the publisher began anew.", kv_restarts},
    {"roomkeeper_kv_forgotten_total", "counter", "Times that the record of blocks was over its bound.",
     kv_forgotten},
    {"roomkeeper_kv_malformed_total", "counter", "Messages, batches and events that cannot be read.",
     kv_malformed},
    {"roomkeeper_kv_replays_total", "counter", "Replays asked of the publisher.", kv_replays},
    {"roomkeeper_kv_replays_failed_total", "counter", "Of these, those not answered in time.",
     kv_replays_failed},
    {"roomkeeper_kv_bytes", "gauge", "Memory of the history and the record of KV events.", kv_bytes},
};

static void write_kv(const rk_servicer *servicer, rk_buf *out) {
    rk_kv_hub_counts hub;
    rk_kv_feed *feed = rk_kv_hub_read(servicer, &hub);
    uint32_t ranks = feed ? servicer->rooms.ranks : 0;
    one(out, "roomkeeper_kv_subscribers", "gauge", "Subscriptions to KV events.", (double)hub.subscribers);
    one(out, "roomkeeper_kv_slow_total", "counter", "Subscribers ended because they did not read.",
        (double)hub.slow);
    for (size_t f = 0; f < sizeof kv_families / sizeof kv_families[0]; f++) {
        const kv_family *family = &kv_families[f];
        rk_family(out, family->name, family->type, family->help);
        for (uint32_t i = 0; i < ranks; i++) {
            char rank[12];
            rk_kv_feed_counts counts;
            rk_kv_feed_read(feed, i, &counts);
            (void)snprintf(rank, sizeof rank, "%" PRIu32, i);
            rk_sample(out, family->name, &(rk_label){"rank", rank}, 1, family->value(&counts));
        }
    }
}

char *rk_servicer_metrics(rk_servicer *servicer, size_t *size) {
    rk_buf out = RK_BUF_INIT;
    uint64_t now = rk_now_ms();
    write_worker(servicer, &out);
    write_engine(servicer, &out, now);
    write_ranks(servicer, &out, now);
    write_ledger(servicer, &out);
    write_links(servicer, &out, now);
    write_tls(servicer, &out);
    write_kv(servicer, &out);
    rk_buf_append(&out, "", 1);
    if (out.failed) {
        rk_buf_free(&out);
        return NULL;
    }
    *size = out.size - 1;
    return (char *)out.data;
}
