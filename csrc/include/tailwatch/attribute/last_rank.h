/* Which rank of an engine a step waited for: ranks that meet in each layer wait in the first one for the last to enter.
 *
 * A step is found in the others by its mark. Late is the last one's entry against the (lower) median of the others'; with
 * two ranks, the other's. What is usual for the engine is the median of that over steps before, far apart.
 *
 * Thread rule: any thread or process; allocates nothing.
 */
#pragma once

#include "tailwatch/attribute/overlap_by_source.h"
#include "tailwatch/base/extern_c.h"

#include <stdint.h>

#include "tailwatch/record/step_ring.h"

TW_BEGIN_C

#define TW_LATE_STEPS 64 /* steps of a wait that are looked at, the latest ones */
#define TW_RANKS 64      /* ranks of an engine that are; the first ones */

/* The last rank of a step. */
typedef struct tw_late_rank {
    uint32_t peer;            /* of the set */
    uint32_t rank;            /* its number */
    uint64_t from_ns, to_ns;  /* when it would have entered as usual; when it did */
} tw_late_rank;

/* Of the steps that an engine's last rank entered in (from_ns, to_ns], those that it entered clearly later than is usual,
 * within that interval: newest first, no two have an instant in common. Returns how many. None where the engine has
 * fewer than two ranks. */
uint32_t tw_late_ranks(const tw_peer_set *peer_set, uint64_t engine, uint64_t from_ns, uint64_t to_ns,
                       tw_late_rank out[TW_LATE_STEPS]);

/* How long a process computed its rank's part of steps in [from_ns, to_ns], by its latest ones; UINT64_MAX: it has no
 * rank. Between them it may spin, which is no wait of a step's. */
uint64_t tw_rank_inside_ns(const tw_step_ring *ring, uint64_t from_ns, uint64_t to_ns);

TW_END_C
