/* See tls_files.h. A change is seen by what stat(2) says of the file a path leads to, links followed, so that
 * a file written in place, one renamed over it and a folder's link that is turned all count. What was just
 * written may be written again within the clock's grain, unseen by stat(2): files that have changed are read
 * once more at the next look. */
#include "rpc/tls_files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define PEM_MAX ((size_t)1024 * 1024)

/* What tells one state of a file from another; all 0: it is not there. */
typedef struct rk_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
    struct timespec changed;
} rk_stamp;

struct rk_tls_files {
    rk_tls_paths paths;
    pthread_mutex_t lock;
    rk_tls_set *set; /* under lock */
    _Atomic uint64_t generation;
    _Atomic uint64_t reloads;
    _Atomic uint64_t failures;
    /* ---- of the thread that looks ---- */
    rk_stamp seen[RK_TLS_PATHS];
    bool fresh; /* they had changed at the last look */
};

/* ---- reading ---- */

static char *refuse(char error[RK_ERROR_MAX], const rk_tls_path *from, const char *why) {
    (void)snprintf(error, RK_ERROR_MAX, "%s is %.200s, %s", from->key, from->path, why);
    return NULL;
}

static char *read_pem(const rk_tls_path *from, char error[RK_ERROR_MAX]) {
    int fd = open(from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO has no writer to wait for */
    if (fd < 0)
        return refuse(error, from, "which cannot be opened; is it there, and readable?");
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
    return refuse(error, from, "which is no PEM file (-----BEGIN …) of at most 1 MiB");
}

/* No passphrase is asked for on a terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *user) {
    (void)buffer;
    (void)size;
    (void)writing;
    (void)user;
    return 0;
}

/* ---- whether they can be used ---- */

/* What OpenSSL had against it, for the end of a message. */
static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "no reason is given";
}

/* Whether the bytes end where a certificate could have begun: no rubbish, no half of one. */
static bool at_end(void) {
    unsigned long last = ERR_peek_last_error();
    return ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
}

/* The chain and the key into a context, by the same rules as gRPC core will put them into its own. */
static bool use_pair(SSL_CTX *context, BIO *cert, BIO *key, int64_t *expires_seconds) {
    X509 *leaf = PEM_read_bio_X509(cert, NULL, no_passphrase, NULL);
    bool good = leaf && SSL_CTX_use_certificate(context, leaf) == 1;
    struct tm expires;
    if (good && ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &expires) == 1)
        *expires_seconds = (int64_t)timegm(&expires);
    X509_free(leaf);
    while (good) {
        X509 *above = PEM_read_bio_X509(cert, NULL, no_passphrase, NULL);
        if (!above)
            break;
        if (SSL_CTX_add_extra_chain_cert(context, above) != 1) { /* which takes it over */
            X509_free(above);
            good = false;
        }
    }
    if (!good || !at_end())
        return false;
    ERR_clear_error();
    EVP_PKEY *private = PEM_read_bio_PrivateKey(key, NULL, no_passphrase, NULL);
    good =
        private && SSL_CTX_use_PrivateKey(context, private) == 1 && SSL_CTX_check_private_key(context) == 1;
    EVP_PKEY_free(private);
    return good;
}

static bool pair_fits(rk_tls_set *set) {
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    BIO *cert = BIO_new_mem_buf(set->text[RK_TLS_CERT], -1);
    BIO *key = BIO_new_mem_buf(set->text[RK_TLS_KEY], -1);
    bool fits = context && cert && key && use_pair(context, cert, key, &set->expires_seconds);
    BIO_free(key);
    BIO_free(cert);
    SSL_CTX_free(context);
    return fits;
}

static bool ca_is_whole(const char *text) {
    BIO *bio = BIO_new_mem_buf(text, -1);
    unsigned count = 0;
    X509 *one;
    while (bio && (one = PEM_read_bio_X509_AUX(bio, NULL, no_passphrase, NULL)) != NULL) {
        X509_free(one);
        count++;
    }
    bool whole = count > 0 && at_end();
    BIO_free(bio);
    return whole;
}

/* 0, or -EINVAL with a line. */
static int check(const rk_tls_paths *paths, rk_tls_set *set, char error[RK_ERROR_MAX]) {
    const rk_tls_path *ca = &paths->path[RK_TLS_CA];
    int result = 0;
    ERR_clear_error();
    if (set->text[RK_TLS_CERT] && set->text[RK_TLS_KEY] && !pair_fits(set)) {
        (void)snprintf(error, RK_ERROR_MAX,
                       "%s and %s do not belong together, or one of them is damaged (%s)",
                       paths->path[RK_TLS_CERT].key, paths->path[RK_TLS_KEY].key, reason());
        result = -EINVAL;
    } else if (set->text[RK_TLS_CA] && !ca_is_whole(set->text[RK_TLS_CA])) {
        (void)snprintf(error, RK_ERROR_MAX, "%s is %.200s, which is damaged, or holds no certificate (%s)",
                       ca->key, ca->path, reason());
        result = -EINVAL;
    }
    ERR_clear_error();
    return result;
}

void rk_tls_set_unref(rk_tls_set *set) {
    if (!set || atomic_fetch_sub(&set->refs, 1) != 1)
        return;
    for (unsigned i = 0; i < RK_TLS_PATHS; i++) {
        if (i == RK_TLS_KEY && set->text[i])
            explicit_bzero(set->text[i], strlen(set->text[i]));
        free(set->text[i]);
    }
    free(set);
}

/* With one reference; NULL with a line. */
static rk_tls_set *load(const rk_tls_paths *paths, char error[RK_ERROR_MAX]) {
    (void)snprintf(error, RK_ERROR_MAX, "out of memory while certificates were read");
    rk_tls_set *set = calloc(1, sizeof *set);
    if (!set)
        return NULL;
    atomic_init(&set->refs, 1);
    set->generation = 1;
    int result = 0;
    for (unsigned i = 0; result == 0 && i < RK_TLS_PATHS; i++) {
        if (paths->path[i].path[0] == '\0')
            continue;
        set->text[i] = read_pem(&paths->path[i], error);
        result = set->text[i] ? 0 : -EINVAL;
    }
    if (result == 0)
        result = check(paths, set, error);
    if (result == 0)
        return set;
    rk_tls_set_unref(set);
    return NULL;
}

/* ---- looking ---- */

static void take_stamps(const rk_tls_paths *paths, rk_stamp stamps[RK_TLS_PATHS]) {
    for (unsigned i = 0; i < RK_TLS_PATHS; i++) {
        struct stat file;
        stamps[i] = (rk_stamp){0};
        if (paths->path[i].path[0] && stat(paths->path[i].path, &file) == 0)
            stamps[i] = (rk_stamp){file.st_dev, file.st_ino, file.st_size, file.st_mtim, file.st_ctim};
    }
}

static bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_stamps(const rk_stamp a[RK_TLS_PATHS], const rk_stamp b[RK_TLS_PATHS]) {
    for (unsigned i = 0; i < RK_TLS_PATHS; i++) {
        if (a[i].device != b[i].device || a[i].inode != b[i].inode || a[i].size != b[i].size ||
            !same_time(&a[i].modified, &b[i].modified) || !same_time(&a[i].changed, &b[i].changed))
            return false;
    }
    return true;
}

static bool same_texts(const rk_tls_set *a, const rk_tls_set *b) {
    for (unsigned i = 0; i < RK_TLS_PATHS; i++) {
        if (a->text[i] && strcmp(a->text[i], b->text[i]) != 0)
            return false;
    }
    return true;
}

/* Takes the set over. */
static void replace(rk_tls_files *files, rk_tls_set *set, const rk_log *log) {
    (void)pthread_mutex_lock(&files->lock);
    rk_tls_set *old = files->set;
    set->generation = old->generation + 1;
    files->set = set;
    atomic_store(&files->generation, set->generation);
    (void)pthread_mutex_unlock(&files->lock);
    rk_tls_set_unref(old);
    atomic_fetch_add(&files->reloads, 1);
    rk_log_event(log, RK_LOG_INFO, "changed TLS files are in use for new connections",
                 RK_FIELD_TEXT("files", files->paths.name), RK_FIELD_INT("generation", set->generation));
}

void rk_tls_files_look(rk_tls_files *files, const rk_log *log) {
    rk_stamp now[RK_TLS_PATHS];
    take_stamps(&files->paths, now);
    bool still = same_stamps(now, files->seen);
    if (still && !files->fresh)
        return;
    memcpy(files->seen, now, sizeof now);
    files->fresh = !still;
    char why[RK_ERROR_MAX];
    rk_tls_set *set = load(&files->paths, why);
    if (set && same_texts(files->set, set)) {
        rk_tls_set_unref(set);
    } else if (set) {
        replace(files, set, log);
    } else if (still) {
        atomic_fetch_add(&files->failures, 1);
        rk_log_event(log, RK_LOG_WARNING, "changed TLS files cannot be used, the last good ones stay in use",
                     RK_FIELD_TEXT("files", files->paths.name), RK_FIELD_TEXT("why", why));
    }
}

/* ---- the rest ---- */

rk_tls_files *rk_tls_files_new(const rk_tls_paths *paths, char error[RK_ERROR_MAX]) {
    rk_tls_files *files = calloc(1, sizeof *files);
    if (!files) {
        (void)snprintf(error, RK_ERROR_MAX, "out of memory while certificates were read");
        return NULL;
    }
    files->paths = *paths;
    take_stamps(paths, files->seen);
    files->fresh = true; /* what changes while they are read is seen at the first look */
    files->set = load(paths, error);
    if (!files->set) {
        free(files);
        return NULL;
    }
    (void)pthread_mutex_init(&files->lock, NULL);
    atomic_init(&files->generation, files->set->generation);
    return files;
}

void rk_tls_files_free(rk_tls_files *files) {
    if (!files)
        return;
    rk_tls_set_unref(files->set);
    (void)pthread_mutex_destroy(&files->lock);
    free(files);
}

rk_tls_set *rk_tls_files_get(rk_tls_files *files) {
    (void)pthread_mutex_lock(&files->lock);
    rk_tls_set *set = files->set;
    atomic_fetch_add(&set->refs, 1);
    (void)pthread_mutex_unlock(&files->lock);
    return set;
}

uint64_t rk_tls_files_generation(rk_tls_files *files) {
    return atomic_load(&files->generation);
}

void rk_tls_files_read(rk_tls_files *files, rk_tls_counts *counts) {
    rk_tls_set *set = rk_tls_files_get(files);
    *counts =
        (rk_tls_counts){atomic_load(&files->reloads), atomic_load(&files->failures), set->expires_seconds};
    rk_tls_set_unref(set);
}
