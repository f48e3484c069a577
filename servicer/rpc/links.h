/* The room link's transport: streams of gRPC core under what peer/ decides. See peer/peers.h for what a link
 * is.
 *
 * Both ends' streams belong to the first poller. Dialling happens on short-lived threads of its own (names
 * are looked up, a connect may take its time), which touch nothing of the servicer but the dialler's lock. */
#ifndef RK_RPC_LINKS_H
#define RK_RPC_LINKS_H

#include "peer/networks.h"
#include "peer/peers.h"
#include "rpc/internal.h"

typedef struct rk_dialler rk_dialler;

/* What dialling needs; made once, read by all. */
typedef struct rk_link_settings {
    rk_networks allowed;
    char *tls_name; /* "": the host that is dialled */
    unsigned connect_ms;
} rk_link_settings;

typedef struct rk_links rk_links;
struct rk_links {
    rk_peers *peers;
    rk_link_settings settings;
    rk_dialler *dialler;
    grpc_server *server; /* the link-only one; NULL: this worker listens for none */
    void *registered;
    bool listening;
    char address[RK_ROOM_HOST_MAX + 8]; /* as bound; "" while not listening */
    _Atomic int told;                   /* the engine's state as last said: rk_link_engine */
};

/* 0, or -errno with a line in `error`. NULL in servicer->links afterwards: no room here is ever linked. */
int rk_links_new(rk_servicer *servicer, char error[RK_ERROR_MAX]);
void rk_links_free(rk_servicer *servicer);
/* Before start. The port, or -errno with a line. */
int rk_links_listen(rk_servicer *servicer, const char *host, const char *port, const char *shown,
                    char error[RK_ERROR_MAX]);
void rk_links_tick(rk_servicer *servicer, uint64_t now);
/* The engine's state may have changed. Any thread. */
void rk_links_engine(rk_servicer *servicer, uint64_t now);

/* ---- streams: link_call.c ---- */

extern const rk_method_def rk_link_method;
/* A stream to a peer over a channel, which it takes over. Any thread. */
void rk_link_dialled(rk_servicer *servicer, uint32_t peer, grpc_channel *channel, const char *authority,
                     const char *remote);
void rk_link_hold(void *stream);
void rk_link_kicked(void *stream);

/* ---- dial.c ---- */

rk_dialler *rk_dialler_new(rk_servicer *servicer);
/* Nothing is dialled and nothing comes back from now on; threads that are still busy end by themselves. */
void rk_dialler_close(rk_dialler *dialler);
void rk_dialler_free(rk_dialler *dialler); /* NULL is fine */
void rk_dial(rk_dialler *dialler, uint32_t peer, const char *host, int32_t port, bool trusted);

#endif
