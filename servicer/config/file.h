/* The bytes of a configuration file, and how its path and lines are named in errors. */
#ifndef RK_CONFIG_FILE_H
#define RK_CONFIG_FILE_H

#include <stddef.h>

#include "base/buf.h"
#include "roomkeeper/config.h"

#define RK_PATH_SHOWN_MAX 164 /* bytes with the NUL */

/* The path for showing: cleaned, its beginning cut off when long. */
void rk_file_show_path(const char *path, char out[RK_PATH_SHOWN_MAX]);
/* The whole of a regular file of at most 1 MiB, checked to be UTF-8. 0, or -errno with a line in `error` that
 * opens with `shown`. `bytes` is the caller's to free, also after an error. */
int rk_file_read(const char *path, const char *shown, rk_buf *bytes, char error[RK_CONFIG_ERROR_MAX]);
/* The line, from 1, of the byte at `offset`. */
size_t rk_file_line_of(const rk_buf *bytes, size_t offset);

#endif
