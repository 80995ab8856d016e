/* Offering the core to others: not at once, and then once each interval. */
#include "tw_test.h"

#include <sched.h>

static int yields;
static int counted_yield(void) { return ++yields; }
#define sched_yield counted_yield
#include "base/yield.h"

TW_TEST(the_first_call_only_starts_the_interval) {
    uint64_t since = 0;
    yields = 0;
    tw_give_way(&since);
    TW_CHECK_EQ(0, (uint64_t)yields);
    TW_CHECK(since != 0);
}

TW_TEST(work_longer_than_the_interval_offers_the_core_once) {
    uint64_t since = tw_now_ns() - 2 * TW_GIVE_WAY_NS;
    const uint64_t before = since;
    yields = 0;
    tw_give_way(&since);
    TW_CHECK_EQ(1, (uint64_t)yields);
    TW_CHECK(since >= before + 2 * TW_GIVE_WAY_NS);
}
