/* The configuration: one table of keys, the same for the YAML file, the `--room-…` flags and the
 * reference in docs/configuration.md. Flags win over the file, the file over defaults.
 *
 * A key `wait_seconds` is `wait_seconds: 30` in the file and `--room-wait-seconds 30` on the command line
 * (only `rooms` is `--rooms`). Every error is one line that says what, which value, what limit, what to do.
 *
 * A config is plain data with one owner at a time; no function here keeps anything behind its back. */
#ifndef ROOMKEEPER_CONFIG_H
#define ROOMKEEPER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roomkeeper/export.h"

typedef enum rk_key_type {
    RK_KEY_BOOL,   /* on|off, true|false, yes|no, 1|0 */
    RK_KEY_INT,    /* int64_t, within min..max */
    RK_KEY_NUMBER, /* double, within min..max */
    RK_KEY_CHOICE, /* one of `choices`, separated by '|'; stored as text */
    RK_KEY_TEXT,   /* any UTF-8 line */
} rk_key_type;

/* X(TYPE, name, default, min, max, choices, unit, help): the whole of a key. docs/configuration.md is made
 * from it. -1 for an int that allows it means "work it out", as its help says. */
#define RK_CONFIG_KEYS(X)                                                                                    \
    X(BOOL, rooms, true, 0, 1, "", "",                                                                       \
      "keep rooms: gate by the window, hold, refuse; off serves the engine as it is")                        \
    X(BOOL, gate_aggregated, false, 0, 1, "", "", "gate by the window in an aggregated worker too")          \
    X(BOOL, report_window, true, 0, 1, "", "", "report the window to gateways (GetServerInfo, GetLoads)")    \
    X(INT, window, -1, -1, 1000000, "", "slots",                                                             \
      "running window per rank; 0: unknown, nothing is gated; -1: the engine's max_num_seqs share")          \
    X(INT, waiting, -1, -1, 1000000, "", "rooms",                                                            \
      "places in line per rank; 0: refuse at the window; -1: max(64, 16 x window)")                          \
    X(INT, held, 1024, 0, 1000000, "", "rooms", "prefill legs held for their decode at a time")              \
    X(NUMBER, wait_seconds, 30, 0.001, 86400, "", "s", "a leg waits in line at most so long")                \
    X(INT, announce_ms, 500, 0, 60000, "", "ms",                                                             \
      "a prefill leg waits so long for its decode's announcement")                                           \
    X(NUMBER, twin_seconds, 10, 0.001, 3600, "", "s", "a linked leg waits so long for its twin to arrive")   \
    X(NUMBER, handoff_seconds, 30, 0.001, 3600, "", "s",                                                     \
      "a cancelled decode keeps its slot so long for its KV before the engine is told")                      \
    X(NUMBER, transfer_seconds, 300, 0.001, 86400, "", "s",                                                  \
      "the engine's own transfer deadline: a slot without proof is free then")                               \
    X(NUMBER, tombstone_seconds, 60, 0.001, 3600, "", "s",                                                   \
      "a dead room is remembered so long for the leg that comes late")                                       \
    X(INT, kv_tokens, -1, -1, 1000000000000, "", "tokens",                                                   \
      "KV tokens per rank to gate by; 0: do not; -1: the engine's max_total_num_tokens")                     \
    X(INT, reserve_tokens, -1, -1, 1000000, "", "tokens",                                                    \
      "KV tokens per room besides its prompt; -1: one page")                                                 \
    X(NUMBER, stall_seconds, 10, 0.05, 3600, "", "s", "no beat of the engine for so long: NOT_SERVING")      \
    X(NUMBER, dead_seconds, 60, 0.1, 86400, "", "s", "no beat of the engine for so long: open streams end")  \
    X(NUMBER, drain_seconds, 30, 0, 86400, "", "s", "running requests may finish so long after SIGTERM")     \
    X(INT, pushback_ms, 500, 0, 600000, "", "ms", "grpc-retry-pushback-ms of a refusal")                     \
    X(INT, backlog_bytes, 4194304, 4096, 1073741824, "", "bytes",                                            \
      "output a stream may leave unread before it is ended")                                                 \
    X(INT, max_message_bytes, -1, -1, 2147483647, "", "bytes",                                               \
      "message limit; -1: TOKENSPEED_GRPC_MAX_MESSAGE_BYTES, else 256 MiB")                                  \
    X(INT, max_connections, 4096, 1, 1000000, "", "connections", "connections open at a time")               \
    X(NUMBER, preface_seconds, 10, 0.05, 600, "", "s",                                                       \
      "a connection that says nothing for so long is closed")                                                \
    X(INT, pollers, 0, 0, 64, "", "threads", "threads that serve calls; 0: by the number of cores")          \
    X(BOOL, cork, true, 0, 1, "", "", "send the outputs of one engine step as one burst (plaintext TCP)")    \
    X(BOOL, link, true, 0, 1, "", "",                                                                        \
      "tell the twin's worker of each room over the room link; off serves every leg unlinked")               \
    X(TEXT, peer, "", 0, 0, "", "",                                                                          \
      "links opened at start, and where else than by default: BOOTSTRAP_HOST:PORT=HOST:PORT,…")              \
    X(INT, peer_port, -1, -1, 65535, "", "port",                                                             \
      "where a prefill listens for links; 0: nowhere; -1: its bootstrap port + 2000")                        \
    X(TEXT, peer_allow, "", 0, 0, "", "",                                                                    \
      "networks a decode may dial besides configured peers, as 10.0.0.0/8,…; empty: loopback and the "     \
      "worker's own subnets")                                                                                \
    X(TEXT, link_host, "", 0, 0, "", "", "address a prefill listens on for links; empty: the worker's host") \
    X(INT, links, 256, 1, 1000, "", "links", "peers linked at a time")                                       \
    X(INT, dials_per_second, 50, 1, 1000, "", "dials", "links a decode tries to open per second")            \
    X(INT, heartbeat_ms, 500, 50, 60000, "", "ms", "a link that is silent for three of these is lost")       \
    X(TEXT, link_token_file, "", 0, 0, "", "",                                                               \
      "file of the secret that both ends of a link share; it is proved, never sent")                         \
    X(TEXT, link_tls_cert, "", 0, 0, "", "", "a decode's client certificate for links, PEM")                 \
    X(TEXT, link_tls_key, "", 0, 0, "", "", "its private key, PEM")                                          \
    X(TEXT, link_tls_ca, "", 0, 0, "", "", "who may have signed a prefill's certificate, PEM; sets TLS on")  \
    X(TEXT, link_tls_name, "", 0, 0, "", "", "the name in a prefill's certificate; empty: the host dialled") \
    X(TEXT, tls_cert, "", 0, 0, "", "", "the worker's certificate, PEM; sets TLS on for every TCP listener") \
    X(TEXT, tls_key, "", 0, 0, "", "", "its private key, PEM")                                               \
    X(TEXT, tls_client_ca, "", 0, 0, "", "",                                                                 \
      "who may have signed a client's certificate, PEM; clients without one are refused")                    \
    X(CHOICE, tls_min_version, "1.2", 0, 0, "1.2|1.3", "", "least TLS version of listeners and of links")    \
    X(INT, metrics_port, -1, -1, 65535, "", "port",                                                          \
      "serve Prometheus metrics by HTTP at /metrics; 0: any free port; -1: do not")                          \
    X(TEXT, metrics_host, "", 0, 0, "", "", "address the metrics are served on; empty: the worker's host")   \
    X(INT, kv_history_bytes, 67108864, 65536, 17179869184, "", "bytes",                                      \
      "KV events kept per rank for subscribers; one that falls behind further is ended")                     \
    X(INT, kv_record_bytes, 268435456, 65536, 17179869184, "", "bytes",                                      \
      "what is kept per rank of the cached blocks, to tell those who subscribe late")                        \
    X(NUMBER, kv_stall_seconds, 30, 0.1, 86400, "", "s",                                                     \
      "a subscriber of KV events that takes nothing for so long is ended")                                   \
    X(CHOICE, log_level, "info", 0, 0, "debug|info|warning|error", "", "what is logged")                     \
    X(CHOICE, log_format, "text", 0, 0, "text|json", "", "how it is logged")

#define RK_CONFIG_C_BOOL bool
#define RK_CONFIG_C_INT int64_t
#define RK_CONFIG_C_NUMBER double
#define RK_CONFIG_C_CHOICE char *
#define RK_CONFIG_C_TEXT char *
#define RK_CONFIG_FIELD(type, name, def, min, max, choices, unit, help) RK_CONFIG_C_##type name;

typedef struct rk_config {
    RK_CONFIG_KEYS(RK_CONFIG_FIELD)
} rk_config;

typedef struct rk_key {
    const char *name; /* as in the file */
    rk_key_type type;
    const char *default_text;
    double min;
    double max;
    const char *choices;
    const char *unit;
    const char *help;
} rk_key;

/* Every function with an `error` leaves one line in it when it fails (memory running out included), at most
 * so long with its NUL, valid UTF-8 without control characters; "" when it succeeds. */
#define RK_CONFIG_ERROR_MAX 512

RK_API const rk_key *rk_config_keys(size_t *count); /* static */
RK_API int rk_config_init(rk_config *config);       /* defaults; 0 or -ENOMEM (nothing to free then) */
RK_API void rk_config_free(rk_config *config);      /* its texts; twice is fine, NULL is fine */
RK_API int rk_config_copy(rk_config *to, const rk_config *from); /* 0 or -ENOMEM (nothing to free then) */
/* One key from text. 0, -EINVAL or -ENOMEM. `where` opens the error line and says how it is worded: a flag
 * ("--room-waiting") or a place ("rooms.yaml:3"). An unknown key names the nearest valid one. After an error
 * the config is as it was. */
RK_API int rk_config_set(rk_config *config, const char *key, const char *value, const char *where,
                         char error[RK_CONFIG_ERROR_MAX]);
/* A YAML file: one mapping of keys to plain values, UTF-8, at most 1 MiB. Errors name file and line. 0,
 * -EINVAL, or -errno of reading. All of it or nothing: after an error the config is as it was. Run
 * rk_config_check when file and flags are in. */
RK_API int rk_config_load(rk_config *config, const char *path, char error[RK_CONFIG_ERROR_MAX]);
/* What no single key can show (dead_seconds below stall_seconds, …), and every key's own limits, for a config
 * filled in by a program. 0, -EINVAL or -ENOMEM. */
RK_API int rk_config_check(const rk_config *config, char error[RK_CONFIG_ERROR_MAX]);
/* The value of a key as text, as the file would have it; malloc'd, NULL when unknown or out of memory. */
RK_API char *rk_config_get(const rk_config *config, const char *key);

#endif
