/* A segment of shared memory that a client on this host hands over by its name.
 *
 * It is opened and its name removed in one go, so that from then on it is an open file and nothing else: it
 * is gone when that is closed, whatever becomes of the request, the engine or this process. */
#ifndef RK_BASE_SEGMENT_H
#define RK_BASE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RK_SEGMENT_FOLDER "/dev/shm"
#define RK_SEGMENT_NAME_MAX 255 /* bytes */

/* `folder`/`name`, a plain name. The descriptor, or -errno:
 *   -ENOENT  there is none, or somebody else was faster to take it
 *   -ELOOP   a symbolic link: not followed, left there
 *   -EINVAL  no regular file: left there
 *   -EPERM   another user's, who alone could remove it: left there
 *   -ENODATA it has fewer than `needed` bytes; `*size` says how many. Removed
 *   -EMFILE  half of the descriptors that this process may have are taken. Removed
 * `remove` false: its name stays, for those who look into a fault. Any thread. */
int rk_segment_take(const char *folder, const char *name, uint64_t needed, bool remove, uint64_t *size);

/* All `bytes` from `offset` on; 0, -ENODATA when the segment has become shorter, or another -errno. */
int rk_segment_read(int fd, uint64_t offset, void *to, size_t bytes);

#endif
