/* rk-bare: gRPC core and nothing else, used the plain way: a batch a message, one after the other.
 *
 * Answers every call of any method with one chunk again and again, then a final message; how many, the
 * request's max_new_tokens says. Nothing else is decoded; no rooms, no engine. One thread, one completion
 * queue. With --step-us every live stream gets a chunk when a step begins, the first one a step after the
 * stream that found the server idle; without it each chunk follows the one before. For bench/ alone: serves
 * on loopback, insecurely, until SIGTERM. */
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_DEFAULT 128
#define TOKENS_MAX 1000000
#define TURN_MS 100 /* how soon SIGTERM is seen */

enum { TAG_ARRIVED, TAG_READ, TAG_WRITTEN, TAG_CLOSED, TAGS };

typedef struct stream stream;
typedef struct tag {
    stream *stream;
    int kind;
} tag;

struct stream {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *request;
    stream *prev, *next; /* of the live ones */
    long left;           /* chunks still to send */
    int cancelled;
    bool live, begun, writing;
    int outstanding; /* batches whose completion has not been seen */
    tag tags[TAGS];
};

typedef struct server {
    grpc_server *grpc;
    grpc_completion_queue *queue;
    stream *live;
    long step_us; /* 0: unpaced */
    gpr_timespec due;
    grpc_byte_buffer *chunk, *final;
} server;

static volatile sig_atomic_t stopping;

static void stop(int number) {
    (void)number;
    stopping = 1;
}

static void fail(const char *what) {
    fprintf(stderr, "rk-bare: %s\n", what);
    exit(1);
}

static void arm(server *srv) {
    stream *s = calloc(1, sizeof *s);
    if (!s)
        fail("out of memory");
    for (int kind = 0; kind < TAGS; kind++)
        s->tags[kind] = (tag){s, kind};
    grpc_call_details_init(&s->details);
    grpc_metadata_array_init(&s->metadata);
    if (grpc_server_request_call(srv->grpc, &s->call, &s->details, &s->metadata, srv->queue, srv->queue,
                                 &s->tags[TAG_ARRIVED]) != GRPC_CALL_OK)
        fail("a call cannot be asked for");
}

static void start(stream *s, const grpc_op *ops, size_t count, int kind) {
    if (grpc_call_start_batch(s->call, ops, count, &s->tags[kind], NULL) != GRPC_CALL_OK)
        fail("a batch cannot be started");
    s->outstanding++;
}

static void finished(server *srv, stream *s) {
    if (s->live) {
        *(s->prev ? &s->prev->next : &srv->live) = s->next;
        if (s->next)
            s->next->prev = s->prev;
    }
    grpc_byte_buffer_destroy(s->request);
    grpc_metadata_array_destroy(&s->metadata);
    grpc_call_details_destroy(&s->details);
    if (s->call)
        grpc_call_unref(s->call);
    free(s);
}

static void write_next(server *srv, stream *s) {
    grpc_op ops[4] = {0};
    size_t count = 0;
    if (!s->begun)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    s->begun = true;
    ops[count].op = GRPC_OP_SEND_MESSAGE;
    /* Core takes the slices out of what it is given. */
    grpc_byte_buffer *message = grpc_byte_buffer_copy(s->left > 0 ? srv->chunk : srv->final);
    ops[count++].data.send_message.send_message = message;
    if (s->left-- == 0) {
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count++].data.send_status_from_server.status = GRPC_STATUS_OK;
    }
    s->writing = true;
    start(s, ops, count, TAG_WRITTEN);
    grpc_byte_buffer_destroy(message);
}

/* --- the request, as far as it matters: sampling_params (3) . max_new_tokens (8) --- */

static bool varint(const unsigned char **at, const unsigned char *end, unsigned long *value) {
    *value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        unsigned char byte = *(*at)++;
        *value |= (unsigned long)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static long find_tokens(const unsigned char *at, const unsigned char *end, int depth) {
    unsigned long key, value;
    while (varint(&at, end, &key)) {
        if ((key & 7) == 5 || (key & 7) == 1) {
            size_t width = (key & 7) == 5 ? 4 : 8;
            if ((size_t)(end - at) < width)
                return -1;
            at += width;
            continue;
        }
        if (((key & 7) != 0 && (key & 7) != 2) || !varint(&at, end, &value))
            return -1;
        if ((key & 7) == 0) {
            if (depth == 1 && key >> 3 == 8)
                return value < TOKENS_MAX ? (long)value : TOKENS_MAX;
            continue;
        }
        if (value > (size_t)(end - at))
            return -1;
        if (depth == 0 && key >> 3 == 3)
            return find_tokens(at, at + value, 1);
        at += value;
    }
    return -1;
}

static long tokens_of(grpc_byte_buffer *request) {
    grpc_byte_buffer_reader reader;
    if (!request || !grpc_byte_buffer_reader_init(&reader, request))
        return TOKENS_DEFAULT;
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    const unsigned char *at = GRPC_SLICE_START_PTR(bytes);
    long tokens = find_tokens(at, at + GRPC_SLICE_LENGTH(bytes), 0);
    grpc_slice_unref(bytes);
    return tokens > 0 ? tokens : TOKENS_DEFAULT;
}

/* --- completions --- */

static void arrived(server *srv, stream *s, bool ok) {
    if (!ok) {
        finished(srv, s);
        return;
    }
    arm(srv);
    grpc_op closed = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    closed.data.recv_close_on_server.cancelled = &s->cancelled;
    start(s, &closed, 1, TAG_CLOSED);
    grpc_op read = {.op = GRPC_OP_RECV_MESSAGE};
    read.data.recv_message.recv_message = &s->request;
    start(s, &read, 1, TAG_READ);
}

static void read_done(server *srv, stream *s) {
    s->left = tokens_of(s->request);
    s->live = true;
    if (!srv->live)
        srv->due =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(srv->step_us, GPR_TIMESPAN));
    s->next = srv->live;
    if (s->next)
        s->next->prev = s;
    srv->live = s;
    if (!srv->step_us)
        write_next(srv, s);
}

static void completed(server *srv, tag *t, bool ok) {
    stream *s = t->stream;
    if (t->kind == TAG_ARRIVED) {
        arrived(srv, s, ok);
        return;
    }
    s->outstanding--;
    if (t->kind == TAG_READ && ok && !s->cancelled)
        read_done(srv, s);
    if (t->kind == TAG_WRITTEN) {
        s->writing = false;
        if (ok && !s->cancelled && s->left >= 0 && !srv->step_us)
            write_next(srv, s);
    }
    if (s->outstanding == 0)
        finished(srv, s);
}

/* A chunk to every stream that has taken its last one. */
static void step(server *srv) {
    for (stream *s = srv->live; s; s = s->next)
        if (!s->writing && !s->cancelled && s->left >= 0)
            write_next(srv, s);
    srv->due = gpr_time_add(srv->due, gpr_time_from_micros(srv->step_us, GPR_TIMESPAN));
}

static void serve(server *srv) {
    while (!stopping) {
        gpr_timespec until = srv->due;
        if (!srv->step_us)
            until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(TURN_MS, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(srv->queue, until, NULL);
        if (event.type == GRPC_OP_COMPLETE)
            completed(srv, event.tag, event.success != 0);
        if (srv->step_us && gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), srv->due) >= 0)
            step(srv);
    }
}

/* --- messages as a servicer of the contract sends them --- */

static grpc_byte_buffer *message(const char *bytes, size_t length) {
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void make_messages(server *srv) {
    /* GenerateResponse{request_id, chunk{token_ids: [500], prompt_tokens: 128, completion_tokens: 64}} */
    static const char chunk[] = "\x0a\x0d"
                                "load-1234-123"
                                "\x12\x09"
                                "\x0a\x02\xf4\x03"
                                "\x10\x80\x01"
                                "\x18\x40";
    /* GenerateResponse{request_id, complete{finish_reason: "length"}} */
    static const char final[] = "\x0a\x0d"
                                "load-1234-123"
                                "\x1a\x08"
                                "\x12\x06"
                                "length";
    srv->chunk = message(chunk, sizeof chunk - 1);
    srv->final = message(final, sizeof final - 1);
}

int main(int argc, char **argv) {
    server srv = {0};
    const char *port = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port"))
            port = argv[i + 1];
        else if (!strcmp(argv[i], "--step-us"))
            srv.step_us = strtol(argv[i + 1], NULL, 10);
    }
    if (!port || argc % 2 == 0) {
        fprintf(stderr, "usage: rk-bare --port N [--step-us N]\n");
        return 2;
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    grpc_init();
    make_messages(&srv);
    srv.queue = grpc_completion_queue_create_for_next(NULL);
    grpc_arg reuse = {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0};
    grpc_channel_args args = {1, &reuse};
    srv.grpc = grpc_server_create(&args, NULL);
    grpc_server_register_completion_queue(srv.grpc, srv.queue, NULL);
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%s", port);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int bound = grpc_server_add_http2_port(srv.grpc, address, credentials);
    grpc_server_credentials_release(credentials);
    if (!bound)
        fail("the port cannot be bound");
    grpc_server_start(srv.grpc);
    srv.due = gpr_now(GPR_CLOCK_MONOTONIC);
    arm(&srv);
    serve(&srv);
    return 0; /* the process ends with everything that is open */
}
