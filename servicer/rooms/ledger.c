/* The ledger's public face: each operation takes the lock, moves the state machine, and copies out what is to
 * be done. See rooms.h for what each means and README.md for the idea. */
#include "rooms/ledger.h"

#include <errno.h>
#include <stdlib.h>

static void enter(rk_ledger *ledger) {
    (void)pthread_mutex_lock(&ledger->lock);
}

static void leave(rk_ledger *ledger, rk_effects *fx) {
    rk_flush(ledger, fx);
    rk_ledger_check_locked(ledger);
    (void)pthread_mutex_unlock(&ledger->lock);
}

static rk_leg *find(const rk_ledger *ledger, uint64_t handle) {
    return rk_map_get(ledger->by_handle, handle);
}

/* ---- making ---- */

static int init(rk_ledger *ledger, const rk_ledger_options *options) {
    ledger->options = *options;
    if (ledger->options.ranks == 0)
        ledger->options.ranks = 1;
    rk_list_init(&ledger->legs);
    rk_list_init(&ledger->transfers);
    rk_list_init(&ledger->pending);
    for (int timer = 0; timer < RK_TIMERS; timer++)
        rk_list_init(&ledger->timers[timer]);
    int result = rk_notes_init(&ledger->tombstones, options->tombstones, options->tombstone_ms);
    if (rk_notes_init(&ledger->announced, options->announced, options->twin_ms) < 0)
        result = -ENOMEM;
    ledger->by_handle = rk_map_new();
    ledger->by_id = rk_bmap_new();
    ledger->by_room = rk_bmap_new();
    ledger->ranks = calloc(ledger->options.ranks, sizeof *ledger->ranks);
    for (uint32_t i = 0; ledger->ranks && i < ledger->options.ranks; i++) {
        rk_list_init(&ledger->ranks[i].line);
        rk_list_init(&ledger->ranks[i].releasing);
    }
    return ledger->by_handle && ledger->by_id && ledger->by_room && ledger->ranks ? result : -ENOMEM;
}

rk_ledger *rk_ledger_new(const rk_ledger_options *options) {
    rk_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger)
        return NULL;
    (void)pthread_mutex_init(&ledger->lock, NULL);
    if (init(ledger, options) == 0)
        return ledger;
    rk_ledger_free(ledger);
    return NULL;
}

void rk_ledger_free(rk_ledger *ledger) {
    if (!ledger)
        return;
    while (!rk_list_empty(&ledger->pending)) {
        rk_leg *leg = RK_CONTAINER(ledger->pending.next, rk_leg, pending);
        rk_list_remove(&leg->pending);
        leg->todo = 0;
        if (leg->gone)
            free(leg);
    }
    while (!rk_list_empty(&ledger->legs)) {
        rk_leg *leg = RK_CONTAINER(ledger->legs.next, rk_leg, all);
        rk_list_remove(&leg->all);
        free(leg);
    }
    if (ledger->tombstones.list.next)
        rk_notes_free(&ledger->tombstones);
    if (ledger->announced.list.next)
        rk_notes_free(&ledger->announced);
    rk_map_free(ledger->by_handle);
    rk_bmap_free(ledger->by_id);
    rk_bmap_free(ledger->by_room);
    free(ledger->ranks);
    (void)pthread_mutex_destroy(&ledger->lock);
    free(ledger);
}

uint64_t rk_ledger_new_handle(rk_ledger *ledger) {
    enter(ledger);
    uint64_t handle = ++ledger->next_handle;
    (void)pthread_mutex_unlock(&ledger->lock);
    return handle;
}

/* ---- arrival ---- */

static uint64_t tokens_each(const rk_ledger *ledger, const rk_leg_spec *spec) {
    const rk_ledger_options *o = &ledger->options;
    if (!rk_gated(ledger) || o->kv_tokens == 0)
        return 0;
    uint64_t tokens = spec->prompt_tokens + o->reserve_tokens;
    uint64_t page = o->page_tokens > 1 ? o->page_tokens : 1;
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
    memcpy(leg->request_id, spec->request_id, spec->request_id_bytes);
    leg->has_room = spec->room != NULL;
    if (spec->room)
        leg->room = *spec->room;
    /* Room 0 is the warm-up's, with the engine's fake host: it is nobody's, so it can be shared. */
    leg->paired = spec->room && spec->room->room != 0 && ledger->options.role != RK_ROLE_NULL;
    leg->linked = spec->linked && leg->paired && ledger->options.role == RK_ROLE_DECODE;
    rk_list_init(&leg->all);
    rk_list_init(&leg->line);
    rk_list_init(&leg->timer);
    rk_list_init(&leg->transfer);
    rk_list_init(&leg->releasing);
    rk_list_init(&leg->pending);
    return leg;
}

static uint64_t load_of(const rk_ledger *ledger, const rk_rank *rank) {
    if (rk_gated(ledger))
        return (uint64_t)rank->held_slots + rank->releasing_slots + rank->waiting_slots;
    return rank->running;
}

static uint32_t choose_rank(const rk_ledger *ledger, const rk_leg_spec *spec) {
    if (spec->rank >= 0)
        return (uint32_t)spec->rank;
    uint32_t best = 0;
    for (uint32_t i = 1; i < ledger->options.ranks; i++)
        if (load_of(ledger, &ledger->ranks[i]) < load_of(ledger, &ledger->ranks[best]))
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

static bool refuse(rk_ledger *ledger, rk_verdict *verdict, rk_cause cause) {
    verdict->accepted = false;
    verdict->cause = cause;
    verdict->code = rk_cause_code(cause);
    verdict->retry = rk_cause_retry(cause);
    ledger->counts.refused[cause]++;
    return true;
}

static bool never_fits(const rk_ledger *ledger, const rk_leg *leg, rk_verdict *verdict) {
    const rk_ledger_options *o = &ledger->options;
    if (!rk_gated(ledger))
        return false;
    uint64_t tokens = leg->tokens_each * leg->n;
    if (o->kv_tokens > 0 && tokens > o->kv_tokens) {
        verdict->need_tokens = tokens;
        verdict->kv_tokens = o->kv_tokens;
        return true;
    }
    return leg->n > o->window;
}

/* An older leg of the same id that may be ended in favour of a new one: a gateway's retry. */
static bool may_supersede(const rk_ledger *ledger, const rk_leg *old, const rk_leg *leg) {
    if (!ledger->options.enabled || rk_submitted(old) || !leg->has_room)
        return false;
    return !old->has_room || old->room.room != leg->room.room || old->room.port != leg->room.port ||
           strcmp(old->room.host, leg->room.host) != 0;
}

static bool room_taken(rk_ledger *ledger, const rk_leg *leg) {
    uint8_t key[RK_ROOM_KEY_MAX];
    return ledger->options.enabled && leg->paired &&
           rk_bmap_get(ledger->by_room, key, rk_room_key(&leg->room, key)) != NULL;
}

static bool refuse_dead_room(rk_ledger *ledger, const rk_leg *leg, rk_verdict *verdict) {
    rk_note *stone = leg->paired ? rk_notes_find(&ledger->tombstones, &leg->room) : NULL;
    if (!stone || !ledger->options.enabled)
        return false;
    (void)refuse(ledger, verdict, RK_CAUSE_TWIN_ENDED);
    verdict->twin_cause = stone->cause;
    verdict->code = rk_twin_code(stone->cause, &verdict->retry);
    ledger->counts.stranded++;
    rk_notes_remove(&ledger->tombstones, stone); /* both legs have been here now */
    return true;
}

/* Must it be held for its decode, or does nobody announce here? */
static bool holds(const rk_ledger *ledger, const rk_leg *leg, uint64_t now) {
    const rk_ledger_options *o = &ledger->options;
    if (!o->enabled || !o->linked || o->role != RK_ROLE_PREFILL || !leg->paired)
        return false;
    return !(ledger->unannounced >= RK_UNANNOUNCED_MAX && now - ledger->link_seen >= RK_LINK_GONE_MS);
}

static bool refuse_full(rk_ledger *ledger, const rk_leg *leg, uint64_t now, rk_verdict *verdict) {
    const rk_ledger_options *o = &ledger->options;
    if (holds(ledger, leg, now)) {
        const rk_note *note = rk_notes_find(&ledger->announced, &leg->room);
        if (!(note && note->admitted) && ledger->held >= o->held_places)
            return refuse(ledger, verdict, RK_CAUSE_HELD_FULL);
    }
    if (!rk_gated(ledger))
        return false;
    const rk_rank *rank = &ledger->ranks[leg->rank];
    bool at_once = rk_list_empty(&rank->line) && rk_fits(ledger, rank, leg);
    if (!at_once && rank->waiting >= o->waiting_places)
        return refuse(ledger, verdict, RK_CAUSE_FULL);
    return false;
}

/* Everything that can speak against it; nothing is changed but counts and a spent tombstone. */
static bool refused(rk_ledger *ledger, const rk_leg *leg, const rk_leg *old, uint64_t now,
                    rk_verdict *verdict) {
    if (ledger->counts.draining)
        return refuse(ledger, verdict, RK_CAUSE_DRAIN);
    if (old && old->state != RK_LEG_ENDED && !may_supersede(ledger, old, leg))
        return refuse(ledger, verdict, RK_CAUSE_DUPLICATE_ID);
    if (room_taken(ledger, leg))
        return refuse(ledger, verdict, RK_CAUSE_DUPLICATE_ROOM);
    if (refuse_dead_room(ledger, leg, verdict))
        return true;
    if (never_fits(ledger, leg, verdict))
        return refuse(ledger, verdict, RK_CAUSE_NEVER_FITS);
    return refuse_full(ledger, leg, now, verdict);
}

/* Into all maps, or into none: -ENOMEM. The older leg of the id leaves its place there. */
static int enlist(rk_ledger *ledger, rk_leg *leg, rk_leg *old) {
    uint8_t key[RK_ROOM_KEY_MAX];
    size_t key_bytes = rk_room_key(&leg->room, key);
    if (rk_map_put(ledger->by_handle, leg->handle, leg) < 0)
        return -ENOMEM;
    if (leg->paired) {
        int put = rk_bmap_put(ledger->by_room, key, key_bytes, leg);
        if (put == -EEXIST) /* rooms off: two legs in one room are the client's business */
            leg->paired = false;
        else if (put < 0)
            goto no_room;
    }
    if (old) {
        (void)rk_bmap_remove(ledger->by_id, old->request_id, old->request_id_bytes);
        old->in_ids = false;
    }
    if (rk_bmap_put(ledger->by_id, leg->request_id, leg->request_id_bytes, leg) < 0)
        goto no_id;
    leg->in_ids = true;
    leg->older = old;
    if (old)
        old->newer = leg;
    rk_list_push_back(&ledger->legs, &leg->all);
    ledger->counts.legs[RK_LEG_ARRIVED]++;
    return 0;
no_id:
    if (old && rk_bmap_put(ledger->by_id, old->request_id, old->request_id_bytes, old) == 0)
        old->in_ids = true;
    if (leg->paired)
        (void)rk_bmap_remove(ledger->by_room, key, key_bytes);
no_room:
    (void)rk_map_remove(ledger->by_handle, leg->handle);
    return -ENOMEM;
}

static void place_prefill(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    if (ledger->options.enabled)
        rk_todo(ledger, leg, RK_TODO_OPEN);
    if (!holds(ledger, leg, now)) {
        rk_admit(ledger, leg, now);
        return;
    }
    rk_note *note = rk_notes_find(&ledger->announced, &leg->room);
    rk_set_state(ledger, leg, RK_LEG_HELD);
    if (!note) {
        rk_timer_set(ledger, leg, RK_TIMER_ANNOUNCE, now);
        return;
    }
    bool admitted = note->admitted;
    rk_notes_remove(&ledger->announced, note);
    leg->linked = true;
    leg->twin_seen = true;
    rk_todo(ledger, leg, RK_TODO_TELL_OPENED);
    if (admitted)
        rk_admit(ledger, leg, now);
    else
        rk_timer_set(ledger, leg, RK_TIMER_HELD, now);
}

static void place_gated(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    rk_rank *rank = &ledger->ranks[leg->rank];
    rk_note *note = leg->paired ? rk_notes_find(&ledger->announced, &leg->room) : NULL;
    if (note) {
        rk_notes_remove(&ledger->announced, note);
        leg->linked = true;
        leg->twin_seen = true;
    }
    rk_tell(ledger, leg, RK_TODO_TELL_OPENED);
    if (!rk_gated(ledger) || (rk_list_empty(&rank->line) && rk_fits(ledger, rank, leg))) {
        rk_admit(ledger, leg, now);
        return;
    }
    rk_set_state(ledger, leg, RK_LEG_WAITING);
    rk_list_push_back(&rank->line, &leg->line);
    rank->waiting++;
    rank->waiting_slots += leg->n;
    rk_timer_set(ledger, leg, RK_TIMER_WAIT, now);
}

static int arrive(rk_ledger *ledger, uint64_t now, const rk_leg_spec *spec, rk_verdict *verdict) {
    rk_leg *leg = leg_new(ledger, spec, now);
    if (!leg)
        return -ENOMEM;
    ledger->counts.arrived++;
    if (!ledger->link_known) { /* the first 30 s count from the first leg */
        ledger->link_seen = now;
        ledger->link_known = true;
    }
    if (spec->rank >= (int32_t)ledger->options.ranks) {
        say_numbers(ledger, 0, verdict);
        (void)refuse(ledger, verdict, RK_CAUSE_BAD_RANK);
        free(leg);
        return 0;
    }
    leg->rank = choose_rank(ledger, spec);
    leg->pinned = spec->rank >= 0;
    say_numbers(ledger, leg->rank, verdict);
    rk_leg *old = rk_bmap_get(ledger->by_id, leg->request_id, leg->request_id_bytes);
    if (refused(ledger, leg, old, now, verdict)) {
        free(leg);
        return 0;
    }
    if (enlist(ledger, leg, old) < 0) {
        ledger->counts.arrived--;
        free(leg);
        return -ENOMEM;
    }
    if (old && old->state != RK_LEG_ENDED)
        rk_end(ledger, old, now, RK_CAUSE_SUPERSEDED, RK_STOP_NONE, true);
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
    enter(ledger);
    int result = arrive(ledger, now, spec, verdict);
    leave(ledger, fx);
    return result;
}

/* ---- into the engine and out of it ---- */

static void order_named_aborts(rk_ledger *ledger, rk_leg *leg) {
    for (uint32_t i = 0; i < leg->n; i++) {
        if (!(leg->choices[i] & RK_CHOICE_ENDED) || (leg->choices[i] & RK_CHOICE_ABORTED))
            continue;
        leg->choices[i] |= RK_CHOICE_ABORTED | RK_CHOICE_ABORT_DUE;
        rk_todo(ledger, leg, RK_TODO_CHOICES);
    }
}

int rk_ledger_begin_submit(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    int result = leg && leg->state == RK_LEG_ADMITTED ? 0 : -ECANCELED;
    if (result == 0) {
        rk_set_state(ledger, leg, RK_LEG_SUBMITTED);
        leg->ever_submitted = true;
        for (uint32_t i = 0; i < leg->n; i++)
            leg->choices[i] |= RK_CHOICE_RUNNING;
        ledger->ranks[leg->rank].running += leg->n;
        if (leg->paired && ledger->options.enabled) {
            leg->transfer_due = now + ledger->options.transfer_ms;
            rk_list_push_back(&ledger->transfers, &leg->transfer);
        }
        if (ledger->options.role == RK_ROLE_PREFILL)
            rk_tell(ledger, leg, RK_TODO_TELL_SUBMITTED);
        order_named_aborts(ledger, leg);
    }
    leave(ledger, fx);
    return result;
}

void rk_ledger_submit_failed(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    if (leg && leg->state == RK_LEG_SUBMITTED) {
        leg->todo &= ~(unsigned)(RK_TODO_TELL_SUBMITTED | RK_TODO_CHOICES);
        if (leg->todo == 0)
            rk_list_remove(&leg->pending);
        leg->ever_submitted = false;
        for (uint32_t i = 0; i < leg->n; i++)
            leg->choices[i] &= (uint8_t) ~(RK_CHOICE_RUNNING | RK_CHOICE_ABORT_DUE);
        ledger->ranks[leg->rank].running -= leg->n;
        rk_end(ledger, leg, now, RK_CAUSE_ENGINE_DEAD, RK_STOP_NONE, true);
    }
    leave(ledger, fx);
}

static void hand_off(rk_ledger *ledger, rk_leg *leg) {
    leg->handed_off = true;
    rk_list_remove(&leg->transfer);
    if (leg->state == RK_LEG_SUBMITTED) {
        rk_timer_stop(leg);
        rk_set_state(ledger, leg, RK_LEG_HANDED_OFF);
        if (ledger->options.role == RK_ROLE_DECODE)
            rk_tell(ledger, leg, RK_TODO_TELL_HANDED_OFF);
    } else if (leg->state == RK_LEG_ENDED) {
        rk_timer_stop(leg); /* the KV is here: an abort now ends it with its next step */
        rk_abort_engine(ledger, leg);
    }
}

void rk_ledger_first_output(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    (void)now;
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    if (leg && rk_submitted(leg) && (leg->state != RK_LEG_HANDED_OFF))
        hand_off(ledger, leg);
    leave(ledger, fx);
}

/* The engine is done with a choice of a leg that the client still follows. */
static bool all_over(const rk_leg *leg, uint32_t last) {
    for (uint32_t i = 0; i < leg->n; i++)
        if (i != last && (leg->choices[i] & (RK_CHOICE_RUNNING | RK_CHOICE_ENDED)) == RK_CHOICE_RUNNING)
            return false;
    return true;
}

void rk_ledger_finished(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice, rk_cause cause,
                        rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    if (leg && choice < leg->n && (leg->choices[choice] & RK_CHOICE_RUNNING)) {
        bool ended = leg->state == RK_LEG_ENDED;
        bool quiesced = ended && leg->open == 1 && ledger->options.role == RK_ROLE_PREFILL;
        if (!ended && all_over(leg, choice))
            rk_end(ledger, leg, now, cause, RK_STOP_NONE, false);
        if (quiesced)
            rk_tell(ledger, leg, RK_TODO_TELL_QUIESCED);
        rk_free_choice(ledger, leg, choice, now);
    }
    leave(ledger, fx);
}

void rk_ledger_cancel(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_cause cause, rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    if (leg && leg->state != RK_LEG_ENDED)
        rk_end(ledger, leg, now, cause, rk_stop_of(ledger, leg), false);
    leave(ledger, fx);
}

/* Does an abort of a running choice free its slot? A decode that waits for KV is only marked by the engine.
 */
static bool abort_frees(const rk_ledger *ledger, const rk_leg *leg) {
    if (ledger->options.enabled && ledger->options.role == RK_ROLE_DECODE && leg->paired)
        return leg->handed_off;
    /* A linked prefill may still be writing: it is quiet when the agent or its last output says so. */
    return !(ledger->options.role == RK_ROLE_PREFILL && leg->linked);
}

void rk_ledger_aborted(rk_ledger *ledger, uint64_t now, uint64_t handle, uint32_t choice, rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    uint32_t n = leg && abort_frees(ledger, leg) ? leg->n : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (choice != RK_LEDGER_ALL && choice != i)
            continue;
        uint8_t wanted = RK_CHOICE_RUNNING | RK_CHOICE_ABORTED;
        if ((leg->choices[i] & wanted) != wanted)
            continue;
        bool last = leg->state == RK_LEG_ENDED && leg->open == 1; /* the leg goes with it */
        rk_free_choice(ledger, leg, i, now);
        if (last)
            break;
    }
    leave(ledger, fx);
}

void rk_ledger_slot_released(rk_ledger *ledger, uint64_t now, uint64_t handle, rk_effects *fx) {
    enter(ledger);
    rk_leg *leg = find(ledger, handle);
    if (leg && leg->state == RK_LEG_ENDED) {
        if (ledger->options.role == RK_ROLE_PREFILL)
            rk_tell(ledger, leg, RK_TODO_TELL_QUIESCED);
        rk_free_all(ledger, leg, now);
    }
    leave(ledger, fx);
}

/* ---- the Abort RPC ---- */

static uint32_t abort_leg(rk_ledger *ledger, rk_leg *leg, uint64_t now) {
    uint32_t hit = 0;
    for (uint32_t i = 0; i < leg->n; i++)
        hit += rk_submitted(leg) && !(leg->choices[i] & RK_CHOICE_RUNNING) ? 0 : 1;
    rk_end(ledger, leg, now, RK_CAUSE_ABORT_RPC, rk_stop_of(ledger, leg), true);
    return hit;
}

static uint32_t abort_choice(rk_ledger *ledger, rk_leg *leg, uint32_t choice, uint64_t now) {
    uint8_t *flags = &leg->choices[choice];
    bool submitted = rk_submitted(leg);
    if ((*flags & RK_CHOICE_ENDED) || (submitted && !(*flags & RK_CHOICE_RUNNING)))
        return 0;
    *flags |= RK_CHOICE_ENDED | RK_CHOICE_END_DUE;
    rk_todo(ledger, leg, RK_TODO_CHOICES);
    if (submitted && !(*flags & RK_CHOICE_ABORTED))
        *flags |= RK_CHOICE_ABORTED | RK_CHOICE_ABORT_DUE;
    bool over = true;
    for (uint32_t i = 0; i < leg->n; i++) {
        bool live =
            !(leg->choices[i] & RK_CHOICE_ENDED) && (!submitted || (leg->choices[i] & RK_CHOICE_RUNNING));
        over &= !live;
    }
    if (over) /* it was the last one: the stream ends with its Complete */
        rk_end(ledger, leg, now, RK_CAUSE_ABORT_RPC, RK_STOP_NONE, false);
    return 1;
}

/* "<id>-n<digits>": the parent's length and the choice; false when the name is not of that form. */
static bool split_child(const char *id, size_t bytes, size_t *parent_bytes, uint32_t *choice) {
    size_t at = bytes;
    while (at > 0 && id[at - 1] >= '0' && id[at - 1] <= '9')
        at--;
    if (at == bytes || bytes - at > 6 || at < 2 || id[at - 1] != 'n' || id[at - 2] != '-')
        return false;
    *choice = 0;
    for (size_t i = at; i < bytes; i++)
        *choice = *choice * 10 + (uint32_t)(id[i] - '0');
    *parent_bytes = at - 2;
    return true;
}

/* An Abort that comes while an older life of the id is ending was meant for that one. */
static bool charged_to_older(rk_leg *leg) {
    for (rk_leg *older = leg->older; older; older = older->older) {
        if (older->charged)
            continue;
        older->charged = true;
        return true;
    }
    return false;
}

uint32_t rk_ledger_abort(rk_ledger *ledger, uint64_t now, const char *request_id, size_t bytes,
                         rk_effects *fx) {
    enter(ledger);
    uint32_t hit = 0;
    rk_leg *leg = rk_bmap_get(ledger->by_id, request_id, bytes);
    size_t parent_bytes;
    uint32_t choice;
    if (leg && leg->state != RK_LEG_ENDED) {
        hit = charged_to_older(leg) ? 1 : abort_leg(ledger, leg, now);
    } else if (!leg && split_child(request_id, bytes, &parent_bytes, &choice)) {
        leg = rk_bmap_get(ledger->by_id, request_id, parent_bytes);
        if (leg && leg->state != RK_LEG_ENDED && leg->n > 1 && choice < leg->n)
            hit = abort_choice(ledger, leg, choice, now);
    }
    leave(ledger, fx);
    return hit;
}

/* ---- all at once ---- */

void rk_ledger_drain(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    enter(ledger);
    ledger->counts.draining = true;
    static const rk_timer waiting[] = {RK_TIMER_WAIT, RK_TIMER_ANNOUNCE, RK_TIMER_HELD};
    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++) {
        rk_list *ring = &ledger->timers[waiting[i]];
        while (!rk_list_empty(ring)) /* from the back: nobody is admitted on the way */
            rk_end(ledger, RK_CONTAINER(ring->prev, rk_leg, timer), now, RK_CAUSE_DRAIN, RK_STOP_NONE, true);
    }
    leave(ledger, fx);
}

void rk_ledger_end_all(rk_ledger *ledger, uint64_t now, rk_cause cause, rk_effects *fx) {
    enter(ledger);
    bool dead = cause == RK_CAUSE_ENGINE_DEAD;
    /* Who waits goes first, so that freed slots admit nobody; then the others, by a list of their own since
     * ending one may drop it. */
    for (uint32_t i = 0; i < ledger->options.ranks; i++)
        while (!rk_list_empty(&ledger->ranks[i].line))
            rk_end(ledger, RK_CONTAINER(ledger->ranks[i].line.prev, rk_leg, line), now, cause, RK_STOP_NONE,
                   true);
    rk_list rest;
    rk_list_init(&rest);
    rk_list *node;
    while ((node = rk_list_pop_front(&ledger->legs)) != NULL)
        rk_list_push_back(&rest, node);
    while ((node = rk_list_pop_front(&rest)) != NULL) {
        rk_leg *leg = RK_CONTAINER(node, rk_leg, all);
        rk_list_push_back(&ledger->legs, node);
        bool submitted = rk_submitted(leg);
        if (leg->state != RK_LEG_ENDED)
            rk_end(ledger, leg, now, cause, dead ? RK_STOP_NONE : RK_STOP_ABORT, true);
        else if (!dead)
            continue;
        if (dead && submitted)
            rk_free_all(ledger, leg, now);
    }
    leave(ledger, fx);
}

void rk_ledger_tick(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    enter(ledger);
    rk_tick(ledger, now);
    leave(ledger, fx);
}

void rk_ledger_pump(rk_ledger *ledger, uint64_t now, rk_effects *fx) {
    (void)now;
    enter(ledger);
    leave(ledger, fx);
}

/* ---- reading ---- */

void rk_ledger_read(rk_ledger *ledger, rk_ledger_counts *counts) {
    enter(ledger);
    *counts = ledger->counts;
    counts->held = ledger->held;
    counts->tombstones = ledger->tombstones.count;
    counts->announced = ledger->announced.count;
    (void)pthread_mutex_unlock(&ledger->lock);
}

static uint64_t age(uint64_t now, uint64_t then) {
    return now > then ? now - then : 0;
}

uint32_t rk_ledger_read_ranks(rk_ledger *ledger, uint64_t now, rk_rank_counts *ranks, uint32_t max) {
    enter(ledger);
    uint32_t count = ledger->options.ranks;
    bool gated = rk_gated(ledger);
    for (uint32_t i = 0; i < count && i < max; i++) {
        const rk_rank *rank = &ledger->ranks[i];
        ranks[i] = (rk_rank_counts){
            .window = gated ? ledger->options.window : 0,
            .held_slots = rank->held_slots,
            .releasing = rank->releasing_slots,
            .waiting = rank->waiting,
            .waiting_slots = rank->waiting_slots,
            .running = rank->running,
            .claimed_tokens = rank->claimed_tokens,
            .kv_tokens = gated ? ledger->options.kv_tokens : 0,
        };
        if (!rk_list_empty(&rank->releasing))
            ranks[i].oldest_releasing_ms =
                age(now, RK_CONTAINER(rank->releasing.next, rk_leg, releasing)->released_at);
        if (!rk_list_empty(&rank->line))
            ranks[i].oldest_waiting_ms = age(now, RK_CONTAINER(rank->line.next, rk_leg, line)->arrived);
    }
    (void)pthread_mutex_unlock(&ledger->lock);
    return count;
}
