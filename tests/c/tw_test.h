/* The test harness: one executable per test file, one process per run.
 *
 *     TW_TEST(adds) { TW_CHECK_EQ(4, add(2, 2)); }
 *
 * A failed check prints where and what, and its test goes on; the process exits 1 when any failed. With
 * arguments only the tests of those names run. Checks may be made from several threads.
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
    int line;
    struct tw_test_case *next;
} tw_test_case;

static tw_test_case *tw_test_first;
static void (*tw_test_setup)(void);
static void (*tw_test_teardown)(void);
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

static inline void tw_test_register(tw_test_case *added) {
    tw_test_case **at = &tw_test_first;
    while (*at != NULL && (*at)->line < added->line) at = &(*at)->next;
    added->next = *at;
    *at = added;
}

/* ---- what a test gives back at its end ---- */

#define TW_TEST_LATER 4096

typedef struct tw_test_owned {
    void (*release)(void *what);
    void *what;
} tw_test_owned;

static tw_test_owned tw_test_later[TW_TEST_LATER];
static size_t tw_test_later_count;

/* Calls release(what) when the test has ended, failed or not, the last added first. From the test's own thread. */
static inline void *tw_test_own(void (*release)(void *what), void *what) {
    if (tw_test_later_count == TW_TEST_LATER) abort();
    tw_test_later[tw_test_later_count++] = (tw_test_owned){release, what};
    return what;
}

static inline void tw_test_run(const tw_test_case *test) {
    const int failed_before = tw_test_failures;
    if (tw_test_setup != NULL) tw_test_setup();
    test->run();
    while (tw_test_later_count > 0) {
        const tw_test_owned *last = &tw_test_later[--tw_test_later_count];
        last->release(last->what);
    }
    if (tw_test_teardown != NULL) tw_test_teardown();
    if (tw_test_failures != failed_before) fprintf(stderr, "FAILED %s\n", test->name);
}

static inline int tw_test_main(int argc, char **argv) {
    int run = 0;
    for (const tw_test_case *test = tw_test_first; test != NULL; test = test->next) {
        if (!tw_test_wanted(test->name, argc, argv)) continue;
        tw_test_run(test);
        run++;
    }
    printf("%d tests, %d checks, %d failures\n", run, tw_test_checks, tw_test_failures);
    return run == 0 || tw_test_checks == 0 || tw_test_failures != 0;
}

/* Defines a test, which registers itself before main(); they run in the order of their lines. */
#define TW_TEST(test_name)                                                                                \
    static void tw_test_##test_name(void);                                                                \
    __attribute__((constructor)) static void tw_register_##test_name(void) {                              \
        static tw_test_case added = {.name = #test_name, .run = tw_test_##test_name, .line = __LINE__};   \
        tw_test_register(&added);                                                                         \
    }                                                                                                     \
    static void tw_test_##test_name(void)

/* Runs setup before each test of the file and teardown after it. */
#define TW_AROUND(setup, teardown)                                    \
    __attribute__((constructor)) static void tw_register_around(void) { \
        tw_test_setup = setup;                                        \
        tw_test_teardown = teardown;                                  \
    }

int main(int argc, char **argv) { return tw_test_main(argc, argv); }

#endif
