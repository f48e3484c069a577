/* Log lines. A line is made in memory and written with one write(2), so that lines of several threads do not
 * mix. Texts may come from clients and engines: they are made valid UTF-8, quoted where needed and cut at
 * TEXT_MAX bytes. Any thread. */
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"

#define TEXT_MAX 1024u

static const char *const level_names[] = {"debug", "info", "warning", "error"};

int rk_log_level_of(const char *word) {
    for (size_t i = 0; word && i < RK_COUNT(level_names); i++) {
        if (strcmp(word, level_names[i]) == 0)
            return (int)i;
    }
    return -1;
}

static size_t shown_bytes(const char *text) {
    size_t bytes = strnlen(text, TEXT_MAX + 4); /* the character at the limit is seen whole */
    if (bytes <= TEXT_MAX)
        return bytes;
    size_t at = 0;
    for (;;) { /* cut at a whole character */
        size_t length = rk_utf8_char(text + at, bytes - at);
        if (at + (length ? length : 1) > TEXT_MAX)
            return at;
        at += length ? length : 1;
    }
}

/* A JSON string, quotes included. */
static void put_quoted(rk_buf *out, const char *text) {
    size_t bytes = shown_bytes(text);
    rk_buf_append(out, "\"", 1);
    for (size_t at = 0; at < bytes;) {
        size_t length = rk_utf8_char(text + at, bytes - at);
        unsigned char first = (unsigned char)text[at];
        if (length == 0)
            rk_buf_append(out, "?", 1);
        else if (first == '"' || first == '\\')
            rk_buf_printf(out, "\\%c", first);
        else if (first == '\n')
            rk_buf_append(out, "\\n", 2);
        else if (first < 0x20 || first == 0x7F)
            rk_buf_printf(out, "\\u%04x", first);
        else
            rk_buf_append(out, text + at, length);
        at += length ? length : 1;
    }
    rk_buf_append(out, "\"", 1);
}

static bool needs_quotes(const char *text) {
    if (!*text || strlen(text) > TEXT_MAX || !rk_utf8_valid(text, strlen(text)))
        return true;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at <= 0x20 || *at == 0x7F || *at == '"' || *at == '\\' || *at == '=')
            return true;
    }
    return false;
}

static void put_time(rk_buf *out) {
    struct timespec now = {0, 0};
    struct tm parts;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (!gmtime_r(&now.tv_sec, &parts))
        memset(&parts, 0, sizeof parts);
    rk_buf_printf(out, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900, parts.tm_mon + 1,
                  parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, (int)(now.tv_nsec / 1000000));
}

static void put_json(rk_buf *out, const rk_log *log, rk_log_level level, const char *message,
                     const rk_field *fields, unsigned count) {
    rk_buf_printf(out, "{\"time\":\"");
    put_time(out);
    rk_buf_printf(out, "\",\"level\":\"%s\",\"message\":", level_names[level]);
    put_quoted(out, message);
    if (log->name) {
        rk_buf_printf(out, ",\"name\":");
        put_quoted(out, log->name);
    }
    for (unsigned i = 0; i < count; i++) {
        if (!fields[i].key)
            continue;
        rk_buf_append(out, ",", 1);
        put_quoted(out, fields[i].key);
        rk_buf_append(out, ":", 1);
        if (fields[i].text)
            put_quoted(out, fields[i].text);
        else
            rk_buf_printf(out, "%lld", (long long)fields[i].number);
    }
    rk_buf_append(out, "}\n", 2);
}

static void put_text(rk_buf *out, const rk_log *log, rk_log_level level, const char *message,
                     const rk_field *fields, unsigned count) {
    char clean[TEXT_MAX + 1];
    put_time(out);
    rk_buf_printf(out, " %s roomkeeper", level_names[level]);
    if (log->name)
        rk_buf_printf(out, "[%s]", log->name);
    (void)rk_utf8_clean(clean, sizeof clean, message, strlen(message));
    rk_buf_printf(out, ": %s", clean);
    for (unsigned i = 0; i < count; i++) {
        if (!fields[i].key)
            continue;
        rk_buf_printf(out, " %s=", fields[i].key);
        if (!fields[i].text)
            rk_buf_printf(out, "%lld", (long long)fields[i].number);
        else if (needs_quotes(fields[i].text))
            put_quoted(out, fields[i].text);
        else
            rk_buf_append(out, fields[i].text, strlen(fields[i].text));
    }
    rk_buf_append(out, "\n", 1);
}

void rk_log_write(const rk_log *log, rk_log_level level, const char *message, const rk_field *fields,
                  unsigned count) {
    static const char no_memory[] = "error roomkeeper: a log line was lost, memory is out\n";
    rk_buf line = RK_BUF_INIT;
    if (log->fd < 0 || level < log->level)
        return;
    if (log->json)
        put_json(&line, log, level, message, fields, count);
    else
        put_text(&line, log, level, message, fields, count);
    const void *bytes = line.failed ? (const void *)no_memory : line.data;
    size_t size = line.failed ? sizeof no_memory - 1 : line.size;
    while (write(log->fd, bytes, size) < 0 && errno == EINTR) {
    }
    rk_buf_free(&line);
}
