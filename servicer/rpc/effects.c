/* Carries out what the ledger decided, with the ledger unlocked; and the table from handles to calls.
 *
 * Effects name legs by handle, never by pointer: a leg may have ended while its effect was on the way, and
 * then there is simply no call to be found. Any thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "rpc/generate.h"
#include "rpc/links.h"

rk_generate *rk_calls_find(rk_servicer *servicer, uint64_t handle) {
    (void)pthread_mutex_lock(&servicer->calls_lock);
    rk_generate *generate = rk_map_get(servicer->calls, handle);
    if (generate)
        rk_call_ref(rk_generate_call(generate));
    (void)pthread_mutex_unlock(&servicer->calls_lock);
    return generate;
}

int rk_calls_add(rk_servicer *servicer, uint64_t handle, rk_generate *generate) {
    rk_call_ref(rk_generate_call(generate));
    (void)pthread_mutex_lock(&servicer->calls_lock);
    int result = rk_map_put(servicer->calls, handle, generate);
    (void)pthread_mutex_unlock(&servicer->calls_lock);
    if (result < 0)
        rk_call_unref(rk_generate_call(generate));
    return result;
}

void rk_calls_remove(rk_servicer *servicer, uint64_t handle) {
    (void)pthread_mutex_lock(&servicer->calls_lock);
    rk_generate *generate = rk_map_remove(servicer->calls, handle);
    (void)pthread_mutex_unlock(&servicer->calls_lock);
    if (generate)
        rk_call_unref(rk_generate_call(generate));
}

static void run_on_call(rk_servicer *servicer, const rk_effect *effect, rk_poller *self) {
    rk_generate *generate = rk_calls_find(servicer, effect->handle);
    if (!generate)
        return;
    if (effect->kind == RK_FX_END_CHOICE)
        rk_generate_end_choice(generate, effect->choice, self);
    else
        rk_generate_post_effect(generate, effect, self);
    rk_call_unref(rk_generate_call(generate));
}

static void run_one(rk_servicer *servicer, const rk_effect *effect, rk_poller *self) {
    switch (effect->kind) {
    case RK_FX_OPEN:
    case RK_FX_ADMIT:
    case RK_FX_END:
    case RK_FX_END_CHOICE:
        run_on_call(servicer, effect, self);
        return;
    case RK_FX_ABORT_ENGINE:
        servicer->ops->abort(servicer->engine, effect->handle,
                             effect->choice == RK_LEDGER_ALL ? RK_ALL_CHOICES : effect->choice);
        return;
    case RK_FX_RELEASE_ROOM:
        if (servicer->ops->release_room)
            (void)servicer->ops->release_room(servicer->engine, effect->handle, effect->room.host,
                                              effect->room.port, effect->room.room,
                                              rk_cause_name(effect->cause));
        return;
    case RK_FX_TELL_OPENED:
    case RK_FX_TELL_ADMITTED:
    case RK_FX_TELL_SUBMITTED:
    case RK_FX_TELL_HANDED_OFF:
    case RK_FX_TELL_ENDED:
    case RK_FX_TELL_QUIESCED:
        return; /* they are kept apart: see rk_peers_tell */
    }
}

void rk_effects_run(rk_servicer *servicer, rk_effects *fx, rk_poller *self) {
    for (;;) {
        for (size_t i = 0; i < fx->count; i++)
            run_one(servicer, &fx->items[i], self);
        fx->count = 0;
        if (!fx->more)
            break;
        fx->more = false;
        rk_ledger_pump(servicer->ledger, rk_now_ms(), fx);
    }
    bool tells = fx->tells;
    fx->tells = false;
    if (tells && servicer->links)
        rk_peers_tell(servicer->links->peers, rk_now_ms());
}
