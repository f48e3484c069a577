/* Subscriptions to KV events, as the files of the rpc layer that serve them share it. */
#ifndef RK_RPC_KV_CALL_H
#define RK_RPC_KV_CALL_H

#include "kv_feed/feed.h"
#include "rpc/internal.h"

/* The load records of one stream: numbered, and no more often than there is something to tell. */
typedef struct rk_kv_pace {
    uint64_t sample; /* records sent */
    bool known;      /* `last` has been sent */
    rk_load_row last;
    uint64_t sent_ms; /* anything */
    unsigned quiet;   /* heartbeats in a row that had nothing new */
} rk_kv_pace;

/* Whether a batch with nothing but the load is due. */
bool rk_kv_pace_due(const rk_kv_pace *pace, const rk_load_row *now_row, uint64_t now);
/* Numbers the record of a batch that goes out; `row` NULL: it has none. */
rk_load_stamp rk_kv_pace_sent(rk_kv_pace *pace, const rk_load_row *row, bool only, uint64_t now);

#endif
