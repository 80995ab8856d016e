#include "tailwatch/record/ttft_by_concurrency.h"

#include <math.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"

#define EXACT 64        /* rows of a single concurrency */
#define PER_OCTAVE 32
#define OCTAVE_SHIFT 5  /* log2 PER_OCTAVE */
#define EXACT_LOG2 6

uint32_t tw_ttft_level_of(uint64_t streams) {
    if (streams <= EXACT) return streams > 0 ? (uint32_t)streams - 1 : 0;
    if (streams > TW_TTFT_STREAMS_MAX) streams = TW_TTFT_STREAMS_MAX;
    const uint32_t log2 = 63 - (uint32_t)__builtin_clzll(streams);
    const uint32_t within = (uint32_t)(streams >> (log2 - OCTAVE_SHIFT)) - PER_OCTAVE;
    return EXACT + (log2 - EXACT_LOG2) * PER_OCTAVE + within;
}

/* Row EXACT begins with EXACT itself, which has a row of its own: it is narrower by that. */
void tw_ttft_level_edges(uint32_t i, uint64_t *lowest, uint64_t *highest) {
    *lowest = *highest = i + UINT64_C(1);
    if (i < EXACT) return;
    const uint32_t octave = (i - EXACT) / PER_OCTAVE, within = (i - EXACT) % PER_OCTAVE;
    const uint32_t shift = octave + EXACT_LOG2 - OCTAVE_SHIFT;
    *lowest = (uint64_t)(PER_OCTAVE + within) << shift;
    *highest = *lowest + (UINT64_C(1) << shift) - 1;
    if (i == EXACT) ++*lowest;
}

/* ---- a sample ---- */

#define STEP_S 2
#define TIME_BITS 17
#define TIME_SHIFT (32 - TIME_BITS)
#define EXPONENT_SHIFT 9
#define FRACTION ((UINT32_C(1) << EXPONENT_SHIFT) - 1)

static uint32_t time_of(uint64_t now_ns) { return (uint32_t)(now_ns / (STEP_S * TW_NS_PER_SECOND)) << TIME_SHIFT; }

/* Steps from one to the other, the shorter way round. */
static int32_t steps_between(uint32_t later, uint32_t earlier) {
    const uint32_t steps = ((later >> TIME_SHIFT) - (earlier >> TIME_SHIFT)) & ((UINT32_C(1) << TIME_BITS) - 1);
    return steps >> (TIME_BITS - 1) ? (int32_t)steps - (1 << TIME_BITS) : (int32_t)steps;
}

uint32_t tw_ttft_sample(uint64_t ttft_ns, uint64_t now_ns) {
    uint64_t us = ttft_ns / 1000;
    if (us < 1) us = 1;
    if (us > UINT32_MAX) us = UINT32_MAX;
    const uint32_t exponent = 63 - (uint32_t)__builtin_clzll(us);
    const uint32_t fraction = (uint32_t)(us << EXPONENT_SHIFT >> exponent) & FRACTION;
    return time_of(now_ns) | (exponent + 1) << EXPONENT_SHIFT | fraction;
}

double tw_ttft_seconds(uint32_t sample) {
    const int exponent = (int)(sample >> EXPONENT_SHIFT & 63) - 1;
    const double whole = FRACTION + 1, fraction = sample & FRACTION;
    return ldexp(1 + (fraction + (exponent > EXPONENT_SHIFT ? 0.5 : 0)) / whole, exponent) / 1e6;
}

uint64_t tw_ttft_age_s(uint32_t sample, uint64_t now_ns) {
    const int32_t steps = steps_between(time_of(now_ns), sample);
    return steps >= 0 ? (uint64_t)steps * STEP_S : UINT32_MAX;
}

/* ---- a table ---- */

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void store(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

void tw_ttft_note(tw_ttft_by_concurrency *ttfts, uint64_t streams, uint64_t ttft_ns, uint64_t now_ns) {
    tw_ttft_level *level = &ttfts->level[tw_ttft_level_of(streams)];
    const uint32_t sample = tw_ttft_sample(ttft_ns, now_ns), seen = load(&level->seen);
    if (seen >= TW_TTFT_KEPT && steps_between(sample, load(&level->sample[(seen - 1) % TW_TTFT_KEPT])) == 0) return;
    store(&level->sample[seen % TW_TTFT_KEPT], sample);
    store(&level->seen, seen + 1);
}

static void level_clear(tw_ttft_level *level) {
    for (int i = 0; i < TW_TTFT_KEPT; i++) store(&level->sample[i], 0);
    store(&level->seen, 0);
}

void tw_ttft_share(tw_ttft_by_concurrency *ttfts, int shared) {
    const uint64_t now = shared != 0;
    if (tw_load(&ttfts->shared) == now) return;
    for (int i = 0; i < TW_TTFT_LEVELS; i++)
        if (load(&ttfts->level[i].seen) != 0) level_clear(&ttfts->level[i]);
    tw_store(&ttfts->shared, now);
}

/* Puts one where there is room, else in the place of the oldest of sum's, if it is newer. */
static void sample_add(tw_ttft_level *sum, uint32_t sample) {
    int oldest = 0;
    for (int i = 0; i < TW_TTFT_KEPT; i++) {
        if (sum->sample[i] == 0) {
            sum->sample[i] = sample;
            return;
        }
        if (steps_between(sum->sample[i], sum->sample[oldest]) < 0) oldest = i;
    }
    if (steps_between(sample, sum->sample[oldest]) > 0) sum->sample[oldest] = sample;
}

/* Two meanings of concurrency do not mix: the one that comes last stays, and with it the others of its kind. */
void tw_ttft_add(tw_ttft_by_concurrency *sum, const tw_ttft_by_concurrency *from) {
    tw_ttft_share(sum, tw_load(&from->shared) != 0);
    for (int i = 0; i < TW_TTFT_LEVELS; i++) {
        const uint32_t seen = load(&from->level[i].seen);
        for (int at = 0; seen != 0 && at < TW_TTFT_KEPT; at++) {
            const uint32_t sample = load(&from->level[i].sample[at]);
            if (sample != 0) sample_add(&sum->level[i], sample);
        }
        sum->level[i].seen += seen;
    }
}
