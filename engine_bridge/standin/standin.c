/* The stand-in's life, its inbox and its loop.
 *
 * The servicer's threads never wait here: what they ask for goes into a lock-free queue, and the first one in
 * an empty queue rings an eventfd. The loop takes all of it at once, then beats or steps as the clock says.
 */
#include "standin/standin.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "standin/internal.h"

#define MAX_TOKENS 1048576u /* of one choice: 4 MiB of ids */

static const rk_standin_sink servicer_sink = {
    .push = rk_sink_push,
    .aborted = rk_sink_aborted,
    .released = rk_sink_released,
    .beat = rk_sink_beat,
    .loads = rk_sink_loads,
    .state = rk_sink_state,
    .answer = rk_sink_answer,
};

/* ---- asked for, any thread ---- */

static void wake(rk_standin *standin) {
    const uint64_t one = 1;
    /* Fails only when the counter is full, and then the loop wakes anyway. */
    ssize_t written = write(standin->wake_fd, &one, sizeof one);
    (void)written;
}

static void post(rk_standin *standin, rk_order *order) {
    if (rk_queue_push(&standin->inbox, &order->node))
        wake(standin);
}

static int post_new(rk_standin *standin, rk_order order) {
    rk_order *copy = malloc(sizeof *copy);
    if (!copy)
        return -ENOMEM;
    *copy = order;
    post(standin, copy);
    return 0;
}

static int op_submit(void *engine, const rk_submission *submission) {
    rk_standin *standin = engine;
    rk_request *request = submission->request;
    if (standin->options.submit_error)
        return standin->options.submit_error;
    rk_job *job = calloc(1, sizeof *job + request->n * sizeof job->choices[0]);
    if (!job)
        return -ENOMEM;
    job->order.kind = RK_ORDER_SUBMIT;
    job->order.handle = submission->handle;
    job->request = rk_request_ref(request);
    job->count = job->open = request->n;
    atomic_fetch_add(&standin->live, job->count);
    atomic_fetch_add(&standin->submitted, job->count);
    post(standin, &job->order);
    return 0;
}

static void op_abort(void *engine, uint64_t handle, uint32_t choice) {
    rk_standin *standin = engine;
    atomic_fetch_add(&standin->aborts, 1);
    /* Without memory the abort is lost, and the request runs to its end: then its slot is free too. */
    (void)post_new(standin, (rk_order){.kind = RK_ORDER_ABORT, .handle = handle, .choice = choice});
}

static int op_query(void *engine, rk_query query, uint64_t query_id, const rk_value *argument) {
    (void)argument;
    if (query != RK_QUERY_PROBE && query != RK_QUERY_IS_PAUSED)
        return -ENOSYS;
    return post_new(engine, (rk_order){.kind = RK_ORDER_QUERY, .query = query, .query_id = query_id});
}

static int op_release(void *engine, uint64_t handle, const char *host, int32_t port, int64_t room,
                      const char *reason) {
    (void)host, (void)port, (void)room, (void)reason; /* the handle says it all: there is no KV */
    return post_new(engine, (rk_order){.kind = RK_ORDER_RELEASE, .handle = handle});
}

static const rk_engine_ops plain_ops = {.submit = op_submit, .abort = op_abort, .query = op_query};
static const rk_engine_ops releasing_ops = {
    .submit = op_submit, .abort = op_abort, .query = op_query, .release_room = op_release};

const rk_engine_ops *rk_standin_ops(void) {
    return &plain_ops;
}

const rk_engine_ops *rk_standin_ops_releasing(void) {
    return &releasing_ops;
}

static void set_flag(rk_standin *standin, _Atomic bool *flag, bool on) {
    atomic_store(flag, on);
    wake(standin);
}

void rk_standin_stall(rk_standin *standin, bool on) {
    set_flag(standin, &standin->stalled, on);
}

void rk_standin_silence(rk_standin *standin, bool on) {
    set_flag(standin, &standin->silent, on);
}

void rk_standin_pause(rk_standin *standin, bool on) {
    set_flag(standin, &standin->paused, on);
}

uint64_t rk_standin_live(const rk_standin *standin) {
    return atomic_load(&standin->live);
}

uint64_t rk_standin_submitted(const rk_standin *standin) {
    return atomic_load(&standin->submitted);
}

uint64_t rk_standin_aborts(const rk_standin *standin) {
    return atomic_load(&standin->aborts);
}

/* ---- carried out, loop thread ---- */

static bool makes_steps(const rk_standin *standin) {
    return !atomic_load(&standin->silent) && !atomic_load(&standin->paused);
}

static void answer(rk_standin *standin, uint64_t query_id, bool yes) {
    standin->sink.answer(standin->servicer, query_id, rk_value_bool(yes));
}

static void take_query(rk_standin *standin, rk_order *order) {
    if (order->query == RK_QUERY_PROBE) { /* one token: the next step's */
        order->node.next = standin->probes;
        standin->probes = &order->node;
        return;
    }
    if (!atomic_load(&standin->silent))
        answer(standin, order->query_id, atomic_load(&standin->paused));
    free(order);
}

static void answer_probes(rk_standin *standin) {
    while (standin->probes) {
        rk_order *order = (rk_order *)standin->probes;
        standin->probes = order->node.next;
        answer(standin, order->query_id, true);
        free(order);
    }
}

static void carry_out(rk_standin *standin, rk_order *order) {
    switch (order->kind) {
    case RK_ORDER_SUBMIT:
        rk_standin_take(standin, (rk_job *)order);
        return;
    case RK_ORDER_QUERY:
        take_query(standin, order);
        return;
    case RK_ORDER_ABORT:
        rk_standin_drop(standin, order->handle, order->choice);
        standin->sink.aborted(standin->servicer, order->handle, order->choice);
        break;
    case RK_ORDER_RELEASE:
        rk_standin_drop(standin, order->handle, RK_ALL_CHOICES);
        standin->sink.released(standin->servicer, order->handle);
        break;
    }
    free(order);
}

static bool has_work(const rk_standin *standin) {
    return standin->in_window + standin->in_line > 0 || standin->probes;
}

static void take_orders(rk_standin *standin, uint64_t now) {
    bool idle = !has_work(standin);
    rk_qnode *node = rk_queue_take(&standin->inbox);
    while (node) {
        rk_qnode *next = node->next;
        carry_out(standin, (rk_order *)node);
        node = next;
    }
    if (idle && has_work(standin)) /* a first token takes a step's time */
        standin->step_due_us = now + standin->options.step_us;
}

static void beat(rk_standin *standin) {
    const rk_standin_options *options = &standin->options;
    double usage = options->kv_tokens ? (double)standin->kv_used / (double)options->kv_tokens : -1;
    rk_engine_load load = {
        .rank = 0,
        .running = (int32_t)standin->in_window,
        .waiting = (int32_t)standin->in_line,
        .used_tokens = (int64_t)standin->kv_used,
        .max_total_tokens = options->kv_tokens ? (int64_t)options->kv_tokens : -1,
        .token_usage = usage < 1 ? usage : 1,
        .active_token_usage = usage < 1 ? usage : 1,
        .gen_throughput = -1,
        .cache_hit_rate = -1,
    };
    standin->sink.beat(standin->servicer);
    standin->sink.loads(standin->servicer, &load, 1);
}

/* Sleeps until `until` or until somebody wakes it; UINT64_MAX: only the latter. */
static void wait_until(rk_standin *standin, uint64_t until) {
    struct pollfd bell = {.fd = standin->wake_fd, .events = POLLIN};
    uint64_t now = rk_now_us();
    uint64_t left = until > now ? until - now : 0;
    struct timespec span = {.tv_sec = (time_t)(left / 1000000), .tv_nsec = (long)(left % 1000000) * 1000};
    uint64_t count;
    if (ppoll(&bell, 1, until == UINT64_MAX ? NULL : &span, NULL) > 0 &&
        read(standin->wake_fd, &count, sizeof count) < 0)
        return; /* somebody else's read cannot be: the next turn looks again */
}

/* One turn: what is asked, what is due. Returns when to look again; 0: at once. */
static uint64_t turn(rk_standin *standin) {
    uint64_t now = rk_now_us();
    uint64_t step_us = standin->options.step_us;
    take_orders(standin, now);
    if (now >= standin->beat_due_us) {
        beat(standin);
        standin->beat_due_us = now + standin->options.beat_ms * UINT64_C(1000);
    }
    if (!makes_steps(standin) || !has_work(standin))
        return standin->beat_due_us;
    if (now >= standin->step_due_us) {
        answer_probes(standin);
        rk_standin_step(standin);
        /* Steady steps; after a hold-up it goes on from now, it does not catch up. */
        standin->step_due_us += step_us;
        if (standin->step_due_us <= now)
            standin->step_due_us = now + step_us;
    }
    if (step_us == 0)
        return 0;
    return standin->step_due_us < standin->beat_due_us ? standin->step_due_us : standin->beat_due_us;
}

static void *loop(void *arg) {
    rk_standin *standin = arg;
    standin->sink.state(standin->servicer, RK_ENGINE_READY, "");
    while (!atomic_load(&standin->stopping)) {
        uint64_t again = atomic_load(&standin->stalled) ? UINT64_MAX : turn(standin);
        if (again == 0)
            (void)sched_yield(); /* the servicer may be on the same core */
        else
            wait_until(standin, again);
    }
    return NULL;
}

/* ---- life ---- */

static rk_standin_options with_defaults(const rk_standin_options *given) {
    rk_standin_options options = *given;
    options.tokens = options.tokens ? options.tokens : 64;
    if (options.max_tokens == 0 || options.max_tokens > MAX_TOKENS)
        options.max_tokens = MAX_TOKENS;
    options.step_tokens = options.step_tokens ? options.step_tokens : 1;
    if (options.step_tokens > options.max_tokens)
        options.step_tokens = options.max_tokens;
    options.vocab_size = options.vocab_size ? options.vocab_size : 32000;
    options.beat_ms = options.beat_ms ? options.beat_ms : 250;
    return options;
}

rk_standin *rk_standin_new(const rk_standin_options *options) {
    rk_standin *standin = calloc(1, sizeof *standin);
    if (!standin)
        return NULL;
    standin->options = with_defaults(options);
    standin->sink = options->sink ? *options->sink : servicer_sink;
    rk_queue_init(&standin->inbox);
    rk_list_init(&standin->waiting);
    rk_list_init(&standin->running);
    standin->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    standin->jobs = rk_map_new();
    if (standin->wake_fd < 0 || !standin->jobs) {
        rk_standin_free(standin);
        return NULL;
    }
    return standin;
}

void rk_standin_attach(rk_standin *standin, rk_servicer *servicer) {
    standin->servicer = servicer;
}

int rk_standin_start(rk_standin *standin) {
    if (standin->started)
        return -EALREADY;
    int rc = pthread_create(&standin->thread, NULL, loop, standin);
    standin->started = rc == 0;
    return -rc;
}

void rk_standin_stop(rk_standin *standin) {
    if (!standin->started)
        return;
    set_flag(standin, &standin->stopping, true);
    (void)pthread_join(standin->thread, NULL);
    standin->started = false;
}

static void free_orders(rk_qnode *node) {
    while (node) {
        rk_order *order = (rk_order *)node;
        node = node->next;
        if (order->kind == RK_ORDER_SUBMIT)
            rk_job_free((rk_job *)order);
        else
            free(order);
    }
}

static void free_job(uint64_t handle, void *job, void *arg) {
    (void)handle, (void)arg;
    rk_job_free(job);
}

void rk_standin_free(rk_standin *standin) {
    if (!standin)
        return;
    rk_standin_stop(standin);
    free_orders(rk_queue_take(&standin->inbox));
    free_orders(standin->probes);
    if (standin->jobs)
        rk_map_each(standin->jobs, free_job, NULL);
    rk_map_free(standin->jobs);
    rk_standin_step_free(standin);
    if (standin->wake_fd >= 0)
        (void)close(standin->wake_fd);
    free(standin);
}
