/* How long rooms wait, are handed off and are released. Lock of the ledger held. */
#include "rooms/ledger.h"

static const uint32_t bounds_ms[RK_HISTOGRAM_BUCKETS - 1] = {
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10000, 30000, 120000, 300000};

const uint32_t *rk_histogram_bounds_ms(void) {
    return bounds_ms;
}

void rk_observe(rk_histogram *histogram, uint64_t began, uint64_t now) {
    uint64_t took = now > began ? now - began : 0;
    size_t bucket = 0;
    while (bucket < RK_HISTOGRAM_BUCKETS - 1 && took > bounds_ms[bucket])
        bucket++;
    histogram->buckets[bucket]++;
    histogram->count++;
    histogram->sum_ms += took;
}
