/* The room link of a servicer: made from its configuration, listening, ticking, ended. */
#include "rpc/links.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- what peer/ asks of us ---- */

static void dial(void *owner, uint32_t peer, const char *host, int32_t port, bool trusted) {
    rk_servicer *servicer = owner;
    rk_dial(servicer->links->dialler, peer, host, port, trusted);
}

static void effects(void *owner, rk_effects *fx) {
    rk_effects_run(owner, fx, NULL);
}

static rk_link_engine engine_now(void *owner) {
    rk_engine_view view;
    rk_engine_look(owner, rk_now_ms(), &view);
    static const rk_link_engine states[] = {
        [RK_ENGINE_STARTING] = RK_LINK_ENGINE_STARTING,
        [RK_ENGINE_READY] = RK_LINK_ENGINE_READY,
        [RK_ENGINE_STALLED] = RK_LINK_ENGINE_STALLED,
        [RK_ENGINE_DEAD] = RK_LINK_ENGINE_DEAD,
    };
    return states[view.state];
}

static const rk_peers_ops ops = {
    .dial = dial,
    .hold = rk_link_hold,
    .kick = rk_link_kicked,
    .effects = effects,
    .engine = engine_now,
};

/* ---- made from the configuration ---- */

static int load_settings(rk_link_settings *settings, const rk_config *config, char error[RK_ERROR_MAX]) {
    int result = rk_networks_parse(&settings->allowed, config->peer_allow, error);
    if (result < 0)
        return result;
    settings->connect_ms = (unsigned)(3 * config->heartbeat_ms);
    settings->tls_name = strdup(config->link_tls_name);
    return settings->tls_name ? 0 : -ENOMEM;
}

static int load_peers(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    const rk_config *config = &servicer->config;
    rk_peers_options options = {
        .role = servicer->rooms.role == RK_ROLE_PREFILL ? RK_LINK_ROLE_PREFILL : RK_LINK_ROLE_DECODE,
        .window = servicer->rooms.window * servicer->rooms.ranks,
        .releases = servicer->ops->release_room != NULL,
        .links = (uint32_t)config->links,
        .dials_per_second = (uint32_t)config->dials_per_second,
        .heartbeat_ms = (uint32_t)config->heartbeat_ms,
        .peer_port = config->peer_port,
    };
    int result =
        config->link_token_file[0] ? rk_token_load(&options.token, config->link_token_file, error) : 0;
    if (result == 0)
        result = rk_peer_addresses_parse(&options.addresses, config->peer, error);
    if (result == 0) {
        servicer->links->peers = rk_peers_new(&options, servicer->ledger, &servicer->log, &ops, servicer);
        result = servicer->links->peers ? 0 : -ENOMEM;
    }
    rk_token_wipe(&options.token);
    return result;
}

int rk_links_new(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    if (!servicer->rooms.enabled || !servicer->config.link || servicer->rooms.role == RK_ROLE_NULL ||
        servicer->rooms.role == RK_ROLE_ENCODE)
        return 0;
    (void)snprintf(error, RK_ERROR_MAX, "out of memory while making the room link");
    servicer->links = calloc(1, sizeof *servicer->links);
    if (!servicer->links)
        return -ENOMEM;
    int result = load_settings(&servicer->links->settings, &servicer->config, error);
    if (result == 0)
        result = rk_tls_init_link(&servicer->tls, &servicer->config, error);
    if (result == 0)
        result = load_peers(servicer, error);
    if (result == 0) {
        servicer->links->dialler = rk_dialler_new(servicer);
        result = servicer->links->dialler ? 0 : -ENOMEM;
    }
    return result;
}

void rk_links_free(rk_servicer *servicer) {
    rk_links *links = servicer->links;
    if (!links)
        return;
    rk_dialler_free(links->dialler);
    rk_peers_free(links->peers);
    free(links->settings.tls_name);
    free(links);
    servicer->links = NULL;
}

/* ---- listening ---- */

static int cannot_listen(char error[RK_ERROR_MAX], int code, const char *host, const char *port,
                         const char *why) {
    (void)snprintf(error, RK_ERROR_MAX,
                   strchr(host, ':')
                       ? "cannot listen for room links on [%s]:%s: %s; see --room-link-host and "
                         "--room-peer-port, or --room-link off"
                       : "cannot listen for room links on %s:%s: %s; see --room-link-host and "
                         "--room-peer-port, or --room-link off",
                   host, port, why);
    return code;
}

static bool reaches_beyond(const struct addrinfo *list) {
    bool beyond = false;
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        beyond |= !rk_is_loopback(at->ai_addr);
    return beyond;
}

/* 0 or an errno. Asked before gRPC core is, which does not tell why and logs a line of its own. */
static int try_bind(const struct addrinfo *to) {
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int error = bind(fd, to->ai_addr, to->ai_addrlen) < 0 ? errno : 0;
    (void)close(fd);
    return error;
}

/* Where to listen can be bound; links from beyond this host are `guarded`, or not taken: `host` is loopback
 * then. */
static int choose_host(rk_servicer *servicer, const char **host, const char *port, const char *shown,
                       char error[RK_ERROR_MAX]) {
    const rk_config *config = &servicer->config;
    bool guarded = config->link_token_file[0] || config->tls_client_ca[0];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int code = getaddrinfo((*host)[0] ? *host : NULL, port, &hints, &list);
    if (code != 0)
        return cannot_listen(error, -EADDRNOTAVAIL, *host, port, gai_strerror(code));
    int failed = try_bind(list);
    bool beyond = !guarded && reaches_beyond(list);
    freeaddrinfo(list);
    if (failed != 0)
        return cannot_listen(error, -failed, *host, port, strerror(failed));
    if (!beyond)
        return 0;
    rk_log_event(&servicer->log, RK_LOG_WARNING,
                 "links are taken from this host only: beyond it they need --room-link-token-file, or TLS "
                 "with --room-tls-client-ca",
                 RK_FIELD_TEXT("address", shown));
    *host = "127.0.0.1";
    return 0;
}

static int make_server(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    if (servicer->links->server)
        return 0;
    char max_message[] = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH;
    char reuse[] = GRPC_ARG_ALLOW_REUSEPORT;
    char streams[] = GRPC_ARG_MAX_CONCURRENT_STREAMS;
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = max_message, .value.integer = RK_FRAME_MAX},
        {.type = GRPC_ARG_INTEGER, .key = reuse, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = streams, .value.integer = 4},
    };
    grpc_channel_args channel_args = {sizeof args / sizeof args[0], args};
    servicer->links->server = grpc_server_create(&channel_args, NULL);
    if (servicer->links->server)
        servicer->links->registered = grpc_server_register_method(servicer->links->server, RK_LINK_PATH, NULL,
                                                                  GRPC_SRM_PAYLOAD_NONE, 0);
    if (!servicer->links->registered) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory while making the link's listener");
        return -ENOMEM;
    }
    grpc_server_register_completion_queue(servicer->links->server, servicer->pollers[0].queue, NULL);
    return 0;
}

/* The port; 0: it cannot be bound; -errno with a line. */
static int bind_to(rk_servicer *servicer, const char *host, const char *port, char error[RK_ERROR_MAX]) {
    if (servicer->tls.server)
        return rk_tls_listen(&servicer->tls, servicer->links->server, host, port, error);
    char address[RK_ROOM_HOST_MAX + 16];
    (void)snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%s" : "%s:%s",
                   host[0] ? host : "0.0.0.0", port);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int bound = grpc_server_add_http2_port(servicer->links->server, address, credentials);
    grpc_server_credentials_release(credentials);
    return bound;
}

int rk_links_listen(rk_servicer *servicer, const char *host, const char *port, const char *shown,
                    char error[RK_ERROR_MAX]) {
    int result = choose_host(servicer, &host, port, shown, error);
    if (result == 0)
        result = make_server(servicer, error);
    if (result < 0)
        return result;
    int bound = bind_to(servicer, host, port, error);
    if (bound < 0)
        return bound;
    if (!bound)
        return cannot_listen(error, -EADDRINUSE, host, port, "is the port taken?");
    (void)snprintf(servicer->links->address, sizeof servicer->links->address,
                   strchr(host, ':') ? "[%s]:%d" : "%s:%d", host[0] ? host : "0.0.0.0", bound);
    servicer->links->listening = true;
    if (servicer->rooms.role == RK_ROLE_PREFILL) {
        servicer->rooms.linked = true;
        rk_ledger_set_linked(servicer->ledger, true);
    }
    return bound;
}

/* ---- the clock ---- */

void rk_links_tick(rk_servicer *servicer, uint64_t now) {
    if (servicer->links)
        rk_peers_tick(servicer->links->peers, now);
}

void rk_links_engine(rk_servicer *servicer, uint64_t now) {
    if (!servicer->links)
        return;
    rk_link_engine state = engine_now(servicer);
    if (atomic_exchange(&servicer->links->told, (int)state) != (int)state)
        rk_peers_engine_changed(servicer->links->peers, now);
}
