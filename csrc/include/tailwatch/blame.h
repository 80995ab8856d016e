/* Whose pauses a gap coincided with, when several processes may have been waited for.
 *
 * A stream's own process is certain to be in the way. Others are where they work for the stream: the ranks of one
 * engine are a unit, and while one stands still all do. Where pauses of several processes coincide an instant counts
 * once, for the first of them: the stream's own process, then the peers in the order they are given. So the shares of a
 * gap are exclusive and never exceed it.
 */
#ifndef TAILWATCH_BLAME_H
#define TAILWATCH_BLAME_H

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/event.h"
#include "tailwatch/pause.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_SOURCES 8      /* roles whose pauses are told apart; 0 is the stream's own process */
#define TW_SOURCE_UNBOUND (TW_SOURCES - 1) /* of several engines one, and it is not known which */
#define TW_BLAME_SPANS 512 /* stretches of a gap that are told apart; with more the rest is not looked at */

/* Another process of the group. */
typedef struct tw_peer {
    const tw_pause_clock *clock;
    uint64_t unit;        /* the engine it works for, 1 and up; 0: it delays nobody else's streams */
    uint32_t source;      /* 1 .. TW_SOURCES - 2; larger ones count as the last of these */
} tw_peer;

typedef struct tw_blame {
    uint64_t overlap_ns[TW_SOURCES][TW_CAUSES];
    uint64_t total_ns;    /* at most to - from */
    bool complete;        /* false: a ring wrapped inside the gap, or there was too much to tell apart: lower bounds */
} tw_blame;

/* The gap [from_ns, to_ns] of a stream that unit serves. unit 0: not known; then peers count if they all work for one
 * engine, else the engine with the largest overlap counts, as TW_SOURCE_UNBOUND: an upper bound for whichever it was,
 * never a sum over engines. peers: n of them, NULL when n is 0. Any thread; uses 24 KB of stack. */
void tw_blame_gap(const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t unit, uint64_t from_ns,
                  uint64_t to_ns, tw_blame *out);

#ifdef __cplusplus
}
#endif
#endif
