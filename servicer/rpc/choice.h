/* What one choice of a Generate call has produced and what of it is still to be written.
 *
 * The engine's outputs come in as whatever the engine yields (all tokens so far, or only the new ones); here
 * they become one growing array of tokens, with the logprobs beside it. Nothing is encoded before it can be
 * written: a stream whose reader is slow costs four bytes a token, not an encoded message each.
 *
 * Poller thread of the call only.
 */
#ifndef RK_RPC_CHOICE_H
#define RK_RPC_CHOICE_H

#include "dialects/dialect.h"

typedef struct rk_choice {
    uint32_t index; /* on the wire */
    uint32_t *ids;  /* `count` tokens, matched stop token trimmed once finished */
    size_t count;
    size_t capacity; /* of ids and of the two arrays below */
    float *logprobs; /* as ids; NULL: the client did not ask */
    uint32_t *logprob_ids;
    uint32_t *top_ends;   /* alternatives up to and including each position */
    size_t logprob_count; /* positions that have logprobs; less than count: the engine gave none */
    float *top_values;
    uint32_t *top_ids;
    size_t top_count;
    size_t top_capacity;
    size_t written; /* tokens that Chunks have carried */
    bool announced; /* a Chunk has gone out or is about to: the gateway knows the choice */
    bool finished;  /* nothing more comes */
    uint32_t prompt_tokens;
    uint32_t completion_tokens;
    uint32_t cached_tokens;
    uint32_t spec_accepted_tokens;
    uint32_t spec_draft_tokens;
    char *weight_version; /* NULL: not said */
    rk_finish finish;
    rk_matched matched;
    uint32_t matched_token_id;
    char *matched_string;
    size_t matched_bytes;
} rk_choice;

void rk_choice_free(rk_choice *choice); /* what it holds */
/* Takes in one output. 0 or -ENOMEM (nothing was taken). */
int rk_choice_add(rk_choice *choice, const rk_output *output, bool with_logprobs, bool trim_stop);
/* The tokens from..to as a Chunk would carry them. */
rk_tokens rk_choice_tokens(const rk_choice *choice, size_t from, size_t to);
rk_completion rk_choice_completion(const rk_choice *choice);
/* Bytes that are held for the reader: tokens not written yet, with their logprobs. */
size_t rk_choice_backlog(const rk_choice *choice);

#endif
