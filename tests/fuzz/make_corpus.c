/* Writes the corpus to start from: make_corpus FOLDER makes the folders of the targets that read binary
 * messages. Those of text (config, addresses, json, scrape) are written by hand. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "dialect_wire.h"
#include "peer/frame.h"
#include "rk_proto/fields.h"

static const char *folder;

static void put(const char *what, const char *name, const rk_buf *bytes) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, what);
    if (mkdir(path, 0777) < 0 && errno != EEXIST) {
        perror(path);
        exit(2);
    }
    (void)snprintf(path, sizeof path, "%s/%s/%s", folder, what, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes->data, 1, bytes->size, file) != bytes->size || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
}

static rk_hello hello_of(rk_link_role role) {
    rk_hello hello = {.protocol = 1,
                      .role = role,
                      .release = "1.0",
                      .window = 4,
                      .engine = RK_LINK_ENGINE_READY,
                      .has_proof = true,
                      .heartbeat_ms = 100,
                      .releases = true};
    memset(hello.instance, 7, sizeof hello.instance);
    return hello;
}

static rk_buf rooms_of(rk_room_state state, unsigned count) {
    rk_buf entries = RK_BUF_INIT;
    rk_buf out = RK_BUF_INIT;
    for (unsigned i = 1; i <= count; i++) {
        rk_room_news news = {.room = {"prefill.example", 8998, i},
                             .state = state,
                             .cause = RK_CAUSE_FULL,
                             .ever_submitted = i % 2};
        rk_rooms_add(&entries, &news);
    }
    rk_frame_rooms(&out, &entries);
    rk_buf_free(&entries);
    return out;
}

static void frames(void) {
    rk_hello hello = hello_of(RK_LINK_ROLE_DECODE);
    rk_buf out = RK_BUF_INIT;
    rk_frame_hello(&out, &hello);
    put("frame", "hello", &out);
    rk_buf_free(&out);
    rk_frame_begin(&out, hello.proof);
    put("frame", "begin", &out);
    rk_buf_free(&out);
    rk_frame_heartbeat(&out, RK_LINK_ENGINE_STALLED);
    put("frame", "heartbeat", &out);
    rk_buf_free(&out);
    rk_frame_goodbye(&out);
    put("frame", "goodbye", &out);
    rk_buf_free(&out);
    out = rooms_of(RK_ROOM_ENDED, 3);
    put("frame", "rooms", &out);
    rk_buf_free(&out);
}

/* fuzz_link's operation 0: a message. */
static void say(rk_buf *stream, rk_buf frame) {
    uint8_t head[] = {0, (uint8_t)frame.size, (uint8_t)(frame.size >> 8)};
    rk_buf_append(stream, head, sizeof head);
    rk_buf_append(stream, frame.data, frame.size);
    rk_buf_free(&frame);
}

static void links(void) {
    static const char *const names[] = {"decode",        "prefill",   "decode-token",
                                        "prefill-token", "decode-up", "prefill-up"};
    for (uint8_t choice = 0; choice < 6; choice++) {
        rk_buf stream = RK_BUF_INIT;
        rk_hello hello = hello_of(choice & 1 ? RK_LINK_ROLE_DECODE : RK_LINK_ROLE_PREFILL);
        rk_buf_append(&stream, &choice, 1);
        rk_buf frame = RK_BUF_INIT;
        if (!(choice & 4)) {
            rk_frame_hello(&frame, &hello);
            say(&stream, frame);
            frame = (rk_buf)RK_BUF_INIT;
            rk_buf_append(&stream, "\5", 1);
            rk_frame_begin(&frame, hello.proof);
            say(&stream, frame);
        }
        for (int state = RK_ROOM_OPENED; state <= RK_ROOM_QUIESCED; state++) {
            say(&stream, rooms_of((rk_room_state)state, 3));
            rk_buf_append(&stream, "\2\x09\3\x22\5\4\x30", 7); /* the engine, the clients, the clock */
        }
        frame = (rk_buf)RK_BUF_INIT;
        rk_frame_heartbeat(&frame, RK_LINK_ENGINE_STALLED);
        say(&stream, frame);
        rk_buf_append(&stream, "\6\7\1\x29\1\x8\6\x87\1\x31\10\0\10\1\10\4\10\5\5", 19);
        put("link", names[choice], &stream);
        rk_buf_free(&stream);
    }
}

static void generates(void) {
    rk_buf out = RK_BUF_INIT;
    rk_buf tokens = RK_BUF_INIT;
    rk_buf sampling = RK_BUF_INIT;
    rk_buf_append(&out, "\2", 1);
    raw_text(&out, RK_TS_GENERATE_REQUEST__REQUEST_ID, "an-id");
    raw_bytes(&tokens, RK_TS_TOKENIZED_INPUT__INPUT_IDS, "\1\2\3\4", 4);
    raw_message(&out, RK_TS_GENERATE_REQUEST__TOKENIZED, tokens);
    raw_uint(&sampling, RK_TS_SAMPLING_PARAMS__N, 2);
    raw_float(&sampling, RK_TS_SAMPLING_PARAMS__TEMPERATURE, 0.5f);
    raw_text(&sampling, RK_TS_SAMPLING_PARAMS__STOP, "stop");
    raw_message(&out, RK_TS_GENERATE_REQUEST__SAMPLING_PARAMS, sampling);
    put("generate", "request", &out);
    rk_buf_free(&out);
}

/* fuzz_calls' first byte. */
static rk_buf call_of(uint8_t choice) {
    rk_buf out = RK_BUF_INIT;
    rk_buf_append(&out, &choice, 1);
    return out;
}

static void put_call(const char *name, rk_buf bytes) {
    put("calls", name, &bytes);
    rk_buf_free(&bytes);
}

static void calls(void) {
    rk_buf out = call_of(0);
    raw_text(&out, RK_TS_ABORT_REQUEST__REQUEST_ID, "an-id");
    raw_text(&out, RK_TS_ABORT_REQUEST__REASON, "a reason");
    put_call("abort", out);
    out = call_of(1);
    raw_field(&out, 7, GROUP);
    put_call("no-fields", out);
    out = call_of(2);
    raw_uint(&out, RK_TS_GET_LOADS_REQUEST__DP_RANK, 1);
    raw_text(&out, RK_TS_GET_LOADS_REQUEST__INCLUDE, "core");
    raw_text(&out, RK_TS_GET_LOADS_REQUEST__INCLUDE, "disagg");
    put_call("loads", out);
    out = call_of(3);
    raw_float(&out, RK_SMG_FLUSH_CACHE_REQUEST__TIMEOUT_S, 1.5f);
    put_call("flush", out);
    out = call_of(4);
    raw_text(&out, RK_SMG_START_PROFILE_REQUEST__OUTPUT_DIR, "/a/place");
    raw_uint(&out, RK_SMG_START_PROFILE_REQUEST__START_STEP, 3);
    raw_uint(&out, RK_SMG_START_PROFILE_REQUEST__NUM_STEPS, 5);
    raw_text(&out, RK_SMG_START_PROFILE_REQUEST__ACTIVITIES, "CPU");
    raw_text(&out, RK_SMG_START_PROFILE_REQUEST__ACTIVITIES, "GPU");
    raw_uint(&out, RK_SMG_START_PROFILE_REQUEST__WITH_STACK, 1);
    raw_uint(&out, RK_SMG_START_PROFILE_REQUEST__RECORD_SHAPES, 0);
    raw_uint(&out, RK_SMG_START_PROFILE_REQUEST__PROFILE_BY_STAGE, 1);
    put_call("profile", out);
    out = call_of(5);
    raw_text(&out, RK_HEALTH_HEALTH_CHECK_REQUEST__SERVICE, rk_dialect_tokenspeed.service);
    put_call("health", out);
    out = call_of(7);
    raw_uint(&out, RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__START_SEQUENCE_NUMBER, 1000);
    raw_uint(&out, RK_SMG_SUBSCRIBE_KV_EVENTS_REQUEST__LOAD_RECORDS_BEFORE_FIRST_BATCH, 1);
    put_call("subscribe", out);
}

static void put_question(const char *name, uint32_t number, const char *text) {
    rk_buf out = RK_BUF_INIT;
    raw_text(&out, RK_REFLECTION_SERVER_REFLECTION_REQUEST__HOST, "a-host");
    raw_text(&out, number, text);
    put("reflection", name, &out);
    rk_buf_free(&out);
}

static void questions(void) {
    const char *service = rk_dialect_tokenspeed.service;
    const char *type = "tokenspeed.grpc.scheduler.GenerateRequest";
    put_question("list", RK_REFLECTION_SERVER_REFLECTION_REQUEST__LIST_SERVICES, "");
    put_question("symbol", RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_CONTAINING_SYMBOL, service);
    put_question("file", RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_BY_FILENAME,
                 "google/protobuf/struct.proto");
    put_question("extensions", RK_REFLECTION_SERVER_REFLECTION_REQUEST__ALL_EXTENSION_NUMBERS_OF_TYPE, type);
    rk_buf out = RK_BUF_INIT;
    rk_buf extension = RK_BUF_INIT;
    raw_text(&extension, RK_REFLECTION_EXTENSION_REQUEST__CONTAINING_TYPE, type);
    raw_uint(&extension, RK_REFLECTION_EXTENSION_REQUEST__EXTENSION_NUMBER, 9);
    raw_message(&out, RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_CONTAINING_EXTENSION, extension);
    put("reflection", "extension", &out);
    rk_buf_free(&out);
}

static void labels(void) {
    rk_buf out = RK_BUF_INIT;
    rk_buf_append(&out, &(double){0.1}, sizeof(double));
    rk_buf_append(&out, "plain\0a \"quote\"\n\\\0\xC3\xA9\xFF", 22);
    put("prometheus", "labels", &out);
    rk_buf_free(&out);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    frames();
    links();
    generates();
    calls();
    questions();
    labels();
    return 0;
}
