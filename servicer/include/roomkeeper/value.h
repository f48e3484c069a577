/* A JSON-like tree, for what a worker says of itself (engine arguments, scheduler report).
 *
 * Made once by the engine's side, handed to the servicer, then only read. The tree owns everything
 * below it; rk_value_free frees all. Not synchronised: one owner at a time. */
#ifndef ROOMKEEPER_VALUE_H
#define ROOMKEEPER_VALUE_H

#include <stdbool.h>
#include <stddef.h>

#include "roomkeeper/export.h"

typedef enum rk_value_kind {
    RK_VALUE_NULL,
    RK_VALUE_BOOL,
    RK_VALUE_NUMBER,
    RK_VALUE_STRING,
    RK_VALUE_LIST,
    RK_VALUE_MAP,
} rk_value_kind;

typedef struct rk_value {
    rk_value_kind kind;
    bool boolean;
    double number;
    char *string; /* NUL-terminated UTF-8; of `string_bytes` bytes */
    size_t string_bytes;
    size_t count; /* items of a list or a map */
    size_t capacity;
    char **keys;             /* map: `count` names */
    struct rk_value **items; /* list, map: `count` values */
} rk_value;

RK_API rk_value *rk_value_null(void); /* all makers: NULL when memory is out */
RK_API rk_value *rk_value_bool(bool boolean);
RK_API rk_value *rk_value_number(double number);
RK_API rk_value *rk_value_string(const char *text, size_t bytes); /* copied; invalid UTF-8 is cleaned */
RK_API rk_value *rk_value_list(void);
RK_API rk_value *rk_value_map(void);
/* Take over `item` also when they fail (it is freed then). 0 or -ENOMEM; -EINVAL on NULL item or wrong kind.
 */
RK_API int rk_value_append(rk_value *list, rk_value *item);
RK_API int rk_value_set(rk_value *map, const char *key, rk_value *item);   /* replaces an equal key */
RK_API const rk_value *rk_value_get(const rk_value *map, const char *key); /* NULL when absent */
RK_API rk_value *rk_value_copy(const rk_value *value);
RK_API void rk_value_free(rk_value *value); /* NULL is fine */

#endif
