/* Workers linked to each other, event by event: what a link is for, how it is lost and found again, whom it
 * is refused to, and what is bounded. The workers are in link_world.h; random events are in
 * test_peers_random.c. */
#include "dialect_wire.h"
#include "link_world.h"
#include "rk_proto/fields.h"

#define HOST "prefill.example"
#define PORT 8998

static rk_verdict v;
static world *w;
static worker *p; /* a prefill, and … */
static worker *d; /* … a decode that knows it by HOST and PORT */

static void setup(void) {
    w = world_new();
    p = worker_add(w, RK_LINK_ROLE_PREFILL, HOST, PORT);
    d = worker_add(w, RK_LINK_ROLE_DECODE, "decode.example", 0);
}

static void teardown(void) {
    world_free(w);
}

static void start(void) {
    worker_start(p);
    worker_start(d);
}

static request *arrive(worker *it, int64_t room) {
    return worker_arrive(it, HOST, PORT, room, &v);
}

/* Both legs of a room. */
static void pair(int64_t room) {
    (void)arrive(d, room);
    ck_assert(v.accepted);
    (void)arrive(p, room);
    ck_assert(v.accepted);
}

static rk_leg_state state_at(worker *it, int64_t room) {
    return leg_state(it, request_in(it, room));
}

/* The first room has been seen, so the link is up. */
static void link_up(void) {
    start();
    pair(1);
    world_settle(w);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_int_eq(peer_row(p, 0).phase, RK_PEER_IS_UP);
}

/* What is told to this worker's only stream, as if the other side had said it. */
static void say(worker *to, rk_buf frame) {
    end *e = end_of(to);
    ck_assert_ptr_nonnull(e);
    rk_link_received(to->peers, w->now, &e->rk, frame.data, frame.size);
    rk_buf_free(&frame);
}

static rk_buf rooms_frame(const char *host, int64_t first, unsigned count, rk_room_state state,
                          rk_cause cause) {
    rk_buf entries = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    for (unsigned i = 0; i < count; i++) {
        rk_room_news news = {.room = {.port = PORT, .room = first + i}, .state = state, .cause = cause};
        (void)snprintf(news.room.host, sizeof news.room.host, "%s", host);
        rk_rooms_add(&entries, &news);
    }
    rk_frame_rooms(&out, &entries);
    rk_buf_free(&entries);
    return out;
}

static rk_buf hello_frame(rk_link_role role, uint32_t protocol, const uint8_t *instance) {
    rk_hello hello = {
        .protocol = protocol, .role = role, .engine = RK_LINK_ENGINE_READY, .heartbeat_ms = WORLD_BEAT_MS};
    memset(hello.instance, 0x77, sizeof hello.instance);
    if (instance)
        memcpy(hello.instance, instance, sizeof hello.instance);
    memset(hello.nonce, 0x55, sizeof hello.nonce);
    rk_buf out = RK_BUF_INIT;
    rk_frame_hello(&out, &hello);
    return out;
}

/* A stream from somebody who is no worker of this world. */
static end *stranger(worker *to) {
    end *e = end_new(to, true);
    if (rk_link_accept(to->peers, w->now, &e->rk, e, "stranger"))
        return e;
    end_free(e);
    return NULL;
}

static void from_stranger(end *e, rk_buf frame) {
    rk_link_received(e->owner->peers, w->now, &e->rk, frame.data, frame.size);
    rk_buf_free(&frame);
}

/* Is the stream to be ended, and with this word in its reason? */
static bool is_over(end *e, const char *part) {
    rk_status status;
    if (!rk_link_is_over(e->owner->peers, &e->rk, &status))
        return false;
    ck_assert_ptr_null(strchr(status.text, '\n'));
    ck_assert_msg(strstr(status.text, part) != NULL, "\"%s\" lacks \"%s\"", status.text, part);
    return true;
}

static rk_buf begin_frame(void) {
    rk_buf out = RK_BUF_INIT;
    rk_frame_begin(&out, NULL);
    return out;
}

/* A stranger who is linked as a decode of this instance. */
static end *linked_stranger(worker *to, uint8_t instance) {
    uint8_t bytes[RK_INSTANCE_BYTES];
    memset(bytes, instance, sizeof bytes);
    end *e = stranger(to);
    ck_assert_ptr_nonnull(e);
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 1, bytes));
    from_stranger(e, begin_frame());
    ck_assert_int_eq(e->rk.phase, RK_LINK_UP);
    return e;
}

/* ---- it comes up ---- */

START_TEST(the_first_leg_that_names_a_prefill_has_it_dialled_and_linked) {
    start();
    ck_assert_uint_eq(peers_counts(d).known, 0);
    (void)arrive(d, 1);
    rk_peer_row row = peer_row(d, 0);
    ck_assert_int_eq(row.phase, RK_PEER_IS_DIALLING);
    ck_assert_str_eq(row.name, HOST ":8998");
    ck_assert_str_eq(row.address, HOST ":10998");
    ck_assert_str_eq(row.instance, "");
    char address[RK_ROOM_HOST_MAX + 8];
    rk_peers_address(d->peers, row.number, address);
    ck_assert_str_eq(address, row.address);
    rk_peers_address(d->peers, 0, address);
    ck_assert_str_eq(address, "");
    world_settle(w);
    row = peer_row(d, 0);
    ck_assert_int_eq(row.phase, RK_PEER_IS_UP);
    ck_assert_uint_eq(strlen(row.instance), 2 * RK_INSTANCE_BYTES);
    ck_assert_str_eq(row.release, RK_VERSION);
    ck_assert_int_eq(row.engine, RK_LINK_ENGINE_READY);
    ck_assert_uint_eq(row.ups, 1);
    ck_assert_str_eq(row.why, "");
    ck_assert_uint_eq(peers_counts(p).up, 1);
    ck_assert_uint_eq(peers_counts(p).streams_refused + peers_counts(d).streams_refused, 0);
    (void)arrive(d, 2);
    world_settle(w);
    ck_assert_uint_eq(d->dialled, 1); /* one link for all rooms */
}
END_TEST

START_TEST(a_prefill_dials_nobody) {
    start();
    (void)arrive(p, 1);
    world_run(w, 1000);
    ck_assert_uint_eq(p->dialled, 0);
    ck_assert_uint_eq(peers_counts(p).known, 0);
}
END_TEST

START_TEST(a_burst_is_held_until_the_decode_has_admitted_it_and_none_is_lost) {
    start();
    for (int i = 1; i <= 64; i++)
        (void)arrive(p, i);
    for (int i = 1; i <= 64; i++)
        (void)arrive(d, i);
    world_settle(w);
    for (unsigned done = 0; done < 64; done += 4) {
        unsigned submitted = 0;
        for (int64_t i = 1; i <= 64; i++) {
            rk_leg_state decode = state_at(d, i);
            rk_leg_state prefill = state_at(p, i);
            ck_assert(decode != RK_LEG_SUBMITTED || prefill == RK_LEG_SUBMITTED);
            ck_assert(decode != RK_LEG_WAITING || prefill == RK_LEG_HELD);
            submitted += decode == RK_LEG_SUBMITTED ? 1 : 0;
        }
        ck_assert_uint_eq(submitted, 4); /* the window */
        for (int64_t i = 1; i <= 64; i++) {
            if (state_at(d, i) != RK_LEG_SUBMITTED)
                continue;
            worker_first_output(d, request_in(d, i));
            worker_finished(p, request_in(p, i), RK_CAUSE_COMPLETED);
            worker_finished(d, request_in(d, i), RK_CAUSE_COMPLETED);
        }
        world_run(w, 500);
    }
    assert_empty(d->ledger, w->now);
    assert_empty(p->ledger, w->now);
    ck_assert_uint_eq(counts_of(d->ledger).ended[RK_CAUSE_COMPLETED], 64);
    ck_assert_uint_eq(counts_of(p->ledger).ended[RK_CAUSE_COMPLETED], 64);
    ck_assert_uint_eq(counts_of(d->ledger).stranded + counts_of(p->ledger).stranded, 0);
}
END_TEST

START_TEST(legs_that_came_while_it_was_dialled_are_linked_when_it_is_up) {
    start();
    (void)arrive(d, 1); /* ordered, not connected yet */
    (void)arrive(p, 1);
    const rk_leg *leg = rk_ledger_find(d->ledger, request_in(d, 1)->handle);
    ck_assert(leg->linked && !leg->bound);
    world_settle(w);
    ck_assert(leg->linked && leg->bound && leg->twin_seen);
    ck_assert_int_eq(state_at(p, 1), RK_LEG_SUBMITTED);
}
END_TEST

START_TEST(legs_that_came_while_it_was_dialled_go_on_unlinked_when_it_fails) {
    start();
    p->unreachable = true;
    (void)arrive(d, 1);
    world_settle(w);
    const rk_leg *leg = rk_ledger_find(d->ledger, request_in(d, 1)->handle);
    ck_assert(!leg->linked);
    ck_assert_int_eq(leg->state, RK_LEG_SUBMITTED);
    rk_peer_row row = peer_row(d, 0);
    ck_assert_int_eq(row.phase, RK_PEER_IS_ABSENT);
    ck_assert_str_eq(row.why, "no route to host");
    world_run(w, 60000);
    ck_assert_int_eq(state_at(d, 1), RK_LEG_SUBMITTED); /* no twin is missed */
    (void)arrive(d, 2);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_DIALLING); /* another try */
}
END_TEST

START_TEST(an_absent_peer_is_dialled_by_its_legs_not_oftener_than_every_250_ms) {
    start();
    p->unreachable = true;
    for (int i = 1; i <= 100; i++) {
        (void)arrive(d, i);
        world_settle(w);
        w->now += 10;
    }
    ck_assert_uint_eq(d->dialled, 4); /* in one second */
    ck_assert_uint_eq(peers_counts(d).dials_failed, 4);
}
END_TEST

START_TEST(peers_that_speak_no_link_are_served_without) {
    start();
    p->link_port = 1; /* nobody listens where the rule says */
    (void)arrive(d, 1);
    worker *other = worker_add(w, RK_LINK_ROLE_PREFILL, HOST, PORT);
    other->link_port = 10998;
    other->alive = false;
    other->life = 1;
    world_settle(w);
    ck_assert_str_eq(peer_row(d, 0).why, "connection refused");
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 1)->handle)->linked);
    ck_assert_uint_eq(d->releases, 0); /* that a stranger refuses is no proof of anything */
}
END_TEST

/* ---- legs end together ---- */

static void ends_the_twin(worker *from, worker *to, rk_cause cause, rk_code code) {
    request *r = request_in(from, 1);
    worker_cancel(from, r, cause);
    world_settle(w);
    request *twin = request_in(to, 1);
    ck_assert(twin->over);
    ck_assert_int_eq(twin->cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(twin->twin_cause, cause);
    ck_assert_int_eq(twin->code, code);
}

START_TEST(a_cancelled_prefill_ends_its_decode_and_the_slot_is_free_once_it_is_quiet) {
    link_up();
    ends_the_twin(p, d, RK_CAUSE_CLIENT_CANCEL, RK_ABORTED);
    ck_assert_uint_eq(rank_counts(d->ledger, w->now, 0).releasing, 1);
    ck_assert_uint_eq(d->releases, 0); /* the prefill may still write */
    ck_assert_uint_eq(p->releases, 1);
    worker_aborted(p, request_in(p, 1)); /* a mark, no proof */
    world_run(w, 1000);
    ck_assert_uint_eq(d->releases, 0);
    worker_released(p, request_in(p, 1));
    world_settle(w);
    ck_assert_uint_eq(d->releases, 1);
    worker_released(d, request_in(d, 1));
    assert_empty(d->ledger, w->now);
    assert_empty(p->ledger, w->now);
}
END_TEST

START_TEST(a_cancelled_decode_ends_its_prefill) {
    link_up();
    ends_the_twin(d, p, RK_CAUSE_CLIENT_CANCEL, RK_ABORTED);
    worker_released(p, request_in(p, 1));
    world_settle(w);
    ck_assert_uint_eq(d->releases, 1);
}
END_TEST

START_TEST(a_failed_prefill_ends_its_decode_with_its_own_code) {
    link_up();
    worker_finished(p, request_in(p, 1), RK_CAUSE_ENGINE_ERROR);
    world_settle(w);
    ck_assert_int_eq(request_in(d, 1)->twin_cause, RK_CAUSE_ENGINE_ERROR);
    ck_assert_int_eq(request_in(d, 1)->code, RK_INTERNAL);
    ck_assert_uint_eq(d->releases, 1); /* its last output says that it writes no more */
}
END_TEST

START_TEST(a_refused_leg_ends_its_twin_with_the_refusals_code) {
    d->ledger_options.window = 1;
    d->ledger_options.waiting_places = 1;
    p->ledger_options.held_places = 2;
    link_up();
    pair(2);
    (void)arrive(p, 3);
    world_settle(w);
    (void)arrive(d, 3); /* the window and the line are full */
    ck_assert_int_eq(v.cause, RK_CAUSE_FULL);
    world_settle(w);
    request *twin = request_in(p, 3);
    ck_assert_int_eq(twin->twin_cause, RK_CAUSE_FULL);
    ck_assert_int_eq(twin->code, RK_RESOURCE_EXHAUSTED);
    (void)arrive(d, 4);
    world_settle(w);
    (void)arrive(p, 4); /* its decode was refused before it came */
    ck_assert_int_eq(v.cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(v.twin_cause, RK_CAUSE_FULL);
}
END_TEST

START_TEST(a_refused_prefill_ends_the_decode_that_waits_for_it) {
    d->ledger_options.window = 1;
    p->ledger_options.held_places = 1;
    link_up();
    pair(2); /* waits, and is held */
    (void)arrive(d, 3);
    world_settle(w);
    (void)arrive(p, 3);
    ck_assert_int_eq(v.cause, RK_CAUSE_HELD_FULL);
    world_settle(w);
    ck_assert_int_eq(request_in(d, 3)->twin_cause, RK_CAUSE_HELD_FULL);
    ck_assert_int_eq(request_in(d, 3)->code, RK_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(after_the_handoff_neither_end_disturbs_the_other) {
    link_up();
    worker_first_output(d, request_in(d, 1));
    world_settle(w);
    worker_cancel(d, request_in(d, 1), RK_CAUSE_CLIENT_CANCEL);
    world_settle(w);
    ck_assert(!request_in(p, 1)->over);
    worker_finished(p, request_in(p, 1), RK_CAUSE_COMPLETED);
    worker_aborted(d, request_in(d, 1));
    world_settle(w);
    assert_empty(d->ledger, w->now);
    assert_empty(p->ledger, w->now);

    pair(2);
    world_settle(w);
    worker_finished(p, request_in(p, 2), RK_CAUSE_COMPLETED);
    world_settle(w);
    ck_assert_int_eq(state_at(d, 2), RK_LEG_HANDED_OFF);
    ck_assert(!request_in(d, 2)->over);
}
END_TEST

START_TEST(a_decode_whose_prefill_never_comes_ends_by_itself) {
    link_up();
    (void)arrive(d, 2);
    world_run(w, 9000);
    ck_assert(!request_in(d, 2)->over);
    world_run(w, 2000);
    ck_assert_int_eq(request_in(d, 2)->cause, RK_CAUSE_TWIN_MISSING);
    ck_assert_uint_eq(d->releases, 1); /* the prefill has said that it will not write */
    (void)arrive(p, 2);
    ck_assert_int_eq(v.twin_cause, RK_CAUSE_TWIN_MISSING);
}
END_TEST

/* ---- lost ---- */

START_TEST(a_link_that_breaks_ends_legs_that_are_not_handed_off_and_no_others) {
    link_up();
    pair(2);
    (void)arrive(d, 3);
    world_settle(w);
    worker_first_output(d, request_in(d, 2));
    world_settle(w);
    p->unreachable = true;
    stream_break(end_of(d), "cut");
    world_settle(w);
    for (int64_t room = 1; room <= 3; room += 2)
        ck_assert_int_eq(request_in(d, room)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_int_eq(request_in(p, 1)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_int_eq(request_in(d, 1)->code, RK_RESOURCE_EXHAUSTED);
    ck_assert(!request_in(d, 2)->over);
    ck_assert(!request_in(p, 2)->over);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_LOST);
    ck_assert_int_eq(peer_row(p, 0).phase, RK_PEER_IS_LOST);
    ck_assert_uint_eq(peers_counts(d).lost, 1);
    ck_assert_uint_eq(d->releases, 0); /* no proof that the prefill is quiet */
    (void)arrive(p, 3);                /* its decode has been lost */
    ck_assert_int_eq(v.cause, RK_CAUSE_TWIN_ENDED);
    ck_assert_int_eq(v.twin_cause, RK_CAUSE_PEER_LOST);
    worker_finished(p, request_in(p, 2), RK_CAUSE_COMPLETED);
    worker_finished(d, request_in(d, 2), RK_CAUSE_COMPLETED);
}
END_TEST

START_TEST(a_worker_that_is_silent_for_three_heartbeats_is_lost) {
    link_up();
    p->frozen = true;
    world_run(w, 2 * WORLD_BEAT_MS);
    ck_assert(!request_in(d, 1)->over);
    world_run(w, 2 * WORLD_BEAT_MS);
    ck_assert_int_eq(request_in(d, 1)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_uint_eq(d->releases, 0);
    ck_assert_str_eq(peer_row(d, 0).why, "three heartbeats missed");
    p->frozen = false;
    world_run(w, 2000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_int_eq(request_in(p, 1)->cause, RK_CAUSE_PEER_LOST);
    worker_released(p, request_in(p, 1));
    world_settle(w);
    ck_assert_uint_eq(d->releases, 1);
}
END_TEST

START_TEST(the_longer_heartbeat_of_the_two_counts) {
    p->peer_options.heartbeat_ms = 10 * WORLD_BEAT_MS;
    link_up();
    world_run(w, 20000);
    ck_assert_uint_eq(peers_counts(d).lost + peers_counts(p).lost, 0);
    p->frozen = true;
    world_run(w, 25 * WORLD_BEAT_MS);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    world_run(w, 8 * WORLD_BEAT_MS);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_LOST);
}
END_TEST

START_TEST(after_a_break_the_same_workers_say_again_how_things_stand) {
    link_up();
    p->unreachable = true;
    stream_break(end_of(d), "cut");
    world_settle(w);
    request *decode = request_in(d, 1);
    ck_assert(decode->over && request_in(p, 1)->over);
    worker_released(p, request_in(p, 1)); /* nobody hears it */
    p->unreachable = false;
    world_run(w, 2000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_uint_eq(peer_row(d, 0).ups, 2);
    ck_assert_uint_eq(d->releases, 1); /* ENDED, again, was answered by QUIESCED */
    worker_released(d, request_in(d, 1));
    assert_empty(d->ledger, w->now);
    assert_empty(p->ledger, w->now);
}
END_TEST

START_TEST(a_prefill_that_still_writes_after_a_break_says_when_it_is_quiet) {
    link_up();
    stream_break(end_of(d), "cut");
    world_run(w, 1000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_uint_eq(d->releases, 0);
    worker_released(p, request_in(p, 1));
    world_settle(w);
    ck_assert_uint_eq(d->releases, 1);
}
END_TEST

START_TEST(another_instance_says_at_once_that_nobody_writes_any_more) {
    link_up();
    worker_crash(p);
    w->now += 300;
    worker_start(p);
    world_run(w, 2000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_int_eq(request_in(d, 1)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_uint_eq(d->releases, 1);
    worker_released(d, request_in(d, 1));
    assert_empty(d->ledger, w->now);
}
END_TEST

START_TEST(a_host_that_refuses_the_connection_is_proof_after_a_moment) {
    link_up();
    worker_crash(p);
    world_settle(w);
    ck_assert(request_in(d, 1)->over);
    ck_assert_uint_eq(d->releases, 0); /* its schedulers end a moment after it */
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_LOST);
    world_run(w, 1000);
    ck_assert_uint_eq(d->releases, 1);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
    (void)arrive(d, 2);
    ck_assert_int_eq(v.state, RK_LEG_ADMITTED);
}
END_TEST

START_TEST(a_refusal_counts_from_the_first_one_on_however_long_ago_the_link_was_lost) {
    link_up();
    p->unreachable = true;
    stream_break(end_of(d), "cut");
    world_run(w, 1000);
    worker_crash(p); /* only now; its schedulers end a moment later */
    p->unreachable = false;
    uint64_t died = w->now;
    while (peer_row(d, 0).phase == RK_PEER_IS_LOST && w->now < died + 5000) {
        ck_assert(w->now >= died + 200 || d->releases == 0);
        world_run(w, 50);
    }
    ck_assert_uint_ge(w->now, died + 250);
    ck_assert_uint_eq(d->releases, 1);
}
END_TEST

START_TEST(another_instance_that_has_the_room_already_is_asked_to_end_it_first) {
    link_up();
    worker_crash(p);
    w->now += 300;
    worker_start(p);
    (void)arrive(p, 1); /* a leg that comes late, for a decode that has ended but asks its engine still */
    world_run(w, 50);
    if (request_in(p, 1)->there) {
        ck_assert_uint_eq(d->releases, 0);
        worker_released(p, request_in(p, 1));
    }
    world_run(w, 3000);
    ck_assert(request_in(p, 1)->over || leg_state(p, request_in(p, 1)) == RK_LEG_ENDED);
    ck_assert_uint_eq(d->releases, 1);
}
END_TEST

START_TEST(a_lost_peer_that_does_not_answer_is_served_without_after_30_s_and_nothing_is_proved) {
    link_up();
    p->unreachable = true;
    stream_break(end_of(d), "cut");
    world_run(w, 29000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_LOST);
    (void)arrive(d, 2);
    ck_assert(rk_ledger_find(d->ledger, request_in(d, 2)->handle)->linked);
    world_run(w, 3000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 2)->handle)->linked);
    ck_assert_uint_eq(d->releases, 0);
    p->unreachable = false;
    world_run(w, 3000);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP); /* it was up not long ago */
}
END_TEST

START_TEST(a_decode_that_is_gone_frees_what_its_prefill_holds) {
    d->ledger_options.window = 1;
    link_up();
    pair(2);
    world_settle(w);
    ck_assert_int_eq(state_at(p, 2), RK_LEG_HELD);
    worker_crash(d);
    world_settle(w);
    ck_assert_int_eq(request_in(p, 1)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_int_eq(request_in(p, 2)->cause, RK_CAUSE_PEER_LOST);
    ck_assert_uint_eq(counts_of(p->ledger).held, 0);
    worker_released(p, request_in(p, 1));
    assert_empty(p->ledger, w->now);
}
END_TEST

START_TEST(a_second_stream_of_the_same_decode_replaces_its_first) {
    link_up();
    end *first = end_of(p);
    end *second = stranger(p);
    uint8_t instance[RK_INSTANCE_BYTES];
    memcpy(instance, d->peers->instance, sizeof instance);
    from_stranger(second, hello_frame(RK_LINK_ROLE_DECODE, 1, instance));
    from_stranger(second, begin_frame());
    ck_assert(is_over(first, "replaced by a newer link"));
    ck_assert_int_eq(second->rk.phase, RK_LINK_UP);
    ck_assert_uint_eq(peers_counts(p).up, 1);
    ck_assert_uint_eq(peers_counts(p).known, 1);
    ck_assert_int_eq(request_in(p, 1)->cause, RK_CAUSE_PEER_LOST);
}
END_TEST

/* ---- stalls ---- */

START_TEST(a_stalled_engine_counts_as_lost_to_those_who_wait_for_it_until_it_is_back) {
    link_up();
    pair(2);
    world_settle(w);
    worker_first_output(d, request_in(d, 2));
    world_settle(w);
    worker_engine_is(p, RK_LINK_ENGINE_STALLED);
    world_settle(w);
    ck_assert_int_eq(request_in(d, 1)->cause, RK_CAUSE_PEER_LOST);
    ck_assert(!request_in(d, 2)->over);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP); /* the stream lives */
    ck_assert_int_eq(peer_row(d, 0).engine, RK_LINK_ENGINE_STALLED);
    ck_assert_uint_eq(d->releases, 0);
    worker_released(p, request_in(p, 1)); /* nothing that it says counts now */
    world_settle(w);
    ck_assert_uint_eq(d->releases, 0);
    worker_engine_is(p, RK_LINK_ENGINE_READY);
    world_settle(w);
    ck_assert_uint_eq(d->releases, 1); /* both have said again how things stand */
    pair(3);
    world_settle(w);
    ck_assert_int_eq(state_at(p, 3), RK_LEG_SUBMITTED);
}
END_TEST

START_TEST(an_end_that_comes_with_the_word_that_the_engine_is_back_is_heard) {
    link_up();
    (void)arrive(d, 2); /* submitted, and no prefill leg yet */
    world_settle(w);
    worker_engine_is(d, RK_LINK_ENGINE_STALLED);
    world_settle(w);
    d->engine = RK_LINK_ENGINE_READY;
    worker_cancel(d, request_in(d, 2),
                  RK_CAUSE_CLIENT_CANCEL); /* told, but to a prefill that holds it stalled */
    worker_engine_is(d, RK_LINK_ENGINE_READY);
    world_settle(w);
    ck_assert(request_in(d, 2)->asked); /* the answer was that nobody writes */
}
END_TEST

START_TEST(an_end_that_was_not_believed_during_a_stall_is_said_again_after_it) {
    link_up();
    (void)arrive(d, 2);
    world_settle(w);
    worker_engine_is(d, RK_LINK_ENGINE_STALLED);
    world_settle(w);
    worker_cancel(d, request_in(d, 2), RK_CAUSE_CLIENT_CANCEL);
    world_settle(w);
    ck_assert(!request_in(d, 2)->asked);
    worker_engine_is(d, RK_LINK_ENGINE_READY);
    world_settle(w);
    ck_assert(request_in(d, 2)->asked);
}
END_TEST

/* ---- goodbye ---- */

START_TEST(a_worker_that_stops_says_goodbye_and_forgets_its_streams) {
    for (int side = 0; side < 2; side++) {
        if (side == 1) {
            teardown();
            setup();
        }
        link_up();
        worker *leaving = side ? d : p;
        worker *staying = side ? p : d;
        rk_peers_stop(leaving->peers, w->now);
        world_settle(w);
        ck_assert_ptr_null(end_of(leaving));
        ck_assert_str_eq(peer_row(staying, 0).why, "it shuts down");
        ck_assert_int_ne(peer_row(leaving, 0).phase, RK_PEER_IS_UP); /* and reads nothing that is freed */
        worker_cancel(leaving, request_in(leaving, 1), RK_CAUSE_CLIENT_CANCEL);
        world_run(w, 500);
        ck_assert_ptr_null(stranger(leaving));
    }
}
END_TEST

START_TEST(a_goodbye_that_nobody_takes_is_not_waited_for) {
    link_up();
    d->frozen = true;
    rk_peers_stop(p->peers, w->now);
    rk_peers_abandon(p->peers);
    world_settle(w);
    ck_assert_ptr_null(end_of(p) && end_of(p)->owner == p ? end_of(p) : NULL);
    ck_assert_int_ne(peer_row(p, 0).phase, RK_PEER_IS_UP);
    worker_cancel(p, request_in(p, 1), RK_CAUSE_CLIENT_CANCEL);
    d->frozen = false;
    world_run(w, 100);
}
END_TEST

/* ---- refused ---- */

START_TEST(who_has_the_wrong_role_protocol_or_instance_is_refused) {
    start();
    static const struct {
        rk_link_role role;
        uint32_t protocol;
        const char *why;
    } table[] = {
        {RK_LINK_ROLE_PREFILL, 1, "no decode"},
        {RK_LINK_ROLE_NONE, 1, "no decode"},
        {RK_LINK_ROLE_DECODE, 0, "protocol 0"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        end *e = stranger(p);
        from_stranger(e, hello_frame(table[i].role, table[i].protocol, NULL));
        ck_assert(is_over(e, table[i].why));
        ck_assert_uint_eq(peers_counts(p).streams_refused, i + 1);
    }
    end *e = stranger(p);
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 1, p->peers->instance));
    ck_assert(is_over(e, "does not link to itself"));
    e = stranger(p);
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 2, NULL)); /* a later release speaks 1 as well */
    ck_assert_int_eq(e->rk.phase, RK_LINK_BEGIN);
    ck_assert_uint_eq(peers_counts(p).known, 0);
}
END_TEST

START_TEST(a_decode_takes_no_streams) {
    start();
    end *e = end_new(d, true);
    ck_assert(!rk_link_accept(d->peers, w->now, &e->rk, e, "stranger"));
    ck_assert_int_eq(e->rk.over.code, RK_FAILED_PRECONDITION);
    ck_assert_uint_eq(peers_counts(d).streams_refused, 1);
    end_free(e);
}
END_TEST

START_TEST(a_decode_refuses_an_answer_from_what_is_no_prefill) {
    start();
    (void)arrive(d, 1);
    p->frozen = true; /* takes the stream and says nothing */
    world_settle(w);
    end *e = end_of(d);
    say(d, hello_frame(RK_LINK_ROLE_DECODE, 1, NULL));
    ck_assert(is_over(e, "no prefill"));
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 1)->handle)->linked);
}
END_TEST

START_TEST(frames_out_of_order_or_broken_end_the_stream) {
    start();
    rk_buf (*const first[])(void) = {begin_frame};
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        end *e = stranger(p);
        from_stranger(e, first[i]());
        ck_assert(is_over(e, "out of order"));
    }
    end *e = stranger(p);
    from_stranger(e, rooms_frame(HOST, 1, 1, RK_ROOM_OPENED, RK_CAUSE_COMPLETED));
    ck_assert(is_over(e, "out of order"));
    e = stranger(p);
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 1, NULL));
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 1, NULL)); /* a second one */
    ck_assert(is_over(e, "out of order"));
    e = stranger(p);
    rk_buf junk = RK_BUF_INIT;
    rk_buf_append(&junk, "\x0a\xff\xff", 3);
    from_stranger(e, junk);
    ck_assert(is_over(e, "not a protobuf message"));
    e = linked_stranger(p, 9);
    from_stranger(e, begin_frame()); /* a second one, while it is up */
    ck_assert(is_over(e, "out of order"));
    ck_assert_uint_eq(peers_counts(p).up, 0);
    e = linked_stranger(p, 8);
    rk_buf cut = rooms_frame(HOST, 1, 2, RK_ROOM_OPENED, RK_CAUSE_COMPLETED);
    rk_buf entries = RK_BUF_INIT;
    rk_buf_append(&entries, cut.data + 2, cut.size - 3);
    rk_buf out = RK_BUF_INIT;
    raw_message(&out, RK_LINK_FRAME__ROOMS, entries);
    rk_buf_free(&cut);
    from_stranger(e, out);
    ck_assert(is_over(e, "not a protobuf message"));
    ck_assert_uint_eq(counts_of(p->ledger).announced + counts_of(p->ledger).tombstones,
                      1); /* the whole one, buried */
}
END_TEST

START_TEST(what_only_a_later_release_says_is_skipped_in_every_phase) {
    start();
    end *e = stranger(p);
    for (int i = 0; i < 3; i++) {
        rk_buf later = RK_BUF_INIT;
        raw_text(&later, 60, "news");
        from_stranger(e, later);
        ck_assert_int_eq(e->rk.phase, i == 0 ? RK_LINK_HELLO : i == 1 ? RK_LINK_BEGIN : RK_LINK_UP);
        from_stranger(e, i == 0   ? hello_frame(RK_LINK_ROLE_DECODE, 1, NULL)
                         : i == 1 ? begin_frame()
                                  : rooms_frame(HOST, 1, 1, RK_ROOM_UNKNOWN, RK_CAUSE_COMPLETED));
    }
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 0);
    ck_assert_uint_eq(counts_of(p->ledger).announced, 0);
}
END_TEST

START_TEST(who_says_no_hello_or_nothing_after_it_is_given_up) {
    start();
    (void)stranger(p);
    end *half = stranger(p);
    from_stranger(half, hello_frame(RK_LINK_ROLE_DECODE, 1, NULL));
    end *chatty = stranger(p);
    for (int i = 0; i < 10; i++) {
        rk_buf later = RK_BUF_INIT;
        raw_text(&later, 60, "not a hello");
        if (chatty)
            from_stranger(chatty, later);
        else
            rk_buf_free(&later);
        world_run(w, WORLD_BEAT_MS / 2);
        chatty = NULL;
        for (rk_list *node = w->ends.next; node != &w->ends; node = node->next)
            if (RK_CONTAINER(node, end, link)->rk.phase == RK_LINK_HELLO)
                chatty = RK_CONTAINER(node, end, link);
    }
    ck_assert_ptr_null(end_of(p)); /* all of them, whatever else they say */
}
END_TEST

START_TEST(a_prefill_that_answers_no_hello_is_served_without) {
    start();
    (void)arrive(d, 1);
    p->frozen = true;
    world_run(w, 5 * WORLD_BEAT_MS);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
    ck_assert_str_eq(peer_row(d, 0).why, "it answers no hello");
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 1)->handle)->linked);
}
END_TEST

/* ---- tokens ---- */

static void give_token(worker *it, const char *text) {
    it->peer_options.token.size = strlen(text);
    memcpy(it->peer_options.token.bytes, text, it->peer_options.token.size);
}

START_TEST(with_the_same_token_both_sides_prove_it_and_are_linked) {
    give_token(p, "one secret");
    give_token(d, "one secret");
    link_up();
}
END_TEST

START_TEST(without_the_right_token_there_is_no_link_on_either_side) {
    static const char *const tokens[][2] = {{"one", "other"}, {"one", ""}, {"", "one"}};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        if (i > 0) {
            teardown();
            setup();
        }
        give_token(p, tokens[i][0]);
        give_token(d, tokens[i][1]);
        start();
        pair(1);
        world_settle(w);
        ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
        ck_assert_uint_eq(peers_counts(p).up + peers_counts(d).up, 0);
        ck_assert_uint_ge(peers_counts(p).streams_refused + peers_counts(d).streams_refused, 1);
        ck_assert(strstr(peer_row(d, 0).why, "token") != NULL);
        ck_assert(!rk_ledger_find(d->ledger, request_in(d, 1)->handle)->linked);
    }
}
END_TEST

START_TEST(a_proof_is_of_no_use_on_another_stream) {
    give_token(p, "one secret");
    give_token(d, "one secret");
    start();
    (void)arrive(d, 1);
    ck_assert(worker_dial_next(d));
    end *decode = end_of(d);
    end *prefill = end_of(p);
    ck_assert(end_pump(decode) && end_deliver(prefill) && end_pump(prefill) && end_deliver(decode) &&
              end_pump(decode));
    const message *begin = RK_CONTAINER(prefill->inbox.next, message, link); /* overheard … */
    end *thief = stranger(p);
    from_stranger(thief, hello_frame(RK_LINK_ROLE_DECODE, 1, d->peers->instance));
    rk_link_received(p->peers, w->now, &thief->rk, begin->bytes, begin->size); /* … and said again */
    ck_assert(is_over(thief, "token"));
    world_settle(w);
    ck_assert_uint_eq(peers_counts(p).up, 1);
}
END_TEST

/* ---- whose rooms ---- */

START_TEST(a_decode_believes_a_prefill_about_the_rooms_of_its_own_bootstrap_server_only) {
    link_up();
    worker *other = worker_add(w, RK_LINK_ROLE_PREFILL, "other.example", PORT);
    worker_start(other);
    (void)worker_arrive(d, "other.example", PORT, 5, &v);
    world_settle(w);
    end *e = NULL;
    for (rk_list *node = w->ends.next; node != &w->ends && !e; node = node->next)
        if (RK_CONTAINER(node, end, link)->owner == d && RK_CONTAINER(node, end, link)->rk.peer == 1)
            e = RK_CONTAINER(node, end, link);
    ck_assert_ptr_nonnull(e);
    rk_buf lie = rooms_frame("other.example", 5, 1, RK_ROOM_ENDED, RK_CAUSE_COMPLETED);
    rk_link_received(d->peers, w->now, &e->rk, lie.data, lie.size);
    rk_buf_free(&lie);
    ck_assert(!request_in(d, 5)->over);
    ck_assert_uint_eq(peers_counts(d).rooms_refused, 1);
    ck_assert_uint_eq(peer_row(d, 0).refused, 1);
    lie = rooms_frame("nobody.example", 77, 3, RK_ROOM_OPENED, RK_CAUSE_COMPLETED);
    rk_link_received(d->peers, w->now, &e->rk, lie.data, lie.size);
    rk_buf_free(&lie);
    ck_assert_uint_eq(peers_counts(d).rooms_refused, 4);
    ck_assert_uint_eq(counts_of(d->ledger).announced, 0);
    ck_assert_uint_eq(peers_counts(d).up, 2);
}
END_TEST

START_TEST(states_that_only_the_other_role_may_tell_are_refused) {
    link_up();
    static const rk_room_state decode_only[] = {RK_ROOM_ADMITTED, RK_ROOM_HANDED_OFF};
    for (size_t i = 0; i < 2; i++)
        say(d, rooms_frame(HOST, 1, 1, decode_only[i], RK_CAUSE_COMPLETED));
    ck_assert_uint_eq(peers_counts(d).rooms_refused, 2);
    static const rk_room_state prefill_only[] = {RK_ROOM_SUBMITTED, RK_ROOM_QUIESCED};
    for (size_t i = 0; i < 2; i++)
        say(p, rooms_frame(HOST, 1, 1, prefill_only[i], RK_CAUSE_COMPLETED));
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 2);
    say(p, rooms_frame(HOST, 0, 1, RK_ROOM_OPENED, RK_CAUSE_COMPLETED)); /* room 0 is nobody's */
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 3);
    ck_assert_int_eq(state_at(d, 1), RK_LEG_SUBMITTED);
    ck_assert_int_eq(state_at(p, 1), RK_LEG_SUBMITTED);
}
END_TEST

START_TEST(a_decode_has_no_say_about_the_rooms_that_another_one_announced) {
    link_up();
    end *e = linked_stranger(p, 42);
    from_stranger(e, rooms_frame(HOST, 1, 1, RK_ROOM_ENDED, RK_CAUSE_CLIENT_CANCEL));
    from_stranger(e, rooms_frame(HOST, 1, 1, RK_ROOM_ADMITTED, RK_CAUSE_COMPLETED));
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 2);
    ck_assert(!request_in(p, 1)->over);
    (void)arrive(d, 2);
    world_settle(w);
    from_stranger(e,
                  rooms_frame(HOST, 2, 1, RK_ROOM_ENDED, RK_CAUSE_CLIENT_CANCEL)); /* announced, no leg yet */
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 3);
    (void)arrive(p, 2);
    ck_assert(v.accepted);
}
END_TEST

/* ---- bounds ---- */

START_TEST(a_peer_can_have_so_many_rooms_remembered_and_no_more) {
    p->ledger_options.peer_rooms = 100;
    start();
    end *e = linked_stranger(p, 42);
    for (int i = 0; i < 5; i++)
        from_stranger(e, rooms_frame(HOST, 1 + 100 * i, 100, RK_ROOM_OPENED, RK_CAUSE_COMPLETED));
    ck_assert_uint_eq(counts_of(p->ledger).announced, 100);
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 400);
    ck_assert_uint_eq(peer_row(p, 0).heard, 100);
    ck_assert_int_eq(e->rk.phase, RK_LINK_UP); /* counted, not punished */
    end *other = linked_stranger(p, 43);
    from_stranger(other, rooms_frame(HOST, 1000, 50, RK_ROOM_OPENED, RK_CAUSE_COMPLETED));
    ck_assert_uint_eq(counts_of(p->ledger).announced, 150); /* nobody else has less for it */
    from_stranger(e, rooms_frame(HOST, 1, 100, RK_ROOM_ENDED, RK_CAUSE_CLIENT_CANCEL));
    ck_assert_uint_eq(counts_of(p->ledger).tombstones, 100);
    from_stranger(e, rooms_frame(HOST, 2001, 100, RK_ROOM_ENDED, RK_CAUSE_CLIENT_CANCEL));
    ck_assert_uint_eq(counts_of(p->ledger).tombstones, 100);
    ck_assert_uint_eq(peers_counts(p).rooms_refused, 500);
}
END_TEST

START_TEST(a_peer_that_does_not_read_is_lost_and_what_waits_for_it_is_bounded) {
    p->ledger_options.tombstones = 1000000;
    start();
    end *e = linked_stranger(p, 42);
    char host[RK_ROOM_HOST_MAX];
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    unsigned most = 0;
    for (int64_t i = 0; i < 200 && e->rk.phase == RK_LINK_UP; i++) { /* each is answered by QUIESCED */
        from_stranger(e, rooms_frame(host, 1 + 1000 * i, 1000, RK_ROOM_ENDED, RK_CAUSE_TWIN_ENDED));
        most = e->rk.chunk_count > most ? e->rk.chunk_count : most;
    }
    ck_assert(is_over(e, "too much is waiting"));
    ck_assert_uint_le(most, RK_CHUNKS_MAX);
    ck_assert_uint_eq(e->rk.chunk_count, 0);
    ck_assert_str_eq(peer_row(p, 0).why, "it does not read what it is told");
}
END_TEST

START_TEST(only_so_many_streams_are_open_at_a_time) {
    p->peer_options.links = 2;
    start();
    for (int i = 0; i < 4; i++)
        ck_assert_ptr_nonnull(stranger(p));
    ck_assert_ptr_null(stranger(p));
    ck_assert_uint_eq(peers_counts(p).streams_refused, 1);
    world_run(w, 5 * WORLD_BEAT_MS); /* they say nothing */
    ck_assert_ptr_nonnull(stranger(p));
}
END_TEST

START_TEST(a_prefill_links_only_so_many_decodes) {
    p->peer_options.links = 2;
    start();
    for (uint8_t i = 1; i <= 2; i++)
        (void)linked_stranger(p, i);
    end *e = stranger(p);
    uint8_t third[RK_INSTANCE_BYTES] = {3};
    from_stranger(e, hello_frame(RK_LINK_ROLE_DECODE, 1, third));
    from_stranger(e, begin_frame());
    ck_assert(is_over(e, "too many workers"));
    ck_assert_uint_eq(peers_counts(p).up, 2);
}
END_TEST

START_TEST(a_full_table_forgets_who_never_answered_and_serves_the_rest_unlinked) {
    d->peer_options.links = 3;
    link_up();
    char name[32];
    for (int i = 0; i < 6; i++) {
        (void)snprintf(name, sizeof name, "nobody%d.example", i);
        (void)worker_arrive(d, name, PORT, 100 + i, &v);
        ck_assert(v.accepted);
        world_settle(w);
        ck_assert_uint_le(peers_counts(d).known, 3);
    }
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP); /* not for a stranger's sake */
    for (int i = 0; i < 6; i++)
        ck_assert(!rk_ledger_find(d->ledger, request_in(d, 100 + i)->handle)->linked);
    w->now += 300;
    (void)worker_arrive(d, "somebody.example", PORT, 200, &v);
    ck_assert_int_eq(
        peer_row(d, 1).phase == RK_PEER_IS_DIALLING || peer_row(d, 2).phase == RK_PEER_IS_DIALLING, 1);
}
END_TEST

START_TEST(only_so_many_dials_are_made_in_a_second) {
    d->peer_options.dials_per_second = 3;
    d->peer_options.links = 32;
    d->ledger_options.window = 100;
    start();
    char name[32];
    for (int i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof name, "nobody%d.example", i);
        (void)worker_arrive(d, name, PORT, 1 + i, &v);
        world_settle(w);
    }
    ck_assert_uint_eq(d->dialled, 3);
    ck_assert_uint_eq(peers_counts(d).dials, 3);
    w->now += 1000;
    (void)worker_arrive(d, "nobody10.example", PORT, 50, &v);
    ck_assert_uint_eq(d->dialled, 4);
}
END_TEST

START_TEST(a_bootstrap_port_without_a_link_port_is_not_dialled) {
    start();
    (void)worker_arrive(d, HOST, 65000, 1, &v);
    (void)worker_arrive(d, "", PORT, 2, &v);
    (void)worker_arrive(d, HOST, -1, 3, &v);
    ck_assert_uint_eq(d->dialled, 0);
    ck_assert_uint_eq(peers_counts(d).known, 0);
}
END_TEST

/* ---- names ---- */

START_TEST(two_names_of_one_prefill_are_folded_into_one_link) {
    start();
    (void)arrive(d, 1);
    (void)arrive(p, 1);
    world_settle(w);
    request *r = worker_arrive(d, "alias", PORT, 2, &v);
    uint64_t handle = r->handle;
    (void)worker_arrive(p, "alias", PORT, 2, &v);
    ck_assert_uint_eq(peers_counts(d).known, 2);
    world_settle(w);
    ck_assert_uint_eq(peers_counts(d).known, 1);
    ck_assert_uint_eq(peers_counts(p).up, 1);
    const rk_leg *leg = rk_ledger_find(d->ledger, handle);
    ck_assert(leg->linked && leg->bound && leg->peer == 1 && leg->twin_seen);
    ck_assert_int_eq(state_at(p, 2), RK_LEG_SUBMITTED);
    ck_assert(!request_in(d, 1)->over && !request_in(d, 2)->over);
    (void)worker_arrive(d, "alias", PORT, 3, &v); /* by the same link from now on */
    world_settle(w);
    ck_assert_uint_eq(d->dialled, 2);
    worker_cancel(p, request_in(p, 2), RK_CAUSE_CLIENT_CANCEL);
    world_settle(w);
    ck_assert_int_eq(request_in(d, 2)->twin_cause, RK_CAUSE_CLIENT_CANCEL);
    ck_assert_uint_eq(peers_counts(d).rooms_refused + peers_counts(p).rooms_refused, 0);
}
END_TEST

START_TEST(a_configured_peer_is_dialled_where_it_is_said_to_be_before_any_leg_fails) {
    (void)snprintf(d->addresses, sizeof d->addresses, "front.example:1=%s:10998", HOST);
    start();
    (void)worker_arrive(d, "front.example", 1, 1, &v);
    ck_assert_uint_eq(d->dial_count, 1);
    ck_assert_str_eq(d->dials[0].host, HOST);
    ck_assert_int_eq(d->dials[0].port, 10998);
    ck_assert(d->dials[0].trusted);
    world_settle(w);
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_UP);
    ck_assert_str_eq(peer_row(d, 0).name, "front.example:1");
}
END_TEST

START_TEST(a_configured_peer_is_dialled_now_and_then_though_it_never_was_there) {
    (void)snprintf(d->addresses, sizeof d->addresses, "front.example:1=nowhere:2");
    start();
    (void)worker_arrive(d, "front.example", 1, 1, &v);
    world_run(w, 300000);
    ck_assert_uint_ge(d->dialled, 10);
    ck_assert_uint_le(d->dialled, 20); /* with pauses of 30 s in the end */
}
END_TEST

START_TEST(phases_have_names) {
    ck_assert_str_eq(rk_peer_phase_name(RK_PEER_IS_ABSENT), "absent");
    ck_assert_str_eq(rk_peer_phase_name(RK_PEER_IS_DIALLING), "dialling");
    ck_assert_str_eq(rk_peer_phase_name(RK_PEER_IS_UP), "up");
    ck_assert_str_eq(rk_peer_phase_name(RK_PEER_IS_LOST), "lost");
    ck_assert_str_eq(rk_peer_phase_name((rk_peer_phase)9), "unknown");
}
END_TEST

/* A place in the table goes to another worker: nothing that is known of the new one proves anything for legs
 * of the old one. */
START_TEST(the_legs_of_a_forgotten_peer_do_not_pass_to_whoever_has_its_number_next) {
    d->peer_options.links = 1;
    link_up();
    p->unreachable = true;
    stream_break(end_of(d), "cut");
    world_run(w, 95000); /* it still writes, for all we know */
    ck_assert_int_eq(peer_row(d, 0).phase, RK_PEER_IS_ABSENT);
    (void)arrive(d, 2);
    world_settle(w);
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 2)->handle)->linked);
    world_run(w, 300);
    worker *other = worker_add(w, RK_LINK_ROLE_PREFILL, "other.example", PORT);
    worker_start(other);
    (void)worker_arrive(d, "other.example", PORT, 5, &v);
    world_settle(w);
    ck_assert_uint_eq(peers_counts(d).up, 1);
    ck_assert_str_eq(peer_row(d, 0).name, "other.example:8998");
    ck_assert(!rk_ledger_find(d->ledger, request_in(d, 2)->handle)->linked);
    worker_crash(other);
    w->now += 300;
    worker_start(other);
    world_run(w, 2000);
    ck_assert(request_in(d, 1)->there);
    ck_assert(!request_in(d, 1)->asked && !request_in(d, 2)->over);
}
END_TEST

START_TEST(a_dead_engine_is_no_proof_of_quiet_whatever_its_decode_asks) {
    link_up();
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_end_all(p->ledger, w->now, RK_CAUSE_ENGINE_DEAD, &fx); /* its schedulers live a while longer */
    worker_effects(p, &fx);
    world_settle(w);
    ck_assert(request_in(d, 1)->over);
    ck_assert_uint_eq(d->releases, 0);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        the_first_leg_that_names_a_prefill_has_it_dialled_and_linked,
        a_prefill_dials_nobody,
        a_burst_is_held_until_the_decode_has_admitted_it_and_none_is_lost,
        legs_that_came_while_it_was_dialled_are_linked_when_it_is_up,
        legs_that_came_while_it_was_dialled_go_on_unlinked_when_it_fails,
        an_absent_peer_is_dialled_by_its_legs_not_oftener_than_every_250_ms,
        peers_that_speak_no_link_are_served_without,
        a_cancelled_prefill_ends_its_decode_and_the_slot_is_free_once_it_is_quiet,
        a_cancelled_decode_ends_its_prefill,
        a_failed_prefill_ends_its_decode_with_its_own_code,
        a_refused_leg_ends_its_twin_with_the_refusals_code,
        a_refused_prefill_ends_the_decode_that_waits_for_it,
        after_the_handoff_neither_end_disturbs_the_other,
        a_decode_whose_prefill_never_comes_ends_by_itself,
        a_link_that_breaks_ends_legs_that_are_not_handed_off_and_no_others,
        a_worker_that_is_silent_for_three_heartbeats_is_lost,
        the_longer_heartbeat_of_the_two_counts,
        after_a_break_the_same_workers_say_again_how_things_stand,
        a_prefill_that_still_writes_after_a_break_says_when_it_is_quiet,
        another_instance_says_at_once_that_nobody_writes_any_more,
        a_host_that_refuses_the_connection_is_proof_after_a_moment,
        a_refusal_counts_from_the_first_one_on_however_long_ago_the_link_was_lost,
        another_instance_that_has_the_room_already_is_asked_to_end_it_first,
        a_lost_peer_that_does_not_answer_is_served_without_after_30_s_and_nothing_is_proved,
        a_decode_that_is_gone_frees_what_its_prefill_holds,
        a_second_stream_of_the_same_decode_replaces_its_first,
        a_stalled_engine_counts_as_lost_to_those_who_wait_for_it_until_it_is_back,
        an_end_that_comes_with_the_word_that_the_engine_is_back_is_heard,
        an_end_that_was_not_believed_during_a_stall_is_said_again_after_it,
        a_worker_that_stops_says_goodbye_and_forgets_its_streams,
        a_goodbye_that_nobody_takes_is_not_waited_for,
        who_has_the_wrong_role_protocol_or_instance_is_refused,
        a_decode_takes_no_streams,
        a_decode_refuses_an_answer_from_what_is_no_prefill,
        frames_out_of_order_or_broken_end_the_stream,
        what_only_a_later_release_says_is_skipped_in_every_phase,
        who_says_no_hello_or_nothing_after_it_is_given_up,
        a_prefill_that_answers_no_hello_is_served_without,
        with_the_same_token_both_sides_prove_it_and_are_linked,
        without_the_right_token_there_is_no_link_on_either_side,
        a_proof_is_of_no_use_on_another_stream,
        a_decode_believes_a_prefill_about_the_rooms_of_its_own_bootstrap_server_only,
        states_that_only_the_other_role_may_tell_are_refused,
        a_decode_has_no_say_about_the_rooms_that_another_one_announced,
        a_peer_can_have_so_many_rooms_remembered_and_no_more,
        a_peer_that_does_not_read_is_lost_and_what_waits_for_it_is_bounded,
        only_so_many_streams_are_open_at_a_time,
        a_prefill_links_only_so_many_decodes,
        a_full_table_forgets_who_never_answered_and_serves_the_rest_unlinked,
        only_so_many_dials_are_made_in_a_second,
        a_bootstrap_port_without_a_link_port_is_not_dialled,
        two_names_of_one_prefill_are_folded_into_one_link,
        a_configured_peer_is_dialled_where_it_is_said_to_be_before_any_leg_fails,
        a_configured_peer_is_dialled_now_and_then_though_it_never_was_there,
        phases_have_names,
        the_legs_of_a_forgotten_peer_do_not_pass_to_whoever_has_its_number_next,
        a_dead_engine_is_no_proof_of_quiet_whatever_its_decode_asks,
    };
    Suite *suite = suite_create("peers");
    TCase *tcase = tcase_create("peers");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
