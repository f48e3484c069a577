/* Is this text JSON? Strict (RFC 8259), without building anything. */
#ifndef RK_DIALECTS_JSON_H
#define RK_DIALECTS_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Lists and objects within each other, at most. */
#define RK_JSON_DEPTH_MAX 256

/* NULL when `text`, valid UTF-8, is one JSON value with white space around it. Else what is wrong, a static
 * text, and where, in bytes from the start. Any thread. */
const char *rk_json_fault(const char *text, size_t bytes, size_t *at);

#endif
