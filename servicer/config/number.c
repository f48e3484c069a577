/* Decimal numbers without the process's locale. The grammar is checked here, the rounding is the C library's,
 * in the "C" locale, which is made for the call: configuration is read once. Any thread. */
#include "config/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *at, size_t *count) {
    *count = 0;
    for (; is_digit(*at); at++)
        ++*count;
    return at;
}

static const char *skip_sign(const char *at) {
    return *at == '-' || *at == '+' ? at + 1 : at;
}

int rk_parse_whole(const char *text, int64_t *number) {
    size_t digits = 0;
    const char *end = skip_digits(skip_sign(text), &digits);
    if (digits == 0 || *end)
        return -EINVAL;
    errno = 0;
    long long parsed = strtoll(text, NULL, 10);
    if (errno == ERANGE)
        return -ERANGE;
    *number = parsed;
    return 0;
}

static bool is_decimal(const char *text) {
    size_t before = 0, after = 0, exponent = 0;
    const char *at = skip_digits(skip_sign(text), &before);
    if (*at == '.')
        at = skip_digits(at + 1, &after);
    if (before + after == 0)
        return false;
    if (*at == 'e' || *at == 'E') {
        at = skip_digits(skip_sign(at + 1), &exponent);
        if (exponent == 0)
            return false;
    }
    return *at == '\0';
}

int rk_parse_number(const char *text, double *number) {
    if (!is_decimal(text))
        return -EINVAL;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return -ENOMEM;
    double parsed = strtod_l(text, NULL, plain);
    freelocale(plain);
    if (!isfinite(parsed))
        return -ERANGE;
    *number = parsed + 0.0; /* -0 becomes 0 */
    return 0;
}

int rk_format_number(double number, char *out, size_t out_bytes) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return -ENOMEM;
    locale_t before = uselocale(plain); /* this thread only */
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(out, out_bytes, "%.*g", digits, number);
        if (!(strtod(out, NULL) < number) && !(strtod(out, NULL) > number))
            break;
    }
    (void)uselocale(before);
    freelocale(plain);
    return 0;
}
