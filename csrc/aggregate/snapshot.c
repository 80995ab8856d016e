#include "tailwatch/aggregate/snapshot.h"

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/process.h"
#include "base/yield.h"
#include "aggregate/snapshot_exemplars.h"
#include "base/tw_malloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TW_WAITS 4

static const int metric_layouts[] = {
    [TW_METRIC_TTFT] = TW_LAYOUT_TTFT,
    [TW_METRIC_ITL] = TW_LAYOUT_ITL,
    [TW_METRIC_ITL_WITHOUT_GC] = TW_LAYOUT_ITL,
    [TW_METRIC_TPOT] = TW_LAYOUT_ITL,
    [TW_METRIC_E2E] = TW_LAYOUT_E2E,
    [TW_METRIC_QUEUE_PROXY] = TW_LAYOUT_TTFT,
    [TW_METRIC_QUEUE_ACCEPT] = TW_LAYOUT_TTFT,
    [TW_METRIC_ABANDONED_WAIT] = TW_LAYOUT_TTFT,
    [TW_METRIC_SEND_WAIT] = TW_LAYOUT_TTFT,
};

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

/* ---- words ---- */

/* What is loaded after the last of them is loaded later. */
static void words_load(void *out, const void *from, size_t bytes) {
    uint64_t *to = out;
    const uint64_t *words = from;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = tw_load_acquire(&words[i]);
}

static void words_add(void *sum, const void *from, size_t bytes) {
    uint64_t *to = sum;
    const uint64_t *words = from;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] += tw_load(&words[i]);
}

static uint64_t minus(uint64_t later, uint64_t earlier) { return later > earlier ? later - earlier : 0; }

static void words_subtract(void *later, const void *earlier, size_t bytes) {
    uint64_t *to = later;
    const uint64_t *words = earlier;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = minus(to[i], words[i]);
}

/* ---- counts: kept only where there are any ---- */

static int counts_keep(tw_counts **sum, const tw_counts *more) {
    if (more->count == 0) return 0;
    if (!*sum) {
        *sum = tw_malloc(sizeof **sum);
        if (!*sum) return ENOMEM;
        tw_counts_init(*sum);
    }
    tw_counts_add(*sum, more);
    return 0;
}

static int histogram_keep(tw_counts **sum, const tw_histogram *h) {
    tw_counts copy;
    tw_histogram_read(h, &copy);
    return counts_keep(sum, &copy);
}

static void counts_free(tw_counts **counts, size_t n) {
    for (size_t i = 0; i < n; i++) tw_free(counts[i]);
}

/* ---- inter-token latency without its late part ---- */

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
    int error = counts_keep(&to->metric[TW_METRIC_ITL], &itl);
    counts_shift(&itl, &shift);
    return error ? error : counts_keep(&to->metric[TW_METRIC_ITL_WITHOUT_GC], &itl);
}

/* ---- whose numbers ---- */

static bool lives(const tw_segment *g) { return tw_segment_lives(g); }

/* ---- label sets ---- */

/* A label set of one segment, before those of the same name are merged. */
typedef struct source {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    const tw_series *series;
    const tw_served *served;                 /* NULL: not kept */
} source;

static int names_compare(const char *a_model, const char *a_route, const char *b_model, const char *b_route) {
    int order = strcmp(a_model, b_model);
    return order ? order : strcmp(a_route, b_route);
}

static int source_compare(const void *left, const void *right) {
    const source *a = left, *b = right;
    return names_compare(a->model, a->route, b->model, b->route);
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
    int error = histogram_keep(&to->served[TW_SERVED_TTFT], &from->ttft);
    if (!error) error = histogram_keep(&to->served[TW_SERVED_TPOT], &from->tpot);
    for (int i = 0; i < TW_FAILURES && !error; i++) {
        if (tw_load(&from->failed[i].min_ns) == UINT64_MAX) continue;
        tw_brief_read(&from->failed[i], &failed);
        error = counts_keep(&to->served[TW_SERVED_FAILED + i], &failed);
    }
    return error;
}

static int series_keep(tw_snapshot_series *to, const tw_series *from) {
    words_add(to->reasons, from->reasons, sizeof to->reasons);
    to->output_tokens += tw_load(&from->output_tokens);
    int error = histogram_keep(&to->metric[TW_METRIC_TTFT], &from->ttft);
    if (!error) error = gaps_keep(to, from);
    if (!error) error = histogram_keep(&to->metric[TW_METRIC_TPOT], &from->tpot);
    if (!error) error = histogram_keep(&to->metric[TW_METRIC_E2E], &from->e2e);
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

/* Those in use: beyond them there may be no memory. */
static size_t sets_of(const tw_segment *g) {
    const uint64_t sets = tw_load_acquire(&g->series_count);
    return sets < TW_LABEL_SETS_LIMIT ? sets : TW_LABEL_SETS_LIMIT;
}

static int series_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    size_t room = 0, used = 0;
    size_t *sets = tw_malloc(n * sizeof *sets);
    if (!sets) return ENOMEM;
    for (size_t i = 0; i < n; i++) room += sets[i] = sets_of(segments[i]);
    source *sources = tw_malloc(room * sizeof *sources);
    for (size_t i = 0; sources && i < n; i++) used += sources_of(segments[i], sets[i], &sources[used]);
    tw_free(sets);
    if (!sources) return ENOMEM;
    qsort(sources, used, sizeof *sources, source_compare);
    int error = series_merge(s, sources, used);
    tw_free(sources);
    return error;
}

/* ---- seconds ---- */

/* false: the slot is empty, or was given to another second while it was copied. */
static bool second_read(const tw_second *from, tw_second *out) {
    uint64_t second = tw_load_acquire(&from->second);
    if (second == 0) return false;
    words_load(out, from, sizeof *out);
    return out->second == second && tw_load(&from->second) == second;
}

/* Up to now: a stamp with a time ahead must not hide the past hour. */
static uint64_t newest_second(const tw_segment *const *segments, size_t n, uint64_t now_ns) {
    const uint64_t limit = now_ns / TW_NS_PER_SECOND + 1;
    uint64_t newest = 0;
    for (size_t i = 0; i < n; i++)
        for (int at = 0; at < TW_SECONDS; at++) {
            uint64_t second = tw_load(&segments[i]->seconds[at].second);
            if (second > newest && second <= limit) newest = second;
        }
    return newest;
}

/* Adds a second at its place: the newest one stands last. */
static void second_keep(tw_second *sum, const tw_second *one, uint64_t newest) {
    if (one->second > newest || newest - one->second >= TW_SECONDS) return;
    tw_second *to = &sum[TW_SECONDS - 1 - (newest - one->second)];
    words_add(to, one, sizeof *to);
    to->second = one->second;
}

/* Moves the used ones to the back, in their order. */
static void seconds_close_gaps(tw_second *seconds) {
    int to = TW_SECONDS;
    for (int from = TW_SECONDS - 1; from >= 0; from--)
        if (seconds[from].second) seconds[--to] = seconds[from];
    memset(seconds, 0, (size_t)to * sizeof *seconds);
}

static int seconds_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->seconds = tw_calloc(TW_SECONDS, sizeof *s->seconds);
    if (!s->seconds) return ENOMEM;
    uint64_t newest = newest_second(segments, n, s->taken.monotonic_ns);
    tw_second one;
    for (size_t i = 0; i < n; i++)
        for (int at = 0; at < TW_SECONDS; at++)
            if (second_read(&segments[i]->seconds[at], &one)) second_keep(s->seconds, &one, newest);
    seconds_close_gaps(s->seconds);
    return 0;
}

/* ---- stream time, by the role whose pauses took it ---- */

static uint32_t lost_find(const tw_snapshot *s, const char *role) {
    uint32_t i = 0;
    while (i < s->lost_count && strcmp(s->lost[i].role, role) != 0) i++;
    return i;
}

/* Where a role's time is added up; the last place is "other" once there is no more room. */
static uint32_t lost_place(tw_snapshot *s, const char *role) {
    uint32_t i = lost_find(s, role);
    if (i == s->lost_count && i == TW_SOURCES) {
        i = lost_find(s, "other");
        if (i == TW_SOURCES) strcpy(s->lost[i = TW_SOURCES - 1].role, "other");
    } else if (i == s->lost_count) {
        memcpy(s->lost[s->lost_count++].role, role, sizeof s->lost->role);
    }
    return i;
}

static bool any_word(const uint64_t *words, size_t n) {
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++) all |= words[i];
    return all != 0;
}

static void lost_add(tw_snapshot *s, const tw_lost *from, bool always) {
    tw_snapshot_lost one;
    tw_words_get(from->role, TW_ROLE_WORDS, one.role);
    words_load(one.overlap_ns, from->overlap_ns, sizeof one.overlap_ns);
    words_load(one.late_ns, from->late_ns, sizeof one.late_ns);
    if (!always && !any_word(&one.overlap_ns[0][0], TW_PHASES * TW_CAUSES)) return;
    tw_snapshot_lost *to = &s->lost[lost_place(s, one.role)];
    words_add(to->overlap_ns, one.overlap_ns, sizeof one.overlap_ns);
    words_add(to->late_ns, one.late_ns, sizeof one.late_ns);
}

/* A process's own role is there from the start; others once they cost something. */
static void lost_take(tw_snapshot *s, const tw_segment *g) {
    for (uint32_t i = 0; i < TW_SOURCES; i++) lost_add(s, &g->lost[i], i == 0);
}

/* A segment's number for a role becomes the snapshot's, which may have been booked since its time was taken; a share that
 * names none is emptied. */
static void shares_rename(tw_snapshot *s, const tw_segment *g, tw_slow_record *record) {
    for (int i = 0; i < TW_SHARES; i++) {
        tw_share *share = &record->share[i];
        char role[TW_ROLE_WORDS * 8];
        if (share->overlap_ns == 0 || share->source >= TW_SOURCES || share->cause >= TW_CAUSES) {
            memset(share, 0, sizeof *share);
            continue;
        }
        tw_words_get(g->lost[share->source].role, TW_ROLE_WORDS, role);
        share->source = lost_place(s, role);
    }
}

static void lost_subtract(tw_snapshot *out, const tw_snapshot *earlier) {
    for (uint32_t i = 0; i < out->lost_count; i++) {
        const uint32_t at = lost_find(earlier, out->lost[i].role);
        if (at == earlier->lost_count) continue;
        words_subtract(out->lost[i].overlap_ns, earlier->lost[at].overlap_ns, sizeof out->lost[i].overlap_ns);
        words_subtract(out->lost[i].late_ns, earlier->lost[at].late_ns, sizeof out->lost[i].late_ns);
    }
}

/* ---- slow records ---- */

typedef struct slow_source {
    tw_slow_record record;
    const tw_series *series;
} slow_source;

static int slow_compare(const void *left, const void *right) {
    const tw_slow_record *a = &((const slow_source *)left)->record, *b = &((const slow_source *)right)->record;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static size_t slow_sources_of(tw_snapshot *s, const tw_segment *g, slow_source *out) {
    uint64_t head = tw_load_acquire(&g->slow_head);
    size_t n = 0;
    for (uint64_t i = head > TW_SLOW_RING ? head - TW_SLOW_RING : 0; i < head; i++) {
        if (!tw_segment_slow_read(g, i, &out[n].record) || out[n].record.phase >= TW_PHASES) continue;
        uint64_t series = out[n].record.series;
        shares_rename(s, g, &out[n].record);
        out[n++].series = tw_segment_series(g, series < sets_of(g) ? (uint32_t)series : 0);
    }
    return n;
}

static int slow_allocate(tw_snapshot *s, size_t n) {
    s->slow = tw_malloc(n * sizeof *s->slow);
    s->slow_series = tw_malloc(2 * n * sizeof *s->slow_series);
    return s->slow && s->slow_series ? 0 : ENOMEM;
}

/* The newest of the sorted sources. */
static int slow_merge(tw_snapshot *s, const slow_source *sources, size_t n) {
    if (n == 0) return 0;
    size_t count = n < TW_SLOW_RING ? n : TW_SLOW_RING;
    if (slow_allocate(s, count)) return ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const slow_source *from = &sources[n - count + i];
        s->slow[i] = from->record;
        s->slow[i].series = i;
        words_load(&s->slow_series[2 * i], &from->series->model, sizeof(tw_name));
        words_load(&s->slow_series[2 * i + 1], &from->series->route, sizeof(tw_name));
    }
    s->slow_count = (uint32_t)count;
    return 0;
}

static int slow_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    slow_source *sources = tw_malloc(n * TW_SLOW_RING * sizeof *sources);
    if (!sources) return ENOMEM;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += slow_sources_of(s, segments[i], &sources[used]);
    qsort(sources, used, sizeof *sources, slow_compare);
    int error = slow_merge(s, sources, used);
    tw_free(sources);
    return error;
}

/* ---- fallbacks ---- */

static int fallback_compare(const void *left, const void *right) {
    const tw_snapshot_fallback *a = left, *b = right;
    return names_compare(a->shape, a->reason, b->shape, b->reason);
}

static tw_snapshot_fallback *fallback_find(const tw_snapshot *s, const tw_snapshot_fallback *like) {
    for (uint32_t i = 0; i < s->fallback_count; i++)
        if (fallback_compare(&s->fallbacks[i], like) == 0) return &s->fallbacks[i];
    return NULL;
}

static void fallback_keep(tw_snapshot *s, const tw_fallback *from) {
    tw_snapshot_fallback one = {.count = tw_load(&from->count)};
    tw_words_get(from->shape, TW_SHAPE_WORDS, one.shape);
    tw_words_get(from->reason, TW_FALLBACK_REASON_WORDS, one.reason);
    tw_snapshot_fallback *known = fallback_find(s, &one);
    if (known) known->count += one.count;
    else s->fallbacks[s->fallback_count++] = one;
}

static size_t fallbacks_of(const tw_segment *g) {
    uint64_t count = tw_load_acquire(&g->fallback_count);
    return count < TW_FALLBACKS ? count : TW_FALLBACKS;
}

/* A kind that a writer adds meanwhile is the next snapshot's. */
static int fallbacks_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    size_t any = 0;
    for (size_t i = 0; i < n; i++) any += fallbacks_of(segments[i]);
    if (any == 0) return 0;
    s->fallbacks = tw_malloc(n * TW_FALLBACKS * sizeof *s->fallbacks);
    if (!s->fallbacks) return ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const size_t count = fallbacks_of(segments[i]);
        for (size_t at = 0; at < count; at++) fallback_keep(s, &segments[i]->fallbacks[at]);
    }
    qsort(s->fallbacks, s->fallback_count, sizeof *s->fallbacks, fallback_compare);
    return 0;
}

/* ---- engine steps ---- */

static bool step_in_use(const tw_step_stats *stats) { return tw_load_acquire(&stats->name[0]) != 0; }

static int step_keep(tw_snapshot_step *to, const tw_step_stats *from) {
    tw_words_get(from->name, TW_STEP_NAME_WORDS, to->name);
    words_load(to->overlap_ns, from->overlap_ns, sizeof to->overlap_ns);
    words_load(to->request_ns, from->request_ns, sizeof to->request_ns);
    to->batch = tw_load(&from->batch);
    to->unknown_ns = tw_load(&from->unknown_ns);
    const int error = histogram_keep(&to->spent[TW_STEP_INSIDE], &from->duration);
    return error ? error : histogram_keep(&to->spent[TW_STEP_GAP], &from->gap);
}

static int steps_take(tw_snapshot_process *to, const tw_steps *steps) {
    uint32_t used = 0;
    for (int i = 0; i < TW_STEPS; i++) used += step_in_use(&steps->of[i]);
    if (used == 0) return 0;
    to->steps = tw_calloc(TW_STEPS, sizeof *to->steps);
    if (!to->steps) return ENOMEM;
    int error = 0;
    for (int i = 0; i < TW_STEPS && !error; i++)
        if (step_in_use(&steps->of[i])) error = step_keep(&to->steps[to->step_count++], &steps->of[i]);
    return error;
}

static void steps_free(tw_snapshot_process *process) {
    for (uint32_t i = 0; i < process->step_count; i++) counts_free(process->steps[i].spent, TW_STEP_PHASES);
    tw_free(process->steps);
}

static tw_snapshot_step *step_find(const tw_snapshot_process *process, const char *name) {
    for (uint32_t i = 0; i < process->step_count; i++)
        if (strcmp(process->steps[i].name, name) == 0) return &process->steps[i];
    return NULL;
}

/* ---- processes and totals ---- */

/* What a total counts beyond the pauses that had ended. One that ends meanwhile is not open any more. */
static void standing_take(tw_snapshot_process *to, const tw_pause_clock *pause, int cause) {
    const uint64_t open_ns = minus(to->pause_ns[cause], tw_pause_total_ns(pause, (tw_cause)cause, 0));
    if (open_ns == 0) return;
    to->standing_ns = open_ns;
    to->standing_cause = (uint64_t)cause;
}

/* A pause that was open when its process was killed went on for nobody knows how long: it counts as not begun. */
static int process_take(tw_snapshot_process *to, const tw_segment *g, uint64_t taken_ns) {
    to->lives = lives(g);
    const uint64_t now_ns = to->lives ? taken_ns : 0;
    to->index = tw_load(&g->header.place) - 1;
    tw_words_get(g->header.role, TW_ROLE_WORDS, to->role);
    to->pid = g->header.pid;
    to->created_ns = g->header.created.monotonic_ns;
    to->created_unix_ns = g->header.created.realtime_ns;
    to->bytes = tw_segment_used(g);
    to->last_stop_ns = tw_load(&g->pause.last_stop_ns);
    to->pauses_lost = tw_load(&g->pause.lost);
    words_load(to->pause, g->pause.totals, sizeof to->pause);
    words_load(&to->policy, &g->policy, sizeof to->policy);
    if (!to->lives) memset(&to->policy.now, 0, sizeof to->policy.now);
    to->bytes += to->policy.now.bytes;
    int error = 0;
    for (int cause = 0; cause < TW_CAUSES && !error; cause++) {
        to->pause_ns[cause] = tw_pause_total_ns(&g->pause, (tw_cause)cause, now_ns);
        standing_take(to, &g->pause, cause);
        error = histogram_keep(&to->pauses[cause], &g->pauses[cause]);
    }
    return error ? error : steps_take(to, &g->steps);
}

/* The oldest first. */
static int process_compare(const void *left, const void *right) {
    const tw_snapshot_process *a = left, *b = right;
    if (a->created_ns != b->created_ns) return a->created_ns < b->created_ns ? -1 : 1;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

#define NO_INDEX UINT64_MAX /* of a process that has joined no group, until it gets the next that is free */

static tw_snapshot_process *process_named(tw_snapshot_process *all, uint32_t n, const char *role, uint64_t index) {
    for (uint32_t i = 0; i < n; i++)
        if (all[i].index == index && strcmp(all[i].role, role) == 0) return &all[i];
    return NULL;
}

static void totals_join(tw_pause_totals *to, const tw_pause_totals *from) {
    const uint64_t max_ns = to->max_ns > from->max_ns ? to->max_ns : from->max_ns;
    words_add(to, from, sizeof *to);
    to->max_ns = max_ns;
}

static void counts_join(tw_counts **to, tw_counts *from) {
    if (*to && from) tw_counts_add(*to, from);
    else if (from) *to = from;
    if (*to != from) tw_free(from);
}

static void step_join(tw_snapshot_step *to, tw_snapshot_step *from) {
    words_add(to->overlap_ns, from->overlap_ns, sizeof to->overlap_ns);
    words_add(to->request_ns, from->request_ns, sizeof to->request_ns);
    to->batch += from->batch;
    to->unknown_ns += from->unknown_ns;
    for (int i = 0; i < TW_STEP_PHASES; i++) counts_join(&to->spent[i], from->spent[i]);
}

/* from has none afterwards, whatever comes of it. */
static int steps_join(tw_snapshot_process *to, tw_snapshot_process *from) {
    tw_snapshot_step *all = from->step_count == 0 ? NULL : tw_calloc(to->step_count + from->step_count, sizeof *all);
    const int error = all == NULL && from->step_count > 0 ? ENOMEM : 0;
    if (all != NULL) {
        if (to->step_count > 0) memcpy(all, to->steps, to->step_count * sizeof *all);
        tw_free(to->steps);
        to->steps = all;
        for (uint32_t i = 0; i < from->step_count; i++) {
            tw_snapshot_step *same = step_find(to, from->steps[i].name);
            if (same) step_join(same, &from->steps[i]);
            else to->steps[to->step_count++] = from->steps[i];
        }
        from->step_count = 0;
    }
    steps_free(from);
    return error;
}

/* from had the same name; what is allocated of it is to's, or freed. The living one gives the pid. */
static int process_join(tw_snapshot_process *to, tw_snapshot_process *from) {
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        totals_join(&to->pause[cause], &from->pause[cause]);
        counts_join(&to->pauses[cause], from->pauses[cause]);
    }
    words_add(to->pause_ns, from->pause_ns, sizeof to->pause_ns);
    words_add(&to->policy.counts, &from->policy.counts, sizeof to->policy.counts);
    if (from->lives) to->policy.now = from->policy.now;
    if (from->pid != 0 && (from->lives || !to->lives)) to->pid = from->pid;
    to->lives |= from->lives;
    to->pauses_lost += from->pauses_lost;
    to->bytes += from->bytes;
    if (from->last_stop_ns > to->last_stop_ns) to->last_stop_ns = from->last_stop_ns;
    if (from->standing_ns > to->standing_ns) {
        to->standing_ns = from->standing_ns;
        to->standing_cause = from->standing_cause;
    }
    return steps_join(to, from);
}

/* The living and the dead of one name become one. */
static int processes_join(tw_snapshot *s) {
    uint32_t kept = 0;
    int error = 0;
    for (uint32_t i = 0; i < s->process_count; i++) {
        tw_snapshot_process one = s->process[i];
        tw_snapshot_process *same = one.index == NO_INDEX ? NULL : process_named(s->process, kept, one.role, one.index);
        if (!same) s->process[kept++] = one;
        else if (process_join(same, &one) != 0) error = ENOMEM;
    }
    s->process_count = kept;
    return error;
}

static void processes_number(tw_snapshot *s) {
    for (uint32_t i = 0; i < s->process_count; i++) {
        tw_snapshot_process *one = &s->process[i];
        if (one->index != NO_INDEX) continue;
        uint64_t index = 0;
        while (process_named(s->process, s->process_count, one->role, index)) index++;
        one->index = index;
    }
}

static int processes_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->process = tw_calloc(n, sizeof *s->process);
    if (!s->process) return ENOMEM;
    s->process_count = (uint32_t)n;
    int error = 0;
    for (size_t i = 0; i < n && !error; i++)
        error = process_take(&s->process[i], segments[i], s->taken.monotonic_ns);
    if (error) return error;
    qsort(s->process, n, sizeof *s->process, process_compare);
    error = processes_join(s);
    processes_number(s);
    return error;
}

static int waits_add(tw_snapshot *s, const tw_segment *g) {
    const tw_histogram *waits[TW_WAITS] = {&g->queue_proxy, &g->queue_accept, &g->abandoned_wait, &g->send_wait};
    int error = 0;
    for (int i = 0; i < TW_WAITS && !error; i++) error = histogram_keep(&s->wait[i], waits[i]);
    return error;
}

static void totals_add(tw_snapshot *s, const tw_segment *g) {
    lost_take(s, g);
    words_add(s->arrivals, g->arrivals, sizeof s->arrivals);
    words_add(s->drops, g->drops, sizeof s->drops);
    words_add(s->errors, g->errors, sizeof s->errors);
    words_add(s->tail, g->tail, sizeof s->tail);
    if (lives(g)) s->in_flight += tw_load(&g->in_flight);
    s->opened += tw_load(&g->opened);
    s->label_overflow += tw_load(&g->label_overflow);
    s->deadlines_due += tw_load(&g->deadlines_due);
    s->deadlines_met += tw_load(&g->deadlines_met);
}

static int totals_take(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->slo = segments[0]->slo;
    int error = 0;
    for (size_t i = 0; i < n && !error; i++) {
        uint64_t age = minus(s->taken.monotonic_ns, segments[i]->header.created.monotonic_ns);
        if (age >= s->window_ns) {
            s->window_ns = age;
            s->created_ns = segments[i]->header.created.realtime_ns;
        }
        totals_add(s, segments[i]);
        error = waits_add(s, segments[i]);
    }
    return error;
}

/* ---- life ---- */

static bool segments_valid(const tw_segment *const *segments, size_t n) {
    if (!segments || n == 0) return false;
    for (size_t i = 0; i < n; i++)
        if (!segments[i] || !tw_segment_valid(segments[i], segments[i]->header.bytes)) return false;
    return true;
}

/* Hands s over, or frees what there is of it. */
static int finish(tw_snapshot **out, tw_snapshot *s, int error) {
    if (error) tw_snapshot_free(s);
    *out = error ? NULL : s;
    return error;
}

int tw_snapshot_take(tw_snapshot **out, const tw_segment *const *segments, size_t n) {
    if (!out || !segments_valid(segments, n)) return EINVAL;
    tw_snapshot *s = tw_calloc(1, sizeof *s);
    if (!s) return finish(out, NULL, ENOMEM);
    s->taken = tw_clock_pair_now();
    int error = totals_take(s, segments, n);
    if (!error) error = series_take(s, segments, n);
    if (!error) error = processes_take(s, segments, n);
    if (!error) error = seconds_take(s, segments, n);
    if (!error) error = slow_take(s, segments, n);
    if (!error) error = fallbacks_take(s, segments, n);
    if (!error) error = tw_snapshot_take_exemplars(s, segments, n);
    return finish(out, s, error);
}

void tw_snapshot_free(tw_snapshot *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->series_count; i++) {
        counts_free(s->series[i].metric, TW_SERIES_METRICS);
        counts_free(s->series[i].served, TW_SERVED_METRICS);
    }
    for (uint32_t i = 0; i < s->process_count; i++) {
        counts_free(s->process[i].pauses, TW_CAUSES);
        steps_free(&s->process[i]);
    }
    counts_free(s->wait, TW_WAITS);
    tw_free(s->series);
    tw_free(s->process);
    tw_free(s->seconds);
    tw_free(s->slow);
    tw_free(s->slow_series);
    tw_free(s->fallbacks);
    tw_free(s->exemplars);
    tw_free(s);
}

/* ---- differences ---- */

/* earlier as it can be taken away from later: no slot and no sum larger. A gap that lost its late part between
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

/* *counts points to later's and becomes a copy of its own, less earlier's. */
static int counts_rest(tw_counts **counts, const tw_counts *later, const tw_counts *earlier, const tw_layout *layout) {
    if (!later) return 0;
    tw_counts rest = *later;
    if (earlier) counts_take_away(&rest, earlier, layout);
    return counts_keep(counts, &rest);
}

static int counts_subtract(tw_counts **counts, const tw_counts *later, const tw_counts *earlier, int metric) {
    return counts_rest(counts, later, earlier, tw_metric_layout(metric));
}

static const tw_snapshot_series *series_find(const tw_snapshot *s, const tw_snapshot_series *like) {
    for (uint32_t i = 0; i < s->series_count; i++)
        if (names_compare(s->series[i].model, s->series[i].route, like->model, like->route) == 0) return &s->series[i];
    return NULL;
}

static int one_series_subtract(tw_snapshot_series *out, const tw_snapshot_series *later,
                               const tw_snapshot_series *earlier) {
    *out = *later;
    memset(out->metric, 0, sizeof out->metric);
    memset(out->served, 0, sizeof out->served);
    out->exemplar_count = 0;
    if (earlier) {
        words_subtract(out->reasons, earlier->reasons, sizeof out->reasons);
        out->output_tokens = minus(out->output_tokens, earlier->output_tokens);
    }
    int error = 0;
    for (int i = 0; i < TW_SERIES_METRICS && !error; i++)
        error = counts_subtract(&out->metric[i], later->metric[i], earlier ? earlier->metric[i] : NULL, i);
    for (int i = 0; i < TW_SERVED_METRICS && !error; i++)
        error = counts_rest(&out->served[i], later->served[i], earlier ? earlier->served[i] : NULL, tw_served_layout(i));
    return error;
}

static int series_subtract(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    out->series = tw_calloc(later->series_count ? later->series_count : 1, sizeof *out->series);
    if (!out->series) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->series_count && !error; i++) {
        out->series_count = i + 1;
        error = one_series_subtract(&out->series[i], &later->series[i], series_find(earlier, &later->series[i]));
    }
    return error;
}

/* By its name, else by what stays as it is: a role may be settled later than the first pause. */
static const tw_snapshot_process *process_find(const tw_snapshot *s, const tw_snapshot_process *like) {
    for (uint32_t i = 0; i < s->process_count; i++)
        if (s->process[i].index == like->index && strcmp(s->process[i].role, like->role) == 0) return &s->process[i];
    for (uint32_t i = 0; i < s->process_count; i++)
        if (like->pid != 0 && s->process[i].pid == like->pid && s->process[i].created_ns == like->created_ns) return &s->process[i];
    return NULL;
}

static void pauses_subtract(tw_snapshot_process *later, const tw_snapshot_process *earlier) {
    words_subtract(later->pause_ns, earlier->pause_ns, sizeof later->pause_ns);
    words_subtract(later->pause, earlier->pause, sizeof later->pause);
    later->pauses_lost = minus(later->pauses_lost, earlier->pauses_lost);
    words_subtract(&later->policy.counts, &earlier->policy.counts, sizeof later->policy.counts);
}

static int one_step_subtract(tw_snapshot_step *out, const tw_snapshot_step *later, const tw_snapshot_step *earlier) {
    static const tw_snapshot_step nothing = {.batch = 0};
    *out = *later;
    memset(out->spent, 0, sizeof out->spent);
    if (!earlier) earlier = &nothing;
    words_subtract(out->overlap_ns, earlier->overlap_ns, sizeof out->overlap_ns);
    words_subtract(out->request_ns, earlier->request_ns, sizeof out->request_ns);
    out->batch = minus(out->batch, earlier->batch);
    out->unknown_ns = minus(out->unknown_ns, earlier->unknown_ns);
    int error = 0;
    for (int i = 0; i < TW_STEP_PHASES && !error; i++)
        error = counts_rest(&out->spent[i], later->spent[i], earlier->spent[i], tw_step_layout(i));
    return error;
}

/* out is a copy of later. */
static int steps_subtract(tw_snapshot_process *out, const tw_snapshot_process *later, const tw_snapshot_process *earlier) {
    out->steps = NULL;
    out->step_count = 0;
    if (later->step_count == 0) return 0;
    out->steps = tw_calloc(later->step_count, sizeof *out->steps);
    if (!out->steps) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->step_count && !error; i++) {
        out->step_count = i + 1;
        error = one_step_subtract(&out->steps[i], &later->steps[i], step_find(earlier, later->steps[i].name));
    }
    return error;
}

static int one_process_subtract(tw_snapshot_process *out, const tw_snapshot_process *later,
                                const tw_snapshot_process *earlier) {
    static const tw_snapshot_process nothing = {.pid = 0};
    *out = *later;
    memset(out->pauses, 0, sizeof out->pauses);
    if (!earlier) earlier = &nothing;
    pauses_subtract(out, earlier);
    int error = steps_subtract(out, later, earlier);
    for (int i = 0; i < TW_CAUSES && !error; i++) {
        error = counts_subtract(&out->pauses[i], later->pauses[i], earlier->pauses[i], TW_METRIC_PAUSE + i);
        out->pause[i].max_ns = out->pauses[i] ? out->pauses[i]->max_ns : 0; /* a maximum has no difference */
    }
    return error;
}

static int processes_subtract(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    out->process = tw_calloc(later->process_count ? later->process_count : 1, sizeof *out->process);
    if (!out->process) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->process_count && !error; i++) {
        out->process_count = i + 1;
        error = one_process_subtract(&out->process[i], &later->process[i], process_find(earlier, &later->process[i]));
    }
    return error;
}

static int waits_subtract(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    int error = 0;
    for (int i = 0; i < TW_WAITS && !error; i++)
        error = counts_subtract(&out->wait[i], later->wait[i], earlier->wait[i], TW_METRIC_QUEUE_PROXY + i);
    return error;
}

static void totals_subtract(tw_snapshot *out, const tw_snapshot *earlier) {
    out->window_ns = minus(out->taken.monotonic_ns, earlier->taken.monotonic_ns);
    lost_subtract(out, earlier);
    words_subtract(out->arrivals, earlier->arrivals, sizeof out->arrivals);
    words_subtract(out->drops, earlier->drops, sizeof out->drops);
    words_subtract(out->errors, earlier->errors, sizeof out->errors);
    words_subtract(out->tail, earlier->tail, sizeof out->tail);
    out->opened = minus(out->opened, earlier->opened);
    out->label_overflow = minus(out->label_overflow, earlier->label_overflow);
    out->deadlines_due = minus(out->deadlines_due, earlier->deadlines_due);
    out->deadlines_met = minus(out->deadlines_met, earlier->deadlines_met);
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
    s->fallbacks = NULL;
    s->exemplars = NULL;
    s->series_count = s->process_count = s->slow_count = s->fallback_count = 0;
    memset(s->wait, 0, sizeof s->wait);
    return s;
}

static int seconds_copy(tw_snapshot *out, const tw_snapshot *from) {
    out->seconds = tw_malloc(TW_SECONDS * sizeof *out->seconds);
    if (!out->seconds) return ENOMEM;
    memcpy(out->seconds, from->seconds, TW_SECONDS * sizeof *out->seconds);
    return 0;
}

static int slow_copy(tw_snapshot *out, const tw_snapshot *from) {
    if (from->slow_count == 0) return 0;
    if (slow_allocate(out, from->slow_count)) return ENOMEM;
    memcpy(out->slow, from->slow, from->slow_count * sizeof *out->slow);
    memcpy(out->slow_series, from->slow_series, 2 * from->slow_count * sizeof *out->slow_series);
    out->slow_count = from->slow_count;
    return 0;
}

static int fallbacks_subtract(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    if (later->fallback_count == 0) return 0;
    out->fallbacks = tw_malloc(later->fallback_count * sizeof *out->fallbacks);
    if (!out->fallbacks) return ENOMEM;
    for (uint32_t i = 0; i < later->fallback_count; i++) {
        const tw_snapshot_fallback *before = fallback_find(earlier, &later->fallbacks[i]);
        out->fallbacks[i] = later->fallbacks[i];
        if (before) out->fallbacks[i].count = minus(later->fallbacks[i].count, before->count);
    }
    out->fallback_count = later->fallback_count;
    return 0;
}

int tw_snapshot_subtract(tw_snapshot **out, const tw_snapshot *later, const tw_snapshot *earlier) {
    if (!out || !later || !earlier || later->taken.monotonic_ns < earlier->taken.monotonic_ns) return EINVAL;
    tw_snapshot *s = scalars_copy(later);
    if (!s) return finish(out, NULL, ENOMEM);
    totals_subtract(s, earlier);
    int error = series_subtract(s, later, earlier);
    if (!error) error = processes_subtract(s, later, earlier);
    if (!error) error = waits_subtract(s, later, earlier);
    if (!error) error = seconds_copy(s, later);
    if (!error) error = slow_copy(s, later);
    if (!error) error = fallbacks_subtract(s, later, earlier);
    return finish(out, s, error);
}

/* ---- questions ---- */

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
            counts_add_any(out, s->process[i].pauses[metric - TW_METRIC_PAUSE]);
    }
    return out->count > 0;
}

static uint64_t second_of(const tw_snapshot *s) { return s->taken.monotonic_ns / TW_NS_PER_SECOND; }

/* How many seconds, the current one included, there are numbers for. */
static uint64_t seconds_known(const tw_snapshot *s) {
    uint64_t known = s->window_ns / TW_NS_PER_SECOND + 1;
    for (int i = 0; i < TW_SECONDS; i++) {
        if (s->seconds[i].second == 0) continue;
        uint64_t back = minus(second_of(s) + 1, s->seconds[i].second - 1);
        return back > known ? back : known;
    }
    return known;
}

static void second_add(tw_window *sum, const tw_second *one) {
    sum->good += tw_low(one->good_miss);
    sum->miss += tw_high(one->good_miss);
    sum->excluded += tw_low(one->excluded_finished);
    sum->finished += tw_high(one->excluded_finished);
    sum->ttft_ok += tw_low(one->ttft_tpot);
    sum->tpot_ok += tw_high(one->ttft_tpot);
    sum->itl_ok += tw_low(one->itl_e2e);
    sum->e2e_ok += tw_high(one->itl_e2e);
    sum->due += tw_low(one->due_met);
    sum->met += tw_high(one->due_met);
}

void tw_snapshot_window(const tw_snapshot *s, uint32_t window_s, tw_window *out) {
    memset(out, 0, sizeof *out);
    uint64_t known = seconds_known(s), window = window_s < TW_SECONDS ? window_s : TW_SECONDS;
    if (window > known) window = known;
    if (window == 0) window = 1;
    out->seconds = window;
    uint64_t now = second_of(s);
    for (int i = 0; i < TW_SECONDS; i++) {
        uint64_t second = s->seconds[i].second;
        if (second != 0 && second - 1 <= now && second - 1 + window > now) second_add(out, &s->seconds[i]);
    }
}
