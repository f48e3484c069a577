/* The ledger beside a reference model that is obviously right, over random events: every verdict, effect and
 * number must be the same after each of them. */
#include "ledger_model_events.h"

#include <stdlib.h>

#define EVENTS 8000
#define IDS 24
#define ROOMS 40

typedef struct world {
    rk_ledger *ledger;
    model *m;
    uint64_t now;
    unsigned seed;
    bool may_die;  /* its engine: then no prefill is known to be quiet any more */
    uint8_t *ends; /* by handle: how often the leg has ended on the wire by an effect */
} world;

static unsigned pick(world *w, unsigned below) {
    w->seed = w->seed * 1103515245u + 12345u;
    return (w->seed >> 16) % below;
}

/* ---- comparing ---- */

static int by_all(const void *a, const void *b) {
    return memcmp(a, b, sizeof(model_effect));
}

/* A real effect with just what its kind promises. */
static model_effect plain(const rk_effect *effect) {
    model_effect e;
    memset(&e, 0, sizeof e);
    e.kind = (int)effect->kind;
    e.handle = effect->handle;
    e.choice = effect->choice;
    if (effect->kind >= RK_FX_RELEASE_ROOM)
        e.room = effect->room.room;
    if (effect->kind == RK_FX_END) {
        e.cause = (int)effect->cause;
        e.twin_cause = (int)effect->twin_cause;
        e.code = (int)effect->code;
        e.retry = effect->retry;
    }
    if (effect->kind == RK_FX_TELL_ENDED) {
        e.cause = (int)effect->cause;
        e.ever_submitted = effect->ever_submitted;
    }
    return e;
}

/* Admissions come in the order of arrival, rank by rank; a leg ends on the wire once. */
static void check_order(world *w, const rk_effect *effect, uint64_t last[8]) {
    if (effect->kind == RK_FX_END)
        ck_assert_uint_eq(w->ends[effect->handle]++, 0);
    if (effect->kind != RK_FX_ADMIT || w->m->o.role == RK_ROLE_PREFILL)
        return;
    ck_assert_int_eq(effect->rank >= 0, w->m->o.ranks > 1 || effect->rank >= 0);
    uint32_t rank = effect->rank < 0 ? 0 : (uint32_t)effect->rank;
    ck_assert_uint_gt(effect->handle, last[rank]);
    last[rank] = effect->handle;
}

static void compare_effects(world *w, rk_effects *fx) {
    static model_effect real[MODEL_EFFECTS];
    model *m = w->m;
    size_t count = 0;
    uint64_t last[8] = {0};
    for (;;) {
        for (size_t i = 0; i < fx->count; i++) {
            check_order(w, &fx->items[i], last);
            real[count++] = plain(&fx->items[i]);
        }
        bool more = fx->more;
        rk_effects_clear(fx);
        if (!more)
            break;
        rk_ledger_pump(w->ledger, w->now, fx);
    }
    qsort(real, count, sizeof *real, by_all);
    qsort(m->fx, m->fx_count, sizeof *m->fx, by_all);
    for (size_t i = 0; i < count && i < m->fx_count; i++)
        ck_assert_msg(
            by_all(&real[i], &m->fx[i]) == 0,
            "ledger: kind %d leg %d choice %d cause %d room %d, model: kind %d leg %d choice %d cause %d "
            "room %d",
            real[i].kind, (int)real[i].handle, (int)real[i].choice, real[i].cause, (int)real[i].room,
            m->fx[i].kind, (int)m->fx[i].handle, (int)m->fx[i].choice, m->fx[i].cause, (int)m->fx[i].room);
    ck_assert_uint_eq(count, m->fx_count);
    m->fx_count = 0;
}

static void compare_numbers(world *w) {
    model *m = w->m;
    rk_rank_counts ranks[8];
    uint32_t count = rk_ledger_read_ranks(w->ledger, w->now, ranks, 8);
    ck_assert_uint_eq(count, m->o.ranks);
    for (uint32_t r = 0; r < count; r++) {
        ck_assert_uint_eq(ranks[r].held_slots + ranks[r].releasing, model_slots(m, r));
        ck_assert_uint_eq(ranks[r].waiting, model_waiting(m, r, false));
        ck_assert_uint_eq(ranks[r].waiting_slots, model_waiting(m, r, true));
        ck_assert_uint_eq(ranks[r].running, model_running(m, r));
        ck_assert_uint_eq(ranks[r].claimed_tokens, model_tokens(m, r));
        ck_assert(!model_gated(m) || ranks[r].held_slots + ranks[r].releasing <= m->o.window);
        ck_assert(!model_gated(m) || !m->o.kv_tokens || ranks[r].claimed_tokens <= m->o.kv_tokens);
    }
    rk_ledger_counts counts;
    rk_ledger_read(w->ledger, &counts);
    uint32_t states[RK_LEG_STATES] = {0};
    EACH_LEG(m, leg)
    if (leg->there)
        states[leg->state]++;
    for (int s = 0; s < RK_LEG_STATES; s++)
        ck_assert_uint_eq(counts.legs[s], states[s]);
    ck_assert_uint_eq(counts.tombstones, m->tombstones.count);
    ck_assert_uint_eq(counts.announced, m->announced.count);
}

/* ---- events: the clients ---- */

static void do_arrive(world *w, rk_effects *fx) {
    model *m = w->m;
    model_leg leg = {
        .id = (int)pick(w, IDS),
        .room = m->o.role == RK_ROLE_NULL || pick(w, 12) == 0 ? 0 : 1 + (int64_t)pick(w, ROOMS),
        .n = 1 + (pick(w, 3) == 0 ? pick(w, MODEL_CHOICES) : 0),
        .pinned = pick(w, 4) == 0,
        .linked = m->o.linked && pick(w, 3) > 0,
        .state = RK_LEG_ARRIVED,
    };
    uint64_t prompt = 1 + pick(w, 90);
    uint64_t page = m->o.page_tokens;
    if (model_gated(m) && m->o.kv_tokens)
        leg.tokens = (prompt + m->o.reserve_tokens + page - 1) / page * page;
    leg.rank = leg.pinned ? pick(w, m->o.ranks) : model_choose_rank(m);
    char id[16];
    (void)snprintf(id, sizeof id, "id%d", leg.id);
    rk_room room = room_of(leg.room);
    leg.handle = rk_ledger_new_handle(w->ledger);
    rk_leg_spec spec = {
        .handle = leg.handle,
        .request_id = id,
        .request_id_bytes = strlen(id),
        .room = leg.room ? &room : NULL,
        .n = leg.n,
        .prompt_tokens = prompt,
        .rank = leg.pinned ? (int32_t)leg.rank : -1,
        .linked = leg.linked,
    };
    rk_verdict verdict;
    ck_assert_int_eq(rk_ledger_arrive(w->ledger, w->now, &spec, &verdict, fx), 0);
    rk_cause cause = model_arrive(m, w->now, &leg);
    ck_assert_int_eq(verdict.cause, cause);
    ck_assert_int_eq(verdict.accepted, cause == RK_CAUSE_NONE);
    ck_assert_int_eq(verdict.rank, (int32_t)leg.rank);
    ck_assert_uint_eq(verdict.admitted, model_slots(m, leg.rank));
    ck_assert_uint_eq(verdict.waiting, model_waiting(m, leg.rank, false));
    if (verdict.accepted)
        ck_assert_int_eq(verdict.state, m->legs[m->count - 1].state);
}

static void do_cancel(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_cancel(w->ledger, w->now, leg->handle, RK_CAUSE_CLIENT_CANCEL, fx);
    if (leg->state != RK_LEG_ENDED)
        model_end(w->m, leg, w->now, RK_CAUSE_CLIENT_CANCEL, MODEL_TELL_ENGINE, RK_CAUSE_NONE, false);
}

static bool followed(const model_leg *leg, uint32_t choice) {
    return !leg->ended[choice] && (!leg->submitted || leg->running[choice]);
}

static uint32_t model_abort_whole(world *w, int id) {
    model_leg *leg = model_newest(w->m, id);
    if (!leg || leg->state == RK_LEG_ENDED)
        return 0;
    model_leg *older = NULL;
    EACH_LEG(w->m, other)
    if (other != leg && other->there && other->id == id && !other->charged)
        older = other;
    if (older) {
        older->charged = true;
        return 1;
    }
    uint32_t hit = 0;
    EACH_CHOICE(leg, c)
    hit += followed(leg, c);
    model_end(w->m, leg, w->now, RK_CAUSE_ABORT_RPC, MODEL_TELL_ENGINE, RK_CAUSE_NONE, true);
    return hit;
}

static uint32_t model_abort_child(world *w, int id, uint32_t choice) {
    model_leg *leg = model_newest(w->m, id);
    if (!leg || leg->state == RK_LEG_ENDED || leg->n < 2 || choice >= leg->n || !followed(leg, choice))
        return 0;
    leg->ended[choice] = true;
    model_emit(w->m, RK_FX_END_CHOICE, leg)->choice = choice;
    if (leg->submitted && !(model_waits_for_kv(w->m, leg) && !leg->handed_off))
        model_abort_named(w->m, leg);
    uint32_t left = 0;
    EACH_CHOICE(leg, c)
    left += followed(leg, c);
    if (left == 0)
        model_end(w->m, leg, w->now, RK_CAUSE_ABORT_RPC, MODEL_TELL_ENGINE, RK_CAUSE_NONE, false);
    return 1;
}

static void do_abort_rpc(world *w, rk_effects *fx) {
    int number = (int)pick(w, IDS);
    bool child = pick(w, 2);
    uint32_t choice = pick(w, MODEL_CHOICES + 1);
    char id[32];
    if (child)
        (void)snprintf(id, sizeof id, "id%d-n%u", number, choice);
    else
        (void)snprintf(id, sizeof id, "id%d", number);
    uint32_t hit = rk_ledger_abort(w->ledger, w->now, id, strlen(id), fx);
    ck_assert_uint_eq(hit, child ? model_abort_child(w, number, choice) : model_abort_whole(w, number));
}

/* ---- events: the servicer and the engine ---- */

static void do_submit(world *w, model_leg *leg, rk_effects *fx) {
    model *m = w->m;
    int result = rk_ledger_begin_submit(w->ledger, w->now, leg->handle, fx);
    ck_assert_int_eq(result, leg->state == RK_LEG_ADMITTED ? 0 : -ECANCELED);
    if (result < 0)
        return;
    leg->state = RK_LEG_SUBMITTED;
    leg->submitted = true;
    EACH_CHOICE(leg, c)
    leg->running[c] = true;
    if (m->o.enabled && model_paired(m, leg))
        leg->transfer = w->now + m->o.transfer_ms;
    if (m->o.role == RK_ROLE_PREFILL)
        model_tell(m, RK_FX_TELL_SUBMITTED, leg);
    if (!model_waits_for_kv(m, leg))
        model_abort_named(m, leg);
}

static void do_submit_failed(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_submit_failed(w->ledger, w->now, leg->handle, fx);
    if (leg->state == RK_LEG_SUBMITTED) {
        leg->submitted = false;
        leg->transfer = 0;
        EACH_CHOICE(leg, c)
        leg->running[c] = false;
        model_end(w->m, leg, w->now, RK_CAUSE_ENGINE_DEAD, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, true);
    } else if (leg->state == RK_LEG_ENDED && leg->submitted) {
        model_free_all(w->m, leg, true);
    }
}

static void do_first_output(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_first_output(w->ledger, w->now, leg->handle, fx);
    if (!leg->submitted || leg->handed_off)
        return;
    if (leg->state == RK_LEG_SUBMITTED && w->m->o.role == RK_ROLE_DECODE)
        model_tell(w->m, RK_FX_TELL_HANDED_OFF, leg);
    model_hand_off(w->m, leg, w->now);
}

static void do_finished(world *w, model_leg *leg, rk_effects *fx) {
    uint32_t choice = pick(w, leg->n);
    rk_cause cause = pick(w, 4) ? RK_CAUSE_COMPLETED : RK_CAUSE_ENGINE_ERROR;
    rk_ledger_finished(w->ledger, w->now, leg->handle, choice, cause, fx);
    if (!leg->running[choice])
        return;
    bool last = true;
    EACH_CHOICE(leg, c)
    last &= c == choice || !followed(leg, c);
    if (last && leg->state != RK_LEG_ENDED)
        model_end(w->m, leg, w->now, cause, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, false);
    model_free(w->m, leg, choice, true);
}

static void do_aborted(world *w, model_leg *leg, rk_effects *fx) {
    uint32_t choice = pick(w, 2) ? RK_LEDGER_ALL : pick(w, leg->n);
    rk_ledger_aborted(w->ledger, w->now, leg->handle, choice, fx);
    bool mark = model_waits_for_kv(w->m, leg) && !leg->handed_off;
    bool may_write = w->m->o.enabled && w->m->o.role == RK_ROLE_PREFILL && model_paired(w->m, leg);
    EACH_CHOICE(leg, c)
    if (!mark && !may_write && leg->aborted[c] && (choice == RK_LEDGER_ALL || choice == c))
        model_free(w->m, leg, c, false);
}

static void do_released(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_slot_released(w->ledger, w->now, leg->handle, fx);
    if (leg->state == RK_LEG_ENDED)
        model_free_all(w->m, leg, true);
}

static void do_engine_dead(world *w, rk_effects *fx) {
    rk_ledger_end_all(w->ledger, w->now, RK_CAUSE_ENGINE_DEAD, fx);
    w->m->engine_gone = true;
    EACH_LEG(w->m, leg) {
        if (leg->there && leg->state != RK_LEG_ENDED)
            model_end(w->m, leg, w->now, RK_CAUSE_ENGINE_DEAD, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, true);
        model_free_all(w->m, leg, false);
    }
}

static void do_tick(world *w, rk_effects *fx) {
    static const unsigned steps[] = {1, 5, 50, 400, 3000};
    w->now += steps[pick(w, 5)];
    rk_ledger_tick(w->ledger, w->now, fx);
    model_tick(w->m, w->now);
}

/* ---- events: the twin's worker ---- */

static void do_twin(world *w, rk_effects *fx) {
    static const rk_cause causes[] = {RK_CAUSE_COMPLETED,   RK_CAUSE_WAIT_TIMEOUT, RK_CAUSE_CLIENT_CANCEL,
                                      RK_CAUSE_PEER_LOST,   RK_CAUSE_TWIN_ENDED,   RK_CAUSE_DRAIN,
                                      RK_CAUSE_ENGINE_ERROR};
    int64_t number = 1 + (int64_t)pick(w, ROOMS);
    rk_room room = room_of(number);
    rk_cause cause = causes[pick(w, 7)];
    bool ever_submitted = pick(w, 2);
    switch (pick(w, 6)) {
    case 0:
    case 1:
        (void)rk_ledger_twin_announced(w->ledger, w->now, 0, &room, fx);
        model_announced(w->m, w->now, number, false);
        return;
    case 2:
    case 3:
        (void)rk_ledger_twin_admitted(w->ledger, w->now, 0, &room, fx);
        model_announced(w->m, w->now, number, true);
        return;
    case 4:
        (void)rk_ledger_twin_ended(w->ledger, w->now, 0, &room, cause, ever_submitted, fx);
        model_twin_ended(w->m, w->now, number, cause, ever_submitted);
        return;
    default:
        (void)rk_ledger_twin_quiesced(w->ledger, w->now, 0, &room, fx);
        model_twin_quiesced(w->m, w->now, number);
        return;
    }
}

/* ---- the world ---- */

static model_leg *any_leg(world *w) {
    size_t first = w->m->count > 64 ? w->m->count - 64 : 0;
    for (int tries = 0; tries < 20 && w->m->count > 0; tries++) {
        model_leg *leg = &w->m->legs[first + pick(w, (unsigned)(w->m->count - first))];
        if (leg->there)
            return leg;
    }
    return NULL;
}

static void one_leg_event(world *w, model_leg *leg, unsigned what, rk_effects *fx) {
    if (what < 22)
        do_submit(w, leg, fx);
    else if (what < 32)
        do_first_output(w, leg, fx);
    else if (what < 46)
        do_finished(w, leg, fx);
    else if (what < 52)
        do_cancel(w, leg, fx);
    else if (what < 60)
        do_aborted(w, leg, fx);
    else if (what < 62)
        do_released(w, leg, fx);
    else
        do_submit_failed(w, leg, fx);
}

static void one_event(world *w) {
    rk_effects fx;
    rk_effects_clear(&fx);
    unsigned what = pick(w, 1000);
    model_leg *leg = any_leg(w);
    if (what < 260 || !leg)
        do_arrive(w, &fx);
    else if (what < 320)
        do_abort_rpc(w, &fx);
    else if (what < 400)
        do_tick(w, &fx);
    else if (what < 403 && w->may_die)
        do_engine_dead(w, &fx);
    else if (what < 550 && w->m->o.linked)
        do_twin(w, &fx);
    else
        one_leg_event(w, leg, pick(w, 63), &fx);
    model_sweep(w->m, w->now);
    compare_effects(w, &fx);
    compare_numbers(w);
}

/* Legs that are no more are thrown out of the model now and then; the others keep their order. */
static void compact(model *m) {
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++)
        if (m->legs[i].there)
            m->legs[kept++] = m->legs[i];
    m->count = kept;
}

static world world_new(rk_ledger_options o, unsigned seed) {
    world w = {.ledger = rk_ledger_new(&o), .m = calloc(1, sizeof(model)), .now = T0, .seed = seed};
    ck_assert_ptr_nonnull(w.ledger);
    ck_assert_ptr_nonnull(w.m);
    w.ends = calloc(EVENTS + 1, 1);
    w.m->o = o;
    w.m->link_seen = T0;
    w.m->tombstones.max = o.tombstones;
    w.m->tombstones.keep_ms = o.tombstone_ms;
    w.m->announced.max = o.announced;
    w.m->announced.keep_ms = o.twin_ms;
    return w;
}

static void run_world(rk_ledger_options o, unsigned seed) {
    world w = world_new(o, seed);
    for (int i = 0; i < EVENTS; i++) {
        if (w.m->count > 96)
            compact(w.m);
        w.may_die = i > EVENTS / 2;
        one_event(&w);
    }
    rk_effects fx;
    rk_effects_clear(&fx);
    do_engine_dead(&w, &fx);
    model_sweep(w.m, w.now);
    compare_effects(&w, &fx);
    compare_numbers(&w);
    assert_empty(w.ledger, w.now);
    rk_ledger_counts counts = counts_of(w.ledger);
    uint64_t over = 0;
    for (int c = 0; c < RK_CAUSES; c++)
        over += counts.ended[c] + counts.refused[c];
    ck_assert_uint_eq(over, counts.arrived); /* every leg ends exactly once */
    rk_ledger_free(w.ledger);
    free(w.ends);
    free(w.m);
}

static rk_ledger_options short_times(rk_ledger_options o) {
    o.wait_ms = 900;
    o.announce_ms = 60;
    o.twin_ms = 1500;
    o.handoff_ms = 700;
    o.transfer_ms = 5000;
    o.tombstone_ms = 4000;
    o.tombstones = 12;
    o.announced = 9;
    return o;
}

START_TEST(a_decode_matches_the_model) {
    run_world(short_times(options_of(RK_ROLE_DECODE, 4, 6)), 1);
    run_world(short_times(options_of(RK_ROLE_DECODE, 4, 6)), 2);
    run_world(short_times(options_of(RK_ROLE_DECODE, 1, 64)), 3);
}
END_TEST

START_TEST(a_decode_that_refuses_at_the_window_matches_the_model) {
    run_world(short_times(options_of(RK_ROLE_DECODE, 5, 0)), 4);
}
END_TEST

START_TEST(a_decode_with_kv_tokens_and_ranks_matches_the_model) {
    rk_ledger_options o = short_times(options_of(RK_ROLE_DECODE, 6, 5));
    o.kv_tokens = 160;
    o.page_tokens = 16;
    o.reserve_tokens = 16;
    run_world(o, 5);
    o.ranks = 3;
    run_world(o, 6);
}
END_TEST

START_TEST(an_aggregated_worker_with_many_choices_matches_the_model) {
    rk_ledger_options o = short_times(options_of(RK_ROLE_NULL, 6, 4));
    run_world(o, 7);
    o.gate_aggregated = true;
    run_world(o, 8);
    o.ranks = 2;
    run_world(o, 9);
}
END_TEST

START_TEST(a_prefill_and_rooms_off_match_the_model) {
    rk_ledger_options o = short_times(options_of(RK_ROLE_PREFILL, 4, 4));
    run_world(o, 10);
    o = short_times(options_of(RK_ROLE_NULL, 4, 4));
    o.enabled = false;
    run_world(o, 11);
    o.role = RK_ROLE_DECODE;
    o.linked = true; /* and has no effect */
    o.ranks = 2;
    run_world(o, 12);
}
END_TEST

START_TEST(a_linked_decode_matches_the_model) {
    rk_ledger_options o = short_times(options_of(RK_ROLE_DECODE, 5, 6));
    o.linked = true;
    run_world(o, 13);
    run_world(o, 14);
    o.ranks = 2;
    run_world(o, 15);
    o.waiting_places = 0;
    run_world(o, 16);
}
END_TEST

START_TEST(a_linked_prefill_matches_the_model) {
    rk_ledger_options o = short_times(options_of(RK_ROLE_PREFILL, 4, 4));
    o.linked = true;
    o.held_places = 5;
    run_world(o, 17);
    run_world(o, 18);
    o.ranks = 3;
    o.announced = 0; /* nothing is remembered */
    run_world(o, 19);
    o.tombstones = 0;
    run_world(o, 20);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_decode_matches_the_model,
        a_decode_that_refuses_at_the_window_matches_the_model,
        a_decode_with_kv_tokens_and_ranks_matches_the_model,
        an_aggregated_worker_with_many_choices_matches_the_model,
        a_prefill_and_rooms_off_match_the_model,
        a_linked_decode_matches_the_model,
        a_linked_prefill_matches_the_model,
    };
    return RUN_SUITE("ledger against the model", tests);
}
