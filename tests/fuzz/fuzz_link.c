/* Any bytes as what the other side of a link says to a worker with live legs, mixed with what clients and the
 * engine do meanwhile. The first byte chooses the role, whether there is a token, and whether the hellos have
 * been said; then come operations of one byte each, with their operands. link_world.h has the invariants of
 * the effects, rk_ledger_check those of the ledger. */
#include "link_world.h"

#define HOST "prefill.example"
#define PORT 8998
#define ROOMS 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *at;
    const uint8_t *end;
} input;

typedef struct run {
    world *world;
    worker *worker;
    end *stream; /* NULL: there is none */
    uint8_t instance;
} run;

static uint8_t byte_of(input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

/* ---- the stream ---- */

static void open_stream(run *r) {
    worker *w = r->worker;
    if (r->stream || (w->role == RK_LINK_ROLE_DECODE && w->dial_count == 0))
        return;
    end *e = end_new(w, w->role == RK_LINK_ROLE_PREFILL);
    bool taken = w->role == RK_LINK_ROLE_PREFILL ? rk_link_accept(w->peers, r->world->now, &e->rk, e, "fuzz")
                                                 : rk_link_open(w->peers, r->world->now, &e->rk,
                                                                w->dials[--w->dial_count].peer, e, "fuzz");
    r->stream = taken ? e : NULL;
    if (!taken)
        end_free(e);
}

static void close_stream(run *r, rk_code code) {
    if (!r->stream)
        return;
    rk_link_closed(r->worker->peers, r->world->now, &r->stream->rk, code, "fuzz");
    end_free(r->stream);
    r->stream = NULL;
}

/* What the worker says is read by nobody; if it ends the stream, that is over. */
static void pump(run *r) {
    for (int i = 0; i < 64 && r->stream && !r->stream->ending; i++)
        if (!end_pump(r->stream))
            return;
    if (r->stream && r->stream->ending)
        close_stream(r, RK_CANCELLED);
}

static void hear(run *r, const uint8_t *bytes, size_t size) {
    if (!r->stream)
        return;
    uint8_t *copy = malloc(size ? size : 1); /* ends where its memory ends */
    if (size)
        memcpy(copy, bytes, size);
    rk_link_received(r->worker->peers, r->world->now, &r->stream->rk, copy, size);
    free(copy);
}

static void hear_message(run *r, input *in) {
    size_t size = byte_of(in);
    size |= (size_t)byte_of(in) << 8;
    size_t left = (size_t)(in->end - in->at);
    size = size < left ? size : left;
    hear(r, in->at, size);
    in->at += size;
}

static void hear_buf(run *r, rk_buf *frame) {
    hear(r, frame->data, frame->size);
    rk_buf_free(frame);
}

static void hear_hellos(run *r) {
    bool prefill = r->worker->role == RK_LINK_ROLE_PREFILL;
    rk_hello hello = {
        .protocol = 1,
        .role = prefill ? RK_LINK_ROLE_DECODE : RK_LINK_ROLE_PREFILL,
        .engine = RK_LINK_ENGINE_READY,
        .heartbeat_ms = WORLD_BEAT_MS,
    };
    memset(hello.instance, 1 + r->instance, sizeof hello.instance);
    rk_buf out = RK_BUF_INIT;
    rk_frame_hello(&out, &hello);
    hear_buf(r, &out);
    pump(r);
    rk_frame_begin(&out, NULL);
    hear_buf(r, &out);
    pump(r);
}

/* A room frame that is well-formed, about a room that the worker may have. */
static void hear_room(run *r, input *in) {
    uint8_t what = byte_of(in);
    rk_room_news news = {
        .room = {.host = HOST, .port = PORT, .room = 1 + what % ROOMS},
        .state = (rk_room_state)(what / ROOMS % 8),
        .cause = (rk_cause)(1 + byte_of(in) % (RK_CAUSES - 1)),
        .ever_submitted = what & 0x40,
    };
    rk_buf entries = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    rk_rooms_add(&entries, &news);
    rk_frame_rooms(&out, &entries);
    rk_buf_free(&entries);
    hear_buf(r, &out);
}

/* ---- clients and the engine ---- */

static void with_leg(run *r, request *leg, unsigned what) {
    worker *w = r->worker;
    switch (what) {
    case 0:
        if (!leg->over)
            worker_cancel(w, leg, RK_CAUSE_CLIENT_CANCEL);
        return;
    case 1:
        if (leg->there && w->role == RK_LINK_ROLE_DECODE)
            worker_first_output(w, leg);
        return;
    case 2:
    case 3:
        if (leg->there)
            worker_finished(w, leg, what == 2 ? RK_CAUSE_COMPLETED : RK_CAUSE_ENGINE_ERROR);
        return;
    case 4:
        if (leg->asked)
            worker_released(w, leg);
        return;
    case 5:
        if (leg->marked)
            worker_aborted(w, leg);
        return;
    default:
        (void)worker_submit_next(w);
        return;
    }
}

static void client_or_engine(run *r, input *in) {
    uint8_t what = byte_of(in);
    int64_t room = 1 + what % ROOMS;
    request *leg = request_in(r->worker, room);
    rk_verdict verdict;
    if (what / ROOMS % 8 == 7 || !leg)
        (void)worker_arrive(r->worker, HOST, PORT, room, &verdict);
    else
        with_leg(r, leg, what / ROOMS % 8);
}

/* ---- */

static void all_at_once(run *r, uint8_t what) {
    worker *w = r->worker;
    rk_effects fx;
    rk_effects_clear(&fx);
    switch (what % 6) {
    case 0:
        worker_engine_is(w, RK_LINK_ENGINE_STALLED);
        return;
    case 1:
        worker_engine_is(w, RK_LINK_ENGINE_READY);
        return;
    case 2:
        rk_ledger_drain(w->ledger, r->world->now, &fx);
        break;
    case 3:
        rk_ledger_end_all(w->ledger, r->world->now, RK_CAUSE_DRAIN, &fx);
        break;
    case 4:
        while (w->dial_count > 0) {
            uint32_t peer = w->dials[--w->dial_count].peer;
            rk_dial_end end_of_it = what & 0x80 ? RK_DIAL_REFUSED : RK_DIAL_FAILED;
            rk_peers_dial_failed(w->peers, r->world->now, peer, end_of_it, "fuzz");
        }
        return;
    default:
        rk_peers_stop(w->peers, r->world->now);
        return;
    }
    worker_effects(w, &fx);
}

static void step(run *r, input *in) {
    uint8_t op = byte_of(in);
    switch (op % 9) {
    case 0:
        hear_message(r, in);
        return;
    case 1:
        hear_room(r, in);
        return;
    case 2:
    case 3:
        client_or_engine(r, in);
        return;
    case 4:
        r->world->now += 4u * byte_of(in);
        worker_tick(r->worker);
        return;
    case 5:
        pump(r);
        return;
    case 6:
        close_stream(r, op & 0x80 ? RK_UNAVAILABLE : RK_UNIMPLEMENTED);
        return;
    case 7:
        r->instance = (op & 0x80) != 0;
        open_stream(r);
        hear_hellos(r);
        return;
    default:
        all_at_once(r, byte_of(in));
        return;
    }
}

static void look(const run *r) {
    rk_peers_counts counts;
    rk_peer_row rows[4];
    rk_ledger_check(r->worker->ledger);
    (void)rk_peers_read(r->worker->peers, r->world->now, &counts, rows, 4);
    ck_assert_uint_le(counts.up, counts.known);
    ck_assert_uint_le(counts_of(r->worker->ledger).announced, 40);
}

static void start(run *r, uint8_t choice) {
    r->world = world_new();
    worker *w = worker_add(r->world, choice & 1 ? RK_LINK_ROLE_PREFILL : RK_LINK_ROLE_DECODE, HOST, PORT);
    r->worker = w;
    w->peer_options.links = 4;
    w->ledger_options.window = 2;
    w->ledger_options.waiting_places = 3;
    w->ledger_options.held_places = 3;
    w->ledger_options.announced = 40;
    w->ledger_options.tombstones = 40;
    w->ledger_options.peer_rooms = 20;
    if (choice & 2) {
        w->peer_options.token.size = 1;
        w->peer_options.token.bytes[0] = 't';
    }
    worker_start(w);
    rk_verdict verdict;
    for (int64_t room = 1; room <= 3; room++)
        (void)worker_arrive(w, HOST, PORT, room, &verdict);
    (void)worker_submit_next(w);
    open_stream(r);
    if (choice & 4)
        hear_hellos(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, data + size};
    run r = {0};
    start(&r, byte_of(&in));
    for (int steps = 0; in.at < in.end && steps < 400; steps++) {
        step(&r, &in);
        look(&r);
    }
    close_stream(&r, RK_CANCELLED);
    look(&r);
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_end_all(r.worker->ledger, r.world->now, RK_CAUSE_ENGINE_DEAD, &fx);
    worker_effects(r.worker, &fx);
    assert_empty(r.worker->ledger, r.world->now);
    world_free(r.world);
    return 0;
}
