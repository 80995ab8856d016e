#include "tailwatch/record/slow_gaps.h"

#include "tailwatch/base/atomic.h"

enum { WORDS = sizeof(tw_slow_record) / sizeof(uint64_t) };

/* As in the ring: the record is invalid while it is written, and its number is stored last. */
static void record_store(tw_slow_record *slot, const tw_slow_record *record) {
    const uint64_t *from = (const uint64_t *)record;
    uint64_t *to = (uint64_t *)slot;
    tw_store_release(&slot->seq, 0);
    for (size_t i = 1; i < WORDS; ++i) tw_store_release(&to[i], tw_load(&from[i]));
    tw_store_release(&slot->seq, tw_load(&record->seq));
}

static bool record_load(const tw_slow_record *slot, tw_slow_record *out) {
    const uint64_t *from = (const uint64_t *)slot;
    uint64_t *to = (uint64_t *)out;
    to[0] = tw_load_acquire(&from[0]);
    for (size_t i = 1; i < WORDS; ++i) to[i] = tw_load_acquire(&from[i]);
    return to[0] != 0 && tw_load(&from[0]) == to[0];
}

/* The longest of one period, in a ring of the last periods. */
static void keep_of_period(tw_slow_record *slots, uint64_t periods, uint64_t period_ns, const tw_slow_record *record) {
    const uint64_t period = record->end_ns / period_ns;
    tw_slow_record *slot = &slots[period % periods];
    const uint64_t held = tw_load(&slot->end_ns) / period_ns;
    if (tw_load(&slot->seq) == 0 || held < period || (held == period && tw_load(&slot->gap_ns) < record->gap_ns))
        record_store(slot, record);
}

static void keep_of_run(tw_slow_record *slots, const tw_slow_record *record) {
    tw_slow_record *least = slots;
    for (int i = 1; i < TW_SLOW_RUN; ++i)
        if (tw_load(&slots[i].gap_ns) < tw_load(&least->gap_ns)) least = &slots[i];
    if (tw_load(&least->gap_ns) < record->gap_ns) record_store(least, record);
}

void tw_slow_keep(tw_slow_record *longest, const tw_slow_record *record) {
    if (record->phase >= TW_PHASES || record->seq == 0) return;
    tw_slow_record *slots = &longest[record->phase * TW_SLOW_PERIODS];
    keep_of_period(slots, TW_SLOW_MINUTES, 60 * TW_NS_PER_SECOND, record);
    keep_of_period(slots + TW_SLOW_MINUTES, TW_SLOW_HOURS, 3600 * TW_NS_PER_SECOND, record);
    keep_of_run(slots + TW_SLOW_MINUTES + TW_SLOW_HOURS, record);
}

static bool has(const tw_slow_record *records, size_t n, uint64_t seq) {
    size_t i = 0;
    while (i < n && records[i].seq != seq) ++i;
    return i < n;
}

size_t tw_slow_gaps_read(const tw_segment *g, tw_slow_record *out) {
    const uint64_t head = tw_load_acquire(&g->slow_head);
    size_t n = 0;
    for (uint64_t i = head > TW_SLOW_RING ? head - TW_SLOW_RING : 0; i < head; ++i)
        n += tw_segment_slow_read(g, i, &out[n]);
    const uint64_t first = n > 0 ? out[0].seq : UINT64_MAX; /* the ring's are this and all later ones */
    const size_t ring = n;
    for (size_t i = 0; i < TW_SLOW_LONGEST; ++i)
        n += record_load(&g->slow_longest[i], &out[n]) && out[n].seq < first && !has(&out[ring], n - ring, out[n].seq);
    return n;
}
