/* Without memory there are no marks, and nothing else is wrong: those that were made before stay. */
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_from; /* every allocation from this one on fails; 0: none */

static void *tw_calloc(size_t count, size_t size) {
    return ++allocations >= fail_from && fail_from > 0 ? NULL : calloc(count, size);
}
static void tw_free(void *memory) { free(memory); }
#define TW_MALLOC_INCLUDE <stddef.h>
#include "../../csrc/gc/mark_table.c"

#include "tw_test.h"

#define OBJECTS 1000 /* a region each */

static const void *at(uint64_t number) { return (const void *)(uintptr_t)(UINT64_C(0x7f0000000010) + (number << REGION_SHIFT)); }

static void mark(tw_marks *m, uint64_t number) {
    const tw_place place = tw_marks_make(m, at(number));
    tw_place_set(place, TW_MARK_WALKED);
    tw_place_set(place, TW_MARK_FOUND);
    tw_place_clear(place, TW_MARK_FOUND);
    tw_place_count(place);
}

TW_TEST(every_allocation_fails_once) {
    for (fail_from = 1; fail_from <= 12; fail_from++) {
        tw_marks m = {0};
        allocations = 0;
        size_t marked = 0;
        for (uint64_t i = 0; i < OBJECTS; i++) {
            mark(&m, i);
            const tw_place place = tw_marks_find(&m, at(i));
            TW_CHECK(!tw_place_has(place, TW_MARK_FOUND));
            if (tw_place_has(place, TW_MARK_WALKED)) TW_CHECK_EQ(marked++, i);
        }
        TW_CHECK(marked < fail_from);
        TW_CHECK_EQ(marked, m.regions);
        tw_marks_clear(&m);
    }
    fail_from = 0;
}

/* What could not be marked can be, once there is memory. */
TW_TEST(memory_comes_back) {
    tw_marks m = {0};
    allocations = 0, fail_from = 1;
    mark(&m, 1);
    fail_from = 0;
    TW_CHECK(!tw_place_has(tw_marks_find(&m, at(1)), TW_MARK_WALKED));
    mark(&m, 1);
    TW_CHECK(tw_place_has(tw_marks_find(&m, at(1)), TW_MARK_WALKED));
    tw_marks_clear(&m);
}

/* A table that cannot be made smaller stays as it is. */
TW_TEST(tidying_needs_no_memory) {
    tw_marks m = {0};
    for (uint64_t i = 0; i < OBJECTS; i++) mark(&m, i);
    tw_marks_next_cycle(&m);
    tw_marks_next_cycle(&m);
    mark(&m, 3);
    allocations = 0, fail_from = 1;
    tw_marks_tidy(&m, 4 * OBJECTS);
    fail_from = 0;
    TW_CHECK_EQ(1, m.regions);
    TW_CHECK(tw_place_has(tw_marks_find(&m, at(3)), TW_MARK_WALKED));
    tw_marks_clear(&m);
}
