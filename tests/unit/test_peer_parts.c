/* The parts of the link that stand alone: networks, addresses of peers, proofs and the token's file. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "ledger_support.h"
#include "peer/addresses.h"
#include "peer/networks.h"
#include "peer/proof.h"
#include "roomkeeper/config.h"

static char error[RK_CONFIG_ERROR_MAX];

static void is_one_line(const char *part) {
    ck_assert_uint_gt(strlen(error), 20);
    ck_assert_ptr_null(strpbrk(error, "\r\n\t\x1b"));
    ck_assert(rk_utf8_valid(error, strlen(error)));
    ck_assert_msg(strstr(error, part) != NULL, "\"%s\" lacks \"%s\"", error, part);
    error[0] = '\0';
}

/* ---- networks ---- */

static struct sockaddr_storage address_of(const char *text) {
    struct sockaddr_storage address;
    memset(&address, 0, sizeof address);
    struct sockaddr_in *four = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
    if (strchr(text, ':')) {
        six->sin6_family = AF_INET6;
        ck_assert_int_eq(inet_pton(AF_INET6, text, &six->sin6_addr), 1);
    } else {
        four->sin_family = AF_INET;
        ck_assert_int_eq(inet_pton(AF_INET, text, &four->sin_addr), 1);
    }
    return address;
}

static bool have(const rk_networks *networks, const char *text) {
    struct sockaddr_storage address = address_of(text);
    return rk_networks_have(networks, (struct sockaddr *)&address);
}

START_TEST(an_address_is_in_a_network_by_its_first_bits) {
    static const struct {
        const char *network;
        const char *in;
        const char *out;
    } table[] = {
        {"10.0.0.0/8", "10.255.0.1", "11.0.0.0"},
        {"10.1.2.3/8", "10.9.9.9", "9.255.255.255"}, /* the rest of the address does not count */
        {"192.0.2.128/25", "192.0.2.129", "192.0.2.127"},
        {"192.0.2.7/32", "192.0.2.7", "192.0.2.6"},
        {"192.0.2.7", "192.0.2.7", "192.0.2.8"},
        {"172.16.0.0/12", "172.31.255.255", "172.32.0.0"},
        {"0.0.0.0/0", "203.0.113.9", "2001:db8::1"},
        {"0.0.0.0/1", "127.0.0.1", "128.0.0.1"},
        {"fd00::/8", "fdff::1", "fc00::1"},
        {"2001:db8:0:8000::/49", "2001:db8:0:8000::1", "2001:db8:0:7fff::1"},
        {"2001:db8::7", "2001:db8::7", "2001:db8::6"},
        {"::1/128", "::1", "::2"},
        {"10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.1.2.3"}, /* IPv4 by way of an IPv6 socket */
        {"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        rk_networks networks;
        ck_assert_int_eq(rk_networks_parse(&networks, table[i].network, error), 0);
        ck_assert_uint_eq(networks.count, 1);
        ck_assert_msg(have(&networks, table[i].in), "%s in %s", table[i].in, table[i].network);
        ck_assert_msg(!have(&networks, table[i].out), "%s out of %s", table[i].out, table[i].network);
    }
}
END_TEST

START_TEST(everything_is_in_the_whole_of_ipv6) {
    rk_networks networks;
    ck_assert_int_eq(rk_networks_parse(&networks, "::/0", error), 0);
    ck_assert(have(&networks, "2001:db8::1"));
    ck_assert(have(&networks, "203.0.113.9"));
}
END_TEST

START_TEST(several_networks_are_separated_by_commas_or_spaces) {
    rk_networks networks;
    ck_assert_int_eq(rk_networks_parse(&networks, " 10.0.0.0/8,, fd00::/8 192.0.2.7 ,", error), 0);
    ck_assert_uint_eq(networks.count, 3);
    ck_assert(have(&networks, "10.0.0.1") && have(&networks, "fd00::1") && have(&networks, "192.0.2.7"));
    ck_assert(!have(&networks, "127.0.0.1") && !have(&networks, "::1")); /* only what is named */
}
END_TEST

START_TEST(by_default_loopback_is_allowed) {
    static const char *const texts[] = {"", "  ", ", ,"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        rk_networks networks;
        ck_assert_int_eq(rk_networks_parse(&networks, texts[i], error), 0);
        ck_assert_uint_ge(networks.count, 2);
        ck_assert(have(&networks, "127.0.0.1") && have(&networks, "127.9.8.7") && have(&networks, "::1"));
        ck_assert(!have(&networks, "203.0.113.9") && !have(&networks, "2001:db8::1"));
    }
}
END_TEST

START_TEST(words_that_are_no_network_are_one_line_that_names_them) {
    static const char *const words[] = {
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/8x",
        "10.0.0/8",
        "300.0.0.1",
        "fd00::/129",
        "fd00:::/8",
        "prefill.example",
        "/8",
        "10.0.0.0/ 8",
        "10.0.0.0/+8",
        "10.0.0.0/99999999999999999999999",
        "1111:2222:3333:4444:5555:6666:7777:8888:9999:1111:2222:3333:4444",
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        rk_networks networks;
        char text[256];
        (void)snprintf(text, sizeof text, "10.0.0.0/8,%s", words[i]);
        ck_assert_msg(rk_networks_parse(&networks, text, error) == -EINVAL, "%s", words[i]);
        char first[16];
        (void)snprintf(first, sizeof first, "\"%.*s", (int)strcspn(words[i], " "), words[i]);
        is_one_line(first);
    }
}
END_TEST

/* Cut in the middle of a character the line would be no text any more. */
START_TEST(a_long_word_is_cut_at_a_character_and_controls_are_not_shown) {
    char word[600];
    rk_networks networks;
    rk_peer_addresses addresses;
    for (size_t lead = 0; lead < 4; lead++) {
        memset(word, 'x', lead);
        for (size_t at = lead; at + 3 < sizeof word; at += 3)
            (void)snprintf(word + at, sizeof word - at, "\xE4\xB8\xAD");
        ck_assert_int_eq(rk_networks_parse(&networks, word, error), -EINVAL);
        is_one_line("no network");
        ck_assert_int_eq(rk_peer_addresses_parse(&addresses, word, error), -EINVAL);
        is_one_line("no pair of addresses");
    }
    ck_assert_int_eq(rk_networks_parse(&networks, "\x1b[2J\n10.0.0.0/8\xFF", error), -EINVAL);
    is_one_line("no network");
    ck_assert_int_eq(rk_peer_addresses_parse(&addresses, "\x1b[2J\n\xFF", error), -EINVAL);
    is_one_line("no pair of addresses");
}
END_TEST

START_TEST(only_so_many_networks_are_kept) {
    rk_networks networks;
    char text[RK_NETWORKS_MAX * 16 + 32] = "";
    for (int i = 0; i < RK_NETWORKS_MAX; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "10.0.0.%d,", i);
    ck_assert_int_eq(rk_networks_parse(&networks, text, error), 0);
    ck_assert_uint_eq(networks.count, RK_NETWORKS_MAX);
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), "10.0.1.0");
    ck_assert_int_eq(rk_networks_parse(&networks, text, error), -EINVAL);
    is_one_line("at most 64");
}
END_TEST

START_TEST(loopback_is_told_apart) {
    static const struct {
        const char *text;
        bool loops;
    } table[] = {{"127.0.0.1", true},        {"127.255.0.9", true}, {"::1", true}, {"::ffff:127.0.0.1", true},
                 {"128.0.0.1", false},       {"0.0.0.0", false},    {"::", false}, {"::2", false},
                 {"::ffff:10.0.0.1", false}, {"fe80::1", false}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct sockaddr_storage address = address_of(table[i].text);
        ck_assert_msg(rk_is_loopback((struct sockaddr *)&address) == table[i].loops, "%s", table[i].text);
    }
    struct sockaddr_storage local = {.ss_family = AF_UNIX};
    rk_networks all;
    ck_assert_int_eq(rk_networks_parse(&all, "::/0", error), 0);
    ck_assert(!rk_is_loopback((struct sockaddr *)&local));
    ck_assert(!rk_networks_have(&all, (struct sockaddr *)&local));
}
END_TEST

/* ---- addresses ---- */

START_TEST(configured_peers_are_found_by_their_bootstrap_server) {
    rk_peer_addresses addresses;
    ck_assert_int_eq(rk_peer_addresses_parse(&addresses,
                                             " Prefill-0.Example:8998=10.0.0.5:11000 ,"
                                             "[fd00::7]:8998=[FD00::8]:11001,10.0.0.1:1=10.0.0.2:65535",
                                             error),
                     0);
    ck_assert_uint_eq(addresses.count, 3);
    const rk_peer_address *found = rk_peer_address_find(&addresses, "prefill-0.example", 8998);
    ck_assert_ptr_nonnull(found);
    ck_assert_str_eq(found->host, "10.0.0.5");
    ck_assert_int_eq(found->port, 11000);
    found = rk_peer_address_find(&addresses, "fd00::7", 8998);
    ck_assert_ptr_nonnull(found);
    ck_assert_str_eq(found->host, "fd00::8");
    ck_assert_int_eq(rk_peer_address_find(&addresses, "10.0.0.1", 1)->port, 65535);
    ck_assert_ptr_null(rk_peer_address_find(&addresses, "prefill-0.example", 8999));
    ck_assert_ptr_null(rk_peer_address_find(&addresses, "prefill-0", 8998));
    rk_peer_addresses_free(&addresses);
    ck_assert_ptr_null(rk_peer_address_find(&addresses, "10.0.0.1", 1));
    rk_peer_addresses_free(&addresses); /* twice is fine */
}
END_TEST

START_TEST(no_configured_peers_are_fine) {
    rk_peer_addresses addresses;
    ck_assert_int_eq(rk_peer_addresses_parse(&addresses, " , ", error), 0);
    ck_assert_uint_eq(addresses.count, 0);
    ck_assert_ptr_null(rk_peer_address_find(&addresses, "h", 1));
    rk_peer_addresses_free(&addresses);
}
END_TEST

START_TEST(words_that_are_no_pair_of_addresses_are_one_line_that_names_them) {
    static const char *const words[] = {
        "a:1",         "a:1=",
        "=b:2",        "a:1=b",
        "a=b:2",       "a:1=b:0",
        "a:0=b:2",     "a:1=b:65536",
        "a:65536=b:2", "a:1=b:x",
        "a:1=:2",      ":1=b:2",
        "a:1=b:2=c:3", "fd00::7:1=b:2",
        "[]:1=b:2",    "a:1=[fd00::8:2",
        "a:1=b:-2",    "a:1=b:99999999999999999999",
        "a:=b:2",      "a:1=b:",
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        rk_peer_addresses addresses;
        char text[128];
        (void)snprintf(text, sizeof text, "ok:1=ok:2,%s", words[i]);
        ck_assert_msg(rk_peer_addresses_parse(&addresses, text, error) == -EINVAL, "%s", words[i]);
        is_one_line(words[i]);
        ck_assert_ptr_null(addresses.items);
    }
}
END_TEST

START_TEST(a_host_of_255_bytes_is_the_longest) {
    rk_peer_addresses addresses;
    char text[600] = "";
    for (int more = 0; more < 2; more++) {
        memset(text, 'h', (size_t)(255 + more));
        (void)snprintf(text + 255 + more, 32, ":1=b:2");
        ck_assert_int_eq(rk_peer_addresses_parse(&addresses, text, error), more ? -EINVAL : 0);
        rk_peer_addresses_free(&addresses);
    }
    is_one_line("no pair of addresses");
}
END_TEST

START_TEST(only_so_many_peers_are_configured) {
    rk_peer_addresses addresses;
    static char text[RK_PEERS_CONFIGURED_MAX * 16 + 64];
    for (int i = 0; i < RK_PEERS_CONFIGURED_MAX; i++)
        (void)snprintf(text + strlen(text), 16, "h%d:1=p:2,", i);
    ck_assert_int_eq(rk_peer_addresses_parse(&addresses, text, error), 0);
    ck_assert_uint_eq(addresses.count, RK_PEERS_CONFIGURED_MAX);
    ck_assert_ptr_nonnull(rk_peer_address_find(&addresses, "h255", 1));
    rk_peer_addresses_free(&addresses);
    (void)snprintf(text + strlen(text), 16, "more:1=p:2");
    ck_assert_int_eq(rk_peer_addresses_parse(&addresses, text, error), -EINVAL);
    is_one_line("at most 256");
}
END_TEST

START_TEST(a_link_listens_2000_above_the_bootstrap_port_unless_told_otherwise) {
    ck_assert_int_eq(rk_link_port(-1, 8998), 10998);
    ck_assert_int_eq(rk_link_port(-1, 63535), 65535);
    ck_assert_int_eq(rk_link_port(-1, 63536), 0); /* there is no such port */
    ck_assert_int_eq(rk_link_port(-1, 0), 0);
    ck_assert_int_eq(rk_link_port(-1, -5), 0);
    ck_assert_int_eq(rk_link_port(-1, INT32_MAX - 2000), 0);
    ck_assert_int_eq(rk_link_port(7000, 8998), 7000);
    ck_assert_int_eq(rk_link_port(7000, 0), 7000);
}
END_TEST

/* ---- proofs ---- */

static rk_token token_of(const char *text) {
    rk_token token;
    memset(&token, 0, sizeof token);
    token.size = strlen(text);
    memcpy(token.bytes, text, token.size);
    return token;
}

static rk_hello hello_of(rk_link_role role, uint8_t seed) {
    rk_hello hello = {.protocol = 1, .role = role};
    memset(hello.instance, seed, sizeof hello.instance);
    memset(hello.nonce, seed + 1, sizeof hello.nonce);
    return hello;
}

static void prove(const char *secret, rk_link_role prover, const rk_hello *decode, const rk_hello *prefill,
                  uint8_t proof[RK_PROOF_BYTES]) {
    rk_token token = token_of(secret);
    ck_assert_int_eq(rk_proof_make(&token, prover, decode, prefill, proof), 0);
    rk_token_wipe(&token);
    ck_assert_uint_eq(token.size, 0);
    for (size_t i = 0; i < sizeof token.bytes; i++)
        ck_assert_uint_eq(token.bytes[i], 0);
}

START_TEST(the_same_token_and_hellos_make_the_same_proof) {
    rk_hello decode = hello_of(RK_LINK_ROLE_DECODE, 1);
    rk_hello prefill = hello_of(RK_LINK_ROLE_PREFILL, 9);
    uint8_t a[RK_PROOF_BYTES];
    uint8_t b[RK_PROOF_BYTES];
    prove("secret", RK_LINK_ROLE_PREFILL, &decode, &prefill, a);
    prove("secret", RK_LINK_ROLE_PREFILL, &decode, &prefill, b);
    ck_assert(rk_proof_same(a, b));
}
END_TEST

START_TEST(anything_that_differs_makes_another_proof) {
    rk_hello decode = hello_of(RK_LINK_ROLE_DECODE, 1);
    rk_hello prefill = hello_of(RK_LINK_ROLE_PREFILL, 9);
    uint8_t right[RK_PROOF_BYTES];
    uint8_t other[RK_PROOF_BYTES];
    prove("secret", RK_LINK_ROLE_PREFILL, &decode, &prefill, right);
    prove("secrey", RK_LINK_ROLE_PREFILL, &decode, &prefill, other);
    ck_assert(!rk_proof_same(right, other));
    prove("secret ", RK_LINK_ROLE_PREFILL, &decode, &prefill, other);
    ck_assert(!rk_proof_same(right, other));
    prove("secret", RK_LINK_ROLE_DECODE, &decode, &prefill,
          other); /* what one side said is no use to the other */
    ck_assert(!rk_proof_same(right, other));
    prove("secret", RK_LINK_ROLE_PREFILL, &prefill, &decode, other);
    ck_assert(!rk_proof_same(right, other));
    for (int side = 0; side < 2; side++) {
        for (int what = 0; what < 4; what++) {
            rk_hello changed[2] = {decode, prefill};
            changed[side].nonce[31] ^= what == 0 ? 1 : 0;
            changed[side].instance[0] ^= what == 1 ? 0x80 : 0;
            changed[side].protocol += what == 2 ? 1 : 0;
            changed[side].role = what == 3 ? RK_LINK_ROLE_NONE : changed[side].role;
            prove("secret", RK_LINK_ROLE_PREFILL, &changed[0], &changed[1], other);
            ck_assert_msg(!rk_proof_same(right, other), "side %d, what %d", side, what);
        }
    }
}
END_TEST

START_TEST(every_bit_of_a_proof_counts) {
    uint8_t a[RK_PROOF_BYTES] = {0};
    for (unsigned bit = 0; bit < RK_PROOF_BYTES * 8; bit++) {
        uint8_t b[RK_PROOF_BYTES] = {0};
        b[bit / 8] = (uint8_t)(1u << bit % 8);
        ck_assert(!rk_proof_same(a, b));
    }
    ck_assert(rk_proof_same(a, a));
}
END_TEST

START_TEST(the_longest_token_proves) {
    rk_hello decode = hello_of(RK_LINK_ROLE_DECODE, 1);
    rk_hello prefill = hello_of(RK_LINK_ROLE_PREFILL, 9);
    static rk_token token = {.size = RK_TOKEN_MAX};
    memset(token.bytes, 't', RK_TOKEN_MAX);
    uint8_t a[RK_PROOF_BYTES];
    uint8_t b[RK_PROOF_BYTES];
    ck_assert_int_eq(rk_proof_make(&token, RK_LINK_ROLE_DECODE, &decode, &prefill, a), 0);
    token.bytes[RK_TOKEN_MAX - 1] = 'u';
    ck_assert_int_eq(rk_proof_make(&token, RK_LINK_ROLE_DECODE, &decode, &prefill, b), 0);
    ck_assert(!rk_proof_same(a, b));
}
END_TEST

START_TEST(random_bytes_differ_and_fill_all_that_was_asked_for) {
    uint8_t a[64] = {0};
    uint8_t b[64] = {0};
    ck_assert_int_eq(rk_random(a, sizeof a), 0);
    ck_assert_int_eq(rk_random(b, sizeof b), 0);
    for (size_t i = 0; i < sizeof a; i += 16)
        ck_assert_int_ne(memcmp(a + i, b + i, 16), 0);
    ck_assert_int_eq(rk_random(a, 0), 0);
}
END_TEST

/* ---- the token's file ---- */

static char path[64];
static rk_token token;

static void write_file(const void *bytes, size_t size, mode_t mode) {
    (void)snprintf(path, sizeof path, "/tmp/roomkeeper-token-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    ck_assert_int_eq(fchmod(fd, mode), 0);
    ck_assert_int_eq(close(fd), 0);
}

static int load(void) {
    int result = rk_token_load(&token, path, error);
    (void)unlink(path);
    return result;
}

START_TEST(a_token_is_the_file_without_the_end_of_its_line) {
    static const char *const files[] = {"a secret", "a secret\n", "a secret\r\n", "a secret\n\n"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(files[i], strlen(files[i]), 0600);
        ck_assert_int_eq(load(), 0);
        ck_assert_uint_eq(token.size, 8);
        ck_assert_mem_eq(token.bytes, "a secret", 8);
    }
    write_file("two\nlines\n", 10, 0440);
    ck_assert_int_eq(load(), 0);
    ck_assert_uint_eq(token.size, 9);
}
END_TEST

START_TEST(a_token_may_have_4096_bytes_and_no_more) {
    char bytes[RK_TOKEN_MAX + 3];
    memset(bytes, 't', sizeof bytes);
    write_file(bytes, RK_TOKEN_MAX, 0600);
    ck_assert_int_eq(load(), 0);
    ck_assert_uint_eq(token.size, RK_TOKEN_MAX);
    bytes[RK_TOKEN_MAX] = '\n';
    write_file(bytes, RK_TOKEN_MAX + 1, 0600);
    ck_assert_int_eq(load(), 0);
    ck_assert_uint_eq(token.size, RK_TOKEN_MAX);
    bytes[RK_TOKEN_MAX] = 't';
    for (size_t more = 1; more <= 3; more++) {
        write_file(bytes, RK_TOKEN_MAX + more, 0600);
        ck_assert_int_eq(load(), -EINVAL);
        ck_assert_uint_eq(token.size, 0);
        is_one_line("longer than 4096 bytes");
    }
}
END_TEST

START_TEST(a_token_that_is_not_there_or_empty_is_one_line) {
    (void)snprintf(path, sizeof path, "/tmp/roomkeeper-no-such-token");
    ck_assert_int_eq(load(), -ENOENT);
    is_one_line("link_token_file is /tmp/roomkeeper-no-such-token, which cannot be opened");
    ck_assert_uint_eq(token.size, 0);
    static const char *const files[] = {"", "\n", "\r\n\n"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(files[i], strlen(files[i]), 0600);
        ck_assert_int_eq(load(), -EINVAL);
        is_one_line("which is empty");
    }
    (void)snprintf(path, sizeof path, "/tmp");
    ck_assert_int_lt(rk_token_load(&token, path, error), 0); /* a folder */
    is_one_line("link_token_file is /tmp");
}
END_TEST

START_TEST(a_token_that_everybody_can_read_or_write_is_refused) {
    static const mode_t modes[] = {0604, 0602, 0644, 0666};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        write_file("a secret", 8, modes[i]);
        ck_assert_int_eq(load(), -EPERM);
        ck_assert_uint_eq(token.size, 0);
        is_one_line("chmod o-rw");
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        an_address_is_in_a_network_by_its_first_bits,
        everything_is_in_the_whole_of_ipv6,
        several_networks_are_separated_by_commas_or_spaces,
        by_default_loopback_is_allowed,
        words_that_are_no_network_are_one_line_that_names_them,
        a_long_word_is_cut_at_a_character_and_controls_are_not_shown,
        only_so_many_networks_are_kept,
        loopback_is_told_apart,
        configured_peers_are_found_by_their_bootstrap_server,
        no_configured_peers_are_fine,
        words_that_are_no_pair_of_addresses_are_one_line_that_names_them,
        a_host_of_255_bytes_is_the_longest,
        only_so_many_peers_are_configured,
        a_link_listens_2000_above_the_bootstrap_port_unless_told_otherwise,
        the_same_token_and_hellos_make_the_same_proof,
        anything_that_differs_makes_another_proof,
        every_bit_of_a_proof_counts,
        the_longest_token_proves,
        random_bytes_differ_and_fill_all_that_was_asked_for,
        a_token_is_the_file_without_the_end_of_its_line,
        a_token_may_have_4096_bytes_and_no_more,
        a_token_that_is_not_there_or_empty_is_one_line,
        a_token_that_everybody_can_read_or_write_is_refused,
    };
    return RUN_SUITE("peer parts", tests);
}
