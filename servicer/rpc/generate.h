/* One Generate call; see generate.c. Every field belongs to the call's poller unless it says otherwise. */
#ifndef RK_RPC_GENERATE_H
#define RK_RPC_GENERATE_H

#include "base/utf8.h"
#include "rpc/choice.h"
#include "rpc/internal.h"
#include "rpc/trace.h"

#define RK_REQUEST_ID_MAX 512

/* Something to be written: a Chunk of a choice up to `end`, or its Complete. */
typedef struct rk_mark {
    uint32_t choice;
    bool complete;
    size_t end;                 /* tokens of the choice, counted from its first */
    uint32_t completion_tokens; /* as the engine counted them then */
} rk_mark;

struct rk_generate {
    rk_call call; /* must stay first */
    rk_request *request;
    char trace_id[RK_TRACE_ID_SIZE]; /* "": none */
    uint64_t handle;
    uint32_t peer;    /* decode: the peer that has the other leg; 0: none */
    int32_t rank;     /* DP rank for the engine; written by whoever posts ADMIT, before the bit */
    bool in_table;    /* in servicer->calls */
    bool released;    /* the handler's reference is gone */
    bool output_seen; /* under calls_lock: the ledger knows of the first output */

    rk_choice *choices; /* choice_count of them */
    uint32_t choice_count;
    uint32_t open_choices; /* not finished yet */

    rk_mark *marks; /* a queue: mark_count from mark_first on */
    size_t mark_first;
    size_t mark_count;
    size_t mark_capacity;

    rk_tag write_tag;
    uint32_t hinted;     /* messages since the last one that was not hinted */
    size_t unread_bytes; /* of output in gRPC core's buffer, which no reader has asked for yet */
    bool writing;        /* a batch is in flight */
    bool headers_due;    /* headers may go out now */
    bool headers_sent;   /* they are in a batch that has been started */
    bool end_set;        /* `end` is decided and goes out behind the marks */
    bool end_retry;      /* with retry metadata */
    rk_status end;

    rk_post post;            /* queued while `posted` is not 0 */
    _Atomic unsigned posted; /* RK_POSTED_…; any thread */
    rk_effect end_effect;    /* written once, before its bit is set */
};

/* Any thread: the Abort RPC named one choice. */
void rk_generate_end_choice(rk_generate *generate, uint32_t choice, rk_poller *self);

#endif
