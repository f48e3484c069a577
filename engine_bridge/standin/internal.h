/* What the files of the stand-in share. All of it belongs to the loop's thread, but for the inbox and the
 * atomics, which any thread may touch. */
#ifndef RK_STANDIN_INTERNAL_H
#define RK_STANDIN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "base/queue.h"
#include "standin/standin.h"

typedef struct rk_job rk_job;

/* One engine request: a choice of a leg. */
typedef struct rk_job_choice {
    rk_list link; /* in `waiting` or `running`; unlinked: over */
    rk_job *job;
    uint32_t index;  /* the choice's number */
    uint32_t target; /* tokens it will get */
    uint32_t made;   /* tokens it has got */
    uint32_t *ids;   /* `made` of them, room for `room`; grows as it runs */
    uint32_t room;   /* ids there is memory for */
    bool running;    /* it holds a place in the window */
} rk_job_choice;

typedef enum rk_order_kind {
    RK_ORDER_SUBMIT, /* the order is the first member of an rk_job */
    RK_ORDER_ABORT,
    RK_ORDER_QUERY,
    RK_ORDER_RELEASE,
} rk_order_kind;

/* What a servicer's thread asks for, on its way to the loop. */
typedef struct rk_order {
    rk_qnode node; /* must stay first: the queue hands it back */
    rk_order_kind kind;
    uint64_t handle; /* all but queries */
    uint32_t choice; /* abort; RK_ALL_CHOICES: all */
    rk_query query;
    uint64_t query_id;
} rk_order;

/* A leg in the engine; freed when its last choice is over. */
struct rk_job {
    rk_order order;
    rk_request *request; /* one reference */
    uint32_t count;      /* choices */
    uint32_t open;       /* choices that are not over */
    rk_job_choice choices[];
};

struct rk_standin {
    rk_standin_options options; /* defaults filled in */
    rk_standin_sink sink;
    rk_servicer *servicer;

    rk_queue inbox;
    int wake_fd; /* eventfd: something is in the inbox, or a flag has changed */
    pthread_t thread;
    bool started; /* the thread is there to be joined */
    _Atomic bool stopping;
    _Atomic bool stalled;
    _Atomic bool silent;
    _Atomic bool paused;
    _Atomic uint64_t live; /* choices that wait or run */
    _Atomic uint64_t submitted;
    _Atomic uint64_t aborts;

    rk_map *jobs;       /* handle → rk_job */
    rk_list waiting;    /* rk_job_choice.link, first come first served */
    rk_list running;    /* rk_job_choice.link */
    uint32_t in_window; /* length of `running` */
    uint32_t in_line;   /* length of `waiting` */
    uint64_t kv_used;   /* prompt and made tokens of running choices */
    rk_qnode *probes;   /* RK_QUERY_PROBE orders that wait for the next step */
    uint64_t beat_due_us;
    uint64_t step_due_us;

    /* One step's outputs, reused; `outputs_room` of each. */
    rk_output *outputs;
    size_t outputs_room;
    /* Logprobs of one step, reused: the values, the alternatives, and what they point to. */
    float *logprobs;
    rk_top_logprobs *tops;
    float *top_values;
    uint32_t *top_ids;
    size_t logprobs_room; /* positions there is memory for */
    size_t tops_room;     /* alternatives there is memory for, over all positions */
};

/* ---- jobs.c: loop thread ---- */

void rk_standin_take(rk_standin *standin, rk_job *job);
/* Forgets this choice, or all; unknown ones are fine. */
void rk_standin_drop(rk_standin *standin, uint64_t handle, uint32_t choice);
/* Moves who fits from the line into the window. */
void rk_standin_admit(rk_standin *standin);
/* The choice is over: out of its list, its job freed with the last one. */
void rk_standin_over(rk_standin *standin, rk_job_choice *choice);
void rk_job_free(rk_job *job); /* one that no list and no map knows */

/* ---- step.c: loop thread ---- */

/* Gives every running choice its next tokens and pushes them, as one step. */
void rk_standin_step(rk_standin *standin);
void rk_standin_step_free(rk_standin *standin); /* the reused memory */

#endif
