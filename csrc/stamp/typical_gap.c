/* The typical gap of a stream and of a label set: a running median. */
#include "stamp/stream_parts.h"

#include <string.h>

#define ALERT_NS (20 * TW_NS_PER_MS)       /* a gap below this is never slow of itself */
#define ALERT_TYPICALS 4                   /* nor one below so many typical gaps */
#define ALERT_UNKNOWN_NS TW_NS_PER_SECOND  /* without a typical gap, pauses apart */
#define TYPICAL_FEWEST 4                   /* fewer gaps say nothing about what is typical */

/* Four at a time, with the vectors that every 64-bit machine has. */
typedef int32_t lanes __attribute__((vector_size(16)));

static inline lanes lanes_all(int32_t value) { return (lanes){value, value, value, value}; }
static inline lanes lanes_most(lanes a, lanes b) {
    lanes first = a > b;
    return (a & first) | (b & ~first);
}

/* The median of 16 by rank, without a branch on the values: the lower middle is the largest that fewer than 8
 * are below, the upper one the largest that fewer than 9 are. */
static uint32_t median_of_recent(const uint32_t *recent) {
    lanes a, b, c, d, below_a = lanes_all(0), below_b = below_a, below_c = below_a, below_d = below_a;
    memcpy(&a, recent, sizeof a);
    memcpy(&b, recent + 4, sizeof b);
    memcpy(&c, recent + 8, sizeof c);
    memcpy(&d, recent + 12, sizeof d);
    for (int i = 0; i < TW_RECENT; ++i) {
        lanes other = lanes_all((int32_t)recent[i]);
        below_a -= other < a; /* a true lane is -1 */
        below_b -= other < b;
        below_c -= other < c;
        below_d -= other < d;
    }
    lanes low = lanes_all(TW_RECENT / 2), high = lanes_all(TW_RECENT / 2 + 1);
    lanes lower = lanes_most(lanes_most(a & (below_a < low), b & (below_b < low)),
                             lanes_most(c & (below_c < low), d & (below_d < low)));
    lanes upper = lanes_most(lanes_most(a & (below_a < high), b & (below_b < high)),
                             lanes_most(c & (below_c < high), d & (below_d < high)));
    int32_t middle[2] = {0, 0};
    for (int i = 0; i < 4; ++i) {
        if (lower[i] > middle[0]) middle[0] = lower[i];
        if (upper[i] > middle[1]) middle[1] = upper[i];
    }
    return ((uint32_t)middle[0] + (uint32_t)middle[1]) / 2;
}

/* The median of n values, 1 .. 16. Sorts them. */
static uint64_t median_sorting(uint64_t *value, uint32_t n) {
    for (uint32_t i = 1; i < n; ++i) {
        uint64_t moved = value[i];
        uint32_t at = i;
        for (; at > 0 && value[at - 1] > moved; --at) value[at] = value[at - 1];
        value[at] = moved;
    }
    uint64_t lower = value[(n - 1) / 2], upper = value[n / 2];
    return lower + (upper - lower) / 2;
}

/* Of the gaps there are, when they do not fill the ring. */
static uint64_t median_of_few(const tw_stream *s, uint32_t gaps) {
    uint64_t value[TW_RECENT];
    for (uint32_t i = 0; i < gaps; ++i) value[i] = (uint64_t)s->recent64[i] << RECENT_SHIFT;
    return most(median_sorting(value, gaps), 1);
}

uint64_t tw_typical_of_series(const tw_series *series) {
    uint64_t value[16];
    uint32_t n = (uint32_t)least(tw_load(&series->typical_next), 16);
    for (uint32_t i = 0; i < n; ++i) value[i] = tw_load(&series->typical_ns[i]);
    return n > 0 ? median_sorting(value, n) : 0;
}

uint64_t tw_stream_typical_ns(const tw_stream *s) {
    uint64_t gaps = since(s->messages, 1);
    if (s->typical_ns != 0 || gaps < TYPICAL_FEWEST) return s->typical_ns;
    return median_of_few(s, (uint32_t)least(gaps, TW_RECENT));
}

/* A typical gap is at most 137 s (recent64). */
uint64_t tw_slow_limit(const tw_segment *g, uint64_t typical_ns, bool paused) {
    if (g->slow_ns != 0) return g->slow_ns - 1;
    if (typical_ns != 0) return most(ALERT_NS, typical_ns * ALERT_TYPICALS);
    return paused ? ALERT_NS : ALERT_UNKNOWN_NS;
}

void tw_typical_set(tw_stream *s, uint64_t typical_ns) {
    s->typical_ns = typical_ns;
    s->alert_ns = tw_slow_limit(s->segment, typical_ns, true);
}

/* 0 means unknown, so a typical gap is at least 1 ns. */
void tw_typical_refresh(tw_stream *s, uint64_t gaps) {
    uint64_t typical_ns = gaps < TW_RECENT ? median_of_few(s, (uint32_t)gaps)
                                           : most((uint64_t)median_of_recent(s->recent64) << RECENT_SHIFT, 1);
    tw_typical_set(s, typical_ns);
    uint64_t next = tw_load(&s->series->typical_next);
    tw_store(&s->series->typical_ns[next % 16], typical_ns);
    tw_store(&s->series->typical_next, next + 1);
}
