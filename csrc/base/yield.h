/* A long piece of work that stands on a core where a token path has to run. Private, for the cold path only.
 *
 * Without the GIL such work keeps its core for a whole time slice of the kernel (3 to 6 ms), even where another core
 * is idle: the thread of an event loop that wakes on it waits that long. So it offers the core again and again;
 * no more often than each TW_GIVE_WAY_NS, because beside other busy threads each offer costs a slice of theirs.
 */
#pragma once

#include "tailwatch/base/clock.h"

#include <sched.h>

#define TW_GIVE_WAY_NS UINT64_C(200000)

/* since_ns: when it last did, kept by the caller; 0 at first. */
static inline void tw_give_way(uint64_t *since_ns) {
    const uint64_t now = tw_now_ns();
    if (now - *since_ns < TW_GIVE_WAY_NS) return;
    if (*since_ns != 0) sched_yield();
    *since_ns = tw_now_ns();
}
