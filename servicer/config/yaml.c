/* A configuration file: one YAML mapping of keys to plain values, nothing else of YAML.
 *
 * The file is read by events, never built into a tree, and the first event that does not belong is an error.
 * So nested collections, aliases (and the bombs made of them), tags and further documents cost nothing. The
 * values go into a copy of the config, which replaces it when the whole file is good. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "config/file.h"
#include "config/internal.h"

#define HOW "write one \"key: value\" a line"
#define WHERE_MAX (RK_PATH_SHOWN_MAX + 24)

typedef struct reader {
    yaml_parser_t parser;
    const rk_buf *bytes;        /* the file */
    const char *path;           /* as errors show it */
    rk_config *config;          /* the copy that is filled */
    size_t lines[RK_KEY_TOTAL]; /* where each key was given; 0: not yet */
    char *error;                /* RK_CONFIG_ERROR_MAX bytes */
} reader;

static int RK_PRINTF(3, 4) bad(const reader *r, const yaml_mark_t *mark, const char *format, ...) {
    char text[RK_CONFIG_ERROR_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rk_config_say(r->error, "%s:%zu: %s", r->path, mark->line + 1, text);
    return -EINVAL;
}

static int parser_failed(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "no reason given";
    if (p->error == YAML_MEMORY_ERROR) {
        rk_config_say(r->error, "%s: memory is out", r->path);
        return -ENOMEM;
    }
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_READER_ERROR) /* it knows the offset only */
        line = rk_file_line_of(r->bytes, p->problem_offset);
    rk_config_say(r->error, "%s:%zu: it is not YAML: %s; " HOW, r->path, line, problem);
    return -EINVAL;
}

static int next(reader *r, yaml_event_t *event) {
    return yaml_parser_parse(&r->parser, event) ? 0 : parser_failed(r);
}

static const char *kind_of(const yaml_event_t *event) {
    return event->type == YAML_SEQUENCE_START_EVENT ? "a list" : "a mapping";
}

static const char *anchor_of(const yaml_event_t *event) {
    const yaml_char_t *anchor = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        anchor = event->data.scalar.anchor;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = event->data.sequence_start.anchor;
    else if (event->type == YAML_MAPPING_START_EVENT)
        anchor = event->data.mapping_start.anchor;
    return (const char *)anchor;
}

static const char *tag_of(const yaml_event_t *event) {
    const yaml_char_t *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        tag = event->data.scalar.tag;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        tag = event->data.sequence_start.tag;
    else if (event->type == YAML_MAPPING_START_EVENT)
        tag = event->data.mapping_start.tag;
    return (const char *)tag;
}

/* Of all that YAML can say in the place of a value, only the plain thing. */
static int check_plain(const reader *r, const yaml_event_t *event) {
    char shown[RK_SHOWN_MAX];
    if (event->type == YAML_ALIAS_EVENT)
        return bad(r, &event->start_mark, "aliases (\"*%s\") are not taken; write the value out",
                   rk_shown(shown, (const char *)event->data.alias.anchor));
    if (anchor_of(event))
        return bad(r, &event->start_mark, "anchors (\"&%s\") are not taken; leave it out",
                   rk_shown(shown, anchor_of(event)));
    if (tag_of(event))
        return bad(r, &event->start_mark, "tags (\"%s\") are not taken; write the plain value",
                   rk_shown(shown, tag_of(event)));
    return 0;
}

static bool has_nul(const yaml_event_t *event) {
    return strlen((const char *)event->data.scalar.value) != event->data.scalar.length;
}

/* The key's place in the table, or -errno. */
static int take_key(reader *r, const yaml_event_t *event) {
    if (event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT)
        return bad(r, &event->start_mark, "%s is in the place of a key; " HOW, kind_of(event));
    int rc = check_plain(r, event);
    if (rc < 0)
        return rc;
    if (has_nul(event))
        return bad(r, &event->start_mark, "a key holds a NUL character; " HOW);
    const char *name = (const char *)event->data.scalar.value;
    int key = rk_key_find(name);
    size_t line = event->start_mark.line + 1;
    if (key < 0) {
        char where[WHERE_MAX];
        (void)snprintf(where, sizeof where, "%s:%zu", r->path, line);
        return rk_config_set(r->config, name, "", where, r->error); /* it words the guess */
    }
    if (r->lines[key])
        return bad(r, &event->start_mark, "%s is given twice, first in line %zu; keep one", name,
                   r->lines[key]);
    r->lines[key] = line;
    return key;
}

static int take_value(reader *r, size_t key, const yaml_event_t *event) {
    char where[WHERE_MAX], wants[RK_WANTS_MAX];
    size_t count;
    const rk_key *row = &rk_config_keys(&count)[key];
    rk_key_wants(row, wants);
    int rc = check_plain(r, event);
    if (rc < 0)
        return rc;
    if (event->type != YAML_SCALAR_EVENT)
        return bad(r, &event->start_mark, "%s is %s; give %s", row->name, kind_of(event), wants);
    if (has_nul(event))
        return bad(r, &event->start_mark, "%s holds a NUL character; give %s", row->name, wants);
    (void)snprintf(where, sizeof where, "%s:%zu", r->path, event->start_mark.line + 1);
    return rk_config_set(r->config, row->name, (const char *)event->data.scalar.value, where, r->error);
}

static int read_mapping(reader *r) {
    int key = -1; /* whose value comes next; -1: a key comes next */
    for (;;) {
        yaml_event_t event;
        int rc = next(r, &event);
        if (rc < 0)
            return rc;
        bool over = event.type == YAML_MAPPING_END_EVENT;
        if (!over && key < 0)
            rc = key = take_key(r, &event);
        else if (!over) {
            rc = take_value(r, (size_t)key, &event);
            key = -1;
        }
        yaml_event_delete(&event);
        if (rc < 0 || over)
            return rc < 0 ? rc : 0;
    }
}

static int wrong_top(const reader *r, const yaml_event_t *event) {
    if (event->type == YAML_STREAM_END_EVENT ||
        (event->type == YAML_SCALAR_EVENT && event->data.scalar.length == 0))
        return bad(r, &event->start_mark, "the file says nothing; " HOW ", or do without the file");
    if (event->type == YAML_SCALAR_EVENT)
        return bad(r, &event->start_mark, "the file is a single value; " HOW);
    if (event->type == YAML_SEQUENCE_START_EVENT)
        return bad(r, &event->start_mark, "the file is a list; " HOW);
    return check_plain(r, event);
}

/* Up to the top mapping's first key. */
static int read_start(reader *r) {
    for (;;) {
        yaml_event_t event;
        int rc = next(r, &event);
        if (rc < 0)
            return rc;
        yaml_event_type_t type = event.type;
        if (type == YAML_MAPPING_START_EVENT)
            rc = check_plain(r, &event);
        else if (type != YAML_STREAM_START_EVENT && type != YAML_DOCUMENT_START_EVENT)
            rc = wrong_top(r, &event);
        yaml_event_delete(&event);
        if (rc < 0 || type == YAML_MAPPING_START_EVENT)
            return rc;
    }
}

static int read_end(reader *r) {
    for (;;) {
        yaml_event_t event;
        int rc = next(r, &event);
        if (rc < 0)
            return rc;
        yaml_event_type_t type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT)
            rc = bad(r, &event.start_mark, "a second document begins; keep one");
        yaml_event_delete(&event);
        if (rc < 0 || type == YAML_STREAM_END_EVENT)
            return rc;
    }
}

static int parse(rk_config *config, const char *shown, const rk_buf *bytes, char *error) {
    reader r = {.bytes = bytes, .path = shown, .config = config, .error = error};
    if (!yaml_parser_initialize(&r.parser)) {
        rk_config_say(error, "%s: memory is out", shown);
        return -ENOMEM;
    }
    yaml_parser_set_input_string(&r.parser, bytes->data ? bytes->data : (const uint8_t *)"", bytes->size);
    int rc = read_start(&r);
    if (rc == 0)
        rc = read_mapping(&r);
    if (rc == 0)
        rc = read_end(&r);
    yaml_parser_delete(&r.parser);
    return rc;
}

/* Into a copy, so that a file with an error in its last line changes nothing. */
static int apply(rk_config *config, const char *shown, const rk_buf *bytes, char *error) {
    rk_config copy;
    int rc = rk_config_copy(&copy, config);
    if (rc < 0) {
        rk_config_say(error, "%s: memory is out", shown);
        return rc;
    }
    rc = parse(&copy, shown, bytes, error);
    rk_config old = *config;
    if (rc == 0)
        *config = copy;
    rk_config_free(rc == 0 ? &old : &copy);
    return rc;
}

int rk_config_load(rk_config *config, const char *path, char error[RK_CONFIG_ERROR_MAX]) {
    char shown[RK_PATH_SHOWN_MAX];
    rk_buf bytes = RK_BUF_INIT;
    error[0] = '\0';
    rk_file_show_path(path, shown);
    int rc = rk_file_read(path, shown, &bytes, error);
    if (rc == 0)
        rc = apply(config, shown, &bytes, error);
    rk_buf_free(&bytes);
    return rc;
}
