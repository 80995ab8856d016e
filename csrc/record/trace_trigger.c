#include "tailwatch/record/trace_trigger.h"

#include <string.h>

#define BATCH 256

static bool over(uint64_t value, uint64_t bound) { return bound != 0 && value > bound; }

static bool missed(const tw_ring_event *e) {
    const uint32_t reason = tw_what_a(e->what);
    return reason < TW_REASONS && tw_reason_outcome((tw_reason)reason) == TW_OUTCOME_MISS;
}

static bool matches(const tw_trigger *trigger, const tw_ring_event *e) {
    switch (tw_what_kind(e->what)) {
    case TW_KIND_TOKEN: return over(e->value, trigger->gap_ns);
    case TW_KIND_FIRST: return e->time_ns > e->value && over(e->time_ns - e->value, trigger->ttft_ns);
    case TW_KIND_CLOSE: return trigger->slo && missed(e);
    default: return false;
    }
}

static void note(tw_trigger_found *found, uint64_t time_ns) {
    found->matches++;
    if (found->first_ns == 0 || time_ns < found->first_ns) found->first_ns = time_ns;
    if (time_ns > found->last_ns) found->last_ns = time_ns;
}

static void look_at(tw_trigger *trigger, const tw_trace *t, uint32_t ring, tw_trigger_found *out) {
    tw_ring_event events[BATCH];
    uint64_t first, end;
    tw_ring_bounds(t, ring, &first, &end);
    for (size_t n; (n = tw_ring_read(t, ring, &trigger->next[ring], end, events, BATCH, &out->lost)) > 0;)
        for (size_t i = 0; i < n; i++)
            if (matches(trigger, &events[i])) note(out, events[i].time_ns);
}

void tw_trigger_look(tw_trigger *trigger, const tw_trace *t, tw_trigger_found *out) {
    memset(out, 0, sizeof *out);
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) look_at(trigger, t, ring, out);
}

void tw_trigger_skip(tw_trigger *trigger, const tw_trace *t) {
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) {
        uint64_t first;
        tw_ring_bounds(t, ring, &first, &trigger->next[ring]);
    }
}
