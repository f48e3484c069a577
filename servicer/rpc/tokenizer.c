/* GetTokenizer: the archive that the engine's side has built, in pieces.
 *
 * It is read from a descriptor that stays the engine's side's, a piece at a time, as fast as the client
 * reads: one piece in memory a call. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/internal.h"

#define PIECE_BYTES ((size_t)64 * 1024)
#define BOUND_MS 60000 /* building it reads and packs tens of megabytes */

typedef struct rk_tokenizer_call {
    rk_call call; /* must stay first */
    rk_tag write_tag;
    int fd; /* ours, a duplicate; -1: none */
    uint64_t size;
    uint64_t sent;
    char sha256[65];
    bool headers_sent;
} rk_tokenizer_call;

size_t rk_tokenizer_size(void) {
    return sizeof(rk_tokenizer_call);
}

static void destroy(rk_call *call) {
    rk_tokenizer_call *tc = (rk_tokenizer_call *)call;
    if (tc->fd >= 0)
        (void)close(tc->fd);
}

static void end_with(rk_tokenizer_call *tc, const rk_status *status);
static void send_piece(rk_tokenizer_call *tc);

static void ended(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    rk_tokenizer_call *tc = RK_CONTAINER(tag, rk_tokenizer_call, write_tag);
    rk_call_unref(&tc->call); /* the batch's */
    rk_call_unref(&tc->call); /* the handler's own */
}

static void end_with(rk_tokenizer_call *tc, const rk_status *status) {
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!tc->headers_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    grpc_slice text = grpc_slice_from_copied_string(status ? status->text : "");
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = status ? (grpc_status_code)status->code : GRPC_STATUS_OK;
    ops[count++].data.send_status_from_server.status_details = &text;
    tc->call.ended = true;
    tc->write_tag.run = ended;
    rk_call_batch(&tc->call, ops, count, &tc->write_tag);
    grpc_slice_unref(text);
}

static void written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_tokenizer_call *tc = RK_CONTAINER(tag, rk_tokenizer_call, write_tag);
    if (ok && tc->sent < tc->size)
        send_piece(tc);
    else if (ok)
        end_with(tc, NULL);
    else
        rk_call_unref(&tc->call); /* the client has gone: the handler's own */
    rk_call_unref(&tc->call);
}

/* Reads the next piece; bytes, or -errno. */
static ssize_t read_piece(const rk_tokenizer_call *tc, uint8_t *bytes) {
    uint64_t left = tc->size - tc->sent;
    size_t wanted = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
    ssize_t got;
    do
        got = pread(tc->fd, bytes, wanted, (off_t)tc->sent);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : got < 0 ? -errno : -EIO;
}

static void send_piece(rk_tokenizer_call *tc) {
    uint8_t *bytes = malloc(PIECE_BYTES);
    ssize_t got = bytes ? read_piece(tc, bytes) : -ENOMEM;
    rk_buf message = RK_BUF_INIT;
    if (got > 0) {
        tc->sent += (uint64_t)got;
        bool last = tc->sent >= tc->size;
        tc->call.servicer->dialect->encode_tokenizer(&message, bytes, (size_t)got, last ? tc->sha256 : NULL);
    }
    free(bytes);
    if (got <= 0 || message.failed) {
        rk_status status;
        (void)rk_status_set(&status, RK_INTERNAL, "the tokenizer's archive cannot be read: %s",
                            strerror(got < 0 ? (int)-got : ENOMEM));
        end_with(tc, &status);
        rk_buf_free(&message);
        return;
    }
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!tc->headers_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    tc->headers_sent = true;
    grpc_byte_buffer *buffer = rk_call_message(&message);
    ops[count].op = GRPC_OP_SEND_MESSAGE;
    ops[count++].data.send_message.send_message = buffer;
    tc->write_tag.run = written;
    rk_call_batch(&tc->call, ops, count, &tc->write_tag);
    grpc_byte_buffer_destroy(buffer);
    rk_buf_free(&message);
}

static bool take_archive(rk_tokenizer_call *tc, const rk_value *answer) {
    const rk_value *fd = answer ? rk_value_get(answer, "fd") : NULL;
    const rk_value *size = answer ? rk_value_get(answer, "size") : NULL;
    const rk_value *sha256 = answer ? rk_value_get(answer, "sha256") : NULL;
    if (!fd || !size || !sha256 || fd->kind != RK_VALUE_NUMBER || size->kind != RK_VALUE_NUMBER ||
        sha256->kind != RK_VALUE_STRING || size->number < 1)
        return false;
    tc->fd = dup((int)fd->number);
    tc->size = (uint64_t)size->number;
    (void)snprintf(tc->sha256, sizeof tc->sha256, "%s", sha256->string);
    return tc->fd >= 0;
}

static void answered(rk_call *call, const rk_value *answer) {
    rk_tokenizer_call *tc = (rk_tokenizer_call *)call;
    rk_status status;
    if (take_archive(tc, answer)) {
        send_piece(tc);
        return;
    }
    if (!rk_answer_is_failure(answer, &status))
        (void)rk_status_set(&status, RK_DEADLINE_EXCEEDED,
                            "the tokenizer's archive was not ready within %d s; try again", BOUND_MS / 1000);
    end_with(tc, &status);
}

void rk_tokenizer_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_tokenizer_call *tc = (rk_tokenizer_call *)call;
    rk_status status;
    tc->fd = -1;
    call->destroy = destroy;
    if (call->servicer->dialect->decode_empty(bytes, size, &status) != RK_OK) {
        end_with(tc, &status);
        return;
    }
    rk_query_ask(call, RK_QUERY_TOKENIZER, NULL, BOUND_MS, answered);
}
