/* The stand-in's line and window: who waits, who runs, who is over. Loop thread only. */
#include <stdlib.h>

#include "standin/internal.h"

void rk_job_free(rk_job *job) {
    for (uint32_t i = 0; i < job->count; i++)
        free(job->choices[i].ids);
    rk_request_unref(job->request);
    free(job);
}

static uint64_t tokens_held(const rk_job_choice *choice) {
    return choice->job->request->input_count + choice->made;
}

static uint32_t target_of(const rk_standin *standin, const rk_request *request) {
    const rk_sampling *sampling = &request->sampling;
    uint32_t wanted =
        sampling->has & RK_HAS_MAX_NEW_TOKENS ? sampling->max_new_tokens : standin->options.tokens;
    return wanted < standin->options.max_tokens ? wanted : standin->options.max_tokens;
}

void rk_standin_take(rk_standin *standin, rk_job *job) {
    if (rk_map_put(standin->jobs, job->order.handle, job) < 0) {
        for (uint32_t i = 0; i < job->count; i++) {
            rk_output lost = {.handle = job->order.handle, .choice = i, .finish = RK_FINISH_ABORT};
            lost.http_status = 503;
            standin->sink.push(standin->servicer, &lost, 1);
        }
        atomic_fetch_sub(&standin->live, job->count);
        rk_job_free(job);
        return;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        rk_job_choice *choice = &job->choices[i];
        choice->job = job;
        choice->index = i;
        choice->target = target_of(standin, job->request);
        rk_list_push_back(&standin->waiting, &choice->link);
        standin->in_line++;
    }
}

void rk_standin_admit(rk_standin *standin) {
    uint32_t window = standin->options.window;
    while (!rk_list_empty(&standin->waiting) && (window == 0 || standin->in_window < window)) {
        rk_list *first = rk_list_pop_front(&standin->waiting);
        rk_job_choice *choice = RK_CONTAINER(first, rk_job_choice, link);
        choice->running = true;
        rk_list_push_back(&standin->running, &choice->link);
        standin->in_line--;
        standin->in_window++;
        standin->kv_used += tokens_held(choice);
    }
}

void rk_standin_over(rk_standin *standin, rk_job_choice *choice) {
    rk_job *job = choice->job;
    rk_list_remove(&choice->link);
    if (choice->running) {
        standin->in_window--;
        standin->kv_used -= tokens_held(choice);
    } else {
        standin->in_line--;
    }
    atomic_fetch_sub(&standin->live, 1);
    if (--job->open > 0)
        return;
    (void)rk_map_remove(standin->jobs, job->order.handle);
    rk_job_free(job);
}

void rk_standin_drop(rk_standin *standin, uint64_t handle, uint32_t choice) {
    rk_job *job = rk_map_get(standin->jobs, handle);
    uint32_t count = job ? job->count : 0;
    for (uint32_t i = 0; i < count; i++) {
        if ((choice != RK_ALL_CHOICES && choice != i) || !rk_list_linked(&job->choices[i].link))
            continue;
        bool last = job->open == 1; /* the job goes with it */
        rk_standin_over(standin, &job->choices[i]);
        if (last)
            return;
    }
}
