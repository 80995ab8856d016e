#include "tailwatch/record/genai_counters.h"

#include "tailwatch/base/atomic.h"

#define OCTAVE_SHIFT (TW_SCALE - TW_BRIEF_SCALE)

const char *tw_failure_name(int failure) {
    static const char *const names[] = {"_OTHER", "429", "5xx", "timeout", "cancelled", "4xx"};
    _Static_assert(sizeof names / sizeof *names == TW_FAILURES, "a name for every failure");
    return failure >= 0 && failure < TW_FAILURES ? names[failure] : names[TW_FAILURE_OTHER];
}

tw_failure tw_failure_of(tw_reason reason) {
    switch (reason) {
        case TW_REASON_ERROR: return TW_FAILURE_OTHER;
        case TW_REASON_429: return TW_FAILURE_429;
        case TW_REASON_5XX: return TW_FAILURE_5XX;
        case TW_REASON_TIMEOUT: return TW_FAILURE_TIMEOUT;
        case TW_REASON_ABORT_LATE:
        case TW_REASON_ABORT_EARLY: return TW_FAILURE_CANCELLED;
        case TW_REASON_4XX: return TW_FAILURE_4XX;
        default: return TW_FAILURES;
    }
}

static void brief_init(tw_brief *brief) { brief->min_ns = UINT64_MAX; }

void tw_served_init(tw_served *served) {
    tw_histogram_init(&served->ttft);
    tw_histogram_init(&served->tpot);
    for (int i = 0; i < TW_FAILURES; i++) brief_init(&served->failed[i]);
}

/* The coarse bucket of a fine one, from 0; -1 and TW_BUCKETS lie outside. */
static uint32_t coarse_of(int bucket) {
    const int lowest = TW_BUCKET_MIN >> OCTAVE_SHIFT, outside = (TW_BUCKET_MIN + TW_BUCKETS) >> OCTAVE_SHIFT;
    if (bucket < 0) return 0;
    return (uint32_t)(1 + (bucket >= TW_BUCKETS ? outside + 1 : (bucket + TW_BUCKET_MIN) >> OCTAVE_SHIFT) - lowest);
}

/* Both the coarse bucket and the number of bounds below never fall: so neither does their sum, and it shows which differs. */
uint32_t tw_brief_slot(uint64_t value_ns) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_E2E);
    uint32_t slot = coarse_of(tw_bucket_of(value_ns));
    for (uint32_t i = 0; i < layout->bounds && layout->bound_ns[i] < value_ns; i++) slot++;
    return slot < TW_BRIEF_SLOTS ? slot : TW_BRIEF_SLOTS - 1;
}

void tw_brief_record(tw_brief *brief, uint64_t value_ns) {
    tw_add(&brief->sum_ns, value_ns);
    if (value_ns < tw_load(&brief->min_ns)) tw_store(&brief->min_ns, value_ns);
    if (value_ns > tw_load(&brief->max_ns)) tw_store(&brief->max_ns, value_ns);
    tw_add(&brief->slot[tw_brief_slot(value_ns)], 1);
}

void tw_brief_read(const tw_brief *brief, tw_counts *out) {
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_E2E);
    uint32_t last = TW_BRIEF_SLOTS;
    tw_counts_init(out);
    for (uint32_t slot = 0; slot < layout->slots; slot++) {
        uint64_t lower, upper;
        tw_slot_edges(layout, slot, &lower, &upper);
        const uint32_t of = tw_brief_slot(upper);
        if (of == last) continue;
        last = of;
        out->count += out->slot[slot] = tw_load(&brief->slot[of]);
    }
    if (out->count == 0) return;
    out->sum_low = tw_load(&brief->sum_ns);
    out->min_ns = tw_load(&brief->min_ns);
    out->max_ns = tw_load(&brief->max_ns);
}

void tw_brief_add(tw_brief *sum, const tw_brief *from) {
    const uint64_t min_ns = tw_load(&from->min_ns), max_ns = tw_load(&from->max_ns);
    if (min_ns < sum->min_ns) sum->min_ns = min_ns;
    if (max_ns > sum->max_ns) sum->max_ns = max_ns;
    sum->sum_ns += tw_load(&from->sum_ns);
    for (int i = 0; i < TW_BRIEF_SLOTS; i++) sum->slot[i] += tw_load(&from->slot[i]);
}
