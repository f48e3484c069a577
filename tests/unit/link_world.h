/* Workers that are linked to each other without sockets: each with its ledger and its rk_peers, streams as
 * queues of messages, an engine of which only the requests and who may write are known, and one clock.
 *
 * Every stream's memory is freed as soon as it is closed, as the transport's is, and every message is an
 * allocation of its own, so that the address sanitizer sees what is used too late or read too far. */
#ifndef LINK_WORLD_H
#define LINK_WORLD_H

#include <stdlib.h>

#include "ledger_support.h"
#include "peer/table.h"

#define WORLD_WORKERS_MAX 8
#define WORLD_DIALS_MAX 256
#define WORLD_BEAT_MS 100u

typedef struct world world;
typedef struct worker worker;

typedef struct message {
    rk_list link;
    size_t size;
    uint8_t *bytes;
} message;

/* One end of a stream. */
typedef struct end {
    rk_list link; /* in world->ends */
    worker *owner;
    unsigned life; /* of the owner, when it was made */
    struct end *other;
    rk_link rk;
    bool server;
    bool ending;   /* our status is out, or we have cancelled */
    bool closing;  /* the stream ends here once `inbox` is empty */
    bool lossy;    /* … and at once, whatever is in it */
    rk_code code;  /* how it ended */
    char why[160]; /* the same as text */
    rk_list inbox; /* messages on their way here */
    unsigned sent; /* messages */
} end;

typedef struct dial_order {
    uint32_t peer;
    char host[RK_ROOM_HOST_MAX];
    int32_t port;
    bool trusted;
} dial_order;

/* What an engine has of one leg. */
typedef struct request {
    uint64_t handle;
    int64_t room;
    bool there;          /* the engine has it; false: only known to the client */
    bool marked;         /* aborted while it waited for KV */
    bool over_in_engine; /* it acts on its mark as soon as it can */
    bool handed_off;
    bool asked;     /* the release agent has been asked to end the room */
    bool over;      /* the client has its end */
    rk_cause cause; /* of the end */
    rk_cause twin_cause;
    rk_code code;
    bool admitted; /* RK_FX_ADMIT has come */
    bool arrived;
} request;

struct worker {
    world *world;
    char host[32];
    int32_t bootstrap_port;
    int32_t link_port;
    rk_link_role role;
    unsigned life; /* 0: never started */
    bool alive;
    bool frozen;      /* takes and gives nothing, but its streams stay open */
    bool unreachable; /* dials to it come to nothing, but nobody says so */
    bool auto_submit; /* admitted legs go to the engine at once */
    rk_link_engine engine;
    rk_ledger *ledger;
    rk_peers *peers;
    rk_log log;
    rk_ledger_options ledger_options;
    rk_peers_options peer_options;
    char addresses[256];
    dial_order dials[WORLD_DIALS_MAX];
    unsigned dial_count;
    uint64_t dialled; /* since the world began */
    request *requests;
    unsigned request_count;
    unsigned request_max;
    uint64_t ends;          /* RK_FX_END */
    uint64_t releases;      /* RK_FX_RELEASE_ROOM */
    uint64_t writers_until; /* a crashed prefill's schedulers live on so long, ms */
};

struct world {
    uint64_t now;
    worker workers[WORLD_WORKERS_MAX];
    unsigned count;
    rk_list ends;
    /* Called for each RK_FX_RELEASE_ROOM; NULL: nothing is checked. */
    void (*on_release)(worker *w, request *r, const rk_effect *effect);
    void (*on_end)(worker *w, request *r, const rk_effect *effect);
    void (*on_submit)(worker *w, request *r);
    void *owner;
};

/* ---- engines ---- */

static inline request *request_of(worker *w, uint64_t handle) {
    for (unsigned i = 0; i < w->request_count; i++)
        if (w->requests[i].handle == handle && handle != 0)
            return &w->requests[i];
    return NULL;
}

static inline request *request_in(worker *w, int64_t room) {
    for (unsigned i = w->request_count; i > 0; i--)
        if (w->requests[i - 1].room == room)
            return &w->requests[i - 1];
    return NULL;
}

static inline request *request_new(worker *w, uint64_t handle, int64_t room) {
    if (w->request_count == w->request_max) {
        w->request_max = w->request_max ? 2 * w->request_max : 64;
        w->requests = realloc(w->requests, w->request_max * sizeof *w->requests);
        ck_assert_ptr_nonnull(w->requests);
    }
    request *r = &w->requests[w->request_count++];
    memset(r, 0, sizeof *r);
    r->handle = handle;
    r->room = room;
    return r;
}

/* ---- effects ---- */

static inline void worker_effects(void *owner, rk_effects *fx);

static inline void world_submit(worker *w, request *r) {
    rk_effects fx;
    rk_effects_clear(&fx);
    if (rk_ledger_begin_submit(w->ledger, w->world->now, r->handle, &fx) == 0) {
        r->there = true;
        if (w->world->on_submit)
            w->world->on_submit(w, r);
    }
    worker_effects(w, &fx);
}

static inline void effect_release(worker *w, request *r, const rk_effect *effect) {
    w->releases++;
    if (w->world->on_release)
        w->world->on_release(w, r, effect);
    if (r)
        r->asked = true;
}

static inline void effect_run(worker *w, const rk_effect *effect) {
    request *r = request_of(w, effect->handle);
    switch (effect->kind) {
    case RK_FX_ADMIT:
        ck_assert_ptr_nonnull(r);
        r->admitted = true;
        return;
    case RK_FX_END:
        w->ends++;
        ck_assert_ptr_nonnull(r);
        ck_assert_msg(!r->over, "a second end of %llu", (unsigned long long)effect->handle);
        r->over = true;
        r->cause = effect->cause;
        r->twin_cause = effect->twin_cause;
        r->code = effect->code;
        if (w->world->on_end)
            w->world->on_end(w, r, effect);
        return;
    case RK_FX_ABORT_ENGINE:
        if (r && r->there)
            r->marked = true;
        return;
    case RK_FX_RELEASE_ROOM:
        effect_release(w, r, effect);
        return;
    default:
        ck_assert(effect->kind == RK_FX_OPEN || effect->kind == RK_FX_END_CHOICE); /* tells are kept apart */
        return;
    }
}

/* As the servicer does it; what follows from an effect is done later, by world_settle. */
static inline void worker_effects(void *owner, rk_effects *fx) {
    worker *w = owner;
    for (;;) {
        rk_effects now = *fx;
        bool more = fx->more;
        for (size_t i = 0; i < now.count; i++)
            effect_run(w, &now.items[i]);
        fx->count = 0;
        if (!more)
            break;
        fx->more = false;
        rk_ledger_pump(w->ledger, w->world->now, fx);
    }
    bool tells = fx->tells;
    fx->tells = false;
    if (tells)
        rk_peers_tell(w->peers, w->world->now);
}

/* ---- the transport ---- */

static inline void worker_dial(void *owner, uint32_t peer, const char *host, int32_t port, bool trusted) {
    worker *w = owner;
    ck_assert_uint_lt(w->dial_count, WORLD_DIALS_MAX);
    dial_order *order = &w->dials[w->dial_count++];
    order->peer = peer;
    order->port = port;
    order->trusted = trusted;
    (void)snprintf(order->host, sizeof order->host, "%s", host);
    w->dialled++;
}

static inline void worker_hold(void *stream) {
    ck_assert_ptr_nonnull(((end *)stream)->owner);
}

static inline void worker_kick(void *stream) {
    (void)stream; /* world_step asks every stream */
}

static inline rk_link_engine worker_engine(void *owner) {
    return ((worker *)owner)->engine;
}

static const rk_peers_ops world_ops = {
    .dial = worker_dial,
    .hold = worker_hold,
    .kick = worker_kick,
    .effects = worker_effects,
    .engine = worker_engine,
};

static inline end *end_new(worker *owner, bool server) {
    end *e = calloc(1, sizeof *e);
    ck_assert_ptr_nonnull(e);
    e->owner = owner;
    e->life = owner->life;
    e->server = server;
    rk_list_init(&e->inbox);
    rk_list_init(&e->link);
    rk_list_push_back(&owner->world->ends, &e->link);
    return e;
}

static inline void end_free(end *e) {
    rk_list *node;
    while ((node = rk_list_pop_front(&e->inbox)) != NULL) {
        message *m = RK_CONTAINER(node, message, link);
        free(m->bytes);
        free(m);
    }
    if (e->other)
        e->other->other = NULL;
    rk_list_remove(&e->link);
    free(e);
}

/* The stream will be over at this end. */
static inline void end_close(end *e, bool lossy, rk_code code, const char *why) {
    if (!e || e->closing)
        return;
    e->closing = true;
    e->lossy = lossy;
    e->code = code;
    (void)snprintf(e->why, sizeof e->why, "%s", why);
}

static inline void end_say(end *to, const uint8_t *bytes, size_t size) {
    message *m = calloc(1, sizeof *m);
    ck_assert_ptr_nonnull(m);
    m->bytes = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(m->bytes);
    if (size)
        memcpy(m->bytes, bytes, size);
    m->size = size;
    rk_list_init(&m->link);
    rk_list_push_back(&to->inbox, &m->link);
}

/* As gRPC has it: a server's status comes after its messages, a client's cancel does not wait for any. */
static inline void end_over(end *e, const rk_status *status) {
    if (e->ending)
        return;
    e->ending = true;
    if (e->server) {
        end_close(e->other, false, status->code, status->text);
        end_close(e, false, RK_OK, "the stream has ended");
    } else {
        end_close(e->other, true, RK_CANCELLED, "the stream has broken");
        end_close(e, true, status->code, status->text);
    }
}

/* Writes one message or ends the stream; true: something was done. */
static inline bool end_pump(end *e) {
    rk_status status;
    rk_buf out = RK_BUF_INIT;
    bool some = rk_link_next(e->owner->peers, e->owner->world->now, &e->rk, &out);
    if (some) {
        ck_assert(!out.failed && out.size <= RK_FRAME_MAX);
        e->sent++;
        if (e->other && !e->other->closing)
            end_say(e->other, out.data, out.size);
    } else if (!e->ending && rk_link_is_over(e->owner->peers, &e->rk, &status)) {
        end_over(e, &status);
        some = true;
    }
    rk_buf_free(&out);
    return some;
}

static inline bool end_deliver(end *e) {
    rk_list *node = rk_list_pop_front(&e->inbox);
    if (!node)
        return false;
    message *m = RK_CONTAINER(node, message, link);
    rk_link_received(e->owner->peers, e->owner->world->now, &e->rk, m->bytes, m->size);
    free(m->bytes);
    free(m);
    return true;
}

/* One thing at this end: a message read, or written, or the end. False: nothing is to be done. May free it.
 */
static inline bool end_step(end *e) {
    worker *w = e->owner;
    if (!w->alive || w->frozen)
        return false;
    if (e->closing && (e->lossy || rk_list_empty(&e->inbox))) {
        rk_link_closed(w->peers, w->world->now, &e->rk, e->code, e->why);
        end_free(e);
        return true;
    }
    return end_deliver(e) || end_pump(e);
}

/* Both ends learn that the stream has broken; what was under way is lost. */
static inline void stream_break(end *e, const char *why) {
    end_close(e->other, true, RK_UNAVAILABLE, why);
    end_close(e, true, RK_UNAVAILABLE, why);
    e->lossy = true;
    if (e->other)
        e->other->lossy = true;
}

/* ---- workers ---- */

static inline rk_ledger_options world_ledger_options(rk_link_role role) {
    rk_ledger_options o =
        options_of(role == RK_LINK_ROLE_PREFILL ? RK_ROLE_PREFILL : RK_ROLE_DECODE, 4, 1000);
    o.linked = role == RK_LINK_ROLE_PREFILL;
    o.tells_apart = true;
    o.peers = 9;
    o.peer_rooms = 16384;
    return o;
}

static inline worker *worker_add(world *w, rk_link_role role, const char *host, int32_t bootstrap_port) {
    ck_assert_uint_lt(w->count, WORLD_WORKERS_MAX);
    worker *it = &w->workers[w->count++];
    it->world = w;
    it->role = role;
    it->bootstrap_port = bootstrap_port;
    it->link_port = bootstrap_port + RK_LINK_PORT_OFFSET;
    it->log = (rk_log){.level = RK_LOG_ERROR, .fd = -1};
    it->engine = RK_LINK_ENGINE_READY;
    it->auto_submit = true;
    (void)snprintf(it->host, sizeof it->host, "%s", host);
    it->ledger_options = world_ledger_options(role);
    it->peer_options = (rk_peers_options){
        .role = role,
        .window = 4,
        .links = 8,
        .dials_per_second = 100,
        .heartbeat_ms = WORLD_BEAT_MS,
        .peer_port = -1,
    };
    return it;
}

static inline void worker_start(worker *w) {
    char error[512];
    rk_peers_options options = w->peer_options;
    ck_assert_int_eq(rk_peer_addresses_parse(&options.addresses, w->addresses, error), 0);
    w->ledger_options.peers = options.links + 1;
    w->ledger = rk_ledger_new(&w->ledger_options);
    ck_assert_ptr_nonnull(w->ledger);
    w->peers = rk_peers_new(&options, w->ledger, &w->log, &world_ops, w);
    ck_assert_ptr_nonnull(w->peers);
    w->engine = RK_LINK_ENGINE_READY;
    w->alive = true;
    w->frozen = false;
    w->life++;
    w->request_count = 0;
    w->dial_count = 0;
}

/* The process is gone: the other ends learn it, and its clients too. */
static inline void worker_crash(worker *w) {
    world *all = w->world;
    for (rk_list *node = all->ends.next; node != &all->ends;) {
        end *e = RK_CONTAINER(node, end, link);
        node = node->next;
        if (e->owner != w)
            continue;
        end_close(e->other, true, RK_UNAVAILABLE, "connection reset");
        rk_link_closed(w->peers, all->now, &e->rk, RK_UNAVAILABLE, "the process ends");
        end_free(e);
    }
    rk_peers_free(w->peers);
    rk_ledger_free(w->ledger);
    w->peers = NULL;
    w->ledger = NULL;
    w->alive = false;
    w->request_count = 0;
    w->dial_count = 0;
}

/* A leg with that room, as a client sends it. */
static inline request *worker_arrive(worker *w, const char *bootstrap_host, int32_t bootstrap_port,
                                     int64_t number, rk_verdict *verdict) {
    rk_effects fx;
    char id[32];
    (void)snprintf(id, sizeof id, "r%lld", (long long)number);
    rk_room room = {.port = bootstrap_port, .room = number};
    (void)snprintf(room.host, sizeof room.host, "%s", bootstrap_host);
    uint32_t peer = rk_peers_of_room(w->peers, w->world->now, &room);
    rk_leg_spec spec = {
        .handle = rk_ledger_new_handle(w->ledger),
        .request_id = id,
        .request_id_bytes = strlen(id),
        .room = &room,
        .n = 1,
        .rank = -1,
        .linked = peer != 0,
        .peer = peer,
    };
    request *r = request_new(w, spec.handle, number);
    r->arrived = true;
    unsigned at = (unsigned)(r - w->requests);
    rk_effects_clear(&fx);
    ck_assert_int_eq(rk_ledger_arrive(w->ledger, w->world->now, &spec, verdict, &fx), 0);
    r->over = !verdict->accepted;
    r->cause = verdict->cause;
    r->code = verdict->code;
    worker_effects(w, &fx);
    return &w->requests[at];
}

static inline void worker_cancel(worker *w, request *r, rk_cause cause) {
    rk_effects fx;
    rk_effects_clear(&fx);
    r->over = true;
    rk_ledger_cancel(w->ledger, w->world->now, r->handle, cause, &fx);
    worker_effects(w, &fx);
}

static inline void worker_first_output(worker *w, request *r) {
    rk_effects fx;
    rk_effects_clear(&fx);
    r->handed_off = true;
    rk_ledger_first_output(w->ledger, w->world->now, r->handle, &fx);
    worker_effects(w, &fx);
}

/* The engine's last output: it holds nothing any more. */
static inline void worker_finished(worker *w, request *r, rk_cause cause) {
    rk_effects fx;
    rk_effects_clear(&fx);
    r->there = false;
    r->over = true;
    rk_ledger_finished(w->ledger, w->world->now, r->handle, 0, cause, &fx);
    worker_effects(w, &fx);
}

/* The release agent's word: the room is over in the engine. */
static inline void worker_released(worker *w, request *r) {
    rk_effects fx;
    rk_effects_clear(&fx);
    r->there = false;
    r->asked = false;
    rk_ledger_slot_released(w->ledger, w->world->now, r->handle, &fx);
    worker_effects(w, &fx);
}

/* The engine has taken an abort. */
static inline void worker_aborted(worker *w, request *r) {
    rk_effects fx;
    rk_effects_clear(&fx);
    r->marked = false;
    if (w->role == RK_LINK_ROLE_DECODE && r->handed_off)
        r->there = false;
    rk_ledger_aborted(w->ledger, w->world->now, r->handle, RK_LEDGER_ALL, &fx);
    worker_effects(w, &fx);
}

static inline void worker_engine_is(worker *w, rk_link_engine engine) {
    w->engine = engine;
    rk_peers_engine_changed(w->peers, w->world->now);
}

/* ---- steps ---- */

static inline worker *listener_at(world *all, const dial_order *order) {
    for (unsigned i = 0; i < all->count; i++) {
        worker *w = &all->workers[i];
        if (w->role == RK_LINK_ROLE_PREFILL && w->link_port == order->port &&
            (strcmp(w->host, order->host) == 0 || strcmp(order->host, "alias") == 0))
            return w;
    }
    return NULL;
}

static inline void worker_connect(worker *w, worker *target, const dial_order *order) {
    world *all = w->world;
    end *client = end_new(w, false);
    end *server = end_new(target, true);
    client->other = server;
    server->other = client;
    if (!rk_link_open(w->peers, all->now, &client->rk, order->peer, client, order->host)) {
        end_free(client);
        end_free(server);
        return;
    }
    if (target->frozen || !rk_link_accept(target->peers, all->now, &server->rk, server, w->host)) {
        if (!target->frozen)
            end_close(client, false, server->rk.over.code, server->rk.over.text);
        end_free(server);
    }
}

/* The dial ordered last: connected, refused, or without an answer. */
static inline bool worker_dial_next(worker *w) {
    if (w->dial_count == 0 || !w->alive || w->frozen)
        return false;
    dial_order order = w->dials[--w->dial_count];
    worker *target = listener_at(w->world, &order);
    if (!target || target->unreachable || target->life == 0)
        rk_peers_dial_failed(w->peers, w->world->now, order.peer, RK_DIAL_FAILED, "no route to host");
    else if (!target->alive)
        rk_peers_dial_failed(w->peers, w->world->now, order.peer, RK_DIAL_REFUSED, "connection refused");
    else
        worker_connect(w, target, &order);
    return true;
}

static inline bool worker_submit_next(worker *w) {
    if (!w->alive || w->frozen)
        return false;
    for (unsigned i = 0; i < w->request_count; i++) {
        request *r = &w->requests[i];
        if (!r->admitted)
            continue;
        r->admitted = false;
        world_submit(w, r);
        return true;
    }
    return false;
}

/* Until nothing is left to be done at this time. */
static inline void world_settle(world *w) {
    bool some = true;
    for (unsigned rounds = 0; some; rounds++) {
        ck_assert_uint_lt(rounds, 1000000);
        some = false;
        for (rk_list *node = w->ends.next; node != &w->ends;) {
            end *e = RK_CONTAINER(node, end, link);
            node = node->next;
            some |= end_step(e);
        }
        for (unsigned i = 0; i < w->count; i++) {
            some |= worker_dial_next(&w->workers[i]);
            some |= w->workers[i].auto_submit && worker_submit_next(&w->workers[i]);
        }
    }
}

static inline void worker_tick(worker *w) {
    rk_effects fx;
    if (!w->alive || w->frozen)
        return;
    rk_effects_clear(&fx);
    rk_ledger_tick(w->ledger, w->world->now, &fx);
    worker_effects(w, &fx);
    rk_peers_tick(w->peers, w->world->now);
}

/* Time passes, with a tick every 50 ms. */
static inline void world_run(world *w, uint64_t ms) {
    uint64_t until = w->now + ms;
    world_settle(w);
    while (w->now < until) {
        w->now += until - w->now < 50 ? until - w->now : 50;
        for (unsigned i = 0; i < w->count; i++)
            worker_tick(&w->workers[i]);
        world_settle(w);
    }
}

static inline world *world_new(void) {
    world *w = calloc(1, sizeof *w);
    ck_assert_ptr_nonnull(w);
    w->now = T0;
    rk_list_init(&w->ends);
    return w;
}

static inline void world_free(world *w) {
    for (unsigned i = 0; i < w->count; i++) {
        if (w->workers[i].alive)
            worker_crash(&w->workers[i]);
        free(w->workers[i].requests);
    }
    while (!rk_list_empty(&w->ends))
        end_free(RK_CONTAINER(w->ends.next, end, link));
    free(w);
}

/* ---- looking ---- */

static inline rk_peers_counts peers_counts(worker *w) {
    rk_peers_counts counts;
    (void)rk_peers_read(w->peers, w->world->now, &counts, NULL, 0);
    return counts;
}

static inline rk_peer_row peer_row(worker *w, unsigned at) {
    rk_peers_counts counts;
    rk_peer_row rows[16];
    ck_assert_uint_gt(rk_peers_read(w->peers, w->world->now, &counts, rows, 16), at);
    return rows[at];
}

static inline rk_leg_state leg_state(worker *w, const request *r) {
    const rk_leg *leg = rk_ledger_find(w->ledger, r->handle);
    return leg ? leg->state : RK_LEG_ENDED;
}

/* The stream whose end is this worker's; NULL: it has none. */
static inline end *end_of(worker *w) {
    for (rk_list *node = w->world->ends.next; node != &w->world->ends; node = node->next)
        if (RK_CONTAINER(node, end, link)->owner == w)
            return RK_CONTAINER(node, end, link);
    return NULL;
}

#endif
