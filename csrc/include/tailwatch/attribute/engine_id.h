/* The id of an engine, one word: of the engine a process works for, and of the engine that serves a stream.
 *
 * The processes of one engine (its ranks) wait for each other, so a pause of one delays all. An engine's id comes from
 * the number or name that its processes were given (the data parallel rank), else from its process:
 *
 *     0                        no engine: its pauses delay no other process's streams. Of a stream: not known
 *     tw_engine_named("1", 1)  the engine of that number or name
 *     TW_ENGINE_ITSELF | pid   an engine without a name: this process, and those that are TW_ENGINE_LIKE it
 *     TW_ENGINE_LIKE | pid     the engine of that process, usually the parent. Where that is no engine: the group's only
 *                              engine; with several engines or none, an engine of its own
 *     TW_ENGINE_SHARED         tokens of all engines pass through this process; of several such processes each counts
 *                              as an engine of its own
 *
 * A process without a given engine is therefore assigned one unambiguously, or is an engine of its own, whose pauses are
 * charged to streams as TW_SOURCE_UNBOUND only: never as a sum over engines.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/attribute/overlap_by_source.h"

TW_BEGIN_C

#define TW_ENGINE_NUMBER (UINT64_C(1) << 60)
#define TW_ENGINE_NAME (UINT64_C(2) << 60)
#define TW_ENGINE_ITSELF (UINT64_C(3) << 60)
#define TW_ENGINE_LIKE (UINT64_C(4) << 60)
#define TW_ENGINE_KIND (UINT64_C(15) << 60)

#define TW_ENGINE_NAME_BYTES 31

/* The engine of this name: 1 to 31 letters, digits, '_', '.', '-', a letter or digit first; digits alone are a number
 * below 2^32, "07" is "7". 0: not a name. Two names share an id only if 60 bits of their hashes are equal. */
uint64_t tw_engine_named(const char *name, size_t len);

/* An id in 16 bits, for events. 0: of 0 only. */
static inline uint16_t tw_engine_tag(uint64_t engine) {
    const uint16_t tag = (uint16_t)(engine * UINT64_C(0x9e3779b97f4a7c15) >> 48);
    return engine == 0 || tag != 0 ? tag : 1;
}

/* Whether an id names an engine: not 0, TW_ENGINE_LIKE or TW_ENGINE_SHARED. */
static inline bool tw_engine_is_definite(uint64_t engine) {
    return engine != 0 && (engine & TW_ENGINE_KIND) != TW_ENGINE_LIKE && engine != TW_ENGINE_SHARED;
}

/* Whether a peer of the set works for an engine. */
bool tw_engine_has_peer(const tw_peer_set *peer_set, uint64_t engine);

/* The engine at the end of a chain of TW_ENGINE_LIKE; 0: none. engine_of(of, pid): the id that a process gives. */
uint64_t tw_engine_follow(uint64_t engine, uint64_t (*engine_of)(const void *of, uint64_t pid), const void *of);

/* Replaces TW_ENGINE_LIKE and ambiguous TW_ENGINE_SHARED of the peers, as above. pid: of the peers, in their order.
 * own_pid, own_engine: of the calling process, which is not a peer. */
void tw_engines_resolve(tw_peer_set *peer_set, const uint64_t *pid, uint64_t own_pid, uint64_t own_engine);

TW_END_C
