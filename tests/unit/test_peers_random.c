/* Random events in worlds of linked workers: arrivals in any order or never, cancels, transfers, errors, slow
 * release agents, streams that break, workers that freeze, stall, die and start anew. All along:
 *
 *   - a decode gives a room up (RK_FX_RELEASE_ROOM) only when no prefill can write into its pages, and no
 *     prefill that lived then takes the room to its engine afterwards;
 *   - a decode that has its KV is not ended by its twin, or for want of it;
 *   - no leg ends twice.
 *
 * At the end, when everybody is there again, every leg is over and every slot is free.
 *
 * WORLDS=1000 runs more of them, SEED=7 begins elsewhere. */
#include "link_world.h"

#define EVENTS 4000
#define ROOMS_MAX 4000
#define PREFILLS 2
#define DECODES 2
#define GATEWAY_LEGS_MAX 64

typedef struct room_record {
    worker *decode;
    worker *prefill;
    bool writing; /* the prefill's engine has it */
    unsigned writing_life;
    bool transferred;    /* all of the KV has been written */
    bool given_up;       /* by the decode's ledger */
    unsigned asked_life; /* of the prefill that the decode's engine has asked for the room */
    bool handed_off;
} room_record;

/* A leg that a gateway is about to send. */
typedef struct gateway_leg {
    bool used;
    worker *to;
    int64_t room;
    uint64_t due;
} gateway_leg;

typedef struct chaos {
    world *world;
    unsigned seed;
    room_record rooms[ROOMS_MAX + 1];
    int64_t room_count;
    gateway_leg legs[GATEWAY_LEGS_MAX];
    uint64_t died[WORLD_WORKERS_MAX];    /* when it crashed, ms */
    uint64_t lingers[WORLD_WORKERS_MAX]; /* its schedulers, ms */
    uint64_t completed;
    uint64_t given_up;
    uint64_t by_twin;
    uint64_t by_loss;
} chaos;

static unsigned pick(chaos *c, unsigned below) {
    c->seed = c->seed * 1103515245u + 12345u;
    return (c->seed >> 16) % below;
}

static unsigned number_of(const worker *w) {
    return (unsigned)(w - w->world->workers);
}

static bool may_write(const chaos *c, const room_record *room) {
    if (!room->writing || room->transferred || room->asked_life != room->writing_life)
        return false;
    const worker *p = room->prefill;
    unsigned i = number_of(p);
    bool lives = p->alive && p->life == room->writing_life;
    return lives || (p->life == room->writing_life && c->world->now < c->died[i] + c->lingers[i]);
}

/* ---- what is checked all along ---- */

static void on_release(worker *w, request *r, const rk_effect *effect) {
    chaos *c = w->world->owner;
    (void)r;
    if (w->role != RK_LINK_ROLE_DECODE)
        return;
    room_record *room = &c->rooms[effect->room.room];
    ck_assert_msg(!may_write(c, room), "seed %u: room %lld is given up while its prefill may write", c->seed,
                  (long long)effect->room.room);
    room->given_up = true;
    c->given_up++;
}

static void on_submit(worker *w, request *r) {
    chaos *c = w->world->owner;
    room_record *room = &c->rooms[r->room];
    if (w->role == RK_LINK_ROLE_DECODE) {
        room->given_up = false;
        room->asked_life = room->prefill->life + (room->prefill->alive ? 0 : 1);
        return;
    }
    ck_assert_msg(!(room->given_up && room->asked_life == w->life),
                  "seed %u: room %lld goes to its prefill's engine after it was given up", c->seed,
                  (long long)r->room);
    room->writing = true;
    room->writing_life = w->life;
}

static void on_end(worker *w, request *r, const rk_effect *effect) {
    chaos *c = w->world->owner;
    bool by_twin = effect->cause == RK_CAUSE_TWIN_ENDED || effect->cause == RK_CAUSE_PEER_LOST ||
                   effect->cause == RK_CAUSE_TWIN_MISSING;
    ck_assert(!(by_twin && r->handed_off && w->role == RK_LINK_ROLE_DECODE));
    c->by_twin += effect->cause == RK_CAUSE_TWIN_ENDED ? 1 : 0;
    c->by_loss += effect->cause == RK_CAUSE_PEER_LOST ? 1 : 0;
}

/* ---- clients ---- */

static void send_leg(chaos *c, worker *to, int64_t room, unsigned within_ms) {
    for (unsigned i = 0; i < GATEWAY_LEGS_MAX; i++) {
        if (c->legs[i].used)
            continue;
        c->legs[i] = (gateway_leg){true, to, room, c->world->now + pick(c, within_ms + 1)};
        return;
    }
}

static void new_pair(chaos *c) {
    if (c->room_count == ROOMS_MAX)
        return;
    int64_t number = ++c->room_count;
    room_record *room = &c->rooms[number];
    room->prefill = &c->world->workers[pick(c, PREFILLS)];
    room->decode = &c->world->workers[PREFILLS + pick(c, DECODES)];
    unsigned how = pick(c, 20);
    unsigned within = pick(c, 4) ? 20 : 1500;
    if (how != 0)
        send_leg(c, room->decode, number, within);
    if (how != 1)
        send_leg(c, room->prefill, number, within);
}

static void legs_arrive(chaos *c) {
    rk_verdict verdict;
    for (unsigned i = 0; i < GATEWAY_LEGS_MAX; i++) {
        gateway_leg *leg = &c->legs[i];
        if (!leg->used || leg->due > c->world->now || leg->to->frozen)
            continue;
        leg->used = false;
        if (!leg->to->alive)
            continue;
        worker *p = c->rooms[leg->room].prefill;
        (void)worker_arrive(leg->to, p->host, p->bootstrap_port, leg->room, &verdict);
    }
}

static request *some_request(chaos *c, worker *w) {
    return w->request_count ? &w->requests[pick(c, w->request_count)] : NULL;
}

static worker *some_worker(chaos *c) {
    return &c->world->workers[pick(c, c->world->count)];
}

static void cancel_one(chaos *c) {
    worker *w = some_worker(c);
    request *r = w->alive && !w->frozen ? some_request(c, w) : NULL;
    if (r && !r->over)
        worker_cancel(w, r, pick(c, 2) ? RK_CAUSE_CLIENT_CANCEL : RK_CAUSE_SLOW_READER);
}

/* ---- engines ---- */

/* The KV goes over, if both engines have the room. The launchers need not be awake for it. */
static void transfer(chaos *c, room_record *room, int64_t number) {
    worker *p = room->prefill;
    worker *d = room->decode;
    request *prefill = p->alive ? request_in(p, number) : NULL;
    request *decode = d->alive ? request_in(d, number) : NULL;
    bool both = prefill && decode && prefill->there && decode->there;
    if (both && may_write(c, room) && p->engine == RK_LINK_ENGINE_READY && d->engine == RK_LINK_ENGINE_READY)
        room->transferred = true;
}

/* An abort is taken at once, and acted on with the step that gets the KV, or with the next one after it. */
static void decode_step(chaos *c, worker *w, request *r) {
    room_record *room = &c->rooms[r->room];
    if (r->marked) {
        r->over_in_engine = true;
        worker_aborted(w, r);
    } else if (room->transferred && !r->handed_off) {
        r->there = !r->over_in_engine;
        worker_first_output(w, r);
    } else if (r->handed_off && pick(c, 3) == 0) {
        worker_finished(w, r, RK_CAUSE_COMPLETED);
        c->completed++;
    } else if (r->asked) {
        worker_released(w, r);
    }
}

static void prefill_step(chaos *c, worker *w, request *r, bool fails) {
    room_record *room = &c->rooms[r->room];
    rk_cause cause = room->transferred ? RK_CAUSE_COMPLETED : RK_CAUSE_ENGINE_ERROR;
    if (room->transferred || fails) {
        worker_finished(w, r, cause);
        room->writing = false;
    } else if (r->asked) {
        room->writing = false;
        worker_released(w, r);
    } else if (r->marked) {
        worker_aborted(w, r);
    }
}

static void engine_step(chaos *c, worker *w, request *r, bool fails) {
    if (!w->alive || !r || !r->there || w->engine != RK_LINK_ENGINE_READY)
        return;
    if (pick(c, 2))
        transfer(c, &c->rooms[r->room], r->room);
    if (w->frozen)
        return;
    if (w->role == RK_LINK_ROLE_DECODE)
        decode_step(c, w, r);
    else
        prefill_step(c, w, r, fails);
}

/* What is over for everybody is forgotten, so that the tables stay short. */
static void sweep(worker *w) {
    unsigned kept = 0;
    for (unsigned i = 0; i < w->request_count; i++)
        if (!w->requests[i].over || w->requests[i].there || rk_ledger_find(w->ledger, w->requests[i].handle))
            w->requests[kept++] = w->requests[i];
    w->request_count = kept;
}

/* ---- misfortunes ---- */

static void break_one(chaos *c) {
    unsigned count = 0;
    for (rk_list *node = c->world->ends.next; node != &c->world->ends; node = node->next)
        count++;
    unsigned at = count ? pick(c, count) : 0;
    rk_list *node = c->world->ends.next;
    while (at-- > 0)
        node = node->next;
    if (count)
        stream_break(RK_CONTAINER(node, end, link), "cut");
}

static void crash(chaos *c, worker *w) {
    if (!w->alive)
        return;
    unsigned i = number_of(w);
    c->died[i] = c->world->now;
    c->lingers[i] = pick(c, 200);
    worker_crash(w);
}

static void restart(chaos *c, worker *w) {
    unsigned i = number_of(w);
    if (!w->alive && c->world->now >= c->died[i] + c->lingers[i])
        worker_start(w);
}

static void misfortune(chaos *c) {
    worker *w = some_worker(c);
    switch (pick(c, 6)) {
    case 0:
        break_one(c);
        return;
    case 1:
        if (pick(c, 3) == 0)
            crash(c, w);
        return;
    case 2:
        w->frozen = w->alive;
        return;
    case 3:
        w->unreachable = true;
        return;
    case 4:
        if (w->alive && !w->frozen)
            worker_engine_is(w, RK_LINK_ENGINE_STALLED);
        return;
    default:
        break_one(c);
        break_one(c);
        return;
    }
}

static void recover(chaos *c, worker *w) {
    restart(c, w);
    w->frozen = false;
    w->unreachable = false;
    if (w->alive && w->engine != RK_LINK_ENGINE_READY)
        worker_engine_is(w, RK_LINK_ENGINE_READY);
}

/* ---- time, and single steps of the transport ---- */

static void pass(chaos *c, unsigned ms) {
    c->world->now += ms;
    for (unsigned i = 0; i < c->world->count; i++)
        worker_tick(&c->world->workers[i]);
}

static void transport_steps(chaos *c, unsigned steps) {
    while (steps-- > 0) {
        for (rk_list *node = c->world->ends.next; node != &c->world->ends;) {
            end *e = RK_CONTAINER(node, end, link);
            node = node->next;
            if (pick(c, 3))
                (void)end_step(e);
        }
        for (unsigned i = 0; i < c->world->count; i++) {
            if (pick(c, 2))
                (void)worker_dial_next(&c->world->workers[i]);
            if (pick(c, 2))
                (void)worker_submit_next(&c->world->workers[i]);
        }
    }
}

static void one_event(chaos *c) {
    unsigned what = pick(c, 1000);
    if (what < 150) {
        new_pair(c);
    } else if (what < 170) {
        cancel_one(c);
    } else if (what < 780) {
        worker *w = some_worker(c);
        engine_step(c, w, w->alive ? some_request(c, w) : NULL, pick(c, 50) == 0);
    } else if (what < 788) {
        misfortune(c);
    } else if (what < 820) {
        recover(c, some_worker(c));
    } else {
        pass(c, pick(c, 40));
    }
    legs_arrive(c);
    transport_steps(c, pick(c, 4));
}

/* ---- the end ---- */

static void everybody_is_back(chaos *c) {
    for (unsigned round = 0; round < 900; round++) {
        for (unsigned i = 0; i < c->world->count; i++) {
            worker *w = &c->world->workers[i];
            recover(c, w);
            for (unsigned k = 0; w->alive && k < w->request_count; k++)
                engine_step(c, w, &w->requests[k], false);
            if (w->alive)
                sweep(w);
        }
        legs_arrive(c);
        world_run(c->world, 50);
    }
}

/* Legs that nobody has spoken of over a link have their engine's own deadlines. */
static void engines_give_up(worker *w) {
    for (unsigned k = 0; k < w->request_count; k++)
        if (w->requests[k].there)
            worker_finished(w, &w->requests[k], RK_CAUSE_ENGINE_ERROR);
}

static void nothing_is_left_at(const chaos *c, worker *w) {
    const char *who = w->role == RK_LINK_ROLE_DECODE ? "decode" : "prefill";
    for (rk_list *node = w->ledger->legs.next; node != &w->ledger->legs; node = node->next) {
        const rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
        /* A decode that asked a prefill before its link was up, and that one has died: neither worker knows.
         */
        const room_record *room = &c->rooms[leg->room.room];
        bool crossed = room->writing && room->asked_life != room->writing_life;
        ck_assert_msg(!leg->linked || crossed, "room %lld of %s %s is left, %s by %s (twin %s)",
                      (long long)leg->room.room, who, w->host, rk_leg_state_name(leg->state),
                      rk_cause_name(leg->cause), rk_cause_name(leg->twin_cause));
        ck_assert(leg->state == RK_LEG_ENDED || leg->state == RK_LEG_SUBMITTED);
    }
    for (unsigned k = 0; k < w->request_count; k++)
        ck_assert_msg(w->requests[k].over || rk_ledger_find(w->ledger, w->requests[k].handle),
                      "the client of room %lld waits for nothing", (long long)w->requests[k].room);
    /* Who was linked is linked again; one that never was waits for a leg that names it. */
    for (unsigned k = 0; w->role == RK_LINK_ROLE_DECODE && k < peers_counts(w).known; k++)
        ck_assert(peer_row(w, k).phase == RK_PEER_IS_UP || peer_row(w, k).ups == 0);
}

static void nothing_is_left(chaos *c) {
    for (unsigned i = 0; i < c->world->count; i++)
        nothing_is_left_at(c, &c->world->workers[i]);
    for (unsigned i = 0; i < c->world->count; i++)
        engines_give_up(&c->world->workers[i]);
    world_run(c->world, 70000);
    for (unsigned i = 0; i < c->world->count; i++)
        assert_empty(c->world->workers[i].ledger, c->world->now);
}

static void set_options(worker *w) {
    w->peer_options.links = 64;
    w->peer_options.dials_per_second = 50;
    rk_ledger_options *o = &w->ledger_options;
    o->waiting_places = 6;
    o->held_places = 24;
    o->wait_ms = 3000;
    o->announce_ms = 200;
    o->twin_ms = 2000;
    o->handoff_ms = 5000;
    o->transfer_ms = 60000;
}

static void run_world(unsigned seed) {
    chaos *c = calloc(1, sizeof *c);
    ck_assert_ptr_nonnull(c);
    c->seed = seed;
    c->world = world_new();
    c->world->owner = c;
    c->world->on_release = on_release;
    c->world->on_submit = on_submit;
    c->world->on_end = on_end;
    for (int i = 0; i < PREFILLS + DECODES; i++) {
        char host[32];
        (void)snprintf(host, sizeof host, "worker%d.example", i);
        worker *w =
            worker_add(c->world, i < PREFILLS ? RK_LINK_ROLE_PREFILL : RK_LINK_ROLE_DECODE, host, 9000 + i);
        w->auto_submit = false;
        set_options(w);
        worker_start(w);
    }
    for (int i = 0; i < EVENTS; i++) {
        one_event(c);
        for (unsigned k = 0; i % 50 == 0 && k < c->world->count; k++)
            if (c->world->workers[k].alive)
                sweep(&c->world->workers[k]);
    }
    for (unsigned i = 0; i < c->world->count; i++)
        c->world->workers[i].auto_submit = true;
    everybody_is_back(c);
    nothing_is_left(c);
    /* Else nothing has been tried. */
    ck_assert_uint_gt(c->completed, 0);
    ck_assert_uint_gt(c->by_twin, 20);
    ck_assert_uint_gt(c->by_loss, 5);
    ck_assert_uint_gt(c->given_up, 0);
    if (getenv("VERBOSE"))
        (void)printf("seed %u: %llu completed, %llu by twin, %llu by loss, %llu given up\n", seed,
                     (unsigned long long)c->completed, (unsigned long long)c->by_twin,
                     (unsigned long long)c->by_loss, (unsigned long long)c->given_up);
    world_free(c->world);
    free(c);
}

static unsigned from_environment(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

START_TEST(whatever_happens_no_page_is_given_up_early_and_no_leg_or_slot_is_lost) {
    run_world(from_environment("SEED", 1) + (unsigned)_i);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("peers at random");
    TCase *tcase = tcase_create("random");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, whatever_happens_no_page_is_given_up_early_and_no_leg_or_slot_is_lost, 0,
                        (int)from_environment("WORLDS", 12));
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
