#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <string.h>

#define WAITS (TW_METRIC_PAUSE - TW_METRIC_QUEUE_PROXY)

/* ---- totals ---- */

static int waits_add(tw_snapshot *s, const tw_segment *g) {
#define ADDRESS(name, metric, layout) &g->name,
    const tw_histogram *waits[WAITS] = {TW_PROCESS_HISTOGRAMS(ADDRESS)};
#undef ADDRESS
    int error = 0;
    for (int i = 0; i < WAITS && !error; i++) error = tw_snapshot_histogram_keep(&s->wait[i], waits[i]);
    return error;
}

static void totals_add(tw_snapshot *s, const tw_segment *g) {
    tw_snapshot_take_lost(s, g);
#define ADD(name, dims) tw_words_add(&s->name, &g->name, sizeof s->name);
    TW_PROCESS_COUNTERS(ADD)
#undef ADD
    tw_words_add(s->tail, g->tail, sizeof s->tail);
    if (tw_segment_lives(g)) s->in_flight += tw_load(&g->in_flight);
}

static int totals_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->slo = segments[0]->slo;
    int error = 0;
    for (size_t i = 0; i < n && !error; i++) {
        uint64_t age = tw_minus(s->taken.monotonic_ns, segments[i]->header.created.monotonic_ns);
        if (age >= s->window_ns) {
            s->window_ns = age;
            s->created_ns = segments[i]->header.created.realtime_ns;
        }
        totals_add(s, segments[i]);
        error = waits_add(s, segments[i]);
    }
    return error;
}

static int waits_subtract(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    int error = 0;
    for (int i = 0; i < WAITS && !error; i++)
        error = tw_snapshot_counts_rest(&out->wait[i], later->wait[i], earlier->wait[i],
                                        tw_metric_layout(TW_METRIC_QUEUE_PROXY + i));
    return error;
}

static void totals_subtract(tw_snapshot *out, const tw_snapshot *earlier) {
    out->window_ns = tw_minus(out->taken.monotonic_ns, earlier->taken.monotonic_ns);
    tw_snapshot_subtract_lost(out, earlier);
#define SUBTRACT(name, dims) tw_words_subtract(&out->name, &earlier->name, sizeof out->name);
    TW_PROCESS_COUNTERS(SUBTRACT)
#undef SUBTRACT
    tw_words_subtract(out->tail, earlier->tail, sizeof out->tail);
}

/* ---- taking and subtracting ---- */

/* Those that are segments: another program may have written to one, which costs its numbers and no others. */
static size_t valid_of(const tw_segment *const *segments, size_t n, const tw_segment **out) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (segments[i] && tw_segment_valid(segments[i], segments[i]->header.bytes)) out[kept++] = segments[i];
    return kept;
}

static int take_all(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->taken = tw_clock_pair_now();
    int error = totals_take(s, segments, n);
    if (!error) error = tw_snapshot_take_series(s, segments, n);
    if (!error) error = tw_snapshot_take_processes(s, segments, n);
    if (!error) error = tw_snapshot_take_seconds(s, segments, n);
    if (!error) error = tw_snapshot_take_slow_gaps(s, segments, n);
    if (!error) error = tw_snapshot_take_fallbacks(s, segments, n);
    if (!error) error = tw_snapshot_take_exemplars(s, segments, n);
    return error;
}

/* Hands s over, or frees what there is of it. */
static int finish(tw_snapshot **out, tw_snapshot *s, int error) {
    if (error) tw_snapshot_free(s);
    *out = error ? NULL : s;
    return error;
}

int tw_snapshot_take(tw_snapshot **out, const tw_segment *const *segments, size_t n) {
    if (!out || !segments || n == 0) return EINVAL;
    const tw_segment **valid = tw_calloc(n, sizeof *valid);
    const size_t kept = valid ? valid_of(segments, n, valid) : 0;
    tw_snapshot *s = kept > 0 ? tw_calloc(1, sizeof *s) : NULL;
    int error = s ? take_all(s, valid, kept) : valid && kept == 0 ? EINVAL : ENOMEM;
    tw_free(valid);
    return finish(out, s, error);
}

/* A copy of later without anything that is allocated. */
static tw_snapshot *scalars_copy(const tw_snapshot *later) {
    tw_snapshot *s = tw_malloc(sizeof *s);
    if (!s) return NULL;
    *s = *later;
    s->series = NULL;
    s->process = NULL;
    s->seconds = NULL;
    s->slow = NULL;
    s->slow_series = NULL;
    s->slow_longest = NULL;
    s->names = NULL;
    s->fallbacks = NULL;
    s->exemplars = NULL;
    s->series_count = s->process_count = s->slow_count = s->fallback_count = 0;
    memset(s->wait, 0, sizeof s->wait);
    return s;
}

int tw_snapshot_subtract(tw_snapshot **out, const tw_snapshot *later, const tw_snapshot *earlier) {
    if (!out || !later || !earlier || later->taken.monotonic_ns < earlier->taken.monotonic_ns) return EINVAL;
    tw_snapshot *s = scalars_copy(later);
    if (!s) return finish(out, NULL, ENOMEM);
    totals_subtract(s, earlier);
    int error = tw_snapshot_subtract_series(s, later, earlier);
    if (!error) error = tw_snapshot_subtract_processes(s, later, earlier);
    if (!error) error = waits_subtract(s, later, earlier);
    if (!error) error = tw_snapshot_copy_seconds(s, later);
    if (!error) error = tw_snapshot_copy_slow_gaps(s, later, earlier->taken.monotonic_ns);
    if (!error) error = tw_snapshot_subtract_fallbacks(s, later, earlier);
    return finish(out, s, error);
}

void tw_snapshot_free(tw_snapshot *s) {
    if (!s) return;
    tw_snapshot_free_series(s);
    tw_snapshot_free_processes(s);
    tw_snapshot_counts_free(s->wait, WAITS);
    tw_free(s->seconds);
    tw_free(s->slow);
    tw_free(s->slow_series);
    tw_free(s->slow_longest);
    tw_free(s->names);
    tw_free(s->fallbacks);
    tw_free(s->exemplars);
    tw_free(s);
}

/* ---- one metric ---- */

static void counts_add_any(tw_counts *sum, const tw_counts *more) {
    if (more) tw_counts_add(sum, more);
}

static bool matches(const char *name, const char *wanted) { return !wanted || strcmp(name, wanted) == 0; }

bool tw_snapshot_metric(const tw_snapshot *s, int metric, const char *model, const char *route, tw_counts *out) {
    tw_counts_init(out);
    if (metric < 0 || metric >= TW_METRICS) return false;
    if (metric < TW_SERIES_METRICS) {
        for (uint32_t i = 0; i < s->series_count; i++)
            if (matches(s->series[i].model, model) && matches(s->series[i].route, route))
                counts_add_any(out, s->series[i].metric[metric]);
    } else if (metric < TW_METRIC_PAUSE) {
        counts_add_any(out, s->wait[metric - TW_METRIC_QUEUE_PROXY]);
    } else {
        for (uint32_t i = 0; i < s->process_count; i++)
            counts_add_any(out, s->process[i].stalls[metric - TW_METRIC_PAUSE]);
    }
    return out->count > 0;
}
