/* What the calls with multimodal inputs share; see inputs.c. */
#ifndef RK_RPC_INPUTS_H
#define RK_RPC_INPUTS_H

#include "rpc/internal.h"

/* For the decoder; valid while the call's handler runs. */
rk_keeper rk_inputs_keeper(rk_call *call);
/* Opens and removes the segments that the request names. The refusal is in `status`; all are gone even then.
 */
rk_code rk_inputs_take(rk_request *request, rk_status *status);
/* Removes the segments that a message names which has not become a request. */
void rk_inputs_discard(rk_call *call, const uint8_t *bytes, size_t size, bool encode);

#endif
