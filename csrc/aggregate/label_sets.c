/* What a snapshot's label sets had counted, in a few kilobytes: only the slots that hold anything. */
#include "aggregate/snapshot_parts.h"
#include "base/tw_malloc.h"

#include <errno.h>
#include <string.h>

#define COUNT_BITS 48

typedef struct kept_slot {
    uint64_t count : COUNT_BITS, slot : 64 - COUNT_BITS;
} kept_slot;

_Static_assert(TW_SLOTS_MAX <= UINT64_C(1) << (64 - COUNT_BITS), "the number of a slot fits");

typedef struct kept_histogram {
    uint64_t sum_low, sum_high, min_ns, max_ns;
    uint32_t slots; /* that hold anything; 0: the histogram is empty */
} kept_histogram;

typedef struct kept_series {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    TW_SERIES_COUNTERS(TW_COUNTER_FIELD)
    kept_histogram metric[TW_SERIES_METRICS];
} kept_series;

struct tw_label_sets {
    uint32_t n;
    size_t bytes;
    kept_slot *slot;      /* of all histograms, in their order; after the label sets, in one piece of memory */
    kept_series series[]; /* as sorted as the snapshot's */
};

static uint32_t slots_used(const tw_counts *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; c && i < TW_SLOTS_MAX; i++) n += c->slot[i] != 0;
    return n;
}

static size_t slots_of_all(const tw_snapshot *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->series_count; i++)
        for (int metric = 0; metric < TW_SERIES_METRICS; metric++) n += slots_used(s->series[i].metric[metric]);
    return n;
}

static kept_slot *histogram_keep(kept_histogram *to, const tw_counts *c, kept_slot *slot) {
    if (!c) return slot;
    *to = (kept_histogram){c->sum_low, c->sum_high, c->min_ns, c->max_ns, slots_used(c)};
    for (uint32_t i = 0; i < TW_SLOTS_MAX; i++)
        if (c->slot[i]) *slot++ = (kept_slot){.count = c->slot[i], .slot = i};
    return slot;
}

tw_label_sets *tw_label_sets_keep(const tw_snapshot *s) {
    if (s->series_count > TW_LABEL_SETS_KEPT) return NULL;
    const size_t head = sizeof(tw_label_sets) + s->series_count * sizeof(kept_series);
    const size_t bytes = head + slots_of_all(s) * sizeof(kept_slot);
    tw_label_sets *kept = tw_calloc(1, bytes);
    if (!kept) return NULL;
    kept->n = s->series_count;
    kept->bytes = bytes;
    kept->slot = (kept_slot *)((char *)kept + head);
    kept_slot *slot = kept->slot;
    for (uint32_t i = 0; i < kept->n; i++) {
        const tw_snapshot_series *from = &s->series[i];
        kept_series *to = &kept->series[i];
        memcpy(to->model, from->model, sizeof to->model);
        memcpy(to->route, from->route, sizeof to->route);
#define COPY(name, dims) memcpy(&to->name, &from->name, sizeof to->name);
        TW_SERIES_COUNTERS(COPY)
#undef COPY
        for (int metric = 0; metric < TW_SERIES_METRICS; metric++)
            slot = histogram_keep(&to->metric[metric], from->metric[metric], slot);
    }
    return kept;
}

size_t tw_label_sets_bytes(const tw_label_sets *kept) { return kept ? kept->bytes : 0; }

void tw_label_sets_free(tw_label_sets *kept) { tw_free(kept); }

static const kept_slot *histogram_show(tw_counts **out, const kept_histogram *from, const kept_slot *slot, int *error) {
    if (from->slots == 0 || *error) return slot + from->slots;
    tw_counts *counts = tw_malloc(sizeof *counts);
    if (!counts) {
        *error = ENOMEM;
        return slot + from->slots;
    }
    tw_counts_init(counts);
    counts->sum_low = from->sum_low;
    counts->sum_high = from->sum_high;
    counts->min_ns = from->min_ns;
    counts->max_ns = from->max_ns;
    for (uint32_t i = 0; i < from->slots; i++) {
        counts->slot[slot[i].slot] = slot[i].count;
        counts->count += slot[i].count;
    }
    *out = counts;
    return slot + from->slots;
}

int tw_label_sets_show(const tw_label_sets *kept, tw_snapshot *s) {
    s->series = tw_calloc(kept->n ? kept->n : 1, sizeof *s->series);
    if (!s->series) return ENOMEM;
    s->series_count = kept->n;
    const kept_slot *slot = kept->slot;
    int error = 0;
    for (uint32_t i = 0; i < kept->n; i++) {
        const kept_series *from = &kept->series[i];
        tw_snapshot_series *to = &s->series[i];
        memcpy(to->model, from->model, sizeof to->model);
        memcpy(to->route, from->route, sizeof to->route);
#define COPY(name, dims) memcpy(&to->name, &from->name, sizeof to->name);
        TW_SERIES_COUNTERS(COPY)
#undef COPY
        for (int metric = 0; metric < TW_SERIES_METRICS; metric++)
            slot = histogram_show(&to->metric[metric], &from->metric[metric], slot, &error);
    }
    return error;
}
