/* What the files of config/ share: the typed value of one key, and how errors are worded.
 *
 * Nothing here keeps state; a config has one owner at a time. Every error is one line of at most
 * RK_CONFIG_ERROR_MAX bytes: whatever a file or a command line holds is cleaned and cut before it is shown.
 */
#ifndef RK_CONFIG_INTERNAL_H
#define RK_CONFIG_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roomkeeper/config.h"

/* One parsed value; only the member of the key's type is set. */
typedef struct rk_key_value {
    bool boolean;
    int64_t integer;
    double number;
    char *text; /* malloc'd, the receiver's */
} rk_key_value;

/* How much of a text an error shows, in bytes with the NUL. */
#define RK_SHOWN_MAX 72
/* Longest text of a number: 17 digits, sign, point, exponent. */
#define RK_NUMBER_TEXT_MAX 32
#define RK_WANTS_MAX 200

#define RK_KEY_ONE(type, name, def, min, max, choices, unit, help) +1
enum { RK_KEY_TOTAL = 0 RK_CONFIG_KEYS(RK_KEY_ONE) };

/* ---- keys.c ---- */

/* The place of a key in rk_config_keys, or -1. */
int rk_key_find(const char *name);
/* Takes over `value->text`. */
void rk_key_store(rk_config *config, size_t key, const rk_key_value *value);
/* 0 or -ENOMEM. */
int rk_key_to_text(const rk_key *key, const rk_key_value *value, char **text);

/* ---- parse.c ---- */

/* Text to value, within the key's limits. 0, -ENOMEM, or -EINVAL, the last two with a line in `error`.
 * `where` is "--room-…" for a flag, else a place such as "rooms.yaml:3", after which the key is named. */
int rk_key_parse(const rk_key *key, const char *text, rk_key_value *value, const char *where,
                 char error[RK_CONFIG_ERROR_MAX]);
/* "a whole number from 0 to 64", "one of text, json", … */
void rk_key_wants(const rk_key *key, char out[RK_WANTS_MAX]);
bool rk_where_is_flag(const char *where);

/* ---- say.c ---- */

/* Writes one clean line, cut to fit. */
void rk_config_say(char error[RK_CONFIG_ERROR_MAX], const char *format, ...) RK_PRINTF(2, 3);
/* `text` for showing: cleaned, the end cut off when long. Returns `out`. */
const char *rk_shown(char out[RK_SHOWN_MAX], const char *text);

#endif
