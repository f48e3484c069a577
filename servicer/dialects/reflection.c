/* Reflection: one request, one answer, from the descriptor set that the build has embedded.
 *
 * A question that has no answer gets an error response and the stream goes on; only bytes that are no request
 * end it. v1 and v1alpha have the same numbers. Any thread; all data is constant. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "dialects/dialect.h"
#include "dialects/wire_read.h"
#include "dialects/wire_write.h"
#include "rk_proto/descriptors.h"
#include "rk_proto/fields.h"

/* ---- the question ---- */

typedef struct question {
    uint32_t number;      /* the field of the oneof that was set last; 0: none */
    rk_wire text;         /* its value, or the extended type */
    rk_wire host;         /* given back as it came */
    int32_t extension;    /* number of the extension asked for */
    uint32_t unused_bits; /* no field here needs its presence */
} question;

static rk_code read_text(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    question *q = target;
    q->number = field->number;
    return rk_read_text(reader, row->path, field, &q->text);
}

static const rk_row extension_rows[] = {
    [RK_REFLECTION_EXTENSION_REQUEST__CONTAINING_TYPE] = {.kind = RK_ROW_TEXT,
                                                          .path = "file_containing_extension.containing_type",
                                                          .offset = offsetof(question, text)},
    [RK_REFLECTION_EXTENSION_REQUEST__EXTENSION_NUMBER] = {.kind = RK_ROW_INT32,
                                                           .path =
                                                               "file_containing_extension.extension_number",
                                                           .offset = offsetof(question, extension)},
};
static const rk_schema extension_schema = {"file_containing_extension", extension_rows,
                                           RK_COUNT(extension_rows), offsetof(question, unused_bits)};

static rk_code read_extension(rk_reader *reader, const rk_row *row, const rk_wire_field *field,
                              void *target) {
    static const uint8_t nothing[1] = {0};
    question *q = target;
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (q->number != field->number)
        q->text = rk_wire_of(nothing, 0);
    q->number = field->number;
    return rk_read_message(reader, field->bytes, &extension_schema, q);
}

#define TEXT(FIELD, field)                                                                                   \
    [RK_REFLECTION_SERVER_REFLECTION_REQUEST__##                                                             \
        FIELD] = {.kind = RK_ROW_CUSTOM, .path = #field, .read = read_text}

static const rk_row request_rows[] = {
    [RK_REFLECTION_SERVER_REFLECTION_REQUEST__HOST] = {.kind = RK_ROW_TEXT,
                                                       .path = "host",
                                                       .offset = offsetof(question, host)},
    TEXT(FILE_BY_FILENAME, file_by_filename),
    TEXT(FILE_CONTAINING_SYMBOL, file_containing_symbol),
    [RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_CONTAINING_EXTENSION] = {.kind = RK_ROW_CUSTOM,
                                                                            .path =
                                                                                "file_containing_extension",
                                                                            .read = read_extension},
    TEXT(ALL_EXTENSION_NUMBERS_OF_TYPE, all_extension_numbers_of_type),
    TEXT(LIST_SERVICES, list_services),
};
static const rk_schema request_schema = {"ServerReflectionRequest", request_rows, RK_COUNT(request_rows),
                                         offsetof(question, unused_bits)};

/* ---- looking it up ---- */

static bool is_name(rk_wire text, const char *name) {
    size_t size = rk_wire_size(text);
    return strlen(name) == size && memcmp(text.at, name, size) == 0;
}

static int compare_symbol(const void *key, const void *item) {
    const rk_wire *wanted = key;
    const char *name = ((const rk_proto_symbol *)item)->name;
    size_t size = rk_wire_size(*wanted);
    int order = strncmp((const char *)wanted->at, name, size);
    return order ? order : name[size] ? -1 : 0;
}

/* strncmp stops at a NUL, which no symbol has in it. */
static const rk_proto_symbol *find_symbol(rk_wire name) {
    size_t size = rk_wire_size(name);
    if (size && memchr(name.at, '\0', size))
        return NULL;
    return bsearch(&name, rk_proto_symbols, rk_proto_symbol_count, sizeof *rk_proto_symbols, compare_symbol);
}

/* ---- the answer ---- */

static void write_error(rk_buf *out, rk_code code, const char *what, rk_wire name) {
    rk_status line;
    size_t size = name.at ? rk_wire_size(name) : 0;
    (void)rk_status_set(&line, code, "%s: %.*s", what, (int)(size < 256 ? size : 256),
                        size ? (const char *)name.at : "");
    size_t begun = rk_write_begin(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ERROR_RESPONSE);
    rk_write_int(out, RK_REFLECTION_ERROR_RESPONSE__ERROR_CODE, code);
    rk_write_text(out, RK_REFLECTION_ERROR_RESPONSE__ERROR_MESSAGE, line.text);
    rk_write_end(out, begun);
}

/* The file and, so that a client needs no second question, all that it imports. Imported files stand before
 * those that import them, so one walk down finds them. */
static void write_files(rk_buf *out, size_t wanted) {
    bool needed[RK_PROTO_FILE_COUNT] = {false};
    needed[wanted] = true;
    size_t begun = rk_write_begin(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__FILE_DESCRIPTOR_RESPONSE);
    for (size_t i = wanted + 1; i-- > 0;) {
        const rk_proto_file *file = &rk_proto_files[i];
        if (!needed[i])
            continue;
        for (size_t k = 0; k < file->import_count; k++)
            needed[file->imports[k]] = true;
        rk_write_bytes_always(out, RK_REFLECTION_FILE_DESCRIPTOR_RESPONSE__FILE_DESCRIPTOR_PROTO, file->bytes,
                              file->size);
    }
    rk_write_end(out, begun);
}

static void answer_filename(rk_buf *out, rk_wire name) {
    for (size_t i = 0; i < rk_proto_file_count; i++) {
        if (is_name(name, rk_proto_files[i].name)) {
            write_files(out, i);
            return;
        }
    }
    write_error(out, RK_NOT_FOUND, "no such file here; ask for a symbol of a listed service", name);
}

static void answer_symbol(rk_buf *out, rk_wire name) {
    const rk_proto_symbol *symbol = find_symbol(name);
    if (symbol)
        write_files(out, symbol->file);
    else
        write_error(out, RK_NOT_FOUND,
                    "no such symbol here; ask for a full name, as list_services gives them", name);
}

/* Nothing here is extended, so the list of a message that exists is empty. */
static void answer_extensions(rk_buf *out, rk_wire type) {
    const rk_proto_symbol *symbol = find_symbol(type);
    if (!symbol || !symbol->message) {
        write_error(out, RK_NOT_FOUND, "no such message type here", type);
        return;
    }
    size_t begun =
        rk_write_begin(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ALL_EXTENSION_NUMBERS_RESPONSE);
    rk_write_text(out, RK_REFLECTION_EXTENSION_NUMBER_RESPONSE__BASE_TYPE_NAME, symbol->name);
    rk_write_end(out, begun);
}

static void answer_services(rk_buf *out, const char *unlisted) {
    size_t begun = rk_write_begin(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__LIST_SERVICES_RESPONSE);
    for (size_t i = 0; i < rk_proto_service_count; i++) {
        if (unlisted && strcmp(rk_proto_services[i], unlisted) == 0)
            continue;
        size_t service = rk_write_begin(out, RK_REFLECTION_LIST_SERVICE_RESPONSE__SERVICE);
        rk_write_text(out, RK_REFLECTION_SERVICE_RESPONSE__NAME, rk_proto_services[i]);
        rk_write_end(out, service);
    }
    rk_write_end(out, begun);
}

rk_code rk_reflection_answer(const uint8_t *bytes, size_t size, const char *unlisted, rk_buf *out,
                             rk_status *status) {
    question q = {0};
    rk_reader reader = {.status = status};
    rk_code code = rk_read_call(&reader, bytes, size, &request_schema, &q);
    if (code != RK_OK)
        return code;
    if (q.host.at && rk_wire_size(q.host))
        rk_write_text_always(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__VALID_HOST,
                             (const char *)q.host.at, rk_wire_size(q.host));
    rk_write_bytes_always(out, RK_REFLECTION_SERVER_REFLECTION_RESPONSE__ORIGINAL_REQUEST, bytes, size);
    switch (q.number) {
    case RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_BY_FILENAME:
        answer_filename(out, q.text);
        break;
    case RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_CONTAINING_SYMBOL:
        answer_symbol(out, q.text);
        break;
    case RK_REFLECTION_SERVER_REFLECTION_REQUEST__FILE_CONTAINING_EXTENSION:
        write_error(out, RK_NOT_FOUND, "no such extension: nothing here is extended", q.text);
        break;
    case RK_REFLECTION_SERVER_REFLECTION_REQUEST__ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_extensions(out, q.text);
        break;
    case RK_REFLECTION_SERVER_REFLECTION_REQUEST__LIST_SERVICES:
        answer_services(out, unlisted);
        break;
    default:
        write_error(out, RK_INVALID_ARGUMENT, "the request asks for nothing; set one of message_request",
                    q.text);
        break;
    }
    return RK_OK;
}
