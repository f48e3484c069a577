/* Reading protobuf's wire format, strictly: what the contract calls bad bytes is refused here.
 *
 * Two layers. rk_wire_next steps over the fields of one message and knows no schema. rk_read_message runs it
 * with a table of the message's fields and writes their values into a struct, so that a message type is a
 * table, not code. Fields without a row are skipped, as protobuf asks for.
 *
 * A message that comes in several pieces merges, as it must: the pieces are read into the same struct, the
 * last scalar wins, repeated fields add up. Nothing is copied but ids; texts stay slices of the bytes read.
 *
 * Any thread; nothing is kept. Errors are one line in reader->status. */
#ifndef RK_DIALECTS_WIRE_READ_H
#define RK_DIALECTS_WIRE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "roomkeeper/status.h"

/* Messages within messages, the outermost one counted; groups too. */
#define RK_WIRE_DEPTH_MAX 64

typedef enum rk_wire_type {
    RK_WIRE_VARINT = 0,
    RK_WIRE_64 = 1,
    RK_WIRE_BYTES = 2,
    RK_WIRE_GROUP = 3, /* skipped as a whole */
    RK_WIRE_32 = 5,
} rk_wire_type;

/* A message, a text, or what is left of one. Not owned. */
typedef struct rk_wire {
    const uint8_t *at;
    const uint8_t *end;
} rk_wire;

static inline rk_wire rk_wire_of(const uint8_t *bytes, size_t size) {
    return (rk_wire){bytes, bytes + size};
}

static inline size_t rk_wire_size(rk_wire wire) {
    return (size_t)(wire.end - wire.at);
}

typedef struct rk_wire_field {
    uint32_t number;
    rk_wire_type type;
    uint64_t value; /* VARINT, 32, 64 */
    rk_wire bytes;  /* BYTES */
} rk_wire_field;

/* 1: `field` is the next field; 0: the message is over; -EBADMSG: it is broken at left->at. */
int rk_wire_next(rk_wire *left, rk_wire_field *field);

/* ---- by table ---- */

typedef struct rk_reader {
    rk_arena *arena;   /* where ids and lists go; NULL for messages that have none */
    rk_status *status; /* set when a function here does not return RK_OK */
    unsigned depth;    /* messages around the one that is read */
} rk_reader;

/* What the rows below fill. Lists grow in the arena. */
typedef struct rk_ids {
    uint32_t *items;
    size_t count;
    size_t capacity;
} rk_ids;

typedef struct rk_slices {
    rk_wire *items;
    size_t count;
    size_t capacity;
} rk_slices;

typedef enum rk_row_kind {
    RK_ROW_NONE,    /* no such field: skipped */
    RK_ROW_BOOL,    /* bool */
    RK_ROW_INT32,   /* int32_t */
    RK_ROW_INT64,   /* int64_t */
    RK_ROW_UINT32,  /* uint32_t */
    RK_ROW_UINT64,  /* uint64_t */
    RK_ROW_FLOAT,   /* float */
    RK_ROW_TEXT,    /* rk_wire, valid UTF-8; NULs are possible */
    RK_ROW_BYTES,   /* rk_wire, any bytes */
    RK_ROW_IDS,     /* rk_ids, from packed and unpacked fields */
    RK_ROW_TEXTS,   /* rk_slices of valid UTF-8 */
    RK_ROW_MESSAGE, /* read by `schema` into the same struct */
    RK_ROW_CUSTOM,  /* `read` does it */
} rk_row_kind;

typedef struct rk_row rk_row;
typedef struct rk_schema rk_schema;

struct rk_row {
    rk_row_kind kind;
    uint32_t has;     /* set in the struct's bits when the field is there; 0: nobody asks */
    const char *path; /* the field as errors name it, "sampling_params.top_p" */
    size_t offset;    /* of the value in the struct; unused by MESSAGE, and by most of CUSTOM */
    const rk_schema *schema;
    rk_code (*read)(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target);
};

struct rk_schema {
    const char *path;   /* the message as errors name it: "GenerateRequest", "sampling_params" */
    const rk_row *rows; /* by field number */
    size_t count;       /* of rows */
    size_t has_offset;  /* of the uint32_t with the `has` bits in the struct */
};

rk_code rk_read_message(rk_reader *reader, rk_wire message, const rk_schema *schema, void *target);

/* A whole message as a call brings it: `bytes` NULL means that the client sent none. */
rk_code rk_read_call(rk_reader *reader, const uint8_t *bytes, size_t size, const rk_schema *schema,
                     void *target);

/* ---- for CUSTOM rows ---- */

/* RK_OK when the field has that wire type. */
rk_code rk_expect_type(rk_reader *reader, const char *path, const rk_wire_field *field, rk_wire_type type);
rk_code rk_read_text(rk_reader *reader, const char *path, const rk_wire_field *field, rk_wire *text);
/* The float of a 32-bit field and the double of a 64-bit one; finite, or refused. */
rk_code rk_read_float(rk_reader *reader, const char *path, const rk_wire_field *field, float *number);
rk_code rk_read_double(rk_reader *reader, const char *path, const rk_wire_field *field, double *number);
/* Around the reading of a message within this one; leave also after an error. */
rk_code rk_enter(rk_reader *reader, const char *path);
void rk_leave(rk_reader *reader);
rk_code rk_broken(rk_reader *reader, const char *path, rk_wire whole, const uint8_t *at);
rk_code rk_no_memory(rk_reader *reader);

/* Room for one more item of `size` bytes in a list in the arena; NULL: no memory. */
void *rk_grow(rk_arena *arena, void *items, size_t count, size_t *capacity, size_t more, size_t size);

#endif
