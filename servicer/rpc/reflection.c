/* grpc.reflection.v1 and v1alpha: a bidirectional stream of questions about the descriptors.
 *
 * Both versions have the same bytes, so one handler serves both. One question is read, answered and written
 * before the next is read: a client cannot make answers pile up.
 */
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>

#include "rpc/internal.h"

typedef struct rk_reflection {
    rk_call call; /* must stay first; poller thread, as everything here */
    rk_tag read_tag;
    rk_tag write_tag;
    grpc_byte_buffer *question; /* filled by gRPC core; NULL at the client's half-close */
    bool headers_sent;
} rk_reflection;

static void read_next(rk_reflection *r) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &r->question;
    rk_call_batch(&r->call, &op, 1, &r->read_tag);
}

static void end(rk_reflection *r, const rk_status *status) {
    if (r->call.ended)
        return;
    r->call.ended = true;
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!r->headers_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    grpc_slice text = grpc_slice_from_copied_string(status ? status->text : "");
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = status ? (grpc_status_code)status->code : GRPC_STATUS_OK;
    ops[count++].data.send_status_from_server.status_details = &text;
    rk_call_batch(&r->call, ops, count, &r->write_tag);
    grpc_slice_unref(text);
}

static void answer(rk_reflection *r, const rk_buf *message) {
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!r->headers_sent) {
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
        r->headers_sent = true;
    }
    grpc_byte_buffer *bytes = rk_call_message(message);
    ops[count].op = GRPC_OP_SEND_MESSAGE;
    ops[count++].data.send_message.send_message = bytes;
    rk_call_batch(&r->call, ops, count, &r->write_tag);
    grpc_byte_buffer_destroy(bytes);
}

static void written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_reflection *r = RK_CONTAINER(tag, rk_reflection, write_tag);
    if (!ok || r->call.ended)
        rk_call_unref(&r->call); /* the handler's own: nothing is started any more */
    else
        read_next(r);
    rk_call_unref(&r->call);
}

/* Every service is described; this one is served by encode workers alone. */
static const char *unlisted(const rk_servicer *servicer) {
    return servicer->rooms.role == RK_ROLE_ENCODE ? NULL : servicer->dialect->encode_service;
}

static void read_done(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_reflection *r = RK_CONTAINER(tag, rk_reflection, read_tag);
    grpc_byte_buffer *question = r->question;
    r->question = NULL;
    if (!ok || !question) {
        end(r, NULL);
    } else {
        grpc_byte_buffer_reader reader;
        rk_buf out = RK_BUF_INIT;
        rk_status status = {.code = RK_INVALID_ARGUMENT, .text = "the message could not be read"};
        rk_code code = RK_INVALID_ARGUMENT;
        if (grpc_byte_buffer_reader_init(&reader, question)) {
            grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
            code = rk_reflection_answer(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice),
                                        unlisted(r->call.servicer), &out, &status);
            grpc_slice_unref(slice);
            grpc_byte_buffer_reader_destroy(&reader);
        }
        if (code == RK_OK && !out.failed)
            answer(r, &out);
        else if (code == RK_OK)
            end(r, &(rk_status){.code = RK_RESOURCE_EXHAUSTED, .text = "out of memory: try again later"});
        else
            end(r, &status);
        rk_buf_free(&out);
    }
    if (question)
        grpc_byte_buffer_destroy(question);
    rk_call_unref(&r->call);
}

static void handle(rk_call *call, const uint8_t *bytes, size_t size) {
    (void)bytes;
    (void)size;
    rk_reflection *r = (rk_reflection *)call;
    r->read_tag.run = read_done;
    r->write_tag.run = written;
    read_next(r);
}

const rk_method_def rk_reflection_methods[] = {
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", true, sizeof(rk_reflection), handle,
     RK_METHODS},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", true, sizeof(rk_reflection), handle,
     RK_METHODS},
};
const size_t rk_reflection_method_count = sizeof rk_reflection_methods / sizeof rk_reflection_methods[0];
