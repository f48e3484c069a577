/* Arrival: everything that can speak against a leg, then its place: admitted, in line, or held.
 *
 * The leg is allocated and entered in the maps before anything else changes, so that running out of memory
 * leaves the ledger as it was. */
#include <errno.h>
#include <stdlib.h>

#include "rooms/ledger.h"

static uint64_t tokens_each(const rk_ledger *ledger, const rk_leg_spec *spec) {
    const rk_ledger_options *o = &ledger->options;
    if (!rk_gated(ledger) || o->kv_tokens == 0)
        return 0;
    uint64_t page = o->page_tokens > 1 ? o->page_tokens : 1;
    if (spec->prompt_tokens > UINT64_MAX - o->reserve_tokens - page)
        return UINT64_MAX; /* fits nowhere */
    uint64_t tokens = spec->prompt_tokens + o->reserve_tokens;
    return (tokens + page - 1) / page * page;
}

static rk_leg *leg_new(const rk_ledger *ledger, const rk_leg_spec *spec, uint64_t now) {
    uint32_t n = spec->n ? spec->n : 1;
    rk_leg *leg = calloc(1, sizeof *leg + n + spec->request_id_bytes + 1);
    if (!leg)
        return NULL;
    leg->handle = spec->handle;
    leg->n = n;
    leg->open = n;
    leg->arrived = now;
    leg->tokens_each = tokens_each(ledger, spec);
    leg->request_id = (char *)leg->choices + n;
    leg->request_id_bytes = spec->request_id_bytes;
    if (spec->request_id_bytes)
        memcpy(leg->request_id, spec->request_id, spec->request_id_bytes);
    leg->has_room = spec->room != NULL;
    if (spec->room)
        leg->room = *spec->room;
    /* Room 0 is the warm-up's, with the engine's fake host: it is nobody's, so it can be shared. */
    leg->paired = spec->room && spec->room->room != 0 && ledger->options.role != RK_ROLE_NULL;
    uint32_t peer = spec->peer < ledger->options.peers ? spec->peer : 0;
    leg->linked =
        spec->linked && rk_waits_for_kv(ledger, leg) && (peer == 0 || ledger->peers[peer] != RK_PEER_ABSENT);
    leg->peer = peer;
    leg->bound = leg->linked && ledger->peers[peer] == RK_PEER_UP;
    rk_list_init(&leg->all);
    rk_list_init(&leg->line);
    rk_list_init(&leg->timer);
    rk_list_init(&leg->transfer);
    rk_list_init(&leg->releasing);
    rk_list_init(&leg->pending);
    rk_list_init(&leg->telling);
    return leg;
}

static uint32_t choose_rank(const rk_ledger *ledger, const rk_leg_spec *spec) {
    if (spec->rank >= 0)
        return (uint32_t)spec->rank;
    uint32_t best = 0;
    for (uint32_t i = 1; i < ledger->options.ranks; i++)
        if (ledger->ranks[i].load < ledger->ranks[best].load)
            best = i;
    return best;
}

static void say_numbers(const rk_ledger *ledger, uint32_t rank, rk_verdict *verdict) {
    const rk_rank *r = &ledger->ranks[rank];
    verdict->rank = (int32_t)rank;
    verdict->window = ledger->options.window;
    verdict->admitted = r->held_slots + r->releasing_slots;
    verdict->waiting = r->waiting;
    verdict->waiting_places = ledger->options.waiting_places;
}

/* ---- what can speak against it ---- */

static bool never_fits(const rk_ledger *ledger, const rk_leg *leg, rk_verdict *verdict) {
    const rk_ledger_options *o = &ledger->options;
    if (!rk_gated(ledger))
        return false;
    if (o->kv_tokens > 0 && leg->tokens_each > o->kv_tokens / leg->n) {
        verdict->need_tokens =
            leg->tokens_each > UINT64_MAX / leg->n ? UINT64_MAX : leg->tokens_each * leg->n;
        verdict->kv_tokens = o->kv_tokens;
        return true;
    }
    return leg->n > o->window;
}

static bool same_room(const rk_leg *a, const rk_leg *b) {
    return a->has_room && b->has_room && a->room.room == b->room.room && a->room.port == b->room.port &&
           strcmp(a->room.host, b->room.host) == 0;
}

/* An older leg of the same id that may be ended in favour of a new one: a gateway's retry. */
static bool may_supersede(const rk_ledger *ledger, const rk_leg *old, const rk_leg *leg) {
    return ledger->options.enabled && !rk_submitted(old) && leg->has_room && !same_room(old, leg);
}

static bool room_taken(const rk_ledger *ledger, const rk_leg *leg) {
    uint8_t key[RK_ROOM_KEY_MAX];
    return ledger->options.enabled && leg->paired &&
           rk_bmap_get(ledger->by_room, key, rk_room_key(&leg->room, key)) != NULL;
}

static rk_note *tombstone_of(const rk_ledger *ledger, const rk_leg *leg) {
    return ledger->options.enabled && leg->paired ? rk_notes_find(&ledger->tombstones, &leg->room) : NULL;
}

/* Must it be held for its decode, or does nobody announce here? */
static bool holds(const rk_ledger *ledger, const rk_leg *leg, uint64_t now) {
    const rk_ledger_options *o = &ledger->options;
    if (!o->enabled || !o->linked || o->role != RK_ROLE_PREFILL || !leg->paired)
        return false;
    bool nobody = now > ledger->link_seen && now - ledger->link_seen >= RK_LINK_GONE_MS;
    return !(ledger->unannounced >= RK_UNANNOUNCED_MAX && nobody);
}

/* What does not depend on who else is here. NONE: nothing speaks against it. */
static rk_cause objection(const rk_ledger *ledger, const rk_leg_spec *spec, const rk_leg *leg,
                          const rk_leg *old, rk_verdict *verdict) {
    if (ledger->counts.draining)
        return RK_CAUSE_DRAIN;
    if (spec->rank >= 0 && (uint32_t)spec->rank >= ledger->options.ranks)
        return RK_CAUSE_BAD_RANK;
    if (old && old->state != RK_LEG_ENDED && !may_supersede(ledger, old, leg))
        return RK_CAUSE_DUPLICATE_ID;
    if (room_taken(ledger, leg))
        return RK_CAUSE_DUPLICATE_ROOM;
    if (tombstone_of(ledger, leg))
        return RK_CAUSE_TWIN_ENDED;
    return never_fits(ledger, leg, verdict) ? RK_CAUSE_NEVER_FITS : RK_CAUSE_NONE;
}

/* No room for it, here and now. */
static rk_cause no_place(const rk_ledger *ledger, const rk_leg *leg, uint64_t now) {
    const rk_ledger_options *o = &ledger->options;
    if (holds(ledger, leg, now)) {
        const rk_note *note = rk_notes_find(&ledger->announced, &leg->room);
        bool waits = !(note && note->admitted);
        return waits && ledger->held >= o->held_places ? RK_CAUSE_HELD_FULL : RK_CAUSE_NONE;
    }
    if (!rk_gated(ledger))
        return RK_CAUSE_NONE;
    const rk_rank *rank = &ledger->ranks[leg->rank];
    bool at_once = rk_list_empty(&rank->line) && rk_fits(ledger, rank, leg);
    return !at_once && rank->waiting >= o->waiting_places ? RK_CAUSE_FULL : RK_CAUSE_NONE;
}

/* The leg is in no map; it lives on only to tell its twin. */
static int refuse(rk_ledger *ledger, rk_leg *leg, uint64_t now, rk_cause cause, rk_verdict *verdict) {
    verdict->accepted = false;
    verdict->cause = cause;
    verdict->code = rk_cause_code(cause);
    verdict->retry = rk_cause_retry(cause);
    ledger->counts.refused[cause]++;
    leg->cause = cause;
    leg->gone = true;
    if (cause == RK_CAUSE_TWIN_ENDED) {
        rk_note *stone = tombstone_of(ledger, leg);
        verdict->twin_cause = stone->cause;
        verdict->code = rk_twin_code(stone->cause, &verdict->retry);
        ledger->counts.stranded++;
        rk_notes_remove(&ledger->tombstones, stone); /* both legs have been here now */
    } else if (cause != RK_CAUSE_DUPLICATE_ROOM) {   /* that room is another leg's, and lives */
        rk_tell_refusal(ledger, leg, now);
    }
    rk_free_if_gone(leg);
    return 0;
}

/* ---- its place ---- */

/* Into all maps, or into none: -ENOMEM. The older leg of the id leaves its place there. */
static int enlist(rk_ledger *ledger, rk_leg *leg, rk_leg *old) {
    uint8_t key[RK_ROOM_KEY_MAX];
    size_t key_bytes = rk_room_key(&leg->room, key);
    int result = rk_map_put(ledger->by_handle, leg->handle, leg);
    if (result < 0)
        return result;
    if (leg->paired) {
        int put = rk_bmap_put(ledger->by_room, key, key_bytes, leg);
        if (put == -EEXIST) /* rooms off: two legs in one room are the client's business */
            leg->paired = false;
        else if (put < 0)
            goto no_room;
    }
    result = old ? rk_bmap_replace(ledger->by_id, leg->request_id, leg->request_id_bytes, leg)
                 : rk_bmap_put(ledger->by_id, leg->request_id, leg->request_id_bytes, leg);
    if (result < 0)
        goto no_id;
    leg->in_ids = true;
    leg->older = old;
    if (old) {
        old->in_ids = false;
        old->newer = leg;
    }
    rk_list_push_back(&ledger->legs, &leg->all);
    ledger->counts.legs[RK_LEG_ARRIVED]++;
    return 0;
no_id:
    if (leg->paired)
        (void)rk_bmap_remove(ledger->by_room, key, key_bytes);
no_room:
    (void)rk_map_remove(ledger->by_handle, leg->handle);
    return -ENOMEM;
}

/* Has the twin been announced before its leg came? Then the note is spent. */
static bool take_announced(rk_ledger *ledger, rk_leg *leg, bool *admitted) {
    rk_note *note = leg->paired ? rk_notes_find(&ledger->announced, &leg->room) : NULL;
    if (!note)
        return false;
    *admitted = note->admitted;
    uint32_t peer = note->peer;
    rk_notes_remove(&ledger->announced, note);
    leg->linked = true;
    leg->twin_seen = true;
    leg->bound = true;
    leg->peer = peer;
    return true;
}

static void place_prefill(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    bool admitted = false;
    bool held = holds(ledger, leg, now);
    bool announced = take_announced(ledger, leg, &admitted);
    if (ledger->options.enabled)
        rk_todo(ledger, leg, RK_TODO_OPEN);
    rk_tell(ledger, leg, RK_TODO_TELL_OPENED);
    if (!held || admitted) {
        rk_admit(ledger, leg, now);
        return;
    }
    rk_set_state(ledger, leg, RK_LEG_HELD);
    rk_timer_set(ledger, leg, announced ? RK_TIMER_HELD : RK_TIMER_ANNOUNCE, now);
}

static void place_gated(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    const rk_rank *rank = &ledger->ranks[leg->rank];
    bool admitted = false;
    (void)take_announced(ledger, leg, &admitted);
    rk_tell(ledger, leg, RK_TODO_TELL_OPENED);
    if (!rk_gated(ledger) || (rk_list_empty(&rank->line) && rk_fits(ledger, rank, leg)))
        rk_admit(ledger, leg, now);
    else
        rk_wait_in_line(ledger, leg, now);
}

static int arrive(rk_ledger *ledger, uint64_t now, const rk_leg_spec *spec, rk_leg *leg,
                  rk_verdict *verdict) {
    rk_leg *old = rk_bmap_get(ledger->by_id, leg->request_id, leg->request_id_bytes);
    rk_cause cause = objection(ledger, spec, leg, old, verdict);
    say_numbers(ledger, cause == RK_CAUSE_BAD_RANK ? 0 : choose_rank(ledger, spec), verdict);
    if (cause != RK_CAUSE_NONE) {
        ledger->counts.arrived++;
        return refuse(ledger, leg, now, cause, verdict);
    }
    int result = enlist(ledger, leg, old);
    if (result < 0) {
        free(leg);
        return result;
    }
    ledger->counts.arrived++;
    if (old && old->state != RK_LEG_ENDED) /* its slot or place may be what the new one needs */
        rk_end(ledger, old, now, RK_CAUSE_SUPERSEDED, RK_STOP_NONE, true);
    leg->rank = choose_rank(ledger, spec);
    leg->pinned = spec->rank >= 0;
    say_numbers(ledger, leg->rank, verdict);
    cause = no_place(ledger, leg, now);
    if (cause != RK_CAUSE_NONE) {
        rk_unlist(ledger, leg);
        return refuse(ledger, leg, now, cause, verdict);
    }
    rk_join_rank(ledger, leg);
    if (ledger->options.role == RK_ROLE_PREFILL)
        place_prefill(ledger, leg, now);
    else
        place_gated(ledger, leg, now);
    verdict->accepted = true;
    verdict->state = leg->state;
    say_numbers(ledger, leg->rank, verdict);
    return 0;
}

int rk_ledger_arrive(rk_ledger *ledger, uint64_t now, const rk_leg_spec *spec, rk_verdict *verdict,
                     rk_effects *fx) {
    memset(verdict, 0, sizeof *verdict);
    rk_ledger_enter(ledger);
    if (!ledger->link_known) { /* the first 30 s without a link count from the first leg */
        ledger->link_seen = now;
        ledger->link_known = true;
    }
    rk_leg *leg = leg_new(ledger, spec, now);
    int result = leg ? arrive(ledger, now, spec, leg, verdict) : -ENOMEM;
    rk_ledger_leave(ledger, fx);
    return result;
}

void rk_ledger_turned_away(rk_ledger *ledger, uint64_t now, const rk_room *room, bool linked, uint32_t peer,
                           rk_cause cause, rk_effects *fx) {
    rk_leg_spec spec = {.request_id = "", .room = room, .n = 1, .linked = linked, .peer = peer};
    rk_ledger_enter(ledger);
    rk_leg *leg = leg_new(ledger, &spec, now);
    bool told = leg && !room_taken(ledger, leg); /* a live leg's room is that leg's */
    if (leg) {
        leg->cause = cause;
        leg->gone = true;
    }
    if (told)
        rk_tell_refusal(ledger, leg, now);
    if (leg)
        rk_free_if_gone(leg);
    rk_ledger_leave(ledger, fx);
}
