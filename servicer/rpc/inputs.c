/* Where the bytes of multimodal inputs are while their request lives: in the message as it came, which is
 * kept instead of copied, and in segments of shared memory, which are opened and removed before anything else
 * is done with the request. So nothing is left behind however it ends: refused, cancelled in line, failed in
 * the engine, or with this process.
 *
 * Poller thread, but for rk_inputs_drop. */
#include "rpc/inputs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/segment.h"
#include "dialects/request.h"

/* ---- the message ---- */

static void *keep_message(void *of) {
    grpc_slice *kept = malloc(sizeof *kept);
    if (kept)
        *kept = grpc_slice_ref(*(const grpc_slice *)of);
    return kept;
}

static void drop_message(void *kept) {
    grpc_slice_unref(*(grpc_slice *)kept);
    free(kept);
}

rk_keeper rk_inputs_keeper(rk_call *call) {
    return (rk_keeper){keep_message, drop_message, (void *)(uintptr_t)call->message};
}

/* ---- segments ---- */

/* For those who look into a fault; the engine's own servicer has the same switch. */
static bool removes(void) {
    const char *text = getenv("TOKENSPEED_UNLINK_MM_SHM_AFTER_READ");
    return !text || (strcmp(text, "0") != 0 && strcasecmp(text, "false") != 0 && strcasecmp(text, "no") != 0);
}

static rk_code say(int error, const rk_segment *segment, uint64_t size, rk_status *status) {
    const char *name = segment->name.data;
    switch (error) {
    case -ENOENT:
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "the shm segment %.100s is not in this worker's " RK_SEGMENT_FOLDER
                             "; compare shm_namespace_id, and hand each segment over once",
                             name);
    case -ELOOP:
    case -EINVAL:
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "the shm segment %.100s is no regular file; make it by shm_open", name);
    case -EPERM:
        return rk_status_set(
            status, RK_INVALID_ARGUMENT,
            "the shm segment %.100s is another user's than this worker's; make it as the same", name);
    case -ENODATA:
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "the shm segment %.100s has %" PRIu64 " bytes; offset and nbytes need %" PRIu64,
                             name, size, segment->size);
    case -EMFILE:
    case -ENFILE:
        return rk_status_set(
            status, RK_RESOURCE_EXHAUSTED,
            "too many files are open here to take the shm segment %.100s; try again later, or "
            "send the tensor inline",
            name);
    default:
        return rk_status_set(status, RK_INTERNAL, "the shm segment %.100s cannot be taken: %s", name,
                             strerror(-error));
    }
}

static void discard(void *context, const char *name) {
    uint64_t size = 0;
    (void)context;
    int fd = rk_segment_take(RK_SEGMENT_FOLDER, name, 0, removes(), &size);
    if (fd >= 0)
        (void)close(fd);
}

rk_code rk_inputs_take(rk_request *request, rk_status *status) {
    size_t count = request->segment_count;
    if (count == 0)
        return RK_OK;
    int *fds = rk_request_descriptors(request);
    if (!fds)
        return rk_status_set(status, RK_RESOURCE_EXHAUSTED, "out of memory; try again later");
    rk_code code = RK_OK;
    for (size_t i = 0; i < count; i++) {
        const rk_segment *segment = &request->segments[i];
        uint64_t size = 0;
        fds[i] = rk_segment_take(RK_SEGMENT_FOLDER, segment->name.data, segment->size, removes(), &size);
        if (fds[i] < 0 && code == RK_OK) /* the others are taken all the same, to be gone */
            code = say(fds[i], segment, size, status);
    }
    return code;
}

void rk_inputs_discard(rk_call *call, const uint8_t *bytes, size_t size, bool encode) {
    call->servicer->dialect->each_segment(bytes, size, encode, discard, NULL);
}
