/* UTF-8, strict: no overlong forms, no surrogates, at most U+10FFFF. Any thread: nothing is kept. */
#ifndef RK_BASE_UTF8_H
#define RK_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

bool rk_utf8_valid(const char *text, size_t bytes);
/* Bytes of the whole character that `text` begins with, 1 to 4; 0 when there is none. */
size_t rk_utf8_char(const char *text, size_t bytes);
/* Copies into `out` (size `out_size`, NUL-terminated), each invalid byte as '?', control characters as
 * ' ', cut at a whole character. Returns the length written. */
size_t rk_utf8_clean(char *out, size_t out_size, const char *text, size_t bytes);

#endif
