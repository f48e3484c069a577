/* How configuration errors are put into one line. Any thread: nothing is kept. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "config/internal.h"

void rk_config_say(char error[RK_CONFIG_ERROR_MAX], const char *format, ...) {
    char line[2 * RK_CONFIG_ERROR_MAX];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length < 0)
        line[0] = '\0';
    (void)rk_utf8_clean(error, RK_CONFIG_ERROR_MAX, line, strlen(line));
}

const char *rk_shown(char out[RK_SHOWN_MAX], const char *text) {
    static const char more[] = "...";
    size_t bytes = strnlen(text, RK_SHOWN_MAX);
    if (bytes < RK_SHOWN_MAX) {
        (void)rk_utf8_clean(out, RK_SHOWN_MAX, text, bytes);
        return out;
    }
    size_t room = RK_SHOWN_MAX - (sizeof more - 1);
    size_t cut = 0;
    for (size_t next = 0; next < room; cut = next < room ? next : cut) { /* at a whole character */
        size_t whole = rk_utf8_char(text + next, bytes - next);
        next += whole ? whole : 1;
    }
    size_t length = rk_utf8_clean(out, room, text, cut);
    memcpy(out + length, more, sizeof more);
    return out;
}
