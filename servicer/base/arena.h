/* A bump allocator with a cap, for what lives and dies with one request.
 *
 * rk_arena_alloc returns NULL once the cap is passed, as it does when memory is out, so that a message
 * made of millions of tiny parts cannot take more than the cap. Not synchronised. */
#ifndef RK_BASE_ARENA_H
#define RK_BASE_ARENA_H

#include <stddef.h>

typedef struct rk_arena rk_arena;

rk_arena *rk_arena_new(size_t cap_bytes);            /* NULL: out of memory */
void rk_arena_free(rk_arena *arena);                 /* NULL is fine */
void *rk_arena_alloc(rk_arena *arena, size_t bytes); /* aligned to 16; bytes 0 gives a valid pointer */
char *rk_arena_strndup(rk_arena *arena, const char *text, size_t bytes); /* adds the NUL */
size_t rk_arena_used(const rk_arena *arena);                             /* bytes handed out so far */

#endif
