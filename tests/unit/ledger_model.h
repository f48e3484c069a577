/* A ledger so simple that it is obviously right: arrays, linear scans, no rings, no hashes. It knows the
 * unlinked rules (no twins) and predicts every verdict, effect and number of the real one. */
#ifndef LEDGER_MODEL_H
#define LEDGER_MODEL_H

#include "ledger_support.h"

#define MODEL_LEGS 4096
#define MODEL_CHOICES 4

typedef struct model_leg {
    bool there; /* not dropped yet */
    uint64_t handle;
    int id;       /* small numbers stand for names */
    int64_t room; /* 0: none */
    uint32_t n, rank;
    bool pinned;
    uint64_t tokens; /* per choice */
    rk_leg_state state;
    bool submitted, handed_off;
    uint64_t wait_due, handoff_due, transfer_due; /* 0: not set */
    bool claimed[MODEL_CHOICES], running[MODEL_CHOICES], aborted[MODEL_CHOICES];
    bool charged; /* an Abort has been counted against this ended life */
} model_leg;

typedef struct model_effect {
    rk_effect_kind kind;
    uint64_t handle;
    uint32_t choice;
    rk_cause cause;
} model_effect;

typedef struct model {
    rk_ledger_options o;
    model_leg legs[MODEL_LEGS]; /* in the order of arrival */
    size_t count;
    model_effect fx[256];
    size_t fx_count;
    bool draining;
} model;

static inline bool model_gated(const model *m) {
    return m->o.enabled && m->o.window > 0 &&
           (m->o.role == RK_ROLE_DECODE || (m->o.role == RK_ROLE_NULL && m->o.gate_aggregated));
}

static inline void model_emit(model *m, rk_effect_kind kind, const model_leg *leg, uint32_t choice,
                              rk_cause cause) {
    m->fx[m->fx_count++] = (model_effect){kind, leg->handle, choice, cause};
}

static inline uint32_t model_slots(const model *m, uint32_t rank) {
    uint32_t slots = 0;
    for (size_t i = 0; i < m->count; i++)
        for (uint32_t c = 0; c < m->legs[i].n && m->legs[i].there && m->legs[i].rank == rank; c++)
            slots += m->legs[i].claimed[c];
    return slots;
}

static inline uint64_t model_tokens(const model *m, uint32_t rank) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < m->count; i++)
        for (uint32_t c = 0; c < m->legs[i].n && m->legs[i].there && m->legs[i].rank == rank; c++)
            tokens += m->legs[i].claimed[c] ? m->legs[i].tokens : 0;
    return tokens;
}

static inline uint32_t model_waiting(const model *m, uint32_t rank, bool slots) {
    uint32_t waiting = 0;
    for (size_t i = 0; i < m->count; i++)
        if (m->legs[i].there && m->legs[i].rank == rank && m->legs[i].state == RK_LEG_WAITING)
            waiting += slots ? m->legs[i].n : 1;
    return waiting;
}

static inline uint32_t model_running(const model *m, uint32_t rank) {
    uint32_t running = 0;
    for (size_t i = 0; i < m->count; i++)
        for (uint32_t c = 0; c < m->legs[i].n && m->legs[i].there && m->legs[i].rank == rank; c++)
            running += m->legs[i].running[c];
    return running;
}

static inline bool model_fits(const model *m, const model_leg *leg) {
    return model_slots(m, leg->rank) + leg->n <= m->o.window &&
           (m->o.kv_tokens == 0 || model_tokens(m, leg->rank) + leg->tokens * leg->n <= m->o.kv_tokens);
}

static inline void model_admit(model *m, model_leg *leg) {
    leg->state = RK_LEG_ADMITTED;
    leg->wait_due = 0;
    for (uint32_t c = 0; c < leg->n && model_gated(m); c++)
        leg->claimed[c] = true;
    model_emit(m, RK_FX_ADMIT, leg, RK_LEDGER_ALL, RK_CAUSE_NONE);
}

/* First come, first served, rank by rank; the head blocks. */
static inline void model_admit_all(model *m) {
    for (uint32_t rank = 0; rank < m->o.ranks; rank++) {
        for (size_t i = 0; i < m->count; i++) {
            model_leg *leg = &m->legs[i];
            if (!leg->there || leg->rank != rank || leg->state != RK_LEG_WAITING)
                continue;
            if (!model_fits(m, leg))
                break;
            model_admit(m, leg);
        }
    }
}

/* Ended legs that the engine has let go of are no more. */
static inline void model_sweep(model *m) {
    for (size_t i = 0; i < m->count; i++) {
        model_leg *leg = &m->legs[i];
        bool held = false;
        for (uint32_t c = 0; c < leg->n; c++)
            held |= leg->running[c] || leg->claimed[c];
        if (leg->there && leg->state == RK_LEG_ENDED && !held)
            leg->there = false;
    }
    model_admit_all(m);
}

static inline void model_abort_engine(model *m, model_leg *leg) {
    bool any = false;
    bool whole = true;
    for (uint32_t c = 0; c < leg->n; c++) {
        bool due = leg->running[c] && !leg->aborted[c];
        any |= due;
        whole &= due;
    }
    for (uint32_t c = 0; c < leg->n; c++) {
        if (!leg->running[c] || leg->aborted[c])
            continue;
        leg->aborted[c] = true;
        if (!whole)
            model_emit(m, RK_FX_ABORT_ENGINE, leg, c, RK_CAUSE_NONE);
    }
    if (any && whole)
        model_emit(m, RK_FX_ABORT_ENGINE, leg, RK_LEDGER_ALL, RK_CAUSE_NONE);
}

static inline bool model_paired(const model *m, const model_leg *leg) {
    return leg->room != 0 && m->o.role != RK_ROLE_NULL;
}

static inline void model_end(model *m, model_leg *leg, uint64_t now, rk_cause cause, bool wire, bool told) {
    /* An ADMIT cannot be pending here: the driver carries effects out after every event. */
    leg->state = RK_LEG_ENDED;
    leg->wait_due = 0;
    if (wire)
        model_emit(m, RK_FX_END, leg, RK_LEDGER_ALL, cause);
    if (!leg->submitted) {
        for (uint32_t c = 0; c < leg->n; c++)
            leg->claimed[c] = false;
    } else if (told) {
        bool later = m->o.enabled && m->o.role == RK_ROLE_DECODE && model_paired(m, leg) && !leg->handed_off;
        if (later)
            leg->handoff_due = now + m->o.handoff_ms;
        else
            model_abort_engine(m, leg);
    }
}

static inline model_leg *model_newest(model *m, int id) {
    model_leg *found = NULL;
    for (size_t i = 0; i < m->count; i++)
        if (m->legs[i].there && m->legs[i].id == id)
            found = &m->legs[i];
    return found;
}

static inline uint32_t model_choose_rank(const model *m) {
    uint32_t best = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < m->o.ranks; r++) {
        uint64_t load = model_gated(m) ? model_slots(m, r) + model_waiting(m, r, true) : model_running(m, r);
        if (load < least) {
            least = load;
            best = r;
        }
    }
    return best;
}

/* The cause of the refusal; NONE: accepted, and `leg` is in. */
static inline rk_cause model_arrive(model *m, uint64_t now, model_leg leg) {
    model_leg *old = model_newest(m, leg.id);
    if (m->draining)
        return RK_CAUSE_DRAIN;
    if (old && old->state != RK_LEG_ENDED &&
        !(m->o.enabled && !old->submitted && leg.room != 0 && old->room != leg.room))
        return RK_CAUSE_DUPLICATE_ID;
    for (size_t i = 0; i < m->count && m->o.enabled && model_paired(m, &leg); i++)
        if (m->legs[i].there && m->legs[i].room == leg.room)
            return RK_CAUSE_DUPLICATE_ROOM;
    if (model_gated(m)) {
        if (leg.n > m->o.window || (m->o.kv_tokens > 0 && leg.tokens * leg.n > m->o.kv_tokens))
            return RK_CAUSE_NEVER_FITS;
        bool at_once = model_waiting(m, leg.rank, false) == 0 && model_fits(m, &leg);
        if (!at_once && model_waiting(m, leg.rank, false) >= m->o.waiting_places)
            return RK_CAUSE_FULL;
    }
    leg.there = true;
    model_leg *in = &m->legs[m->count++];
    *in = leg;
    if (old && old->state != RK_LEG_ENDED)
        model_end(m, old, now, RK_CAUSE_SUPERSEDED, true, false);
    model_sweep(m);
    if (m->o.role == RK_ROLE_PREFILL && m->o.enabled)
        model_emit(m, RK_FX_OPEN, in, RK_LEDGER_ALL, RK_CAUSE_NONE);
    if (!model_gated(m) || (model_waiting(m, in->rank, false) == 0 && model_fits(m, in))) {
        model_admit(m, in);
    } else {
        in->state = RK_LEG_WAITING;
        in->wait_due = now + m->o.wait_ms;
    }
    return RK_CAUSE_NONE;
}

static inline void model_tick(model *m, uint64_t now) {
    for (size_t i = 0; i < m->count; i++) {
        model_leg *leg = &m->legs[i];
        if (!leg->there || !leg->wait_due || leg->wait_due > now)
            continue;
        model_end(m, leg, now, RK_CAUSE_WAIT_TIMEOUT, true, false);
        model_sweep(m); /* the next in line may go, however late it is */
    }
    for (size_t i = 0; i < m->count; i++) {
        model_leg *leg = &m->legs[i];
        if (!leg->there || !leg->handoff_due || leg->handoff_due > now)
            continue;
        leg->handoff_due = 0;
        model_abort_engine(m, leg);
    }
    for (size_t i = 0; i < m->count; i++) {
        model_leg *leg = &m->legs[i];
        if (!leg->there || !leg->transfer_due || leg->transfer_due > now)
            continue;
        leg->transfer_due = 0;
        for (uint32_t c = 0; c < leg->n && leg->state == RK_LEG_ENDED; c++)
            leg->claimed[c] = leg->running[c] = false;
        model_sweep(m);
    }
    model_sweep(m);
}

#endif
