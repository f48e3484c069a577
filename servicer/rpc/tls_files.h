/* Certificates, keys and CAs as files: read at the start, and again when they change.
 *
 * What is handed out is an immutable set of texts that fit each other. Files that cannot be used, or of which
 * only half has been written yet, leave the last set in place. No gRPC core in here. */
#ifndef RK_RPC_TLS_FILES_H
#define RK_RPC_TLS_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "roomkeeper/servicer.h" /* RK_ERROR_MAX */

typedef struct rk_tls_path {
    const char *key;  /* of the configuration, for messages; static */
    const char *path; /* "": there is none. Outlives the rk_tls_files */
} rk_tls_path;

enum { RK_TLS_CERT, RK_TLS_KEY, RK_TLS_CA, RK_TLS_PATHS };

typedef struct rk_tls_paths {
    const char *name; /* "server" or "link": in log lines and metrics; static */
    rk_tls_path path[RK_TLS_PATHS];
} rk_tls_paths;

/* One set. Immutable; shared by references. */
typedef struct rk_tls_set {
    _Atomic uint32_t refs;
    uint64_t generation;      /* 1: the first; one more each time the files were taken anew */
    char *text[RK_TLS_PATHS]; /* PEM; NULL where there is no path */
    int64_t expires_seconds;  /* Unix time at which the certificate expires; 0: there is none */
} rk_tls_set;

typedef struct rk_tls_counts {
    uint64_t reloads;  /* changes that were taken */
    uint64_t failures; /* changes that could not be used */
    int64_t expires_seconds;
} rk_tls_counts;

typedef struct rk_tls_files rk_tls_files;

/* Reads them; NULL with a line that names the key. */
rk_tls_files *rk_tls_files_new(const rk_tls_paths *paths, char error[RK_ERROR_MAX]);
void rk_tls_files_free(rk_tls_files *files); /* NULL is fine */
/* Any thread. The set as it is now, with a reference. */
rk_tls_set *rk_tls_files_get(rk_tls_files *files);
void rk_tls_set_unref(rk_tls_set *set); /* NULL is fine */
/* Any thread; also with the thread below. */
uint64_t rk_tls_files_generation(rk_tls_files *files);
void rk_tls_files_read(rk_tls_files *files, rk_tls_counts *counts);

/* One thread at a time. Looks at the files once; call it every second or so. A change that can be used is
 * taken at once. One that cannot is a line and a count at the look after, if the files are still the same
 * then: who writes a certificate and then its key is given that time. */
void rk_tls_files_look(rk_tls_files *files, const rk_log *log);

#endif
