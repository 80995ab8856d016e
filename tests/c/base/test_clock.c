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

/* The pair lies between monotonic readings around it, and its wall time is that of time(). */
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

/* ---- conversion between clocks, with snapshots that were made up ---- */

#define S TW_NS_PER_SECOND
#define EPOCH (UINT64_C(1790000000) * S)

/* Second i of a machine whose MONOTONIC runs at RAW's rate, REALTIME beside it, and a counter of 2.3 GHz. */
static tw_clock_snapshot steady(uint64_t i) {
    const uint64_t t = (i + 1) * S;
    return (tw_clock_snapshot){{t, t + 500, EPOCH + t, t + 7 * S, 23 * t / 10}, 60, {0, 0}};
}

static uint64_t converted(const tw_clock_snapshot *s, size_t n, tw_clock from, tw_clock to, uint64_t t) {
    uint64_t out = UINT64_MAX;
    TW_CHECK(tw_clock_convert(s, n, from, to, t, &out));
    return out;
}

TW_TEST(steady_clocks_convert_exactly) {
    tw_clock_snapshot s[5];
    for (uint64_t i = 0; i < 5; i++) s[i] = steady(i);
    for (uint64_t t = S / 2; t < 8 * S; t += S / 7) {
        TW_CHECK_EQ(EPOCH + t, converted(s, 5, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, t));
        TW_CHECK_EQ(t, converted(s, 5, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + t));
        TW_CHECK_EQ(t + 7 * S, converted(s, 5, TW_CLOCK_MONOTONIC, TW_CLOCK_BOOTTIME, t));
        const uint64_t ticks = converted(s, 5, TW_CLOCK_MONOTONIC, TW_CLOCK_TSC, t);
        TW_CHECK(ticks + 1 >= 23 * t / 10 && ticks <= 23 * t / 10 + 1);
        const uint64_t back = converted(s, 5, TW_CLOCK_TSC, TW_CLOCK_MONOTONIC, ticks);
        TW_CHECK(back + 1 >= t && back <= t + 1);
    }
}

TW_TEST(a_slew_is_followed_between_snapshots) {
    tw_clock_snapshot s[4];
    for (uint64_t i = 0; i < 4; i++) s[i] = steady(i);
    for (uint64_t i = 2; i < 4; i++) s[i].at[TW_CLOCK_REALTIME] += (i - 1) * 400000; /* 400 ppm from second 1 on */
    TW_CHECK_EQ(EPOCH + 3 * S / 2, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 3 * S / 2));
    TW_CHECK_EQ(EPOCH + 5 * S / 2 + 200000, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 5 * S / 2));
    TW_CHECK_EQ(EPOCH + 9 * S / 2 + 1000000, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 9 * S / 2));
    TW_CHECK_EQ(5 * S / 2, converted(s, 4, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + 5 * S / 2 + 200000));
}

TW_TEST(a_slewed_monotonic_is_followed) {
    tw_clock_snapshot s[3];
    for (uint64_t i = 0; i < 3; i++) {
        s[i] = steady(i);
        s[i].at[TW_CLOCK_MONOTONIC] += i * 500000;
        s[i].at[TW_CLOCK_REALTIME] += i * 500000;
    }
    TW_CHECK_EQ(3 * S / 2 + 500, converted(s, 3, TW_CLOCK_MONOTONIC, TW_CLOCK_RAW, 3 * S / 2 + 250000));
    TW_CHECK_EQ(EPOCH + 3 * S / 2 + 250000, converted(s, 3, TW_CLOCK_RAW, TW_CLOCK_REALTIME, 3 * S / 2 + 500));
}

/* REALTIME is set an hour ahead between seconds 1 and 2. */
TW_TEST(a_step_ahead_is_not_smeared) {
    tw_clock_snapshot s[4];
    for (uint64_t i = 0; i < 4; i++) s[i] = steady(i);
    for (uint64_t i = 2; i < 4; i++) s[i].at[TW_CLOCK_REALTIME] += 3600 * S;
    TW_CHECK_EQ(EPOCH + 3 * S - 1, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 3 * S - 1));
    TW_CHECK_EQ(EPOCH + 3603 * S, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 3 * S));
    TW_CHECK_EQ(5 * S / 2, converted(s, 4, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + 5 * S / 2));
    TW_CHECK_EQ(3 * S, converted(s, 4, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + 1000 * S)); /* it was not seen */
    TW_CHECK_EQ(7 * S / 2, converted(s, 4, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + 3603 * S + S / 2));
}

TW_TEST(a_step_back_means_the_later_instant) {
    tw_clock_snapshot s[4];
    for (uint64_t i = 0; i < 4; i++) s[i] = steady(i);
    for (uint64_t i = 2; i < 4; i++) s[i].at[TW_CLOCK_REALTIME] -= 2 * S;
    TW_CHECK_EQ(EPOCH + 5 * S / 2, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 5 * S / 2));
    TW_CHECK_EQ(EPOCH + 3 * S / 2, converted(s, 4, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, 7 * S / 2));
    TW_CHECK_EQ(7 * S / 2, converted(s, 4, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, EPOCH + 3 * S / 2));
}

TW_TEST(a_suspend_is_a_step_of_boottime) {
    tw_clock_snapshot s[3];
    for (uint64_t i = 0; i < 3; i++) s[i] = steady(i);
    s[1].at[TW_CLOCK_BOOTTIME] += 100 * S;
    s[2].at[TW_CLOCK_BOOTTIME] += 100 * S;
    TW_CHECK_EQ(17 * S / 2, converted(s, 3, TW_CLOCK_MONOTONIC, TW_CLOCK_BOOTTIME, 3 * S / 2));
    TW_CHECK_EQ(109 * S + S / 2, converted(s, 3, TW_CLOCK_MONOTONIC, TW_CLOCK_BOOTTIME, 5 * S / 2));
    TW_CHECK_EQ(EPOCH + 3 * S / 2, converted(s, 3, TW_CLOCK_BOOTTIME, TW_CLOCK_REALTIME, 17 * S / 2));
}

/* Two snapshots close together, each unsure by its bracket, are no step. */
TW_TEST(a_wide_bracket_is_no_step) {
    tw_clock_snapshot s[2] = {steady(0), steady(0)};
    for (int clock = 0; clock < TW_CLOCKS; clock++) s[1].at[clock] += 100000;
    s[1].at[TW_CLOCK_REALTIME] += 2000; /* 20000 ppm, but it was read within 4 us */
    s[1].width_ns = 4000;
    TW_CHECK_EQ(EPOCH + S + 51000, converted(s, 2, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, S + 50000));
}

TW_TEST(one_snapshot_gives_its_offset) {
    const tw_clock_snapshot s = steady(3);
    uint64_t out;
    TW_CHECK_EQ(EPOCH + S, converted(&s, 1, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, S));
    TW_CHECK(!tw_clock_convert(&s, 1, TW_CLOCK_MONOTONIC, TW_CLOCK_TSC, S, &out));
    TW_CHECK_EQ(7, converted(&s, 1, TW_CLOCK_TSC, TW_CLOCK_TSC, 7));
}

TW_TEST(what_cannot_be_converted_is_refused) {
    tw_clock_snapshot s[3];
    uint64_t out;
    for (uint64_t i = 0; i < 3; i++) s[i] = steady(i), s[i].at[TW_CLOCK_TSC] = 0;
    TW_CHECK(!tw_clock_convert(s, 0, TW_CLOCK_MONOTONIC, TW_CLOCK_RAW, 0, &out));
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCK_MONOTONIC, TW_CLOCK_TSC, S, &out));
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCK_TSC, TW_CLOCK_RAW, S, &out));
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCKS, TW_CLOCK_RAW, S, &out));
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCK_RAW, (tw_clock)99, S, &out));
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCK_REALTIME, TW_CLOCK_MONOTONIC, 0, &out)); /* long before the boot */
    TW_CHECK(!tw_clock_convert(s, 3, TW_CLOCK_MONOTONIC, TW_CLOCK_REALTIME, UINT64_MAX, &out));
}

TW_TEST(nonsense_is_answered_or_refused) {
    uint64_t random = 1, out;
    for (int round = 0; round < 200000; round++) {
        tw_clock_snapshot s[4];
        for (size_t i = 0; i < 4 * sizeof s[0] / 8; i++)
            ((uint64_t *)s)[i] = tw_test_random(&random) >> tw_test_random_below(&random, 64);
        const size_t n = tw_test_random_below(&random, 5);
        const tw_clock from = (tw_clock)tw_test_random_below(&random, 6), to = (tw_clock)tw_test_random_below(&random, 6);
        const uint64_t t = tw_test_random(&random) >> tw_test_random_below(&random, 64);
        if (tw_clock_convert(s, n, from, to, t, &out)) TW_CHECK(out <= INT64_MAX);
    }
}

TW_TEST(real_clocks_agree_with_themselves) {
    tw_clock_snapshot s[2];
    tw_clock_snapshot_take(&s[0]);
    const uint64_t until = tw_now_ns() + 2 * TW_NS_PER_MS;
    while (tw_now_ns() < until) continue;
    tw_clock_snapshot_take(&s[1]);
    for (int i = 0; i < 2; i++) TW_CHECK(s[i].at[TW_CLOCK_REALTIME] > EPOCH / 2 && s[i].width_ns < TW_NS_PER_SECOND);
    const uint64_t middle = s[0].at[TW_CLOCK_MONOTONIC] + TW_NS_PER_MS;
    for (int to = 0; to < TW_CLOCK_TSC; to++) {
        const uint64_t there = converted(s, 2, TW_CLOCK_MONOTONIC, (tw_clock)to, middle);
        const uint64_t back = converted(s, 2, (tw_clock)to, TW_CLOCK_MONOTONIC, there);
        TW_CHECK(back + 2 >= middle && back <= middle + 2);
    }
}
