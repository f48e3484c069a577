/* See segment.h. Read by pread, never mapped: whoever made the segment may still cut it short, and a mapping
 * would then end the process. */
#include "base/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Descriptors are given out lowest first, so a high one says that many are taken. The other half is for
 * connections and for the engine. */
static bool too_many(int fd) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           (rlim_t)fd >= limit.rlim_cur / 2;
}

static int check(int fd) {
    struct stat file;
    if (fstat(fd, &file) < 0)
        return -errno;
    if (!S_ISREG(file.st_mode))
        return -EINVAL;
    uid_t us = geteuid();
    return us == 0 || file.st_uid == us ? 0 : -EPERM;
}

/* The file is open: may it be taken? Its name goes, if so. */
static int take_open(int fd, const char *path, uint64_t needed, bool remove, uint64_t *size) {
    struct stat file;
    int result = check(fd);
    if (result < 0)
        return result;
    if (remove && unlink(path) < 0)
        return errno == EACCES ? -EPERM : -errno;
    if (fstat(fd, &file) < 0)
        return -errno;
    *size = (uint64_t)file.st_size;
    if (*size < needed)
        return -ENODATA;
    return too_many(fd) ? -EMFILE : 0;
}

int rk_segment_take(const char *folder, const char *name, uint64_t needed, bool remove, uint64_t *size) {
    char path[RK_SEGMENT_NAME_MAX + 64];
    *size = 0;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return -ENAMETOOLONG;
    /* Not blocking: a pipe of that name would wait for a writer. */
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? -EPERM : -errno;
    int result = take_open(fd, path, needed, remove, size);
    if (result == 0)
        return fd;
    (void)close(fd);
    return result;
}

int rk_segment_read(int fd, uint64_t offset, void *to, size_t bytes) {
    char *at = to;
    while (bytes > 0) {
        if (offset > INT64_MAX)
            return -ENODATA;
        ssize_t got = pread(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return 0;
}
