/* The addresses of peers, as --room-peer gives them. */
#include "peer/addresses.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "roomkeeper/config.h"

/* "host:port" or "[v6]:port". */
static bool split(const char *text, size_t length, char host[RK_ROOM_HOST_MAX], int32_t *port) {
    const char *colon = NULL;
    for (size_t i = 0; i < length; i++)
        if (text[i] == ':')
            colon = text + i;
    if (!colon || colon == text)
        return false;
    const char *end = text + length;
    long number = 0;
    for (const char *at = colon + 1; at < end; at++) {
        if (!isdigit((unsigned char)*at) || number > 65535)
            return false;
        number = number * 10 + (*at - '0');
    }
    size_t size = (size_t)(colon - text);
    if (size >= 2 && text[0] == '[' && text[size - 1] == ']') {
        text++;
        size -= 2;
    } else if (memchr(text, ':', size)) {
        return false;
    }
    if (colon + 1 == end || number < 1 || number > 65535 || size == 0 || size >= RK_ROOM_HOST_MAX)
        return false;
    for (size_t i = 0; i < size; i++)
        host[i] = (char)tolower((unsigned char)text[i]);
    host[size] = '\0';
    *port = (int32_t)number;
    return true;
}

static bool parse_one(const char *text, size_t length, rk_peer_address *address) {
    const char *equals = memchr(text, '=', length);
    if (!equals)
        return false;
    size_t left = (size_t)(equals - text);
    return split(text, left, address->bootstrap_host, &address->bootstrap_port) &&
           split(equals + 1, length - left - 1, address->host, &address->port);
}

static int refuse(rk_peer_addresses *addresses, char *error, const char *word, size_t length) {
    char shown[129]; /* clean, and cut at a whole character */
    (void)rk_utf8_clean(shown, sizeof shown, word, length);
    (void)snprintf(error, RK_CONFIG_ERROR_MAX,
                   "peer has \"%s\", which is no pair of addresses; give BOOTSTRAP_HOST:PORT=HOST:PORT, "
                   "separated by commas, at most %d of them",
                   shown, RK_PEERS_CONFIGURED_MAX);
    rk_peer_addresses_free(addresses);
    return -EINVAL;
}

int rk_peer_addresses_parse(rk_peer_addresses *addresses, const char *text, char *error) {
    memset(addresses, 0, sizeof *addresses);
    if (text[strspn(text, ", ")] == '\0')
        return 0;
    addresses->items = calloc(RK_PEERS_CONFIGURED_MAX, sizeof *addresses->items);
    if (!addresses->items) {
        (void)snprintf(error, RK_CONFIG_ERROR_MAX, "configuration: memory is out");
        return -ENOMEM;
    }
    for (const char *at = text; *at;) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        if (length == 0)
            break;
        if (addresses->count == RK_PEERS_CONFIGURED_MAX ||
            !parse_one(at, length, &addresses->items[addresses->count]))
            return refuse(addresses, error, at, length);
        addresses->count++;
        at += length;
    }
    return 0;
}

void rk_peer_addresses_free(rk_peer_addresses *addresses) {
    free(addresses->items);
    memset(addresses, 0, sizeof *addresses);
}

const rk_peer_address *rk_peer_address_find(const rk_peer_addresses *addresses, const char *bootstrap_host,
                                            int32_t bootstrap_port) {
    for (uint32_t i = 0; i < addresses->count; i++) {
        const rk_peer_address *item = &addresses->items[i];
        if (item->bootstrap_port == bootstrap_port && strcmp(item->bootstrap_host, bootstrap_host) == 0)
            return item;
    }
    return NULL;
}

int32_t rk_link_port(int64_t peer_port, int32_t bootstrap_port) {
    if (peer_port >= 0)
        return (int32_t)peer_port;
    int32_t port = bootstrap_port + RK_LINK_PORT_OFFSET;
    return bootstrap_port > 0 && port <= 65535 ? port : 0;
}
