/* rk-floor: what the same bytes cost as one write per step, the floor under any servicer that streams.
 *
 * Every step writes `streams` frames of `bytes` to a loopback connection in one send and goes to sleep until
 * the next; a thread reads them. Prints the writing thread's CPU as one JSON line: {"server_cpu_us_each":
 * ...}. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES 65536
#define S_NS 1000000000L

static void fail(const char *what) {
    fprintf(stderr, "rk-floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *drain(void *arg) {
    static char bytes[READ_BYTES];
    int fd = *(int *)arg;
    while (read(fd, bytes, sizeof bytes) > 0)
        ;
    return NULL;
}

/* A connected pair over TCP, the way a client would be. */
static void connect_pair(int *ours, int *theirs) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        fail("listen");
    *theirs = socket(AF_INET, SOCK_STREAM, 0);
    if (*theirs < 0 || connect(*theirs, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect");
    *ours = accept(listener, NULL, NULL);
    if (*ours < 0)
        fail("accept");
    close(listener);
    if (setsockopt(*ours, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) < 0)
        fail("TCP_NODELAY");
}

static void send_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0)
            fail("send");
        bytes += sent;
        size -= (size_t)sent;
    }
}

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: rk-floor STREAMS STEPS STEP_US BYTES\n");
        return 2;
    }
    long streams = strtol(argv[1], NULL, 10), steps = strtol(argv[2], NULL, 10);
    long step_us = strtol(argv[3], NULL, 10), bytes = strtol(argv[4], NULL, 10);
    if (streams < 1 || steps < 1 || step_us < 0 || bytes < 1) {
        fprintf(stderr, "rk-floor: every number must be at least 1 (STEP_US: 0)\n");
        return 2;
    }
    int ours, theirs;
    connect_pair(&ours, &theirs);
    pthread_t reader;
    if (pthread_create(&reader, NULL, drain, &theirs) != 0)
        fail("pthread_create");
    size_t size = (size_t)(streams * bytes);
    char *frames = calloc(1, size);
    if (!frames)
        fail("calloc");
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    double begun = cpu_us();
    for (long step = 0; step < steps; step++) {
        send_all(ours, frames, size);
        due.tv_nsec += step_us * 1000;
        due.tv_sec += due.tv_nsec / S_NS;
        due.tv_nsec %= S_NS;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
            ;
    }
    printf("{\"server_cpu_us_each\": %.3f}\n", (cpu_us() - begun) / (double)(steps * streams));
    close(ours);
    (void)pthread_join(reader, NULL);
    close(theirs);
    free(frames);
    return 0;
}
