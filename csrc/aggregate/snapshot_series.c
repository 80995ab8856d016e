/* Label sets: the request histograms and counters of each (model, route). */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "base/yield.h"
#include "record/word_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- inter-token latency without its delay part ---- */

/* Slots are added modulo 2^64. The writer records a gap before it moves it, and the correction is read before the
 * gaps, so a sum is at worst not moved yet. Where the machine reorders these a slot can still look negative for a
 * moment (top bit set): it counts as 0 then. */
static void shift_slots(tw_counts *itl, const tw_counts *shift) {
    itl->count = 0;
    for (size_t i = 0; i < TW_SLOTS_MAX; i++) {
        uint64_t sum = itl->slot[i] + shift->slot[i];
        itl->slot[i] = sum >> 63 ? 0 : sum;
        itl->count += itl->slot[i];
    }
}

/* The same rule for the 128-bit sum. */
static void shift_sum(tw_counts *itl, const tw_counts *shift) {
    uint64_t low = itl->sum_low + shift->sum_low;
    uint64_t high = itl->sum_high + shift->sum_high + (low < itl->sum_low);
    bool negative = high >> 63;
    itl->sum_low = negative ? 0 : low;
    itl->sum_high = negative ? 0 : high;
}

static uint32_t lowest_slot(const tw_counts *c) {
    uint32_t i = 0;
    while (i < TW_SLOTS_MAX && c->slot[i] == 0) i++;
    return i;
}

static uint32_t highest_slot(const tw_counts *c) {
    uint32_t i = TW_SLOTS_MAX;
    while (i > 0 && c->slot[i - 1] == 0) i--;
    return i - 1;
}

/* A moved gap only gets shorter. The least is that of both; an old extreme that the outermost slots contradict
 * was moved itself. */
static void shift_extremes(tw_counts *itl, const tw_counts *shift, const tw_layout *layout) {
    if (shift->min_ns < itl->min_ns) itl->min_ns = shift->min_ns;
    uint64_t first_low, first_high, last_low, last_high;
    tw_slot_edges(layout, lowest_slot(itl), &first_low, &first_high);
    tw_slot_edges(layout, highest_slot(itl), &last_low, &last_high);
    if (itl->min_ns > first_high) itl->min_ns = first_low + 1;
    if (itl->max_ns > last_high) itl->max_ns = last_high;
}

static void counts_shift(tw_counts *itl, const tw_counts *shift) {
    shift_slots(itl, shift);
    if (itl->count == 0) {
        tw_counts_init(itl);
        return;
    }
    shift_sum(itl, shift);
    shift_extremes(itl, shift, tw_metric_layout(TW_METRIC_ITL));
}

static int gaps_keep(tw_snapshot_series *to, const tw_series *from) {
    tw_counts shift, itl;
    tw_histogram_read(&from->itl_shift, &shift);
    tw_histogram_read(&from->itl, &itl);
    int error = tw_snapshot_counts_keep(&to->metric[TW_METRIC_ITL], &itl);
    counts_shift(&itl, &shift);
    return error ? error : tw_snapshot_counts_keep(&to->metric[TW_METRIC_ITL_WITHOUT_GC], &itl);
}

/* ---- taking ---- */

/* A label set of one segment, before those of the same name are merged. */
typedef struct source {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    const tw_series *series;
    const tw_served *served;                 /* NULL: not kept */
} source;

int tw_snapshot_names_compare(const char *a_model, const char *a_route, const char *b_model, const char *b_route) {
    int order = strcmp(a_model, b_model);
    return order ? order : strcmp(a_route, b_route);
}

static int source_compare(const void *left, const void *right) {
    const source *a = left, *b = right;
    return tw_snapshot_names_compare(a->model, a->route, b->model, b->route);
}

static bool series_used(const tw_series *series) {
    uint64_t any = tw_load(&series->output_tokens);
    for (int i = 0; i < TW_REASONS; i++) any |= tw_load(&series->reasons[i]);
    const tw_histogram *histograms[] = {&series->ttft, &series->itl, &series->tpot, &series->e2e};
    for (int i = 0; i < 4 && !any; i++) any = tw_load(&histograms[i]->min_ns) != UINT64_MAX;
    return any != 0;
}

/* Those of a segment's first label sets in which anything was recorded. */
static size_t sources_of(const tw_segment *g, size_t sets, source *out) {
    size_t n = 0;
    for (uint32_t i = 0; i < sets; i++) {
        const tw_series *series = tw_segment_series(g, i);
        if (!series_used(series)) continue;
        tw_words_get(series->model.word, TW_NAME_WORDS, out[n].model);
        tw_words_get(series->route.word, TW_NAME_WORDS, out[n].route);
        out[n].served = tw_segment_served(g, series);
        out[n++].series = series;
    }
    return n;
}

static int served_keep(tw_snapshot_series *to, const tw_served *from) {
    tw_counts failed;
    int error = tw_snapshot_histogram_keep(&to->served[TW_SERVED_TTFT], &from->ttft);
    if (!error) error = tw_snapshot_histogram_keep(&to->served[TW_SERVED_TPOT], &from->tpot);
    for (int i = 0; i < TW_FAILURES && !error; i++) {
        if (tw_load(&from->failed[i].min_ns) == UINT64_MAX) continue;
        tw_brief_read(&from->failed[i], &failed);
        error = tw_snapshot_counts_keep(&to->served[TW_SERVED_FAILED + i], &failed);
    }
    return error;
}

static int series_keep(tw_snapshot_series *to, const tw_series *from) {
#define ADD(name, dims) tw_words_add(&to->name, &from->name, sizeof to->name);
    TW_SERIES_COUNTERS(ADD)
#undef ADD
    int error = tw_snapshot_histogram_keep(&to->metric[TW_METRIC_TTFT], &from->ttft);
    if (!error) error = gaps_keep(to, from);
    if (!error) error = tw_snapshot_histogram_keep(&to->metric[TW_METRIC_TPOT], &from->tpot);
    if (!error) error = tw_snapshot_histogram_keep(&to->metric[TW_METRIC_E2E], &from->e2e);
    return error;
}

/* Sorted sources into one label set a name. */
static int series_merge(tw_snapshot *s, const source *sources, size_t n) {
    s->series = tw_calloc(n ? n : 1, sizeof *s->series);
    if (!s->series) return ENOMEM;
    int error = 0;
    uint64_t gave_way_ns = 0;
    for (size_t i = 0; i < n && !error; i++) {
        tw_give_way(&gave_way_ns);
        if (i == 0 || source_compare(&sources[i - 1], &sources[i]) != 0) {
            tw_snapshot_series *fresh = &s->series[s->series_count++];
            memcpy(fresh->model, sources[i].model, TW_NAME_BYTES);
            memcpy(fresh->route, sources[i].route, TW_NAME_BYTES);
        }
        tw_snapshot_series *to = &s->series[s->series_count - 1];
        error = series_keep(to, sources[i].series);
        if (!error && sources[i].served) error = served_keep(to, sources[i].served);
    }
    return error;
}

size_t tw_snapshot_sets_in_use(const tw_segment *g) {
    const uint64_t sets = tw_load_acquire(&g->series_count);
    return sets < TW_LABEL_SETS_LIMIT ? sets : TW_LABEL_SETS_LIMIT;
}

int tw_snapshot_take_series(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    size_t room = 0, used = 0;
    size_t *sets = tw_malloc(n * sizeof *sets);
    if (!sets) return ENOMEM;
    for (size_t i = 0; i < n; i++) room += sets[i] = tw_snapshot_sets_in_use(segments[i]);
    source *sources = tw_malloc(room * sizeof *sources);
    for (size_t i = 0; sources && i < n; i++) used += sources_of(segments[i], sets[i], &sources[used]);
    tw_free(sets);
    if (!sources) return ENOMEM;
    qsort(sources, used, sizeof *sources, source_compare);
    int error = series_merge(s, sources, used);
    tw_free(sources);
    return error;
}

/* ---- subtracting ---- */

const tw_snapshot_series *tw_snapshot_find_series(const tw_snapshot *s, const char *model, const char *route) {
    uint32_t low = 0, high = s->series_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const tw_snapshot_series *one = &s->series[middle];
        const int order = tw_snapshot_names_compare(one->model, one->route, model, route);
        if (order == 0) return one;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

static int one_series_subtract(tw_snapshot_series *out, const tw_snapshot_series *later,
                               const tw_snapshot_series *earlier) {
    static const tw_snapshot_series nothing = {.exemplar_count = 0};
    *out = *later;
    if (!earlier) earlier = &nothing;
    memset(out->metric, 0, sizeof out->metric);
    memset(out->served, 0, sizeof out->served);
    out->exemplar_count = 0;
#define SUBTRACT(name, dims) tw_words_subtract(&out->name, &earlier->name, sizeof out->name);
    TW_SERIES_COUNTERS(SUBTRACT)
#undef SUBTRACT
    int error = 0;
    for (int i = 0; i < TW_SERIES_METRICS && !error; i++)
        error = tw_snapshot_counts_rest(&out->metric[i], later->metric[i], earlier->metric[i], tw_metric_layout(i));
    for (int i = 0; i < TW_SERVED_METRICS && !error; i++)
        error = tw_snapshot_counts_rest(&out->served[i], later->served[i], earlier->served[i], tw_served_layout(i));
    return error;
}

int tw_snapshot_subtract_series(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    out->series = tw_calloc(later->series_count ? later->series_count : 1, sizeof *out->series);
    if (!out->series) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->series_count && !error; i++) {
        out->series_count = i + 1;
        const tw_snapshot_series *one = &later->series[i];
        error = one_series_subtract(&out->series[i], one, tw_snapshot_find_series(earlier, one->model, one->route));
    }
    return error;
}

void tw_snapshot_free_series(tw_snapshot *s) {
    for (uint32_t i = 0; i < s->series_count; i++) {
        tw_snapshot_counts_free(s->series[i].metric, TW_SERIES_METRICS);
        tw_snapshot_counts_free(s->series[i].served, TW_SERVED_METRICS);
    }
    tw_free(s->series);
}
