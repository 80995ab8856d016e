#include "tailwatch/base/address_set.h"

#include "tw_test.h"

static const void *at(uint64_t number) { return (const void *)(uintptr_t)(UINT64_C(0x7f0000000000) + number * TW_ADDRESS_UNIT); }

TW_TEST(empty_set) {
    tw_addresses a = {0};
    TW_CHECK(!tw_addresses_has(&a, at(0)));
    tw_addresses_remove(&a, at(0));
    TW_CHECK(a.count == 0 && tw_addresses_bytes(&a) == 0);
    tw_addresses_clear(&a);
}

/* Every third address of a wide range, so that regions are made, grown and looked up across each other. */
TW_TEST(holds_what_was_added) {
    tw_addresses a = {0};
    const uint64_t step = 7919, n = 200000;
    for (uint64_t i = 0; i < n; ++i) TW_CHECK(tw_addresses_add(&a, at(i * step)));
    for (uint64_t i = 0; i < n; ++i) TW_CHECK(tw_addresses_add(&a, at(i * step)));
    TW_CHECK(a.count == n);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; ++i) wrong += !tw_addresses_has(&a, at(i * step)) + tw_addresses_has(&a, at(i * step + 1));
    TW_CHECK(wrong == 0);
    tw_addresses_clear(&a);
    TW_CHECK(a.count == 0 && !tw_addresses_has(&a, at(step)));
}

TW_TEST(removed_ones_are_gone) {
    tw_addresses a = {0};
    for (uint64_t i = 0; i < 1000; ++i) TW_CHECK(tw_addresses_add(&a, at(i)));
    for (uint64_t i = 0; i < 1000; i += 2) tw_addresses_remove(&a, at(i)), tw_addresses_remove(&a, at(i));
    TW_CHECK(a.count == 500);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 1000; ++i) wrong += tw_addresses_has(&a, at(i)) != (i % 2 == 1);
    TW_CHECK(wrong == 0);
    tw_addresses_clear(&a);
}

/* 2.5 million objects of 112 bytes: less than 3.5 MB. */
TW_TEST(is_small) {
    tw_addresses a = {0};
    for (uint64_t i = 0; i < 2500000; ++i) TW_CHECK(tw_addresses_add(&a, at(i * 7)));
    TW_CHECK(a.count == 2500000 && tw_addresses_bytes(&a) < 3500000);
    tw_addresses_clear(&a);
}
