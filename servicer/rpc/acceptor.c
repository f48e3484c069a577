/* The plaintext TCP listeners.
 *
 * gRPC core can listen by itself; we accept the connections and hand it the sockets, so that they can be
 * corked: the outputs of one engine step then leave as one burst instead of one segment a stream, which is
 * cheaper here and much cheaper at the gateway. Of each connection we keep a duplicate descriptor, for
 * corking and to see when it ends; gRPC core owns the other one. Such connections are named "fd:N" in gRPC
 * core, and that is how a call finds its connection.
 *
 * What the usual listener does is done here: a connection that says nothing is closed after preface_seconds,
 * and there are at most max_connections.
 *
 * One thread, the acceptor, runs the epoll loop. The table is shared with the pollers, under `lock`.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <inttypes.h>
#include <linux/tcp.h> /* the C library's tcp_info lacks tcpi_bytes_received */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "rpc/internal.h"

/* HTTP/2 preface and the frame header of the first SETTINGS: fewer bytes and nobody speaks HTTP/2. */
#define PREFACE_BYTES 33

struct rk_connection {
    _Atomic uint32_t refs;
    rk_list link; /* in acceptor->connections, or acceptor->silent until the preface is seen */
    int core_fd;  /* gRPC core's number: the name of the connection */
    int fd;       /* ours; -1 once the connection has ended */
    uint64_t opened_ms;
    pthread_mutex_t lock; /* of fd, against its closing while it is corked */
    rk_cork *marks;       /* one a poller, each its poller's own */
};

typedef struct rk_listener {
    rk_list link;
    int fd;
} rk_listener;

struct rk_acceptor {
    rk_servicer *servicer;
    grpc_server_credentials *credentials;
    int epoll;
    int wake; /* eventfd: stop */
    pthread_t thread;
    bool running;
    rk_list listeners;
    pthread_mutex_t lock; /* of what follows */
    rk_list connections;  /* open ones that have spoken */
    rk_list silent;       /* open ones that have not, oldest first */
    rk_map *by_core_fd;   /* core_fd + 1 → rk_connection */
    uint64_t open;
    bool full_told; /* the limit has been logged */
};

rk_acceptor *rk_acceptor_new(rk_servicer *servicer) {
    rk_acceptor *acceptor = calloc(1, sizeof *acceptor);
    if (!acceptor)
        return NULL;
    acceptor->servicer = servicer;
    rk_list_init(&acceptor->listeners);
    rk_list_init(&acceptor->connections);
    rk_list_init(&acceptor->silent);
    (void)pthread_mutex_init(&acceptor->lock, NULL);
    acceptor->credentials = grpc_insecure_server_credentials_create();
    acceptor->by_core_fd = rk_map_new();
    acceptor->epoll = epoll_create1(EPOLL_CLOEXEC);
    acceptor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (!acceptor->by_core_fd || acceptor->epoll < 0 || acceptor->wake < 0 ||
        epoll_ctl(acceptor->epoll, EPOLL_CTL_ADD, acceptor->wake, &event) < 0) {
        rk_acceptor_free(acceptor);
        return NULL;
    }
    return acceptor;
}

/* ---- connections ---- */

rk_connection *rk_connection_ref(rk_connection *connection) {
    if (connection)
        atomic_fetch_add_explicit(&connection->refs, 1, memory_order_relaxed);
    return connection;
}

void rk_connection_unref(rk_connection *connection) {
    if (!connection || atomic_fetch_sub_explicit(&connection->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (connection->fd >= 0)
        (void)close(connection->fd);
    (void)pthread_mutex_destroy(&connection->lock);
    free(connection->marks);
    free(connection);
}

void rk_connection_cork(rk_connection *connection, bool on) {
    int value = on;
    (void)pthread_mutex_lock(&connection->lock);
    if (connection->fd >= 0)
        (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value);
    (void)pthread_mutex_unlock(&connection->lock);
}

rk_cork *rk_connection_mark(rk_connection *connection, const rk_poller *poller) {
    return &connection->marks[poller - poller->servicer->pollers];
}

rk_connection *rk_acceptor_connection(rk_acceptor *acceptor, const char *peer) {
    int number = -1;
    if (!peer || sscanf(peer, "fd:%d", &number) != 1 || number < 0)
        return NULL;
    (void)pthread_mutex_lock(&acceptor->lock);
    rk_connection *connection = rk_connection_ref(rk_map_get(acceptor->by_core_fd, (uint64_t)number + 1));
    (void)pthread_mutex_unlock(&acceptor->lock);
    return connection;
}

/* Under the lock. The table's reference goes to the caller. */
static void forget(rk_acceptor *acceptor, rk_connection *connection) {
    rk_list_remove(&connection->link);
    uint64_t name = (uint64_t)connection->core_fd + 1;
    if (rk_map_get(acceptor->by_core_fd, name) == connection)
        (void)rk_map_remove(acceptor->by_core_fd, name);
    acceptor->open--;
    acceptor->full_told = false;
}

static void connection_ended(rk_acceptor *acceptor, rk_connection *connection) {
    (void)pthread_mutex_lock(&acceptor->lock);
    forget(acceptor, connection);
    (void)pthread_mutex_unlock(&acceptor->lock);
    (void)pthread_mutex_lock(&connection->lock);
    /* By name: gRPC core's descriptor of the same socket may still be open and would keep the entry. */
    (void)epoll_ctl(acceptor->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    (void)close(connection->fd);
    connection->fd = -1;
    (void)pthread_mutex_unlock(&connection->lock);
    rk_connection_unref(connection);
}

static rk_connection *connection_new(rk_acceptor *acceptor, int fd) {
    rk_connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return NULL;
    atomic_init(&connection->refs, 1); /* the table's */
    rk_list_init(&connection->link);
    (void)pthread_mutex_init(&connection->lock, NULL);
    connection->core_fd = fd;
    connection->opened_ms = rk_now_ms();
    connection->marks = calloc(acceptor->servicer->poller_count, sizeof *connection->marks);
    connection->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (connection->fd < 0 || !connection->marks) {
        rk_connection_unref(connection);
        return NULL;
    }
    return connection;
}

/* Takes over `fd`. */
static void adopt(rk_acceptor *acceptor, int fd) {
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)pthread_mutex_lock(&acceptor->lock);
    uint64_t limit = (uint64_t)acceptor->servicer->config.max_connections;
    bool full = acceptor->open >= limit;
    bool tell = full && !acceptor->full_told;
    acceptor->full_told = full;
    rk_connection *connection = full ? NULL : connection_new(acceptor, fd);
    if (connection) {
        uint64_t name = (uint64_t)fd + 1;
        (void)rk_map_remove(acceptor->by_core_fd, name); /* of a connection whose end we have not seen yet */
        if (rk_map_put(acceptor->by_core_fd, name, connection) < 0) {
            rk_connection_unref(connection);
            connection = NULL;
        } else {
            rk_list_push_back(&acceptor->silent, &connection->link);
            acceptor->open++;
        }
    }
    (void)pthread_mutex_unlock(&acceptor->lock);
    if (tell)
        rk_log_event(&acceptor->servicer->log, RK_LOG_WARNING, "connection refused: too many are open",
                     RK_FIELD_INT("max_connections", (int64_t)limit));
    if (!connection) {
        (void)close(fd);
        return;
    }
    /* In this order: gRPC core may close its descriptor as soon as it has it. */
    struct epoll_event event = {.events = EPOLLHUP | EPOLLERR, .data.ptr = connection};
    (void)epoll_ctl(acceptor->epoll, EPOLL_CTL_ADD, connection->fd, &event);
    grpc_server_add_channel_from_fd(acceptor->servicer->server, fd, acceptor->credentials);
}

/* ---- listening ---- */

static int listen_error(const char *shown, int error, char text[RK_ERROR_MAX]) {
    const char *hint = error == EADDRINUSE      ? "; stop the other process or choose another port"
                       : error == EACCES        ? "; ports below 1024 need privileges"
                       : error == EADDRNOTAVAIL ? "; it is no address of this machine"
                                                : "";
    (void)snprintf(text, RK_ERROR_MAX, "cannot listen on %s: %s%s", shown, strerror(error), hint);
    return -error;
}

static int bound_port(int fd) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    memset(&address, 0, sizeof address);
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return -errno;
    uint16_t port;
    size_t at = address.ss_family == AF_INET6 ? offsetof(struct sockaddr_in6, sin6_port)
                                              : offsetof(struct sockaddr_in, sin_port);
    memcpy(&port, (const char *)&address + at, sizeof port);
    return ntohs(port);
}

static int open_listener(const struct addrinfo *info) {
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, info->ai_protocol);
    if (fd < 0)
        return -errno;
    int on = 1;
    int off = 0;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (info->ai_family == AF_INET6) /* "[::]" serves IPv4 too */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 1024) == 0)
        return fd;
    int result = -errno;
    (void)close(fd);
    return result;
}

static int add_listener(rk_acceptor *acceptor, int fd) {
    rk_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return -ENOMEM;
    listener->fd = fd;
    rk_list_push_back(&acceptor->listeners, &listener->link);
    return 0;
}

int rk_acceptor_listen(rk_acceptor *acceptor, const char *host, const char *port, const char *shown,
                       char error[RK_ERROR_MAX]) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int result = getaddrinfo(host[0] ? host : NULL, port, &hints, &found);
    if (result != 0) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot listen on %s: %s", shown, gai_strerror(result));
        return -EINVAL;
    }
    int fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *info = found; info && fd < 0; info = info->ai_next)
        fd = open_listener(info);
    freeaddrinfo(found);
    if (fd < 0)
        return listen_error(shown, -fd, error);
    if (add_listener(acceptor, fd) < 0) {
        (void)close(fd);
        return listen_error(shown, ENOMEM, error);
    }
    return bound_port(fd);
}

/* ---- the thread ---- */

static void accept_all(rk_acceptor *acceptor, rk_listener *listener) {
    for (int turn = 0; turn < 64; turn++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            adopt(acceptor, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            rk_log_event(&acceptor->servicer->log, RK_LOG_ERROR, "cannot accept a connection",
                         RK_FIELD_TEXT("error", strerror(errno)));
            (void)usleep(10000); /* the listener stays readable: do not spin */
        }
        return;
    }
}

static bool has_spoken(const rk_connection *connection) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return true;
    return info.tcpi_bytes_received >= PREFACE_BYTES;
}

/* Connections older than the limit either have spoken or are shut; returns ms until the next is due. */
static int check_silent(rk_acceptor *acceptor) {
    uint64_t now = rk_now_ms();
    uint64_t limit = (uint64_t)(acceptor->servicer->config.preface_seconds * 1000);
    int wait = -1;
    (void)pthread_mutex_lock(&acceptor->lock);
    while (!rk_list_empty(&acceptor->silent)) {
        rk_connection *connection = RK_CONTAINER(acceptor->silent.next, rk_connection, link);
        uint64_t age = now - connection->opened_ms;
        if (age < limit) {
            wait = (int)(limit - age) + 1;
            break;
        }
        rk_list_remove(&connection->link);
        rk_list_push_back(&acceptor->connections, &connection->link);
        if (!has_spoken(connection))
            (void)shutdown(connection->fd, SHUT_RDWR); /* gRPC core sees the end and closes its side */
    }
    (void)pthread_mutex_unlock(&acceptor->lock);
    return wait;
}

/* What an epoll event belongs to: NULL is the wake-up, listeners are told apart by their list. */
static rk_listener *listener_of(rk_acceptor *acceptor, const void *data) {
    for (rk_list *node = acceptor->listeners.next; node != &acceptor->listeners; node = node->next)
        if (node == data)
            return RK_CONTAINER(node, rk_listener, link);
    return NULL;
}

static void *acceptor_main(void *arg) {
    rk_acceptor *acceptor = arg;
    struct epoll_event events[64];
    for (;;) {
        int count = epoll_wait(acceptor->epoll, events, RK_COUNT(events), check_silent(acceptor));
        for (int i = 0; i < count; i++) {
            void *data = events[i].data.ptr;
            if (!data)
                return NULL;
            rk_listener *listener = listener_of(acceptor, data);
            if (listener)
                accept_all(acceptor, listener);
            else if (events[i].events & (EPOLLHUP | EPOLLERR))
                connection_ended(acceptor, data);
        }
    }
}

int rk_acceptor_start(rk_acceptor *acceptor) {
    for (rk_list *node = acceptor->listeners.next; node != &acceptor->listeners; node = node->next) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = node};
        if (epoll_ctl(acceptor->epoll, EPOLL_CTL_ADD, RK_CONTAINER(node, rk_listener, link)->fd, &event) < 0)
            return -errno;
    }
    int result = rk_thread_start(&acceptor->thread, "rk-acceptor", acceptor_main, acceptor);
    acceptor->running = result == 0;
    return result;
}

void rk_acceptor_stop(rk_acceptor *acceptor) {
    if (acceptor->running) {
        uint64_t one = 1;
        (void)!write(acceptor->wake, &one, sizeof one);
        (void)pthread_join(acceptor->thread, NULL);
        acceptor->running = false;
    }
    rk_list *node;
    while ((node = rk_list_pop_front(&acceptor->listeners)) != NULL) {
        rk_listener *listener = RK_CONTAINER(node, rk_listener, link);
        (void)close(listener->fd);
        free(listener);
    }
}

static void drop_list(rk_acceptor *acceptor, rk_list *list) {
    while (!rk_list_empty(list)) {
        rk_connection *connection = RK_CONTAINER(list->next, rk_connection, link);
        forget(acceptor, connection);
        rk_connection_unref(connection);
    }
}

void rk_acceptor_drop(rk_acceptor *acceptor) {
    (void)pthread_mutex_lock(&acceptor->lock);
    drop_list(acceptor, &acceptor->connections);
    drop_list(acceptor, &acceptor->silent);
    (void)pthread_mutex_unlock(&acceptor->lock);
}

static void shut_list(rk_list *list) {
    for (rk_list *node = list->next; node != list; node = node->next)
        (void)shutdown(RK_CONTAINER(node, rk_connection, link)->fd, SHUT_RDWR);
}

/* gRPC core waits up to 20 s for a client that does not answer its farewell; we do not. */
void rk_acceptor_hang_up(rk_acceptor *acceptor) {
    (void)pthread_mutex_lock(&acceptor->lock);
    shut_list(&acceptor->connections);
    shut_list(&acceptor->silent);
    (void)pthread_mutex_unlock(&acceptor->lock);
}

void rk_acceptor_free(rk_acceptor *acceptor) {
    if (!acceptor)
        return;
    rk_acceptor_stop(acceptor);
    rk_acceptor_drop(acceptor);
    rk_map_free(acceptor->by_core_fd);
    if (acceptor->epoll >= 0)
        (void)close(acceptor->epoll);
    if (acceptor->wake >= 0)
        (void)close(acceptor->wake);
    grpc_server_credentials_release(acceptor->credentials);
    (void)pthread_mutex_destroy(&acceptor->lock);
    free(acceptor);
}
