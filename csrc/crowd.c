#include "tailwatch/crowd.h"

#include "tailwatch/atomic.h"
#include "tailwatch/clock.h"

#define EXACT 64        /* rows of a single concurrency */
#define PER_OCTAVE 32
#define OCTAVE_SHIFT 5  /* log2 PER_OCTAVE */
#define EXACT_LOG2 6

uint32_t tw_crowd_level_of(uint64_t streams) {
    if (streams <= EXACT) return streams > 0 ? (uint32_t)streams - 1 : 0;
    if (streams > TW_CROWD_STREAMS_MAX) streams = TW_CROWD_STREAMS_MAX;
    const uint32_t log2 = 63 - (uint32_t)__builtin_clzll(streams);
    const uint32_t within = (uint32_t)(streams >> (log2 - OCTAVE_SHIFT)) - PER_OCTAVE;
    return EXACT + (log2 - EXACT_LOG2) * PER_OCTAVE + within;
}

/* Row EXACT begins with EXACT itself, which has a row of its own: it is narrower by that. */
void tw_crowd_level_edges(uint32_t i, uint64_t *lowest, uint64_t *highest) {
    *lowest = *highest = i + UINT64_C(1);
    if (i < EXACT) return;
    const uint32_t octave = (i - EXACT) / PER_OCTAVE, within = (i - EXACT) % PER_OCTAVE;
    const uint32_t shift = octave + EXACT_LOG2 - OCTAVE_SHIFT;
    *lowest = (uint64_t)(PER_OCTAVE + within) << shift;
    *highest = *lowest + (UINT64_C(1) << shift) - 1;
    if (i == EXACT) ++*lowest;
}

void tw_crowd_note(tw_crowd *crowd, uint64_t streams, uint64_t ttft_ns, uint64_t now_ns) {
    tw_crowd_level *level = &crowd->level[tw_crowd_level_of(streams)];
    const uint64_t us = ttft_ns / 1000, second = now_ns / TW_NS_PER_SECOND + 1, seen = tw_load(&level->seen);
    if (seen >= TW_CROWD_KEPT && tw_load(&level->sample[(seen - 1) % TW_CROWD_KEPT]) >> 32 == second) return;
    tw_store(&level->sample[seen % TW_CROWD_KEPT], second << 32 | (us < UINT32_MAX ? us : UINT32_MAX));
    tw_store(&level->seen, seen + 1);
}

static void level_clear(tw_crowd_level *level) {
    for (int i = 0; i < TW_CROWD_KEPT; i++) tw_store(&level->sample[i], 0);
    tw_store(&level->seen, 0);
}

void tw_crowd_share(tw_crowd *crowd, int shared) {
    const uint64_t now = shared != 0;
    if (tw_load(&crowd->shared) == now) return;
    for (int i = 0; i < TW_CROWD_LEVELS; i++)
        if (tw_load(&crowd->level[i].seen) != 0) level_clear(&crowd->level[i]);
    tw_store(&crowd->shared, now);
}

/* Puts one in the place of the oldest of sum's, if it is newer. */
static void sample_add(tw_crowd_level *sum, uint64_t sample) {
    int oldest = 0;
    for (int i = 1; i < TW_CROWD_KEPT; i++)
        if (sum->sample[i] >> 32 < sum->sample[oldest] >> 32) oldest = i;
    if (sample >> 32 > sum->sample[oldest] >> 32) sum->sample[oldest] = sample;
}

/* Two meanings of concurrency do not mix: the one that comes last stays, and with it the others of its kind. */
void tw_crowd_add(tw_crowd *sum, const tw_crowd *from) {
    tw_crowd_share(sum, tw_load(&from->shared) != 0);
    for (int i = 0; i < TW_CROWD_LEVELS; i++) {
        const uint64_t seen = tw_load(&from->level[i].seen);
        for (int at = 0; seen != 0 && at < TW_CROWD_KEPT; at++)
            sample_add(&sum->level[i], tw_load(&from->level[i].sample[at]));
        sum->level[i].seen += seen;
    }
}
