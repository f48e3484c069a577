/* SubscribeKvEvents: each call has a place in the history of every rank, and writes one batch at a time.
 *
 * All read the same entries, so a subscriber that does not read holds one message and its place. It is ended
 * when the history has moved on past that place, or when it has taken nothing for long; by a reset, which
 * needs no room in its window. The feed's thread and the clock say that there may be something to do; what,
 * the call's poller finds out. */
#include "rpc/kv_call.h"

#include <errno.h>
#include <grpc/byte_buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kv/encode.h"

#define SUBSCRIBERS_MAX 64
#define HISTORY_ENTRIES 10000 /* at least; more when the publisher keeps more */

typedef struct rk_kv_hub {
    rk_kv_feed *feed;
    uint32_t ranks;
    pthread_mutex_t lock;
    rk_list subscribers; /* rk_kv_call.link, with one reference each */
    uint64_t count;
    bool over; /* nobody may join any more */
    _Atomic uint64_t slow;
} rk_kv_hub;

typedef struct rk_kv_call {
    rk_call call; /* must stay first */
    rk_list link;
    rk_post post;
    _Atomic bool posted;
    _Atomic bool over; /* end it with a status: the servicer stops */
    /* poller thread from here on */
    rk_tag write_tag;
    rk_kv_cursor *cursors; /* one for each rank */
    uint32_t turn;         /* the rank to look at first */
    rk_kv_pace pace;
    bool load_first;
    bool batched; /* a batch has been sent: its number and rank follow */
    uint64_t last_number;
    uint32_t last_rank;
    uint64_t write_ms; /* when what is being written was handed over */
    bool writing;
    bool headers_sent;
    bool released;
} rk_kv_call;

size_t rk_kv_call_size(void) {
    return sizeof(rk_kv_call);
}

static void pump(rk_kv_call *kv);

/* ---- the end of a subscription ---- */

static void destroy(rk_call *call) {
    rk_kv_call *kv = (rk_kv_call *)call;
    for (uint32_t rank = 0; kv->cursors && rank < call->servicer->kv->ranks; rank++)
        rk_kv_cursor_clear(&kv->cursors[rank]);
    free(kv->cursors);
}

static void release(rk_kv_call *kv) {
    if (kv->released)
        return;
    kv->released = true;
    rk_kv_hub *hub = kv->call.servicer->kv;
    (void)pthread_mutex_lock(&hub->lock);
    bool linked = rk_list_linked(&kv->link);
    rk_list_remove(&kv->link);
    hub->count -= linked;
    (void)pthread_mutex_unlock(&hub->lock);
    if (linked)
        rk_call_unref(&kv->call);
    rk_call_unref(&kv->call); /* the handler's own */
}

static void closed(rk_call *call) {
    rk_kv_call *kv = (rk_kv_call *)call;
    if (!call->cancelled)
        return;
    call->ended = true;
    if (!kv->writing)
        release(kv);
}

static void end_slow(rk_kv_call *kv, const char *why) {
    rk_servicer *servicer = kv->call.servicer;
    atomic_fetch_add(&servicer->kv->slow, 1);
    rk_log_event(&servicer->log, RK_LOG_WARNING, "a subscriber of KV events is too slow and is ended",
                 RK_FIELD_TEXT("why", why));
    kv->call.ended = true;
    (void)grpc_call_cancel_with_status(kv->call.grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, why, NULL);
    if (!kv->writing)
        release(kv);
}

/* ---- writing ---- */

static void written(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    rk_kv_call *kv = RK_CONTAINER(tag, rk_kv_call, write_tag);
    kv->writing = false;
    if (!ok || kv->call.ended)
        release(kv);
    else
        pump(kv);
    rk_call_unref(&kv->call);
}

/* `bytes` NULL and `status` NULL: the headers alone. */
static void start_write(rk_kv_call *kv, grpc_byte_buffer *bytes, const rk_status *status) {
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    size_t count = 0;
    if (!kv->headers_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    kv->headers_sent = true;
    grpc_slice text = grpc_slice_from_copied_string(status ? status->text : "");
    if (status) {
        kv->call.ended = true;
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status = (grpc_status_code)status->code;
        ops[count++].data.send_status_from_server.status_details = &text;
    } else if (bytes) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = bytes;
    }
    kv->writing = true;
    kv->write_ms = rk_now_ms();
    rk_call_batch(&kv->call, ops, count, &kv->write_tag);
    grpc_slice_unref(text);
    if (bytes)
        grpc_byte_buffer_destroy(bytes);
}

static void unref_entry(void *entry) {
    rk_kv_entry_unref(entry);
}

/* The entry's bytes as they are, shared, and behind them the load: parts of one message. */
static void write_batch(rk_kv_call *kv, uint32_t rank, rk_kv_entry *entry) {
    rk_servicer *servicer = kv->call.servicer;
    uint64_t now = rk_now_ms();
    rk_load_row row;
    bool has_load = rk_load_read(servicer, rank, now, &row);
    rk_load_stamp stamp = rk_kv_pace_sent(&kv->pace, has_load ? &row : NULL, false, now);
    rk_buf load = RK_BUF_INIT;
    if (has_load)
        servicer->dialect->encode_kv_load(&load, &row, &stamp);
    size_t load_size = load.failed ? 0 : load.size;
    kv->batched = true;
    kv->last_number = entry->sequence;
    kv->last_rank = rank;
    grpc_slice slices[2] = {
        grpc_slice_new_with_user_data(entry->bytes, entry->size, unref_entry, entry),
        grpc_slice_from_copied_buffer((const char *)load.data, load_size),
    };
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(slices, 2);
    grpc_slice_unref(slices[0]);
    grpc_slice_unref(slices[1]);
    rk_buf_free(&load);
    start_write(kv, bytes, NULL);
}

static double unix_time(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A batch with nothing but the load. It repeats the last number, and has 0 before there is one. */
static bool write_heartbeat(rk_kv_call *kv) {
    rk_servicer *servicer = kv->call.servicer;
    uint64_t now = rk_now_ms();
    rk_load_row row;
    if ((!kv->batched && !kv->load_first) || !rk_load_read(servicer, kv->last_rank, now, &row) ||
        !rk_kv_pace_due(&kv->pace, &row, now))
        return false;
    rk_load_stamp stamp = rk_kv_pace_sent(&kv->pace, &row, true, now);
    rk_buf out = RK_BUF_INIT;
    rk_kv_write_batch(&out, kv->last_number, unix_time(), (int32_t)kv->last_rank);
    servicer->dialect->encode_kv_load(&out, &row, &stamp);
    if (!out.failed)
        start_write(kv, rk_call_message(&out), NULL);
    bool wrote = !out.failed;
    rk_buf_free(&out);
    return wrote;
}

/* ---- what there is to do ---- */

static bool is_slow(rk_kv_call *kv) {
    rk_servicer *servicer = kv->call.servicer;
    char why[256];
    for (uint32_t rank = 0; rank < servicer->kv->ranks; rank++) {
        if (rk_kv_feed_peek(servicer->kv->feed, rank, &kv->cursors[rank]) != -ENOBUFS)
            continue;
        (void)snprintf(why, sizeof why,
                       "more than %lld bytes of KV events of rank %u were left unread (kv_history_bytes); "
                       "subscribe again for a snapshot",
                       (long long)servicer->config.kv_history_bytes, rank);
        end_slow(kv, why);
        return true;
    }
    if (!kv->writing || (double)(rk_now_ms() - kv->write_ms) < servicer->config.kv_stall_seconds * 1000)
        return false;
    (void)snprintf(why, sizeof why, "no KV event was read for %g s (kv_stall_seconds); subscribe again",
                   servicer->config.kv_stall_seconds);
    end_slow(kv, why);
    return true;
}

static bool write_next(rk_kv_call *kv) {
    rk_kv_hub *hub = kv->call.servicer->kv;
    for (uint32_t i = 0; i < hub->ranks; i++) {
        uint32_t rank = (kv->turn + i) % hub->ranks;
        rk_kv_entry *entry;
        int found = rk_kv_feed_next(hub->feed, rank, &kv->cursors[rank], &entry);
        if (found > 0) {
            kv->turn = rank + 1;
            write_batch(kv, rank, entry);
            return true;
        }
        if (found == -ENOMEM) {
            rk_status status;
            (void)rk_status_set(&status, RK_RESOURCE_EXHAUSTED, "out of memory: subscribe again later");
            start_write(kv, NULL, &status);
            return true;
        }
    }
    return false;
}

static void pump(rk_kv_call *kv) {
    if (kv->call.ended || is_slow(kv) || kv->writing)
        return;
    if (atomic_load(&kv->over)) {
        rk_status status;
        (void)rk_status_set(&status, RK_UNAVAILABLE, "the worker is shutting down");
        start_write(kv, NULL, &status);
    } else if (!kv->headers_sent) { /* who subscribes waits for them */
        start_write(kv, NULL, NULL);
    } else if (!write_next(kv)) {
        (void)write_heartbeat(kv);
    }
}

static void posted(rk_post *post, rk_poller *poller) {
    (void)poller;
    rk_kv_call *kv = RK_CONTAINER(post, rk_kv_call, post);
    atomic_store(&kv->posted, false);
    pump(kv);
    rk_call_unref(&kv->call);
}

/* ---- the hub ---- */

/* Any thread. */
static void tell_all(rk_kv_hub *hub, bool over) {
    (void)pthread_mutex_lock(&hub->lock);
    hub->over |= over;
    for (rk_list *node = hub->subscribers.next; node != &hub->subscribers; node = node->next) {
        rk_kv_call *kv = RK_CONTAINER(node, rk_kv_call, link);
        if (over)
            atomic_store(&kv->over, true);
        if (!atomic_exchange(&kv->posted, true)) {
            rk_call_ref(&kv->call);
            rk_call_post(&kv->call, &kv->post, NULL); /* never runs here: it only queues */
        }
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

static void on_news(void *arg) {
    tell_all(arg, false);
}

static rk_code join(rk_kv_call *kv, rk_status *status) {
    rk_kv_hub *hub = kv->call.servicer->kv;
    rk_code code = RK_OK;
    (void)pthread_mutex_lock(&hub->lock);
    if (hub->over) {
        code = rk_status_set(status, RK_UNAVAILABLE, "the worker is shutting down");
    } else if (hub->count >= SUBSCRIBERS_MAX) {
        code = rk_status_set(status, RK_RESOURCE_EXHAUSTED,
                             "there are %d subscribers of KV events already; end one first", SUBSCRIBERS_MAX);
    } else {
        rk_call_ref(&kv->call);
        rk_list_push_back(&hub->subscribers, &kv->link);
        hub->count++;
    }
    (void)pthread_mutex_unlock(&hub->lock);
    return code;
}

void rk_kv_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_kv_call *kv = (rk_kv_call *)call;
    rk_servicer *servicer = call->servicer;
    rk_kv_query query;
    rk_status status;
    rk_list_init(&kv->link);
    rk_code code = servicer->dialect->decode_kv(bytes, size, &query, &status);
    const rk_kv_hub *hub = servicer->kv;
    if (code == RK_OK && !hub)
        code = rk_status_set(&status, RK_UNIMPLEMENTED,
                             "the engine publishes no KV events; start it with --kv-events-config "
                             "'{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\"}'");
    if (code == RK_OK && hub) {
        kv->cursors = calloc(hub->ranks, sizeof *kv->cursors);
        call->destroy = destroy;
        if (!kv->cursors)
            code = rk_status_set(&status, RK_RESOURCE_EXHAUSTED, "out of memory: subscribe again later");
    }
    if (code == RK_OK && hub && kv->cursors) {
        for (uint32_t rank = 0; rank < hub->ranks; rank++)
            kv->cursors[rank].start = query.start;
        kv->load_first = query.load_first;
        kv->post.run = posted;
        kv->write_tag.run = written;
        code = join(kv, &status);
    }
    if (code != RK_OK) {
        rk_call_fail(call, &status);
        return;
    }
    call->on_closed = closed;
    pump(kv);
}

int rk_kv_new(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    const rk_worker_info *info = rk_info_get(servicer->info);
    if (!info->kv_endpoint || !info->kv_endpoint[0])
        return 0;
    rk_kv_hub *hub = calloc(1, sizeof *hub);
    if (!hub) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory");
        return -ENOMEM;
    }
    (void)pthread_mutex_init(&hub->lock, NULL);
    rk_list_init(&hub->subscribers);
    hub->ranks = servicer->rooms.ranks;
    servicer->kv = hub;
    const rk_kv_feed_options options = {
        .endpoint = info->kv_endpoint,
        .replay = info->kv_replay_endpoint,
        .topic = info->kv_topic,
        .ranks = hub->ranks,
        .history_entries =
            info->kv_replay_batches > HISTORY_ENTRIES ? info->kv_replay_batches : HISTORY_ENTRIES,
        .history_bytes = (size_t)servicer->config.kv_history_bytes,
        .record_bytes = (size_t)servicer->config.kv_record_bytes,
        .log = &servicer->log,
        .on_news = on_news,
        .arg = hub,
    };
    int result = 0;
    hub->feed = rk_kv_feed_new(&options, &result);
    if (hub->feed)
        return 0;
    if (result == -EINVAL)
        (void)snprintf(error, RK_ERROR_MAX,
                       "--kv-events-config: endpoint \"%.100s\" or replay_endpoint \"%.100s\" cannot be read "
                       "from; give tcp://host:port, with a port of at most 65535 for every rank",
                       info->kv_endpoint, info->kv_replay_endpoint ? info->kv_replay_endpoint : "");
    else
        (void)snprintf(error, RK_ERROR_MAX, "out of memory");
    return result;
}

int rk_kv_start(rk_servicer *servicer) {
    return servicer->kv ? rk_kv_feed_start(servicer->kv->feed) : 0;
}

void rk_kv_tick(rk_servicer *servicer) {
    if (servicer->kv)
        tell_all(servicer->kv, false);
}

void rk_kv_end(rk_servicer *servicer) {
    if (servicer->kv)
        tell_all(servicer->kv, true);
}

void rk_kv_stop(rk_servicer *servicer) {
    if (servicer->kv)
        rk_kv_feed_stop(servicer->kv->feed);
}

void rk_kv_free(rk_servicer *servicer) {
    if (!servicer->kv)
        return;
    rk_kv_feed_free(servicer->kv->feed);
    (void)pthread_mutex_destroy(&servicer->kv->lock);
    free(servicer->kv);
    servicer->kv = NULL;
}

rk_kv_feed *rk_kv_hub_read(const rk_servicer *servicer, rk_kv_hub_counts *counts) {
    *counts = (rk_kv_hub_counts){0};
    if (!servicer->kv)
        return NULL;
    (void)pthread_mutex_lock(&servicer->kv->lock);
    counts->subscribers = servicer->kv->count;
    (void)pthread_mutex_unlock(&servicer->kv->lock);
    counts->slow = atomic_load(&servicer->kv->slow);
    return servicer->kv->feed;
}
