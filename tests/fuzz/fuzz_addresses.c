/* Any text as --room-peer-allow and as --room-peer: taken or refused in one line; what was taken has the form
 * that the headers promise, and reads the same when it is written down. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "dialect_wire.h"
#include "peer/addresses.h"
#include "peer/networks.h"
#include "roomkeeper/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const char *error) {
    size_t length = strnlen(error, RK_CONFIG_ERROR_MAX);
    ck_assert(length > 0 && length < RK_CONFIG_ERROR_MAX);
    ck_assert(rk_utf8_valid(error, length));
    for (size_t i = 0; i < length; i++)
        ck_assert((unsigned char)error[i] >= ' ' && error[i] != 0x7F);
}

static void networks(const char *text) {
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    rk_networks read, again;
    char error[RK_CONFIG_ERROR_MAX] = "";
    if (rk_networks_parse(&read, text, error) < 0) {
        check_error(error);
        return;
    }
    rk_buf out = RK_BUF_INIT;
    ck_assert_uint_le(read.count, RK_NETWORKS_MAX);
    for (unsigned i = 0; i < read.count; i++) {
        const rk_network *one = &read.items[i];
        char shown[INET6_ADDRSTRLEN];
        struct sockaddr_in6 address = {.sin6_family = AF_INET6};
        ck_assert_uint_le(one->bits, 128);
        memcpy(&address.sin6_addr, one->address, 16);
        ck_assert(rk_networks_have(&read, (const struct sockaddr *)&address));
        bool four = memcmp(one->address, mapped, sizeof mapped) == 0 && one->bits >= 96;
        ck_assert_ptr_nonnull(four ? inet_ntop(AF_INET, one->address + 12, shown, sizeof shown)
                                   : inet_ntop(AF_INET6, one->address, shown, sizeof shown));
        rk_buf_printf(&out, "%s%s/%u", i ? "," : "", shown, four ? one->bits - 96 : one->bits);
    }
    rk_buf_append(&out, "", 1);
    ck_assert_int_eq(rk_networks_parse(&again, (const char *)out.data, error), 0);
    if (out.size > 1) { /* empty text means something else */
        ck_assert_uint_eq(read.count, again.count);
        ck_assert_int_eq(memcmp(read.items, again.items, read.count * sizeof read.items[0]), 0);
    }
    rk_buf_free(&out);
}

static void write_side(rk_buf *out, const char *host, int32_t port) {
    ck_assert(host[0] && strnlen(host, RK_ROOM_HOST_MAX) < RK_ROOM_HOST_MAX);
    ck_assert_ptr_null(strpbrk(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"));
    ck_assert(port >= 1 && port <= 65535);
    rk_buf_printf(out, "[%s]:%d", host, port);
}

static void addresses(const char *text) {
    rk_peer_addresses read, again;
    char error[RK_CONFIG_ERROR_MAX] = "";
    if (rk_peer_addresses_parse(&read, text, error) < 0) {
        check_error(error);
        ck_assert_ptr_null(read.items);
        return;
    }
    rk_buf out = RK_BUF_INIT;
    ck_assert_uint_le(read.count, RK_PEERS_CONFIGURED_MAX);
    for (uint32_t i = 0; i < read.count; i++) {
        const rk_peer_address *one = &read.items[i];
        ck_assert_ptr_nonnull(rk_peer_address_find(&read, one->bootstrap_host, one->bootstrap_port));
        write_side(&out, one->bootstrap_host, one->bootstrap_port);
        rk_buf_append(&out, "=", 1);
        write_side(&out, one->host, one->port);
        rk_buf_append(&out, ",", 1);
    }
    rk_buf_append(&out, "", 1);
    ck_assert_int_eq(rk_peer_addresses_parse(&again, (const char *)out.data, error), 0);
    ck_assert_uint_eq(read.count, again.count);
    for (uint32_t i = 0; i < read.count; i++) {
        ck_assert_str_eq(read.items[i].bootstrap_host, again.items[i].bootstrap_host);
        ck_assert_str_eq(read.items[i].host, again.items[i].host);
        ck_assert_int_eq(read.items[i].port, again.items[i].port);
        ck_assert_int_eq(read.items[i].bootstrap_port, again.items[i].bootstrap_port);
    }
    rk_buf_free(&out);
    rk_peer_addresses_free(&read);
    rk_peer_addresses_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = strndup(size ? (const char *)data : "", size);
    networks(text);
    addresses(text);
    free(text);
    return 0;
}
