/* The CPU quota of this process's cgroup, and how long it was throttled. Version 1 and 2. */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/record/host_track.h"

TW_BEGIN_C

/* A descriptor of its cpu.stat; -1: there is none, or it counts no throttling. */
int tw_cgroup_open(void);

/* Adds a span to a ring of the host: from when its cpu.stat was last read until now, of what was throttled between. The
 * kernel counts a throttled period when it ends, on each CPU. No span where there was none, or where the last reading is
 * less than a millisecond old: many tokens may be late at once. 1 us (version 2: more); the watchdog and the threads that
 * stamp: two at once may both add what was throttled. */
void tw_throttled_note(tw_host *host, tw_span_ring *ring, uint64_t now_ns);

/* CPUs that the quota gives, 10^-6; 0: no quota, or not known. Of a parent's quota nothing is known. */
uint64_t tw_cgroup_quota_ppm(void);

TW_END_C
