/* Credentials from certificate files, and the thread that sees to it that they are the files' of now.
 *
 * gRPC core asks for a listener's certificates at every handshake, on the thread that accepts (a poller): it
 * gets them from memory. Only the thread here touches files, so that a file system that hangs holds up
 * nobody. It does not guard the swap against a second thread that accepts on the same listener, so each
 * address is a listener of its own, which one thread at a time accepts on. */
#include "rpc/tls.h"

#include <errno.h>
#include <grpc/grpc.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/thread.h"

#define LOOK_SECONDS 1

/* What a listener's handshakes ask. Belongs to the thread that accepts. */
typedef struct rk_tls_listener {
    rk_list link;
    rk_tls *tls;
    uint64_t given; /* generation of the set that gRPC core has */
    bool took_13;   /* its context takes TLS 1.3 only */
} rk_tls_listener;

/* ---- listeners ---- */

static grpc_ssl_certificate_config_reload_status fetch(void *of,
                                                       grpc_ssl_server_certificate_config **config) {
    rk_tls_listener *listener = of;
    rk_tls *tls = listener->tls;
    rk_tls_next_context_any();
    if (rk_tls_files_generation(tls->server) == listener->given)
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    rk_tls_set *set = rk_tls_files_get(tls->server);
    grpc_ssl_pem_key_cert_pair pair = {set->text[RK_TLS_KEY], set->text[RK_TLS_CERT]};
    const char *ca = set->text[RK_TLS_CA];
    /* Roots must be there, also where no client certificate is asked for and nobody reads them. */
    *config = grpc_ssl_server_certificate_config_create(ca ? ca : pair.cert_chain, &pair, 1);
    listener->given = set->generation;
    rk_tls_set_unref(set);
    if (tls->only_13 && !rk_tls_next_context_13(&listener->took_13))
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

/* NULL: out of memory. */
static grpc_server_credentials *listener_credentials(rk_tls *tls, rk_tls_listener *listener) {
    rk_tls_set *set = rk_tls_files_get(tls->server);
    bool asks = set->text[RK_TLS_CA] != NULL;
    rk_tls_set_unref(set);
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            asks ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                 : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            fetch, listener);
    return options ? grpc_ssl_server_credentials_create_with_options(options) : NULL;
}

static int listen_one(rk_tls *tls, grpc_server *server, const struct addrinfo *to, const char *port,
                      char error[RK_ERROR_MAX]) {
    char host[NI_MAXHOST];
    char address[NI_MAXHOST + 16];
    if (getnameinfo(to->ai_addr, to->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        return 0;
    (void)snprintf(address, sizeof address, to->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    rk_tls_listener *listener = calloc(1, sizeof *listener);
    if (!listener) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory while making a listener");
        return -ENOMEM;
    }
    listener->tls = tls;
    rk_list_push_back(&tls->listeners, &listener->link);
    grpc_server_credentials *credentials = listener_credentials(tls, listener);
    int bound = credentials ? grpc_server_add_http2_port(server, address, credentials) : 0;
    grpc_server_credentials_release(credentials);
    rk_tls_next_context_any();
    if (bound == 0 || !tls->only_13 || listener->took_13)
        return bound;
    (void)snprintf(
        error, RK_ERROR_MAX,
        "tls_min_version is 1.3, which this gRPC core cannot be held to (it has a TLS library of its "
        "own); set 1.2");
    return -ENOTSUP;
}

int rk_tls_listen(rk_tls *tls, grpc_server *server, const char *host, const char *port,
                  char error[RK_ERROR_MAX]) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(host[0] ? host : "0.0.0.0", port, &hints, &list);
    if (code != 0) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot listen on %.200s:%s: %s", host, port, gai_strerror(code));
        return -EADDRNOTAVAIL;
    }
    char number[12];
    int bound = 0;
    (void)snprintf(number, sizeof number, "%s", port);
    for (const struct addrinfo *to = list; to && bound >= 0; to = to->ai_next) {
        int one = listen_one(tls, server, to, number, error);
        if (one != 0)
            bound = one;
        if (one > 0) /* a name's addresses share the port that the first was given */
            (void)snprintf(number, sizeof number, "%d", one);
    }
    freeaddrinfo(list);
    return bound;
}

/* ---- links ---- */

grpc_channel_credentials *rk_tls_dial_credentials(rk_tls *tls) {
    rk_tls_set *set = rk_tls_files_get(tls->link);
    grpc_ssl_pem_key_cert_pair pair = {set->text[RK_TLS_KEY], set->text[RK_TLS_CERT]};
    grpc_channel_credentials *credentials =
        grpc_ssl_credentials_create(set->text[RK_TLS_CA], pair.cert_chain ? &pair : NULL, NULL, NULL);
    rk_tls_set_unref(set);
    if (credentials && tls->only_13)
        (void)rk_tls_dial_13(credentials); /* it can: rk_tls_init_link has seen to that */
    return credentials;
}

/* ---- made from the configuration ---- */

int rk_tls_init(rk_tls *tls, const rk_config *config, const rk_log *log, char error[RK_ERROR_MAX]) {
    rk_list_init(&tls->listeners);
    tls->log = log;
    tls->only_13 = strcmp(config->tls_min_version, "1.3") == 0;
    bool has_cert = config->tls_cert[0] != '\0';
    bool has_key = config->tls_key[0] != '\0';
    if (!has_cert && !has_key && config->tls_client_ca[0] == '\0')
        return 0;
    if (!has_cert || !has_key) {
        (void)snprintf(error, RK_ERROR_MAX, "%s is set and %s is not; TLS needs both",
                       has_cert  ? "tls_cert"
                       : has_key ? "tls_key"
                                 : "tls_client_ca",
                       has_cert ? "tls_key" : "tls_cert");
        return -EINVAL;
    }
    const rk_tls_paths paths = {"server",
                                {{"tls_cert", config->tls_cert},
                                 {"tls_key", config->tls_key},
                                 {"tls_client_ca", config->tls_client_ca}}};
    tls->server = rk_tls_files_new(&paths, error);
    return tls->server ? 0 : -EINVAL;
}

int rk_tls_init_link(rk_tls *tls, const rk_config *config, char error[RK_ERROR_MAX]) {
    bool has_cert = config->link_tls_cert[0] != '\0';
    bool has_key = config->link_tls_key[0] != '\0';
    bool has_ca = config->link_tls_ca[0] != '\0';
    if (!has_cert && !has_key && !has_ca)
        return 0;
    const rk_tls_paths paths = {"link",
                                {{"link_tls_cert", config->link_tls_cert},
                                 {"link_tls_key", config->link_tls_key},
                                 {"link_tls_ca", config->link_tls_ca}}};
    tls->link = rk_tls_files_new(&paths, error);
    if (!tls->link)
        return -EINVAL;
    const char *wrong = NULL;
    if (has_cert != has_key)
        wrong = "link_tls_cert and link_tls_key go together; set both or neither";
    else if (!has_ca)
        wrong = "link_tls_cert is set and link_tls_ca is not; TLS needs to know whom to trust";
    else if (tls->only_13 && !rk_tls_can_dial_13())
        wrong = "tls_min_version is 1.3, which this gRPC core cannot demand of links that it dials; set 1.2";
    if (!wrong)
        return 0;
    (void)snprintf(error, RK_ERROR_MAX, "%s", wrong);
    return -EINVAL;
}

void rk_tls_free(rk_tls *tls) {
    rk_list *node;
    while (tls->listeners.next && (node = rk_list_pop_front(&tls->listeners)) != NULL)
        free(RK_CONTAINER(node, rk_tls_listener, link));
    rk_tls_files_free(tls->server);
    rk_tls_files_free(tls->link);
    tls->server = NULL;
    tls->link = NULL;
}

/* ---- the thread ---- */

static void sleep_a_while(rk_tls *tls) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_SECONDS;
    (void)pthread_cond_timedwait(&tls->wake, &tls->lock, &until);
}

static void *tls_main(void *arg) {
    rk_tls *tls = arg;
    (void)pthread_mutex_lock(&tls->lock);
    while (!tls->stop) {
        (void)pthread_mutex_unlock(&tls->lock);
        if (tls->server)
            rk_tls_files_look(tls->server, tls->log);
        if (tls->link)
            rk_tls_files_look(tls->link, tls->log);
        (void)pthread_mutex_lock(&tls->lock);
        if (!tls->stop)
            sleep_a_while(tls);
    }
    (void)pthread_mutex_unlock(&tls->lock);
    return NULL;
}

static int init_lock(rk_tls *tls) {
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) != 0)
        return -ENOMEM;
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&tls->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&tls->lock, NULL);
    return 0;
}

static void destroy_lock(rk_tls *tls) {
    (void)pthread_mutex_destroy(&tls->lock);
    (void)pthread_cond_destroy(&tls->wake);
}

int rk_tls_start(rk_tls *tls) {
    if (!tls->server && !tls->link)
        return 0;
    int result = init_lock(tls);
    if (result < 0)
        return result;
    result = rk_thread_start(&tls->thread, "rk-tls", tls_main, tls);
    tls->running = result == 0;
    if (!tls->running)
        destroy_lock(tls);
    return result;
}

void rk_tls_stop(rk_tls *tls) {
    if (!tls->running)
        return;
    (void)pthread_mutex_lock(&tls->lock);
    tls->stop = true;
    (void)pthread_cond_signal(&tls->wake);
    (void)pthread_mutex_unlock(&tls->lock);
    (void)pthread_join(tls->thread, NULL);
    tls->running = false;
    destroy_lock(tls);
}
