/* Connecting to a peer: a name looked up, its addresses checked against the allowed networks, a connection.
 *
 * One detached thread a dial, since a look-up cannot be bounded. Threads hold the dialler, not the servicer:
 * what comes back after rk_dialler_close finds nobody and is closed. The connection that was checked is the
 * one that is used, so a name cannot change in between. */
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "rpc/links.h"

#define ADDRESSES_MAX 4 /* of one name, tried one after the other */

struct rk_dialler {
    pthread_mutex_t lock;
    pthread_cond_t left;
    rk_servicer *servicer; /* NULL once closed */
    unsigned refs;         /* the servicer's and one per thread; under lock, as all here */
    unsigned inside;       /* threads that hand something over */
};

typedef struct rk_dial_job {
    rk_dialler *dialler;
    uint32_t peer;
    char host[RK_ROOM_HOST_MAX];
    int32_t port;
    char bootstrap_host[RK_ROOM_HOST_MAX];
    int32_t bootstrap_port; /* 0: not known */
    bool trusted;
    rk_networks allowed;
    unsigned connect_ms;
    /* ---- what comes of it ---- */
    int fd;
    rk_dial_end end;
    char why[160];
    char remote[96]; /* "ipv4:127.0.0.1:10999", as gRPC core names addresses */
} rk_dial_job;

rk_dialler *rk_dialler_new(rk_servicer *servicer) {
    rk_dialler *dialler = calloc(1, sizeof *dialler);
    if (!dialler)
        return NULL;
    (void)pthread_mutex_init(&dialler->lock, NULL);
    (void)pthread_cond_init(&dialler->left, NULL);
    dialler->servicer = servicer;
    dialler->refs = 1;
    return dialler;
}

/* With the lock held, which is let go. */
static void unref(rk_dialler *dialler) {
    bool last = --dialler->refs == 0;
    (void)pthread_mutex_unlock(&dialler->lock);
    if (!last)
        return;
    (void)pthread_cond_destroy(&dialler->left);
    (void)pthread_mutex_destroy(&dialler->lock);
    free(dialler);
}

void rk_dialler_close(rk_dialler *dialler) {
    (void)pthread_mutex_lock(&dialler->lock);
    dialler->servicer = NULL;
    while (dialler->inside > 0)
        (void)pthread_cond_wait(&dialler->left, &dialler->lock);
    (void)pthread_mutex_unlock(&dialler->lock);
}

void rk_dialler_free(rk_dialler *dialler) {
    if (!dialler)
        return;
    rk_dialler_close(dialler);
    (void)pthread_mutex_lock(&dialler->lock);
    unref(dialler);
}

/* ---- connecting ---- */

static void name_address(const struct sockaddr *address, int32_t port, char *out, size_t size) {
    char text[INET6_ADDRSTRLEN + 16] = "?";
    socklen_t length =
        address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    (void)getnameinfo(address, length, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    if (address->sa_family == AF_INET)
        (void)snprintf(out, size, "ipv4:%s:%d", text, (int)port);
    else
        (void)snprintf(out, size, "ipv6:[%s]:%d", text, (int)port);
}

/* 0 or an errno. */
static int finish_connect(int fd, unsigned wait_ms) {
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    uint64_t until = rk_now_ms() + wait_ms;
    for (;;) {
        uint64_t now = rk_now_ms();
        if (now >= until)
            return ETIMEDOUT;
        int ready = poll(&wait, 1, (int)(until - now));
        if (ready < 0 && errno != EINTR)
            return errno;
        if (ready > 0)
            break;
    }
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? errno : error;
}

static int connect_to(rk_dial_job *job, const struct addrinfo *to) {
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = connect(fd, to->ai_addr, to->ai_addrlen) < 0 ? errno : 0;
    if (error == EINPROGRESS)
        error = finish_connect(fd, job->connect_ms);
    if (error != 0) {
        (void)close(fd);
        return error;
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    job->fd = fd;
    name_address(to->ai_addr, job->port, job->remote, sizeof job->remote);
    return 0;
}

static void say(rk_dial_job *job, rk_dial_end end, const char *why) {
    job->end = end;
    (void)snprintf(job->why, sizeof job->why, "%s", why);
}

/* Only when every address of the host says that nobody listens is that proof. */
static void try_addresses(rk_dial_job *job, const struct addrinfo *list) {
    unsigned tried = 0;
    unsigned refused = 0;
    for (const struct addrinfo *to = list; to && tried < ADDRESSES_MAX; to = to->ai_next) {
        if (!job->trusted && !rk_networks_have(&job->allowed, to->ai_addr)) {
            say(job, RK_DIAL_FORBIDDEN,
                "its address is in no network that may be dialled (--room-peer, --room-peer-allow)");
            return;
        }
        int error = connect_to(job, to);
        if (error == 0)
            return;
        tried++;
        refused += error == ECONNREFUSED || error == ECONNRESET ? 1 : 0;
        say(job, refused == tried ? RK_DIAL_REFUSED : RK_DIAL_FAILED,
            error == ECONNREFUSED ? "nobody listens for links there" : strerror(error));
    }
}

/* NULL: the name has none; the reason is in the job. */
static struct addrinfo *look_up(rk_dial_job *job, const char *host, int32_t number) {
    char port[12];
    (void)snprintf(port, sizeof port, "%d", (int)number);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(host, port, &hints, &list);
    if (code == 0)
        return list;
    say(job, RK_DIAL_FAILED, gai_strerror(code));
    return NULL;
}

static void connect_by_name(rk_dial_job *job) {
    struct addrinfo *list = look_up(job, job->host, job->port);
    if (!list)
        return;
    try_addresses(job, list);
    freeaddrinfo(list);
}

/* Nobody takes links there. Is there a prefill at all? One without the link would listen as a bootstrap
 * server. */
static void probe_bootstrap(rk_dial_job *job) {
    rk_dial_job probe = *job;
    if (job->bootstrap_port == 0)
        return;
    struct addrinfo *list = look_up(&probe, job->bootstrap_host, job->bootstrap_port);
    if (!list)
        return;
    try_addresses(&probe, list);
    freeaddrinfo(list);
    if (probe.fd >= 0)
        (void)close(probe.fd);
    else if (probe.end == RK_DIAL_REFUSED)
        say(job, RK_DIAL_GONE, "no prefill worker runs there");
}

/* ---- the channel ---- */

/* What the worker that answers is called: in its certificate, and by our calls, which are checked against it.
 */
static const char *name_of(const rk_servicer *servicer, const rk_dial_job *job) {
    const char *name = servicer->links->settings.tls_name;
    return servicer->tls.link && name[0] ? name : job->host;
}

/* TLS cannot take our socket over: it connects anew, to the address that was checked and no other. Every dial
 * has the certificates that are there now. */
static grpc_channel *tls_channel(rk_servicer *servicer, rk_dial_job *job) {
    (void)close(job->fd);
    job->fd = -1;
    grpc_channel_credentials *credentials = rk_tls_dial_credentials(&servicer->tls);
    if (!credentials)
        return NULL;
    char name[RK_ROOM_HOST_MAX];
    (void)snprintf(name, sizeof name, "%s", name_of(servicer, job));
    char max_message[] = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH;
    char override[] = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG;
    char proxy[] = GRPC_ARG_ENABLE_HTTP_PROXY;
    char pool[] = GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL;
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = max_message, .value.integer = RK_FRAME_MAX},
        {.type = GRPC_ARG_STRING, .key = override, .value.string = name},
        {.type = GRPC_ARG_INTEGER, .key = proxy, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = pool, .value.integer = 1},
    };
    grpc_channel_args channel_args = {sizeof args / sizeof args[0], args};
    grpc_channel *channel = grpc_channel_create(job->remote, credentials, &channel_args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static grpc_channel *plain_channel(rk_dial_job *job) {
    char max_message[] = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH;
    grpc_arg args[] = {{.type = GRPC_ARG_INTEGER, .key = max_message, .value.integer = RK_FRAME_MAX}};
    grpc_channel_args channel_args = {sizeof args / sizeof args[0], args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create_from_fd(job->remote, job->fd, credentials, &channel_args);
    grpc_channel_credentials_release(credentials);
    job->fd = -1; /* gRPC core's now */
    return channel;
}

static void hand_over(rk_servicer *servicer, rk_dial_job *job) {
    if (job->fd < 0) {
        rk_peers_dial_failed(servicer->links->peers, rk_now_ms(), job->peer, job->end, job->why);
        return;
    }
    grpc_channel *channel = servicer->tls.link ? tls_channel(servicer, job) : plain_channel(job);
    if (!channel) {
        rk_peers_dial_failed(servicer->links->peers, rk_now_ms(), job->peer, RK_DIAL_FAILED,
                             "no channel could be made");
        return;
    }
    rk_link_dialled(servicer, job->peer, channel, name_of(servicer, job), job->remote);
}

static void *dial_main(void *arg) {
    rk_dial_job *job = arg;
    connect_by_name(job);
    if (job->fd < 0 && job->end == RK_DIAL_REFUSED)
        probe_bootstrap(job);
    rk_dialler *dialler = job->dialler;
    (void)pthread_mutex_lock(&dialler->lock);
    rk_servicer *servicer = dialler->servicer;
    if (servicer) { /* which waits for us in rk_dialler_close */
        dialler->inside++;
        (void)pthread_mutex_unlock(&dialler->lock);
        hand_over(servicer, job);
        (void)pthread_mutex_lock(&dialler->lock);
        dialler->inside--;
        (void)pthread_cond_broadcast(&dialler->left);
    }
    if (job->fd >= 0)
        (void)close(job->fd);
    unref(dialler);
    free(job);
    return NULL;
}

static int start_thread(rk_dial_job *job) {
    pthread_t thread;
    int result = rk_thread_start(&thread, "rk-dial", dial_main, job);
    if (result == 0)
        (void)pthread_detach(thread);
    return result;
}

void rk_dial(rk_dialler *dialler, uint32_t peer, const char *host, int32_t port, bool trusted) {
    (void)pthread_mutex_lock(&dialler->lock);
    rk_servicer *servicer = dialler->servicer;
    dialler->refs++; /* the thread's, or ours until the end of this function */
    (void)pthread_mutex_unlock(&dialler->lock);
    rk_dial_job *job = servicer ? calloc(1, sizeof *job) : NULL;
    int result = job ? 0 : -ENOMEM;
    if (job) {
        job->dialler = dialler;
        job->peer = peer;
        job->port = port;
        job->trusted = trusted;
        job->allowed = servicer->links->settings.allowed;
        job->connect_ms = servicer->links->settings.connect_ms;
        job->fd = -1;
        (void)snprintf(job->host, sizeof job->host, "%s", host);
        if (!rk_peers_bootstrap(servicer->links->peers, peer, job->bootstrap_host, &job->bootstrap_port))
            job->bootstrap_port = 0;
        say(job, RK_DIAL_FAILED, "its name has no address");
        result = start_thread(job);
    }
    if (result == 0)
        return;
    free(job);
    if (servicer)
        rk_peers_dial_failed(servicer->links->peers, rk_now_ms(), peer, RK_DIAL_FAILED,
                             "no thread could be started to dial it");
    (void)pthread_mutex_lock(&dialler->lock);
    unref(dialler);
}
