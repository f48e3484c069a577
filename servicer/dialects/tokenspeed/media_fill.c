/* From checked drafts to the request's media. Texts are copied into the arena; so are the bytes of tensors,
 * unless they are many and the client's message can be kept: then they stay where they have arrived. Any
 * thread. */
#include <string.h>

#include "base/cleanup.h"
#include "dialects/request.h"
#include "dialects/struct_read.h"
#include "dialects/tokenspeed/internal.h"
#include "dialects/tokenspeed/media.h"
#include "rk_proto/fields.h"

/* Below, a copy costs less than what keeping the message would hold on to. */
#define KEPT_BYTES_MIN ((size_t)16 * 1024)

typedef struct filler {
    rk_arena *arena;
    bool keep; /* the client's bytes stay */
    rk_segment *segments;
    size_t segment_count;
} filler;

/* ---- counting, to allocate once ---- */

static size_t inline_bytes(const rk_ts_tensor *tensor) {
    return tensor->payload == RK_TS_TENSOR_DATA__INLINE ? rk_wire_size(tensor->bytes) : 0;
}

static size_t count_tensors(const rk_ts_items *items, size_t *bytes) {
    size_t count = 0;
    *bytes = 0;
    for (size_t i = 0; i < items->count; i++) {
        const rk_ts_item *item = &items->items[i];
        count += 1 + item->tensor_count;
        *bytes += inline_bytes(&item->input);
        for (size_t t = 0; t < item->tensor_count; t++)
            *bytes += inline_bytes(&item->tensors[t].tensor);
    }
    return count;
}

/* ---- copying ---- */

static bool copy_bytes(filler *f, rk_wire from, const uint8_t **to, size_t *size) {
    *size = rk_wire_size(from);
    uint8_t *copy = rk_arena_alloc(f->arena, *size ? *size : 1);
    if (!copy)
        return false;
    if (*size)
        memcpy(copy, from.at, *size);
    *to = copy;
    return true;
}

static bool copy_text(filler *f, rk_wire from, rk_text *to) {
    to->bytes = rk_wire_size(from);
    to->data = rk_arena_strndup(f->arena, (const char *)from.at, to->bytes);
    return to->data != NULL;
}

/* Several tensors may be in one segment: it is opened once. There is room for one segment a tensor. */
static bool use_segment(filler *f, const rk_ts_tensor *draft, rk_tensor *tensor) {
    rk_wire name;
    if (!rk_ts_segment_name(draft->name, &name))
        return false;
    size_t at = 0;
    while (at < f->segment_count && !(f->segments[at].name.bytes == rk_wire_size(name) &&
                                      memcmp(f->segments[at].name.data, name.at, rk_wire_size(name)) == 0))
        at++;
    rk_segment *segment = &f->segments[at];
    if (at == f->segment_count) {
        if (!copy_text(f, name, &segment->name))
            return false;
        segment->size = 0;
        f->segment_count++;
    }
    uint64_t end = draft->offset + draft->nbytes;
    segment->size = end > segment->size ? end : segment->size;
    tensor->segment = at;
    tensor->offset = draft->offset;
    return true;
}

static bool fill_tensor(filler *f, const rk_ts_tensor *draft, rk_tensor *tensor) {
    const rk_ts_dtype *dtype = rk_ts_dtype_of(draft->dtype);
    *tensor = (rk_tensor){.shape = draft->shape.items, .dims = draft->shape.count, .dtype = dtype->name};
    tensor->nbytes = (size_t)rk_ts_tensor_bytes(&draft->shape, dtype->bytes);
    size_t size = 0;
    switch (draft->payload) {
    case RK_TS_TENSOR_DATA__INLINE:
        tensor->bytes = draft->bytes.at;
        return f->keep || copy_bytes(f, draft->bytes, &tensor->bytes, &size);
    case RK_TS_TENSOR_DATA__SHM:
        return use_segment(f, draft, tensor);
    default:
        tensor->payload = RK_PAYLOAD_REMOTE;
        return copy_text(f, draft->transport, &tensor->transport) &&
               copy_bytes(f, draft->descriptor, &tensor->descriptor, &tensor->descriptor_bytes);
    }
}

/* Of a name that repeats the last one counts, as in every map. */
static bool fill_tensors(filler *f, const rk_ts_item *item, rk_media *media) {
    size_t count = item->tensor_count;
    if (count == 0)
        return true;
    rk_named_tensor *named = rk_arena_alloc(f->arena, count * sizeof *named);
    const char **names = rk_arena_alloc(f->arena, count * sizeof *names);
    bool *keep = rk_arena_alloc(f->arena, count * sizeof *keep);
    if (!named || !names || !keep)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!copy_text(f, item->tensors[i].name, &named[i].name))
            return false;
        names[i] = named[i].name.data;
    }
    if (rk_keep_last(f->arena, names, count, keep) < 0)
        return false;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (!keep[i])
            continue;
        named[kept].name = named[i].name;
        if (!fill_tensor(f, &item->tensors[i].tensor, &named[kept++].tensor))
            return false;
    }
    media->tensors = named;
    media->tensor_count = kept;
    return true;
}

static bool fill_item(filler *f, const rk_ts_item *item, rk_media *media) {
    *media = (rk_media){
        .modality = item->modality ? (rk_modality)item->modality : RK_MODALITY_IMAGE,
        .has_encoder_input = (item->has & RK_TS_ITEM_HAS_INPUT) != 0,
        .placeholders = item->ranges,
        .placeholder_count = item->range_count,
        .has_token_id = (item->has & RK_TS_ITEM_HAS_TOKEN_ID) != 0,
        .token_id = item->token_id,
    };
    return copy_bytes(f, item->content_hash, &media->content_hash, &media->content_hash_bytes) &&
           (!media->has_encoder_input || fill_tensor(f, &item->input, &media->encoder_input)) &&
           fill_tensors(f, item, media);
}

static bool fill_encoders(filler *f, const rk_ts_encoders *encoders, rk_media *media) {
    for (size_t i = 0; i < encoders->count; i++) {
        const rk_ts_encoder *encoder = &encoders->items[i];
        rk_media *item = &media[encoder->index];
        item->has_encoder = true;
        item->encoder_port = encoder->port;
        item->encoder_room = encoder->room;
        if (!copy_text(f, encoder->host, &item->encoder_host))
            return false;
    }
    return true;
}

bool rk_ts_fill_media(rk_arena *arena, const rk_ts_items *items, const rk_ts_encoders *encoders,
                      const rk_keeper *keeper, rk_request *request) {
    size_t bytes = 0;
    size_t tensors = count_tensors(items, &bytes);
    filler f = {.arena = arena, .keep = keeper && bytes >= KEPT_BYTES_MIN};
    rk_media *media = rk_arena_alloc(arena, items->count * sizeof *media);
    f.segments = rk_arena_alloc(arena, tensors * sizeof *f.segments);
    if (!media || !f.segments)
        return false;
    for (size_t i = 0; i < items->count; i++)
        if (!fill_item(&f, &items->items[i], &media[i]))
            return false;
    if (!fill_encoders(&f, encoders, media))
        return false;
    if (keeper && f.keep) {
        void *kept = keeper->keep(keeper->of);
        if (!kept)
            return false;
        rk_request_keep(request, kept, keeper->drop);
    }
    request->media = media;
    request->media_count = items->count;
    request->segments = f.segments;
    request->segment_count = f.segment_count;
    return true;
}
