/* The engine as the servicer sees it: a queue that an eventfd announces. No Python in this half.
 *
 * Pollers and the clock call the ops; they queue a command and, when the queue was empty, write the
 * eventfd. The engine's loop takes everything that has come by then. Nobody waits for the GIL. */
#ifndef RK_BRIDGE_ENGINE_H
#define RK_BRIDGE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/queue.h"
#include "roomkeeper/engine.h"

typedef enum rk_command_kind {
    RK_COMMAND_SUBMIT,
    RK_COMMAND_ABORT,
    RK_COMMAND_QUERY,
    RK_COMMAND_RELEASE_ROOM,
    RK_COMMAND_ENCODE,
} rk_command_kind;

/* One thing asked of the engine. Owned by the queue, then by who took it. */
typedef struct rk_command {
    rk_qnode node; /* first: a node is its command */
    rk_command_kind kind;
    uint64_t handle;     /* of the leg; a query's id, also ENCODE's */
    uint32_t choice;     /* ABORT: which, or RK_ALL_CHOICES */
    int32_t rank;        /* SUBMIT: the DP rank, -1: the engine's choice */
    rk_request *request; /* SUBMIT, ENCODE: one reference */
    rk_query query;      /* QUERY */
    rk_value *argument;  /* QUERY: a copy, or NULL */
    int32_t port;        /* RELEASE_ROOM: of the bootstrap server */
    int64_t room;        /* RELEASE_ROOM, ENCODE */
    const char *reason;  /* RELEASE_ROOM: in `text`, behind the host's NUL */
    char text[];         /* SUBMIT: the engine's id; RELEASE_ROOM: host and reason; NUL-terminated */
} rk_command;

typedef struct rk_bridge {
    rk_queue queue;
    int wake_fd; /* eventfd, readable while commands wait */
} rk_bridge;

int rk_bridge_init(rk_bridge *bridge); /* 0 or -errno */
/* Drops what still waits. The servicer must have stopped. */
void rk_bridge_destroy(rk_bridge *bridge);
/* The commands so far, oldest first; free each with rk_command_free. One thread at a time. */
rk_command *rk_bridge_take(rk_bridge *bridge);
/* After a take that could not deal with everything: makes the eventfd readable again. */
void rk_bridge_wake(rk_bridge *bridge);
rk_command *rk_command_next(const rk_command *command);
void rk_command_free(rk_command *command);

/* With a release agent rooms are ended by RELEASE_ROOM too. The tables are constant. */
const rk_engine_ops *rk_bridge_ops(bool release_agent);

#endif
