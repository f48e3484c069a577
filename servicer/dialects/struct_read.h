/* google.protobuf.Struct as a JSON-like tree. */
#ifndef RK_DIALECTS_STRUCT_READ_H
#define RK_DIALECTS_STRUCT_READ_H

#include "dialects/wire_read.h"
#include "roomkeeper/value.h"

/* An empty map in the arena; NULL: no memory. The trees of this file live in the reader's arena and are never
 * given to rk_value_free. */
rk_value *rk_struct_new(rk_arena *arena);
/* Adds what `message`, a Struct, holds to `map`: pieces of one Struct are read one after the other. `path` is
 * the field as errors name it. A key that comes twice is there twice, until rk_struct_finish. */
rk_code rk_read_struct(rk_reader *reader, const char *path, rk_wire message, rk_value *map);
/* Of each key the last value stays, in this map and all below it. */
rk_code rk_struct_finish(rk_reader *reader, rk_value *map);

/* Which of `count` keys are the last of their name: keep[i] is set for those. 0 or -ENOMEM. */
int rk_keep_last(rk_arena *arena, const char *const *keys, size_t count, bool *keep);

#endif
