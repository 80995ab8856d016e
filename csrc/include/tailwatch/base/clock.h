/* What time it is.
 *
 * Every time in the core is CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a kernel, never
 * stepped. Wall time appears only in tw_clock_pair, to print when something happened.
 */
#pragma once

#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* clock_gettime under a strict -std=c11 */
#endif

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

TW_BEGIN_C

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

/* CPU time of the whole process, in nanoseconds. */
static inline uint64_t tw_process_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
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

/* ---- the clocks of this machine side by side, and a time of one as a time of another ----
 *
 * Events are stamped with CLOCK_MONOTONIC; other tools stamp with others (nsys: TSC, torch and OTLP: REALTIME, Perfetto:
 * BOOTTIME). A snapshot reads all of them at one instant. Between two snapshots a conversion is a straight line, never
 * one offset: NTP slews MONOTONIC and REALTIME (500 ppm at most), and RAW and TSC it does not.
 */

typedef enum tw_clock {
    TW_CLOCK_MONOTONIC, /* ns */
    TW_CLOCK_RAW,       /* ns; not slewed */
    TW_CLOCK_REALTIME,  /* ns since the Unix epoch; slewed, and may be stepped */
    TW_CLOCK_BOOTTIME,  /* ns; MONOTONIC and the time suspended */
    TW_CLOCK_TSC,       /* ticks of the CPU's counter (CNTVCT on ARM); 0 where there is none */
    TW_CLOCKS
} tw_clock;

/* All clocks at one instant. 64 bytes. */
typedef struct tw_clock_snapshot {
    uint64_t at[TW_CLOCKS];
    uint64_t width_ns; /* how far apart the first and the last were read: the instant is known to half of this */
    uint64_t spare[2];
} tw_clock_snapshot;

/* Slopes of two clocks that differ by more than this between two snapshots mean that one of them was stepped. */
#define TW_CLOCK_SLEW_PPM 1000

/* Reads all clocks, keeping the tightest of five readings. About 1 us. Any thread. */
void tw_clock_snapshot_take(tw_clock_snapshot *out);

/* Time t of one clock as time of another: *out. snapshots: n of them in the order in which they were taken.
 *
 * Between two snapshots: linear. Before the first and after the last: with the slope of the nearest two; of one alone
 * with slope 1. Where a clock was stepped between two snapshots (set by hand; BOOTTIME by a suspend), it is not known when:
 * it counts as the instant of the later one, and until then the earlier one's offset holds. A time that a clock
 * stepped backwards showed twice means the later instant, one that it skipped the instant of the step.
 *
 * false: there is no snapshot; a tick counter and fewer than two of them, or one that does not run; a clock out of range;
 * a result before 0 or from 2^63 on. Any thread. */
bool tw_clock_convert(const tw_clock_snapshot *snapshots, size_t n, tw_clock from, tw_clock to, uint64_t t, uint64_t *out);

TW_END_C
