/* A ledger so simple that it is obviously right: an array of legs in the order of arrival, linear scans, no
 * rings, no hashes, no counters that could go stale. It predicts every verdict, effect and number of the real
 * one, twins and link included. Written from the rules, not from the ledger's code. */
#ifndef LEDGER_MODEL_H
#define LEDGER_MODEL_H

#include "ledger_support.h"

#define MODEL_LEGS 512
#define MODEL_CHOICES 4
#define MODEL_NOTES 16
#define MODEL_EFFECTS 1024

typedef struct model_leg {
    bool there; /* the client or the engine still has it */
    uint64_t handle;
    int id;       /* small numbers stand for names */
    int64_t room; /* 0: none */
    uint32_t n, rank;
    bool pinned;
    uint64_t tokens; /* per choice */
    rk_leg_state state;
    rk_cause cause;
    bool submitted, handed_off, linked, twin_seen, twin_over, release_asked;
    uint64_t wait, announce, held, twin, handoff, release, transfer; /* deadlines; 0: not set */
    bool claimed[MODEL_CHOICES], running[MODEL_CHOICES], aborted[MODEL_CHOICES];
    bool ended[MODEL_CHOICES]; /* aborted by its own name */
    bool charged;              /* an Abort has been counted against this ended life */
} model_leg;

typedef struct model_note {
    int64_t room;
    uint64_t due;
    bool admitted, own;
    rk_cause cause;
} model_note;

typedef struct model_notes { /* oldest first */
    model_note at[MODEL_NOTES + 1];
    size_t count, max;
    uint64_t keep_ms;
} model_notes;

typedef struct model_effect {
    int kind;
    uint64_t handle;
    uint32_t choice;
    int cause, twin_cause, code, retry;
    int64_t room;
    int ever_submitted;
} model_effect;

typedef struct model {
    rk_ledger_options o;
    model_leg legs[MODEL_LEGS]; /* in the order of arrival */
    size_t count;
    model_notes tombstones, announced;
    model_effect fx[MODEL_EFFECTS];
    size_t fx_count;
    uint64_t link_seen;
    uint32_t unannounced;
    bool engine_gone;
} model;

#define EACH_LEG(m, leg) for (model_leg *leg = (m)->legs; leg < (m)->legs + (m)->count; leg++)
#define EACH_CHOICE(leg, c) for (uint32_t c = 0; c < (leg)->n; c++)

static inline bool model_gated(const model *m) {
    return m->o.enabled && m->o.window > 0 &&
           (m->o.role == RK_ROLE_DECODE || (m->o.role == RK_ROLE_NULL && m->o.gate_aggregated));
}

static inline bool model_paired(const model *m, const model_leg *leg) {
    return leg->room != 0 && m->o.role != RK_ROLE_NULL;
}

static inline bool model_waits_for_kv(const model *m, const model_leg *leg) {
    return m->o.enabled && m->o.role == RK_ROLE_DECODE && model_paired(m, leg);
}

/* ---- effects ---- */

static inline model_effect *model_emit(model *m, int kind, const model_leg *leg) {
    model_effect *effect = &m->fx[m->fx_count++];
    memset(effect, 0, sizeof *effect);
    effect->kind = kind;
    effect->handle = leg->handle;
    effect->choice = RK_LEDGER_ALL;
    effect->room = kind >= RK_FX_RELEASE_ROOM ? leg->room : 0;
    return effect;
}

static inline void model_tell(model *m, int kind, const model_leg *leg) {
    if (!leg->linked)
        return;
    model_effect *effect = model_emit(m, kind, leg);
    if (kind == RK_FX_TELL_ENDED) {
        effect->cause = (int)leg->cause;
        effect->ever_submitted = leg->submitted;
    }
}

static inline void model_tell_room(model *m, int kind, int64_t room, rk_cause cause) {
    model_leg nobody = {.room = room, .cause = cause, .linked = true};
    model_tell(m, kind, &nobody);
}

/* ---- notes ---- */

static inline model_note *model_note_of(model_notes *notes, int64_t room) {
    for (size_t i = 0; i < notes->count; i++)
        if (notes->at[i].room == room)
            return &notes->at[i];
    return NULL;
}

static inline void model_note_remove(model_notes *notes, model_note *note) {
    size_t at = (size_t)(note - notes->at);
    memmove(note, note + 1, (notes->count - at - 1) * sizeof *note);
    notes->count--;
}

static inline model_note *model_note_add(model_notes *notes, int64_t room, uint64_t now) {
    model_note *note = model_note_of(notes, room);
    if (note || notes->max == 0)
        return note;
    notes->at[notes->count++] = (model_note){.room = room, .due = now + notes->keep_ms};
    if (notes->count > notes->max)
        model_note_remove(notes, &notes->at[0]);
    return &notes->at[notes->count - 1];
}

static inline void model_forget_stone(model *m, int64_t room) {
    model_note *stone = model_note_of(&m->tombstones, room);
    if (stone)
        model_note_remove(&m->tombstones, stone);
}

/* ---- numbers ---- */

static inline uint32_t model_open(const model_leg *leg) {
    uint32_t open = 0;
    EACH_CHOICE(leg, c)
    open += leg->there && (!leg->submitted || leg->running[c]);
    return open;
}

static inline uint64_t model_load(model *m, uint32_t rank) {
    uint64_t load = 0;
    EACH_LEG(m, leg)
    load += leg->rank == rank ? model_open(leg) : 0;
    return load;
}

static inline uint32_t model_slots(model *m, uint32_t rank) {
    uint32_t slots = 0;
    EACH_LEG(m, leg)
    EACH_CHOICE(leg, c)
    slots += leg->there && leg->rank == rank && leg->claimed[c];
    return slots;
}

static inline uint64_t model_tokens(model *m, uint32_t rank) {
    uint64_t tokens = 0;
    EACH_LEG(m, leg)
    EACH_CHOICE(leg, c)
    tokens += leg->there && leg->rank == rank && leg->claimed[c] ? leg->tokens : 0;
    return tokens;
}

static inline uint32_t model_waiting(model *m, uint32_t rank, bool slots) {
    uint32_t waiting = 0;
    EACH_LEG(m, leg)
    if (leg->there && leg->rank == rank && leg->state == RK_LEG_WAITING)
        waiting += slots ? leg->n : 1;
    return waiting;
}

static inline uint32_t model_running(model *m, uint32_t rank) {
    uint32_t running = 0;
    EACH_LEG(m, leg)
    EACH_CHOICE(leg, c)
    running += leg->there && leg->rank == rank && leg->running[c];
    return running;
}

static inline uint32_t model_held(model *m) {
    uint32_t held = 0;
    EACH_LEG(m, leg)
    held += leg->there && leg->state == RK_LEG_HELD;
    return held;
}

static inline bool model_fits(model *m, const model_leg *leg) {
    return model_slots(m, leg->rank) + leg->n <= m->o.window &&
           (m->o.kv_tokens == 0 || model_tokens(m, leg->rank) + leg->tokens * leg->n <= m->o.kv_tokens);
}

/* ---- the life of a leg ---- */

static inline void model_clear_deadlines(model_leg *leg) {
    leg->wait = leg->announce = leg->held = leg->twin = leg->handoff = leg->release = 0;
}

static inline void model_admit(model *m, model_leg *leg, uint64_t now) {
    leg->state = RK_LEG_ADMITTED;
    model_clear_deadlines(leg);
    EACH_CHOICE(leg, c)
    leg->claimed[c] = model_gated(m);
    (void)model_emit(m, RK_FX_ADMIT, leg);
    if (m->o.role != RK_ROLE_DECODE)
        return;
    model_tell(m, RK_FX_TELL_ADMITTED, leg);
    if (leg->linked && !leg->twin_seen)
        leg->twin = now + m->o.twin_ms;
}

/* Ended legs that the engine has let go of are no more; then, first come, first served, rank by rank: the
 * head of the line blocks. */
static inline void model_sweep(model *m, uint64_t now) {
    EACH_LEG(m, leg)
    if (leg->there && leg->state == RK_LEG_ENDED && (!leg->submitted || model_open(leg) == 0))
        leg->there = false;
    for (uint32_t rank = 0; rank < m->o.ranks; rank++) {
        EACH_LEG(m, leg) {
            if (!leg->there || leg->rank != rank || leg->state != RK_LEG_WAITING)
                continue;
            if (!model_fits(m, leg))
                break;
            model_admit(m, leg, now);
        }
    }
}

static inline void model_abort_engine(model *m, model_leg *leg) {
    uint32_t due = 0;
    EACH_CHOICE(leg, c)
    due += leg->running[c] && !leg->aborted[c];
    if (due == leg->n)
        (void)model_emit(m, RK_FX_ABORT_ENGINE, leg);
    EACH_CHOICE(leg, c) {
        if (!leg->running[c] || leg->aborted[c])
            continue;
        leg->aborted[c] = true;
        if (due != leg->n)
            model_emit(m, RK_FX_ABORT_ENGINE, leg)->choice = c;
    }
}

/* Choices ended by their own name get an abort of their own. */
static inline void model_abort_named(model *m, model_leg *leg) {
    EACH_CHOICE(leg, c) {
        if (!leg->ended[c] || !leg->running[c] || leg->aborted[c])
            continue;
        leg->aborted[c] = true;
        model_emit(m, RK_FX_ABORT_ENGINE, leg)->choice = c;
    }
}

typedef enum model_stop { MODEL_TELL_ENGINE, MODEL_ENGINE_KNOWS } model_stop;

static inline void model_end(model *m, model_leg *leg, uint64_t now, rk_cause cause, model_stop stop,
                             rk_cause twin_cause, bool wire) {
    leg->state = RK_LEG_ENDED;
    leg->cause = cause;
    leg->charged |= cause == RK_CAUSE_ABORT_RPC;
    model_clear_deadlines(leg);
    if (wire) {
        model_effect *end = model_emit(m, RK_FX_END, leg);
        bool retry = rk_cause_retry(cause);
        end->cause = (int)cause;
        end->twin_cause = (int)twin_cause;
        end->code = (int)(twin_cause ? rk_twin_code(twin_cause, &retry) : rk_cause_code(cause));
        end->retry = retry;
    }
    if (!leg->twin_over || cause == RK_CAUSE_TWIN_ENDED)
        model_tell(m, RK_FX_TELL_ENDED, leg);
    if (m->o.role == RK_ROLE_PREFILL && m->o.enabled && model_paired(m, leg) && cause != RK_CAUSE_COMPLETED) {
        (void)model_emit(m, RK_FX_RELEASE_ROOM, leg);
        model_note *stone =
            m->o.linked && !leg->twin_seen ? model_note_add(&m->tombstones, leg->room, now) : NULL;
        if (stone) {
            stone->own = true;
            stone->cause = cause;
        }
    }
    EACH_CHOICE(leg, c)
    leg->claimed[c] &= leg->submitted;
    if (!leg->submitted)
        return;
    bool later = stop == MODEL_TELL_ENGINE && model_waits_for_kv(m, leg) && !leg->handed_off;
    if (stop == MODEL_TELL_ENGINE && !later)
        model_abort_engine(m, leg);
    if (later && !(leg->linked && leg->twin_seen))
        leg->handoff = now + m->o.handoff_ms;
    else
        leg->release = now + m->o.transfer_ms;
}

/* The engine has let go of a choice. `sure`: it, or the agent, has said so. */
static inline void model_free(model *m, model_leg *leg, uint32_t choice, bool sure) {
    bool open = model_open(leg) > 0;
    leg->running[choice] = leg->claimed[choice] = false;
    if (sure && open && model_open(leg) == 0 && m->o.role == RK_ROLE_PREFILL && leg->state == RK_LEG_ENDED &&
        leg->cause != RK_CAUSE_COMPLETED)
        model_tell(m, RK_FX_TELL_QUIESCED, leg);
}

static inline void model_free_all(model *m, model_leg *leg, bool sure) {
    EACH_CHOICE(leg, c)
    model_free(m, leg, c, sure);
}

static inline void model_hand_off(model *m, model_leg *leg, uint64_t now) {
    leg->handed_off = true;
    leg->transfer = 0;
    if (leg->state == RK_LEG_SUBMITTED) {
        leg->state = RK_LEG_HANDED_OFF;
        model_clear_deadlines(leg);
        model_abort_named(m, leg);
        return;
    }
    if (leg->state != RK_LEG_ENDED || !model_waits_for_kv(m, leg))
        return;
    uint32_t told = 0;
    EACH_CHOICE(leg, c)
    told += !leg->running[c] || leg->aborted[c];
    if (told == leg->n) {
        model_free_all(m, leg, true);
    } else {
        model_abort_engine(m, leg);
        model_clear_deadlines(leg);
        leg->release = now + m->o.transfer_ms;
    }
}

#endif
