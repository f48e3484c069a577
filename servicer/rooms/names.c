/* Names and codes of causes and states. */
#include "rooms/ledger.h"

const char *rk_cause_name(rk_cause cause) {
    static const char *const names[RK_CAUSES] = {
        [RK_CAUSE_NONE] = "none",
        [RK_CAUSE_COMPLETED] = "completed",
        [RK_CAUSE_FULL] = "full",
        [RK_CAUSE_HELD_FULL] = "held_full",
        [RK_CAUSE_WAIT_TIMEOUT] = "wait_timeout",
        [RK_CAUSE_HELD_TIMEOUT] = "held_timeout",
        [RK_CAUSE_TWIN_MISSING] = "twin_missing",
        [RK_CAUSE_NEVER_FITS] = "never_fits",
        [RK_CAUSE_DUPLICATE_ROOM] = "duplicate_room",
        [RK_CAUSE_DUPLICATE_ID] = "duplicate_id",
        [RK_CAUSE_SUPERSEDED] = "superseded",
        [RK_CAUSE_CLIENT_CANCEL] = "client_cancel",
        [RK_CAUSE_ABORT_RPC] = "abort_rpc",
        [RK_CAUSE_SLOW_READER] = "slow_reader",
        [RK_CAUSE_ENGINE_ERROR] = "engine_error",
        [RK_CAUSE_ENGINE_DEAD] = "engine_dead",
        [RK_CAUSE_DRAIN] = "drain",
        [RK_CAUSE_PEER_LOST] = "peer_lost",
        [RK_CAUSE_TWIN_ENDED] = "twin_ended",
        [RK_CAUSE_BAD_RANK] = "bad_rank",
        [RK_CAUSE_NO_MEMORY] = "no_memory",
    };
    return (unsigned)cause < RK_CAUSES ? names[cause] : "unknown";
}

const char *rk_role_name(rk_role role) {
    static const char *const names[RK_ROLES] = {
        [RK_ROLE_NULL] = "null",
        [RK_ROLE_PREFILL] = "prefill",
        [RK_ROLE_DECODE] = "decode",
        [RK_ROLE_ENCODE] = "encode",
    };
    return (unsigned)role < RK_ROLES ? names[role] : "unknown";
}

const char *rk_leg_state_name(rk_leg_state state) {
    static const char *const names[RK_LEG_STATES] = {
        [RK_LEG_ARRIVED] = "arrived",   [RK_LEG_WAITING] = "waiting",     [RK_LEG_HELD] = "held",
        [RK_LEG_ADMITTED] = "admitted", [RK_LEG_SUBMITTED] = "submitted", [RK_LEG_HANDED_OFF] = "handed_off",
        [RK_LEG_ENDED] = "ended",
    };
    return (unsigned)state < RK_LEG_STATES ? names[state] : "unknown";
}

rk_code rk_cause_code(rk_cause cause) {
    switch (cause) {
    case RK_CAUSE_FULL:
    case RK_CAUSE_HELD_FULL:
    case RK_CAUSE_WAIT_TIMEOUT:
    case RK_CAUSE_HELD_TIMEOUT:
    case RK_CAUSE_TWIN_MISSING:
    case RK_CAUSE_PEER_LOST:
    case RK_CAUSE_SLOW_READER:
    case RK_CAUSE_NO_MEMORY:
        return RK_RESOURCE_EXHAUSTED;
    case RK_CAUSE_NEVER_FITS:
    case RK_CAUSE_BAD_RANK:
        return RK_INVALID_ARGUMENT;
    case RK_CAUSE_DUPLICATE_ROOM:
    case RK_CAUSE_DUPLICATE_ID:
        return RK_ALREADY_EXISTS;
    case RK_CAUSE_DRAIN:
    case RK_CAUSE_ENGINE_DEAD:
        return RK_UNAVAILABLE;
    case RK_CAUSE_SUPERSEDED:
    case RK_CAUSE_CLIENT_CANCEL:
    case RK_CAUSE_TWIN_ENDED:
        return RK_ABORTED;
    case RK_CAUSE_ABORT_RPC: /* the stream ends with a Complete whose finish_reason is abort */
    case RK_CAUSE_COMPLETED:
    case RK_CAUSE_NONE:
        return RK_OK;
    case RK_CAUSE_ENGINE_ERROR:
    default:
        return RK_INTERNAL;
    }
}

bool rk_cause_retry(rk_cause cause) {
    switch (cause) {
    case RK_CAUSE_FULL:
    case RK_CAUSE_HELD_FULL:
    case RK_CAUSE_WAIT_TIMEOUT:
    case RK_CAUSE_HELD_TIMEOUT:
    case RK_CAUSE_TWIN_MISSING:
    case RK_CAUSE_PEER_LOST:
    case RK_CAUSE_NO_MEMORY:
        return true;
    default:
        return false;
    }
}

/* A gateway retries RESOURCE_EXHAUSTED and charges no breaker for it, which is right for everything that is
 * not this worker's fault: the other worker was full, is going away, or is gone. */
rk_code rk_twin_code(rk_cause cause, bool *retry) {
    *retry = rk_cause_retry(cause) || cause == RK_CAUSE_DRAIN || cause == RK_CAUSE_ENGINE_DEAD;
    if (*retry)
        return RK_RESOURCE_EXHAUSTED;
    switch (cause) {
    case RK_CAUSE_CLIENT_CANCEL:
    case RK_CAUSE_ABORT_RPC:
    case RK_CAUSE_SUPERSEDED:
    case RK_CAUSE_SLOW_READER:
    case RK_CAUSE_COMPLETED:
    case RK_CAUSE_NONE:
        return RK_ABORTED;
    default:
        return rk_cause_code(cause);
    }
}
