/* The numbers of the text formats. */
#include "../../csrc/export/prom_text.c"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tw_test.h"

static void check_number(const char *expected, char *number, size_t length) {
    number[length] = '\0';
    TW_CHECK_STR(expected, number);
}

TW_TEST(counts_are_decimal) {
    static const uint64_t values[] = {0, 7, 10, 99, 100, 101, 12345, UINT64_C(9999999999999999999), UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char number[NUMBER_ROOM], expected[32];
        snprintf(expected, sizeof expected, "%" PRIu64, values[i]);
        check_number(expected, number, tw_format_count(number, values[i]));
    }
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        char number[NUMBER_ROOM], expected[32];
        uint64_t value = tw_test_random(&state) >> (i % 64);
        snprintf(expected, sizeof expected, "%" PRIu64, value);
        number[tw_format_count(number, value)] = '\0';
        if (strcmp(number, expected)) TW_CHECK_STR(expected, number);
    }
}

TW_TEST(seconds_are_exact) {
    char number[NUMBER_ROOM];
    check_number("0.0", number, format_seconds(number, 0));
    check_number("1.0", number, format_seconds(number, 1000000000));
    check_number("0.005", number, format_seconds(number, 5000000));
    check_number("0.000000001", number, format_seconds(number, 1));
    check_number("163.84", number, format_seconds(number, UINT64_C(163840000000)));
    check_number("18446744073.709551615", number, format_seconds(number, UINT64_MAX));
    check_number("340282366920938463463374607431.768211455", number, format_seconds(number, ~(u128)0));
    const u128 large = (u128)10000000000000000000u * TW_NS_PER_SECOND;
    check_number("10000000000000000000.0", number, format_seconds(number, large));
}

TW_TEST(ratios_come_back_as_the_quotient) {
    char number[NUMBER_ROOM];
    check_number("0.0", number, format_ratio(number, 0, 60));
    check_number("1.0", number, format_ratio(number, 60, 60));
    check_number("0.95", number, format_ratio(number, 19, 20));
    check_number("2.5", number, format_ratio(number, 150, 60));
    uint64_t state = 7;
    for (int i = 0; i < 20000; i++) {
        uint64_t numerator = tw_test_random_below(&state, UINT64_C(1) << (1 + i % 40));
        uint64_t denominator = 1 + tw_test_random_below(&state, UINT64_C(1) << (1 + i % 33));
        double quotient = (double)numerator / (double)denominator;
        number[format_ratio(number, numerator, denominator)] = '\0';
        if (fabs(strtod(number, NULL) - quotient) > 3e-16 * quotient) TW_CHECK_NEAR(quotient, strtod(number, NULL), 0);
    }
    check_number("0.000000000000000000054210108624275221", number, format_ratio(number, 1, UINT64_MAX));
}
