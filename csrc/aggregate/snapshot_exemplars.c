#include "aggregate/snapshot_parts.h"

#include <errno.h>
#include <stdlib.h>

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"

/* One of a segment's, and the label set of the snapshot that it belongs to. */
typedef struct found {
    uint32_t series;
    tw_snapshot_exemplar exemplar;
} found;

static const tw_metric metric_of[TW_EXEMPLAR_METRICS] = {TW_METRIC_TTFT, TW_METRIC_ITL, TW_METRIC_TPOT, TW_METRIC_E2E};

/* NULL: the snapshot does not have the label set (yet). */
static const tw_snapshot_series *series_of(const tw_snapshot *s, const tw_segment *g, uint32_t number) {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    if (number >= tw_load_acquire(&g->series_count) || number >= TW_LABEL_SETS_LIMIT) return NULL;
    const tw_series *series = tw_segment_series(g, number);
    tw_words_get(series->model.word, TW_NAME_WORDS, model);
    tw_words_get(series->route.word, TW_NAME_WORDS, route);
    return tw_snapshot_find_series(s, model, route);
}

/* Time of day by the pair of clocks that the segment was made with, so that it stays the same at each look. */
static uint64_t unix_of(const tw_segment *g, uint64_t monotonic_ns) {
    return tw_load(&g->header.created.realtime_ns) + (monotonic_ns - tw_load(&g->header.created.monotonic_ns));
}

/* false: it holds nothing that could be shown. Another process may have written anything. */
static bool translate(const tw_snapshot *s, const tw_segment *g, const tw_exemplar *from, found *to) {
    const uint32_t kind = tw_exemplar_metric_of(from->key);
    const tw_snapshot_series *series = series_of(s, g, tw_exemplar_series(from->key));
    if (series == NULL || kind >= TW_EXEMPLAR_METRICS) return false;
    tw_snapshot_exemplar *e = &to->exemplar;
    to->series = (uint32_t)(series - s->series);
    e->metric = metric_of[kind];
    e->bound = tw_exemplar_bound(from->key);
    e->value_ns = from->value_ns;
    e->unix_ns = unix_of(g, from->end_ns);
    tw_words_get(from->trace_id, TW_TRACE_WORDS, e->trace_id);
    return e->bound == tw_bound_of(tw_metric_layout((int)e->metric), e->value_ns) &&
           tw_exemplar_id_is_good(e->trace_id);
}

static int compare_places(const found *a, const found *b) {
    if (a->series != b->series) return a->series < b->series ? -1 : 1;
    if (a->exemplar.metric != b->exemplar.metric) return a->exemplar.metric < b->exemplar.metric ? -1 : 1;
    return (a->exemplar.bound > b->exemplar.bound) - (a->exemplar.bound < b->exemplar.bound);
}

/* By place, the newest first. */
static int compare(const void *left, const void *right) {
    const found *a = left, *b = right;
    const int order = compare_places(a, b);
    if (order != 0) return order;
    return (a->exemplar.unix_ns < b->exemplar.unix_ns) - (a->exemplar.unix_ns > b->exemplar.unix_ns);
}

static size_t find(const tw_snapshot *s, const tw_segment *g, found *out) {
    tw_exemplar one;
    size_t n = 0;
    for (uint32_t i = 0; i < TW_EXEMPLARS; i++)
        if (tw_exemplar_read(g->exemplars, i, &one)) n += translate(s, g, &one, &out[n]);
    return n;
}

static int keep(tw_snapshot *s, const found *all, size_t n) {
    if (n == 0) return 0;
    s->exemplars = tw_malloc(n * sizeof *s->exemplars);
    if (!s->exemplars) return ENOMEM;
    uint32_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && compare_places(&all[i - 1], &all[i]) == 0) continue;
        tw_snapshot_series *series = &s->series[all[i].series];
        if (series->exemplar_count++ == 0) series->exemplars_at = kept;
        s->exemplars[kept++] = all[i].exemplar;
    }
    return 0;
}

/* Room for what may be there, so that a group of processes without exemplars costs a look at each table. */
static size_t used(const tw_segment *g) {
    size_t n = 0;
    for (uint32_t i = 0; i < TW_EXEMPLARS; i++) n += tw_load(&g->exemplars[i].seq) != 0;
    return n;
}

int tw_snapshot_take_exemplars(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    size_t room = 0, count = 0;
    for (size_t i = 0; i < n; i++) room += used(segments[i]) ? TW_EXEMPLARS : 0;
    if (room == 0) return 0;
    found *all = tw_malloc(room * sizeof *all);
    if (!all) return ENOMEM;
    for (size_t i = 0; i < n && count + TW_EXEMPLARS <= room; i++) count += find(s, segments[i], &all[count]);
    qsort(all, count, sizeof *all, compare);
    const int error = keep(s, all, count);
    tw_free(all);
    return error;
}
