#include "aggregate/snapshot_parts.h"

#include "base/tw_malloc.h"

#include <errno.h>

#define LAYOUT(name, metric, layout) [TW_METRIC_##metric] = TW_LAYOUT_##layout,
static const int metric_layouts[TW_METRIC_PAUSE] = {TW_SERIES_HISTOGRAMS(LAYOUT) TW_PROCESS_HISTOGRAMS(LAYOUT)};
#undef LAYOUT

#define ONE(name, metric, layout) +1
_Static_assert(0 TW_SERIES_HISTOGRAMS(ONE) TW_PROCESS_HISTOGRAMS(ONE) == TW_METRIC_PAUSE,
               "a metric for each histogram");
#undef ONE

const tw_layout *tw_metric_layout(int metric) {
    if (metric < 0 || metric >= TW_METRICS) return NULL;
    return tw_layout_of(metric < TW_METRIC_PAUSE ? metric_layouts[metric] : TW_LAYOUT_PAUSE);
}

const tw_layout *tw_served_layout(int metric) {
    if (metric < 0 || metric >= TW_SERVED_METRICS) return NULL;
    return tw_layout_of(metric == TW_SERVED_TTFT   ? TW_LAYOUT_TTFT
                        : metric == TW_SERVED_TPOT ? TW_LAYOUT_ITL
                                                   : TW_LAYOUT_E2E);
}

int tw_snapshot_counts_keep(tw_counts **sum, const tw_counts *more) {
    if (more->count == 0) return 0;
    if (!*sum) {
        *sum = tw_malloc(sizeof **sum);
        if (!*sum) return ENOMEM;
        tw_counts_init(*sum);
    }
    tw_counts_add(*sum, more);
    return 0;
}

int tw_snapshot_histogram_keep(tw_counts **sum, const tw_histogram *h) {
    tw_counts copy;
    tw_histogram_read(h, &copy);
    return tw_snapshot_counts_keep(sum, &copy);
}

void tw_snapshot_counts_free(tw_counts **counts, size_t n) {
    for (size_t i = 0; i < n; i++) tw_free(counts[i]);
}

/* earlier as it can be taken away from later: no slot and no sum larger. A gap that lost its delay part between
 * the two readings has left its slot. */
static void counts_limit(tw_counts *earlier, const tw_counts *later) {
    earlier->count = 0;
    for (size_t i = 0; i < TW_SLOTS_MAX; i++) {
        if (earlier->slot[i] > later->slot[i]) earlier->slot[i] = later->slot[i];
        earlier->count += earlier->slot[i];
    }
    bool larger = earlier->sum_high > later->sum_high ||
                  (earlier->sum_high == later->sum_high && earlier->sum_low > later->sum_low);
    if (larger) {
        earlier->sum_low = later->sum_low;
        earlier->sum_high = later->sum_high;
    }
}

static void counts_take_away(tw_counts *later, const tw_counts *earlier, const tw_layout *layout) {
    tw_counts limited = *earlier;
    counts_limit(&limited, later);
    if (limited.count == later->count) tw_counts_init(later);
    else tw_counts_subtract(later, &limited, layout);
}

int tw_snapshot_counts_rest(tw_counts **counts, const tw_counts *later, const tw_counts *earlier,
                            const tw_layout *layout) {
    if (!later) return 0;
    tw_counts rest = *later;
    if (earlier) counts_take_away(&rest, earlier, layout);
    return tw_snapshot_counts_keep(counts, &rest);
}
