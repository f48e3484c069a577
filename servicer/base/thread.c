/* See thread.h. */
#include "base/thread.h"

void rk_signals_block(sigset_t *before) {
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, before);
}

void rk_signals_restore(const sigset_t *before) {
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

int rk_thread_start(pthread_t *thread, const char *name, void *(*run)(void *arg), void *arg) {
    sigset_t before;
    rk_signals_block(&before);
    int result = -pthread_create(thread, NULL, run, arg);
    rk_signals_restore(&before);
    if (result == 0)
        (void)pthread_setname_np(*thread, name);
    return result;
}
