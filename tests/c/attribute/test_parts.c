/* Parts of a wait: whatever is added, no time is lost and no two parts are one. */
#include "tailwatch/attribute/parts.h"

#include "tw_test.h"

static tw_part part(uint64_t ns, int cause, uint32_t name) {
    return (tw_part){ns, name, (uint8_t)cause, TW_MEASURED, 0, TW_DETAIL_NONE, 0};
}

static void add(tw_parts *to, uint64_t ns, int cause, uint32_t name) {
    const tw_part one = part(ns, cause, name);
    tw_parts_add(to, &one);
}

static uint64_t of(const tw_parts *parts, int cause, uint32_t name) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; i++)
        if (parts->part[i].cause == cause && parts->part[i].name == name) ns += parts->part[i].ns;
    return ns;
}

TW_TEST(parts_of_one_kind_are_one_part) {
    tw_parts parts = {0};
    add(&parts, 5, TW_DELAY_CALLBACK, 7);
    add(&parts, 6, TW_DELAY_CALLBACK, 7);
    add(&parts, 1, TW_DELAY_CALLBACK, 8);
    add(&parts, 0, TW_DELAY_GIL, 8);
    TW_CHECK_EQ(2, parts.n);
    TW_CHECK_EQ(11, of(&parts, TW_DELAY_CALLBACK, 7));
}

TW_TEST(waits_for_one_holder_are_one_part_wherever_the_thread_waited) {
    tw_parts parts = {0};
    const uint64_t holder[] = {3, 3, 4, 0};
    for (uint32_t i = 0; i < 4; i++) {
        const tw_part one = {5, 7 + i, TW_DELAY_GIL, TW_SAMPLED, 0, TW_DETAIL_HOLDER, holder[i]};
        tw_parts_add(&parts, &one);
    }
    TW_CHECK_EQ(3, parts.n);
    TW_CHECK_EQ(10, of(&parts, TW_DELAY_GIL, 7));
    TW_CHECK_EQ(5, of(&parts, TW_DELAY_GIL, 9));
    TW_CHECK_EQ(5, of(&parts, TW_DELAY_GIL, 10)); /* the holder is not known */
}

static uint64_t holder_of(const uint64_t ns[2], const uint64_t holder[2]) {
    tw_parts parts = {0};
    for (int i = 0; i < 2; i++) {
        const tw_part one = {ns[i], 7, TW_DELAY_GIL, TW_SAMPLED, 0, TW_DETAIL_HOLDER, holder[i]};
        tw_parts_add(&parts, &one);
    }
    TW_CHECK_EQ(1, parts.n);
    TW_CHECK_EQ(ns[0] + ns[1], parts.part[0].ns);
    return parts.part[0].detail;
}

TW_TEST(the_holder_of_the_interpreter_lock_is_that_of_the_larger_part_which_has_one) {
    TW_CHECK_EQ(5, holder_of((uint64_t[]){10, 20}, (uint64_t[]){3, 5}));
    TW_CHECK_EQ(3, holder_of((uint64_t[]){20, 10}, (uint64_t[]){3, 5}));
    TW_CHECK_EQ(5, holder_of((uint64_t[]){20, 10}, (uint64_t[]){0, 5}));
    TW_CHECK_EQ(3, holder_of((uint64_t[]){10, 20}, (uint64_t[]){3, 0}));
}

TW_TEST(the_smallest_makes_room_and_becomes_unexplained) {
    tw_parts parts = {0};
    for (int cause = 0; cause < TW_PARTS; cause++) add(&parts, 10 + (uint64_t)cause, cause, 0);
    add(&parts, 100, TW_DELAY_PREFILL, 3);
    TW_CHECK_EQ(100, of(&parts, TW_DELAY_PREFILL, 3));
    TW_CHECK_EQ(10 + 11, of(&parts, TW_DELAY_UNEXPLAINED, 0));
    TW_CHECK_EQ(0, of(&parts, 0, 0));
    add(&parts, 200, TW_DELAY_PREFILL, 4); /* its cause is there: the larger names it */
    TW_CHECK_EQ(300, of(&parts, TW_DELAY_PREFILL, 4));
}

/* Whatever comes, in any order. */
TW_TEST(no_time_is_lost_and_parts_are_exclusive) {
    uint64_t seed = 41;
    for (int turn = 0; turn < 2000; turn++) {
        tw_parts parts = {0};
        uint64_t sum = 0;
        for (uint64_t n = tw_test_random_below(&seed, 60); n > 0; n--) {
            tw_part one = part(tw_test_random_below(&seed, 1000), (int)tw_test_random_below(&seed, TW_DELAYS),
                               (uint32_t)tw_test_random_below(&seed, 4));
            one.certainty = (uint8_t)tw_test_random_below(&seed, TW_CERTAINTIES);
            one.source = (uint8_t)tw_test_random_below(&seed, 3);
            sum += one.ns;
            tw_parts_add(&parts, &one);
        }
        TW_CHECK(parts.n <= TW_PARTS);
        TW_CHECK_EQ(sum, tw_parts_sum(&parts));
        const uint64_t limit = tw_test_random_below(&seed, 40000);
        const tw_parts whole = parts;
        tw_parts_clip(&parts, limit);
        TW_CHECK_EQ(sum < limit ? sum : limit, tw_parts_sum(&parts));
        for (uint32_t i = 0; i < parts.n; i++) TW_CHECK(parts.part[i].ns <= whole.part[i].ns);
    }
}

TW_TEST(names_of_causes_and_certainties) {
    TW_CHECK_STR("gc0", tw_delay_cause_name(TW_CAUSE_GC0));
    TW_CHECK_STR("callback", tw_delay_cause_name(TW_CAUSES));
    TW_CHECK_STR("unexplained", tw_delay_cause_name(TW_DELAYS - 1));
    TW_CHECK_STR("unknown", tw_delay_cause_name(TW_DELAYS));
    TW_CHECK_STR("estimated", tw_certainty_name(TW_ESTIMATED));
}
