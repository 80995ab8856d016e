/* The test harness: one executable per test file, one process per run.
 *
 *     TW_TEST(adds) { TW_CHECK_EQ(4, add(2, 2)); }
 *     TW_MAIN(adds, subtracts)
 *
 * A failed check prints where and what, and its test goes on; the process exits 1 when any failed. With
 * arguments only the tests of those names run. Checks may be made from several threads. TW_MAIN takes at
 * most 64 tests.
 */
#ifndef TAILWATCH_TESTS_C_TW_TEST_H
#define TAILWATCH_TESTS_C_TW_TEST_H

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tw_test_case {
    const char *name;
    void (*run)(void);
} tw_test_case;

static int tw_test_failures;
static int tw_test_checks;

#define TW_TEST_SHOWN 20 /* failures printed; the rest is only counted */

static inline bool tw_test_report(bool passed, const char *file, int line) {
    __atomic_add_fetch(&tw_test_checks, 1, __ATOMIC_RELAXED);
    if (passed) return false;
    int failures = __atomic_add_fetch(&tw_test_failures, 1, __ATOMIC_RELAXED);
    if (failures > TW_TEST_SHOWN) return false;
    fprintf(stderr, "%s:%d: ", file, line);
    return true;
}

static inline bool tw_test_true(bool passed, const char *text, const char *file, int line) {
    if (tw_test_report(passed, file, line)) fprintf(stderr, "failed: %s\n", text);
    return passed;
}

static inline bool tw_test_equal(uint64_t expected, uint64_t actual, const char *text, const char *file, int line) {
    if (tw_test_report(expected == actual, file, line))
        fprintf(stderr, "%s: expected %" PRIu64 " (0x%" PRIx64 "), found %" PRIu64 " (0x%" PRIx64 ")\n", text, expected,
                expected, actual, actual);
    return expected == actual;
}

static inline bool tw_test_near(double expected, double actual, double tolerance, const char *text, const char *file,
                                int line) {
    bool passed = fabs(expected - actual) <= tolerance;
    if (tw_test_report(passed, file, line))
        fprintf(stderr, "%s: expected %.17g within %g, found %.17g\n", text, expected, tolerance, actual);
    return passed;
}

static inline bool tw_test_string(const char *expected, const char *actual, const char *text, const char *file,
                                  int line) {
    bool passed = actual != NULL && strcmp(expected, actual) == 0;
    if (tw_test_report(passed, file, line))
        fprintf(stderr, "%s: expected \"%s\", found \"%s\"\n", text, expected, actual ? actual : "(null)");
    return passed;
}

static inline bool tw_test_bytes(const void *expected, const void *actual, size_t size, const char *text,
                                 const char *file, int line) {
    const unsigned char *a = (const unsigned char *)expected, *b = (const unsigned char *)actual;
    size_t at = 0;
    while (at < size && a[at] == b[at]) at++;
    if (tw_test_report(at == size, file, line))
        fprintf(stderr, "%s: byte %zu: expected 0x%02x, found 0x%02x\n", text, at, a[at], b[at]);
    return at == size;
}

/* Each check is an expression: true when it held. */
#define TW_CHECK(condition) tw_test_true((condition), #condition, __FILE__, __LINE__)
#define TW_CHECK_EQ(expected, actual) \
    tw_test_equal((uint64_t)(expected), (uint64_t)(actual), #actual, __FILE__, __LINE__)
#define TW_CHECK_NEAR(expected, actual, tolerance) \
    tw_test_near((expected), (actual), (tolerance), #actual, __FILE__, __LINE__)
#define TW_CHECK_STR(expected, actual) tw_test_string((expected), (actual), #actual, __FILE__, __LINE__)
#define TW_CHECK_MEM(expected, actual, size) \
    tw_test_bytes((expected), (actual), (size), #actual, __FILE__, __LINE__)

/* For what the rest of a test stands on: stops the process. */
#define TW_REQUIRE(condition)         \
    do {                              \
        if (!TW_CHECK(condition)) {   \
            fflush(stderr);           \
            exit(1);                  \
        }                             \
    } while (0)

/* A small generator with a fixed seed (xorshift64*), so that a failure repeats. The state must not be 0. */
static inline uint64_t tw_test_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}
static inline uint64_t tw_test_random_below(uint64_t *state, uint64_t limit) { return tw_test_random(state) % limit; }

static inline bool tw_test_wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(name, argv[i]) == 0) return true;
    return argc < 2;
}

static inline int tw_test_main(const tw_test_case *cases, size_t count, int argc, char **argv) {
    int run = 0;
    for (size_t i = 0; i < count; i++) {
        if (!tw_test_wanted(cases[i].name, argc, argv)) continue;
        int failed_before = tw_test_failures;
        cases[i].run();
        run++;
        if (tw_test_failures != failed_before) fprintf(stderr, "FAILED %s\n", cases[i].name);
    }
    printf("%d tests, %d checks, %d failures\n", run, tw_test_checks, tw_test_failures);
    return run == 0 || tw_test_checks == 0 || tw_test_failures != 0;
}

#define TW_TEST(name) static void tw_test_##name(void)

/* TW_MAIN(a, b, c): applies TW_TEST_CASE to each name. */
#define TW_TEST_CASE(name) {#name, tw_test_##name},
#define TW_EACH_1(f, a) f(a)
#define TW_EACH_2(f, a, ...) f(a) TW_EACH_1(f, __VA_ARGS__)
#define TW_EACH_3(f, a, ...) f(a) TW_EACH_2(f, __VA_ARGS__)
#define TW_EACH_4(f, a, ...) f(a) TW_EACH_3(f, __VA_ARGS__)
#define TW_EACH_5(f, a, ...) f(a) TW_EACH_4(f, __VA_ARGS__)
#define TW_EACH_6(f, a, ...) f(a) TW_EACH_5(f, __VA_ARGS__)
#define TW_EACH_7(f, a, ...) f(a) TW_EACH_6(f, __VA_ARGS__)
#define TW_EACH_8(f, a, ...) f(a) TW_EACH_7(f, __VA_ARGS__)
#define TW_EACH_9(f, a, ...) f(a) TW_EACH_8(f, __VA_ARGS__)
#define TW_EACH_10(f, a, ...) f(a) TW_EACH_9(f, __VA_ARGS__)
#define TW_EACH_11(f, a, ...) f(a) TW_EACH_10(f, __VA_ARGS__)
#define TW_EACH_12(f, a, ...) f(a) TW_EACH_11(f, __VA_ARGS__)
#define TW_EACH_13(f, a, ...) f(a) TW_EACH_12(f, __VA_ARGS__)
#define TW_EACH_14(f, a, ...) f(a) TW_EACH_13(f, __VA_ARGS__)
#define TW_EACH_15(f, a, ...) f(a) TW_EACH_14(f, __VA_ARGS__)
#define TW_EACH_16(f, a, ...) f(a) TW_EACH_15(f, __VA_ARGS__)
#define TW_EACH_17(f, a, ...) f(a) TW_EACH_16(f, __VA_ARGS__)
#define TW_EACH_18(f, a, ...) f(a) TW_EACH_17(f, __VA_ARGS__)
#define TW_EACH_19(f, a, ...) f(a) TW_EACH_18(f, __VA_ARGS__)
#define TW_EACH_20(f, a, ...) f(a) TW_EACH_19(f, __VA_ARGS__)
#define TW_EACH_21(f, a, ...) f(a) TW_EACH_20(f, __VA_ARGS__)
#define TW_EACH_22(f, a, ...) f(a) TW_EACH_21(f, __VA_ARGS__)
#define TW_EACH_23(f, a, ...) f(a) TW_EACH_22(f, __VA_ARGS__)
#define TW_EACH_24(f, a, ...) f(a) TW_EACH_23(f, __VA_ARGS__)
#define TW_EACH_25(f, a, ...) f(a) TW_EACH_24(f, __VA_ARGS__)
#define TW_EACH_26(f, a, ...) f(a) TW_EACH_25(f, __VA_ARGS__)
#define TW_EACH_27(f, a, ...) f(a) TW_EACH_26(f, __VA_ARGS__)
#define TW_EACH_28(f, a, ...) f(a) TW_EACH_27(f, __VA_ARGS__)
#define TW_EACH_29(f, a, ...) f(a) TW_EACH_28(f, __VA_ARGS__)
#define TW_EACH_30(f, a, ...) f(a) TW_EACH_29(f, __VA_ARGS__)
#define TW_EACH_31(f, a, ...) f(a) TW_EACH_30(f, __VA_ARGS__)
#define TW_EACH_32(f, a, ...) f(a) TW_EACH_31(f, __VA_ARGS__)
#define TW_EACH_33(f, a, ...) f(a) TW_EACH_32(f, __VA_ARGS__)
#define TW_EACH_34(f, a, ...) f(a) TW_EACH_33(f, __VA_ARGS__)
#define TW_EACH_35(f, a, ...) f(a) TW_EACH_34(f, __VA_ARGS__)
#define TW_EACH_36(f, a, ...) f(a) TW_EACH_35(f, __VA_ARGS__)
#define TW_EACH_37(f, a, ...) f(a) TW_EACH_36(f, __VA_ARGS__)
#define TW_EACH_38(f, a, ...) f(a) TW_EACH_37(f, __VA_ARGS__)
#define TW_EACH_39(f, a, ...) f(a) TW_EACH_38(f, __VA_ARGS__)
#define TW_EACH_40(f, a, ...) f(a) TW_EACH_39(f, __VA_ARGS__)
#define TW_EACH_41(f, a, ...) f(a) TW_EACH_40(f, __VA_ARGS__)
#define TW_EACH_42(f, a, ...) f(a) TW_EACH_41(f, __VA_ARGS__)
#define TW_EACH_43(f, a, ...) f(a) TW_EACH_42(f, __VA_ARGS__)
#define TW_EACH_44(f, a, ...) f(a) TW_EACH_43(f, __VA_ARGS__)
#define TW_EACH_45(f, a, ...) f(a) TW_EACH_44(f, __VA_ARGS__)
#define TW_EACH_46(f, a, ...) f(a) TW_EACH_45(f, __VA_ARGS__)
#define TW_EACH_47(f, a, ...) f(a) TW_EACH_46(f, __VA_ARGS__)
#define TW_EACH_48(f, a, ...) f(a) TW_EACH_47(f, __VA_ARGS__)
#define TW_EACH_49(f, a, ...) f(a) TW_EACH_48(f, __VA_ARGS__)
#define TW_EACH_50(f, a, ...) f(a) TW_EACH_49(f, __VA_ARGS__)
#define TW_EACH_51(f, a, ...) f(a) TW_EACH_50(f, __VA_ARGS__)
#define TW_EACH_52(f, a, ...) f(a) TW_EACH_51(f, __VA_ARGS__)
#define TW_EACH_53(f, a, ...) f(a) TW_EACH_52(f, __VA_ARGS__)
#define TW_EACH_54(f, a, ...) f(a) TW_EACH_53(f, __VA_ARGS__)
#define TW_EACH_55(f, a, ...) f(a) TW_EACH_54(f, __VA_ARGS__)
#define TW_EACH_56(f, a, ...) f(a) TW_EACH_55(f, __VA_ARGS__)
#define TW_EACH_57(f, a, ...) f(a) TW_EACH_56(f, __VA_ARGS__)
#define TW_EACH_58(f, a, ...) f(a) TW_EACH_57(f, __VA_ARGS__)
#define TW_EACH_59(f, a, ...) f(a) TW_EACH_58(f, __VA_ARGS__)
#define TW_EACH_60(f, a, ...) f(a) TW_EACH_59(f, __VA_ARGS__)
#define TW_EACH_61(f, a, ...) f(a) TW_EACH_60(f, __VA_ARGS__)
#define TW_EACH_62(f, a, ...) f(a) TW_EACH_61(f, __VA_ARGS__)
#define TW_EACH_63(f, a, ...) f(a) TW_EACH_62(f, __VA_ARGS__)
#define TW_EACH_64(f, a, ...) f(a) TW_EACH_63(f, __VA_ARGS__)
#define TW_EACH_PICK( \
    _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, \
    _17, _18, _19, _20, _21, _22, _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, \
    _33, _34, _35, _36, _37, _38, _39, _40, _41, _42, _43, _44, _45, _46, _47, _48, \
    _49, _50, _51, _52, _53, _54, _55, _56, _57, _58, _59, _60, _61, _62, _63, _64, \
    picked, ...) picked
#define TW_EACH(f, ...) \
    TW_EACH_PICK( \
        __VA_ARGS__, \
        TW_EACH_64, TW_EACH_63, TW_EACH_62, TW_EACH_61, TW_EACH_60, TW_EACH_59, TW_EACH_58, TW_EACH_57, \
        TW_EACH_56, TW_EACH_55, TW_EACH_54, TW_EACH_53, TW_EACH_52, TW_EACH_51, TW_EACH_50, TW_EACH_49, \
        TW_EACH_48, TW_EACH_47, TW_EACH_46, TW_EACH_45, TW_EACH_44, TW_EACH_43, TW_EACH_42, TW_EACH_41, \
        TW_EACH_40, TW_EACH_39, TW_EACH_38, TW_EACH_37, TW_EACH_36, TW_EACH_35, TW_EACH_34, TW_EACH_33, \
        TW_EACH_32, TW_EACH_31, TW_EACH_30, TW_EACH_29, TW_EACH_28, TW_EACH_27, TW_EACH_26, TW_EACH_25, \
        TW_EACH_24, TW_EACH_23, TW_EACH_22, TW_EACH_21, TW_EACH_20, TW_EACH_19, TW_EACH_18, TW_EACH_17, \
        TW_EACH_16, TW_EACH_15, TW_EACH_14, TW_EACH_13, TW_EACH_12, TW_EACH_11, TW_EACH_10, TW_EACH_9, \
        TW_EACH_8, TW_EACH_7, TW_EACH_6, TW_EACH_5, TW_EACH_4, TW_EACH_3, TW_EACH_2, TW_EACH_1, \
        0)(f, __VA_ARGS__)

#define TW_MAIN(...)                                                                    \
    int main(int argc, char **argv) {                                                   \
        static const tw_test_case cases[] = {TW_EACH(TW_TEST_CASE, __VA_ARGS__)};       \
        return tw_test_main(cases, sizeof cases / sizeof cases[0], argc, argv);         \
    }

#endif
