/* CIDR prefixes; IPv4 addresses are kept as the IPv6 addresses that map to them, so there is one comparison.
 */
#include "peer/networks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "roomkeeper/config.h"

static void map_v4(const void *four, uint8_t address[16]) {
    memset(address, 0, 10);
    address[10] = 0xFF;
    address[11] = 0xFF;
    memcpy(address + 12, four, 4);
}

static bool bytes_of(const struct sockaddr *from, uint8_t address[16]) {
    if (from->sa_family == AF_INET)
        map_v4(&((const struct sockaddr_in *)(const void *)from)->sin_addr, address);
    else if (from->sa_family == AF_INET6)
        memcpy(address, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    else
        return false;
    return true;
}

static bool within(const rk_network *network, const uint8_t address[16]) {
    unsigned whole = network->bits / 8;
    unsigned rest = network->bits % 8;
    if (memcmp(network->address, address, whole) != 0)
        return false;
    uint8_t mask = (uint8_t)(0xFF00u >> rest);
    return rest == 0 || ((network->address[whole] ^ address[whole]) & mask) == 0;
}

bool rk_networks_have(const rk_networks *networks, const struct sockaddr *address) {
    uint8_t bytes[16];
    if (!bytes_of(address, bytes))
        return false;
    for (unsigned i = 0; i < networks->count; i++)
        if (within(&networks->items[i], bytes))
            return true;
    return false;
}

bool rk_is_loopback(const struct sockaddr *address) {
    static const rk_network loops[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 0}, 104},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128},
    };
    uint8_t bytes[16];
    return bytes_of(address, bytes) && (within(&loops[0], bytes) || within(&loops[1], bytes));
}

/* ---- as written ---- */

static int refuse(char *error, const char *word, size_t length) {
    char shown[65]; /* clean, and cut at a whole character */
    (void)rk_utf8_clean(shown, sizeof shown, word, length);
    (void)snprintf(error, RK_CONFIG_ERROR_MAX,
                   "peer_allow has \"%s\", which is no network; give addresses with a prefix, as in "
                   "10.0.0.0/8,fd00::/8, at most %d of them",
                   shown, RK_NETWORKS_MAX);
    return -EINVAL;
}

static bool parse_one(const char *word, size_t length, rk_network *network) {
    char text[64];
    if (length == 0 || length >= sizeof text)
        return false;
    memcpy(text, word, length);
    text[length] = '\0';
    char *slash = strchr(text, '/');
    if (slash)
        *slash = '\0';
    uint8_t four[4];
    unsigned most = 128;
    unsigned before = 0;
    if (inet_pton(AF_INET, text, four) == 1) {
        map_v4(four, network->address);
        most = 32;
        before = 96;
    } else if (inet_pton(AF_INET6, text, network->address) != 1) {
        return false;
    }
    unsigned long bits = most;
    if (slash) {
        char *end = NULL;
        if (slash[1] < '0' || slash[1] > '9')
            return false;
        bits = strtoul(slash + 1, &end, 10);
        if (*end != '\0' || bits > most)
            return false;
    }
    network->bits = before + (unsigned)bits;
    return true;
}

/* ---- by default ---- */

static unsigned bits_of(const struct sockaddr *mask) {
    uint8_t bytes[16];
    unsigned bits = 0;
    if (!bytes_of(mask, bytes))
        return 128;
    unsigned first = mask->sa_family == AF_INET ? 12 : 0;
    for (unsigned i = first; i < 16; i++)
        bits += (unsigned)__builtin_popcount(bytes[i]);
    return mask->sa_family == AF_INET ? 96 + bits : bits;
}

static void add(rk_networks *networks, const uint8_t address[16], unsigned bits) {
    if (networks->count == RK_NETWORKS_MAX)
        return;
    rk_network *network = &networks->items[networks->count++];
    memcpy(network->address, address, 16);
    network->bits = bits;
}

static void add_own(rk_networks *networks) {
    static const uint8_t four[4] = {127, 0, 0, 0};
    static const uint8_t six[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    uint8_t address[16];
    map_v4(four, address);
    add(networks, address, 104);
    add(networks, six, 128);
    struct ifaddrs *interfaces = NULL;
    if (getifaddrs(&interfaces) < 0)
        return;
    for (struct ifaddrs *at = interfaces; at; at = at->ifa_next)
        if (at->ifa_addr && at->ifa_netmask && bytes_of(at->ifa_addr, address))
            add(networks, address, bits_of(at->ifa_netmask));
    freeifaddrs(interfaces);
}

int rk_networks_parse(rk_networks *networks, const char *text, char *error) {
    networks->count = 0;
    if (text[strspn(text, ", ")] == '\0') {
        add_own(networks);
        return 0;
    }
    for (const char *at = text; *at;) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        rk_network network;
        if (length == 0)
            break;
        if (networks->count == RK_NETWORKS_MAX || !parse_one(at, length, &network))
            return refuse(error, at, length);
        networks->items[networks->count++] = network;
        at += length;
    }
    return 0;
}
