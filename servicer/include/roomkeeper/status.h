/* A status as it goes over the wire: a gRPC code and one line of text.
 *
 * Kept apart from gRPC core, so that the ledger and the dialects can say how a call ends without
 * knowing the transport. The numbers are those of gRPC.
 */
#ifndef ROOMKEEPER_STATUS_H
#define ROOMKEEPER_STATUS_H

#include "roomkeeper/export.h"

typedef enum rk_code {
    RK_OK = 0,
    RK_CANCELLED = 1,
    RK_UNKNOWN = 2,
    RK_INVALID_ARGUMENT = 3,
    RK_DEADLINE_EXCEEDED = 4,
    RK_NOT_FOUND = 5,
    RK_ALREADY_EXISTS = 6,
    RK_PERMISSION_DENIED = 7,
    RK_RESOURCE_EXHAUSTED = 8,
    RK_FAILED_PRECONDITION = 9,
    RK_ABORTED = 10,
    RK_OUT_OF_RANGE = 11,
    RK_UNIMPLEMENTED = 12,
    RK_INTERNAL = 13,
    RK_UNAVAILABLE = 14,
    RK_DATA_LOSS = 15,
    RK_UNAUTHENTICATED = 16,
} rk_code;

/* Longest text a status carries, in bytes with the final NUL; longer ones are cut at a character. */
#define RK_STATUS_TEXT_MAX 512

typedef struct rk_status {
    rk_code code;
    char text[RK_STATUS_TEXT_MAX]; /* valid UTF-8, NUL-terminated; empty for RK_OK */
} rk_status;

/* Fills `status`; the text is cut to fit and made valid UTF-8. Returns `code`, for `return rk_fail(…)`. */
RK_API rk_code rk_status_set(rk_status *status, rk_code code, const char *format, ...) RK_PRINTF(3, 4);

/* "RESOURCE_EXHAUSTED" and so on; "UNKNOWN" for a number that is no code. Static. */
RK_API const char *rk_code_name(rk_code code);

#endif
