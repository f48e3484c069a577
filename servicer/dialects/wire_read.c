/* The strict reader. Nothing here recurses on what a client sends except through rk_enter, which counts. */
#include "dialects/wire_read.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"

#define TAG_TYPE_BITS 3u
#define END_GROUP 4u

/* ---- stepping ---- */

/* 0, or -EBADMSG. Ten bytes at most, and the tenth has room for one bit only. */
static inline int read_varint(rk_wire *left, uint64_t *value) {
    const uint8_t *at = left->at;
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 70 && at < left->end; shift += 7) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return -EBADMSG;
        result |= (uint64_t)(byte & 0x7Fu) << shift;
        if (byte < 0x80) {
            left->at = at;
            *value = result;
            return 0;
        }
    }
    return -EBADMSG;
}

static int read_fixed(rk_wire *left, size_t bytes, uint64_t *value) {
    if (rk_wire_size(*left) < bytes)
        return -EBADMSG;
    *value = 0;
    for (size_t i = 0; i < bytes; i++)
        *value |= (uint64_t)left->at[i] << (8 * i);
    left->at += bytes;
    return 0;
}

static int read_bytes(rk_wire *left, rk_wire *bytes) {
    uint64_t size;
    rk_wire after = *left;
    if (read_varint(&after, &size) < 0 || size > rk_wire_size(after))
        return -EBADMSG;
    *bytes = rk_wire_of(after.at, (size_t)size);
    left->at = after.at + size;
    return 0;
}

static int read_tag(rk_wire *left, uint32_t *number, unsigned *type) {
    uint64_t tag;
    rk_wire after = *left;
    if (read_varint(&after, &tag) < 0 || tag > UINT32_MAX || tag >> TAG_TYPE_BITS == 0)
        return -EBADMSG;
    *number = (uint32_t)(tag >> TAG_TYPE_BITS);
    *type = (unsigned)(tag & ((1u << TAG_TYPE_BITS) - 1));
    left->at = after.at;
    return 0;
}

static int skip_group(rk_wire *left, uint32_t number);

static int read_value(rk_wire *left, rk_wire_field *field, unsigned type) {
    switch (type) {
    case RK_WIRE_VARINT:
        return read_varint(left, &field->value);
    case RK_WIRE_64:
        return read_fixed(left, 8, &field->value);
    case RK_WIRE_BYTES:
        return read_bytes(left, &field->bytes);
    case RK_WIRE_32:
        return read_fixed(left, 4, &field->value);
    default:
        return -EBADMSG;
    }
}

/* Groups are history, but still well-formed: an unknown one is skipped, with everything in it. */
static int skip_group(rk_wire *left, uint32_t number) {
    uint32_t open[RK_WIRE_DEPTH_MAX];
    unsigned depth = 0;
    open[depth++] = number;
    while (depth > 0) {
        rk_wire_field inner = {0};
        unsigned type = 0;
        if (read_tag(left, &inner.number, &type) < 0)
            return -EBADMSG;
        if (type == END_GROUP) {
            if (inner.number != open[--depth])
                return -EBADMSG;
        } else if (type == RK_WIRE_GROUP) {
            if (depth == RK_WIRE_DEPTH_MAX)
                return -EBADMSG;
            open[depth++] = inner.number;
        } else if (read_value(left, &inner, type) < 0) {
            return -EBADMSG;
        }
    }
    return 0;
}

int rk_wire_next(rk_wire *left, rk_wire_field *field) {
    unsigned type = 0;
    if (left->at == left->end)
        return 0;
    rk_wire after = *left;
    if (read_tag(&after, &field->number, &type) < 0)
        return -EBADMSG;
    int rc = type == RK_WIRE_GROUP ? skip_group(&after, field->number) : read_value(&after, field, type);
    if (rc < 0)
        return rc;
    field->type = (rk_wire_type)type;
    left->at = after.at;
    return 1;
}

/* ---- refusing ---- */

rk_code rk_broken(rk_reader *reader, const char *path, rk_wire whole, const uint8_t *at) {
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                         "%s is not a protobuf message: it breaks at byte %zu of its %zu; check the client's "
                         "encoding",
                         path, (size_t)(at - whole.at), rk_wire_size(whole));
}

rk_code rk_no_memory(rk_reader *reader) {
    return rk_status_set(reader->status, RK_RESOURCE_EXHAUSTED,
                         "the request takes too much memory once decoded; send fewer and larger parts");
}

rk_code rk_expect_type(rk_reader *reader, const char *path, const rk_wire_field *field, rk_wire_type type) {
    static const char *const names[] = {"varint", "64-bit", "length-delimited", "group", "", "32-bit"};
    if (field->type == type)
        return RK_OK;
    return rk_status_set(
        reader->status, RK_INVALID_ARGUMENT,
        "%s has the wire type %s; it must be %s: compare the client's .proto with this server's", path,
        names[field->type], names[type]);
}

static rk_code too_wide(rk_reader *reader, const char *path, uint64_t value, bool sign, const char *limit) {
    if (sign)
        return rk_status_set(reader->status, RK_INVALID_ARGUMENT, "%s is %" PRId64 "; it must fit %s", path,
                             (int64_t)value, limit);
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT, "%s is %" PRIu64 "; it must fit %s", path,
                         value, limit);
}

rk_code rk_enter(rk_reader *reader, const char *path) {
    if (++reader->depth <= RK_WIRE_DEPTH_MAX)
        return RK_OK;
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                         "%s is nested too deeply; a message may be at most %d deep", path,
                         RK_WIRE_DEPTH_MAX);
}

void rk_leave(rk_reader *reader) {
    reader->depth--;
}

/* ---- values ---- */

rk_code rk_read_text(rk_reader *reader, const char *path, const rk_wire_field *field, rk_wire *text) {
    rk_code code = rk_expect_type(reader, path, field, RK_WIRE_BYTES);
    if (code != RK_OK)
        return code;
    if (!rk_utf8_valid((const char *)field->bytes.at, rk_wire_size(field->bytes)))
        return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                             "%s is not valid UTF-8; send text, or bytes that are encoded as text", path);
    *text = field->bytes;
    return RK_OK;
}

static rk_code not_finite(rk_reader *reader, const char *path, double number) {
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT, "%s is %s; it must be a finite number", path,
                         isnan(number) ? "NaN"
                         : number > 0  ? "infinite"
                                       : "minus infinite");
}

rk_code rk_read_float(rk_reader *reader, const char *path, const rk_wire_field *field, float *number) {
    rk_code code = rk_expect_type(reader, path, field, RK_WIRE_32);
    if (code != RK_OK)
        return code;
    uint32_t bits = (uint32_t)field->value;
    memcpy(number, &bits, sizeof *number);
    return isfinite(*number) ? RK_OK : not_finite(reader, path, (double)*number);
}

rk_code rk_read_double(rk_reader *reader, const char *path, const rk_wire_field *field, double *number) {
    rk_code code = rk_expect_type(reader, path, field, RK_WIRE_64);
    if (code != RK_OK)
        return code;
    memcpy(number, &field->value, sizeof *number);
    return isfinite(*number) ? RK_OK : not_finite(reader, path, *number);
}

static rk_code read_integer(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *slot) {
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_VARINT);
    if (code != RK_OK)
        return code;
    uint64_t value = field->value;
    int64_t sign = (int64_t)value;
    switch (row->kind) {
    case RK_ROW_BOOL:
        if (value > 1)
            return too_wide(reader, row->path, value, false, "a bool, 0 or 1");
        *(bool *)slot = value != 0;
        return RK_OK;
    case RK_ROW_INT32:
        if (sign < INT32_MIN || sign > INT32_MAX)
            return too_wide(reader, row->path, value, true, "32 bits, -2147483648 to 2147483647");
        *(int32_t *)slot = (int32_t)sign;
        return RK_OK;
    case RK_ROW_UINT32:
        if (value > UINT32_MAX)
            return too_wide(reader, row->path, value, false, "32 bits, 0 to 4294967295");
        *(uint32_t *)slot = (uint32_t)value;
        return RK_OK;
    case RK_ROW_INT64:
        *(int64_t *)slot = sign;
        return RK_OK;
    default:
        *(uint64_t *)slot = value;
        return RK_OK;
    }
}

/* ---- lists ---- */

void *rk_grow(rk_arena *arena, void *items, size_t count, size_t *capacity, size_t more, size_t size) {
    if (more <= *capacity - count)
        return items;
    if (more > SIZE_MAX / (2 * size) - count)
        return NULL;
    size_t wanted = count + more > 2 * *capacity ? count + more : 2 * *capacity;
    void *grown = rk_arena_alloc(arena, wanted * size);
    if (!grown)
        return NULL;
    if (count)
        memcpy(grown, items, count * size);
    *capacity = wanted;
    return grown;
}

static bool ids_reserve(rk_arena *arena, rk_ids *ids, size_t more) {
    uint32_t *items = rk_grow(arena, ids->items, ids->count, &ids->capacity, more, sizeof *items);
    if (!items)
        return false;
    ids->items = items;
    return true;
}

static rk_code bad_id(rk_reader *reader, const rk_row *row, size_t position, uint64_t value) {
    return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                         "%s[%zu] is %" PRIu64 "; it must fit 32 bits, 0 to 4294967295", row->path, position,
                         value);
}

/* A varint ends with the byte that has no continuation bit: so many such bytes, so many ids. Eight bytes at a
 * time: those bits are moved to the bottom of each byte, and the product adds the bytes up. */
static size_t count_varints(rk_wire packed) {
    size_t count = 0;
    for (uint64_t word; rk_wire_size(packed) >= sizeof word; packed.at += sizeof word) {
        memcpy(&word, packed.at, sizeof word);
        count += ((~word >> 7 & UINT64_C(0x0101010101010101)) * UINT64_C(0x0101010101010101)) >> 56;
    }
    for (; packed.at < packed.end; packed.at++)
        count += *packed.at < 0x80;
    return count;
}

/* Ids take one to five bytes, in no order that a branch predictor could learn: so eight bytes are looked at
 * together and the id is taken out of them without a branch on its length. False: near the end, or a longer
 * varint. */
static inline bool read_id_at_once(rk_wire *packed, uint64_t *value) {
    uint64_t word;
    if (rk_wire_size(*packed) < sizeof word)
        return false;
    memcpy(&word, packed->at, sizeof word);
    word = le64toh(word);
    uint64_t last = ~word & UINT64_C(0x8080808080); /* where a byte says that it is the last */
    if (last == 0)
        return false;
    word &= last ^ (last - 1); /* the bits up to that one */
    *value = (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000) | (word >> 3 & 0xFE00000) |
             (word >> 4 & UINT64_C(0x7F0000000));
    packed->at += ((unsigned)__builtin_ctzll(last) + 1) / 8;
    return true;
}

static rk_code read_packed(rk_reader *reader, const rk_row *row, rk_wire packed, rk_ids *ids) {
    const rk_wire whole = packed;
    size_t count = count_varints(packed);
    if (packed.at < packed.end && packed.end[-1] >= 0x80)
        return rk_broken(reader, row->path, whole, whole.end);
    if (count == 0)
        return RK_OK;
    if (!ids_reserve(reader->arena, ids, count))
        return rk_no_memory(reader);
    uint32_t *out = ids->items + ids->count;
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        if (!read_id_at_once(&packed, &value) && read_varint(&packed, &value) < 0)
            return rk_broken(reader, row->path, whole, packed.at);
        if (value > UINT32_MAX)
            return bad_id(reader, row, ids->count + i, value);
        out[i] = (uint32_t)value;
    }
    ids->count += count;
    return RK_OK;
}

static rk_code read_ids(rk_reader *reader, const rk_row *row, const rk_wire_field *field, rk_ids *ids) {
    if (field->type == RK_WIRE_BYTES)
        return read_packed(reader, row, field->bytes, ids);
    rk_code code = rk_expect_type(reader, row->path, field, RK_WIRE_VARINT);
    if (code != RK_OK)
        return code;
    if (field->value > UINT32_MAX)
        return bad_id(reader, row, ids->count, field->value);
    if (!ids_reserve(reader->arena, ids, 1))
        return rk_no_memory(reader);
    ids->items[ids->count++] = (uint32_t)field->value;
    return RK_OK;
}

static rk_code read_texts(rk_reader *reader, const rk_row *row, const rk_wire_field *field,
                          rk_slices *texts) {
    rk_wire text;
    rk_code code = rk_read_text(reader, row->path, field, &text);
    if (code != RK_OK)
        return code;
    rk_wire *items = rk_grow(reader->arena, texts->items, texts->count, &texts->capacity, 1, sizeof *items);
    if (!items)
        return rk_no_memory(reader);
    texts->items = items;
    texts->items[texts->count++] = text;
    return RK_OK;
}

/* ---- messages ---- */

static rk_code read_row(rk_reader *reader, const rk_row *row, const rk_wire_field *field, void *target) {
    void *slot = (char *)target + row->offset;
    rk_code code;
    switch (row->kind) {
    case RK_ROW_NONE:
        return RK_OK;
    case RK_ROW_FLOAT:
        return rk_read_float(reader, row->path, field, slot);
    case RK_ROW_TEXT:
        return rk_read_text(reader, row->path, field, slot);
    case RK_ROW_BYTES:
        code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
        if (code == RK_OK)
            *(rk_wire *)slot = field->bytes;
        return code;
    case RK_ROW_IDS:
        return read_ids(reader, row, field, slot);
    case RK_ROW_TEXTS:
        return read_texts(reader, row, field, slot);
    case RK_ROW_MESSAGE:
        code = rk_expect_type(reader, row->path, field, RK_WIRE_BYTES);
        return code == RK_OK ? rk_read_message(reader, field->bytes, row->schema, target) : code;
    case RK_ROW_CUSTOM:
        return row->read(reader, row, field, target);
    default:
        return read_integer(reader, row, field, slot);
    }
}

rk_code rk_read_message(rk_reader *reader, rk_wire message, const rk_schema *schema, void *target) {
    rk_wire left = message;
    rk_wire_field field = {0};
    int rc = 0;
    rk_code code = rk_enter(reader, schema->path);
    while (code == RK_OK && (rc = rk_wire_next(&left, &field)) > 0) {
        if (field.number >= schema->count)
            continue;
        const rk_row *row = &schema->rows[field.number];
        code = read_row(reader, row, &field, target);
        if (row->has)
            *(uint32_t *)(void *)((char *)target + schema->has_offset) |= row->has;
    }
    rk_leave(reader);
    if (code == RK_OK && rc < 0)
        code = rk_broken(reader, schema->path, message, left.at);
    return code;
}

rk_code rk_read_call(rk_reader *reader, const uint8_t *bytes, size_t size, const rk_schema *schema,
                     void *target) {
    reader->status->code = RK_OK;
    reader->status->text[0] = '\0';
    if (!bytes)
        return rk_status_set(reader->status, RK_INVALID_ARGUMENT,
                             "the call has no message; send one %s before closing the sending side",
                             schema->path);
    return rk_read_message(reader, rk_wire_of(bytes, size), schema, target);
}
