/* Multimodal inputs between their bytes and their request. Shared by Generate and Encode. */
#ifndef RK_DIALECTS_TOKENSPEED_MEDIA_H
#define RK_DIALECTS_TOKENSPEED_MEDIA_H

#include "dialects/dialect.h"
#include "dialects/wire_read.h"

#define RK_TS_ITEMS_MAX 256  /* of one request; each may hold a descriptor open */
#define RK_TS_TENSORS_MAX 64 /* with names, of one item */
#define RK_TS_DIMS_MAX 16

/* A TensorData. Texts and bytes are slices of the client's. */
typedef struct rk_ts_tensor {
    rk_ids shape;
    rk_wire dtype;
    uint32_t payload; /* the field of the oneof that came last; 0: none */
    rk_wire bytes;    /* inline */
    rk_wire name;     /* shm */
    rk_wire owner_id; /* shm: checked to be text; whose it is the file system knows better */
    uint64_t offset;  /* shm */
    rk_wire transport;
    rk_wire descriptor;
    uint64_t nbytes; /* shm, remote */
} rk_ts_tensor;

typedef struct rk_ts_named {
    rk_wire name;
    rk_ts_tensor tensor;
} rk_ts_named;

enum { RK_TS_ITEM_HAS_INPUT = 1u << 0, RK_TS_ITEM_HAS_TOKEN_ID = 1u << 1 };

typedef struct rk_ts_item {
    uint32_t has;
    int32_t modality;
    rk_wire content_hash;
    rk_ts_tensor input;
    rk_ts_named *tensors; /* names may repeat */
    size_t tensor_count;
    size_t tensor_capacity;
    rk_placeholder *ranges;
    size_t range_count;
    size_t range_capacity;
    uint32_t token_id;
} rk_ts_item;

typedef struct rk_ts_items {
    rk_ts_item *items;
    size_t count;
    size_t capacity;
} rk_ts_items;

/* An EncodeItemBootstrapInfo. */
typedef struct rk_ts_encoder {
    uint32_t index;
    rk_wire host;
    int32_t port;
    int64_t room;
} rk_ts_encoder;

typedef struct rk_ts_encoders {
    rk_ts_encoder *items;
    size_t count;
    size_t capacity;
} rk_ts_encoders;

/* What the items are checked against. */
typedef struct rk_ts_media_rules {
    bool encode;             /* an Encode call; else Generate */
    bool needs_input;        /* this worker's tower, or an encode worker, must be able to see each item */
    size_t prompt;           /* tokens; placeholders lie within. SIZE_MAX: not known here */
    const bool *has_encoder; /* of each item; NULL: of none */
} rk_ts_media_rules;

/* For CUSTOM rows whose field is a MultimodalInputs, or an EncodeBootstrapInfo. */
rk_code rk_ts_read_items(rk_reader *reader, rk_wire message, rk_ts_items *items);
rk_code rk_ts_read_encoders(rk_reader *reader, rk_wire message, rk_ts_encoders *encoders);

rk_code rk_ts_check_items(const rk_ts_items *items, const rk_ts_media_rules *rules, rk_status *status);
/* `*seen`, in the arena, says of each item whether an encode worker makes it; NULL when there are none. */
rk_code rk_ts_check_encoders(const rk_ts_encoders *encoders, size_t items, rk_arena *arena, const bool **seen,
                             rk_status *status);

/* Makes request->media and ->segments of items that have been checked. With a keeper the client's bytes are
 * kept where they are worth it, otherwise copied. False: no memory. */
bool rk_ts_fill_media(rk_arena *arena, const rk_ts_items *items, const rk_ts_encoders *encoders,
                      const rk_keeper *keeper, rk_request *request);

/* The plain name of a segment, as the file is called: 1 to 255 bytes, no slash but leading ones, which are
 * dropped, no NUL. False: it is none. */
bool rk_ts_segment_name(rk_wire given, rk_wire *name);

#endif
