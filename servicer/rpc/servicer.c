/* The servicer's life: made, listening, running, draining, stopped. The public functions of servicer.h.
 *
 * Stopping, in this order: no new connections; the ledger ends what is open; gRPC core is told to shut down
 * and gets a moment to send the last words; what is still open then is cancelled; when the last call has been
 * freed nobody can post to a poller any more, so the queues may go. Engine threads are kept out from then on
 * by the gate.
 */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "roomkeeper/metrics.h"
#include "rpc/links.h"

#define DEFAULT_MESSAGE_BYTES ((size_t)256 * 1024 * 1024)
#define LAST_WORDS_MS 1000 /* a stop waits so long for statuses to reach clients that read */

const char *rk_version(void) {
    return RK_VERSION;
}

static bool foreign(const rk_servicer *servicer) {
    return servicer->pid != getpid();
}

static int refuse_child(char error[RK_ERROR_MAX]) {
    (void)snprintf(error, RK_ERROR_MAX,
                   "this servicer belongs to the parent process; make a new one after the fork");
    return -EPERM;
}

/* ---- settings that follow from configuration and worker ---- */

static uint64_t ms_of(double seconds) {
    return (uint64_t)(seconds * 1000 + 0.5);
}

static uint32_t window_of(const rk_config *config, const rk_worker_info *info) {
    if (config->window >= 0)
        return (uint32_t)config->window;
    uint32_t ranks = info->ranks ? info->ranks : 1;
    if (info->window == 0)
        return 0;
    return info->window / ranks ? info->window / ranks : 1;
}

static rk_ledger_options ledger_options(const rk_config *config, const rk_worker_info *info) {
    uint32_t window = window_of(config, info);
    uint32_t page = info->page_tokens ? info->page_tokens : 1;
    uint64_t places = 16 * (uint64_t)window;
    rk_ledger_options options = {
        .role = info->role,
        .enabled = config->rooms && info->role != RK_ROLE_ENCODE,
        .gate_aggregated = config->gate_aggregated,
        /* A prefill is as soon as it listens for links. */
        .linked = config->rooms && config->link && info->role == RK_ROLE_DECODE,
        .tells_apart = true,
        .peers = (uint32_t)config->links + 1,
        .ranks = info->ranks ? info->ranks : 1,
        .window = window,
        .kv_tokens = config->kv_tokens >= 0 ? (uint64_t)config->kv_tokens : info->kv_tokens,
        .page_tokens = page,
        .reserve_tokens = config->reserve_tokens >= 0 ? (uint32_t)config->reserve_tokens : page,
        .waiting_places = config->waiting >= 0 ? (uint32_t)config->waiting
                          : places > 64        ? (uint32_t)places
                                               : 64,
        .held_places = (uint32_t)config->held,
        .wait_ms = ms_of(config->wait_seconds),
        .announce_ms = (uint64_t)config->announce_ms,
        .twin_ms = ms_of(config->twin_seconds),
        .handoff_ms = ms_of(config->handoff_seconds),
        .transfer_ms = ms_of(config->transfer_seconds),
        .tombstone_ms = ms_of(config->tombstone_seconds),
        .tombstones = 65536,
        .announced = 65536,
        .peer_rooms = 16384,
    };
    return options;
}

/* As the engine's own servicer reads it: a bad value falls back to the default, with a warning. */
static size_t message_limit(const rk_config *config, const rk_log *log) {
    if (config->max_message_bytes > 0)
        return (size_t)config->max_message_bytes;
    const char *text = getenv("TOKENSPEED_GRPC_MAX_MESSAGE_BYTES");
    if (!text || !text[0])
        return DEFAULT_MESSAGE_BYTES;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || value <= 0 || value > INT32_MAX) {
        rk_log_event(log, RK_LOG_WARNING, "TOKENSPEED_GRPC_MAX_MESSAGE_BYTES must be from 1 to 2147483647",
                     RK_FIELD_TEXT("value", text), RK_FIELD_INT("used", DEFAULT_MESSAGE_BYTES));
        return DEFAULT_MESSAGE_BYTES;
    }
    return (size_t)value;
}

/* ---- making ---- */

static int init_locks(rk_servicer *servicer) {
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) != 0)
        return -ENOMEM;
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&servicer->clock_wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&servicer->clock_lock, NULL);
    (void)pthread_mutex_init(&servicer->life_lock, NULL);
    (void)pthread_mutex_init(&servicer->calls_lock, NULL);
    (void)pthread_mutex_init(&servicer->watch_lock, NULL);
    (void)pthread_mutex_init(&servicer->query_lock, NULL);
    (void)pthread_mutex_init(&servicer->engine_lock, NULL);
    (void)pthread_rwlock_init(&servicer->gate, NULL);
    return 0;
}

static unsigned poller_count(const rk_config *config) {
    if (config->pollers > 0)
        return (unsigned)config->pollers;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores >= 8 ? 4 : cores >= 4 ? 2 : 1;
}

static grpc_channel_args server_args(rk_servicer *servicer, grpc_arg args[8]) {
    int limit = (int)servicer->max_message_bytes;
    grpc_arg all[] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = limit},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, .value.integer = limit},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
         .value.integer = 5000}, /* clients ping every 10 s on silent streams; leave room for jitter */
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_HTTP2_MAX_PING_STRIKES, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0},
    };
    memcpy(args, all, sizeof all);
    return (grpc_channel_args){.num_args = RK_COUNT(all), .args = args};
}

/* All methods we serve: the dialect's, health, reflection. */
static int list_methods(rk_servicer *servicer) {
    size_t count = RK_METHODS + rk_health_method_count + rk_reflection_method_count;
    servicer->methods = calloc(count, sizeof *servicer->methods);
    servicer->registered = calloc(count, sizeof *servicer->registered);
    if (!servicer->methods || !servicer->registered)
        return -ENOMEM;
    size_t at = 0;
    for (int m = 0; m < RK_METHODS; m++) {
        if (m == RK_METHOD_ENCODE && servicer->rooms.role != RK_ROLE_ENCODE)
            continue;
        (void)rk_dialect_method((rk_method)m, &servicer->methods[at]);
        servicer->methods[at++].path = servicer->dialect->methods[m];
    }
    for (size_t i = 0; i < rk_health_method_count; i++)
        servicer->methods[at++] = rk_health_methods[i];
    for (size_t i = 0; i < rk_reflection_method_count; i++)
        servicer->methods[at++] = rk_reflection_methods[i];
    servicer->method_count = at;
    return 0;
}

static int make_server(rk_servicer *servicer) {
    grpc_arg args[8];
    grpc_channel_args channel_args = server_args(servicer, args);
    servicer->server = grpc_server_create(&channel_args, NULL);
    if (!servicer->server)
        return -ENOMEM;
    for (size_t i = 0; i < servicer->method_count; i++) {
        const rk_method_def *method = &servicer->methods[i];
        servicer->registered[i] = grpc_server_register_method(
            servicer->server, method->path, NULL,
            method->reads_itself ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (!servicer->registered[i])
            return -ENOMEM;
    }
    for (unsigned p = 0; p < servicer->poller_count; p++) {
        rk_poller *poller = &servicer->pollers[p];
        poller->servicer = servicer;
        rk_queue_init(&poller->inbox);
        poller->queue = grpc_completion_queue_create_for_next(NULL);
        if (!poller->queue)
            return -ENOMEM;
        grpc_server_register_completion_queue(servicer->server, poller->queue, NULL);
    }
    return 0;
}

static int make_parts(rk_servicer *servicer, const rk_config *config, const rk_worker_info *info) {
    if (init_locks(servicer) < 0 || rk_config_copy(&servicer->config, config) < 0)
        return -ENOMEM;
    int level = rk_log_level_of(servicer->config.log_level);
    servicer->log = (rk_log){
        .level = level < 0 ? RK_LOG_INFO : (rk_log_level)level,
        .json = strcmp(servicer->config.log_format, "json") == 0,
        .fd = STDERR_FILENO,
    };
    servicer->info = rk_info_new(info);
    servicer->rooms = ledger_options(&servicer->config, info);
    servicer->max_message_bytes = message_limit(&servicer->config, &servicer->log);
    servicer->limits = (rk_limits){
        .role = info->role,
        .rooms = servicer->rooms.enabled,
        .vocab_size = info->vocab_size,
        .max_context = info->max_context,
        .ranks = servicer->rooms.ranks,
        .window = servicer->config.rooms ? servicer->rooms.window : 0,
        .max_message_bytes = servicer->max_message_bytes,
    };
    servicer->ledger = rk_ledger_new(&servicer->rooms);
    servicer->calls = rk_map_new();
    servicer->weight_version = strdup(info->weight_version ? info->weight_version : "");
    servicer->poller_count = poller_count(&servicer->config);
    servicer->pollers = calloc(servicer->poller_count, sizeof *servicer->pollers);
    if (!servicer->info || !servicer->ledger || !servicer->calls || !servicer->weight_version ||
        !servicer->pollers)
        return -ENOMEM;
    return list_methods(servicer);
}

rk_servicer *rk_servicer_new(const rk_config *config, const rk_worker_info *info, const rk_engine_ops *ops,
                             void *engine, char error[RK_ERROR_MAX]) {
    if (rk_config_check(config, error) < 0)
        return NULL;
    rk_servicer *servicer = calloc(1, sizeof *servicer);
    if (!servicer) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory");
        return NULL;
    }
    grpc_init();
    servicer->pid = getpid();
    servicer->dialect = &rk_dialect_tokenspeed;
    servicer->ops = ops;
    servicer->engine = engine;
    servicer->engine_state = RK_ENGINE_STARTING;
    servicer->start_ms = rk_now_ms();
    servicer->start_seconds = (int64_t)time(NULL);
    atomic_init(&servicer->beat_ms, servicer->start_ms);
    atomic_init(&servicer->serving, RK_NOT_SERVING);
    rk_list_init(&servicer->unix_paths);
    rk_list_init(&servicer->watchers);
    rk_list_init(&servicer->queries);
    if (make_parts(servicer, config, info) < 0 || make_server(servicer) < 0 ||
        !(servicer->acceptor = rk_acceptor_new(servicer))) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory or descriptors while making the servicer");
        rk_servicer_free(servicer);
        return NULL;
    }
    if (rk_tls_init(&servicer->tls, &servicer->config, &servicer->log, error) < 0 ||
        rk_links_new(servicer, error) < 0 || rk_kv_new(servicer, error) < 0) {
        rk_servicer_free(servicer);
        return NULL;
    }
    if (servicer->rooms.window == 0 && servicer->config.rooms && info->role == RK_ROLE_DECODE)
        rk_log_event(
            &servicer->log, RK_LOG_WARNING,
            servicer->config.window == 0
                ? "--room-window is 0: nothing is gated"
                : "the running window is not known (max_num_seqs): nothing is gated; set --room-window",
            RK_FIELD_INT("window", 0));
    return servicer;
}

/* ---- listening ---- */

/* A socket file that nobody answers on is a leftover and may go; one that answers is somebody's. */
static int check_unix_path(const char *path, char error[RK_ERROR_MAX]) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] == '\0' || strlen(path) >= sizeof address.sun_path) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "cannot listen on unix:%s: the path has %zu bytes, from 1 to %zu are possible", path,
                       strlen(path), sizeof address.sun_path - 1);
        return -EINVAL;
    }
    struct stat file;
    if (lstat(path, &file) < 0)
        return 0;
    if (!S_ISSOCK(file.st_mode)) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "cannot listen on unix:%s: there is a file that is no socket; choose another path",
                       path);
        return -EEXIST;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int answered = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        (void)close(fd);
    if (!answered)
        return 0;
    (void)snprintf(error, RK_ERROR_MAX,
                   "cannot listen on unix:%s: another process serves there; stop it or choose another path",
                   path);
    return -EADDRINUSE;
}

static int listen_unix(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]) {
    const char *path = address + strlen("unix:");
    int result = check_unix_path(path, error);
    if (result < 0)
        return result;
    rk_unix_path *kept = calloc(1, sizeof *kept);
    if (!kept) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory");
        return -ENOMEM;
    }
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int bound = grpc_server_add_http2_port(servicer->server, address, credentials);
    grpc_server_credentials_release(credentials);
    if (!bound) {
        free(kept);
        (void)snprintf(error, RK_ERROR_MAX, "cannot listen on %s: is the folder there and writable?",
                       address);
        return -EACCES;
    }
    (void)snprintf(kept->path, sizeof kept->path, "%s", path);
    rk_list_push_back(&servicer->unix_paths, &kept->link);
    return 0;
}

/* "host:port" or "[v6]:port" into its parts; host may be empty or "*" for every address. */
static int split_address(const char *address, char host[256], char port[8], char error[RK_ERROR_MAX]) {
    const char *colon = strrchr(address, ':');
    size_t host_bytes = colon ? (size_t)(colon - address) : 0;
    const char *begin = address;
    bool bracketed = host_bytes >= 2 && address[0] == '[' && address[host_bytes - 1] == ']';
    if (bracketed) {
        begin++;
        host_bytes -= 2;
    }
    char *end = NULL;
    long number = colon && colon[1] ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || number < 0 || number > 65535 || *end != '\0' || host_bytes >= 256 ||
        (!bracketed && memchr(begin, ':', host_bytes))) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "cannot listen on \"%.200s\": give host:port, [IPv6]:port or unix:/path, with a port "
                       "from 0 to 65535",
                       address);
        return -EINVAL;
    }
    memcpy(host, begin, host_bytes);
    host[host_bytes] = '\0';
    if (strcmp(host, "*") == 0)
        host[0] = '\0';
    (void)snprintf(port, 8, "%ld", number);
    return 0;
}

int rk_servicer_listen_metrics(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]) {
    if (foreign(servicer))
        return refuse_child(error);
    if (servicer->life != RK_LIFE_NEW) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "cannot serve metrics on %s: the servicer has already been started", address);
        return -EINVAL;
    }
    char host[256];
    char port[8];
    int result = split_address(address, host, port, error);
    return result < 0 ? result : rk_scrape_listen(servicer, host, port, address, error);
}

/* By gRPC core's own listener: a socket that we have accepted cannot be given to TLS. */
static int listen_tls(rk_servicer *servicer, const char *host, const char *port, char error[RK_ERROR_MAX]) {
    int bound = rk_tls_listen(&servicer->tls, servicer->server, host, port, error);
    if (bound != 0)
        return bound;
    (void)snprintf(error, RK_ERROR_MAX,
                   strchr(host, ':') ? "cannot listen on [%s]:%s with TLS: is the port taken?"
                                     : "cannot listen on %s:%s with TLS: is the port taken?",
                   host[0] ? host : "0.0.0.0", port);
    return -EADDRINUSE;
}

int rk_servicer_listen(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]) {
    if (foreign(servicer))
        return refuse_child(error);
    if (servicer->life != RK_LIFE_NEW) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot listen on %s: the servicer has already been started",
                       address);
        return -EINVAL;
    }
    if (strncmp(address, "unix:", 5) == 0)
        return listen_unix(servicer, address, error);
    char host[256];
    char port[8];
    int result = split_address(address, host, port, error);
    if (result < 0)
        return result;
    if (servicer->tls.server)
        return listen_tls(servicer, host, port, error);
    return rk_acceptor_listen(servicer->acceptor, host, port, address, error);
}

int rk_servicer_listen_link(rk_servicer *servicer, const char *address, char error[RK_ERROR_MAX]) {
    if (foreign(servicer))
        return refuse_child(error);
    if (servicer->life != RK_LIFE_NEW || !servicer->links) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot listen for room links on %s: %s", address,
                       servicer->links ? "the servicer has already been started"
                                       : "the link is off (--rooms, --room-link, or a worker without pairs)");
        return -EINVAL;
    }
    char host[256];
    char port[8];
    int result = split_address(address, host, port, error);
    return result < 0 ? result : rk_links_listen(servicer, host, port, address, error);
}

int rk_servicer_start(rk_servicer *servicer, char error[RK_ERROR_MAX]) {
    if (foreign(servicer))
        return refuse_child(error);
    if (servicer->life != RK_LIFE_NEW) {
        (void)snprintf(error, RK_ERROR_MAX, "the servicer has already been started");
        return -EINVAL;
    }
    grpc_server_start(servicer->server);
    if (servicer->links && servicer->links->listening)
        grpc_server_start(servicer->links->server);
    servicer->life = RK_LIFE_RUNNING;
    int result = rk_accept_all(servicer);
    if (result == 0)
        result = rk_pollers_start(servicer, error);
    if (result == 0)
        result = rk_kv_start(servicer);
    if (result == 0)
        result = rk_clock_start(servicer);
    if (result == 0)
        result = rk_acceptor_start(servicer->acceptor);
    if (result == 0)
        result = rk_scrape_start(servicer);
    if (result == 0)
        result = rk_tls_start(&servicer->tls);
    if (result < 0) {
        (void)snprintf(error, RK_ERROR_MAX, "cannot start the servicer: %s", strerror(-result));
        rk_servicer_stop(servicer);
    }
    return result;
}

void rk_servicer_set_weight_version(rk_servicer *servicer, const char *version) {
    char *copy = strdup(version);
    if (!copy || foreign(servicer)) {
        free(copy);
        return;
    }
    (void)pthread_mutex_lock(&servicer->engine_lock);
    char *old = servicer->weight_version;
    servicer->weight_version = copy;
    (void)pthread_mutex_unlock(&servicer->engine_lock);
    free(old);
}

/* ---- ending ---- */

void rk_servicer_drain(rk_servicer *servicer) {
    if (!rk_gate_enter(servicer))
        return;
    if (!atomic_exchange(&servicer->draining, true)) {
        uint64_t now = rk_now_ms();
        rk_effects fx;
        rk_effects_clear(&fx);
        rk_ledger_drain(servicer->ledger, now, &fx);
        rk_effects_run(servicer, &fx, NULL);
        rk_health_update(servicer, now);
    }
    rk_gate_leave(servicer);
}

static void nap(void) {
    const struct timespec short_while = {.tv_nsec = 1000000};
    (void)nanosleep(&short_while, NULL);
}

static bool wait_until_zero(_Atomic uint64_t *number, uint64_t timeout_ms) {
    uint64_t begin = rk_now_ms();
    while (atomic_load(number) > 0) {
        if (rk_now_ms() - begin >= timeout_ms)
            return false;
        nap();
    }
    return true;
}

int rk_servicer_wait_idle(rk_servicer *servicer, uint64_t timeout_ms) {
    if (foreign(servicer))
        return -EPERM;
    return wait_until_zero(&servicer->open_generates, timeout_ms) ? 0 : -ETIMEDOUT;
}

uint64_t rk_servicer_open_calls(rk_servicer *servicer) {
    return atomic_load(&servicer->open_generates);
}

rk_ledger *rk_servicer_ledger(rk_servicer *servicer) {
    return servicer->ledger;
}

static void end_open_calls(rk_servicer *servicer) {
    rk_effects fx;
    rk_effects_clear(&fx);
    rk_ledger_end_all(servicer->ledger, rk_now_ms(), RK_CAUSE_DRAIN, &fx);
    rk_effects_run(servicer, &fx, NULL);
    rk_query_expire(servicer, UINT64_MAX);
    rk_watchers_end(servicer);
    rk_kv_end(servicer);
}

typedef struct rk_shutdown {
    rk_tag tag;
    _Atomic uint64_t pending; /* 1 until gRPC core has shut down */
} rk_shutdown;

static void shut_down(rk_tag *tag, rk_poller *poller, bool ok) {
    (void)poller;
    (void)ok;
    atomic_store(&((rk_shutdown *)tag)->pending, 0);
}

/* The link-only server, if it was ever made, is shut down like the other one. */
static void shut_down_links(rk_servicer *servicer, rk_shutdown *shutdown) {
    atomic_init(&shutdown->pending, 0);
    if (!servicer->links || !servicer->links->server)
        return;
    atomic_store(&shutdown->pending, 1);
    RK_HANDS_OVER(&shutdown->tag);
    grpc_server_shutdown_and_notify(servicer->links->server, servicer->pollers[0].queue, &shutdown->tag);
}

static void stop_server(rk_servicer *servicer) {
    rk_shutdown shutdown = {.tag.run = shut_down};
    rk_shutdown links = {.tag.run = shut_down};
    atomic_init(&shutdown.pending, 1);
    RK_HANDS_OVER(&shutdown.tag);
    grpc_server_shutdown_and_notify(servicer->server, servicer->pollers[0].queue, &shutdown.tag);
    shut_down_links(servicer, &links);
    if (!servicer->pollers[0].started) { /* a start that failed: nobody polls */
        rk_pollers_stop(servicer);
        return;
    }
    if (!wait_until_zero(&servicer->live_calls, LAST_WORDS_MS)) {
        grpc_server_cancel_all_calls(servicer->server);
        if (servicer->links)
            rk_peers_abandon(servicer->links->peers);
    }
    if (servicer->links && atomic_load(&links.pending))
        grpc_server_cancel_all_calls(servicer->links->server);
    if (!wait_until_zero(&shutdown.pending, LAST_WORDS_MS)) /* a client that answers no farewell */
        rk_acceptor_hang_up(servicer->acceptor);
    while (atomic_load(&shutdown.pending) || atomic_load(&links.pending) ||
           atomic_load(&servicer->live_calls) > 0) {
        nap();
        end_open_calls(servicer); /* questions and legs of calls that came in at the last moment */
    }
    rk_pollers_stop(servicer);
}

static void close_gate(rk_servicer *servicer) {
    (void)pthread_rwlock_wrlock(&servicer->gate);
    servicer->closed = true;
    (void)pthread_rwlock_unlock(&servicer->gate);
}

void rk_servicer_stop(rk_servicer *servicer) {
    if (!servicer || foreign(servicer))
        return;
    (void)pthread_mutex_lock(&servicer->life_lock); /* a second caller waits for the first */
    rk_life was = servicer->life;
    if (was == RK_LIFE_RUNNING) {
        rk_servicer_drain(servicer);
        rk_acceptor_stop(servicer->acceptor);
        rk_scrape_stop(servicer);
        rk_tls_stop(&servicer->tls);
        end_open_calls(servicer);
        if (servicer->links) {
            rk_peers_stop(servicer->links->peers, rk_now_ms());
            rk_dialler_close(servicer->links->dialler);
        }
        stop_server(servicer);
        rk_acceptor_drop(
            servicer->acceptor); /* a stopped servicer may live on for long, without descriptors */
        rk_clock_stop(servicer);
        rk_kv_stop(servicer);
    }
    if (was != RK_LIFE_STOPPED)
        close_gate(servicer);
    servicer->life = RK_LIFE_STOPPED;
    (void)pthread_mutex_unlock(&servicer->life_lock);
}

static void remove_unix_paths(rk_servicer *servicer) {
    rk_list *node;
    while ((node = rk_list_pop_front(&servicer->unix_paths)) != NULL) {
        rk_unix_path *path = RK_CONTAINER(node, rk_unix_path, link);
        (void)unlink(path->path);
        free(path);
    }
}

/* A server that was never started still has to be shut down, and its queues emptied. */
static void destroy_server(rk_servicer *servicer) {
    if (!servicer->server)
        return;
    if (servicer->pollers && servicer->pollers[0].queue) {
        rk_shutdown shutdown = {.tag.run = shut_down};
        atomic_init(&shutdown.pending, 1);
        grpc_server_shutdown_and_notify(servicer->server, servicer->pollers[0].queue, &shutdown.tag);
        rk_shutdown links = {.tag.run = shut_down};
        shut_down_links(servicer, &links);
        rk_pollers_stop(servicer);
    }
    if (servicer->links && servicer->links->server)
        grpc_server_destroy(servicer->links->server);
    grpc_server_destroy(servicer->server);
}

void rk_servicer_free(rk_servicer *servicer) {
    if (!servicer || foreign(servicer)) /* a child leaks: what it has is the parent's */
        return;
    rk_servicer_stop(servicer);
    destroy_server(servicer);
    rk_scrape_stop(servicer); /* one that was never started */
    rk_links_free(servicer);
    rk_tls_free(&servicer->tls);
    rk_kv_free(servicer);
    remove_unix_paths(servicer);
    rk_acceptor_free(servicer->acceptor);
    free(servicer->pollers);
    free(servicer->methods);
    free(servicer->registered);
    rk_map_free(servicer->calls);
    rk_ledger_free(servicer->ledger);
    rk_info_free(servicer->info);
    rk_config_free(&servicer->config);
    free(servicer->loads);
    free(servicer->weight_version);
    (void)pthread_rwlock_destroy(&servicer->gate);
    (void)pthread_mutex_destroy(&servicer->engine_lock);
    (void)pthread_mutex_destroy(&servicer->query_lock);
    (void)pthread_mutex_destroy(&servicer->watch_lock);
    (void)pthread_mutex_destroy(&servicer->calls_lock);
    (void)pthread_mutex_destroy(&servicer->life_lock);
    (void)pthread_mutex_destroy(&servicer->clock_lock);
    (void)pthread_cond_destroy(&servicer->clock_wake);
    free(servicer);
    grpc_shutdown();
}
