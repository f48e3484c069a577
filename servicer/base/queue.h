/* A queue from any thread to one: lock-free, intrusive, first in first out per producer.
 *
 * Producers push onto an atomic stack; the one consumer takes the whole stack at once and turns it
 * round. A push says whether the queue was empty, which is when the consumer needs waking: pushes
 * that follow coalesce behind that one wake-up. */
#ifndef RK_BASE_QUEUE_H
#define RK_BASE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct rk_qnode {
    struct rk_qnode *next;
} rk_qnode;

typedef struct rk_queue {
    _Atomic(rk_qnode *) top;
} rk_queue;

static inline void rk_queue_init(rk_queue *queue) {
    atomic_init(&queue->top, NULL);
}

/* Any thread. True: the queue was empty, so wake the consumer. */
static inline bool rk_queue_push(rk_queue *queue, rk_qnode *node) {
    rk_qnode *top = atomic_load_explicit(&queue->top, memory_order_relaxed);
    do {
        node->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&queue->top, &top, node, memory_order_release,
                                                    memory_order_relaxed));
    return top == NULL;
}

/* Consumer only. All nodes pushed so far, oldest first, linked by `next`; NULL when there are none. */
static inline rk_qnode *rk_queue_take(rk_queue *queue) {
    rk_qnode *node = atomic_exchange_explicit(&queue->top, NULL, memory_order_acquire);
    rk_qnode *ordered = NULL;
    while (node) {
        rk_qnode *next = node->next;
        node->next = ordered;
        ordered = node;
        node = next;
    }
    return ordered;
}

#endif
