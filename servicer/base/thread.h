/* Threads of the core's own. Signals belong to the host process: none is taken on them. Any thread. */
#ifndef RK_BASE_THREAD_H
#define RK_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* A joinable thread that has all signals blocked. `name`: at most 15 bytes, for who lists threads. 0, or
 * -errno. */
int rk_thread_start(pthread_t *thread, const char *name, void *(*run)(void *arg), void *arg);

/* Around a call into a library that starts threads: they inherit what is blocked here. */
void rk_signals_block(sigset_t *before);
void rk_signals_restore(const sigset_t *before);

#endif
