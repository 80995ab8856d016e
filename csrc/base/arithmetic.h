/* Differences and bounds of unsigned times and counts. Private. */
#pragma once

#include <stdint.h>

__extension__ typedef unsigned __int128 wide;

static inline uint64_t since(uint64_t later, uint64_t earlier) { return later > earlier ? later - earlier : 0; }
static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t add_capped(uint64_t a, uint64_t b, uint64_t cap) { return a < cap && b < cap - a ? a + b : cap; }
