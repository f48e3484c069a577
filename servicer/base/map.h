/* Hash maps to pointers: by 64-bit number, and by bytes (copied in). Open addressing, grows, never
 * shrinks below what it was made for. Not synchronised. Byte keys are hashed with a per-map random
 * seed, since clients choose them. */
#ifndef RK_BASE_MAP_H
#define RK_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct rk_map rk_map;   /* uint64_t -> void * */
typedef struct rk_bmap rk_bmap; /* bytes -> void * */

rk_map *rk_map_new(void);      /* NULL: out of memory */
void rk_map_free(rk_map *map); /* NULL is fine; values are the caller's */
/* 0, -EEXIST (the old value stays) or -ENOMEM. Values must not be NULL. */
int rk_map_put(rk_map *map, uint64_t key, void *value);
void *rk_map_get(const rk_map *map, uint64_t key);
void *rk_map_remove(rk_map *map, uint64_t key); /* the value that was there, or NULL */
size_t rk_map_size(const rk_map *map);
/* Calls `visit` for each entry, in no order; the map must not change meanwhile. */
void rk_map_each(const rk_map *map, void (*visit)(uint64_t key, void *value, void *arg), void *arg);

rk_bmap *rk_bmap_new(void);
void rk_bmap_free(rk_bmap *map);
int rk_bmap_put(rk_bmap *map, const void *key, size_t key_bytes, void *value);
/* Another value for a key that is there; allocates nothing. 0, or -ENOENT: the key is not there. */
int rk_bmap_replace(rk_bmap *map, const void *key, size_t key_bytes, void *value);
void *rk_bmap_get(const rk_bmap *map, const void *key, size_t key_bytes);
void *rk_bmap_remove(rk_bmap *map, const void *key, size_t key_bytes);
size_t rk_bmap_size(const rk_bmap *map);

#endif
