/* The ledger beside a reference model that is obviously right, over random events: every verdict, effect and
 * number must be the same after each of them. */
#include "ledger_model.h"

#include <stdlib.h>

#define EVENTS 12000
#define IDS 24
#define ROOMS 40

typedef struct world {
    rk_ledger *ledger;
    model *m;
    uint64_t now;
    unsigned seed;
    uint64_t ended_by_effect;
} world;

static unsigned pick(world *w, unsigned below) {
    w->seed = w->seed * 1103515245u + 12345u;
    return (w->seed >> 16) % below;
}

static int by_all(const void *a, const void *b) {
    return memcmp(a, b, sizeof(model_effect));
}

/* The same effects, whatever their order; admissions in the order of arrival per rank. */
static void compare_effects(world *w, const rk_effects *fx) {
    model *m = w->m;
    ck_assert(!fx->more);
    if (fx->count != m->fx_count)
        for (size_t i = 0; i < fx->count; i++)
            (void)fprintf(stderr, "ledger: kind %d handle %d cause %d\n", fx->items[i].kind,
                          (int)fx->items[i].handle, fx->items[i].cause);
    ck_assert_uint_eq(fx->count, m->fx_count);
    model_effect real[RK_EFFECTS_MAX];
    model_effect expected[RK_EFFECTS_MAX];
    memset(real, 0, sizeof real);
    memset(expected, 0, sizeof expected);
    for (size_t i = 0; i < fx->count; i++) {
        bool caused = fx->items[i].kind == RK_FX_END;
        real[i].kind = fx->items[i].kind;
        real[i].handle = fx->items[i].handle;
        real[i].choice = fx->items[i].choice;
        real[i].cause = caused ? fx->items[i].cause : RK_CAUSE_NONE;
        expected[i].kind = m->fx[i].kind;
        expected[i].handle = m->fx[i].handle;
        expected[i].choice = m->fx[i].choice;
        expected[i].cause = m->fx[i].cause;
    }
    qsort(real, fx->count, sizeof *real, by_all);
    qsort(expected, fx->count, sizeof *expected, by_all);
    ck_assert_mem_eq(real, expected, sizeof real);
    uint64_t last[8] = {0};
    for (size_t i = 0; i < fx->count; i++) {
        if (fx->items[i].kind != RK_FX_ADMIT)
            continue;
        uint32_t rank = fx->items[i].rank < 0 ? 0 : (uint32_t)fx->items[i].rank;
        ck_assert_uint_gt(fx->items[i].handle, last[rank]);
        last[rank] = fx->items[i].handle;
    }
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
    }
    rk_ledger_counts counts;
    rk_ledger_read(w->ledger, &counts);
    uint32_t states[RK_LEG_STATES] = {0};
    for (size_t i = 0; i < m->count; i++)
        if (m->legs[i].there)
            states[m->legs[i].state]++;
    for (int s = 0; s < RK_LEG_STATES; s++)
        ck_assert_uint_eq(counts.legs[s], states[s]);
}

/* ---- events ---- */

static void do_arrive(world *w, rk_effects *fx) {
    model *m = w->m;
    model_leg leg = {
        .id = (int)pick(w, IDS),
        .room = m->o.role == RK_ROLE_NULL || pick(w, 12) == 0 ? 0 : 1 + (int64_t)pick(w, ROOMS),
        .n = m->o.role == RK_ROLE_NULL ? 1 + pick(w, MODEL_CHOICES) : 1,
        .pinned = pick(w, 4) == 0,
        .state = RK_LEG_ARRIVED,
    };
    uint64_t prompt = 1 + pick(w, 90);
    if (model_gated(m) && m->o.kv_tokens)
        leg.tokens =
            (prompt + m->o.reserve_tokens + m->o.page_tokens - 1) / m->o.page_tokens * m->o.page_tokens;
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
    };
    rk_verdict verdict;
    ck_assert_int_eq(rk_ledger_arrive(w->ledger, w->now, &spec, &verdict, fx), 0);
    rk_cause cause = model_arrive(m, w->now, leg);
    ck_assert_int_eq(verdict.cause, cause);
    ck_assert_int_eq(verdict.accepted, cause == RK_CAUSE_NONE);
    ck_assert_int_eq(verdict.rank, (int32_t)leg.rank);
}

static model_leg *any_leg(world *w) {
    size_t first = w->m->count > 64 ? w->m->count - 64 : 0;
    for (int tries = 0; tries < 20 && w->m->count > 0; tries++) {
        model_leg *leg = &w->m->legs[first + pick(w, (unsigned)(w->m->count - first))];
        if (leg->there)
            return leg;
    }
    return NULL;
}

static void do_submit(world *w, model_leg *leg, rk_effects *fx) {
    int result = rk_ledger_begin_submit(w->ledger, w->now, leg->handle, fx);
    ck_assert_int_eq(result, leg->state == RK_LEG_ADMITTED ? 0 : -ECANCELED);
    if (result < 0)
        return;
    leg->state = RK_LEG_SUBMITTED;
    leg->submitted = true;
    for (uint32_t c = 0; c < leg->n; c++)
        leg->running[c] = true;
    if (w->m->o.enabled && model_paired(w->m, leg))
        leg->transfer_due = w->now + w->m->o.transfer_ms;
}

static void do_first_output(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_first_output(w->ledger, w->now, leg->handle, fx);
    if (!leg->submitted || leg->state == RK_LEG_HANDED_OFF)
        return;
    leg->handed_off = true;
    leg->transfer_due = 0;
    if (leg->state == RK_LEG_SUBMITTED) {
        leg->state = RK_LEG_HANDED_OFF;
    } else {
        leg->handoff_due = 0;
        model_abort_engine(w->m, leg);
    }
}

static void do_finished(world *w, model_leg *leg, rk_effects *fx) {
    uint32_t choice = pick(w, leg->n);
    rk_ledger_finished(w->ledger, w->now, leg->handle, choice, RK_CAUSE_COMPLETED, fx);
    if (!leg->running[choice])
        return;
    leg->running[choice] = leg->claimed[choice] = false;
    bool over = true;
    for (uint32_t c = 0; c < leg->n; c++)
        over &= !leg->running[c];
    if (over && leg->state != RK_LEG_ENDED)
        model_end(w->m, leg, w->now, RK_CAUSE_COMPLETED, false, false);
    model_sweep(w->m);
}

static void do_cancel(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_cancel(w->ledger, w->now, leg->handle, RK_CAUSE_CLIENT_CANCEL, fx);
    if (leg->state != RK_LEG_ENDED)
        model_end(w->m, leg, w->now, RK_CAUSE_CLIENT_CANCEL, false, true);
    model_sweep(w->m);
}

static void do_abort_rpc(world *w, rk_effects *fx) {
    int number = (int)pick(w, IDS);
    char id[16];
    (void)snprintf(id, sizeof id, "id%d", number);
    uint32_t hit = rk_ledger_abort(w->ledger, w->now, id, strlen(id), fx);
    model_leg *leg = model_newest(w->m, number);
    uint32_t expected = 0;
    if (leg && leg->state != RK_LEG_ENDED) {
        model_leg *older = NULL;
        for (size_t i = 0; i < w->m->count; i++) {
            model_leg *other = &w->m->legs[i];
            if (other != leg && other->there && other->id == number && !other->charged)
                older = other;
        }
        if (older) {
            older->charged = true;
            expected = 1;
        } else {
            for (uint32_t c = 0; c < leg->n; c++)
                expected += !leg->submitted || leg->running[c];
            model_end(w->m, leg, w->now, RK_CAUSE_ABORT_RPC, true, true);
        }
    }
    ck_assert_uint_eq(hit, expected);
    model_sweep(w->m);
}

static void do_aborted(world *w, model_leg *leg, rk_effects *fx) {
    uint32_t choice = pick(w, 2) ? RK_LEDGER_ALL : pick(w, leg->n);
    rk_ledger_aborted(w->ledger, w->now, leg->handle, choice, fx);
    bool waits_for_kv = w->m->o.enabled && w->m->o.role == RK_ROLE_DECODE && model_paired(w->m, leg);
    for (uint32_t c = 0; c < leg->n && (!waits_for_kv || leg->handed_off); c++)
        if (leg->aborted[c] && (choice == RK_LEDGER_ALL || choice == c))
            leg->running[c] = leg->claimed[c] = false;
    model_sweep(w->m);
}

static void do_released(world *w, model_leg *leg, rk_effects *fx) {
    rk_ledger_slot_released(w->ledger, w->now, leg->handle, fx);
    for (uint32_t c = 0; c < leg->n && leg->state == RK_LEG_ENDED; c++)
        leg->running[c] = leg->claimed[c] = false;
    model_sweep(w->m);
}

static void do_tick(world *w, rk_effects *fx) {
    static const unsigned steps[] = {1, 5, 50, 400, 3000};
    w->now += steps[pick(w, 5)];
    rk_ledger_tick(w->ledger, w->now, fx);
    model_tick(w->m, w->now);
}

static void one_event(world *w) {
    rk_effects fx;
    rk_effects_clear(&fx);
    unsigned what = pick(w, 100);
    model_leg *leg = any_leg(w);
    if (what < 28 || !leg)
        do_arrive(w, &fx);
    else if (what < 50)
        do_submit(w, leg, &fx);
    else if (what < 60)
        do_first_output(w, leg, &fx);
    else if (what < 74)
        do_finished(w, leg, &fx);
    else if (what < 80)
        do_cancel(w, leg, &fx);
    else if (what < 85)
        do_abort_rpc(w, &fx);
    else if (what < 92)
        do_aborted(w, leg, &fx);
    else if (what < 94)
        do_released(w, leg, &fx);
    else
        do_tick(w, &fx);
    compare_effects(w, &fx);
    compare_numbers(w);
}

/* The model keeps every leg it has seen; once full, the dead ones are thrown out, in order. */
static void compact(model *m) {
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++)
        if (m->legs[i].there)
            m->legs[kept++] = m->legs[i];
    m->count = kept;
}

static void run_world(rk_ledger_options o, unsigned seed) {
    world w = {.ledger = rk_ledger_new(&o), .m = calloc(1, sizeof(model)), .now = T0, .seed = seed};
    w.m->o = o;
    for (int i = 0; i < EVENTS; i++) {
        if (w.m->count > 256)
            compact(w.m);
        one_event(&w);
    }
    /* The end: everything that lives is cancelled and released, and nothing is left. */
    compact(w.m);
    rk_effects fx;
    for (size_t i = 0; i < w.m->count; i++) {
        rk_effects_clear(&fx);
        rk_ledger_cancel(w.ledger, w.now, w.m->legs[i].handle, RK_CAUSE_CLIENT_CANCEL, &fx);
        rk_effects_clear(&fx);
        rk_ledger_slot_released(w.ledger, w.now, w.m->legs[i].handle, &fx);
    }
    for (size_t i = 0; i < w.m->count;
         i++) { /* those that were admitted meanwhile have ended above, or here */
        rk_effects_clear(&fx);
        rk_ledger_cancel(w.ledger, w.now, w.m->legs[i].handle, RK_CAUSE_CLIENT_CANCEL, &fx);
    }
    assert_empty(w.ledger, w.now);
    rk_ledger_counts counts = counts_of(w.ledger);
    uint64_t ended = 0;
    uint64_t refused = 0;
    for (int c = 0; c < RK_CAUSES; c++) {
        ended += counts.ended[c];
        refused += counts.refused[c];
    }
    ck_assert_uint_eq(ended + refused, counts.arrived); /* every leg ends exactly once */
    rk_ledger_free(w.ledger);
    free(w.m);
}

static rk_ledger_options short_times(rk_ledger_options o) {
    o.wait_ms = 900;
    o.handoff_ms = 700;
    o.transfer_ms = 5000;
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
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_decode_matches_the_model,
        a_decode_that_refuses_at_the_window_matches_the_model,
        a_decode_with_kv_tokens_and_ranks_matches_the_model,
        an_aggregated_worker_with_many_choices_matches_the_model,
        a_prefill_and_rooms_off_match_the_model,
    };
    return RUN_SUITE("ledger against the model", tests);
}
