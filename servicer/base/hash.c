/* SipHash-2-4 (Aumasson and Bernstein), written from its description. Any thread; no state. */
#include "base/hash.h"

#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

typedef struct sip_state {
    uint64_t v0, v1, v2, v3; /* the four words of the description */
} sip_state;

static uint64_t rotate(uint64_t word, unsigned by) {
    return (word << by) | (word >> (64u - by));
}

static void rounds(sip_state *s, unsigned count) {
    while (count-- > 0) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 = rotate(s->v2, 32);
    }
}

static void absorb(sip_state *s, uint64_t word) {
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

uint64_t rk_hash_bytes(rk_hash_seed seed, const void *data, size_t bytes) {
    sip_state s = {seed.k0 ^ UINT64_C(0x736f6d6570736575), seed.k1 ^ UINT64_C(0x646f72616e646f6d),
                   seed.k0 ^ UINT64_C(0x6c7967656e657261), seed.k1 ^ UINT64_C(0x7465646279746573)};
    const unsigned char *at = data;
    size_t left = bytes;
    for (; left >= 8; left -= 8, at += 8) {
        uint64_t word = 0;
        for (unsigned i = 0; i < 8; i++)
            word |= (uint64_t)at[i] << (8u * i);
        absorb(&s, word);
    }
    uint64_t last = (uint64_t)(bytes & 0xFFu) << 56;
    for (unsigned i = 0; i < left; i++)
        last |= (uint64_t)at[i] << (8u * i);
    absorb(&s, last);
    s.v2 ^= 0xFFu;
    rounds(&s, 4);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

rk_hash_seed rk_hash_seed_new(void) {
    rk_hash_seed seed;
    /* Early in boot, or under a seccomp filter, there may be no randomness: a guessable table is better than
     * no service. */
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        seed.k0 = rk_hash_number(rk_now_us());
        seed.k1 = rk_hash_number((uint64_t)(uintptr_t)&seed ^ seed.k0);
    }
    return seed;
}
