/* Proving that both ends of a link know the same secret, without sending it. Any thread. */
#ifndef RK_PEER_PROOF_H
#define RK_PEER_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "peer/frame.h"

#define RK_TOKEN_MAX 4096 /* bytes */

typedef struct rk_token {
    uint8_t bytes[RK_TOKEN_MAX];
    size_t size; /* 0: there is none, and nothing is proved */
} rk_token;

/* The secret from a file, without a newline at its end. 0, or -errno with a line in `error`
 * (RK_CONFIG_ERROR_MAX bytes): unreadable, empty, too long, or readable by others. */
int rk_token_load(rk_token *token, const char *path, char *error);
void rk_token_wipe(rk_token *token);

/* What the side in `prover` says: HMAC-SHA256 over its role and both hellos' contents. 0 or -EIO. */
int rk_proof_make(const rk_token *token, rk_link_role prover, const rk_hello *decode, const rk_hello *prefill,
                  uint8_t proof[RK_PROOF_BYTES]);
/* In constant time. */
bool rk_proof_same(const uint8_t a[RK_PROOF_BYTES], const uint8_t b[RK_PROOF_BYTES]);
/* 0 or -errno. */
int rk_random(uint8_t *bytes, size_t size);

#endif
