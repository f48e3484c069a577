/* One stream of the room link, at either end, as a call of gRPC core on the first poller.
 *
 * Reading and writing each have one batch in flight at most. What is to be written is asked of the link when
 * the last write has gone out, so that what happened meanwhile goes out together. */
#include <arpa/inet.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/links.h"

typedef struct rk_link_call {
    rk_call call; /* must stay first */
    rk_link link;
    rk_tag read_tag;
    rk_tag write_tag;
    rk_tag end_tag; /* server: its status is out; client: the stream's status is in */
    rk_post post;   /* a kick */
    _Atomic bool kicked;
    grpc_byte_buffer *incoming;
    bool writing;
    bool headers_sent;
    bool taken; /* peer/ knows the link */
    bool status_sent;
    bool cancelled;
    /* ---- client ---- */
    grpc_channel *channel; /* NULL: server */
    uint32_t peer;
    char remote[96];
    rk_post begin_post;
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code status;
    grpc_slice details;
} rk_link_call;

static rk_link_call *of(rk_call *call) {
    return (rk_link_call *)call;
}

static rk_peers *peers_of(const rk_link_call *lc) {
    return lc->call.servicer->links->peers;
}

static void destroy(rk_call *call) {
    rk_link_call *lc = of(call);
    if (lc->incoming)
        grpc_byte_buffer_destroy(lc->incoming);
    if (!lc->channel)
        return;
    grpc_metadata_array_destroy(&lc->headers);
    grpc_metadata_array_destroy(&lc->trailers);
    grpc_slice_unref(lc->details);
    grpc_channel_destroy(lc->channel);
}

/* ---- writing ---- */

static void pump(rk_link_call *lc);

static void written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_link_call *lc = RK_CONTAINER(tag, rk_link_call, write_tag);
    lc->writing = false;
    if (ok)
        pump(lc);
    rk_call_unref(&lc->call);
}

static void write_message(rk_link_call *lc, const rk_buf *message) {
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!lc->headers_sent) {
        lc->headers_sent = true;
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    grpc_byte_buffer *bytes = rk_call_message(message);
    ops[count].op = GRPC_OP_SEND_MESSAGE;
    ops[count++].data.send_message.send_message = bytes;
    lc->writing = true;
    lc->write_tag.run = written;
    rk_call_batch(&lc->call, ops, count, &lc->write_tag);
    grpc_byte_buffer_destroy(bytes);
}

static void status_out(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    rk_call_unref(&RK_CONTAINER(tag, rk_link_call, end_tag)->call);
}

/* The server's last words; also for a stream that was never taken. */
static void send_status(rk_link_call *lc, const rk_status *status) {
    if (lc->status_sent)
        return;
    lc->status_sent = true;
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!lc->headers_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    lc->headers_sent = true;
    grpc_slice text = grpc_slice_from_copied_string(status->text);
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = (grpc_status_code)status->code;
    ops[count++].data.send_status_from_server.status_details = &text;
    lc->end_tag.run = status_out;
    rk_call_batch(&lc->call, ops, count, &lc->end_tag);
    grpc_slice_unref(text);
}

static void end_stream(rk_link_call *lc, const rk_status *status) {
    if (!lc->channel && !lc->writing) {
        send_status(lc, status);
        return;
    }
    if (lc->cancelled)
        return;
    lc->cancelled = true;
    (void)grpc_call_cancel_with_status(lc->call.grpc, (grpc_status_code)status->code, status->text, NULL);
}

static void pump(rk_link_call *lc) {
    rk_status status;
    if (!lc->taken)
        return;
    rk_buf message = RK_BUF_INIT;
    if (!lc->writing && rk_link_next(peers_of(lc), rk_now_ms(), &lc->link, &message)) {
        if (message.failed)
            (void)rk_status_set(&status, RK_RESOURCE_EXHAUSTED, "out of memory");
        if (message.failed)
            end_stream(lc, &status);
        else
            write_message(lc, &message);
    } else if (rk_link_is_over(peers_of(lc), &lc->link, &status)) {
        end_stream(lc, &status);
    }
    rk_buf_free(&message);
}

static void run_kick(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_link_call *lc = RK_CONTAINER(post, rk_link_call, post);
    atomic_store(&lc->kicked, false);
    pump(lc);
    rk_call_unref(&lc->call);
}

void rk_link_hold(void *stream) {
    rk_call_ref(&((rk_link_call *)stream)->call);
}

void rk_link_kicked(void *stream) {
    rk_link_call *lc = stream;
    if (atomic_exchange(&lc->kicked, true)) {
        rk_call_unref(&lc->call);
        return;
    }
    rk_call_post(&lc->call, &lc->post, NULL); /* its reference is the hold's */
}

/* ---- reading ---- */

static void read_next(rk_link_call *lc);

static void take(rk_link_call *lc, grpc_byte_buffer *bytes) {
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, bytes))
        return;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    rk_link_received(peers_of(lc), rk_now_ms(), &lc->link, GRPC_SLICE_START_PTR(slice),
                     GRPC_SLICE_LENGTH(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
}

static void read_done(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_link_call *lc = RK_CONTAINER(tag, rk_link_call, read_tag);
    grpc_byte_buffer *bytes = lc->incoming;
    lc->incoming = NULL;
    if (ok && bytes) {
        take(lc, bytes);
        grpc_byte_buffer_destroy(bytes);
        pump(lc);
        read_next(lc);
    } else if (bytes) {
        grpc_byte_buffer_destroy(bytes);
    } else if (!lc->channel) { /* the client has no more to say: nor have we */
        rk_status bye = {.code = RK_OK};
        end_stream(lc, &bye);
    }
    rk_call_unref(&lc->call);
}

static void read_next(rk_link_call *lc) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &lc->incoming;
    lc->read_tag.run = read_done;
    rk_call_batch(&lc->call, &op, 1, &lc->read_tag);
}

/* ---- the prefill's end ---- */

static void server_closed(rk_call *call) {
    rk_link_call *lc = of(call);
    if (lc->taken) {
        lc->taken = false;
        rk_link_closed(peers_of(lc), rk_now_ms(), &lc->link, call->cancelled ? RK_CANCELLED : RK_OK,
                       call->cancelled ? "the stream has broken" : "the stream has ended");
    }
    rk_call_unref(call); /* the handler's own */
}

/* "ipv4:127.0.0.1:4711" and "ipv6:%5B::1%5D:4711", as gRPC core names its peers. */
static bool parse_peer(const char *peer, struct sockaddr_storage *address) {
    char text[128];
    bool v6 = strncmp(peer, "ipv6:", 5) == 0;
    if (!v6 && strncmp(peer, "ipv4:", 5) != 0)
        return false;
    size_t size = 0;
    for (const char *at = peer + 5; *at && size + 1 < sizeof text; at++) {
        bool escaped = at[0] == '%' && at[1] == '5' && (at[2] == 'B' || at[2] == 'D');
        if (escaped)
            at += 2;
        else if (*at != '[' && *at != ']')
            text[size++] = *at;
    }
    text[size] = '\0';
    char *colon = strrchr(text, ':');
    char *scope = strchr(text, '%');
    if (!colon)
        return false;
    *colon = '\0';
    if (scope && scope < colon)
        *scope = '\0';
    memset(address, 0, sizeof *address);
    address->ss_family = v6 ? AF_INET6 : AF_INET;
    return inet_pton(address->ss_family, text,
                     v6 ? (void *)&((struct sockaddr_in6 *)address)->sin6_addr
                        : (void *)&((struct sockaddr_in *)address)->sin_addr) == 1;
}

/* Only networks that we would dial may dial us. */
static bool is_welcome(const rk_link_call *lc, const char *peer) {
    struct sockaddr_storage address;
    return parse_peer(peer, &address) &&
           rk_networks_have(&lc->call.servicer->links->settings.allowed, (struct sockaddr *)&address);
}

static void handle(rk_call *call, const uint8_t *bytes, size_t size) {
    (void)bytes;
    (void)size;
    rk_link_call *lc = of(call);
    lc->post.run = run_kick;
    call->destroy = destroy;
    call->on_closed = server_closed;
    char *peer = grpc_call_get_peer(call->grpc);
    rk_status status;
    if (!is_welcome(lc, peer)) {
        (void)rk_status_set(&status, RK_PERMISSION_DENIED,
                            "%.80s is in no network that may link here; see --room-peer-allow", peer);
        rk_peers_refused(peers_of(lc), peer, status.text);
        send_status(lc, &status);
    } else if (!rk_link_accept(peers_of(lc), rk_now_ms(), &lc->link, lc, peer)) {
        status = lc->link.over;
        send_status(lc, &status);
    } else {
        lc->taken = true;
        read_next(lc);
    }
    gpr_free(peer);
}

const rk_method_def rk_link_method = {
    .path = RK_LINK_PATH,
    .reads_itself = true,
    .call_size = sizeof(rk_link_call),
    .handle = handle,
    .method = RK_METHODS,
};

/* ---- the decode's end ---- */

static void client_ended(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    rk_link_call *lc = RK_CONTAINER(tag, rk_link_call, end_tag);
    if (lc->taken) {
        lc->taken = false;
        char *why = grpc_slice_to_c_string(lc->details);
        rk_link_closed(peers_of(lc), rk_now_ms(), &lc->link, (rk_code)lc->status, why);
        gpr_free(why);
    }
    rk_call_unref(&lc->call); /* our own */
    rk_call_unref(&lc->call); /* the batch's */
}

/* Headers come with the first message at the latest; then messages are read. */
static void headers_in(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_link_call *lc = RK_CONTAINER(tag, rk_link_call, read_tag);
    if (ok)
        read_next(lc);
    rk_call_unref(&lc->call);
}

static void begin(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_link_call *lc = RK_CONTAINER(post, rk_link_call, begin_post);
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.status = &lc->status;
    op.data.recv_status_on_client.status_details = &lc->details;
    op.data.recv_status_on_client.trailing_metadata = &lc->trailers;
    lc->end_tag.run = client_ended;
    rk_call_batch(&lc->call, &op, 1, &lc->end_tag);
    lc->taken = rk_link_open(peers_of(lc), rk_now_ms(), &lc->link, lc->peer, lc, lc->remote);
    if (lc->taken) {
        grpc_op headers = {.op = GRPC_OP_RECV_INITIAL_METADATA};
        headers.data.recv_initial_metadata.recv_initial_metadata = &lc->headers;
        lc->read_tag.run = headers_in;
        rk_call_batch(&lc->call, &headers, 1, &lc->read_tag);
        pump(lc);
    } else {
        (void)grpc_call_cancel(lc->call.grpc, NULL);
    }
    rk_call_unref(&lc->call); /* the post's */
}

void rk_link_dialled(rk_servicer *servicer, uint32_t peer, grpc_channel *channel, const char *authority,
                     const char *remote) {
    rk_poller *poller = &servicer->pollers[0];
    grpc_slice method = grpc_slice_from_static_string(RK_LINK_PATH);
    grpc_slice host = grpc_slice_from_copied_string(authority);
    grpc_call *grpc = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, poller->queue, method,
                                               &host, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(host);
    rk_link_call *lc = calloc(1, sizeof *lc);
    if (!lc || !grpc) {
        if (grpc)
            grpc_call_unref(grpc);
        free(lc);
        grpc_channel_destroy(channel);
        rk_peers_dial_failed(servicer->links->peers, rk_now_ms(), peer, RK_DIAL_FAILED, "out of memory");
        return;
    }
    atomic_init(&lc->call.refs, 2); /* our own, and the post's */
    lc->call.servicer = servicer;
    lc->call.poller = poller;
    lc->call.method = &rk_link_method;
    lc->call.grpc = grpc;
    lc->call.destroy = destroy;
    lc->post.run = run_kick;
    lc->begin_post.run = begin;
    lc->channel = channel;
    lc->peer = peer;
    lc->details = grpc_empty_slice();
    (void)snprintf(lc->remote, sizeof lc->remote, "%s", remote);
    grpc_metadata_array_init(&lc->headers);
    grpc_metadata_array_init(&lc->trailers);
    atomic_fetch_add(&servicer->live_calls, 1);
    rk_call_post(&lc->call, &lc->begin_post, NULL);
}
