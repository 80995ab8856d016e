#include "tailwatch/base/clock.h"

#include "tw_test.h"

/* Time does not run backwards, and it runs. */
TW_TEST(monotonic) {
    uint64_t first = tw_now_ns(), last = first;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = tw_now_ns();
        TW_CHECK(now >= last);
        last = now;
    }
    TW_CHECK(last > first);
}

/* The CPU clock counts work of this thread and not more than the wall's time. */
TW_TEST(thread_cpu) {
    uint64_t wall = tw_now_ns(), cpu = tw_thread_cpu_ns();
    volatile uint64_t work = 0;
    for (int i = 0; i < 100000; i++) work += (uint64_t)i;
    uint64_t cpu_spent = tw_thread_cpu_ns() - cpu, wall_spent = tw_now_ns() - wall;
    TW_CHECK(cpu_spent > 0);
    TW_CHECK(cpu_spent <= wall_spent + TW_NS_PER_MS);
}

/* The pair lies between monotonic readings around it, and its wall time is what time() says. */
TW_TEST(pair) {
    uint64_t before = tw_now_ns();
    time_t wall_before = time(NULL);
    tw_clock_pair pair = tw_clock_pair_now();
    time_t wall_after = time(NULL);
    TW_CHECK(before <= pair.monotonic_ns && pair.monotonic_ns <= tw_now_ns());
    /* time() may lag the precise clock by a tick. */
    TW_CHECK(pair.realtime_ns / TW_NS_PER_SECOND >= (uint64_t)wall_before);
    TW_CHECK(pair.realtime_ns / TW_NS_PER_SECOND <= (uint64_t)wall_after + 1);
}

/* Two pairs taken at different times give the same offset. */
TW_TEST(offset) {
    tw_clock_pair a = tw_clock_pair_now(), b = tw_clock_pair_now();
    double between_a = (double)(a.realtime_ns - a.monotonic_ns), between_b = (double)(b.realtime_ns - b.monotonic_ns);
    TW_CHECK_NEAR(between_a, between_b, 5e6);
}

/* A tick is between 1 ms (HZ=1000; 999848 ns on some kernels) and 10 ms (HZ=100), or unknown: 10 ms. */
TW_TEST(jiffy) {
    uint64_t tick = tw_clock_jiffy_ns();
    TW_CHECK(tick >= 900000 && tick <= 10 * TW_NS_PER_MS);
    TW_CHECK_EQ(tick, tw_clock_jiffy_ns());
}

TW_MAIN(monotonic, thread_cpu, pair, offset, jiffy)
