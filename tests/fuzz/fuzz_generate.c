/* Any bytes as a GenerateRequest, under limits that the first byte chooses: read, or refused in one line. */
#include "dialect_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rk_limits limits_of(uint8_t choice) {
    static const rk_role roles[] = {RK_ROLE_NULL, RK_ROLE_PREFILL, RK_ROLE_DECODE, RK_ROLE_NULL};
    rk_limits limits = plain_limits();
    limits.role = roles[choice & 3];
    limits.rooms = (choice & 4) != 0;
    limits.ranks = choice & 8 ? 1 : 4;
    limits.window = choice & 16 ? 0 : 4;
    limits.vocab_size = choice & 32 ? 0 : 512;
    return limits;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rk_request *request = NULL;
    rk_status status;
    if (size == 0)
        return 0;
    rk_limits limits = limits_of(data[0]);
    rk_buf bytes = {(uint8_t *)(uintptr_t)(data + 1), size - 1, size - 1, false};
    if (decode_generate(&bytes, &limits, &request, &status) == RK_OK)
        rk_request_unref(request);
    return 0;
}
