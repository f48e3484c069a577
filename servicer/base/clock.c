/* The one place that reads a clock. Any thread. */
#include "base/clock.h"

#include <time.h>

uint64_t rk_now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail: the clock exists, the pointer is ours */
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t rk_now_ms(void) {
    return rk_now_us() / 1000u;
}
