/* Whose pauses a gap coincided with, when several processes may have been waited for.
 *
 * A stream's own process is certain to be in the way. Others are where they work for the stream: the ranks of one
 * engine are a unit, and while one stands still all do (engine_id.h). Where pauses of several processes coincide an instant
 * counts once, for the first of them: the stream's own process, then the peers that work for all engines, then those
 * of the engine that serves the stream, each in the order they are given. So the shares of a gap are exclusive and never
 * exceed it.
 */
#ifndef TAILWATCH_ATTRIBUTE_ATTRIBUTION_H
#define TAILWATCH_ATTRIBUTE_ATTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/record/enums.h"
#include "tailwatch/record/pause_clock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_UNIT_SHARED (UINT64_C(5) << 60) /* it works for all engines: tokens of each pass through it */

#define TW_ATTRIBUTION_SPANS 512 /* stretches of a gap that are told apart; with more the rest is not looked at */

/* Another process of the group. */
typedef struct tw_peer {
    const tw_pause_clock *clock;
    uint64_t unit;        /* the engine it works for; 0: it delays nobody else's streams; or TW_UNIT_SHARED */
    uint32_t source;      /* its role, 1 .. TW_SOURCE_OTHER; anything else counts as TW_SOURCE_OTHER */
} tw_peer;

#define TW_PEERS 254

/* The peers whose pauses may delay streams of this process, and where each says that it stood still. Changed by the
 * thread that reads it only (the GIL). */
typedef struct tw_peer_set {
    uint32_t n;
    const uint64_t *stop_ns[TW_PEERS]; /* their lines of the group's page */
    tw_peer peer[TW_PEERS];            /* unit is never 0 here */
} tw_peer_set;

/* Whether none that works for the unit (0: for any) stood still after since_ns, nor does. One load for each. */
static inline bool tw_peers_idle_since(const tw_peer_set *peer_set, uint64_t unit, uint64_t since_ns) {
    for (uint32_t i = 0; i < peer_set->n; ++i)
        if (__builtin_expect(__atomic_load_n(peer_set->stop_ns[i], __ATOMIC_RELAXED) > since_ns, 0) &&
            (unit == 0 || peer_set->peer[i].unit == unit || peer_set->peer[i].unit == TW_UNIT_SHARED)) return false;
    return true;
}

typedef struct tw_attribution {
    uint64_t overlap_ns[TW_SOURCES][TW_CAUSES];
    uint64_t total_ns;    /* at most to - from */
    bool complete;        /* false: a ring wrapped inside the gap, or there was too much to tell apart: lower bounds */
} tw_attribution;

/* The gap [from_ns, to_ns] of a stream that unit serves. Peers of TW_UNIT_SHARED count whichever that is. unit 0: not
 * known; then the others count if they all work for one engine, else the engine with the largest overlap counts, as
 * TW_SOURCE_UNBOUND: an upper bound for whichever it was, never a sum over engines. peers: n of them, NULL when n is 0.
 * Any thread; uses 24 KB of stack. */
void tw_attribution_gap(const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t unit, uint64_t from_ns,
                  uint64_t to_ns, tw_attribution *out);

#ifdef __cplusplus
}
#endif
#endif
