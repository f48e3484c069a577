/* What the engine says, on the engine's threads.
 *
 * One push is one engine step. Its outputs are copied once, into one block per poller, and each poller is
 * woken once; encoding and writing happen there. The ledger hears of first and last outputs right here, so
 * that a slot is free for the next room before the last words of the old one are written.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rpc/generate.h"

bool rk_gate_enter(rk_servicer *servicer) {
    if (!servicer || servicer->pid != getpid())
        return false;
    (void)pthread_rwlock_rdlock(&servicer->gate);
    if (!servicer->closed)
        return true;
    (void)pthread_rwlock_unlock(&servicer->gate);
    return false;
}

void rk_gate_leave(rk_servicer *servicer) {
    (void)pthread_rwlock_unlock(&servicer->gate);
}

/* ---- a step on its way to one poller ---- */

typedef struct rk_step_item {
    rk_generate *generate; /* one reference */
    rk_output output;      /* points into the step's own bytes */
} rk_step_item;

typedef struct rk_step {
    rk_post post;
    size_t count;
    size_t capacity;
    size_t bytes_used; /* of `bytes` */
    uint8_t *bytes;
    rk_step_item *items;
} rk_step;

static void step_free(rk_step *step) {
    for (size_t i = 0; i < step->count; i++)
        rk_call_unref(rk_generate_call(step->items[i].generate));
    free(step);
}

static void step_arrived(rk_post *post, rk_poller *poller) {
    rk_step *step = (rk_step *)post;
    (void)poller;
    for (size_t i = 0; i < step->count; i++)
        rk_generate_output(step->items[i].generate, &step->items[i].output);
    step_free(step);
}

#define ALIGN 8u
static size_t aligned(size_t bytes) {
    return (bytes + (ALIGN - 1)) & ~(size_t)(ALIGN - 1);
}

static size_t output_bytes(const rk_output *o) {
    size_t bytes = aligned(o->token_count * sizeof(uint32_t));
    if (o->logprob_count > 0) {
        bytes += 2 * aligned(o->logprob_count * sizeof(float));
        if (o->top_logprobs) {
            bytes += aligned(o->logprob_count * sizeof(rk_top_logprobs));
            for (size_t i = 0; i < o->logprob_count; i++)
                bytes += 2 * aligned(o->top_logprobs[i].count * sizeof(float));
        }
    }
    if (o->weight_version)
        bytes += aligned(strlen(o->weight_version) + 1);
    return bytes + aligned(o->matched_bytes + 1) + aligned(o->message_bytes + 1);
}

static const void *keep(rk_step *step, const void *bytes, size_t size) {
    if (!bytes)
        return NULL;
    uint8_t *at = step->bytes + step->bytes_used;
    memcpy(at, bytes, size);
    step->bytes_used += aligned(size);
    return at;
}

static void copy_top(rk_step *step, rk_output *to, const rk_output *from) {
    rk_top_logprobs *top = (rk_top_logprobs *)(void *)(step->bytes + step->bytes_used);
    step->bytes_used += aligned(from->logprob_count * sizeof *top);
    for (size_t i = 0; i < from->logprob_count; i++) {
        size_t count = from->top_logprobs[i].count;
        top[i].count = count;
        top[i].values = count ? keep(step, from->top_logprobs[i].values, count * sizeof(float)) : NULL;
        top[i].token_ids =
            count ? keep(step, from->top_logprobs[i].token_ids, count * sizeof(uint32_t)) : NULL;
    }
    to->top_logprobs = top;
}

static void add_item(rk_step *step, rk_generate *generate, const rk_output *from) {
    rk_step_item *item = &step->items[step->count++];
    item->generate = generate;
    item->output = *from;
    rk_output *to = &item->output;
    to->token_ids =
        from->token_count ? keep(step, from->token_ids, from->token_count * sizeof(uint32_t)) : NULL;
    if (from->logprob_count > 0) {
        to->logprobs = keep(step, from->logprobs, from->logprob_count * sizeof(float));
        to->logprob_ids = keep(step, from->logprob_ids, from->logprob_count * sizeof(uint32_t));
        if (from->top_logprobs)
            copy_top(step, to, from);
    }
    if (from->weight_version)
        to->weight_version = keep(step, from->weight_version, strlen(from->weight_version) + 1);
    if (from->matched_bytes > 0)
        to->matched_string = keep(step, from->matched_string, from->matched_bytes);
    if (from->message_bytes > 0)
        to->message = keep(step, from->message, from->message_bytes);
}

/* ---- push ---- */

/* An output as it was looked up. */
typedef struct rk_routed {
    rk_generate *generate; /* NULL: no live call; else one reference */
    bool first;            /* the ledger has not heard of an output of this leg */
} rk_routed;

static void route(rk_servicer *servicer, const rk_output *outputs, size_t count, rk_routed *routed) {
    (void)pthread_mutex_lock(&servicer->calls_lock);
    for (size_t i = 0; i < count; i++) {
        rk_generate *generate = rk_map_get(servicer->calls, outputs[i].handle);
        routed[i].generate = generate;
        routed[i].first = !generate || rk_generate_first_output(generate);
        if (generate)
            rk_call_ref(rk_generate_call(generate));
    }
    (void)pthread_mutex_unlock(&servicer->calls_lock);
}

/* First and last outputs move the ledger. Legs without a call may still hold slots: they are told too. */
static void tell_ledger(rk_servicer *servicer, const rk_output *output, bool first, uint64_t now) {
    rk_effects fx;
    rk_effects_clear(&fx);
    bool last = output->finish != RK_FINISH_NONE;
    if (first && output->finish != RK_FINISH_ABORT)
        rk_ledger_first_output(servicer->ledger, now, output->handle, &fx);
    if (last)
        rk_ledger_finished(servicer->ledger, now, output->handle, output->choice,
                           output->finish == RK_FINISH_ABORT ? RK_CAUSE_ENGINE_ERROR : RK_CAUSE_COMPLETED,
                           &fx);
    rk_effects_run(servicer, &fx, NULL);
}

static rk_step *step_new(const rk_poller *poller, const rk_output *outputs, size_t count,
                         const rk_routed *routed) {
    size_t items = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (!routed[i].generate || rk_generate_call(routed[i].generate)->poller != poller)
            continue;
        items++;
        bytes += output_bytes(&outputs[i]);
    }
    if (items == 0)
        return NULL;
    size_t head = aligned(sizeof(rk_step)) + aligned(items * sizeof(rk_step_item));
    rk_step *step = malloc(head + bytes);
    if (!step)
        return NULL;
    memset(step, 0, sizeof *step);
    step->post.run = step_arrived;
    step->capacity = items;
    step->items = (rk_step_item *)(void *)((uint8_t *)step + aligned(sizeof(rk_step)));
    step->bytes = (uint8_t *)step + head;
    return step;
}

/* The step could not be copied: this call cannot go on without its part of it. */
static void give_up(rk_servicer *servicer, const rk_output *output, rk_generate *generate) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_cancel(servicer->ledger, rk_now_ms(), output->handle, RK_CAUSE_NO_MEMORY, &fx);
    rk_effects_run(servicer, &fx, NULL);
    rk_effect end = {.kind = RK_FX_END, .handle = output->handle, .cause = RK_CAUSE_NO_MEMORY};
    end.code = RK_RESOURCE_EXHAUSTED;
    end.retry = true;
    rk_generate_post_effect(generate, &end, NULL);
    rk_log_event(&servicer->log, RK_LOG_ERROR, "out of memory: an engine output was lost",
                 RK_FIELD_INT("handle", output->handle));
}

static void send_to(rk_servicer *servicer, rk_poller *poller, const rk_output *outputs, size_t count,
                    rk_routed *routed) {
    rk_step *step = step_new(poller, outputs, count, routed);
    rk_call *wake = NULL;
    for (size_t i = 0; i < count; i++) {
        rk_generate *generate = routed[i].generate;
        if (!generate || rk_generate_call(generate)->poller != poller)
            continue;
        if (step) {
            add_item(step, generate, &outputs[i]); /* takes over the reference */
            wake = rk_generate_call(generate);
        } else {
            give_up(servicer, &outputs[i], generate);
            rk_call_unref(rk_generate_call(generate));
        }
        routed[i].generate = NULL;
    }
    if (step)
        rk_call_post(wake, &step->post, NULL);
}

#define ROUTED_ON_STACK 256

static void push_some(rk_servicer *servicer, const rk_output *outputs, size_t count) {
    rk_routed routed[ROUTED_ON_STACK];
    uint64_t now = rk_now_ms();
    route(servicer, outputs, count, routed);
    for (size_t i = 0; i < count; i++)
        if (routed[i].first || outputs[i].finish != RK_FINISH_NONE)
            tell_ledger(servicer, &outputs[i], routed[i].first, now);
    for (unsigned p = 0; p < servicer->poller_count; p++)
        send_to(servicer, &servicer->pollers[p], outputs, count, routed);
}

void rk_sink_push(rk_servicer *servicer, const rk_output *outputs, size_t count) {
    if (!rk_gate_enter(servicer))
        return;
    uint64_t now = rk_now_ms();
    atomic_store_explicit(&servicer->beat_ms, now, memory_order_relaxed);
    atomic_store_explicit(&servicer->heard_ms, now, memory_order_relaxed);
    for (size_t done = 0; done < count; done += ROUTED_ON_STACK)
        push_some(servicer, outputs + done, count - done < ROUTED_ON_STACK ? count - done : ROUTED_ON_STACK);
    rk_gate_leave(servicer);
}

void rk_sink_aborted(rk_servicer *servicer, uint64_t handle, uint32_t choice) {
    if (!rk_gate_enter(servicer))
        return;
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_aborted(servicer->ledger, rk_now_ms(), handle,
                      choice == RK_ALL_CHOICES ? RK_LEDGER_ALL : choice, &fx);
    rk_effects_run(servicer, &fx, NULL);
    rk_gate_leave(servicer);
}

void rk_sink_released(rk_servicer *servicer, uint64_t handle) {
    if (!rk_gate_enter(servicer))
        return;
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_slot_released(servicer->ledger, rk_now_ms(), handle, &fx);
    rk_effects_run(servicer, &fx, NULL);
    rk_gate_leave(servicer);
}

void rk_sink_beat(rk_servicer *servicer) {
    if (!rk_gate_enter(servicer))
        return;
    atomic_store_explicit(&servicer->beat_ms, rk_now_ms(), memory_order_relaxed);
    rk_gate_leave(servicer);
}

void rk_sink_loads(rk_servicer *servicer, const rk_engine_load *loads, size_t count) {
    if (!rk_gate_enter(servicer))
        return;
    rk_engine_load *copy = count ? malloc(count * sizeof *copy) : NULL;
    if (copy)
        memcpy(copy, loads, count * sizeof *copy);
    uint64_t now = rk_now_ms();
    (void)pthread_mutex_lock(&servicer->engine_lock);
    rk_engine_load *old = servicer->loads;
    servicer->loads = copy;
    servicer->load_count = copy ? count : 0;
    servicer->loads_ms = copy ? now : 0;
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    free(old);
    if (count > 0)
        atomic_store_explicit(&servicer->heard_ms, now, memory_order_relaxed);
    rk_gate_leave(servicer);
}

void rk_sink_state(rk_servicer *servicer, rk_engine_state state, const char *why) {
    if (!rk_gate_enter(servicer))
        return;
    uint64_t now = rk_now_ms();
    (void)pthread_mutex_lock(&servicer->engine_lock);
    if (servicer->engine_state != RK_ENGINE_DEAD) { /* final */
        servicer->engine_state = state;
        (void)snprintf(servicer->engine_why, sizeof servicer->engine_why, "%s", why ? why : "");
    }
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    atomic_store_explicit(&servicer->beat_ms, now, memory_order_relaxed);
    rk_health_update(servicer, now);
    rk_gate_leave(servicer);
}
