/* One rank's publisher as it is followed: live batches, and replays of what is missing. Feed thread.
 *
 * While a replay is under way live batches stay in the SUB socket's queue, so that everything is taken in the
 * order of its number; what the replay has brought already is known again by its content. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "kv_feed/internal.h"

#define ANSWER_MS 5000 /* a replay that says nothing for so long has failed */
#define CHECK_MS 500   /* after connecting: what was published before the subscription had arrived */
#define WARN_EVERY_MS 10000

static rk_kv_taken take(rk_kv_source *source, uint64_t number, const void *bytes, size_t size, bool force) {
    rk_kv_feed *feed = source->feed;
    rk_kv_rank_counts before, after;
    (void)pthread_mutex_lock(&feed->lock);
    rk_kv_rank_read(source->batches, &before);
    rk_kv_taken taken = rk_kv_rank_take(source->batches, number, bytes, size, force);
    rk_kv_rank_read(source->batches, &after);
    (void)pthread_mutex_unlock(&feed->lock);
    feed->news = true;
    if (after.gaps > before.gaps)
        rk_log_event(feed->options.log, RK_LOG_WARNING, "KV events are lost: subscribers get a snapshot",
                     RK_FIELD_INT("rank", source->rank), RK_FIELD_INT("lost", after.lost - before.lost),
                     RK_FIELD_INT("next", number));
    if (after.forgotten > before.forgotten)
        rk_log_event(feed->options.log, RK_LOG_WARNING,
                     "the record of cached blocks is over its bound and starts anew (kv_record_bytes)",
                     RK_FIELD_INT("rank", source->rank), RK_FIELD_INT("batch", number));
    if (after.malformed_batches > before.malformed_batches ||
        after.malformed_events > before.malformed_events)
        rk_kv_source_malformed(source, "a KV event batch or a part of it cannot be read");
    if (taken == RK_KV_NO_ROOM)
        rk_log_event(feed->options.log, RK_LOG_ERROR, "out of memory: a batch of KV events is lost",
                     RK_FIELD_INT("rank", source->rank), RK_FIELD_INT("batch", number));
    return taken;
}

void rk_kv_source_malformed(rk_kv_source *source, const char *what) {
    uint64_t now = rk_now_ms();
    source->warned_count++;
    if (source->warned_ms > 0 && now - source->warned_ms < WARN_EVERY_MS)
        return;
    rk_log_event(source->feed->options.log, RK_LOG_WARNING, what, RK_FIELD_INT("rank", source->rank),
                 RK_FIELD_TEXT("publisher", source->endpoint),
                 RK_FIELD_INT("since_last_line", source->warned_count));
    source->warned_ms = now;
    source->warned_count = 0;
}

static bool last_number(rk_kv_source *source, uint64_t *last) {
    (void)pthread_mutex_lock(&source->feed->lock);
    bool any = rk_kv_rank_last(source->batches, last);
    (void)pthread_mutex_unlock(&source->feed->lock);
    return any;
}

static void restart(rk_kv_source *source) {
    (void)pthread_mutex_lock(&source->feed->lock);
    rk_kv_rank_restart(source->batches);
    (void)pthread_mutex_unlock(&source->feed->lock);
    rk_log_event(source->feed->options.log, RK_LOG_WARNING,
                 "the publisher of KV events has begun anew: subscribers get a snapshot",
                 RK_FIELD_INT("rank", source->rank), RK_FIELD_TEXT("publisher", source->endpoint));
}

/* ---- replays ---- */

static void close_dealer(rk_kv_source *source) {
    if (source->dealer)
        (void)zmq_close(source->dealer);
    source->dealer = NULL;
}

/* Asks from the last number known, which shows by its content whose life it is; else from 0. */
static bool ask(rk_kv_source *source) {
    uint64_t last = 0;
    int linger = 0;
    close_dealer(source); /* and with it answers to what was asked before */
    if (source->replay[0] == '\0')
        return false;
    source->dealer = zmq_socket(source->feed->context, ZMQ_DEALER);
    if (!source->dealer)
        return false;
    (void)zmq_setsockopt(source->dealer, ZMQ_LINGER, &linger, sizeof linger);
    source->asked_all = !last_number(source, &last);
    uint8_t number[8];
    for (unsigned i = 0; i < 8; i++)
        number[i] = (uint8_t)((source->asked_all ? 0 : last) >> (56 - 8 * i));
    if (zmq_connect(source->dealer, source->replay) < 0 ||
        zmq_send(source->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(source->dealer, number, sizeof number, ZMQ_DONTWAIT) < 0) {
        close_dealer(source);
        return false;
    }
    source->first = true;
    source->deadline_ms = rk_now_ms() + ANSWER_MS;
    (void)pthread_mutex_lock(&source->feed->lock);
    source->counts.replays++;
    (void)pthread_mutex_unlock(&source->feed->lock);
    return true;
}

static void finish(rk_kv_source *source) {
    close_dealer(source);
    (void)pthread_mutex_lock(&source->feed->lock);
    rk_kv_rank_settle(source->batches);
    (void)pthread_mutex_unlock(&source->feed->lock);
    source->feed->news = true;
    if (!source->holds)
        return;
    source->holds = false;
    (void)take(source, source->held_number, zmq_msg_data(&source->held), zmq_msg_size(&source->held), true);
    (void)zmq_msg_close(&source->held);
}

/* It is another life of the publisher: all it has, from its beginning. */
static void start_over(rk_kv_source *source) {
    restart(source);
    if (!ask(source))
        finish(source);
}

static void answered(rk_kv_source *source, uint64_t number, const void *bytes, size_t size) {
    uint64_t last;
    bool first = source->first;
    source->first = false;
    source->deadline_ms = rk_now_ms() + ANSWER_MS;
    bool known = last_number(source, &last);
    if (first && known && !source->asked_all && number == last) {
        (void)pthread_mutex_lock(&source->feed->lock);
        bool same = rk_kv_rank_has(source->batches, number, bytes, size);
        (void)pthread_mutex_unlock(&source->feed->lock);
        if (!same)
            start_over(source);
        return;
    }
    if (known && number <= last)
        return; /* an answer to another question */
    (void)take(source, number, bytes, size, true);
}

static void answered_all(rk_kv_source *source) {
    /* One that has not even the last number that we have from it is not the one that we had it from. */
    if (source->first && !source->asked_all)
        start_over(source);
    else
        finish(source);
}

/* The frames of one message; the number of frames, -1: there is none. What is beyond `max` is dropped. */
int rk_kv_receive(void *socket, zmq_msg_t frames[], int max) {
    int count = 0;
    int more = 1;
    while (more) {
        zmq_msg_t extra;
        zmq_msg_t *frame = count < max ? &frames[count] : &extra;
        (void)zmq_msg_init(frame);
        if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(frame);
            for (int i = 0; i < count && i < max; i++)
                (void)zmq_msg_close(&frames[i]);
            return -1;
        }
        more = zmq_msg_more(frame);
        if (frame == &extra)
            (void)zmq_msg_close(&extra);
        count++;
    }
    return count;
}

bool rk_kv_read_number(zmq_msg_t *frame, uint64_t *number) {
    if (zmq_msg_size(frame) != 8)
        return false;
    const uint8_t *bytes = zmq_msg_data(frame);
    *number = 0;
    for (unsigned i = 0; i < 8; i++)
        *number = *number << 8 | bytes[i];
    return true;
}

/* [empty, number, payload], and an all-ones number at the end. */
void rk_kv_replay_read(rk_kv_source *source) {
    for (int i = 0; i < RK_KV_BURST && source->dealer; i++) {
        zmq_msg_t frames[3];
        uint64_t number;
        int count = rk_kv_receive(source->dealer, frames, 3);
        if (count < 0)
            return;
        bool sound = count == 3 && rk_kv_read_number(&frames[1], &number);
        if (!sound)
            rk_kv_source_malformed(source, "an answer to a replay cannot be read");
        else if (number == UINT64_MAX)
            answered_all(source);
        else
            answered(source, number, zmq_msg_data(&frames[2]), zmq_msg_size(&frames[2]));
        for (int f = 0; f < count && f < 3; f++)
            (void)zmq_msg_close(&frames[f]);
    }
}

void rk_kv_replay_tick(rk_kv_source *source, uint64_t now) {
    if (source->dealer && now >= source->deadline_ms) {
        (void)pthread_mutex_lock(&source->feed->lock);
        source->counts.replays_failed++;
        (void)pthread_mutex_unlock(&source->feed->lock);
        rk_log_event(source->feed->options.log, RK_LOG_WARNING,
                     "the publisher of KV events does not answer a replay; going on without",
                     RK_FIELD_INT("rank", source->rank), RK_FIELD_TEXT("replay", source->replay));
        finish(source);
    }
    if (source->check_ms > 0 && now >= source->check_ms && !source->dealer) {
        source->check_ms = 0;
        (void)ask(source);
    }
}

/* ---- live ---- */

void rk_kv_source_connected(rk_kv_source *source, bool connected) {
    (void)pthread_mutex_lock(&source->feed->lock);
    bool was = source->counts.connected;
    source->counts.connected = connected;
    (void)pthread_mutex_unlock(&source->feed->lock);
    if (was != connected)
        rk_log_event(source->feed->options.log, connected ? RK_LOG_INFO : RK_LOG_WARNING,
                     connected ? "reading KV events" : "the publisher of KV events is gone",
                     RK_FIELD_INT("rank", source->rank), RK_FIELD_TEXT("publisher", source->endpoint));
    if (!connected)
        return;
    source->check_ms = source->replay[0] ? rk_now_ms() + CHECK_MS : 0;
    (void)ask(source);
}

static void hold(rk_kv_source *source, uint64_t number, zmq_msg_t *payload) {
    (void)zmq_msg_init(&source->held);
    (void)zmq_msg_move(&source->held, payload);
    source->held_number = number;
    source->holds = true;
}

void rk_kv_source_live(rk_kv_source *source, uint64_t number, zmq_msg_t *payload) {
    if (number == UINT64_MAX) {
        rk_kv_source_malformed(source, "a KV event batch has no number that can be");
        return;
    }
    if (source->dealer) { /* a connection that was made anew while this one came */
        hold(source, number, payload);
        return;
    }
    rk_kv_taken taken = take(source, number, zmq_msg_data(payload), zmq_msg_size(payload), false);
    if (taken != RK_KV_MISSING && taken != RK_KV_ANEW)
        return;
    if (taken == RK_KV_ANEW)
        restart(source);
    if (ask(source))
        hold(source, number, payload);
    else
        (void)take(source, number, zmq_msg_data(payload), zmq_msg_size(payload), true);
}

void rk_kv_source_close(rk_kv_source *source) {
    close_dealer(source);
    if (source->holds)
        (void)zmq_msg_close(&source->held);
    source->holds = false;
    if (source->monitor)
        (void)zmq_close(source->monitor);
    if (source->sub)
        (void)zmq_close(source->sub);
    source->sub = source->monitor = NULL;
}
