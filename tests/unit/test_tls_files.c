/* Certificate files that change, look by look: what is taken, what is kept, what is counted. The pairs are
 * made here, so that no file of the tests expires. */
#include <check.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base_support.h"
#include "roomkeeper/servicer.h"
#include "rpc/tls_files.h"

#define RK_TEST_PATH 128

static char folder[] = "/tmp/rk-tls-XXXXXX";
static char cert_path[RK_TEST_PATH];
static char key_path[RK_TEST_PATH];
static char other_cert[RK_TEST_PATH]; /* of a second pair */
static char other_key[RK_TEST_PATH];

static const rk_log no_log = {.level = RK_LOG_ERROR, .fd = -1};

static void make_pair(const char *cert_file, const char *key_file) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    ck_assert_ptr_nonnull(key);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    ck_assert_int_gt(X509_sign(cert, key, EVP_sha256()), 0);
    FILE *out = fopen(cert_file, "w");
    ck_assert_int_eq(PEM_write_X509(out, cert), 1);
    ck_assert_int_eq(fclose(out), 0);
    out = fopen(key_file, "w");
    ck_assert_int_eq(PEM_write_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL), 1);
    ck_assert_int_eq(fclose(out), 0);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void copy(const char *from, const char *to) {
    char text[8192];
    FILE *file = fopen(from, "r");
    size_t size = fread(text, 1, sizeof text, file);
    ck_assert_int_eq(fclose(file), 0);
    file = fopen(to, "w");
    ck_assert_uint_eq(fwrite(text, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static void name(char path[RK_TEST_PATH], const char *file) {
    (void)snprintf(path, RK_TEST_PATH, "%s/%s", folder, file);
}

static rk_tls_files *begin(void) {
    ck_assert_ptr_nonnull(mkdtemp(folder));
    name(cert_path, "cert");
    name(key_path, "key");
    name(other_cert, "other-cert");
    name(other_key, "other-key");
    make_pair(cert_path, key_path);
    make_pair(other_cert, other_key);
    const rk_tls_paths paths = {"server",
                                {{"tls_cert", cert_path}, {"tls_key", key_path}, {"tls_client_ca", ""}}};
    char error[RK_ERROR_MAX];
    rk_tls_files *files = rk_tls_files_new(&paths, error);
    ck_assert_msg(files != NULL, "%s", error);
    return files;
}

static void end(rk_tls_files *files) {
    rk_tls_files_free(files);
    (void)unlink(cert_path);
    (void)unlink(key_path);
    (void)unlink(other_cert);
    (void)unlink(other_key);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void counted(rk_tls_files *files, uint64_t reloads, uint64_t failures) {
    rk_tls_counts counts;
    rk_tls_files_read(files, &counts);
    ck_assert_uint_eq(counts.reloads, reloads);
    ck_assert_uint_eq(counts.failures, failures);
    ck_assert_int_gt(counts.expires_seconds, 0);
    ck_assert_uint_eq(rk_tls_files_generation(files), 1 + reloads);
}

START_TEST(files_that_stay_are_not_taken_again) {
    rk_tls_files *files = begin();
    for (int i = 0; i < 4; i++)
        rk_tls_files_look(files, &no_log);
    counted(files, 0, 0);
    copy(cert_path, other_cert); /* the same bytes in a new file are no change */
    ck_assert_int_eq(rename(other_cert, cert_path), 0);
    for (int i = 0; i < 4; i++)
        rk_tls_files_look(files, &no_log);
    counted(files, 0, 0);
    end(files);
}
END_TEST

START_TEST(a_pair_is_taken_when_both_halves_are_there) {
    rk_tls_files *files = begin();
    rk_tls_set *first = rk_tls_files_get(files);
    copy(other_cert, cert_path);
    rk_tls_files_look(files, &no_log); /* between the two writes: nothing is said yet */
    counted(files, 0, 0);
    copy(other_key, key_path);
    rk_tls_files_look(files, &no_log);
    counted(files, 1, 0);
    rk_tls_set *second = rk_tls_files_get(files);
    ck_assert_str_ne(first->text[RK_TLS_CERT], second->text[RK_TLS_CERT]);
    ck_assert_ptr_null(second->text[RK_TLS_CA]);
    rk_tls_set_unref(first); /* which was held all along */
    rk_tls_set_unref(second);
    end(files);
}
END_TEST

START_TEST(a_half_that_stays_is_counted_once_and_the_old_pair_stays) {
    rk_tls_files *files = begin();
    rk_tls_set *first = rk_tls_files_get(files);
    copy(other_cert, cert_path);
    for (int i = 0; i < 5; i++)
        rk_tls_files_look(files, &no_log);
    counted(files, 0, 1);
    rk_tls_set *still = rk_tls_files_get(files);
    ck_assert_ptr_eq(first, still);
    ck_assert_int_eq(unlink(key_path), 0); /* another fault is another count */
    for (int i = 0; i < 5; i++)
        rk_tls_files_look(files, &no_log);
    counted(files, 0, 2);
    copy(other_key, key_path);
    rk_tls_files_look(files, &no_log);
    counted(files, 1, 2);
    rk_tls_set_unref(first);
    rk_tls_set_unref(still);
    end(files);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        files_that_stay_are_not_taken_again,
        a_pair_is_taken_when_both_halves_are_there,
        a_half_that_stays_is_counted_once_and_the_old_pair_stays,
    };
    return RUN_SUITE("tls files", tests);
}
