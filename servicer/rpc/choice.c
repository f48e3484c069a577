/* See choice.h. */
#include "rpc/choice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 32

void rk_choice_free(rk_choice *choice) {
    free(choice->ids);
    free(choice->logprobs);
    free(choice->logprob_ids);
    free(choice->top_ends);
    free(choice->top_values);
    free(choice->top_ids);
    free(choice->weight_version);
    free(choice->matched_string);
}

/* Doubles `*array` to hold `need` items; the other arrays follow the same capacity. */
static int resize(void *array, size_t capacity, size_t item) {
    void **slot = array;
    void *larger = realloc(*slot, capacity * item);
    if (!larger)
        return -ENOMEM;
    *slot = larger;
    return 0;
}

static int reserve(rk_choice *choice, size_t need, bool with_logprobs) {
    if (need <= choice->capacity)
        return 0;
    size_t capacity = choice->capacity ? choice->capacity : FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    if (resize(&choice->ids, capacity, sizeof *choice->ids) < 0)
        return -ENOMEM;
    if (with_logprobs && (resize(&choice->logprobs, capacity, sizeof *choice->logprobs) < 0 ||
                          resize(&choice->logprob_ids, capacity, sizeof *choice->logprob_ids) < 0 ||
                          resize(&choice->top_ends, capacity, sizeof *choice->top_ends) < 0))
        return -ENOMEM;
    choice->capacity = capacity;
    return 0;
}

static int reserve_top(rk_choice *choice, size_t need) {
    if (need <= choice->top_capacity)
        return 0;
    size_t capacity = choice->top_capacity ? choice->top_capacity : FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    if (resize(&choice->top_values, capacity, sizeof *choice->top_values) < 0 ||
        resize(&choice->top_ids, capacity, sizeof *choice->top_ids) < 0)
        return -ENOMEM;
    choice->top_capacity = capacity;
    return 0;
}

/* Logprobs of the `fresh` last tokens of the output. A position the engine gave none for breaks the
 * alignment, and from there on the choice has none. */
static int add_logprobs(rk_choice *choice, const rk_output *output, size_t fresh) {
    if (output->logprob_count < fresh || choice->logprob_count != choice->count)
        return 0;
    size_t from = output->logprob_count - fresh;
    size_t alternatives = 0;
    for (size_t i = 0; i < fresh && output->top_logprobs; i++)
        alternatives += output->top_logprobs[from + i].count;
    if (reserve_top(choice, choice->top_count + alternatives) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < fresh; i++) {
        size_t at = choice->count + i;
        choice->logprobs[at] = output->logprobs[from + i];
        choice->logprob_ids[at] = output->logprob_ids ? output->logprob_ids[from + i]
                                                      : output->token_ids[output->token_count - fresh + i];
        if (output->top_logprobs) {
            const rk_top_logprobs *top = &output->top_logprobs[from + i];
            if (top->count > 0) {
                memcpy(choice->top_values + choice->top_count, top->values, top->count * sizeof(float));
                memcpy(choice->top_ids + choice->top_count, top->token_ids, top->count * sizeof(uint32_t));
                choice->top_count += top->count;
            }
        }
        choice->top_ends[at] = (uint32_t)choice->top_count;
    }
    choice->logprob_count += fresh;
    return 0;
}

static char *copy_bytes(const char *bytes, size_t size) {
    char *copy = malloc(size + 1);
    if (copy) {
        memcpy(copy, bytes, size);
        copy[size] = '\0';
    }
    return copy;
}

static int note_version(rk_choice *choice, const char *version) {
    if (!version || (choice->weight_version && strcmp(choice->weight_version, version) == 0))
        return 0;
    char *copy = strdup(version);
    if (!copy)
        return -ENOMEM;
    free(choice->weight_version);
    choice->weight_version = copy;
    return 0;
}

/* A matched stop token belongs to the finish, not to the text. */
static void trim_matched(rk_choice *choice) {
    if (choice->finish != RK_FINISH_STOP || choice->matched != RK_MATCHED_TOKEN ||
        choice->count <= choice->written || choice->ids[choice->count - 1] != choice->matched_token_id)
        return;
    choice->count--;
    if (choice->logprob_count > choice->count) {
        choice->logprob_count = choice->count;
        choice->top_count = choice->count ? choice->top_ends[choice->count - 1] : 0;
    }
}

static int finish(rk_choice *choice, const rk_output *output, bool trim_stop) {
    if (output->matched == RK_MATCHED_STRING) {
        choice->matched_string = copy_bytes(output->matched_string, output->matched_bytes);
        if (!choice->matched_string)
            return -ENOMEM;
        choice->matched_bytes = output->matched_bytes;
    }
    choice->finished = true;
    choice->finish = output->finish;
    choice->matched = output->matched;
    choice->matched_token_id = output->matched_token_id;
    if (trim_stop)
        trim_matched(choice);
    return 0;
}

int rk_choice_add(rk_choice *choice, const rk_output *output, bool with_logprobs, bool trim_stop) {
    size_t fresh = output->token_count;
    if (output->cumulative)
        fresh = output->token_count > choice->count ? output->token_count - choice->count : 0;
    if (reserve(choice, choice->count + fresh, with_logprobs) < 0 ||
        note_version(choice, output->weight_version) < 0)
        return -ENOMEM;
    if (fresh > 0 && with_logprobs && add_logprobs(choice, output, fresh) < 0)
        return -ENOMEM;
    if (fresh > 0)
        memcpy(choice->ids + choice->count, output->token_ids + output->token_count - fresh,
               fresh * sizeof *choice->ids);
    choice->count += fresh;
    if (output->counted) {
        choice->completion_tokens = (uint32_t)choice->count;
    } else {
        choice->prompt_tokens = output->prompt_tokens;
        choice->completion_tokens = output->completion_tokens;
        choice->cached_tokens = output->cached_tokens;
    }
    choice->spec_accepted_tokens = output->spec_accepted_tokens;
    choice->spec_draft_tokens = output->spec_draft_tokens;
    return output->finish == RK_FINISH_NONE ? 0 : finish(choice, output, trim_stop);
}

rk_tokens rk_choice_tokens(const rk_choice *choice, size_t from, size_t to) {
    rk_tokens tokens = {
        .ids = choice->ids ? choice->ids + from : NULL,
        .count = to - from,
        .prompt_tokens = choice->prompt_tokens,
        .completion_tokens = choice->completion_tokens,
        .cached_tokens = choice->cached_tokens,
        .index = choice->index,
        .weight_version = choice->weight_version,
    };
    if (choice->logprobs && to > from && to <= choice->logprob_count) {
        tokens.logprobs = choice->logprobs + from;
        tokens.logprob_ids = choice->logprob_ids + from;
        tokens.top_ends = choice->top_ends + from;
        tokens.top_begin = from ? choice->top_ends[from - 1] : 0;
        tokens.top_values = choice->top_values;
        tokens.top_ids = choice->top_ids;
    }
    return tokens;
}

rk_completion rk_choice_completion(const rk_choice *choice) {
    rk_completion completion = {
        .tokens = rk_choice_tokens(choice, 0, choice->count),
        .finish = choice->finish,
        .matched = choice->matched,
        .matched_token_id = choice->matched_token_id,
        .matched_string = choice->matched_string,
        .matched_bytes = choice->matched_bytes,
        .spec_accepted_tokens = choice->spec_accepted_tokens,
        .spec_draft_tokens = choice->spec_draft_tokens,
    };
    return completion;
}

size_t rk_choice_backlog(const rk_choice *choice) {
    size_t tokens = choice->count - choice->written;
    size_t bytes = tokens * sizeof(uint32_t);
    if (choice->logprobs) {
        bytes += tokens * (sizeof(float) + 2 * sizeof(uint32_t));
        size_t written_top = choice->written && choice->written <= choice->logprob_count
                                 ? choice->top_ends[choice->written - 1]
                                 : 0;
        bytes += (choice->top_count - written_top) * (sizeof(float) + sizeof(uint32_t));
    }
    return bytes;
}
