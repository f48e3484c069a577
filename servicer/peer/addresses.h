/* Where a prefill listens for links: by configuration, or by rule. Any thread once made. */
#ifndef RK_PEER_ADDRESSES_H
#define RK_PEER_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>

#include "roomkeeper/rooms.h"

#define RK_LINK_PORT_OFFSET 2000
#define RK_PEERS_CONFIGURED_MAX 256

typedef struct rk_peer_address {
    char bootstrap_host[RK_ROOM_HOST_MAX]; /* lower case, without brackets */
    int32_t bootstrap_port;
    char host[RK_ROOM_HOST_MAX];
    int32_t port;
} rk_peer_address;

typedef struct rk_peer_addresses {
    rk_peer_address *items;
    uint32_t count;
} rk_peer_addresses;

/* "BOOTSTRAP_HOST:PORT=HOST:PORT, …". 0, -ENOMEM, or -EINVAL, the last two with a line in `error`
 * (RK_CONFIG_ERROR_MAX bytes). */
int rk_peer_addresses_parse(rk_peer_addresses *addresses, const char *text, char *error);
void rk_peer_addresses_free(rk_peer_addresses *addresses);
/* What is configured for a bootstrap server, or NULL. */
const rk_peer_address *rk_peer_address_find(const rk_peer_addresses *addresses, const char *bootstrap_host,
                                            int32_t bootstrap_port);
/* The rule: `peer_port` if it is positive, else the bootstrap port + 2000. 0: there is no such port. */
int32_t rk_link_port(int64_t peer_port, int32_t bootstrap_port);

#endif
