/* Any bytes as what a scraper sends to the metrics' port, in pieces whose size the first byte chooses: no
 * answer, or one whole answer of HTTP/1.1, with the metrics for GET /metrics and for nothing else. The file
 * under test is part of this one, so that a connection can be given to it. */
#include "rpc/scrape.c"

#include "dialect_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char body[] = "a_metric 1\n";

char *rk_servicer_metrics(rk_servicer *servicer, size_t *size) {
    (void)servicer;
    *size = sizeof body - 1;
    return strdup(body);
}

static size_t read_all(int fd, char *out, size_t most) {
    size_t size = 0;
    for (ssize_t got; size < most && (got = recv(fd, out + size, most - size, 0)) > 0;)
        size += (size_t)got;
    return size;
}

static void look(const char *asked, const char *answer_text, size_t size) {
    int code = 0, version = 0;
    ck_assert_int_eq(sscanf(answer_text, "HTTP/1.%d %d ", &version, &code), 2);
    ck_assert_int_eq(version, 1);
    const char *content = strstr(answer_text, "\r\n\r\n");
    const char *length = strstr(answer_text, "Content-Length: ");
    ck_assert(content && length && length < content);
    content += 4;
    ck_assert_uint_eq(strtoul(length + 16, NULL, 10), size - (size_t)(content - answer_text));
    bool get = strncmp(asked, "GET ", 4) == 0;
    bool metrics = strncmp(asked, "GET /metrics ", 13) == 0 || strncmp(asked, "GET /metrics?", 13) == 0;
    ck_assert_int_eq(code, metrics ? 200 : get ? 404 : 405);
    ck_assert_int_eq(strcmp(content, body) == 0, metrics);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int stop[2] = {-1, -1};
    char answer_text[4096];
    int ends[2];
    if (size == 0 || size > 16384)
        return 0;
    if (stop[0] < 0)
        ck_assert_int_eq(pipe2(stop, O_CLOEXEC), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, data[0] & 1 ? SOCK_SEQPACKET : SOCK_STREAM, 0, ends), 0);
    size_t piece = data[0] >> 1 ? data[0] >> 1 : 16384;
    char *asked = strndup((const char *)data + 1, size - 1);
    for (size_t at = 1; at < size; at += piece) {
        size_t left = size - at;
        if (send(ends[0], data + at, left < piece ? left : piece, MSG_DONTWAIT) < 0)
            break;
    }
    ck_assert_int_eq(shutdown(ends[0], SHUT_WR), 0);
    struct rk_scrape scrape = {.stop = {stop[0], stop[1]}, .listener = -1};
    serve(&scrape, ends[1]);
    (void)close(ends[1]);
    size_t got = read_all(ends[0], answer_text, sizeof answer_text - 1);
    answer_text[got] = '\0';
    (void)close(ends[0]);
    if (got > 0)
        look(asked, answer_text, got);
    free(asked);
    return 0;
}
