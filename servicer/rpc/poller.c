/* Pollers: one thread and one completion queue each.
 *
 * A turn of a poller is the completions that are there, each followed by what it posted to itself; at its
 * end the calls write (burst.c). Other threads post through a lock-free inbox and wake the poller with an
 * empty batch on one of its calls, which gRPC core turns into a completion without touching the transport.
 * Wake-ups coalesce: only the push that finds the inbox empty sends one. The inbox is also looked at at the
 * end of a turn, so a wake-up may find it empty.
 */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "rpc/links.h"

void rk_poller_post_local(rk_poller *poller, rk_post *post) {
    post->node.next = NULL;
    if (poller->last)
        poller->last->next = &post->node;
    else
        poller->first = &post->node;
    poller->last = &post->node;
}

static void run_posts(rk_poller *poller, rk_qnode *node) {
    while (node) {
        rk_qnode *next = node->next; /* the post may be queued again while it runs */
        rk_post *post = (rk_post *)node;
        post->run(post, poller);
        node = next;
    }
}

static void run_local_posts(rk_poller *poller) {
    while (poller->first) {
        rk_qnode *node = poller->first;
        poller->first = NULL;
        poller->last = NULL;
        run_posts(poller, node);
    }
}

static void woken(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)tag;
    (void)ok;
    run_posts(poller, rk_queue_take(&poller->inbox));
}

void rk_call_post(rk_call *call, rk_post *post, rk_poller *self) {
    rk_poller *poller = call->poller;
    if (poller == self) {
        rk_poller_post_local(poller, post);
        return;
    }
    /* The call may be freed by the poller as soon as the post is seen: keep it for the wake-up. */
    rk_call_ref(call);
    if (rk_queue_push(&poller->inbox, &post->node)) {
        RK_HANDS_OVER(&poller->wake);
        (void)grpc_call_start_batch(call->grpc, NULL, 0, &poller->wake, NULL);
    }
    rk_call_unref(call);
}

/* Until a completion comes, or a call that is held may write. */
static gpr_timespec until(const rk_poller *poller) {
    if (!poller->held.first)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_from_micros((int64_t)poller->held_until_us, GPR_CLOCK_MONOTONIC);
}

static void *poller_main(void *arg) {
    rk_poller *poller = arg;
    bool idle = true;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(
            poller->queue, idle ? until(poller) : gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_QUEUE_TIMEOUT) {
            idle = rk_burst_idle(poller);
        } else {
            idle = false;
            rk_tag *tag = event.tag;
            RK_TAKES_OVER(tag);
            tag->run(tag, poller, event.success != 0);
            run_local_posts(poller);
            if (rk_burst_turn_over(poller)) {
                /* Its wake-up stands behind everything that has arrived: outputs do not wait for that. */
                run_posts(poller, rk_queue_take(&poller->inbox));
                run_local_posts(poller);
                rk_burst_write(poller);
            }
        }
        run_local_posts(poller); /* a batch that was refused may have ended a call */
    }
}

int rk_pollers_start(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    int result = 0;
    for (unsigned i = 0; i < servicer->poller_count && result == 0; i++) {
        rk_poller *poller = &servicer->pollers[i];
        char name[16];
        (void)snprintf(name, sizeof name, "rk-poller-%u", i % 1000);
        result = rk_thread_start(&poller->thread, name, poller_main, poller);
        poller->started = result == 0;
    }
    if (result < 0)
        (void)snprintf(error, RK_ERROR_MAX, "cannot start a poller thread: %s", strerror(-result));
    return result;
}

void rk_pollers_stop(rk_servicer *servicer) {
    for (unsigned i = 0; i < servicer->poller_count; i++)
        if (servicer->pollers[i].queue)
            grpc_completion_queue_shutdown(servicer->pollers[i].queue);
    for (unsigned i = 0; i < servicer->poller_count; i++) {
        rk_poller *poller = &servicer->pollers[i];
        if (!poller->queue)
            continue;
        if (poller->started) {
            (void)pthread_join(poller->thread, NULL);
            poller->started = false;
        } else {
            grpc_event event;
            do {
                event = grpc_completion_queue_next(poller->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
                if (event.type == GRPC_OP_COMPLETE)
                    ((rk_tag *)event.tag)->run(event.tag, poller, false);
            } while (event.type != GRPC_QUEUE_SHUTDOWN);
        }
        rk_burst_drop(poller);
        grpc_completion_queue_destroy(poller->queue);
        poller->queue = NULL;
        rk_buf_free(&poller->scratch);
    }
}

/* ---- accepting calls ---- */

/* One call slot that waits for a client; made anew for each. */
typedef struct rk_accept {
    rk_tag tag;
    rk_servicer *servicer;
    grpc_server *server;
    const rk_method_def *method; /* NULL: any method that is not registered */
    void *registered;            /* gRPC core's handle of it */
    grpc_call *call;
    grpc_byte_buffer *payload;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details;
} rk_accept;

static void accepted(rk_tag *tag, rk_poller *poller, bool ok);

static void accept_free(rk_accept *accept) {
    grpc_metadata_array_destroy(&accept->metadata);
    if (!accept->method)
        grpc_call_details_destroy(&accept->details);
    if (accept->payload)
        grpc_byte_buffer_destroy(accept->payload);
    free(accept);
}

static int accept_arm(rk_servicer *servicer, rk_poller *poller, grpc_server *server,
                      const rk_method_def *method, void *registered) {
    rk_accept *accept = calloc(1, sizeof *accept);
    if (!accept)
        return -ENOMEM;
    accept->tag.run = accepted;
    accept->servicer = servicer;
    accept->server = server;
    accept->method = method;
    accept->registered = registered;
    grpc_metadata_array_init(&accept->metadata);
    grpc_call_error result;
    RK_HANDS_OVER(&accept->tag);
    if (method) {
        result = grpc_server_request_registered_call(
            server, registered, &accept->call, &accept->deadline, &accept->metadata,
            method->reads_itself ? NULL : &accept->payload, poller->queue, poller->queue, &accept->tag);
    } else {
        grpc_call_details_init(&accept->details);
        result = grpc_server_request_call(server, &accept->call, &accept->details, &accept->metadata,
                                          poller->queue, poller->queue, &accept->tag);
    }
    if (result != GRPC_CALL_OK) {
        accept_free(accept);
        return -EIO;
    }
    return 0;
}

/* The connection a call came in on, so that a step's writes can be corked together. */
static rk_connection *connection_of(rk_servicer *servicer, grpc_call *call) {
    if (!servicer->acceptor || !servicer->config.cork)
        return NULL;
    char *peer = grpc_call_get_peer(call);
    rk_connection *connection = rk_acceptor_connection(servicer->acceptor, peer);
    gpr_free(peer);
    return connection;
}

static void refuse_unknown(rk_call *call, const grpc_call_details *details) {
    char *path = grpc_slice_to_c_string(details->method);
    rk_status status;
    (void)rk_status_set(&status, RK_UNIMPLEMENTED, "method %.200s is not served here", path);
    gpr_free(path);
    rk_call_fail(call, &status);
}

static void dispatch(rk_call *call, rk_accept *accept) {
    if (!accept->method) {
        refuse_unknown(call, &accept->details);
        return;
    }
    if (!accept->payload) {
        call->method->handle(call, NULL, 0);
        return;
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, accept->payload)) {
        rk_status status;
        (void)rk_status_set(&status, RK_INVALID_ARGUMENT, "the message could not be decompressed");
        rk_call_fail(call, &status);
        return;
    }
    grpc_slice slice;
    if (accept->payload->data.raw.slice_buffer.count == 1 &&
        accept->payload->data.raw.compression == GRPC_COMPRESS_NONE)
        slice = grpc_slice_ref(accept->payload->data.raw.slice_buffer.slices[0]);
    else
        slice = grpc_byte_buffer_reader_readall(&reader);
    const uint8_t *bytes = GRPC_SLICE_START_PTR(slice);
    size_t size = GRPC_SLICE_LENGTH(slice);
    call->message = &slice;
    call->method->handle(call, bytes, size);
    call->message = NULL;
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
}

/* Nothing can be allocated for this call: turn it away without touching it further. */
static void drop_call(grpc_call *call) {
    (void)grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory", NULL);
    grpc_call_unref(call);
}

static void accepted(rk_tag *tag, rk_poller *poller, bool ok) {
    rk_accept *accept = (rk_accept *)tag;
    rk_servicer *servicer = accept->servicer;
    if (!ok) { /* the server is shutting down */
        accept_free(accept);
        return;
    }
    if (accept_arm(servicer, poller, accept->server, accept->method, accept->registered) == -ENOMEM)
        rk_log_event(&servicer->log, RK_LOG_ERROR, "out of memory: a method is served by one poller less",
                     RK_FIELD_TEXT("method", accept->method ? accept->method->path : "(unknown)"));
    size_t size = accept->method ? accept->method->call_size : sizeof(rk_call);
    rk_call *call = calloc(1, size);
    if (!call) {
        drop_call(accept->call);
        accept_free(accept);
        return;
    }
    atomic_init(&call->refs, 1);
    call->servicer = servicer;
    call->poller = poller;
    call->method = accept->method;
    call->grpc = accept->call;
    call->connection = connection_of(servicer, accept->call);
    atomic_fetch_add(&servicer->live_calls, 1);
    rk_call_watch_close(call);
    call->metadata = &accept->metadata;
    rk_call_ref(call); /* the handler may drop its own */
    dispatch(call, accept);
    call->metadata = NULL;
    rk_call_unref(call);
    accept_free(accept);
}

int rk_accept_all(rk_servicer *servicer) {
    for (unsigned p = 0; p < servicer->poller_count; p++) {
        for (size_t m = 0; m < servicer->method_count; m++) {
            int result = accept_arm(servicer, &servicer->pollers[p], servicer->server, &servicer->methods[m],
                                    servicer->registered[m]);
            if (result < 0)
                return result;
        }
        int result = accept_arm(servicer, &servicer->pollers[p], servicer->server, NULL, NULL);
        if (result < 0)
            return result;
    }
    if (servicer->links && servicer->links->listening) {
        rk_links *links = servicer->links;
        int result =
            accept_arm(servicer, &servicer->pollers[0], links->server, &rk_link_method, links->registered);
        if (result == 0)
            result = accept_arm(servicer, &servicer->pollers[0], links->server, NULL, NULL);
        if (result < 0)
            return result;
    }
    for (unsigned p = 0; p < servicer->poller_count; p++)
        servicer->pollers[p].wake.run = woken;
    return 0;
}
