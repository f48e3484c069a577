/* Log lines: one line an event, text or JSON, to standard error. Any thread.
 *
 * A log belongs to a servicer (no static state). Fields come as pairs of key and text after the message. */
#ifndef RK_BASE_LOG_H
#define RK_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "roomkeeper/export.h"

typedef enum rk_log_level { RK_LOG_DEBUG, RK_LOG_INFO, RK_LOG_WARNING, RK_LOG_ERROR } rk_log_level;

typedef struct rk_log {
    rk_log_level level;
    bool json;
    int fd;           /* where lines go; -1: nowhere */
    const char *name; /* who speaks, e.g. the listening address; may be NULL; static or outlives the log */
} rk_log;

/* "info" -> RK_LOG_INFO; -1 for a word that is no level. */
int rk_log_level_of(const char *word);

typedef struct rk_field {
    const char *key;  /* static; NULL: the field is left out */
    const char *text; /* NULL: `number` is meant */
    int64_t number;
} rk_field;

static inline rk_field rk_field_text(const char *key, const char *text) {
    return (rk_field){key, text ? text : "", 0};
}

#define RK_FIELD_TEXT(key, value) rk_field_text((key), (value))
/* Left out where the text is empty. */
#define RK_FIELD_IF(key, value) rk_field_text((value)[0] ? (key) : NULL, (value))
#define RK_FIELD_INT(key, value) ((rk_field){(key), NULL, (int64_t)(value)})

/* rk_log_event(log, RK_LOG_INFO, "room ended", RK_FIELD_INT("room", room), …) — one write(2) of one line:
 * "2026-01-02T03:04:05.678Z info roomkeeper: room ended room=12 cause=twin_ended". A text with spaces, quotes
 * or control characters is quoted as in JSON. */
#define rk_log_event(log, lvl, message, ...)                                                                 \
    do {                                                                                                     \
        const rk_log *rk_log_ = (log);                                                                       \
        if (rk_log_ && (lvl) >= rk_log_->level) {                                                            \
            const rk_field rk_fields_[] = {__VA_ARGS__};                                                     \
            rk_log_write(rk_log_, (lvl), (message), rk_fields_, sizeof rk_fields_ / sizeof rk_fields_[0]);   \
        }                                                                                                    \
    } while (0)

void rk_log_write(const rk_log *log, rk_log_level level, const char *message, const rk_field *fields,
                  unsigned count);

#endif
