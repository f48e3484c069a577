/* Encode: an item for the tower of an encode worker. The engine takes it, and that is the answer; what
 * becomes of it is between the engine and the prefill that asks for the embedding. Poller thread. */
#include <errno.h>

#include "rpc/inputs.h"

/* The engine's side reads hundreds of megabytes before it takes an item. */
#define BOUND_MS 60000

static void answered(rk_call *call, const rk_value *answer) {
    rk_status status;
    if (!answer || answer->kind != RK_VALUE_MAP) {
        (void)rk_status_set(&status, RK_DEADLINE_EXCEEDED,
                            "the engine did not take the item within %d s; is it busy or stuck?",
                            BOUND_MS / 1000);
        rk_call_fail(call, &status);
        return;
    }
    if (rk_answer_is_failure(answer, &status)) {
        rk_call_fail(call, &status);
        return;
    }
    const rk_value *success = rk_value_get(answer, "success");
    rk_buf out = RK_BUF_INIT;
    call->servicer->dialect->encode_accepted(&out,
                                             success && success->kind == RK_VALUE_BOOL && success->boolean);
    rk_call_reply(call, &out);
    rk_buf_free(&out);
}

typedef struct item {
    rk_request *request;
    int64_t room;
} item;

static int hand_over(rk_servicer *servicer, uint64_t query_id, const void *what) {
    const item *taken = what;
    const rk_encode encode = {query_id, taken->request, taken->room};
    return servicer->ops->encode ? servicer->ops->encode(servicer->engine, &encode) : -ENOSYS;
}

void rk_encode_handle(rk_call *call, const uint8_t *bytes, size_t size) {
    rk_servicer *servicer = call->servicer;
    item taken = {0};
    rk_status status;
    rk_keeper keeper = rk_inputs_keeper(call);
    rk_code code = servicer->dialect->decode_encode(bytes, size, &servicer->limits, &keeper, &taken.request,
                                                    &taken.room, &status);
    if (code == RK_OK)
        code = rk_inputs_take(taken.request, &status);
    else
        rk_inputs_discard(call, bytes, size, true);
    if (code == RK_OK)
        code = rk_state_refusal(servicer, &status);
    if (code == RK_OK)
        rk_query_post(call, BOUND_MS, hand_over, &taken, answered);
    else
        rk_call_fail(call, &status);
    rk_request_unref(taken.request);
}
