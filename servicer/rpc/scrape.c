/* The metrics over HTTP: one thread, one request a connection, one connection at a time.
 *
 * A scraper asks every few seconds, so nothing here is fast, and everything is bounded: a request of at most
 * 8 KiB that must be there within 2 s, an answer that must be taken within 2 s. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "roomkeeper/metrics.h"
#include "rpc/links.h"

#define REQUEST_MAX 8192
#define BOUND_MS 2000

struct rk_scrape {
    rk_servicer *servicer;
    pthread_t thread;
    bool started;
    int listener;
    int stop[2]; /* a pipe: closed to end the thread */
};

/* ---- listening ---- */

static int bind_to(const char *host, const char *port, int *bound_port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host[0] ? host : NULL, port, &hints, &list) != 0)
        return -EADDRNOTAVAIL;
    int fd = -1;
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        int on = 1;
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 16) == 0)
            break;
        error = errno;
        if (fd >= 0)
            (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0)
        return -error;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char text[12] = "0";
    (void)getsockname(fd, (struct sockaddr *)&address, &size);
    (void)getnameinfo((struct sockaddr *)&address, size, NULL, 0, text, sizeof text, NI_NUMERICSERV);
    *bound_port = (int)strtol(text, NULL, 10);
    return fd;
}

int rk_scrape_listen(rk_servicer *servicer, const char *host, const char *port, const char *shown,
                     char error[RK_ERROR_MAX]) {
    if (servicer->scrape) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot serve metrics on %s: they are served already", shown);
        return -EALREADY;
    }
    struct rk_scrape *scrape = calloc(1, sizeof *scrape);
    int bound = 0;
    int fd = scrape ? bind_to(host, port, &bound) : -ENOMEM;
    if (fd < 0 || pipe2(scrape->stop, O_CLOEXEC) < 0) {
        int code = fd < 0 ? fd : -errno;
        (void)snprintf(error, RK_ERROR_MAX,
                       "cannot serve metrics on %s: %s; choose another (--room-metrics-port)", shown,
                       strerror(-code));
        if (fd >= 0)
            (void)close(fd);
        free(scrape);
        return code;
    }
    scrape->servicer = servicer;
    scrape->listener = fd;
    servicer->scrape = scrape;
    return bound;
}

/* ---- answering ---- */

/* Waits for `events` or the end; false: neither in time, or the end. */
static bool wait_for(const struct rk_scrape *scrape, int fd, short events, uint64_t until) {
    struct pollfd waits[] = {{.fd = fd, .events = events}, {.fd = scrape->stop[0]}};
    for (;;) {
        uint64_t now = rk_now_ms();
        if (now >= until)
            return false;
        int ready = poll(waits, 2, (int)(until - now));
        if (ready < 0 && errno == EINTR)
            continue;
        return ready > 0 && !waits[1].revents;
    }
}

/* Reads until the empty line behind the headers; false: it does not come. */
static bool read_request(const struct rk_scrape *scrape, int fd, char request[REQUEST_MAX]) {
    size_t size = 0;
    uint64_t until = rk_now_ms() + BOUND_MS;
    while (size + 1 < REQUEST_MAX && wait_for(scrape, fd, POLLIN, until)) {
        ssize_t got = recv(fd, request + size, REQUEST_MAX - 1 - size, 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return false;
        size += (size_t)got;
        request[size] = '\0';
        if (strstr(request, "\r\n\r\n") || strstr(request, "\n\n"))
            return true;
    }
    return false;
}

static void send_all(const struct rk_scrape *scrape, int fd, const char *bytes, size_t size) {
    uint64_t until = rk_now_ms() + BOUND_MS;
    while (size > 0 && wait_for(scrape, fd, POLLOUT, until)) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (sent < 0)
            return;
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void answer(const struct rk_scrape *scrape, int fd, const char *status, const char *body,
                   size_t size) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                          "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                          status, size);
    send_all(scrape, fd, head, (size_t)length);
    send_all(scrape, fd, body, size);
}

static bool asks_for(const char *request, const char *path) {
    size_t size = strlen(path);
    return strncmp(request, "GET ", 4) == 0 && strncmp(request + 4, path, size) == 0 &&
           (request[4 + size] == ' ' || request[4 + size] == '?');
}

static void serve(const struct rk_scrape *scrape, int fd) {
    char request[REQUEST_MAX];
    if (!read_request(scrape, fd, request))
        return;
    static const char none[] = "metrics are at /metrics\n";
    if (!asks_for(request, "/metrics")) {
        bool get = strncmp(request, "GET ", 4) == 0;
        answer(scrape, fd, get ? "404 Not Found" : "405 Method Not Allowed", none, sizeof none - 1);
        return;
    }
    size_t size = 0;
    char *text = rk_servicer_metrics(scrape->servicer, &size);
    if (text)
        answer(scrape, fd, "200 OK", text, size);
    else
        answer(scrape, fd, "503 Service Unavailable", "out of memory\n", 14);
    free(text);
}

static void *scrape_main(void *arg) {
    const struct rk_scrape *scrape = arg;
    struct pollfd waits[] = {{.fd = scrape->listener, .events = POLLIN}, {.fd = scrape->stop[0]}};
    for (;;) {
        if (poll(waits, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (waits[1].revents)
            return NULL;
        int fd = accept4(scrape->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            continue;
        serve(scrape, fd);
        (void)close(fd);
    }
}

int rk_scrape_start(rk_servicer *servicer) {
    struct rk_scrape *scrape = servicer->scrape;
    if (!scrape)
        return 0;
    int result = rk_thread_start(&scrape->thread, "rk-metrics", scrape_main, scrape);
    scrape->started = result == 0;
    return result;
}

void rk_scrape_stop(rk_servicer *servicer) {
    struct rk_scrape *scrape = servicer->scrape;
    if (!scrape)
        return;
    servicer->scrape = NULL;
    (void)close(scrape->stop[1]);
    if (scrape->started)
        (void)pthread_join(scrape->thread, NULL);
    (void)close(scrape->stop[0]);
    (void)close(scrape->listener);
    free(scrape);
}
