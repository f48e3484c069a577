/* A stand-in engine in plain C: fills rk_engine_ops and answers with made-up tokens.
 *
 * For unit tests, and for benchmarks that ask what the servicer itself costs. One thread is the engine's
 * loop: requests run in a window, first come first served, each step gives every running choice its next
 * tokens, and the whole step goes to the servicer in one push. Tokens follow from the prompt, the seed and
 * the choice, so the same request always gets the same answer.
 *
 * Life: rk_standin_new → rk_servicer_new(…, rk_standin_ops(), standin) → rk_standin_attach → rk_standin_start
 * → … → rk_servicer_stop → rk_standin_free. There is no KV here: a prefill and a decode both just generate.
 */
#ifndef RK_STANDIN_H
#define RK_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

#include "roomkeeper/engine.h"

/* Where the stand-in speaks to. The default is the servicer's own rk_sink_… functions. `servicer` is what was
 * attached. */
typedef struct rk_standin_sink {
    void (*push)(rk_servicer *servicer, const rk_output *outputs, size_t count);
    void (*aborted)(rk_servicer *servicer, uint64_t handle, uint32_t choice);
    void (*released)(rk_servicer *servicer, uint64_t handle);
    void (*beat)(rk_servicer *servicer);
    void (*loads)(rk_servicer *servicer, const rk_engine_load *loads, size_t count);
    void (*state)(rk_servicer *servicer, rk_engine_state state, const char *why);
    void (*answer)(rk_servicer *servicer, uint64_t query_id, rk_value *answer);
} rk_standin_sink;

/* All zero is a usable engine. Texts and the sink must outlive the stand-in. */
typedef struct rk_standin_options {
    uint64_t step_us;      /* from step to step; 0: as fast as it goes (the loop yields, nothing more) */
    uint32_t window;       /* choices that run at a time; 0: all of them */
    uint32_t tokens;       /* of a choice without max_new_tokens; 0: 64 */
    uint32_t max_tokens;   /* no choice gets more; 0: 1048576, the most there is */
    uint32_t step_tokens;  /* per choice and step; 0: 1 */
    uint32_t vocab_size;   /* token ids are below; 0: 32000 */
    uint32_t beat_ms;      /* beats and load reports are so far apart; 0: 250 */
    uint32_t kv_tokens;    /* told as max_total_tokens; 0: not known */
    bool cumulative;       /* outputs carry all ids so far, not only the new ones */
    uint32_t stop_after;   /* this token, from 1, is a stop token: the request's first, else eos; 0: none */
    uint32_t eos_token_id; /* see stop_after; not for requests with ignore_eos */
    bool fails;            /* every choice ends with an engine error */
    uint32_t fail_after;   /* tokens before the error */
    int fail_status;       /* its HTTP-like status; 0: none given */
    const char *fail_message;    /* NULL: none */
    int submit_error;            /* submit refuses with this -errno; 0: it takes everything */
    const char *weight_version;  /* NULL: not said */
    const rk_standin_sink *sink; /* NULL: the servicer's */
} rk_standin_options;

typedef struct rk_standin rk_standin;

rk_standin *
rk_standin_new(const rk_standin_options *options); /* copied; NULL: out of memory or descriptors */
/* The engine's functions; the `engine` that goes with them is the rk_standin. Static. The second one has a
 * release agent too: release_room ends the room at once and acknowledges. */
const rk_engine_ops *rk_standin_ops(void);
const rk_engine_ops *rk_standin_ops_releasing(void);
/* Whom to tell; before start. */
void rk_standin_attach(rk_standin *standin, rk_servicer *servicer);
/* Starts the loop, which says READY. 0 or -errno. Once. */
int rk_standin_start(rk_standin *standin);
/* Ends the loop and waits for it; what runs then gets nothing more. Not from a sink function. Twice is fine.
 */
void rk_standin_stop(rk_standin *standin);
void rk_standin_free(rk_standin *standin); /* stops first; no op may be called any more; NULL is fine */

/* How it misbehaves, from any thread, at any time. */
void rk_standin_stall(rk_standin *standin, bool on);   /* the loop hangs: no beat, no step, no answer */
void rk_standin_silence(rk_standin *standin, bool on); /* it beats, and takes aborts, but never answers */
void rk_standin_pause(rk_standin *standin, bool on);   /* it makes no steps, and says so when asked */

/* For tests, any thread: choices that run or wait in the engine, and engine requests it has seen. */
uint64_t rk_standin_live(const rk_standin *standin);
uint64_t rk_standin_submitted(const rk_standin *standin);
uint64_t rk_standin_aborts(const rk_standin *standin);

/* Token `at`, from 0, of this choice; what the engine will answer, but for stop tokens. */
uint32_t rk_standin_token(const rk_request *request, uint32_t choice, uint32_t at, uint32_t vocab_size);

#endif
