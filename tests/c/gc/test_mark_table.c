#include "tailwatch/gc/mark_table.h"

#include "tw_test.h"

static const void *at(uint64_t number) { return (const void *)(uintptr_t)(UINT64_C(0x7f0000000010) + number * TW_MARKS_UNIT); }

TW_TEST(nothing_is_marked) {
    tw_marks m = {0};
    TW_CHECK(tw_marks_find(&m, at(0)) == NULL);
    TW_CHECK(!tw_place_has(tw_marks_find(&m, at(0)), TW_MARK_WALKED));
    TW_CHECK(tw_marks_bytes(&m) == 0);
    tw_marks_clear(&m);
}

/* Neighbours do not share their marks, and each kind stands for itself, over many regions. */
TW_TEST(marks_are_each_object_s_own) {
    tw_marks m = {0};
    const uint64_t step = 977, n = 50000;
    for (uint64_t i = 0; i < n; ++i) {
        const tw_place p = tw_marks_make(&m, at(i * step));
        tw_place_set(p, (tw_mark)(i % TW_MARK_KINDS));
        for (uint64_t k = 0; k < i % 5; ++k) tw_place_count(p);
    }
    for (uint64_t i = 0; i < n; ++i) {
        const tw_place p = tw_marks_find(&m, at(i * step)), next = tw_marks_find(&m, at(i * step + 1));
        for (int kind = 0; kind < TW_MARK_KINDS; ++kind) {
            TW_CHECK(tw_place_has(p, (tw_mark)kind) == (kind == (int)(i % TW_MARK_KINDS)));
            TW_CHECK(!tw_place_has(next, (tw_mark)kind));
        }
        TW_CHECK(tw_place_counted(p) == i % 5);
    }
    tw_place_clear(tw_marks_find(&m, at(0)), TW_MARK_WALKED);
    TW_CHECK(!tw_place_has(tw_marks_find(&m, at(0)), TW_MARK_WALKED));
    tw_marks_clear(&m);
    TW_CHECK(tw_marks_bytes(&m) == 0);
}

TW_TEST(a_cycle_forgets_the_one_before) {
    tw_marks m = {0};
    tw_place p = tw_marks_make(&m, at(3));
    tw_place_set(p, TW_MARK_REACHED);
    tw_place_count(p);
    tw_marks_next_cycle(&m);
    p = tw_marks_find(&m, at(3));
    TW_CHECK(p != NULL && !tw_place_has(p, TW_MARK_REACHED) && tw_place_counted(p) == 0);
    tw_marks_clear(&m);
}

/* It stands beside the marks, and touches none. */
TW_TEST(the_count_ends) {
    tw_marks m = {0};
    const tw_place p = tw_marks_make(&m, at(9));
    tw_place_set(p, TW_MARK_FOUND);
    for (int i = 0; i < 70000; ++i) tw_place_count(p);
    TW_CHECK_EQ(70000, tw_place_counted(p));
    tw_place_recount(p, TW_MARKS_COUNT_MOST - 1);
    for (int i = 0; i < 3; ++i) tw_place_count(p);
    TW_CHECK_EQ(TW_MARKS_COUNT_MOST, tw_place_counted(p));
    tw_place_recount(p, 0);
    TW_CHECK_EQ(0, tw_place_counted(p));
    for (int kind = 0; kind < TW_MARK_KINDS; ++kind) TW_CHECK(tw_place_has(p, (tw_mark)kind) == (kind == TW_MARK_FOUND));
    tw_marks_clear(&m);
}

static const void *region(uint64_t number) { return at(number * TW_MARKS_SLOTS); }

/* A heap that was large once: its marks go, a few with each call, and those in use are found all the while. */
TW_TEST(what_two_rounds_do_not_meet_goes) {
    tw_marks m = {0};
    const uint64_t many = 5000, few = 50, apart = 97;
    for (uint64_t i = 0; i < many; ++i) tw_place_set(tw_marks_make(&m, region(i)), TW_MARK_WALKED);
    const size_t most = tw_marks_bytes(&m);
    tw_marks_next_cycle(&m);
    tw_marks_tidy(&m, 2 * many);
    TW_CHECK(tw_marks_bytes(&m) == most); /* of the cycle before */
    for (int cycle = 0; cycle < 4; ++cycle) {
        tw_marks_next_cycle(&m);
        for (uint64_t i = 0; i < few; ++i) tw_place_set(tw_marks_make(&m, region(i * apart)), TW_MARK_REACHED);
        for (int call = 0; call < 400; ++call) tw_marks_tidy(&m, 64);
        for (uint64_t i = 0; i < many; ++i) {
            const tw_place p = tw_marks_find(&m, region(i));
            TW_CHECK(tw_place_has(p, TW_MARK_REACHED) == (i % apart == 0 && i / apart < few));
            TW_CHECK(!tw_place_has(p, TW_MARK_WALKED));
        }
    }
    TW_CHECK(m.regions == few);
    TW_CHECK(tw_marks_bytes(&m) < most / 20);
    tw_marks_next_cycle(&m);
    tw_marks_next_cycle(&m);
    tw_marks_tidy(&m, m.places);
    tw_marks_tidy(&m, m.places);
    TW_CHECK(m.regions == 0);
    tw_marks_tidy(&m, 64);
    tw_place_set(tw_marks_make(&m, region(7)), TW_MARK_WALKED);
    TW_CHECK(tw_place_has(tw_marks_find(&m, region(7)), TW_MARK_WALKED));
    tw_marks_clear(&m);
    tw_marks_tidy(&m, 64);
}
