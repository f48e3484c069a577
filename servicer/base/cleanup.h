/* Early returns free what they hold: `_cleanup_free_ char *name = …`. */
#ifndef RK_BASE_CLEANUP_H
#define RK_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void rk_cleanup_free(void *pointer_to_pointer) {
    free(*(void **)pointer_to_pointer);
}

static inline void rk_cleanup_close(const int *fd) {
    if (*fd >= 0)
        (void)close(*fd);
}

#define _cleanup_free_ __attribute__((cleanup(rk_cleanup_free)))
#define _cleanup_close_ __attribute__((cleanup(rk_cleanup_close)))

/* Takes the value out of a cleanup variable, so that the caller now owns it. */
#define RK_STEAL(pointer)                                                                                    \
    __extension__({                                                                                          \
        __typeof__(pointer) rk_stolen_ = (pointer);                                                          \
        (pointer) = NULL;                                                                                    \
        rk_stolen_;                                                                                          \
    })

#define RK_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
