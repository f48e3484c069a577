/* The bump allocator: a chain of blocks, each twice as large as the one before, the first one inside the
 * arena's own allocation, so that a small request costs one malloc.
 *
 * An allocation that does not fit the current block and is large gets a block of its own; the current one
 * stays in use, so what a request really takes stays close to what it was given. Not synchronised. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 16u
#define FIRST_BLOCK_BYTES ((size_t)2048)
#define LARGEST_BLOCK_BYTES ((size_t)256 * 1024)

typedef struct block {
    struct block *older;
    alignas(ALIGNMENT) unsigned char bytes[];
} block;

struct rk_arena {
    size_t cap;        /* bytes that may be handed out */
    size_t used;       /* bytes handed out, rounded up to the alignment */
    size_t next;       /* size of the next ordinary block */
    unsigned char *at; /* the free part of the current block … */
    size_t left;       /* … and its bytes */
    block *blocks;     /* all but the first one, newest first */
    alignas(ALIGNMENT) unsigned char first[FIRST_BLOCK_BYTES];
};

rk_arena *rk_arena_new(size_t cap_bytes) {
    rk_arena *arena = malloc(sizeof *arena);
    if (!arena)
        return NULL;
    arena->cap = cap_bytes;
    arena->used = 0;
    arena->next = 2 * FIRST_BLOCK_BYTES;
    arena->at = arena->first;
    arena->left = sizeof arena->first;
    arena->blocks = NULL;
    return arena;
}

void rk_arena_free(rk_arena *arena) {
    if (!arena)
        return;
    for (block *b = arena->blocks; b;) {
        block *older = b->older;
        free(b);
        b = older;
    }
    free(arena);
}

static block *add_block(rk_arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(block))
        return NULL;
    block *b = malloc(sizeof *b + bytes);
    if (!b)
        return NULL;
    b->older = arena->blocks;
    arena->blocks = b;
    return b;
}

void *rk_arena_alloc(rk_arena *arena, size_t bytes) {
    if (bytes > arena->cap - arena->used)
        return NULL;
    size_t rounded = (bytes + (ALIGNMENT - 1u)) & ~(size_t)(ALIGNMENT - 1u);
    if (rounded == 0)
        rounded = ALIGNMENT;
    if (rounded < bytes || rounded > arena->cap - arena->used)
        return NULL;
    if (rounded > arena->left) {
        size_t block_bytes = rounded > arena->next / 4 ? rounded : arena->next;
        block *b = add_block(arena, block_bytes);
        if (!b)
            return NULL;
        if (block_bytes == rounded) {
            arena->used += rounded;
            return b->bytes;
        }
        arena->at = b->bytes;
        arena->left = block_bytes;
        if (arena->next < LARGEST_BLOCK_BYTES)
            arena->next *= 2;
    }
    void *result = arena->at;
    arena->at += rounded;
    arena->left -= rounded;
    arena->used += rounded;
    return result;
}

char *rk_arena_strndup(rk_arena *arena, const char *text, size_t bytes) {
    if (bytes == SIZE_MAX)
        return NULL;
    char *copy = rk_arena_alloc(arena, bytes + 1);
    if (!copy)
        return NULL;
    if (bytes)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

size_t rk_arena_used(const rk_arena *arena) {
    return arena->used;
}
