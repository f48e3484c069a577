/* The clock thread: deadlines of rooms, bounds of questions, and the engine's beat.
 *
 * It sleeps until the ledger's next deadline, at most 50 ms while there is one (deadlines that are set
 * meanwhile need no wake-up then) and at most 200 ms otherwise, to notice a stall. It holds no lock while
 * effects are carried out.
 */
#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "rpc/links.h"

static uint64_t pause_ms(rk_servicer *servicer, uint64_t now) {
    uint64_t due = rk_ledger_next_deadline(servicer->ledger);
    double stall = servicer->config.stall_seconds * 1000 / 4;
    uint64_t longest = stall < 1 ? 1 : stall > 200 ? 200 : (uint64_t)stall;
    if (servicer->kv && longest > 100)
        longest = 100;
    if (servicer->links && longest > 50)
        longest = 50;
    if (due == UINT64_MAX)
        return longest;
    if (longest > 50)
        longest = 50;
    if (due <= now)
        return 1;
    return due - now < longest ? due - now : longest;
}

static void sleep_ms(rk_servicer *servicer, uint64_t ms) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&servicer->clock_wake, &servicer->clock_lock, &until);
}

static void tick(rk_servicer *servicer) {
    uint64_t now = rk_now_ms();
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_tick(servicer->ledger, now, &fx);
    rk_effects_run(servicer, &fx, NULL);
    rk_query_expire(servicer, now);
    rk_health_update(servicer, now);
    rk_links_tick(servicer, now);
    rk_kv_tick(servicer);
}

static void *clock_main(void *arg) {
    rk_servicer *servicer = arg;
    (void)pthread_mutex_lock(&servicer->clock_lock);
    while (!servicer->clock_stop) {
        (void)pthread_mutex_unlock(&servicer->clock_lock);
        tick(servicer);
        uint64_t pause = pause_ms(servicer, rk_now_ms());
        (void)pthread_mutex_lock(&servicer->clock_lock);
        if (!servicer->clock_stop)
            sleep_ms(servicer, pause);
    }
    (void)pthread_mutex_unlock(&servicer->clock_lock);
    return NULL;
}

int rk_clock_start(rk_servicer *servicer) {
    int result = rk_thread_start(&servicer->clock_thread, "rk-clock", clock_main, servicer);
    servicer->clock_running = result == 0;
    return result;
}

void rk_clock_stop(rk_servicer *servicer) {
    if (!servicer->clock_running)
        return;
    (void)pthread_mutex_lock(&servicer->clock_lock);
    servicer->clock_stop = true;
    (void)pthread_cond_signal(&servicer->clock_wake);
    (void)pthread_mutex_unlock(&servicer->clock_lock);
    (void)pthread_join(servicer->clock_thread, NULL);
    servicer->clock_running = false;
}
