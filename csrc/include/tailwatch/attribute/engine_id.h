/* Which engine a process works for, and which serves a stream: one word.
 *
 * The ranks of one engine are a unit: while one stands still all do. An engine is known by the number or name that its
 * processes were given (the data parallel rank, in servers that have several), or else by its process:
 *
 *     0                        no engine: it delays nobody else's streams. Of a stream: not known
 *     tw_unit_named("1", 1)    that engine
 *     TW_UNIT_ITSELF | pid     an engine that was given no name: the process itself, and who says TW_UNIT_LIKE of it
 *     TW_UNIT_LIKE | pid       the engine that this process works for, usually its parent. Where that is no engine: the
 *                              only engine of the group; where there are several, or none, one of its own
 *     TW_UNIT_SHARED           tokens of all engines pass through it; where several say so, each is one of its own
 *
 * So who says nothing is either beyond doubt or a unit of its own, whose pauses are charged to a stream only as
 * TW_SOURCE_UNBOUND: never as a sum, and never to an engine that may have had no part in it.
 */
#ifndef TAILWATCH_ATTRIBUTE_ENGINE_ID_H
#define TAILWATCH_ATTRIBUTE_ENGINE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/attribute/attribution.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_UNIT_NUMBER (UINT64_C(1) << 60)
#define TW_UNIT_NAME (UINT64_C(2) << 60)
#define TW_UNIT_ITSELF (UINT64_C(3) << 60)
#define TW_UNIT_LIKE (UINT64_C(4) << 60)
#define TW_UNIT_KIND (UINT64_C(15) << 60)

#define TW_UNIT_NAME_BYTES 31

/* The engine of this name: 1 to 31 letters, digits, '_', '.', '-', a letter or digit first; digits alone are a number
 * below 2^32, "07" is "7". 0: it is no name. Other names differ as far as 60 bits of a hash do. */
uint64_t tw_unit_named(const char *name, size_t len);

/* A unit in 16 bits, for events. 0: of 0 only. */
static inline uint16_t tw_unit_mark(uint64_t unit) {
    const uint16_t mark = (uint16_t)(unit * UINT64_C(0x9e3779b97f4a7c15) >> 48);
    return unit == 0 || mark != 0 ? mark : 1;
}

/* Whether it is an engine, and not "the one that that process works for" or "all". */
static inline bool tw_unit_is_engine(uint64_t unit) {
    return unit != 0 && (unit & TW_UNIT_KIND) != TW_UNIT_LIKE && unit != TW_UNIT_SHARED;
}

/* Whether anyone of the peer_set works for it. */
bool tw_unit_is_there(const tw_peer_set *peer_set, uint64_t unit);

/* Puts TW_UNIT_LIKE and TW_UNIT_SHARED of the peers right, see above. pid: theirs, in the same order. own_pid, own_unit:
 * of the process that asks, which is none of them. */
void tw_unit_settle(tw_peer_set *peer_set, const uint64_t *pid, uint64_t own_pid, uint64_t own_unit);

#ifdef __cplusplus
}
#endif
#endif
