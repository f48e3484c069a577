/* From what is noted on legs to the caller's list of effects. */
#include "rooms/ledger.h"

static bool full(rk_effects *fx) {
    if (fx->count < RK_EFFECTS_MAX)
        return false;
    fx->more = true;
    return true;
}

static rk_effect *add(rk_effects *fx, rk_effect_kind kind, const rk_leg *leg) {
    rk_effect *effect = &fx->items[fx->count++];
    effect->kind = kind;
    effect->handle = leg->handle;
    effect->choice = RK_LEDGER_ALL;
    effect->rank = -1;
    effect->cause = leg->cause;
    effect->twin_cause = leg->twin_cause;
    effect->code = leg->code;
    effect->retry = leg->retry;
    effect->ever_submitted = leg->ever_submitted;
    effect->peer = leg->peer;
    effect->room.host[0] = '\0';
    effect->room.port = 0;
    effect->room.room = 0;
    return effect;
}

static void add_with_room(rk_effects *fx, rk_effect_kind kind, const rk_leg *leg) {
    add(fx, kind, leg)->room = leg->room;
}

/* One pending abort or end of a single choice at a time; false: the list is full. */
static bool flush_choices(rk_leg *leg, rk_effects *fx) {
    for (uint32_t i = 0; i < leg->n; i++) {
        if (leg->choices[i] & RK_CHOICE_ABORT_DUE) {
            if (full(fx))
                return false;
            add(fx, RK_FX_ABORT_ENGINE, leg)->choice = i;
            leg->choices[i] &= (uint8_t)~RK_CHOICE_ABORT_DUE;
        }
        if (leg->choices[i] & RK_CHOICE_END_DUE) {
            if (full(fx))
                return false;
            add(fx, RK_FX_END_CHOICE, leg)->choice = i;
            leg->choices[i] &= (uint8_t)~RK_CHOICE_END_DUE;
        }
    }
    leg->todo &= ~(unsigned)RK_TODO_CHOICES;
    return true;
}

static void flush_one(const rk_ledger *ledger, rk_leg *leg, unsigned what, rk_effects *fx) {
    switch (what) {
    case RK_TODO_OPEN:
        (void)add(fx, RK_FX_OPEN, leg);
        return;
    case RK_TODO_ADMIT:
        if (ledger->options.ranks > 1 || leg->pinned)
            add(fx, RK_FX_ADMIT, leg)->rank = (int32_t)leg->rank;
        else
            (void)add(fx, RK_FX_ADMIT, leg);
        return;
    case RK_TODO_END:
        (void)add(fx, RK_FX_END, leg);
        return;
    case RK_TODO_ABORT_ALL:
        (void)add(fx, RK_FX_ABORT_ENGINE, leg);
        return;
    case RK_TODO_RELEASE_ROOM:
        add_with_room(fx, RK_FX_RELEASE_ROOM, leg);
        return;
    case RK_TODO_TELL_OPENED:
        add_with_room(fx, RK_FX_TELL_OPENED, leg);
        return;
    case RK_TODO_TELL_ADMITTED:
        add_with_room(fx, RK_FX_TELL_ADMITTED, leg);
        return;
    case RK_TODO_TELL_SUBMITTED:
        add_with_room(fx, RK_FX_TELL_SUBMITTED, leg);
        return;
    case RK_TODO_TELL_HANDED_OFF:
        add_with_room(fx, RK_FX_TELL_HANDED_OFF, leg);
        return;
    case RK_TODO_TELL_ENDED:
        add_with_room(fx, RK_FX_TELL_ENDED, leg);
        return;
    case RK_TODO_TELL_QUIESCED:
        add_with_room(fx, RK_FX_TELL_QUIESCED, leg);
        return;
    default:
        assert(what == 0); /* unknown */
    }
}

/* False: the list is full and the leg has more. */
static bool flush_leg(const rk_ledger *ledger, rk_leg *leg, rk_effects *fx) {
    while (leg->todo) {
        unsigned what = leg->todo & (~leg->todo + 1); /* the lowest bit: they are in order */
        if (what == RK_TODO_CHOICES) {
            if (!flush_choices(leg, fx))
                return false;
            continue;
        }
        if (full(fx))
            return false;
        flush_one(ledger, leg, what, fx);
        leg->todo &= ~what;
    }
    return true;
}

void rk_flush(rk_ledger *ledger, rk_effects *fx) {
    while (!rk_list_empty(&ledger->pending)) {
        rk_leg *leg = RK_CONTAINER(ledger->pending.next, rk_leg, pending);
        if (!flush_leg(ledger, leg, fx))
            return;
        rk_list_remove(&leg->pending);
        rk_free_if_gone(leg);
    }
}

/* False: the list is full and the leg has more. */
static bool flush_tells_of(const rk_ledger *ledger, rk_leg *leg, rk_effects *fx) {
    while (leg->tells) {
        unsigned what = leg->tells & (~leg->tells + 1); /* the lowest bit: they are in order */
        if (full(fx))
            return false;
        flush_one(ledger, leg, what, fx);
        leg->tells &= ~what;
    }
    return true;
}

void rk_flush_tells(rk_ledger *ledger, rk_effects *fx) {
    while (!rk_list_empty(&ledger->tells)) {
        rk_leg *leg = RK_CONTAINER(ledger->tells.next, rk_leg, telling);
        if (!flush_tells_of(ledger, leg, fx))
            return;
        rk_list_remove(&leg->telling);
        rk_free_if_gone(leg);
    }
}
