/* Frames to bytes and back, over the wire helpers that the dialects use. */
#include "peer/frame.h"

#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/wire_write.h"
#include "rk_proto/fields.h"

/* ---- causes have numbers of their own on the wire, so that ours may move ---- */

static const uint8_t cause_numbers[RK_CAUSES] = {
    [RK_CAUSE_COMPLETED] = 1,    [RK_CAUSE_FULL] = 2,           [RK_CAUSE_HELD_FULL] = 3,
    [RK_CAUSE_WAIT_TIMEOUT] = 4, [RK_CAUSE_HELD_TIMEOUT] = 5,   [RK_CAUSE_TWIN_MISSING] = 6,
    [RK_CAUSE_NEVER_FITS] = 7,   [RK_CAUSE_DUPLICATE_ROOM] = 8, [RK_CAUSE_DUPLICATE_ID] = 9,
    [RK_CAUSE_SUPERSEDED] = 10,  [RK_CAUSE_CLIENT_CANCEL] = 11, [RK_CAUSE_ABORT_RPC] = 12,
    [RK_CAUSE_SLOW_READER] = 13, [RK_CAUSE_ENGINE_ERROR] = 14,  [RK_CAUSE_ENGINE_DEAD] = 15,
    [RK_CAUSE_DRAIN] = 16,       [RK_CAUSE_PEER_LOST] = 17,     [RK_CAUSE_TWIN_ENDED] = 18,
    [RK_CAUSE_BAD_RANK] = 19,    [RK_CAUSE_NO_MEMORY] = 20,
};

static rk_cause cause_of(int32_t number) {
    for (int cause = 1; cause < RK_CAUSES; cause++)
        if (cause_numbers[cause] == number)
            return (rk_cause)cause;
    return RK_CAUSE_ENGINE_ERROR;
}

/* ---- reading ---- */

typedef struct hello_draft {
    uint32_t protocol;
    rk_wire instance;
    int32_t role;
    rk_wire release;
    uint32_t window;
    int32_t engine;
    rk_wire nonce;
    rk_wire proof;
    uint32_t heartbeat_ms;
    bool releases;
} hello_draft;

static rk_code read_bytes(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code == RK_OK)
        *(rk_wire *)(void *)((char *)target + row->offset) = field->bytes;
    return code;
}

#define ROW(kind_, path_, type, member)                                                                      \
    { .kind = (kind_), .path = (path_), .offset = offsetof(type, member) }
#define BYTES_ROW(path_, type, member)                                                                       \
    { .kind = RK_ROW_CUSTOM, .path = (path_), .offset = offsetof(type, member), .read = read_bytes }

static const rk_row hello_rows[] = {
    [RK_LINK_HELLO__PROTOCOL] = ROW(RK_ROW_UINT32, "hello.protocol", hello_draft, protocol),
    [RK_LINK_HELLO__INSTANCE] = BYTES_ROW("hello.instance", hello_draft, instance),
    [RK_LINK_HELLO__ROLE] = ROW(RK_ROW_INT32, "hello.role", hello_draft, role),
    [RK_LINK_HELLO__RELEASE] = ROW(RK_ROW_TEXT, "hello.release", hello_draft, release),
    [RK_LINK_HELLO__WINDOW] = ROW(RK_ROW_UINT32, "hello.window", hello_draft, window),
    [RK_LINK_HELLO__ENGINE_STATE] = ROW(RK_ROW_INT32, "hello.engine_state", hello_draft, engine),
    [RK_LINK_HELLO__NONCE] = BYTES_ROW("hello.nonce", hello_draft, nonce),
    [RK_LINK_HELLO__PROOF] = BYTES_ROW("hello.proof", hello_draft, proof),
    [RK_LINK_HELLO__HEARTBEAT_MS] = ROW(RK_ROW_UINT32, "hello.heartbeat_ms", hello_draft, heartbeat_ms),
    [RK_LINK_HELLO__RELEASES] = ROW(RK_ROW_BOOL, "hello.releases", hello_draft, releases),
};
static const rk_schema hello_schema = {"hello", hello_rows, RK_COUNT(hello_rows), 0};

static void copy_printable(char *to, size_t size, rk_wire text) {
    size_t length = 0;
    for (const uint8_t *at = text.at; at < text.end && length + 1 < size; at++)
        to[length++] = *at > ' ' && *at < 0x7F ? (char)*at : '?';
    to[length] = '\0';
}

static rk_link_engine engine_of(int32_t number) {
    return number >= RK_LINK_ENGINE_UNKNOWN && number <= RK_LINK_ENGINE_DEAD ? (rk_link_engine)number
                                                                             : RK_LINK_ENGINE_UNKNOWN;
}

static rk_code want_bytes(rk_status *status, const char *path, rk_wire bytes, size_t wanted) {
    if (rk_wire_size(bytes) == wanted)
        return RK_OK;
    return rk_status_set(status, RK_INVALID_ARGUMENT, "%s has %zu bytes; it must have %zu", path,
                         rk_wire_size(bytes), wanted);
}

static rk_code take_proof(rk_status *status, const char *path, rk_wire bytes, uint8_t proof[RK_PROOF_BYTES],
                          bool *has_proof) {
    *has_proof = rk_wire_size(bytes) > 0;
    if (!*has_proof)
        return RK_OK;
    rk_code code = want_bytes(status, path, bytes, RK_PROOF_BYTES);
    if (code == RK_OK)
        memcpy(proof, bytes.at, RK_PROOF_BYTES);
    return code;
}

static rk_code read_hello(rk_reader *reader, rk_wire bytes, rk_hello *hello) {
    hello_draft draft = {0};
    rk_code code = rk_read_message(reader, bytes, &hello_schema, &draft);
    if (code == RK_OK)
        code = want_bytes(reader->status, "hello.instance", draft.instance, RK_INSTANCE_BYTES);
    if (code == RK_OK)
        code = want_bytes(reader->status, "hello.nonce", draft.nonce, RK_NONCE_BYTES);
    if (code == RK_OK)
        code = take_proof(reader->status, "hello.proof", draft.proof, hello->proof, &hello->has_proof);
    if (code != RK_OK)
        return code;
    hello->protocol = draft.protocol;
    memcpy(hello->instance, draft.instance.at, RK_INSTANCE_BYTES);
    memcpy(hello->nonce, draft.nonce.at, RK_NONCE_BYTES);
    hello->role = draft.role == RK_LINK_ROLE_PREFILL || draft.role == RK_LINK_ROLE_DECODE
                      ? (rk_link_role)draft.role
                      : RK_LINK_ROLE_NONE;
    hello->window = draft.window;
    hello->engine = engine_of(draft.engine);
    hello->heartbeat_ms = draft.heartbeat_ms;
    hello->releases = draft.releases;
    copy_printable(hello->release, sizeof hello->release, draft.release);
    return RK_OK;
}

typedef struct begin_draft {
    rk_wire proof;
} begin_draft;

static const rk_row begin_rows[] = {
    [RK_LINK_BEGIN__PROOF] = BYTES_ROW("begin.proof", begin_draft, proof),
};
static const rk_schema begin_schema = {"begin", begin_rows, RK_COUNT(begin_rows), 0};

typedef struct heartbeat_draft {
    int32_t engine;
} heartbeat_draft;

static const rk_row heartbeat_rows[] = {
    [RK_LINK_HEARTBEAT__ENGINE_STATE] = ROW(RK_ROW_INT32, "heartbeat.engine_state", heartbeat_draft, engine),
};
static const rk_schema heartbeat_schema = {"heartbeat", heartbeat_rows, RK_COUNT(heartbeat_rows), 0};

static rk_code read_body(rk_reader *reader, const rk_wire_field *field, rk_frame *frame) {
    begin_draft begin = {0};
    heartbeat_draft heartbeat = {0};
    rk_code code = RK_OK;
    switch (field->number) {
    case RK_LINK_FRAME__HELLO:
        frame->kind = RK_FRAME_HELLO;
        return read_hello(reader, field->bytes, &frame->hello);
    case RK_LINK_FRAME__BEGIN:
        frame->kind = RK_FRAME_BEGIN;
        code = rk_read_message(reader, field->bytes, &begin_schema, &begin);
        return code == RK_OK
                   ? take_proof(reader->status, "begin.proof", begin.proof, frame->proof, &frame->has_proof)
                   : code;
    case RK_LINK_FRAME__ROOMS:
        frame->kind = RK_FRAME_ROOMS;
        frame->rooms = field->bytes;
        return RK_OK;
    case RK_LINK_FRAME__HEARTBEAT:
        frame->kind = RK_FRAME_HEARTBEAT;
        code = rk_read_message(reader, field->bytes, &heartbeat_schema, &heartbeat);
        frame->engine = engine_of(heartbeat.engine);
        return code;
    case RK_LINK_FRAME__GOODBYE:
        frame->kind = RK_FRAME_GOODBYE;
        return RK_OK;
    default:
        return RK_OK;
    }
}

rk_code rk_frame_read(const uint8_t *bytes, size_t size, rk_frame *frame, rk_status *status) {
    rk_reader reader = {.status = status};
    rk_wire whole = rk_wire_of(bytes, size);
    rk_wire left = whole;
    rk_wire_field field;
    int rc = 0;
    memset(frame, 0, sizeof *frame);
    status->code = RK_OK;
    status->text[0] = '\0';
    while ((rc = rk_wire_next(&left, &field)) > 0) {
        if (field.type != RK_WIRE_BYTES)
            continue;
        if (frame->kind != RK_FRAME_NONE && field.number <= RK_LINK_FRAME__GOODBYE)
            return rk_status_set(status, RK_INVALID_ARGUMENT, "a frame has two bodies; send one of them");
        rk_code code = read_body(&reader, &field, frame);
        if (code != RK_OK)
            return code;
    }
    return rc < 0 ? rk_broken(&reader, "frame", whole, left.at) : RK_OK;
}

typedef struct room_draft {
    rk_wire host;
    int32_t port;
    int64_t room;
    int32_t state;
    int32_t cause;
    bool ever_submitted;
} room_draft;

static const rk_row room_rows[] = {
    [RK_LINK_ROOM__HOST] = ROW(RK_ROW_TEXT, "rooms.host", room_draft, host),
    [RK_LINK_ROOM__PORT] = ROW(RK_ROW_INT32, "rooms.port", room_draft, port),
    [RK_LINK_ROOM__ROOM] = ROW(RK_ROW_INT64, "rooms.room", room_draft, room),
    [RK_LINK_ROOM__STATE] = ROW(RK_ROW_INT32, "rooms.state", room_draft, state),
    [RK_LINK_ROOM__CAUSE] = ROW(RK_ROW_INT32, "rooms.cause", room_draft, cause),
    [RK_LINK_ROOM__EVER_SUBMITTED] = ROW(RK_ROW_BOOL, "rooms.ever_submitted", room_draft, ever_submitted),
};
static const rk_schema room_schema = {"rooms", room_rows, RK_COUNT(room_rows), 0};

static rk_code read_room(rk_wire bytes, rk_room_news *news, rk_status *status) {
    room_draft draft = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_message(&reader, bytes, &room_schema, &draft);
    if (code != RK_OK)
        return code;
    size_t host = rk_wire_size(draft.host);
    if (host >= RK_ROOM_HOST_MAX || (host && memchr(draft.host.at, '\0', host)))
        return rk_status_set(status, RK_INVALID_ARGUMENT,
                             "rooms.host has %zu bytes; give at most %d, without a NUL", host,
                             RK_ROOM_HOST_MAX - 1);
    memset(news, 0, sizeof *news);
    if (host)
        memcpy(news->room.host, draft.host.at, host);
    news->room.port = draft.port;
    news->room.room = draft.room;
    news->state = draft.state > RK_ROOM_UNKNOWN && draft.state <= RK_ROOM_QUIESCED
                      ? (rk_room_state)draft.state
                      : RK_ROOM_UNKNOWN;
    news->cause = cause_of(draft.cause);
    news->ever_submitted = draft.ever_submitted;
    return RK_OK;
}

int rk_rooms_next(rk_wire *rooms, rk_room_news *news, rk_status *status) {
    rk_wire whole = *rooms;
    rk_wire_field field;
    int rc;
    while ((rc = rk_wire_next(rooms, &field)) > 0) {
        if (field.number != RK_LINK_ROOMS__ROOMS || field.type != RK_WIRE_BYTES)
            continue;
        return read_room(field.bytes, news, status) == RK_OK ? 1 : -1;
    }
    if (rc == 0)
        return 0;
    rk_reader reader = {.status = status};
    (void)rk_broken(&reader, "rooms", whole, rooms->at);
    return -1;
}

/* ---- writing ---- */

void rk_frame_hello(rk_buf *out, const rk_hello *hello) {
    size_t begun = rk_write_begin(out, RK_LINK_FRAME__HELLO);
    rk_write_uint(out, RK_LINK_HELLO__PROTOCOL, hello->protocol);
    rk_write_bytes_always(out, RK_LINK_HELLO__INSTANCE, hello->instance, sizeof hello->instance);
    rk_write_int(out, RK_LINK_HELLO__ROLE, hello->role);
    rk_write_text(out, RK_LINK_HELLO__RELEASE, hello->release);
    rk_write_uint(out, RK_LINK_HELLO__WINDOW, hello->window);
    rk_write_int(out, RK_LINK_HELLO__ENGINE_STATE, hello->engine);
    rk_write_bytes_always(out, RK_LINK_HELLO__NONCE, hello->nonce, sizeof hello->nonce);
    if (hello->has_proof)
        rk_write_bytes_always(out, RK_LINK_HELLO__PROOF, hello->proof, sizeof hello->proof);
    rk_write_uint(out, RK_LINK_HELLO__HEARTBEAT_MS, hello->heartbeat_ms);
    rk_write_bool(out, RK_LINK_HELLO__RELEASES, hello->releases);
    rk_write_end(out, begun);
}

void rk_frame_begin(rk_buf *out, const uint8_t proof[RK_PROOF_BYTES]) {
    size_t begun = rk_write_begin(out, RK_LINK_FRAME__BEGIN);
    if (proof)
        rk_write_bytes_always(out, RK_LINK_BEGIN__PROOF, proof, RK_PROOF_BYTES);
    rk_write_end(out, begun);
}

void rk_frame_heartbeat(rk_buf *out, rk_link_engine engine) {
    size_t begun = rk_write_begin(out, RK_LINK_FRAME__HEARTBEAT);
    rk_write_int(out, RK_LINK_HEARTBEAT__ENGINE_STATE, engine);
    rk_write_end(out, begun);
}

void rk_frame_goodbye(rk_buf *out) {
    rk_write_end(out, rk_write_begin(out, RK_LINK_FRAME__GOODBYE));
}

void rk_rooms_add(rk_buf *entries, const rk_room_news *news) {
    size_t begun = rk_write_begin(entries, RK_LINK_ROOMS__ROOMS);
    rk_write_text(entries, RK_LINK_ROOM__HOST, news->room.host);
    rk_write_int(entries, RK_LINK_ROOM__PORT, news->room.port);
    rk_write_int(entries, RK_LINK_ROOM__ROOM, news->room.room);
    rk_write_int(entries, RK_LINK_ROOM__STATE, news->state);
    rk_write_int(entries, RK_LINK_ROOM__CAUSE, cause_numbers[news->cause]);
    rk_write_bool(entries, RK_LINK_ROOM__EVER_SUBMITTED, news->ever_submitted);
    rk_write_end(entries, begun);
}

void rk_frame_rooms(rk_buf *out, const rk_buf *entries) {
    rk_write_bytes_always(out, RK_LINK_FRAME__ROOMS, entries->data, entries->size);
}

/* ---- names ---- */

rk_room_state rk_room_state_of(rk_effect_kind kind) {
    switch (kind) {
    case RK_FX_TELL_OPENED:
        return RK_ROOM_OPENED;
    case RK_FX_TELL_ADMITTED:
        return RK_ROOM_ADMITTED;
    case RK_FX_TELL_SUBMITTED:
        return RK_ROOM_SUBMITTED;
    case RK_FX_TELL_HANDED_OFF:
        return RK_ROOM_HANDED_OFF;
    case RK_FX_TELL_ENDED:
        return RK_ROOM_ENDED;
    case RK_FX_TELL_QUIESCED:
        return RK_ROOM_QUIESCED;
    default:
        return RK_ROOM_UNKNOWN;
    }
}

const char *rk_room_state_name(rk_room_state state) {
    static const char *const names[] = {"unknown",    "opened", "admitted", "submitted",
                                        "handed_off", "ended",  "quiesced"};
    return (unsigned)state < RK_COUNT(names) ? names[state] : "unknown";
}

const char *rk_link_engine_name(rk_link_engine engine) {
    static const char *const names[] = {"unknown", "starting", "ready", "stalled", "dead"};
    return (unsigned)engine < RK_COUNT(names) ? names[engine] : "unknown";
}
