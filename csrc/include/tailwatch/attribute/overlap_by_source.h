/* The overlap of a gap with pauses, by the process that paused.
 *
 * A stream's own process always counts; another process counts if it works for the stream: the processes of one engine
 * wait for each other (engine_id.h). Where pauses of several processes coincide, an instant counts once, for the first of
 * them: the stream's own process, then the peers that work for all engines, then those of the engine that serves the
 * stream, each in the order they are given. The shares of a gap are therefore exclusive and never exceed it.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/record/enums.h"
#include "tailwatch/record/pause_clock.h"

TW_BEGIN_C

#define TW_ENGINE_SHARED (UINT64_C(5) << 60) /* of a process that tokens of all engines pass through */

#define TW_OVERLAP_SPANS 512 /* pauses of one gap that are looked at */

/* Another process of the group. */
typedef struct tw_peer {
    const tw_pause_clock *clock;
    uint64_t engine;      /* that it works for, or TW_ENGINE_SHARED; 0: its pauses delay no other process's streams */
    uint32_t source;      /* its role, 1 .. TW_SOURCE_OTHER; other values count as TW_SOURCE_OTHER */
} tw_peer;

#define TW_PEERS 254

/* The peers whose pauses may delay streams of this process, and where each publishes its last pause. Read and changed under
 * the GIL. */
typedef struct tw_peer_set {
    uint32_t n;
    const struct tw_segment *segment[TW_PEERS]; /* of each; NULL: it is not known */
    const uint64_t *stop_ns[TW_PEERS]; /* last_stop_ns of each clock */
    tw_peer peer[TW_PEERS];            /* engine is never 0 here */
} tw_peer_set;

/* Whether no peer of the engine (0: of any) has paused since since_ns, nor pauses now. One load for each. */
static inline bool tw_peers_idle_since(const tw_peer_set *peer_set, uint64_t engine, uint64_t since_ns) {
    for (uint32_t i = 0; i < peer_set->n; ++i)
        if (__builtin_expect(__atomic_load_n(peer_set->stop_ns[i], __ATOMIC_RELAXED) > since_ns, 0) &&
            (engine == 0 || peer_set->peer[i].engine == engine || peer_set->peer[i].engine == TW_ENGINE_SHARED)) return false;
    return true;
}

typedef struct tw_overlap_by_source {
    uint64_t overlap_ns[TW_SOURCES][TW_CAUSES];
    uint64_t total_ns;    /* at most to - from */
    bool complete;        /* false: a ring wrapped inside the gap, or had more than TW_OVERLAP_SPANS: lower bounds */
} tw_overlap_by_source;

/* Of the gap [from_ns, to_ns] of a stream that an engine serves; 0: it is not known which. Then all peers count if they
 * work for one engine, else the engine with the largest overlap does, as TW_SOURCE_UNBOUND: an upper bound for whichever
 * it was, never a sum over engines. peers: n of them, NULL if n is 0. Any thread; uses 24 KB of stack. */
void tw_gap_overlap(const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t engine, uint64_t from_ns,
                    uint64_t to_ns, tw_overlap_by_source *out);

TW_END_C
