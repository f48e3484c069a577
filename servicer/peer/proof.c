/* HMAC-SHA256 by OpenSSL, over an unambiguous rendering of what both hellos said: each side proves that it
 * knows the token, for this stream only, and for the identities that it was given. */
#include "peer/proof.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "roomkeeper/config.h"

static int refuse(char *error, int code, const char *path, const char *why) {
    (void)snprintf(error, RK_CONFIG_ERROR_MAX, "link_token_file is %.200s, %s", path, why);
    return code;
}

/* The whole file, up to `size` bytes; -errno. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t size) {
    size_t have = 0;
    while (have < size) {
        ssize_t got = read(fd, bytes + have, size - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

int rk_token_load(rk_token *token, const char *path, char *error) {
    memset(token, 0, sizeof *token);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int code = -errno;
        return refuse(error, code, path, "which cannot be opened; is it there, and readable?");
    }
    struct stat file;
    uint8_t bytes[RK_TOKEN_MAX + 2];
    ssize_t size = fstat(fd, &file) < 0 ? -errno : read_all(fd, bytes, sizeof bytes);
    (void)close(fd);
    int result = 0;
    if (size < 0)
        result = refuse(error, (int)size, path, "which cannot be read");
    else if (file.st_mode & (S_IROTH | S_IWOTH))
        result = refuse(error, -EPERM, path, "which everybody can read or write; chmod o-rw it");
    while (result == 0 && size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r'))
        size--;
    if (result == 0 && size == 0)
        result = refuse(error, -EINVAL, path, "which is empty; put a secret of 32 random characters in it");
    if (result == 0 && size > RK_TOKEN_MAX)
        result = refuse(error, -EINVAL, path, "which is longer than 4096 bytes; put a shorter secret in it");
    if (result == 0) {
        memcpy(token->bytes, bytes, (size_t)size);
        token->size = (size_t)size;
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
    return result;
}

void rk_token_wipe(rk_token *token) {
    OPENSSL_cleanse(token, sizeof *token);
}

/* Every part has a fixed length, so no two different hellos render alike. */
static void render(rk_buf *out, const rk_hello *hello) {
    uint32_t numbers[] = {hello->protocol, (uint32_t)hello->role};
    uint8_t bytes[sizeof numbers];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(numbers[i / 4] >> (8 * (i % 4)));
    rk_buf_append(out, bytes, sizeof bytes);
    rk_buf_append(out, hello->instance, sizeof hello->instance);
    rk_buf_append(out, hello->nonce, sizeof hello->nonce);
}

int rk_proof_make(const rk_token *token, rk_link_role prover, const rk_hello *decode, const rk_hello *prefill,
                  uint8_t proof[RK_PROOF_BYTES]) {
    rk_buf text = RK_BUF_INIT;
    const char *label =
        prover == RK_LINK_ROLE_DECODE ? "roomkeeper link, decode " : "roomkeeper link, prefill";
    rk_buf_append(&text, label, 24);
    render(&text, decode);
    render(&text, prefill);
    unsigned size = 0;
    bool made = !text.failed && HMAC(EVP_sha256(), token->bytes, (int)token->size, text.data, text.size,
                                     proof, &size) != NULL;
    rk_buf_free(&text);
    return made && size == RK_PROOF_BYTES ? 0 : -EIO;
}

bool rk_proof_same(const uint8_t a[RK_PROOF_BYTES], const uint8_t b[RK_PROOF_BYTES]) {
    return CRYPTO_memcmp(a, b, RK_PROOF_BYTES) == 0;
}

int rk_random(uint8_t *bytes, size_t size) {
    size_t have = 0;
    while (have < size) {
        ssize_t got = getrandom(bytes + have, size - have, 0);
        if (got < 0 && errno != EINTR)
            return -errno;
        have += got > 0 ? (size_t)got : 0;
    }
    return 0;
}
