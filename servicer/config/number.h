/* Decimal numbers, the same in every locale: an engine may have called setlocale, and "0,5" is not ours.
 * Any thread: nothing is kept. */
#ifndef RK_CONFIG_NUMBER_H
#define RK_CONFIG_NUMBER_H

#include <stddef.h>
#include <stdint.h>

/* Sign and decimal digits, nothing else. 0; -EINVAL: no whole number; -ERANGE: one beyond int64_t. */
int rk_parse_whole(const char *text, int64_t *number);
/* Digits with an optional sign, point and exponent; no hexadecimal, no "nan", no "inf". 0; -EINVAL: no
 * number; -ERANGE: one beyond double; -ENOMEM. */
int rk_parse_number(const char *text, double *number);
/* The shortest decimal that reads back as the same number. 0 or -ENOMEM. */
int rk_format_number(double number, char *out, size_t out_bytes);

#endif
