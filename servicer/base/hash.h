/* Hashes for the tables of the core.
 *
 * Clients choose request ids, hosts and rooms, so what they choose is hashed with a secret (SipHash-2-4): no
 * client can make a table degenerate into a list. Any thread: nothing is kept. */
#ifndef RK_BASE_HASH_H
#define RK_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct rk_hash_seed {
    uint64_t k0; /* the two halves of the secret */
    uint64_t k1;
} rk_hash_seed;

/* A fresh secret from the kernel; from clock and addresses where the kernel has none to give. */
rk_hash_seed rk_hash_seed_new(void);
uint64_t rk_hash_bytes(rk_hash_seed seed, const void *data, size_t bytes);

/* A plain mix, for numbers that we chose ourselves. */
static inline uint64_t rk_hash_number(uint64_t number) {
    number ^= number >> 32;
    number *= UINT64_C(0x9E3779B97F4A7C15);
    number ^= number >> 29;
    return number;
}

#endif
