/* What all calls have in common: references, the close watch, replies and failures.
 *
 * A call is freed when nothing refers to it: no batch in flight, no post, no table. Its owner (the handler)
 * holds one reference until the call's last batch has been started.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/internal.h"

rk_call *rk_call_ref(rk_call *call) {
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    return call;
}

void rk_call_unref(rk_call *call) {
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1)
        return;
    rk_servicer *servicer = call->servicer;
    if (call->destroy)
        call->destroy(call);
    rk_connection_unref(call->connection);
    grpc_call_unref(call->grpc);
    free(call);
    atomic_fetch_sub(&servicer->live_calls, 1);
}

void rk_call_batch(rk_call *call, const grpc_op *ops, size_t count, rk_tag *tag) {
    rk_call_ref(call);
    RK_HANDS_OVER(tag);
    grpc_call_error result = grpc_call_start_batch(call->grpc, ops, count, tag, NULL);
    if (result == GRPC_CALL_OK)
        return;
    /* Only a mistake of ours gets here (two writes at a time, a second status). */
    rk_log_event(&call->servicer->log, RK_LOG_ERROR, "a batch was refused by gRPC core",
                 RK_FIELD_TEXT("error", grpc_call_error_to_string(result)),
                 RK_FIELD_TEXT("method", call->method ? call->method->path : "(unknown)"));
    (void)grpc_call_cancel(call->grpc, NULL);
    tag->run(tag, call->poller, false);
}

static void closed(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    rk_call *call = RK_CONTAINER(tag, rk_call, closed_tag);
    if (call->on_closed)
        call->on_closed(call);
    rk_call_unref(call);
}

void rk_call_watch_close(rk_call *call) {
    call->closed_tag.run = closed;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    rk_call_batch(call, &op, 1, &call->closed_tag);
}

grpc_byte_buffer *rk_call_message(const rk_buf *message) {
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)message->data, message->size);
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

/* The tag of a last batch that nobody looks at: owned by itself. */
typedef struct rk_last_words {
    rk_tag tag;
    rk_call *call;
} rk_last_words;

static void last_words_sent(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    rk_last_words *last = (rk_last_words *)tag;
    rk_call_unref(last->call);
    free(last);
}

static void finish(rk_call *call, const rk_buf *message, const rk_status *status) {
    if (call->ended)
        return;
    call->ended = true;
    rk_last_words *last = calloc(1, sizeof *last);
    if (!last) {
        (void)grpc_call_cancel_with_status(call->grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory", NULL);
        rk_call_unref(call);
        return;
    }
    last->tag.run = last_words_sent;
    last->call = call;
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    grpc_byte_buffer *bytes = NULL;
    if (message) {
        bytes = rk_call_message(message);
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = bytes;
    }
    grpc_slice text = grpc_slice_from_copied_string(status ? status->text : "");
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = status ? (grpc_status_code)status->code : GRPC_STATUS_OK;
    ops[count++].data.send_status_from_server.status_details = &text;
    rk_call_batch(call, ops, count, &last->tag);
    grpc_slice_unref(text);
    if (bytes)
        grpc_byte_buffer_destroy(bytes);
    rk_call_unref(call); /* the handler's own */
}

void rk_call_reply(rk_call *call, const rk_buf *message) {
    if (message->failed) {
        rk_status status;
        (void)rk_status_set(&status, RK_RESOURCE_EXHAUSTED, "out of memory while encoding the answer");
        finish(call, NULL, &status);
        return;
    }
    finish(call, message, NULL);
}

void rk_call_fail(rk_call *call, const rk_status *status) {
    finish(call, NULL, status);
}
