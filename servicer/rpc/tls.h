/* TLS of a servicer: its listeners, and the links it dials. */
#ifndef RK_RPC_TLS_H
#define RK_RPC_TLS_H

#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"
#include "roomkeeper/config.h"
#include "roomkeeper/status.h"
#include "rpc/tls_files.h"

typedef struct rk_tls {
    rk_tls_files *server; /* what the TCP listeners show; NULL: they are plaintext */
    rk_tls_files *link;   /* what dialled links show and trust; NULL: they are plaintext */
    bool only_13;         /* TLS 1.3 is the least; else 1.2 */
    rk_list listeners;    /* credentials' own, until the servers are gone */
    const rk_log *log;
    /* ---- the thread that looks at the files ---- */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running;
    bool stop; /* under lock */
} rk_tls;

/* Reads the files of the listeners; 0, or -errno with a line. `config` and `log` outlive it. */
int rk_tls_init(rk_tls *tls, const rk_config *config, const rk_log *log, char error[RK_ERROR_MAX]);
/* Reads the files of links, for a worker that has any. */
int rk_tls_init_link(rk_tls *tls, const rk_config *config, char error[RK_ERROR_MAX]);
void rk_tls_free(rk_tls *tls); /* after the servers; also what rk_tls_init has refused */

/* Starts the thread "rk-tls", if there is anything to look at. */
int rk_tls_start(rk_tls *tls);
void rk_tls_stop(rk_tls *tls);

/* Before the server starts: every address of `host` ("": all of IPv4), with tls->server. The port; 0: it
 * cannot be bound; -errno with a line: TLS is the reason. */
int rk_tls_listen(rk_tls *tls, grpc_server *server, const char *host, const char *port,
                  char error[RK_ERROR_MAX]);

/* Any thread: credentials to dial a link with, from the files as they are now. NULL: out of memory. */
grpc_channel_credentials *rk_tls_dial_credentials(rk_tls *tls);

/* ---- tls_version.c ---- */

/* The calling thread's next SSL_CTX takes TLS 1.3 only; `*done` becomes true when that has happened. False:
 * it cannot be demanded. */
bool rk_tls_next_context_13(bool *done);
void rk_tls_next_context_any(void); /* forgets it */
/* False: this gRPC core has no way to say so. */
bool rk_tls_dial_13(grpc_channel_credentials *credentials);
bool rk_tls_can_dial_13(void);

#endif
