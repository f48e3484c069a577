/* Networks in CIDR notation: whom a worker talks to over the link. Any thread once made. */
#ifndef RK_PEER_NETWORKS_H
#define RK_PEER_NETWORKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define RK_NETWORKS_MAX 64

typedef struct rk_network {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
    unsigned bits;       /* of the prefix, 0 to 128 */
} rk_network;

typedef struct rk_networks {
    rk_network items[RK_NETWORKS_MAX];
    unsigned count;
} rk_networks;

/* "10.0.0.0/8, fd00::/8, 192.0.2.7"; "" means loopback and the subnets of this machine's interfaces, as they
 * are now. 0, or -EINVAL with a line in `error` (RK_CONFIG_ERROR_MAX bytes). */
int rk_networks_parse(rk_networks *networks, const char *text, char *error);
bool rk_networks_have(const rk_networks *networks, const struct sockaddr *address);
bool rk_is_loopback(const struct sockaddr *address);

#endif
