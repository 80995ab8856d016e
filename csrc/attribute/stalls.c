#include "tailwatch/attribute/stalls.h"

#include "tailwatch/attribute/host_split.h"
#include "tailwatch/base/atomic.h"

static int stall_of(int cause) {
    if (cause == TW_DELAY_OWN_CODE) return TW_DELAY_CALLBACK;
    return cause == TW_DELAY_UNEXPLAINED ? TW_STALL_UNEXPLAINED : cause;
}

static void record(tw_segment *g, int stall, uint64_t ns) {
    if (ns >= TW_SPAN_LEAST_NS) tw_histogram_record_shared(&g->stalls[stall], tw_layout_of(TW_LAYOUT_PAUSE), ns);
}

/* One cause may have several parts: of several names. */
void tw_stall_record(tw_segment *g, uint32_t track, uint64_t from_ns, uint64_t to_ns) {
    tw_parts parts = {0};
    uint64_t ns[TW_STALLS] = {0};
    (void)tw_host_split(&g->host, track, &g->pause, from_ns, to_ns, (tw_whose){0, 0}, &parts);
    for (uint32_t i = 0; i < parts.n; i++) ns[stall_of(parts.part[i].cause)] += parts.part[i].ns;
    for (int stall = TW_CAUSES; stall < TW_STALLS; stall++) record(g, stall, ns[stall]);
}

void tw_stall_record_stop(tw_segment *g, uint64_t ns) { record(g, TW_DELAY_STOPPED, ns); }
