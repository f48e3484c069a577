/* Certificates and keys, read when the worker starts. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "rpc/links.h"

#define PEM_MAX ((size_t)1024 * 1024)

static char *refuse(char error[RK_ERROR_MAX], const char *key, const char *path, const char *why) {
    (void)snprintf(error, RK_ERROR_MAX, "%s is %.200s, %s", key, path, why);
    return NULL;
}

char *rk_pem_load(const char *key, const char *path, char error[RK_ERROR_MAX]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return refuse(error, key, path, "which cannot be opened; is it there, and readable?");
    char *text = calloc(1, PEM_MAX + 1);
    size_t size = 0;
    ssize_t got = text ? 1 : 0;
    while (got > 0 && size < PEM_MAX) {
        got = read(fd, text + size, PEM_MAX - size);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            size += (size_t)got;
    }
    (void)close(fd);
    if (text && got == 0 && strstr(text, "-----BEGIN "))
        return text;
    free(text);
    return refuse(error, key, path, "which is no PEM file (-----BEGIN …) of at most 1 MiB");
}

/* No passphrase is asked for on a terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *user) {
    (void)buffer;
    (void)size;
    (void)writing;
    (void)user;
    return 0;
}

bool rk_pem_fits(const char *cert, const char *key) {
    BIO *cert_bio = BIO_new_mem_buf(cert, -1);
    BIO *key_bio = BIO_new_mem_buf(key, -1);
    X509 *certificate = cert_bio ? PEM_read_bio_X509(cert_bio, NULL, no_passphrase, NULL) : NULL;
    EVP_PKEY *private = key_bio ? PEM_read_bio_PrivateKey(key_bio, NULL, no_passphrase, NULL) : NULL;
    bool fits = certificate && private && X509_check_private_key(certificate, private) == 1;
    EVP_PKEY_free(private);
    X509_free(certificate);
    BIO_free(key_bio);
    BIO_free(cert_bio);
    ERR_clear_error();
    return fits;
}

static grpc_server_credentials *make(const char *cert, const char *key, const char *ca,
                                     char error[RK_ERROR_MAX]) {
    grpc_ssl_pem_key_cert_pair pair = {key, cert};
    grpc_server_credentials *credentials =
        grpc_ssl_server_credentials_create_ex(ca, &pair, 1,
                                              ca ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                 : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                                              NULL);
    if (!credentials)
        (void)snprintf(error, RK_ERROR_MAX, "tls_cert and tls_key cannot be used");
    return credentials;
}

grpc_server_credentials *rk_server_credentials(const rk_config *config, char error[RK_ERROR_MAX]) {
    bool has_cert = config->tls_cert[0] != '\0';
    if (!has_cert && config->tls_key[0] == '\0' && config->tls_client_ca[0] == '\0')
        return grpc_insecure_server_credentials_create();
    if (!has_cert || config->tls_key[0] == '\0') {
        (void)snprintf(error, RK_ERROR_MAX, "%s is set and %s is not; TLS needs both",
                       has_cert                     ? "tls_cert"
                       : config->tls_key[0] != '\0' ? "tls_key"
                                                    : "tls_client_ca",
                       has_cert ? "tls_key" : "tls_cert");
        return NULL;
    }
    bool wants_ca = config->tls_client_ca[0] != '\0';
    _cleanup_free_ char *cert = rk_pem_load("tls_cert", config->tls_cert, error);
    _cleanup_free_ char *key = cert ? rk_pem_load("tls_key", config->tls_key, error) : NULL;
    _cleanup_free_ char *ca =
        key && wants_ca ? rk_pem_load("tls_client_ca", config->tls_client_ca, error) : NULL;
    if (!key || (wants_ca && !ca))
        return NULL;
    if (!rk_pem_fits(cert, key)) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "tls_cert and tls_key do not belong together, or one of them is damaged");
        return NULL;
    }
    return make(cert, key, ca, error);
}
