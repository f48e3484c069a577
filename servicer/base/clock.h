/* Time as the core sees it: milliseconds and microseconds of CLOCK_MONOTONIC. Any thread. */
#ifndef RK_BASE_CLOCK_H
#define RK_BASE_CLOCK_H

#include <stdint.h>

uint64_t rk_now_ms(void);
uint64_t rk_now_us(void);

#endif
