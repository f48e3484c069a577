/* One engine step: the next tokens of every running choice, in one push. Loop thread only.
 *
 * The outputs point into memory that is reused from step to step; the sink copies what it needs. Choices that
 * are over leave the window after the push, since their outputs point into them. */
#include <stdlib.h>
#include <string.h>

#include "standin/internal.h"

#define TOP_LOGPROBS_MAX 128

static uint64_t mix(uint64_t number) { /* the finaliser of splitmix64 */
    number = (number ^ (number >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ (number >> 27)) * UINT64_C(0x94D049BB133111EB);
    return number ^ (number >> 31);
}

/* The prompt enters by its length and its two ends, so that a token costs the same for any prompt. */
static uint64_t choice_seed(const rk_request *request, uint32_t choice) {
    uint64_t seed = mix(request->input_count);
    if (request->input_count > 0)
        seed = mix(seed ^ request->input_ids[0] ^
                   ((uint64_t)request->input_ids[request->input_count - 1] << 32));
    if (request->sampling.has & RK_HAS_SEED)
        seed = mix(seed ^ request->sampling.seed);
    return mix(seed ^ choice);
}

uint32_t rk_standin_token(const rk_request *request, uint32_t choice, uint32_t at, uint32_t vocab_size) {
    return (uint32_t)(mix(choice_seed(request, choice) + at) % vocab_size);
}

static bool is_stop_token(const rk_request *request, uint32_t id) {
    for (size_t i = 0; i < request->sampling.stop_token_id_count; i++) {
        if (request->sampling.stop_token_ids[i] == id)
            return true;
    }
    return false;
}

/* The stop token that `stop_after` asks for; false when this request has none. */
static bool forced_stop(const rk_standin *standin, const rk_request *request, uint32_t *id) {
    const rk_sampling *sampling = &request->sampling;
    if (sampling->stop_token_id_count > 0)
        *id = sampling->stop_token_ids[0];
    else if (!sampling->ignore_eos)
        *id = standin->options.eos_token_id;
    else
        return false;
    return true;
}

static bool make_room(rk_job_choice *choice, uint32_t more) {
    if (choice->room - choice->made >= more)
        return true;
    uint32_t room = choice->room * 2 > choice->made + more ? choice->room * 2 : choice->made + more + 14;
    uint32_t *ids = realloc(choice->ids, room * sizeof *ids);
    if (!ids)
        return false;
    choice->ids = ids;
    choice->room = room;
    return true;
}

/* Appends the step's tokens and says in `output` how it stands. */
static void generate(rk_standin *standin, rk_job_choice *choice, rk_output *output) {
    const rk_standin_options *options = &standin->options;
    const rk_request *request = choice->job->request;
    uint64_t seed = choice_seed(request, choice->index);
    uint32_t before = choice->made;
    uint32_t until =
        choice->target - before > options->step_tokens ? before + options->step_tokens : choice->target;
    if (options->fails && until > options->fail_after)
        until = options->fail_after > before ? options->fail_after : before;
    while (choice->made < until && output->finish == RK_FINISH_NONE) {
        uint32_t id = (uint32_t)(mix(seed + choice->made) % options->vocab_size);
        bool forced = choice->made + 1 == options->stop_after && forced_stop(standin, request, &id);
        choice->ids[choice->made++] = id;
        if (forced || (choice->made > request->sampling.min_new_tokens && is_stop_token(request, id))) {
            output->finish = RK_FINISH_STOP;
            output->matched = RK_MATCHED_TOKEN;
            output->matched_token_id = id;
        }
    }
    standin->kv_used += choice->made - before;
    if (output->finish == RK_FINISH_NONE && options->fails && choice->made >= options->fail_after) {
        output->finish = RK_FINISH_ABORT;
        output->http_status = options->fail_status;
        output->message = options->fail_message;
        output->message_bytes = options->fail_message ? strlen(options->fail_message) : 0;
    } else if (output->finish == RK_FINISH_NONE && choice->made >= choice->target) {
        output->finish = RK_FINISH_LENGTH;
    }
}

static void fill_output(rk_standin *standin, rk_job_choice *choice, rk_output *output) {
    const rk_request *request = choice->job->request;
    uint32_t before = choice->made;
    *output = (rk_output){
        .handle = choice->job->order.handle,
        .choice = choice->index,
        .cumulative = standin->options.cumulative,
        .prompt_tokens = (uint32_t)request->input_count,
        .weight_version = standin->options.weight_version,
    };
    if (make_room(choice, standin->options.step_tokens)) {
        generate(standin, choice, output);
    } else {
        output->finish = RK_FINISH_ABORT;
        output->http_status = 503;
        output->message = "the stand-in engine is out of memory";
        output->message_bytes = strlen(output->message);
    }
    uint32_t from = output->cumulative ? 0 : before;
    output->token_ids = choice->ids ? choice->ids + from : NULL;
    output->token_count = choice->made - from;
    output->completion_tokens = choice->made;
    output->logprob_count = request->return_logprob ? choice->made - before : 0;
}

/* ---- logprobs ---- */

static size_t alternatives(const rk_request *request) {
    int32_t wanted = request->top_logprobs_num;
    return wanted <= 0 ? 0 : wanted < TOP_LOGPROBS_MAX ? (size_t)wanted : TOP_LOGPROBS_MAX;
}

static int grow(void **memory, size_t count, size_t size) {
    void *bigger = realloc(*memory, count * size);
    if (!bigger)
        return -1;
    *memory = bigger;
    return 0;
}

static bool logprob_room(rk_standin *standin, size_t positions, size_t tops) {
    if (positions > standin->logprobs_room) {
        if (grow((void **)&standin->logprobs, positions, sizeof *standin->logprobs) < 0 ||
            grow((void **)&standin->tops, positions, sizeof *standin->tops) < 0)
            return false;
        standin->logprobs_room = positions;
    }
    if (tops > standin->tops_room) {
        if (grow((void **)&standin->top_values, tops, sizeof *standin->top_values) < 0 ||
            grow((void **)&standin->top_ids, tops, sizeof *standin->top_ids) < 0)
            return false;
        standin->tops_room = tops;
    }
    return true;
}

/* The chosen token is the likeliest, the alternatives follow with falling values. */
static void fill_logprobs(rk_standin *standin, const rk_request *request, rk_output *output, size_t *position,
                          size_t *top) {
    size_t wanted = alternatives(request);
    const uint32_t *ids = output->token_ids + (output->token_count - output->logprob_count);
    output->logprobs = standin->logprobs + *position;
    output->top_logprobs = wanted ? standin->tops + *position : NULL;
    for (size_t i = 0; i < output->logprob_count; i++, ++*position) {
        float value = -(float)(mix(ids[i]) % 1000) / 1000.0F;
        standin->logprobs[*position] = value;
        standin->tops[*position] =
            (rk_top_logprobs){standin->top_values + *top, standin->top_ids + *top, wanted};
        for (size_t k = 0; k < wanted; k++, ++*top) {
            standin->top_values[*top] = value - (float)k;
            standin->top_ids[*top] = (uint32_t)((ids[i] + k) % standin->options.vocab_size);
        }
    }
}

static void add_logprobs(rk_standin *standin, size_t count) {
    size_t positions = 0, tops = 0, at = 0;
    for (rk_list *node = standin->running.next; node != &standin->running; node = node->next, at++) {
        positions += standin->outputs[at].logprob_count;
        tops += standin->outputs[at].logprob_count *
                alternatives(RK_CONTAINER(node, rk_job_choice, link)->job->request);
    }
    if (positions == 0)
        return;
    bool possible = logprob_room(standin, positions, tops);
    positions = tops = at = 0;
    for (rk_list *node = standin->running.next; at < count; node = node->next, at++) {
        rk_output *output = &standin->outputs[at];
        if (!possible)
            output->logprob_count = 0;
        else if (output->logprob_count > 0)
            fill_logprobs(standin, RK_CONTAINER(node, rk_job_choice, link)->job->request, output, &positions,
                          &tops);
    }
}

/* ---- the step ---- */

static bool outputs_room(rk_standin *standin) {
    if (standin->outputs_room >= standin->in_window)
        return true;
    if (grow((void **)&standin->outputs, standin->in_window, sizeof *standin->outputs) < 0)
        return false;
    standin->outputs_room = standin->in_window;
    return true;
}

void rk_standin_step(rk_standin *standin) {
    size_t count = 0;
    rk_standin_admit(standin);
    if (standin->in_window == 0 || !outputs_room(standin))
        return; /* without memory: the next step may have more luck */
    for (rk_list *node = standin->running.next; node != &standin->running; node = node->next)
        fill_output(standin, RK_CONTAINER(node, rk_job_choice, link), &standin->outputs[count++]);
    add_logprobs(standin, count);
    standin->sink.push(standin->servicer, standin->outputs, count);
    rk_list *node = standin->running.next;
    for (size_t i = 0; i < count; i++) {
        rk_list *after = node->next;
        if (standin->outputs[i].finish != RK_FINISH_NONE)
            rk_standin_over(standin, RK_CONTAINER(node, rk_job_choice, link));
        node = after;
    }
}

void rk_standin_step_free(rk_standin *standin) {
    free(standin->outputs);
    free(standin->logprobs);
    free(standin->tops);
    free(standin->top_values);
    free(standin->top_ids);
}
