/* This executable's own malloc: it counts what is allocated and fails on demand. Include it in one source of
 * a test. Sanitizers bring an allocator of their own: then OTHER_MALLOC is defined and there is nothing to
 * test; valgrind does too: see other_malloc. */
#ifndef FAILING_MALLOC_H
#define FAILING_MALLOC_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OTHER_MALLOC 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define OTHER_MALLOC 1
#endif

#ifndef OTHER_MALLOC

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void __libc_free(void *memory);

/* The C library's own calls come here too, so these must be seen from outside. */
#define SEEN_BY_ALL __attribute__((visibility("default")))

static long left = -1; /* allocations until one fails; negative: none fails */
static long live;      /* allocations not freed yet */

static bool fails(void) {
    return left >= 0 && left-- == 0;
}

static void *counted(void *memory) {
    live += memory != NULL;
    return memory;
}

SEEN_BY_ALL void *malloc(size_t bytes) {
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

SEEN_BY_ALL void *calloc(size_t count, size_t bytes) {
    return fails() ? NULL : counted(__libc_calloc(count, bytes));
}

SEEN_BY_ALL void *realloc(void *old, size_t bytes) {
    if (fails())
        return NULL;
    void *memory = __libc_realloc(old, bytes);
    return old ? memory : counted(memory);
}

SEEN_BY_ALL void free(void *memory) {
    live -= memory != NULL;
    __libc_free(memory);
}

static bool other_malloc(void) {
    const char *preload = getenv("LD_PRELOAD"); /* valgrind's */
    return preload && strstr(preload, "vgpreload");
}

#endif

#endif
