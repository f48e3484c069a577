/* TLS 1.3 as the least version. gRPC core speaks 1.2 and 1.3; the C API of 1.51 has no word for less than
 * both, and what there is inside does not reach the contexts that are made when certificates are read anew.
 *
 * Listeners: OpenSSL calls us for every SSL_CTX it makes, and in the one that gRPC core makes on this thread
 * right after our certificates were fetched 1.2 is switched off. Whether that came about is seen, so a gRPC
 * core with a TLS of its own is refused and not trusted. Dialled links: the setter that gRPC core's own
 * credentials have, by its linker's name, where it is there. */
#include <openssl/ssl.h>
#include <pthread.h>

#include "rpc/tls.h"

/* Of the thread: where to tell that the next context has been made, NULL: it is nobody's. A thread's own,
 * since OpenSSL's callback has no other way to know for whom it is called. */
static _Thread_local bool *awaited;

static void on_new_context(void *parent, void *value, CRYPTO_EX_DATA *data, int index, long number,
                           void *pointer) {
    (void)value;
    (void)data;
    (void)index;
    (void)number;
    (void)pointer;
    if (!awaited || !parent)
        return;
    (void)SSL_CTX_set_options(parent, SSL_OP_NO_TLSv1_2);
    *awaited = true;
    awaited = NULL;
}

static pthread_once_t hooked = PTHREAD_ONCE_INIT;
static int hook = -1; /* OpenSSL's number of it, written once */

static void set_hook(void) {
    hook = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, NULL, on_new_context, NULL, NULL);
}

bool rk_tls_next_context_13(bool *done) {
    (void)pthread_once(&hooked, set_hook);
    *done = false;
    awaited = hook < 0 ? NULL : done;
    return hook >= 0;
}

void rk_tls_next_context_any(void) {
    awaited = NULL;
}

extern void set_dial_version(grpc_channel_credentials *credentials, grpc_tls_version least) __asm__(
    "_ZN20grpc_ssl_credentials19set_min_tls_versionE16grpc_tls_version") __attribute__((weak));

bool rk_tls_can_dial_13(void) {
    return set_dial_version != NULL;
}

bool rk_tls_dial_13(grpc_channel_credentials *credentials) {
    if (!set_dial_version)
        return false;
    set_dial_version(credentials, TLS1_3);
    return true;
}
