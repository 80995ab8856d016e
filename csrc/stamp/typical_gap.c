/* The typical gap of a stream and of a label set: a running median. */
#include "stamp/stream_parts.h"

#include <string.h>

#define SLOW_LEAST_NS (2 * TW_NS_PER_MS)   /* slow: by more than this, and by more than half a typical gap */
#define SLOW_PAUSED_NS (20 * TW_NS_PER_MS) /* without a typical gap: where it was paused, */
#define SLOW_UNKNOWN_NS TW_NS_PER_SECOND   /* and where it was not */
#define SLOW_MEDIANS 3                     /* a TTFT of so many medians is slow */
#define PERIOD_NS (15 * TW_NS_PER_SECOND)
#define TYPICAL_FEWEST 4                   /* fewer gaps do not show what is typical */

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

/* ---- over minutes ---- */

/* A quarter above the median of the last periods, each the median of what its streams found: a stall of seconds raises
 * it not at all, a heavier load within two minutes. */
static uint64_t most_of_periods(const tw_series *series) {
    uint64_t value[TW_PERIODS];
    uint32_t n = 0;
    for (int i = 0; i < TW_PERIODS; ++i)
        if (tw_load(&series->period_ns[i]) != 0) value[n++] = tw_load(&series->period_ns[i]);
    const uint64_t median = n > 0 ? median_sorting(value, n) : 0;
    return median + median / 4;
}

/* The period that ends keeps what was typical in it. */
static void period_note(tw_series *series, uint64_t now_ns) {
    const uint64_t period = now_ns / PERIOD_NS + 1, running = tw_load(&series->period);
    if (period <= running) return;
    tw_store(&series->period, period);
    if (running == 0) return;
    tw_store(&series->period_ns[running % TW_PERIODS], tw_typical_of_series(series));
    tw_store(&series->typical_most_ns, most_of_periods(series));
}

static uint64_t bounded(const tw_series *series, uint64_t typical_ns) {
    const uint64_t most_ns = tw_load(&series->typical_most_ns);
    return most_ns != 0 ? least(typical_ns, most_ns) : typical_ns;
}

uint64_t tw_stream_typical_ns(const tw_stream *s) {
    uint64_t gaps = since(s->messages, 1);
    if (s->typical_ns != 0 || gaps < TYPICAL_FEWEST) return s->typical_ns;
    return median_of_few(s, (uint32_t)least(gaps, TW_RECENT));
}

/* A typical gap is at most 137 s (recent64). */
uint64_t tw_slow_limit(uint64_t typical_ns, bool paused) {
    if (typical_ns != 0) return typical_ns + most(SLOW_LEAST_NS, typical_ns / 2);
    return paused ? SLOW_PAUSED_NS : SLOW_UNKNOWN_NS;
}

/* slow_ns is for the log: a gap of that length is kept whatever is typical. */
void tw_typical_set(tw_stream *s, uint64_t typical_ns) {
    const uint64_t slow_ns = tw_load(&s->segment->slow_ns);
    s->typical_ns = bounded(s->series, typical_ns);
    s->alert_ns = tw_slow_limit(s->typical_ns, true);
    if (slow_ns != 0) s->alert_ns = least(s->alert_ns, slow_ns - 1);
}

/* A running median: it goes a twentieth of itself towards each. */
bool tw_ttft_is_slow(const tw_stream *s, uint64_t ttft_ns, uint64_t rest_ns) {
    uint64_t *median = &s->series->typical_ttft_ns;
    const uint64_t before = tw_load(median);
    const uint64_t step = before / 20 + 1;
    if (before == 0) tw_store(median, most(rest_ns, 1));
    else if (rest_ns != before) tw_store(median, rest_ns > before ? before + step : before - least(step, before - 1));
    return (s->slo.ttft_ns != 0 && ttft_ns > s->slo.ttft_ns) ||
           (before != 0 && ttft_ns > SLOW_MEDIANS * before && ttft_ns - before > SLOW_LEAST_NS);
}

/* 0 means unknown, so a typical gap is at least 1 ns. */
void tw_typical_refresh(tw_stream *s, uint64_t gaps) {
    uint64_t typical_ns = gaps < TW_RECENT ? median_of_few(s, (uint32_t)gaps)
                                           : most((uint64_t)median_of_recent(s->recent64) << RECENT_SHIFT, 1);
    tw_typical_set(s, typical_ns);
    uint64_t next = tw_load(&s->series->typical_next);
    tw_store(&s->series->typical_ns[next % 16], typical_ns);
    tw_store(&s->series->typical_next, next + 1);
    period_note(s->series, s->last_ns);
}
