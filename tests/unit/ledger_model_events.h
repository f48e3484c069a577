/* What happens to the model: arrivals, time, and what the twin's worker says. */
#ifndef LEDGER_MODEL_EVENTS_H
#define LEDGER_MODEL_EVENTS_H

#include "ledger_model.h"

/* ---- arrival ---- */

static inline model_leg *model_newest(model *m, int id) {
    model_leg *found = NULL;
    EACH_LEG(m, leg)
    if (leg->there && leg->id == id)
        found = leg;
    return found;
}

static inline model_leg *model_leg_in(model *m, int64_t room) {
    EACH_LEG(m, leg)
    if (leg->there && leg->room == room)
        return leg;
    return NULL;
}

static inline uint32_t model_choose_rank(model *m) {
    uint32_t best = 0;
    for (uint32_t r = 1; r < m->o.ranks; r++)
        if (model_load(m, r) < model_load(m, best))
            best = r;
    return best;
}

static inline bool model_holds(const model *m, const model_leg *leg, uint64_t now) {
    return m->o.enabled && m->o.linked && m->o.role == RK_ROLE_PREFILL && model_paired(m, leg) &&
           !(m->unannounced >= 8 && now - m->link_seen >= 30000);
}

static inline rk_cause model_objection(model *m, const model_leg *leg, const model_leg *old) {
    bool live = old && old->state != RK_LEG_ENDED;
    bool retry = m->o.enabled && live && !old->submitted && leg->room != 0 && old->room != leg->room;
    if (live && !retry)
        return RK_CAUSE_DUPLICATE_ID;
    if (m->o.enabled && model_paired(m, leg) && model_leg_in(m, leg->room))
        return RK_CAUSE_DUPLICATE_ROOM;
    if (m->o.enabled && model_paired(m, leg) && model_note_of(&m->tombstones, leg->room))
        return RK_CAUSE_TWIN_ENDED;
    if (model_gated(m) && (leg->n > m->o.window || (m->o.kv_tokens && leg->tokens * leg->n > m->o.kv_tokens)))
        return RK_CAUSE_NEVER_FITS;
    return RK_CAUSE_NONE;
}

static inline rk_cause model_no_place(model *m, const model_leg *leg, uint64_t now) {
    if (model_holds(m, leg, now)) {
        const model_note *note = model_note_of(&m->announced, leg->room);
        bool waits = !(note && note->admitted);
        return waits && model_held(m) >= m->o.held_places ? RK_CAUSE_HELD_FULL : RK_CAUSE_NONE;
    }
    uint32_t waiting = model_waiting(m, leg->rank, false);
    bool at_once = waiting == 0 && model_fits(m, leg);
    return model_gated(m) && !at_once && waiting >= m->o.waiting_places ? RK_CAUSE_FULL : RK_CAUSE_NONE;
}

static inline rk_cause model_refuse(model *m, model_leg *leg, uint64_t now, rk_cause cause) {
    leg->cause = cause;
    if (!m->o.enabled || !model_paired(m, leg) || cause == RK_CAUSE_DUPLICATE_ROOM)
        return cause;
    if (cause == RK_CAUSE_TWIN_ENDED) {
        model_forget_stone(m, leg->room);
        return cause;
    }
    model_note *note = model_note_of(&m->announced, leg->room);
    if (note) {
        leg->linked = leg->twin_seen = true;
        model_note_remove(&m->announced, note);
    }
    model_tell(m, RK_FX_TELL_ENDED, leg);
    if (m->o.role != RK_ROLE_PREFILL)
        return cause;
    (void)model_emit(m, RK_FX_RELEASE_ROOM, leg);
    model_note *stone =
        m->o.linked && !leg->twin_seen ? model_note_add(&m->tombstones, leg->room, now) : NULL;
    if (stone) {
        stone->own = true;
        stone->cause = cause;
    }
    return cause;
}

static inline void model_place(model *m, model_leg *leg, uint64_t now) {
    bool held = model_holds(m, leg, now);
    model_note *note = model_paired(m, leg) ? model_note_of(&m->announced, leg->room) : NULL;
    bool admitted = note && note->admitted;
    if (note) {
        leg->linked = leg->twin_seen = true;
        model_note_remove(&m->announced, note);
    }
    if (m->o.role == RK_ROLE_PREFILL && m->o.enabled)
        (void)model_emit(m, RK_FX_OPEN, leg);
    model_tell(m, RK_FX_TELL_OPENED, leg);
    bool waits = model_gated(m) && (model_waiting(m, leg->rank, false) > 0 || !model_fits(m, leg));
    if (held && !admitted) {
        leg->state = RK_LEG_HELD;
        *(leg->linked ? &leg->held : &leg->announce) =
            now + (leg->linked ? m->o.wait_ms + 5000 : m->o.announce_ms);
    } else if (waits) {
        leg->state = RK_LEG_WAITING;
        leg->wait = now + m->o.wait_ms;
    } else {
        model_admit(m, leg, now);
    }
}

/* The cause of the refusal; NONE: accepted, and the leg is in. */
static inline rk_cause model_arrive(model *m, uint64_t now, model_leg *leg) {
    model_leg *old = model_newest(m, leg->id);
    leg->linked = leg->linked && model_waits_for_kv(m, leg);
    rk_cause cause = model_objection(m, leg, old);
    if (cause != RK_CAUSE_NONE)
        return model_refuse(m, leg, now, cause);
    if (old && old->state != RK_LEG_ENDED) {
        model_end(m, old, now, RK_CAUSE_SUPERSEDED, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, true);
        model_sweep(m, now);
    }
    if (!leg->pinned)
        leg->rank = model_choose_rank(m);
    cause = model_no_place(m, leg, now);
    if (cause != RK_CAUSE_NONE)
        return model_refuse(m, leg, now, cause);
    leg->there = true;
    m->legs[m->count] = *leg;
    model_place(m, &m->legs[m->count++], now);
    return RK_CAUSE_NONE;
}

/* ---- time ---- */

static inline bool model_due(const model_leg *leg, uint64_t due, uint64_t now) {
    return leg->there && due != 0 && due <= now;
}

static inline void model_expire(model_notes *notes, uint64_t now) {
    while (notes->count > 0 && notes->at[0].due <= now)
        model_note_remove(notes, &notes->at[0]);
}

static inline void model_tick_waits(model *m, uint64_t now) {
    EACH_LEG(m, leg)
    if (model_due(leg, leg->wait, now)) {
        model_end(m, leg, now, RK_CAUSE_WAIT_TIMEOUT, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, true);
        model_sweep(m, now); /* the next in line may go, however late it is */
    }
    EACH_LEG(m, leg)
    if (model_due(leg, leg->announce, now)) {
        m->unannounced++;
        model_admit(m, leg, now);
    }
    EACH_LEG(m, leg)
    if (model_due(leg, leg->held, now))
        model_end(m, leg, now, RK_CAUSE_HELD_TIMEOUT, MODEL_ENGINE_KNOWS, RK_CAUSE_NONE, true);
    EACH_LEG(m, leg)
    if (model_due(leg, leg->twin, now)) {
        model_end(m, leg, now, RK_CAUSE_TWIN_MISSING, MODEL_TELL_ENGINE, RK_CAUSE_NONE, true);
        model_sweep(m, now);
    }
}

static inline void model_tick(model *m, uint64_t now) {
    model_tick_waits(m, now);
    EACH_LEG(m, leg)
    if (model_due(leg, leg->handoff, now)) {
        model_abort_engine(m, leg);
        leg->handoff = 0;
        leg->release = now + m->o.transfer_ms;
    }
    EACH_LEG(m, leg)
    if (model_due(leg, leg->release, now)) {
        model_abort_engine(m, leg);
        model_free_all(m, leg, false);
        model_sweep(m, now);
    }
    EACH_LEG(m, leg)
    if (model_due(leg, leg->transfer, now)) {
        leg->transfer = 0;
        if (leg->state != RK_LEG_ENDED)
            continue;
        model_abort_engine(m, leg);
        model_free_all(m, leg, false);
        model_sweep(m, now);
    }
    model_sweep(m, now);
    model_expire(&m->tombstones, now);
    model_expire(&m->announced, now);
}

/* ---- the twin's worker ---- */

/* A leg that its twin's worker did not know of says how it stands. */
static inline void model_introduce(model *m, model_leg *leg) {
    bool prefill = m->o.role == RK_ROLE_PREFILL;
    leg->linked = true;
    if (leg->state == RK_LEG_ENDED) {
        model_tell(m, RK_FX_TELL_ENDED, leg);
        return;
    }
    model_tell(m, RK_FX_TELL_OPENED, leg);
    if (prefill && leg->submitted)
        model_tell(m, RK_FX_TELL_SUBMITTED, leg);
    if (!prefill && leg->state != RK_LEG_WAITING)
        model_tell(m, RK_FX_TELL_ADMITTED, leg);
    if (!prefill && leg->state == RK_LEG_HANDED_OFF)
        model_tell(m, RK_FX_TELL_HANDED_OFF, leg);
}

static inline void model_announced(model *m, uint64_t now, int64_t room, bool admitted) {
    if (!m->o.enabled)
        return;
    m->link_seen = now;
    m->unannounced = 0;
    model_leg *leg = model_leg_in(m, room);
    model_note *stone = model_note_of(&m->tombstones, room);
    model_note was = stone ? *stone : (model_note){0};
    model_forget_stone(m, room);
    if (!leg && was.own) {
        model_tell_room(m, RK_FX_TELL_ENDED, room, was.cause);
    } else if (!leg) {
        model_note *note = model_note_add(&m->announced, room, now);
        if (note)
            note->admitted |= admitted;
    } else {
        if (!leg->twin_seen && !leg->linked)
            model_introduce(m, leg);
        if (!leg->twin_seen && leg->state == RK_LEG_HELD) {
            leg->announce = 0;
            leg->held = now + m->o.wait_ms + 5000;
        }
        leg->twin_seen = true;
        leg->twin = 0;
        if (admitted && leg->state == RK_LEG_HELD)
            model_admit(m, leg, now);
    }
}

static inline void model_release_room(model *m, model_leg *leg, uint64_t now) {
    if (leg->release_asked || leg->handed_off)
        return;
    leg->release_asked = true;
    model_abort_engine(m, leg);
    (void)model_emit(m, RK_FX_RELEASE_ROOM, leg);
    model_clear_deadlines(leg);
    leg->release = now + m->o.transfer_ms;
}

static inline void model_decode_twin_ended(model *m, model_leg *leg, uint64_t now, rk_cause cause,
                                           bool ever_submitted) {
    if (leg->handed_off)
        return;
    leg->twin_seen = leg->twin_over = true;
    if (cause == RK_CAUSE_COMPLETED) {
        if (leg->submitted)
            model_hand_off(m, leg, now);
        return;
    }
    if (leg->state != RK_LEG_ENDED)
        model_end(m, leg, now, RK_CAUSE_TWIN_ENDED, MODEL_TELL_ENGINE, cause, true);
    if (leg->submitted && !ever_submitted)
        model_release_room(m, leg, now);
}

static inline void model_twin_ended(model *m, uint64_t now, int64_t room, rk_cause cause,
                                    bool ever_submitted) {
    model_leg *leg = model_leg_in(m, room);
    bool prefill = m->o.role == RK_ROLE_PREFILL;
    if (!m->o.enabled)
        return;
    if (leg && !prefill) {
        model_decode_twin_ended(m, leg, now, cause, ever_submitted);
    } else if (leg) {
        leg->twin_over = true;
        model_forget_stone(m, room);
        if (leg->state == RK_LEG_ENDED)
            leg->linked = true; /* it is told when this leg is quiet */
        if (cause == RK_CAUSE_COMPLETED || leg->state == RK_LEG_ENDED || leg->state == RK_LEG_HANDED_OFF)
            return;
        leg->twin_seen = leg->linked = true;
        model_end(m, leg, now, RK_CAUSE_TWIN_ENDED, MODEL_TELL_ENGINE, cause, true);
    } else {
        model_note *note = model_note_of(&m->announced, room);
        if (note)
            model_note_remove(&m->announced, note);
        if (cause == RK_CAUSE_COMPLETED)
            return;
        model_note *stone = model_note_of(&m->tombstones, room);
        if (cause == RK_CAUSE_TWIN_ENDED || (stone && stone->own)) {
            model_forget_stone(m, room);
        } else {
            stone = model_note_add(&m->tombstones, room, now);
            if (!stone)
                return;
            stone->cause = cause;
        }
        if (prefill && !m->engine_gone)
            model_tell_room(m, RK_FX_TELL_QUIESCED, room, cause);
    }
}

static inline void model_twin_quiesced(model *m, uint64_t now, int64_t room) {
    model_leg *leg = model_leg_in(m, room);
    if (m->o.enabled && leg && m->o.role == RK_ROLE_DECODE && leg->state == RK_LEG_ENDED)
        model_release_room(m, leg, now);
}

#endif
