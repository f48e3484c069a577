/* The descriptor set of everything in proto/, built in: what reflection answers from.
 *
 * All of it is constant data made at build time by cmake/embed_descriptors.py, so any thread may read it and
 * nobody frees it. */
#ifndef RK_PROTO_DESCRIPTORS_H
#define RK_PROTO_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rk_proto_file {
    const char *name;        /* as it is imported */
    const uint8_t *bytes;    /* a serialised google.protobuf.FileDescriptorProto … */
    size_t size;             /* … and its length in bytes */
    const uint16_t *imports; /* indexes into rk_proto_files; NULL when it imports nothing */
    size_t import_count;
} rk_proto_file;

typedef struct rk_proto_symbol {
    const char *name; /* full name, without a leading dot */
    uint16_t file;    /* index into rk_proto_files */
    bool message;     /* a message, so that extensions of it could be asked for */
} rk_proto_symbol;

extern const rk_proto_file rk_proto_files[]; /* an imported file stands before those that import it */
extern const size_t rk_proto_file_count;
extern const rk_proto_symbol rk_proto_symbols[]; /* sorted by name, as strcmp sorts */
extern const size_t rk_proto_symbol_count;
extern const char *const rk_proto_services[]; /* sorted */
extern const size_t rk_proto_service_count;

#endif
