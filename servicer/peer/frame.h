/* The frames of the room link as structs, and as bytes. See proto/roomkeeper/peer/v1/room_link.proto for what
 * they mean. Pure functions; any thread. What is read stays a slice of the bytes read. */
#ifndef RK_PEER_FRAME_H
#define RK_PEER_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "dialects/wire_read.h"
#include "roomkeeper/rooms.h"
#include "roomkeeper/status.h"

#define RK_LINK_PATH "/roomkeeper.peer.v1.RoomLink/Link"
#define RK_LINK_PROTOCOL 1u
#define RK_FRAME_MAX (1024u * 1024u) /* bytes; a longer one is refused by gRPC core */
#define RK_INSTANCE_BYTES 16
#define RK_NONCE_BYTES 32
#define RK_PROOF_BYTES 32

typedef enum rk_frame_kind {
    RK_FRAME_NONE, /* a kind that this release does not know: to be skipped */
    RK_FRAME_HELLO,
    RK_FRAME_BEGIN,
    RK_FRAME_ROOMS,
    RK_FRAME_HEARTBEAT,
    RK_FRAME_GOODBYE,
} rk_frame_kind;

/* Numbers as on the wire. */
typedef enum rk_link_role { RK_LINK_ROLE_NONE, RK_LINK_ROLE_PREFILL, RK_LINK_ROLE_DECODE } rk_link_role;

typedef enum rk_link_engine {
    RK_LINK_ENGINE_UNKNOWN,
    RK_LINK_ENGINE_STARTING,
    RK_LINK_ENGINE_READY,
    RK_LINK_ENGINE_STALLED,
    RK_LINK_ENGINE_DEAD,
} rk_link_engine;

typedef enum rk_room_state {
    RK_ROOM_UNKNOWN,
    RK_ROOM_OPENED,
    RK_ROOM_ADMITTED,
    RK_ROOM_SUBMITTED,
    RK_ROOM_HANDED_OFF,
    RK_ROOM_ENDED,
    RK_ROOM_QUIESCED,
} rk_room_state;

typedef struct rk_hello {
    uint32_t protocol;
    uint8_t instance[RK_INSTANCE_BYTES];
    rk_link_role role;
    char release[32]; /* NUL-terminated, printable */
    uint32_t window;
    rk_link_engine engine;
    uint8_t nonce[RK_NONCE_BYTES];
    uint8_t proof[RK_PROOF_BYTES];
    bool has_proof;
    uint32_t heartbeat_ms;
    bool releases;
} rk_hello;

/* A room and how it stands. */
typedef struct rk_room_news {
    rk_room room;
    rk_room_state state; /* UNKNOWN: one of a later release; to be skipped */
    rk_cause cause;
    bool ever_submitted;
} rk_room_news;

typedef struct rk_frame {
    rk_frame_kind kind;
    rk_hello hello;                /* HELLO */
    uint8_t proof[RK_PROOF_BYTES]; /* BEGIN */
    bool has_proof;                /* BEGIN */
    rk_link_engine engine;         /* HEARTBEAT */
    rk_wire rooms;                 /* ROOMS: for rk_rooms_next */
} rk_frame;

/* RK_OK, or INVALID_ARGUMENT with a line in `status`. */
rk_code rk_frame_read(const uint8_t *bytes, size_t size, rk_frame *frame, rk_status *status);
/* 1: `news` is the next room; 0: there are no more; -1: broken, with a line in `status`. */
int rk_rooms_next(rk_wire *rooms, rk_room_news *news, rk_status *status);

/* One frame each. Check out->failed at the end. */
void rk_frame_hello(rk_buf *out, const rk_hello *hello);
void rk_frame_begin(rk_buf *out, const uint8_t proof[RK_PROOF_BYTES]); /* NULL: there is no token */
void rk_frame_heartbeat(rk_buf *out, rk_link_engine engine);
void rk_frame_goodbye(rk_buf *out);
/* Rooms are gathered: one entry each, then the frame around all entries. */
void rk_rooms_add(rk_buf *entries, const rk_room_news *news);
void rk_frame_rooms(rk_buf *out, const rk_buf *entries);

/* The state that a RK_FX_TELL_… effect tells of. */
rk_room_state rk_room_state_of(rk_effect_kind kind);
const char *rk_room_state_name(rk_room_state state);
const char *rk_link_engine_name(rk_link_engine engine);

#endif
