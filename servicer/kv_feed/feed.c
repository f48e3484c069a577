/* See feed.h: the thread, its sockets, and what others read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "kv_feed/internal.h"

#define QUEUE 100000 /* messages that ZeroMQ keeps for us, as the publisher does */
#define TICK_MS 100  /* deadlines are looked at so often while there are any */
#define SNAPSHOT_CHUNK ((size_t)1 << 20)

static int make_source(rk_kv_feed *feed, uint32_t rank, const rk_kv_feed_options *options) {
    rk_kv_source *source = &feed->sources[rank];
    source->feed = feed;
    source->rank = rank;
    if (rk_kv_endpoint(options->endpoint, rank, source->endpoint) < 0)
        return -EINVAL;
    if (options->replay && options->replay[0] && rk_kv_endpoint(options->replay, rank, source->replay) < 0)
        return -EINVAL;
    const rk_kv_rank_options made = {.rank = (int32_t)rank,
                                     .history_entries = options->history_entries,
                                     .history_bytes = options->history_bytes,
                                     .record_bytes = options->record_bytes,
                                     .chunk_bytes = SNAPSHOT_CHUNK};
    source->batches = rk_kv_rank_new(&made);
    return source->batches ? 0 : -ENOMEM;
}

rk_kv_feed *rk_kv_feed_new(const rk_kv_feed_options *options, int *error) {
    rk_kv_feed *feed = calloc(1, sizeof *feed);
    *error = -ENOMEM;
    if (!feed)
        return NULL;
    feed->options = *options;
    feed->wake = -1;
    (void)pthread_mutex_init(&feed->lock, NULL);
    (void)snprintf(feed->topic, sizeof feed->topic, "%s", options->topic ? options->topic : "");
    feed->sources = calloc(options->ranks, sizeof *feed->sources);
    feed->items = calloc(1 + 3 * (size_t)options->ranks, sizeof *feed->items);
    int result = feed->sources && feed->items ? 0 : -ENOMEM;
    for (uint32_t rank = 0; result == 0 && rank < options->ranks; rank++)
        result = make_source(feed, rank, options);
    if (result == 0)
        return feed;
    *error = result;
    rk_kv_feed_free(feed);
    return NULL;
}

static int open_source(rk_kv_source *source) {
    rk_kv_feed *feed = source->feed;
    char name[64];
    const int linger = 0, queue = QUEUE, again_ms = 100, again_max_ms = 2000, alive = 1;
    (void)snprintf(name, sizeof name, "inproc://roomkeeper-kv-%u", source->rank);
    source->sub = zmq_socket(feed->context, ZMQ_SUB);
    source->monitor = zmq_socket(feed->context, ZMQ_PAIR);
    if (!source->sub || !source->monitor)
        return -zmq_errno();
    (void)zmq_setsockopt(source->monitor, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq_setsockopt(source->sub, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq_setsockopt(source->sub, ZMQ_RCVHWM, &queue, sizeof queue);
    (void)zmq_setsockopt(source->sub, ZMQ_RECONNECT_IVL, &again_ms, sizeof again_ms);
    (void)zmq_setsockopt(source->sub, ZMQ_RECONNECT_IVL_MAX, &again_max_ms, sizeof again_max_ms);
    (void)zmq_setsockopt(source->sub, ZMQ_TCP_KEEPALIVE, &alive, sizeof alive);
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, feed->topic, strlen(feed->topic)) < 0 ||
        zmq_socket_monitor(source->sub, name, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) < 0 ||
        zmq_connect(source->monitor, name) < 0 || zmq_connect(source->sub, source->endpoint) < 0)
        return -zmq_errno();
    if (source->replay[0] == '\0') /* nothing to wait for */
        rk_kv_rank_settle(source->batches);
    return 0;
}

/* What the SUB's connection did: an event is a frame with its number, then one with the address. */
static void read_monitor(rk_kv_source *source) {
    for (;;) {
        zmq_msg_t frame;
        (void)zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, source->monitor, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&frame);
            return;
        }
        uint16_t event = 0;
        if (zmq_msg_size(&frame) >= sizeof event)
            memcpy(&event, zmq_msg_data(&frame), sizeof event);
        (void)zmq_msg_close(&frame);
        (void)zmq_msg_init(&frame);
        (void)zmq_msg_recv(&frame, source->monitor, 0); /* the address, which we know */
        (void)zmq_msg_close(&frame);
        rk_kv_source_connected(source, event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    }
}

/* One message: [topic, number, payload]. False: there is none. */
static bool read_live(rk_kv_source *source) {
    zmq_msg_t frames[3];
    uint64_t number = 0;
    int count = rk_kv_receive(source->sub, frames, 3);
    if (count < 0)
        return false;
    if (count == 3 && rk_kv_read_number(&frames[1], &number)) {
        read_monitor(source); /* a new connection shows before its first message is taken */
        rk_kv_source_live(source, number, &frames[2]);
    } else {
        (void)pthread_mutex_lock(&source->feed->lock);
        source->counts.malformed_messages++;
        (void)pthread_mutex_unlock(&source->feed->lock);
        rk_kv_source_malformed(source, "a message of the publisher is no batch of KV events");
    }
    for (int i = 0; i < count && i < 3; i++)
        (void)zmq_msg_close(&frames[i]);
    return true;
}

static void serve(rk_kv_source *source, uint64_t now) {
    read_monitor(source);
    if (source->dealer)
        rk_kv_replay_read(source);
    rk_kv_replay_tick(source, now);
    for (int i = 0; i < RK_KV_BURST && !source->dealer; i++)
        if (!read_live(source))
            break;
}

/* The sockets to wait for; how long at most. */
static long list_items(rk_kv_feed *feed, int *count) {
    long timeout = -1;
    *count = 0;
    feed->items[(*count)++] = (zmq_pollitem_t){.fd = feed->wake, .events = ZMQ_POLLIN};
    for (uint32_t rank = 0; rank < feed->options.ranks; rank++) {
        rk_kv_source *source = &feed->sources[rank];
        void *live = source->dealer ? source->dealer : source->sub;
        feed->items[(*count)++] = (zmq_pollitem_t){.socket = source->monitor, .events = ZMQ_POLLIN};
        feed->items[(*count)++] = (zmq_pollitem_t){.socket = live, .events = ZMQ_POLLIN};
        if (source->dealer || source->check_ms > 0)
            timeout = TICK_MS;
    }
    return timeout;
}

static void *feed_main(void *arg) {
    rk_kv_feed *feed = arg;
    for (;;) {
        int count;
        long timeout = list_items(feed, &count);
        if (zmq_poll(feed->items, count, timeout) < 0 && zmq_errno() == ETERM)
            break;
        if (feed->items[0].revents)
            break;
        uint64_t now = rk_now_ms();
        feed->news = false;
        for (uint32_t rank = 0; rank < feed->options.ranks; rank++)
            serve(&feed->sources[rank], now);
        if (feed->news)
            feed->options.on_news(feed->options.arg);
    }
    for (uint32_t rank = 0; rank < feed->options.ranks; rank++)
        rk_kv_source_close(&feed->sources[rank]);
    return NULL;
}

static int open_all(rk_kv_feed *feed) {
    feed->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    feed->context = zmq_ctx_new();
    if (feed->wake < 0 || !feed->context)
        return -errno;
    for (uint32_t rank = 0; rank < feed->options.ranks; rank++) {
        int result = open_source(&feed->sources[rank]);
        if (result < 0)
            return result;
    }
    return 0;
}

int rk_kv_feed_start(rk_kv_feed *feed) {
    sigset_t before;
    rk_signals_block(&before); /* ZeroMQ starts threads too */
    int result = open_all(feed);
    rk_signals_restore(&before);
    if (result == 0)
        result = rk_thread_start(&feed->thread, "rk-kv", feed_main, feed);
    feed->running = result == 0;
    return result;
}

void rk_kv_feed_stop(rk_kv_feed *feed) {
    if (!feed)
        return;
    if (feed->running) {
        (void)eventfd_write(feed->wake, 1);
        (void)pthread_join(feed->thread, NULL);
    } else if (feed->context) { /* a start that failed */
        for (uint32_t rank = 0; rank < feed->options.ranks; rank++)
            rk_kv_source_close(&feed->sources[rank]);
    }
    feed->running = false;
    if (feed->context)
        (void)zmq_ctx_term(feed->context);
    feed->context = NULL;
    if (feed->wake >= 0)
        (void)close(feed->wake);
    feed->wake = -1;
}

void rk_kv_feed_free(rk_kv_feed *feed) {
    if (!feed)
        return;
    rk_kv_feed_stop(feed);
    for (uint32_t rank = 0; feed->sources && rank < feed->options.ranks; rank++)
        rk_kv_rank_free(feed->sources[rank].batches);
    free(feed->sources);
    free(feed->items);
    (void)pthread_mutex_destroy(&feed->lock);
    free(feed);
}

int rk_kv_feed_next(rk_kv_feed *feed, uint32_t rank, rk_kv_cursor *cursor, rk_kv_entry **entry) {
    (void)pthread_mutex_lock(&feed->lock);
    int result = rk_kv_rank_next(feed->sources[rank].batches, cursor, entry);
    (void)pthread_mutex_unlock(&feed->lock);
    return result;
}

int rk_kv_feed_peek(rk_kv_feed *feed, uint32_t rank, const rk_kv_cursor *cursor) {
    (void)pthread_mutex_lock(&feed->lock);
    int result = rk_kv_rank_peek(feed->sources[rank].batches, cursor);
    (void)pthread_mutex_unlock(&feed->lock);
    return result;
}

void rk_kv_feed_read(rk_kv_feed *feed, uint32_t rank, rk_kv_feed_counts *counts) {
    rk_kv_source *source = &feed->sources[rank];
    (void)pthread_mutex_lock(&feed->lock);
    *counts = source->counts;
    rk_kv_rank_read(source->batches, &counts->batches);
    (void)pthread_mutex_unlock(&feed->lock);
}
