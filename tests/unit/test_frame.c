/* The frames of the room link: round trips, beside protobuf-c's rendering of the same .proto, what a later
 * release may add, and what is broken. */
#include "peer/frame.h"

#include <strings.h>

#include "dialect_wire.h"
#include "ledger_support.h"
#include "rk_proto/fields.h"
#include "roomkeeper/peer/v1/room_link.pb-c.h"

#define PB(name) Roomkeeper__Peer__V1__##name
#define PB_CAUSE(name) ROOMKEEPER__PEER__V1__CAUSE__CAUSE_##name

static rk_frame frame;
static rk_status status;

static rk_hello some_hello(void) {
    rk_hello hello = {
        .protocol = 1,
        .role = RK_LINK_ROLE_DECODE,
        .release = "9.8.7",
        .window = 4096,
        .engine = RK_LINK_ENGINE_READY,
        .has_proof = true,
        .heartbeat_ms = 250,
        .releases = true,
    };
    for (size_t i = 0; i < sizeof hello.instance; i++)
        hello.instance[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < sizeof hello.nonce; i++)
        hello.nonce[i] = (uint8_t)(200 + i);
    for (size_t i = 0; i < sizeof hello.proof; i++)
        hello.proof[i] = (uint8_t)(100 - i);
    return hello;
}

static rk_room_news some_news(rk_room_state state, rk_cause cause) {
    return (rk_room_news){
        .room = {.host = "prefill.example", .port = 8998, .room = INT64_MAX - (int64_t)state},
        .state = state,
        .cause = cause,
        .ever_submitted = state == RK_ROOM_ENDED,
    };
}

/* Reads and frees it. */
static void reads(rk_buf bytes) {
    ck_assert(!bytes.failed);
    rk_code code = rk_frame_read(bytes.data, bytes.size, &frame, &status);
    ck_assert_msg(code == RK_OK, "%s", status.text);
    rk_buf_free(&bytes);
}

static void is_one_line(void) {
    ck_assert_int_eq(status.code, RK_INVALID_ARGUMENT);
    ck_assert_uint_gt(strlen(status.text), 10);
    ck_assert_ptr_null(strchr(status.text, '\n'));
    ck_assert(rk_utf8_valid(status.text, strlen(status.text)));
}

/* Is refused with a line that has `part`; frees it. */
static void frame_refused(rk_buf bytes, const char *part) {
    ck_assert(!bytes.failed);
    ck_assert_int_eq(rk_frame_read(bytes.data, bytes.size, &frame, &status), RK_INVALID_ARGUMENT);
    is_one_line();
    ck_assert_msg(strstr(status.text, part) != NULL, "\"%s\" lacks \"%s\"", status.text, part);
    rk_buf_free(&bytes);
}

static rk_buf framed(uint32_t number, rk_buf body) {
    rk_buf out = RK_BUF_INIT;
    raw_message(&out, number, body);
    return out;
}

static void same_hello(const rk_hello *a, const rk_hello *b) {
    ck_assert_uint_eq(a->protocol, b->protocol);
    ck_assert_mem_eq(a->instance, b->instance, sizeof a->instance);
    ck_assert_int_eq(a->role, b->role);
    ck_assert_str_eq(a->release, b->release);
    ck_assert_uint_eq(a->window, b->window);
    ck_assert_int_eq(a->engine, b->engine);
    ck_assert_mem_eq(a->nonce, b->nonce, sizeof a->nonce);
    ck_assert_int_eq(a->has_proof, b->has_proof);
    ck_assert_mem_eq(a->proof, b->proof, sizeof a->proof);
    ck_assert_uint_eq(a->heartbeat_ms, b->heartbeat_ms);
    ck_assert_int_eq(a->releases, b->releases);
}

/* ---- round trips ---- */

START_TEST(a_hello_comes_back_as_it_was_said) {
    for (int i = 0; i < 2; i++) {
        rk_hello hello = some_hello();
        if (i == 1) { /* the least there can be */
            hello = (rk_hello){.role = RK_LINK_ROLE_PREFILL};
        }
        rk_buf out = RK_BUF_INIT;
        rk_frame_hello(&out, &hello);
        reads(out);
        ck_assert_int_eq(frame.kind, RK_FRAME_HELLO);
        same_hello(&frame.hello, &hello);
    }
}
END_TEST

START_TEST(a_begin_comes_back_with_its_proof_or_without) {
    rk_hello hello = some_hello();
    rk_buf with = RK_BUF_INIT;
    rk_frame_begin(&with, hello.proof);
    reads(with);
    ck_assert_int_eq(frame.kind, RK_FRAME_BEGIN);
    ck_assert(frame.has_proof);
    ck_assert_mem_eq(frame.proof, hello.proof, RK_PROOF_BYTES);
    rk_buf without = RK_BUF_INIT;
    rk_frame_begin(&without, NULL);
    reads(without);
    ck_assert_int_eq(frame.kind, RK_FRAME_BEGIN);
    ck_assert(!frame.has_proof);
}
END_TEST

START_TEST(heartbeats_and_the_goodbye_come_back) {
    for (int engine = RK_LINK_ENGINE_UNKNOWN; engine <= RK_LINK_ENGINE_DEAD; engine++) {
        rk_buf beat = RK_BUF_INIT;
        rk_frame_heartbeat(&beat, (rk_link_engine)engine);
        reads(beat);
        ck_assert_int_eq(frame.kind, RK_FRAME_HEARTBEAT);
        ck_assert_int_eq(frame.engine, engine);
    }
    rk_buf bye = RK_BUF_INIT;
    rk_frame_goodbye(&bye);
    reads(bye);
    ck_assert_int_eq(frame.kind, RK_FRAME_GOODBYE);
}
END_TEST

START_TEST(rooms_come_back_in_their_order_with_every_state_and_cause) {
    rk_buf entries = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    unsigned count = 0;
    for (int state = RK_ROOM_OPENED; state <= RK_ROOM_QUIESCED; state++)
        for (int cause = 1; cause < RK_CAUSES; cause++, count++) {
            rk_room_news news = some_news((rk_room_state)state, (rk_cause)cause);
            rk_rooms_add(&entries, &news);
        }
    rk_frame_rooms(&out, &entries);
    rk_buf_free(&entries);
    ck_assert_int_eq(rk_frame_read(out.data, out.size, &frame, &status), RK_OK);
    ck_assert_int_eq(frame.kind, RK_FRAME_ROOMS);
    rk_room_news got;
    unsigned read = 0;
    while (rk_rooms_next(&frame.rooms, &got, &status) == 1) {
        rk_room_news said = some_news((rk_room_state)(RK_ROOM_OPENED + read / (RK_CAUSES - 1)),
                                      (rk_cause)(1 + read % (RK_CAUSES - 1)));
        ck_assert_str_eq(got.room.host, said.room.host);
        ck_assert_int_eq(got.room.port, said.room.port);
        ck_assert_int_eq(got.room.room, said.room.room);
        ck_assert_int_eq(got.state, said.state);
        ck_assert_int_eq(got.cause, said.cause);
        ck_assert_int_eq(got.ever_submitted, said.ever_submitted);
        read++;
    }
    ck_assert_uint_eq(read, count);
    ck_assert_int_eq(rk_rooms_next(&frame.rooms, &got, &status), 0); /* still */
    rk_buf_free(&out);
}
END_TEST

START_TEST(a_room_keeps_its_extremes) {
    static const int64_t numbers[] = {INT64_MIN, -1, 0, INT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        rk_room_news news = some_news(RK_ROOM_OPENED, RK_CAUSE_COMPLETED);
        news.room.room = numbers[i];
        news.room.port = i % 2 ? INT32_MIN : INT32_MAX;
        memset(news.room.host, 'h', RK_ROOM_HOST_MAX - 1);
        news.room.host[RK_ROOM_HOST_MAX - 1] = '\0';
        rk_buf entries = RK_BUF_INIT;
        rk_rooms_add(&entries, &news);
        rk_wire rooms = rk_wire_of(entries.data, entries.size);
        rk_room_news got;
        ck_assert_int_eq(rk_rooms_next(&rooms, &got, &status), 1);
        ck_assert_int_eq(got.room.room, news.room.room);
        ck_assert_int_eq(got.room.port, news.room.port);
        ck_assert_str_eq(got.room.host, news.room.host);
        rk_buf_free(&entries);
    }
}
END_TEST

/* ---- beside another implementation ---- */

static PB(Frame) * unpack(const rk_buf *out) {
    PB(Frame) *message = roomkeeper__peer__v1__frame__unpack(NULL, out->size, out->data);
    ck_assert_ptr_nonnull(message);
    ck_assert_uint_eq(message->base.n_unknown_fields, 0);
    return message;
}

START_TEST(protobuf_c_reads_our_hello) {
    rk_hello hello = some_hello();
    rk_buf out = RK_BUF_INIT;
    rk_frame_hello(&out, &hello);
    PB(Frame) *message = unpack(&out);
    const PB(Hello) *got = message->hello;
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_eq(got->base.n_unknown_fields, 0);
    ck_assert_uint_eq(got->protocol, hello.protocol);
    ck_assert_uint_eq(got->instance.len, sizeof hello.instance);
    ck_assert_mem_eq(got->instance.data, hello.instance, sizeof hello.instance);
    ck_assert_int_eq(got->role, hello.role);
    ck_assert_str_eq(got->release, hello.release);
    ck_assert_uint_eq(got->window, hello.window);
    ck_assert_int_eq(got->engine_state, hello.engine);
    ck_assert_uint_eq(got->nonce.len, sizeof hello.nonce);
    ck_assert_mem_eq(got->nonce.data, hello.nonce, sizeof hello.nonce);
    ck_assert_uint_eq(got->proof.len, sizeof hello.proof);
    ck_assert_mem_eq(got->proof.data, hello.proof, sizeof hello.proof);
    ck_assert_uint_eq(got->heartbeat_ms, hello.heartbeat_ms);
    ck_assert(got->releases);
    ck_assert(!message->begin && !message->rooms && !message->heartbeat && !message->goodbye);
    roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
    rk_buf_free(&out);
}
END_TEST

START_TEST(protobuf_c_reads_our_other_frames) {
    rk_hello hello = some_hello();
    rk_buf out = RK_BUF_INIT;
    rk_frame_begin(&out, hello.proof);
    PB(Frame) *message = unpack(&out);
    ck_assert_uint_eq(message->begin->proof.len, RK_PROOF_BYTES);
    roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
    rk_buf_free(&out);
    rk_frame_heartbeat(&out, RK_LINK_ENGINE_STALLED);
    message = unpack(&out);
    ck_assert_int_eq(message->heartbeat->engine_state,
                     ROOMKEEPER__PEER__V1__ENGINE_STATE__ENGINE_STATE_STALLED);
    roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
    rk_buf_free(&out);
    rk_frame_goodbye(&out);
    message = unpack(&out);
    ck_assert_ptr_nonnull(message->goodbye);
    roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
    rk_buf_free(&out);
}
END_TEST

START_TEST(protobuf_c_reads_our_rooms) {
    rk_buf entries = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    for (int state = RK_ROOM_OPENED; state <= RK_ROOM_QUIESCED; state++) {
        rk_room_news news = some_news((rk_room_state)state, RK_CAUSE_DRAIN);
        rk_rooms_add(&entries, &news);
    }
    rk_frame_rooms(&out, &entries);
    PB(Frame) *message = unpack(&out);
    ck_assert_uint_eq(message->rooms->n_rooms, RK_ROOM_QUIESCED);
    for (size_t i = 0; i < message->rooms->n_rooms; i++) {
        const PB(Room) *got = message->rooms->rooms[i];
        rk_room_news said = some_news((rk_room_state)(i + 1), RK_CAUSE_DRAIN);
        ck_assert_uint_eq(got->base.n_unknown_fields, 0);
        ck_assert_str_eq(got->host, said.room.host);
        ck_assert_int_eq(got->port, said.room.port);
        ck_assert_int_eq(got->room, said.room.room);
        ck_assert_int_eq(got->state, said.state);
        ck_assert_int_eq(got->cause, PB_CAUSE(DRAIN));
        ck_assert_int_eq(got->ever_submitted, said.ever_submitted);
    }
    roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
    rk_buf_free(&entries);
    rk_buf_free(&out);
}
END_TEST

static void pack_and_read(const PB(Frame) * message, rk_buf *kept) {
    *kept = (rk_buf)RK_BUF_INIT;
    size_t size = roomkeeper__peer__v1__frame__get_packed_size(message);
    uint8_t *at = rk_buf_extend(kept, size);
    ck_assert_uint_eq(roomkeeper__peer__v1__frame__pack(message, at), size);
    ck_assert_int_eq(rk_frame_read(kept->data, kept->size, &frame, &status), RK_OK);
}

START_TEST(we_read_protobuf_cs_frames) {
    rk_hello said = some_hello();
    PB(Hello) hello = ROOMKEEPER__PEER__V1__HELLO__INIT;
    hello.protocol = said.protocol;
    hello.instance = (ProtobufCBinaryData){sizeof said.instance, said.instance};
    hello.role = ROOMKEEPER__PEER__V1__ROLE__ROLE_DECODE;
    hello.release = said.release;
    hello.window = said.window;
    hello.engine_state = ROOMKEEPER__PEER__V1__ENGINE_STATE__ENGINE_STATE_READY;
    hello.nonce = (ProtobufCBinaryData){sizeof said.nonce, said.nonce};
    hello.proof = (ProtobufCBinaryData){sizeof said.proof, said.proof};
    hello.heartbeat_ms = said.heartbeat_ms;
    hello.releases = 1;
    PB(Frame) message = ROOMKEEPER__PEER__V1__FRAME__INIT;
    message.hello = &hello;
    rk_buf kept;
    pack_and_read(&message, &kept);
    ck_assert_int_eq(frame.kind, RK_FRAME_HELLO);
    same_hello(&frame.hello, &said);
    rk_buf_free(&kept);

    PB(Room) room = ROOMKEEPER__PEER__V1__ROOM__INIT;
    PB(Room) * list[] = {&room};
    PB(Rooms) rooms = ROOMKEEPER__PEER__V1__ROOMS__INIT;
    char host[] = "prefill.example";
    room.host = host;
    room.port = 8998;
    room.room = -5;
    room.state = ROOMKEEPER__PEER__V1__ROOM_STATE__ROOM_STATE_ENDED;
    room.cause = PB_CAUSE(WAIT_TIMEOUT);
    room.ever_submitted = 1;
    rooms.n_rooms = 1;
    rooms.rooms = list;
    message.hello = NULL;
    message.rooms = &rooms;
    pack_and_read(&message, &kept);
    rk_room_news got;
    ck_assert_int_eq(rk_rooms_next(&frame.rooms, &got, &status), 1);
    ck_assert_str_eq(got.room.host, host);
    ck_assert_int_eq(got.room.room, -5);
    ck_assert_int_eq(got.state, RK_ROOM_ENDED);
    ck_assert_int_eq(got.cause, RK_CAUSE_WAIT_TIMEOUT);
    ck_assert(got.ever_submitted);
    rk_buf_free(&kept);
}
END_TEST

START_TEST(the_numbers_of_states_roles_and_engines_are_the_protos) {
    ck_assert_int_eq(RK_LINK_ROLE_NONE, ROOMKEEPER__PEER__V1__ROLE__ROLE_UNSPECIFIED);
    ck_assert_int_eq(RK_LINK_ROLE_PREFILL, ROOMKEEPER__PEER__V1__ROLE__ROLE_PREFILL);
    ck_assert_int_eq(RK_LINK_ROLE_DECODE, ROOMKEEPER__PEER__V1__ROLE__ROLE_DECODE);
    const ProtobufCEnumDescriptor *states = &roomkeeper__peer__v1__room_state__descriptor;
    const ProtobufCEnumDescriptor *engines = &roomkeeper__peer__v1__engine_state__descriptor;
    ck_assert_uint_eq(states->n_values, RK_ROOM_QUIESCED + 1);
    ck_assert_uint_eq(engines->n_values, RK_LINK_ENGINE_DEAD + 1);
    ck_assert_uint_eq(roomkeeper__peer__v1__role__descriptor.n_values, RK_LINK_ROLE_DECODE + 1);
    for (unsigned i = 1; i < states->n_values; i++) {
        const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(states, (int)i);
        ck_assert_int_eq(strcasecmp(value->name + strlen("ROOM_STATE_"), rk_room_state_name(i)), 0);
    }
    for (unsigned i = 1; i < engines->n_values; i++) {
        const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(engines, (int)i);
        ck_assert_int_eq(strcasecmp(value->name + strlen("ENGINE_STATE_"), rk_link_engine_name(i)), 0);
    }
    ck_assert_str_eq(rk_room_state_name((rk_room_state)99), "unknown");
    ck_assert_str_eq(rk_link_engine_name((rk_link_engine)99), "unknown");
}
END_TEST

START_TEST(every_cause_has_the_number_that_the_proto_gives_its_name) {
    const ProtobufCEnumDescriptor *proto = &roomkeeper__peer__v1__cause__descriptor;
    ck_assert_uint_eq(proto->n_values, RK_CAUSES); /* ours begin with NONE, the proto's with UNSPECIFIED */
    for (int cause = 1; cause < RK_CAUSES; cause++) {
        rk_room_news news = some_news(RK_ROOM_ENDED, (rk_cause)cause);
        rk_buf entries = RK_BUF_INIT;
        rk_buf out = RK_BUF_INIT;
        rk_rooms_add(&entries, &news);
        rk_frame_rooms(&out, &entries);
        PB(Frame) *message = unpack(&out);
        const ProtobufCEnumValue *value =
            protobuf_c_enum_descriptor_get_value(proto, (int)message->rooms->rooms[0]->cause);
        ck_assert_ptr_nonnull(value);
        ck_assert_msg(strcasecmp(value->name + strlen("CAUSE_"), rk_cause_name((rk_cause)cause)) == 0,
                      "%s is %s in the .proto", rk_cause_name((rk_cause)cause), value->name);
        roomkeeper__peer__v1__frame__free_unpacked(message, NULL);
        rk_buf_free(&entries);
        rk_buf_free(&out);
    }
}
END_TEST

/* ---- a later release ---- */

START_TEST(frames_of_a_kind_that_is_not_known_are_skipped) {
    reads((rk_buf)RK_BUF_INIT);
    ck_assert_int_eq(frame.kind, RK_FRAME_NONE);
    rk_buf later = RK_BUF_INIT;
    raw_text(&later, 77, "what a later release says");
    reads(later);
    ck_assert_int_eq(frame.kind, RK_FRAME_NONE);
}
END_TEST

START_TEST(fields_that_are_not_known_are_skipped_around_and_within_a_body) {
    rk_hello hello = some_hello();
    rk_buf plain = RK_BUF_INIT;
    rk_frame_hello(&plain, &hello);
    rk_wire left = rk_wire_of(plain.data, plain.size);
    rk_wire_field body;
    ck_assert_int_eq(rk_wire_next(&left, &body), 1);
    rk_buf inner = RK_BUF_INIT;
    raw_uint(&inner, 900, 1);
    rk_buf_append(&inner, body.bytes.at, rk_wire_size(body.bytes));
    raw_double(&inner, 901, 2.5);
    raw_text(&inner, 902, "x");
    rk_buf out = RK_BUF_INIT;
    raw_text(&out, 500, "before");
    raw_message(&out, RK_LINK_FRAME__HELLO, inner);
    raw_float(&out, 501, 1.5f);
    raw_uint(&out, 502, 7);
    rk_buf_free(&plain);
    reads(out);
    ck_assert_int_eq(frame.kind, RK_FRAME_HELLO);
    same_hello(&frame.hello, &hello);
}
END_TEST

START_TEST(states_and_causes_that_are_not_known_are_told_apart_from_known_ones) {
    static const struct {
        uint64_t state;
        uint64_t cause;
        rk_room_state read;
        rk_cause why;
    } table[] = {
        {7, 1, RK_ROOM_UNKNOWN, RK_CAUSE_COMPLETED},
        {0, 21, RK_ROOM_UNKNOWN, RK_CAUSE_ENGINE_ERROR},
        {(uint64_t)-1, (uint64_t)-1, RK_ROOM_UNKNOWN, RK_CAUSE_ENGINE_ERROR},
        {5, 0, RK_ROOM_ENDED, RK_CAUSE_ENGINE_ERROR},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        rk_buf room = RK_BUF_INIT;
        raw_text(&room, RK_LINK_ROOM__HOST, "h");
        raw_uint(&room, RK_LINK_ROOM__STATE, table[i].state);
        raw_uint(&room, RK_LINK_ROOM__CAUSE, table[i].cause);
        raw_text(&room, 99, "later");
        rk_buf entries = RK_BUF_INIT;
        raw_text(&entries, 12, "a field of Rooms that is not known");
        raw_message(&entries, RK_LINK_ROOMS__ROOMS, room);
        rk_wire rooms = rk_wire_of(entries.data, entries.size);
        rk_room_news news;
        ck_assert_int_eq(rk_rooms_next(&rooms, &news, &status), 1);
        ck_assert_int_eq(news.state, table[i].read);
        ck_assert_int_eq(news.cause, table[i].why);
        ck_assert_int_eq(rk_rooms_next(&rooms, &news, &status), 0);
        rk_buf_free(&entries);
    }
}
END_TEST

START_TEST(a_role_or_engine_state_that_is_not_known_is_none_that_we_know) {
    rk_buf body = RK_BUF_INIT;
    uint8_t bytes[RK_NONCE_BYTES] = {1};
    raw_bytes(&body, RK_LINK_HELLO__INSTANCE, bytes, RK_INSTANCE_BYTES);
    raw_bytes(&body, RK_LINK_HELLO__NONCE, bytes, RK_NONCE_BYTES);
    raw_uint(&body, RK_LINK_HELLO__ROLE, 3);
    raw_uint(&body, RK_LINK_HELLO__ENGINE_STATE, 5);
    reads(framed(RK_LINK_FRAME__HELLO, body));
    ck_assert_int_eq(frame.hello.role, RK_LINK_ROLE_NONE);
    ck_assert_int_eq(frame.hello.engine, RK_LINK_ENGINE_UNKNOWN);
    rk_buf beat = RK_BUF_INIT;
    raw_uint(&beat, RK_LINK_HEARTBEAT__ENGINE_STATE, (uint64_t)-2);
    reads(framed(RK_LINK_FRAME__HEARTBEAT, beat));
    ck_assert_int_eq(frame.engine, RK_LINK_ENGINE_UNKNOWN);
}
END_TEST

START_TEST(a_release_that_cannot_be_printed_is_made_so_and_cut) {
    rk_hello hello = some_hello();
    rk_buf body = RK_BUF_INIT;
    raw_bytes(&body, RK_LINK_HELLO__INSTANCE, hello.instance, RK_INSTANCE_BYTES);
    raw_bytes(&body, RK_LINK_HELLO__NONCE, hello.nonce, RK_NONCE_BYTES);
    raw_text(&body, RK_LINK_HELLO__RELEASE, "1.0\n\x1b[2J\xc3\xa9 and a text that goes on and on and on");
    reads(framed(RK_LINK_FRAME__HELLO, body));
    ck_assert_uint_eq(strlen(frame.hello.release), sizeof frame.hello.release - 1);
    ck_assert_int_eq(memcmp(frame.hello.release, "1.0??[2J???and", 14), 0);
}
END_TEST

/* ---- broken ---- */

START_TEST(a_frame_cut_off_anywhere_is_one_line) {
    rk_hello hello = some_hello();
    rk_room_news news = some_news(RK_ROOM_ENDED, RK_CAUSE_FULL);
    rk_buf entries = RK_BUF_INIT;
    rk_rooms_add(&entries, &news);
    rk_buf frames[4] = {RK_BUF_INIT, RK_BUF_INIT, RK_BUF_INIT, RK_BUF_INIT};
    rk_frame_hello(&frames[0], &hello);
    rk_frame_begin(&frames[1], hello.proof);
    rk_frame_rooms(&frames[2], &entries);
    rk_frame_heartbeat(&frames[3], RK_LINK_ENGINE_READY);
    for (size_t i = 0; i < 4; i++) {
        for (size_t size = 1; size < frames[i].size; size++) {
            rk_buf part = RK_BUF_INIT;
            rk_buf_append(&part, frames[i].data, size);
            frame_refused(part, "frame is not a protobuf message");
        }
        rk_buf_free(&frames[i]);
    }
    rk_buf_free(&entries);
}
END_TEST

START_TEST(a_body_cut_off_anywhere_is_one_line_or_lacks_something) {
    rk_hello hello = some_hello();
    rk_buf whole = RK_BUF_INIT;
    rk_frame_hello(&whole, &hello);
    rk_wire left = rk_wire_of(whole.data, whole.size);
    rk_wire_field body;
    ck_assert_int_eq(rk_wire_next(&left, &body), 1);
    unsigned broken = 0;
    for (size_t size = 0; size < rk_wire_size(body.bytes); size++) {
        rk_buf out = RK_BUF_INIT;
        raw_bytes(&out, RK_LINK_FRAME__HELLO, body.bytes.at, size);
        if (rk_frame_read(out.data, out.size, &frame, &status) != RK_OK) {
            is_one_line();
            broken++;
        }
        rk_buf_free(&out);
    }
    /* Only what ends between two fields behind the nonce is a hello. */
    ck_assert_uint_eq(rk_wire_size(body.bytes) - broken, 3);
    rk_buf_free(&whole);
}
END_TEST

START_TEST(rooms_cut_off_anywhere_are_one_line_after_the_whole_ones) {
    rk_room_news news = some_news(RK_ROOM_OPENED, RK_CAUSE_COMPLETED);
    rk_buf entries = RK_BUF_INIT;
    rk_rooms_add(&entries, &news);
    size_t one = entries.size;
    rk_rooms_add(&entries, &news);
    for (size_t size = one + 1; size < entries.size; size++) {
        uint8_t *copy = malloc(size); /* exactly so large, for the address sanitizer */
        memcpy(copy, entries.data, size);
        rk_wire rooms = rk_wire_of(copy, size);
        rk_room_news got;
        ck_assert_int_eq(rk_rooms_next(&rooms, &got, &status), 1);
        ck_assert_int_eq(rk_rooms_next(&rooms, &got, &status), -1);
        is_one_line();
        free(copy);
    }
    rk_buf_free(&entries);
}
END_TEST

START_TEST(a_frame_with_two_bodies_is_refused) {
    for (int same = 0; same < 2; same++) {
        rk_buf out = RK_BUF_INIT;
        rk_frame_heartbeat(&out, RK_LINK_ENGINE_READY);
        if (same)
            rk_frame_heartbeat(&out, RK_LINK_ENGINE_READY);
        else
            rk_frame_goodbye(&out);
        frame_refused(out, "two bodies");
    }
}
END_TEST

START_TEST(a_body_of_another_wire_type_is_no_body) {
    rk_buf out = RK_BUF_INIT;
    raw_uint(&out, RK_LINK_FRAME__HELLO, 1);
    reads(out);
    ck_assert_int_eq(frame.kind, RK_FRAME_NONE);
}
END_TEST

START_TEST(instances_nonces_and_proofs_of_a_wrong_length_are_refused_by_name) {
    static const struct {
        uint32_t number;
        size_t right;
        const char *path;
    } fields[] = {
        {RK_LINK_HELLO__INSTANCE, RK_INSTANCE_BYTES, "hello.instance has"},
        {RK_LINK_HELLO__NONCE, RK_NONCE_BYTES, "hello.nonce has"},
        {RK_LINK_HELLO__PROOF, RK_PROOF_BYTES, "hello.proof has"},
    };
    uint8_t bytes[64] = {0};
    for (size_t wrong = 0; wrong < 3; wrong++) {
        for (size_t size = 0; size < sizeof bytes; size++) {
            rk_buf body = RK_BUF_INIT;
            for (size_t i = 0; i < 3; i++)
                raw_bytes(&body, fields[i].number, bytes, i == wrong ? size : fields[i].right);
            rk_buf out = framed(RK_LINK_FRAME__HELLO, body);
            bool fits = size == fields[wrong].right || (wrong == 2 && size == 0);
            if (fits)
                reads(out);
            else
                frame_refused(out, fields[wrong].path);
        }
    }
    frame_refused(framed(RK_LINK_FRAME__HELLO, (rk_buf)RK_BUF_INIT), "hello.instance has 0 bytes");
    rk_buf begin = RK_BUF_INIT;
    raw_bytes(&begin, RK_LINK_BEGIN__PROOF, bytes, RK_PROOF_BYTES - 1);
    frame_refused(framed(RK_LINK_FRAME__BEGIN, begin), "begin.proof has 31 bytes; it must have 32");
}
END_TEST

START_TEST(fields_of_a_wrong_wire_type_are_refused_by_name) {
    rk_buf body = RK_BUF_INIT;
    raw_uint(&body, RK_LINK_HELLO__INSTANCE, 5);
    frame_refused(framed(RK_LINK_FRAME__HELLO, body), "hello.instance");
    body = (rk_buf)RK_BUF_INIT;
    raw_text(&body, RK_LINK_HEARTBEAT__ENGINE_STATE, "ready");
    frame_refused(framed(RK_LINK_FRAME__HEARTBEAT, body), "heartbeat.engine_state");
    body = (rk_buf)RK_BUF_INIT;
    raw_bytes(&body, RK_LINK_HELLO__RELEASE, "\xff\xfe", 2);
    frame_refused(framed(RK_LINK_FRAME__HELLO, body), "hello.release");
}
END_TEST

static void room_is_refused(const void *host, size_t size, const char *part) {
    rk_buf room = RK_BUF_INIT;
    raw_bytes(&room, RK_LINK_ROOM__HOST, host, size);
    rk_buf entries = RK_BUF_INIT;
    raw_message(&entries, RK_LINK_ROOMS__ROOMS, room);
    rk_wire rooms = rk_wire_of(entries.data, entries.size);
    rk_room_news news;
    ck_assert_int_eq(rk_rooms_next(&rooms, &news, &status), -1);
    is_one_line();
    ck_assert_msg(strstr(status.text, part) != NULL, "%s", status.text);
    rk_buf_free(&entries);
}

START_TEST(hosts_that_are_too_long_or_hold_a_nul_are_refused) {
    char host[1000];
    memset(host, 'h', sizeof host);
    room_is_refused(host, RK_ROOM_HOST_MAX, "rooms.host has 256 bytes; give at most 255");
    room_is_refused(host, sizeof host, "rooms.host has 1000 bytes");
    room_is_refused("a\0b", 3, "without a NUL");
    room_is_refused("\xff", 1, "rooms.host");
}
END_TEST

START_TEST(only_tells_have_a_room_state) {
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_OPENED), RK_ROOM_OPENED);
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_ADMITTED), RK_ROOM_ADMITTED);
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_SUBMITTED), RK_ROOM_SUBMITTED);
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_HANDED_OFF), RK_ROOM_HANDED_OFF);
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_ENDED), RK_ROOM_ENDED);
    ck_assert_int_eq(rk_room_state_of(RK_FX_TELL_QUIESCED), RK_ROOM_QUIESCED);
    for (int kind = RK_FX_OPEN; kind <= RK_FX_RELEASE_ROOM; kind++)
        ck_assert_int_eq(rk_room_state_of((rk_effect_kind)kind), RK_ROOM_UNKNOWN);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_hello_comes_back_as_it_was_said,
        a_begin_comes_back_with_its_proof_or_without,
        heartbeats_and_the_goodbye_come_back,
        rooms_come_back_in_their_order_with_every_state_and_cause,
        a_room_keeps_its_extremes,
        protobuf_c_reads_our_hello,
        protobuf_c_reads_our_other_frames,
        protobuf_c_reads_our_rooms,
        we_read_protobuf_cs_frames,
        the_numbers_of_states_roles_and_engines_are_the_protos,
        every_cause_has_the_number_that_the_proto_gives_its_name,
        frames_of_a_kind_that_is_not_known_are_skipped,
        fields_that_are_not_known_are_skipped_around_and_within_a_body,
        states_and_causes_that_are_not_known_are_told_apart_from_known_ones,
        a_role_or_engine_state_that_is_not_known_is_none_that_we_know,
        a_release_that_cannot_be_printed_is_made_so_and_cut,
        a_frame_cut_off_anywhere_is_one_line,
        a_body_cut_off_anywhere_is_one_line_or_lacks_something,
        rooms_cut_off_anywhere_are_one_line_after_the_whole_ones,
        a_frame_with_two_bodies_is_refused,
        a_body_of_another_wire_type_is_no_body,
        instances_nonces_and_proofs_of_a_wrong_length_are_refused_by_name,
        fields_of_a_wrong_wire_type_are_refused_by_name,
        hosts_that_are_too_long_or_hold_a_nul_are_refused,
        only_tells_have_a_room_state,
    };
    return RUN_SUITE("frame", tests);
}
