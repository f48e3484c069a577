/* What an engine's HTTP-like status is in gRPC. Any thread; no state. */
#include "dialects/dialect.h"

rk_code rk_code_of_http(int http_status) {
    switch (http_status) {
    case 400:
        return RK_INVALID_ARGUMENT;
    case 404:
        return RK_NOT_FOUND;
    case 408:
    case 504:
        return RK_DEADLINE_EXCEEDED;
    case 429:
        return RK_RESOURCE_EXHAUSTED;
    case 503:
        return RK_UNAVAILABLE;
    default:
        return RK_INTERNAL;
    }
}
