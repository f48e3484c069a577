/* Writes the corpus to start from: make_corpus FOLDER makes frame/, link/ and generate/ in it. */
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

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    frames();
    links();
    generates();
    return 0;
}
