/* See engine.h. Any thread for the ops; take, wake and destroy belong to the engine's side. */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int rk_bridge_init(rk_bridge *bridge) {
    rk_queue_init(&bridge->queue);
    bridge->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return bridge->wake_fd < 0 ? -errno : 0;
}

void rk_bridge_destroy(rk_bridge *bridge) {
    for (rk_command *command = rk_bridge_take(bridge); command;) {
        rk_command *next = rk_command_next(command);
        rk_command_free(command);
        command = next;
    }
    (void)close(bridge->wake_fd);
    bridge->wake_fd = -1;
}

void rk_bridge_wake(rk_bridge *bridge) {
    const uint64_t one = 1;
    /* Fails only when the counter is at its limit, and then the descriptor is readable anyway. */
    (void)!write(bridge->wake_fd, &one, sizeof one);
}

rk_command *rk_bridge_take(rk_bridge *bridge) {
    uint64_t count;
    /* Quiet first, then take: a push in between writes again, so at worst a take finds nothing. */
    (void)!read(bridge->wake_fd, &count, sizeof count);
    return (rk_command *)rk_queue_take(&bridge->queue);
}

rk_command *rk_command_next(const rk_command *command) {
    return (rk_command *)command->node.next;
}

void rk_command_free(rk_command *command) {
    rk_request_unref(command->request);
    rk_value_free(command->argument);
    free(command);
}

static rk_command *command_new(rk_command_kind kind, uint64_t handle, size_t text_bytes) {
    rk_command *command = calloc(1, sizeof *command + text_bytes);
    if (command) {
        command->kind = kind;
        command->handle = handle;
    }
    return command;
}

static void post(rk_bridge *bridge, rk_command *command) {
    if (rk_queue_push(&bridge->queue, &command->node))
        rk_bridge_wake(bridge);
}

static int submit(void *engine, const rk_submission *submission) {
    size_t bytes = strlen(submission->engine_id) + 1;
    rk_command *command = command_new(RK_COMMAND_SUBMIT, submission->handle, bytes);
    if (!command)
        return -ENOMEM;
    memcpy(command->text, submission->engine_id, bytes);
    command->rank = submission->rank;
    command->request = rk_request_ref(submission->request);
    post(engine, command);
    return 0;
}

static void abort_choice(void *engine, uint64_t handle, uint32_t choice) {
    rk_command *command = command_new(RK_COMMAND_ABORT, handle, 0);
    if (!command)
        return; /* the engine goes on and its outputs are dropped: no worse than a slow abort */
    command->choice = choice;
    post(engine, command);
}

static int query(void *engine, rk_query what, uint64_t query_id, const rk_value *argument) {
    rk_command *command = command_new(RK_COMMAND_QUERY, query_id, 0);
    if (!command)
        return -ENOMEM;
    command->query = what;
    command->argument = argument ? rk_value_copy(argument) : NULL;
    if (argument && !command->argument) {
        rk_command_free(command);
        return -ENOMEM;
    }
    post(engine, command);
    return 0;
}

static int release_room(void *engine, uint64_t handle, const char *bootstrap_host, int32_t bootstrap_port,
                        int64_t room, const char *reason) {
    size_t host_bytes = strlen(bootstrap_host) + 1;
    size_t reason_bytes = strlen(reason) + 1;
    rk_command *command = command_new(RK_COMMAND_RELEASE_ROOM, handle, host_bytes + reason_bytes);
    if (!command)
        return -ENOMEM;
    memcpy(command->text, bootstrap_host, host_bytes);
    memcpy(command->text + host_bytes, reason, reason_bytes);
    command->reason = command->text + host_bytes;
    command->port = bootstrap_port;
    command->room = room;
    post(engine, command);
    return 0;
}

static int encode(void *engine, const rk_encode *item) {
    rk_command *command = command_new(RK_COMMAND_ENCODE, item->query_id, 0);
    if (!command)
        return -ENOMEM;
    command->room = item->room;
    command->request = rk_request_ref(item->request);
    post(engine, command);
    return 0;
}

static const rk_engine_ops plain_ops = {submit, abort_choice, query, NULL, encode};
static const rk_engine_ops agent_ops = {submit, abort_choice, query, release_room, encode};

const rk_engine_ops *rk_bridge_ops(bool release_agent) {
    return release_agent ? &agent_ops : &plain_ops;
}
