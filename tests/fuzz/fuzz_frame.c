/* Any bytes as a frame: read, or refused in one line; what was read and is written again reads the same. */
#include "peer/frame.h"

#include "dialect_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same_hello(const rk_hello *a, const rk_hello *b) {
    return a->protocol == b->protocol && a->role == b->role && a->window == b->window &&
           a->engine == b->engine && a->heartbeat_ms == b->heartbeat_ms && a->releases == b->releases &&
           a->has_proof == b->has_proof && memcmp(a->instance, b->instance, sizeof a->instance) == 0 &&
           memcmp(a->nonce, b->nonce, sizeof a->nonce) == 0 &&
           memcmp(a->proof, b->proof, sizeof a->proof) == 0 && strcmp(a->release, b->release) == 0;
}

static bool same_room(const rk_room_news *a, const rk_room_news *b) {
    return strcmp(a->room.host, b->room.host) == 0 && a->room.port == b->room.port &&
           a->room.room == b->room.room && a->state == b->state && a->cause == b->cause &&
           a->ever_submitted == b->ever_submitted;
}

static void read_again(const rk_buf *out, rk_frame *frame) {
    rk_status status;
    ck_assert(!out->failed);
    ck_assert_int_eq(rk_frame_read(out->data, out->size, frame, &status), RK_OK);
}

static void rooms_again(rk_wire rooms) {
    rk_room_news news;
    rk_room_news again;
    rk_status status;
    int rc;
    while ((rc = rk_rooms_next(&rooms, &news, &status)) > 0) {
        rk_buf entries = RK_BUF_INIT;
        rk_buf out = RK_BUF_INIT;
        rk_frame frame;
        rk_rooms_add(&entries, &news);
        rk_frame_rooms(&out, &entries);
        read_again(&out, &frame);
        ck_assert_int_eq(frame.kind, RK_FRAME_ROOMS);
        ck_assert_int_eq(rk_rooms_next(&frame.rooms, &again, &status), 1);
        ck_assert(same_room(&news, &again));
        ck_assert_int_eq(rk_rooms_next(&frame.rooms, &again, &status), 0);
        rk_buf_free(&entries);
        rk_buf_free(&out);
    }
    if (rc < 0)
        check_line(&status);
}

static void write_again(const rk_frame *frame) {
    rk_buf out = RK_BUF_INIT;
    rk_frame again;
    switch (frame->kind) {
    case RK_FRAME_HELLO:
        rk_frame_hello(&out, &frame->hello);
        read_again(&out, &again);
        ck_assert(same_hello(&frame->hello, &again.hello));
        break;
    case RK_FRAME_BEGIN:
        rk_frame_begin(&out, frame->has_proof ? frame->proof : NULL);
        read_again(&out, &again);
        ck_assert_int_eq(again.has_proof, frame->has_proof);
        ck_assert_mem_eq(again.proof, frame->proof, sizeof again.proof);
        break;
    case RK_FRAME_HEARTBEAT:
        rk_frame_heartbeat(&out, frame->engine);
        read_again(&out, &again);
        ck_assert_int_eq(again.engine, frame->engine);
        break;
    case RK_FRAME_ROOMS:
        rooms_again(frame->rooms);
        return;
    default:
        return;
    }
    ck_assert_int_eq(again.kind, frame->kind);
    rk_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rk_frame frame;
    rk_status status;
    rk_code code = rk_frame_read(data, size, &frame, &status);
    ck_assert(code == RK_OK || code == RK_INVALID_ARGUMENT);
    ck_assert_int_eq(status.code, code);
    if (code == RK_OK)
        write_again(&frame);
    else
        check_line(&status);
    return 0;
}
