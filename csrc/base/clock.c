#include "tailwatch/base/clock.h"

#include <unistd.h>

static uint64_t realtime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * TW_NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

tw_clock_pair tw_clock_pair_now(void) {
    tw_clock_pair best = {0, 0};
    uint64_t tightest = UINT64_MAX;
    for (int reading = 0; reading < 3; reading++) {
        uint64_t before = tw_now_ns();
        uint64_t wall = realtime_ns();
        uint64_t width = tw_now_ns() - before;
        if (width >= tightest) continue;
        tightest = width;
        best.monotonic_ns = before + width / 2;
        best.realtime_ns = wall;
    }
    return best;
}

/* The coarse clock advances once a tick, so its resolution is the tick: HZ, which sysconf(_SC_CLK_TCK) does
 * not tell (that is USER_HZ, always 100). */
uint64_t tw_clock_jiffy_ns(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec tick;
    if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) == 0 && tick.tv_sec == 0 && tick.tv_nsec >= 1000)
        return (uint64_t)tick.tv_nsec;
#endif
    return 10 * TW_NS_PER_MS; /* the longest tick in use */
}
