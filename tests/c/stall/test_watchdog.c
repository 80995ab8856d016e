#include "tailwatch/stall/watchdog.h"

#include "tw_test.h"

#define MS UINT64_C(1000000)

/* A wake-up of 50 us each 10 ms is all that the budget gives: the longer period leaves three quarters of it. */
TW_TEST(what_is_left_of_the_budget_is_for_samples) {
    TW_CHECK_EQ(10 * MS, tw_watch_period(TW_WATCH_BURST_NS));
    TW_CHECK_EQ(10 * MS, tw_watch_period(TW_WATCH_BURST_NS / 2));
    TW_CHECK_EQ(20 * MS, tw_watch_period(TW_WATCH_BURST_NS / 2 - 1));
    TW_CHECK_EQ(20 * MS, tw_watch_period(TW_WATCH_BURST_NS / 4));
    TW_CHECK_EQ(40 * MS, tw_watch_period(TW_WATCH_BURST_NS / 4 - 1));
    TW_CHECK_EQ(40 * MS, tw_watch_period(0));
    const uint64_t wake_up = 50000, in_period = tw_watch_period(0) * TW_WATCH_BUDGET_PPM / 1000000;
    TW_CHECK(wake_up <= in_period / 4);
}

TW_TEST(a_longer_sleep_is_no_silence) {
    TW_CHECK_EQ(90 * MS, tw_watch_silent_from(100 * MS));
    TW_CHECK_EQ(0, tw_watch_silent_from(5 * MS));
}
