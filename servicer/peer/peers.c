/* The table of peers: made, named, dialled, lost, forgotten, shown. See peers.h for threads. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "peer/table.h"

/* ---- life ---- */

rk_peers *rk_peers_new(rk_peers_options *options, rk_ledger *ledger, const rk_log *log,
                       const rk_peers_ops *ops, void *owner) {
    rk_peers *peers = calloc(1, sizeof *peers);
    if (!peers) {
        rk_peer_addresses_free(&options->addresses);
        return NULL;
    }
    (void)pthread_mutex_init(&peers->lock, NULL);
    peers->options = *options;
    peers->ledger = ledger;
    peers->log = log;
    peers->ops = ops;
    peers->owner = owner;
    rk_list_init(&peers->links);
    peers->table = calloc((size_t)options->links + 1, sizeof *peers->table);
    peers->by_name = rk_bmap_new();
    if (peers->table && peers->by_name && rk_random(peers->instance, sizeof peers->instance) == 0)
        return peers;
    rk_peers_free(peers);
    return NULL;
}

void rk_peers_free(rk_peers *peers) {
    if (!peers)
        return;
    rk_token_wipe(&peers->options.token);
    rk_peer_addresses_free(&peers->options.addresses);
    rk_bmap_free(peers->by_name);
    free(peers->table);
    (void)pthread_mutex_destroy(&peers->lock);
    free(peers);
}

void rk_peers_enter(rk_peers *peers) {
    (void)pthread_mutex_lock(&peers->lock);
}

typedef struct rk_dial_order {
    uint32_t peer;
    rk_peer_address address;
    bool trusted;
} rk_dial_order;

/* The next peer that is to be dialled; the lock is held. */
static bool next_dial(rk_peers *peers, rk_dial_order *order) {
    if (peers->due_count == 0)
        return false;
    order->peer = peers->due[--peers->due_count];
    const rk_peer *peer = &peers->table[order->peer];
    order->address = peer->names[peer->failures % peer->name_count];
    order->trusted = peer->configured;
    return true;
}

/* Streams that are to be kicked, each held; the lock is held. */
static unsigned take_kicks(rk_peers *peers, void *streams[], unsigned max) {
    unsigned count = 0;
    while (peers->kicks && count < max) {
        rk_link *link = peers->kicks;
        peers->kicks = link->next;
        link->kicked = false;
        peers->ops->hold(link->stream);
        streams[count++] = link->stream;
    }
    return count;
}

void rk_peers_leave(rk_peers *peers, rk_effects *fx) {
    void *streams[32];
    unsigned count;
    while ((count = take_kicks(peers, streams, RK_COUNT(streams))) > 0) {
        (void)pthread_mutex_unlock(&peers->lock);
        for (unsigned i = 0; i < count; i++)
            peers->ops->kick(streams[i]);
        (void)pthread_mutex_lock(&peers->lock);
    }
    rk_dial_order order;
    while (next_dial(peers, &order)) {
        (void)pthread_mutex_unlock(&peers->lock);
        peers->ops->dial(peers->owner, order.peer, order.address.host, order.address.port, order.trusted);
        (void)pthread_mutex_lock(&peers->lock);
    }
    (void)pthread_mutex_unlock(&peers->lock);
    if (fx && (fx->count > 0 || fx->more || fx->tells))
        peers->ops->effects(peers->owner, fx);
}

/* ---- the table ---- */

uint32_t rk_peer_number(const rk_peers *peers, const rk_peer *peer) {
    return (uint32_t)(peer - peers->table);
}

void rk_peer_move(rk_peer *peer, rk_peer_phase phase, uint64_t now) {
    if (peer->phase != phase)
        peer->since_ms = now;
    peer->phase = phase;
}

static size_t name_key(const char *host, int32_t port, uint8_t key[RK_ROOM_HOST_MAX + 4]) {
    size_t length = strnlen(host, RK_ROOM_HOST_MAX - 1);
    memcpy(key, host, length);
    memcpy(key + length, &port, sizeof port);
    return length + sizeof port;
}

rk_peer *rk_peer_by_name(const rk_peers *peers, const char *host, int32_t port) {
    uint8_t key[RK_ROOM_HOST_MAX + 4];
    return rk_bmap_get(peers->by_name, key, name_key(host, port, key));
}

rk_peer *rk_peer_by_instance(const rk_peers *peers, const uint8_t instance[RK_INSTANCE_BYTES]) {
    for (uint32_t i = 1; i <= peers->options.links; i++) {
        rk_peer *peer = &peers->table[i];
        if (peer->used && peer->known && memcmp(peer->instance, instance, RK_INSTANCE_BYTES) == 0)
            return peer;
    }
    return NULL;
}

static void forget_names(rk_peers *peers, const rk_peer *peer) {
    uint8_t key[RK_ROOM_HOST_MAX + 4];
    for (uint32_t i = 0; i < peer->name_count; i++)
        (void)rk_bmap_remove(peers->by_name, key,
                             name_key(peer->names[i].bootstrap_host, peer->names[i].bootstrap_port, key));
}

void rk_peer_forget(rk_peers *peers, rk_peer *peer) {
    forget_names(peers, peer);
    for (uint32_t i = 0; i < peers->due_count; i++)
        if (peers->due[i] == rk_peer_number(peers, peer))
            peers->due[i--] = peers->due[--peers->due_count];
    memset(peer, 0, sizeof *peer);
}

/* Nobody would miss it: a name that never answered, or a worker that has been gone for long. */
static bool may_go(const rk_peer *peer, uint64_t now) {
    bool gone = peer->phase == RK_PEER_IS_ABSENT || peer->phase == RK_PEER_IS_LOST;
    bool idle = peer->known ? rk_since(now, peer->lost_ms) >= RK_FORGET_MS /* however often it is dialled */
                            : rk_since(now, peer->since_ms) >= RK_DIAL_PAUSE_MS;
    return gone && !peer->configured && idle;
}

rk_peer *rk_peer_new(rk_peers *peers, uint64_t now, rk_effects *fx) {
    rk_peer *oldest = NULL;
    rk_peer *place = NULL;
    for (uint32_t i = 1; i <= peers->options.links && !place; i++) {
        rk_peer *peer = &peers->table[i];
        if (!peer->used)
            place = peer;
        else if (may_go(peer, now) && (!oldest || peer->since_ms < oldest->since_ms))
            oldest = peer;
    }
    if (!place && oldest) {
        /* Its legs are nobody's now: what is known of the number's next owner proves nothing for them. */
        rk_ledger_peer_folded(peers->ledger, now, rk_peer_number(peers, oldest), 0, fx);
        rk_peer_forget(peers, oldest);
        place = oldest;
    }
    if (!place)
        return NULL;
    place->used = true;
    place->since_ms = now;
    place->row.number = rk_peer_number(peers, place);
    return place;
}

void rk_peer_fold(rk_peers *peers, rk_peer *from, rk_peer *to) {
    uint8_t key[RK_ROOM_HOST_MAX + 4];
    for (uint32_t i = 0; i < from->name_count; i++) {
        const rk_peer_address *name = &from->names[i];
        size_t size = name_key(name->bootstrap_host, name->bootstrap_port, key);
        if (to->name_count < RK_PEER_NAMES_MAX) {
            (void)rk_bmap_replace(peers->by_name, key, size, to);
            to->names[to->name_count++] = *name;
        } else {
            (void)rk_bmap_remove(peers->by_name, key, size);
        }
    }
    to->configured |= from->configured;
    from->name_count = 0;
    rk_peer_forget(peers, from);
}

/* ---- dialling ---- */

/* Orders it; false: there have been too many in this second. */
static bool order_dial(rk_peers *peers, rk_peer *peer, uint64_t now) {
    if (rk_since(now, peers->second_ms) >= 1000) {
        peers->second_ms = now;
        peers->second_dials = 0;
    }
    if (peers->stopped || peers->due_count == RK_COUNT(peers->due) ||
        peers->second_dials >= peers->options.dials_per_second)
        return false;
    peers->second_dials++;
    peers->counts.dials++;
    peers->due[peers->due_count++] = rk_peer_number(peers, peer);
    peer->dialled_ms = now;
    if (peer->phase != RK_PEER_IS_LOST) {
        rk_peer_move(peer, RK_PEER_IS_DIALLING, now);
        rk_ledger_peer_expected(peers->ledger, rk_peer_number(peers, peer));
    }
    peer->next_dial_ms = UINT64_MAX; /* until this one has ended */
    return true;
}

static rk_peer *name_peer(rk_peers *peers, const char *bootstrap_host, int32_t bootstrap_port, uint64_t now,
                          rk_effects *fx) {
    const rk_peer_address *given =
        rk_peer_address_find(&peers->options.addresses, bootstrap_host, bootstrap_port);
    int32_t port = given ? given->port : rk_link_port(peers->options.peer_port, bootstrap_port);
    if (port == 0 || bootstrap_host[0] == '\0')
        return NULL;
    rk_peer *peer = rk_peer_new(peers, now, fx);
    if (!peer)
        return NULL;
    rk_peer_address *name = &peer->names[0];
    (void)snprintf(name->bootstrap_host, sizeof name->bootstrap_host, "%s", bootstrap_host);
    (void)snprintf(name->host, sizeof name->host, "%s", given ? given->host : bootstrap_host);
    name->bootstrap_port = bootstrap_port;
    name->port = port;
    peer->name_count = 1;
    peer->configured = given != NULL;
    (void)snprintf(peer->row.name, sizeof peer->row.name, "%s:%d", bootstrap_host, (int)bootstrap_port);
    (void)snprintf(peer->row.address, sizeof peer->row.address, "%s:%d", name->host, (int)port);
    uint8_t key[RK_ROOM_HOST_MAX + 4];
    if (rk_bmap_put(peers->by_name, key, name_key(bootstrap_host, bootstrap_port, key), peer) == 0)
        return peer;
    peer->name_count = 0;
    rk_peer_forget(peers, peer);
    return NULL;
}

/* A leg names it: dialled now, or by the clock as soon as the last dial is long enough ago. The prefill waits
 * for an announcement for a moment only. */
static void dial_for_leg(rk_peers *peers, rk_peer *peer, uint64_t now) {
    bool waits = peer->phase == RK_PEER_IS_ABSENT ||
                 (peer->phase == RK_PEER_IS_LOST && peer->next_dial_ms != UINT64_MAX);
    if (!waits)
        return;
    uint64_t due = peer->dialled_ms == 0 ? now : peer->dialled_ms + RK_DIAL_PAUSE_MS;
    if (due <= now)
        (void)order_dial(peers, peer, now);
    else if (due < peer->next_dial_ms)
        peer->next_dial_ms = due;
}

uint32_t rk_peers_of_room(rk_peers *peers, uint64_t now, const rk_room *room) {
    if (peers->options.role != RK_LINK_ROLE_DECODE)
        return 0;
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    rk_peer *peer = rk_peer_by_name(peers, room->host, room->port);
    if (!peer)
        peer = name_peer(peers, room->host, room->port, now, &fx);
    uint32_t number = peer ? rk_peer_number(peers, peer) : 0;
    if (peer)
        dial_for_leg(peers, peer, now);
    rk_peers_leave(peers, &fx);
    return number;
}

static uint64_t pause_after(const rk_peer *peer, uint64_t now) {
    bool recent = peer->known && rk_since(now, peer->lost_ms) < RK_RECENT_MS;
    uint64_t most = recent ? RK_REDIAL_MOST_MS : RK_DIAL_MOST_MS;
    uint64_t pause = peer->known ? 50 : 500;
    for (unsigned i = 1; i < peer->failures && pause < most; i++)
        pause *= 2;
    return pause < most ? pause : most;
}

/* Says a thing once, not with every dial. */
static void say_why(rk_peers *peers, rk_peer *peer, const char *why) {
    bool new = strcmp(peer->row.why, why) != 0;
    (void)snprintf(peer->row.why, sizeof peer->row.why, "%s", why);
    if (new)
        rk_log_event(peers->log, RK_LOG_INFO,
                     "no room link to this prefill worker; its rooms are served without",
                     RK_FIELD_TEXT("peer", peer->row.name), RK_FIELD_TEXT("address", peer->row.address),
                     RK_FIELD_TEXT("why", why));
}

/* A worker that was linked, and in whose place there is none: its legs wait for one that comes, and those
 * that end meanwhile have no writer. */
static void stay_lost(rk_peers *peers, rk_peer *peer, uint64_t now, const char *why, rk_effects *fx) {
    uint32_t number = rk_peer_number(peers, peer);
    rk_peer_move(peer, RK_PEER_IS_LOST, now);
    (void)snprintf(peer->row.why, sizeof peer->row.why, "%s", why);
    rk_ledger_peer_expected(peers->ledger, number);
    rk_ledger_nobody_there(peers->ledger, now, number, fx);
}

/* Has nobody listened there for long enough? The link may have been lost long before the worker ended. */
static bool refused_for_long(rk_peer *peer, uint64_t now, rk_dial_end end) {
    bool refused = end == RK_DIAL_REFUSED || end == RK_DIAL_GONE;
    if (refused && !peer->refused)
        peer->refused_ms = now;
    peer->refused = refused;
    return refused && rk_since(now, peer->refused_ms) >= (peer->in_order ? RK_GONE_IN_ORDER_MS : RK_GONE_MS);
}

void rk_peer_dial_ended(rk_peers *peers, rk_peer *peer, uint64_t now, rk_dial_end end, const char *why,
                        rk_effects *fx) {
    uint32_t number = rk_peer_number(peers, peer);
    peers->counts.dials_failed++;
    peer->failures++;
    peer->next_dial_ms = peer->known || peer->configured ? now + pause_after(peer, now) : UINT64_MAX;
    bool was_lost = peer->phase == RK_PEER_IS_LOST;
    bool gone = refused_for_long(peer, now, end);
    if (was_lost && !gone && rk_since(now, peer->lost_ms) < RK_LOST_MOST_MS)
        return; /* it may be frozen, cut off, or just ending: no proof, and no reason to go on without it yet
                 */
    if (peer->known && gone && end == RK_DIAL_GONE) {
        stay_lost(peers, peer, now, why, fx);
        return;
    }
    if (was_lost && gone)
        rk_ledger_writers_gone(peers->ledger, now, number, fx);
    rk_peer_move(peer, RK_PEER_IS_ABSENT, now);
    rk_ledger_peer_absent(peers->ledger, now, number, fx);
    say_why(peers, peer, why);
}

/* The peer of a number that a dial brings back, if it still waits for that. */
static rk_peer *dialled_peer(rk_peers *peers, uint32_t number) {
    rk_peer *peer = number > 0 && number <= peers->options.links ? &peers->table[number] : NULL;
    bool waits = peer && peer->used && !peer->link && peer->next_dial_ms == UINT64_MAX &&
                 (peer->phase == RK_PEER_IS_DIALLING || peer->phase == RK_PEER_IS_LOST);
    return waits ? peer : NULL;
}

void rk_peers_dial_failed(rk_peers *peers, uint64_t now, uint32_t number, rk_dial_end end, const char *why) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    rk_peer *peer = dialled_peer(peers, number);
    if (peer)
        rk_peer_dial_ended(peers, peer, now, end, why, &fx);
    rk_peers_leave(peers, &fx);
}

void rk_peer_lose(rk_peers *peers, rk_peer *peer, uint64_t now, const char *why, bool in_order,
                  rk_effects *fx) {
    peer->link = NULL;
    peer->lost_ms = now;
    peer->failures = 0;
    peer->refused = false;
    peer->in_order = in_order;
    peer->next_dial_ms = now;
    peers->counts.lost++;
    rk_peer_move(peer, RK_PEER_IS_LOST, now);
    (void)snprintf(peer->row.why, sizeof peer->row.why, "%s", why);
    const char *event = !in_order        ? "a room link is lost"
                        : peers->stopped ? "a room link is closed"
                                         : "the other worker has closed the room link";
    rk_log_event(peers->log, in_order ? RK_LOG_INFO : RK_LOG_WARNING, event,
                 RK_FIELD_TEXT("peer", peer->row.name), RK_FIELD_TEXT("address", peer->row.address),
                 RK_FIELD_TEXT("why", why));
    rk_ledger_peer_lost(peers->ledger, now, rk_peer_number(peers, peer), fx);
    if (peers->options.role == RK_LINK_ROLE_DECODE)
        (void)order_dial(peers, peer, now); /* else the clock does it */
}

/* ---- the clock ---- */

/* Those that the operator has named are linked before a room names them. */
static void name_configured(rk_peers *peers, uint64_t now, rk_effects *fx) {
    peers->named = true;
    for (uint32_t i = 0; i < peers->options.addresses.count; i++) {
        const rk_peer_address *item = &peers->options.addresses.items[i];
        if (!rk_peer_by_name(peers, item->bootstrap_host, item->bootstrap_port))
            (void)name_peer(peers, item->bootstrap_host, item->bootstrap_port, now, fx);
    }
}

static void dial_due(rk_peers *peers, uint64_t now, rk_effects *fx) {
    if (peers->options.role != RK_LINK_ROLE_DECODE)
        return;
    if (!peers->named)
        name_configured(peers, now, fx);
    for (uint32_t i = 1; i <= peers->options.links; i++) {
        rk_peer *peer = &peers->table[i];
        bool wanted = peer->used && !peer->link && (peer->known || peer->configured);
        bool waits = peer->phase == RK_PEER_IS_ABSENT || peer->phase == RK_PEER_IS_LOST;
        if (wanted && waits && peer->next_dial_ms <= now)
            (void)order_dial(peers, peer, now);
    }
}

static bool is_silent(const rk_peers *peers, const rk_link *link, uint64_t now) {
    uint64_t beat = peers->options.heartbeat_ms;
    if (link->phase == RK_LINK_UP && link->theirs.heartbeat_ms > beat && link->theirs.heartbeat_ms < 60000)
        beat = link->theirs.heartbeat_ms;
    /* Whatever else it says, the hellos take no longer than that. */
    uint64_t last = link->phase == RK_LINK_UP ? link->heard_ms : link->opened_ms;
    return rk_since(now, last) >= RK_BEATS_MISSED * beat;
}

static void give_up_silent(rk_peers *peers, rk_link *link, uint64_t now, rk_effects *fx) {
    rk_peer *peer = link->peer ? &peers->table[link->peer] : NULL;
    bool up = link->phase == RK_LINK_UP;
    rk_link_end(peers, link, RK_UNAVAILABLE, up ? "no heartbeat" : "no hello, or nothing after it");
    if (peer && peer->link == link && up)
        rk_peer_lose(peers, peer, now, "three heartbeats missed", false, fx);
    else if (peer && peer->link == link) {
        peer->link = NULL;
        rk_peer_dial_ended(peers, peer, now, RK_DIAL_FAILED, "it answers no hello", fx);
    }
}

void rk_peers_tick(rk_peers *peers, uint64_t now) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_peers_enter(peers);
    for (rk_list *node = peers->links.next; node != &peers->links;) {
        rk_link *link = RK_CONTAINER(node, rk_link, link);
        node = node->next;
        if (link->phase == RK_LINK_OVER)
            continue;
        if (is_silent(peers, link, now)) {
            give_up_silent(peers, link, now, &fx);
        } else if (link->phase == RK_LINK_UP && rk_since(now, link->said_ms) >= peers->options.heartbeat_ms) {
            link->beat_due = true;
            rk_link_kick(peers, link);
            rk_ledger_link_seen(peers->ledger, now);
        }
    }
    dial_due(peers, now, &fx);
    rk_peers_leave(peers, &fx);
}

void rk_peers_stop(rk_peers *peers, uint64_t now) {
    (void)now;
    rk_peers_enter(peers);
    peers->stopped = true;
    peers->due_count = 0;
    for (rk_list *node = peers->links.next; node != &peers->links; node = node->next) {
        rk_link *link = RK_CONTAINER(node, rk_link, link);
        link->goodbye_due = link->phase == RK_LINK_UP;
        if (!link->goodbye_due)
            rk_link_end(peers, link, RK_UNAVAILABLE, "this worker is shutting down");
        rk_link_kick(peers, link);
    }
    rk_peers_leave(peers, NULL);
}

void rk_peers_abandon(rk_peers *peers) {
    rk_peers_enter(peers);
    for (rk_list *node = peers->links.next; node != &peers->links; node = node->next) {
        rk_link *link = RK_CONTAINER(node, rk_link, link);
        rk_link_end(peers, link, RK_UNAVAILABLE, "this worker is shutting down");
        rk_link_kick(peers, link);
    }
    rk_peers_leave(peers, NULL);
}

/* ---- reading ---- */

const char *rk_peer_phase_name(rk_peer_phase phase) {
    static const char *const names[] = {"absent", "dialling", "up", "lost"};
    return (unsigned)phase < RK_COUNT(names) ? names[phase] : "unknown";
}

static void fill_row(const rk_peer *peer, uint64_t now, rk_peer_row *row) {
    *row = peer->row;
    row->phase = peer->phase;
    row->since_ms = rk_since(now, peer->since_ms);
    if (peer->known)
        for (size_t i = 0; i < RK_INSTANCE_BYTES; i++)
            (void)snprintf(row->instance + 2 * i, 3, "%02x", peer->instance[i]);
    if (peer->link) {
        row->engine = peer->link->engine;
        row->releases = peer->link->theirs.releases;
    }
    if (peer->phase == RK_PEER_IS_UP)
        row->why[0] = '\0';
}

uint32_t rk_peers_read(rk_peers *peers, uint64_t now, rk_peers_counts *counts, rk_peer_row *rows,
                       uint32_t max) {
    uint32_t known = 0;
    uint32_t up = 0;
    rk_peers_enter(peers);
    for (uint32_t i = 1; i <= peers->options.links; i++) {
        const rk_peer *peer = &peers->table[i];
        if (!peer->used)
            continue;
        if (known < max)
            fill_row(peer, now, &rows[known]);
        known++;
        up += peer->phase == RK_PEER_IS_UP ? 1 : 0;
    }
    *counts = peers->counts;
    counts->known = known;
    counts->up = up;
    rk_peers_leave(peers, NULL);
    return known;
}

bool rk_peers_bootstrap(rk_peers *peers, uint32_t number, char host[RK_ROOM_HOST_MAX], int32_t *port) {
    rk_peers_enter(peers);
    const rk_peer *peer = number > 0 && number <= peers->options.links ? &peers->table[number] : NULL;
    bool known = peer && peer->used && peer->name_count > 0;
    if (known) {
        memcpy(host, peer->names[0].bootstrap_host, RK_ROOM_HOST_MAX);
        *port = peer->names[0].bootstrap_port;
    }
    rk_peers_leave(peers, NULL);
    return known;
}

void rk_peers_address(rk_peers *peers, uint32_t number, char out[RK_ROOM_HOST_MAX + 8]) {
    rk_peers_enter(peers);
    bool known = number > 0 && number <= peers->options.links && peers->table[number].used;
    (void)snprintf(out, RK_ROOM_HOST_MAX + 8, "%s", known ? peers->table[number].row.address : "");
    rk_peers_leave(peers, NULL);
}
