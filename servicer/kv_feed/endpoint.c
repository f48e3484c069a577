/* Where a rank's publisher is. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_feed/feed.h"

static int offset_port(const char *address, uint32_t rank, char out[256]) {
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;
    if (port == 0 || port > 65535 || *end != '\0' || port + rank > 65535)
        return -EINVAL;
    int host_bytes = (int)(colon - address);
    const char *host = address;
    bool any = (host_bytes == 1 && host[0] == '*') || (host_bytes == 7 && memcmp(host, "0.0.0.0", 7) == 0);
    if (any) {
        host = "127.0.0.1";
        host_bytes = (int)strlen(host);
    }
    if (host_bytes == 4 && memcmp(host, "[::]", 4) == 0)
        host = "[::1]", host_bytes = 5;
    int size = snprintf(out, 256, "tcp://%.*s:%lu", host_bytes, host, port + rank);
    return host_bytes == 0 || size >= 256 ? -EINVAL : 0;
}

int rk_kv_endpoint(const char *endpoint, uint32_t rank, char out[256]) {
    if (strncmp(endpoint, "tcp://", 6) == 0)
        return offset_port(endpoint + 6, rank, out);
    if (strncmp(endpoint, "ipc://", 6) != 0 || rank > 0)
        return -EINVAL; /* inproc:// is another process's, and ipc:// has no ports to count on */
    return snprintf(out, 256, "%s", endpoint) < 256 ? 0 : -EINVAL;
}
