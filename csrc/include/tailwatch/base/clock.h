/* What time it is.
 *
 * Every time in the core is CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a kernel, never
 * stepped. Wall time appears only in tw_clock_pair, to print when something happened.
 */
#ifndef TAILWATCH_BASE_CLOCK_H
#define TAILWATCH_BASE_CLOCK_H

#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* clock_gettime under a strict -std=c11 */
#endif

#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_NS_PER_SECOND UINT64_C(1000000000)
#define TW_NS_PER_MS UINT64_C(1000000)

/* Now, in nanoseconds. About 20 ns through the vDSO. Any thread; async-signal-safe. */
static inline uint64_t tw_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * TW_NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

/* CPU time of the calling thread, in nanoseconds (a system call, about 240 ns). */
static inline uint64_t tw_thread_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * TW_NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

/* The same instant on both clocks; wall - monotonic is the offset to print a time of day with. */
typedef struct tw_clock_pair {
    uint64_t monotonic_ns;
    uint64_t realtime_ns; /* nanoseconds since the Unix epoch */
} tw_clock_pair;

/* Reads both clocks, keeping the tightest of three readings. Any thread. */
tw_clock_pair tw_clock_pair_now(void);

/* Length of a kernel timer tick (jiffy) in nanoseconds: 1, 4 or 10 ms. TCP_INFO counts in these. */
uint64_t tw_clock_jiffy_ns(void);

#ifdef __cplusplus
}
#endif
#endif
