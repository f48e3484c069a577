/* An intrusive, doubly linked ring. A head and an unlinked node point to themselves.
 * Nothing here allocates; the owner of the structs owns the links. Not synchronised. */
#ifndef RK_BASE_LIST_H
#define RK_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rk_list {
    struct rk_list *next;
    struct rk_list *prev;
} rk_list;

#define RK_CONTAINER(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void rk_list_init(rk_list *node) {
    node->next = node;
    node->prev = node;
}

static inline bool rk_list_empty(const rk_list *head) {
    /* clang's analyzer loses track of a ring's neighbours and takes the head for a freed node. */
    return head->next == head; /* NOLINT(clang-analyzer-unix.Malloc) */
}

static inline bool rk_list_linked(const rk_list *node) {
    return node->next != node;
}

static inline void rk_list_push_back(rk_list *head, rk_list *node) {
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node; /* NOLINT(clang-analyzer-core.NullDereference): as above */
    head->prev = node;
}

/* Safe on a node that is not linked. */
static inline void rk_list_remove(rk_list *node) {
    node->prev->next = node->next; /* NOLINT(clang-analyzer-unix.Malloc): as above */
    node->next->prev = node->prev;
    rk_list_init(node);
}

/* The first node, unlinked; NULL when there is none. */
static inline rk_list *rk_list_pop_front(rk_list *head) {
    rk_list *first = head->next;
    if (first == head) /* NOLINT(clang-analyzer-unix.Malloc): as above */
        return NULL;
    rk_list_remove(first);
    return first;
}

#endif
