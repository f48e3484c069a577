/* The bytes of a configuration file: read with a bound, and UTF-8 or refused. Any thread: nothing is kept. */
#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "config/internal.h"

#define FILE_MAX_BYTES ((size_t)1024 * 1024)
#define PATH_TAIL_BYTES (RK_PATH_SHOWN_MAX - 4) /* beside "..." and the NUL */

/* The end of a long path says more than its beginning. */
void rk_file_show_path(const char *path, char out[RK_PATH_SHOWN_MAX]) {
    size_t bytes = strlen(path);
    size_t skip = bytes > PATH_TAIL_BYTES ? bytes - PATH_TAIL_BYTES : 0;
    while (skip && skip < bytes && ((unsigned char)path[skip] & 0xC0u) == 0x80u)
        skip++;
    size_t dots = skip ? 3 : 0;
    memcpy(out, "...", dots);
    (void)rk_utf8_clean(out + dots, RK_PATH_SHOWN_MAX - dots, path + skip, bytes - skip);
}

static int cannot_read(const char *shown, int failure, char *error) {
    char reason[128];
    const char *text = strerror_r(failure, reason, sizeof reason);
    rk_config_say(error, "%s: cannot read it: %s; check the path and its permissions", shown, text);
    return -failure;
}

static int check_kind(int fd, const char *shown, char *error) {
    struct stat info;
    if (fstat(fd, &info) < 0)
        return cannot_read(shown, errno, error);
    if (S_ISDIR(info.st_mode)) {
        rk_config_say(error, "%s: it is a directory; give a YAML file", shown);
        return -EISDIR;
    }
    if (!S_ISREG(info.st_mode)) {
        rk_config_say(error, "%s: it is not a regular file; give a YAML file", shown);
        return -EINVAL;
    }
    return 0;
}

/* Reads until the end: the size that stat tells may be out of date. */
static int read_all(int fd, const char *shown, rk_buf *bytes, char *error) {
    uint8_t piece[16384];
    for (;;) {
        ssize_t got = read(fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cannot_read(shown, errno, error);
        if (got == 0)
            return 0;
        rk_buf_append(bytes, piece, (size_t)got);
        if (bytes->failed) {
            rk_config_say(error, "%s: memory is out", shown);
            return -ENOMEM;
        }
        if (bytes->size > FILE_MAX_BYTES) {
            rk_config_say(error, "%s: it has more than %zu bytes, the limit; is it the right file?", shown,
                          FILE_MAX_BYTES);
            return -EFBIG;
        }
    }
}

static int open_and_read(const char *path, const char *shown, rk_buf *bytes, char *error) {
    /* O_NONBLOCK: a pipe without a writer is refused instead of waited for. */
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return cannot_read(shown, errno, error);
    int rc = check_kind(fd, shown, error);
    return rc < 0 ? rc : read_all(fd, shown, bytes, error);
}

size_t rk_file_line_of(const rk_buf *bytes, size_t offset) {
    size_t line = 1;
    for (size_t i = 0; i < offset && i < bytes->size; i++)
        line += bytes->data[i] == '\n';
    return line;
}

static int check_bytes(const rk_buf *bytes, const char *shown, char *error) {
    for (size_t at = 0; at < bytes->size;) {
        size_t length = rk_utf8_char((const char *)bytes->data + at, bytes->size - at);
        if (length == 0) {
            rk_config_say(error, "%s:%zu: byte 0x%02x is not UTF-8; save the file as UTF-8", shown,
                          rk_file_line_of(bytes, at), bytes->data[at]);
            return -EINVAL;
        }
        at += length;
    }
    return 0;
}

int rk_file_read(const char *path, const char *shown, rk_buf *bytes, char error[RK_CONFIG_ERROR_MAX]) {
    int rc = open_and_read(path, shown, bytes, error);
    return rc < 0 ? rc : check_bytes(bytes, shown, error);
}
