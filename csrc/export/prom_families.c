/* Metrics: one table of families; each family names the function that gives its samples, to whichever of the formats'
 * writers (prom_writer.h) is asked for. A sample knows no format.
 */
#include "tailwatch/export/prom_families.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "export/prom_writer.h"
#include "base/yield.h"

typedef struct family family;

typedef struct renderer {
    const tw_snapshot *snapshot;
    const tw_exposition_info *info;
    tw_writer *writer;
    tw_window window;
    uint64_t gave_way_ns;        /* when it last let others have the core */
} renderer;

enum { COUNTER = TW_FAMILY_COUNTER, GAUGE = TW_FAMILY_GAUGE, HISTOGRAM = TW_FAMILY_HISTOGRAM, INFO = TW_FAMILY_INFO };

struct family {
    tw_family_head head;
    void (*samples)(renderer *, const family *);
    size_t of;                   /* which metric, field or member: what `samples` makes of it */
};

/* ---- samples ---------------------------------------------------------------------------------------- */

static void open_sample(renderer *r, const family *f) {
    (void)f;
    r->writer->created_ns = r->snapshot->created_ns;
    r->writer->exemplars = NULL;
    r->writer->exemplar_count = 0;
    r->writer->syntax->open(r->writer);
}

static void label(renderer *r, const char *name, const char *value) {
    r->writer->syntax->label(r->writer, name, value ? value : "");
}

/* What a process counted began with the first of its name. */
static void label_process(renderer *r, uint32_t process) {
    const tw_snapshot_process *one = &r->snapshot->process[process];
    char text[TW_ROLE_WORDS * 8 + 24];
    size_t n = strlen(one->role);
    memcpy(text, one->role, n);
    text[n++] = '-';
    n += tw_format_count(text + n, one->index);
    text[n] = '\0';
    label(r, "process", text);
    r->writer->created_ns = one->created_unix_ns;
}

static void close_number(renderer *r, tw_number number) { r->writer->syntax->number(r->writer, &number); }
static void close_count(renderer *r, uint64_t value) { close_number(r, (tw_number){TW_NUMBER_COUNT, value, 0}); }
static void close_seconds(renderer *r, uint64_t ns) { close_number(r, (tw_number){TW_NUMBER_SECONDS, ns, 0}); }
static void close_ratio(renderer *r, uint64_t numerator, uint64_t denominator) {
    close_number(r, (tw_number){TW_NUMBER_RATIO, numerator, denominator});
}

/* c: NULL where nothing was recorded. */
static void close_histogram(renderer *r, const family *f, const tw_counts *c, const tw_layout *layout) {
    static const tw_counts none;
    (void)f;
    r->writer->syntax->histogram(r->writer, c ? c : &none, layout);
}

/* ---- requests --------------------------------------------------------------------------------------- */

static bool in_use(const tw_snapshot_series *s) {
    if (s->output_tokens) return true;
    for (int i = 0; i < TW_SERIES_METRICS; i++)
        if (s->metric[i]) return true;
    for (int i = 0; i < TW_REASONS; i++)
        if (s->reasons[i]) return true;
    return false;
}

static void label_series(renderer *r, const tw_snapshot_series *s) {
    label(r, "model_name", s->model);
    label(r, "route", s->route);
}

/* Those of one histogram stand together. */
static void exemplars_of(renderer *r, const tw_snapshot_series *s, size_t metric) {
    if (s->exemplar_count == 0) return;
    const tw_snapshot_exemplar *all = r->snapshot->exemplars + s->exemplars_at;
    uint32_t from = 0;
    while (from < s->exemplar_count && all[from].metric < metric) from++;
    uint32_t to = from;
    while (to < s->exemplar_count && all[to].metric == metric) to++;
    r->writer->exemplars = all + from;
    r->writer->exemplar_count = to - from;
}

static void series_histogram(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) {
        const tw_snapshot_series *s = &r->snapshot->series[i];
        tw_give_way(&r->gave_way_ns);
        if (!in_use(s)) continue;
        open_sample(r, f);
        label_series(r, s);
        exemplars_of(r, s, f->of);
        close_histogram(r, f, s->metric[f->of], tw_metric_layout((int)f->of));
    }
}

/* Every reason of a label set in use: rate() does not see the first of a series that begins with it. */
static void series_requests(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) {
        const tw_snapshot_series *s = &r->snapshot->series[i];
        for (int reason = 0; in_use(s) && reason < TW_REASONS; reason++) {
            open_sample(r, f);
            label_series(r, s);
            label(r, "outcome", tw_outcome_name(tw_reason_outcome((tw_reason)reason)));
            label(r, "reason", tw_reason_name(reason));
            close_count(r, s->reasons[reason]);
        }
    }
}

static void series_tokens(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) {
        const tw_snapshot_series *s = &r->snapshot->series[i];
        if (!in_use(s)) continue;
        open_sample(r, f);
        label_series(r, s);
        close_count(r, s->output_tokens);
    }
}

static void requests_good(renderer *r, const family *f) {
    uint64_t good = 0;
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) good += r->snapshot->series[i].reasons[TW_REASON_GOOD];
    open_sample(r, f);
    label(r, "slo", r->info->slo);
    close_count(r, good);
}

static void window_goodput(renderer *r, const family *f) {
    open_sample(r, f);
    close_ratio(r, r->window.good, r->window.seconds);
}

static void window_throughput(renderer *r, const family *f) {
    open_sample(r, f);
    close_ratio(r, r->window.finished, r->window.seconds);
}

/* Nothing judged in the window: no share, hence no sample. */
static void window_attainment(renderer *r, const family *f) {
    uint64_t judged = r->window.good + r->window.miss;
    if (!judged) return;
    open_sample(r, f);
    close_ratio(r, r->window.good, judged);
}

/* A single number of the snapshot; `of` is its offset. */
static void snapshot_count(renderer *r, const family *f) {
    uint64_t value;
    memcpy(&value, (const char *)r->snapshot + f->of, sizeof value);
    open_sample(r, f);
    close_count(r, value);
}

static void queue_stages(renderer *r, const family *f) {
    static const char *const stages[] = {"proxy", "accept"};
    for (int i = 0; i < 2; i++) {
        open_sample(r, f);
        label(r, "stage", stages[i]);
        close_histogram(r, f, r->snapshot->wait[i], tw_metric_layout(TW_METRIC_QUEUE_PROXY + i));
    }
}

static void wait_histogram(renderer *r, const family *f) {
    open_sample(r, f);
    close_histogram(r, f, r->snapshot->wait[f->of - TW_METRIC_QUEUE_PROXY], tw_metric_layout((int)f->of));
}

/* ---- processes -------------------------------------------------------------------------------------- */

/* A cause is always shown where rate() would otherwise miss its first event; the two that only one
 * interpreter line has are shown once they happened. */
static bool always_shown(int cause) { return cause != TW_CAUSE_GC_FULL && cause != TW_CAUSE_GC_INCREMENT; }

static const char *generation_name(int cause) {
    static const char *const names[TW_CAUSES] = {"0", "1", "2", "full", "increment", "policy"};
    return names[cause];
}

static void process_gc_histogram(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        for (int cause = 0; cause < TW_CAUSE_POLICY; cause++) {
            const tw_counts *c = r->snapshot->process[p].pauses[cause];
            if (!c && !always_shown(cause)) continue;
            open_sample(r, f);
            label(r, "generation", generation_name(cause));
            label_process(r, p);
            close_histogram(r, f, c, tw_metric_layout(TW_METRIC_PAUSE + cause));
        }
    }
}

static void process_policy_histogram(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        open_sample(r, f);
        label_process(r, p);
        close_histogram(r, f, r->snapshot->process[p].pauses[TW_CAUSE_POLICY],
                        tw_metric_layout(TW_METRIC_PAUSE + TW_CAUSE_POLICY));
    }
}

/* One member of tw_pause_totals for each process and cause; `of` is its offset. */
static void process_gc_totals(renderer *r, const family *f) {
    bool seconds = tw_unit_of(f->head.name) != NULL;
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        for (int cause = 0; cause < TW_CAUSES; cause++) {
            const tw_pause_totals *totals = &r->snapshot->process[p].pause[cause];
            if (!totals->count && cause > TW_CAUSE_GC2) continue;
            uint64_t value;
            memcpy(&value, (const char *)totals + f->of, sizeof value);
            open_sample(r, f);
            label(r, "generation", generation_name(cause));
            label_process(r, p);
            if (seconds) close_seconds(r, value);
            else close_count(r, value);
        }
    }
}

/* Stream time, [phase][cause]; `of` is the array's offset in a tw_snapshot_lost. */
static void source_seconds(renderer *r, const family *f, const tw_snapshot_lost *lost) {
    uint64_t ns[TW_PHASES][TW_CAUSES];
    memcpy(ns, (const char *)lost + f->of, sizeof ns);
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        for (int phase = 0; phase < TW_PHASES; phase++) {
            if (!ns[phase][cause] && !always_shown(cause)) continue;
            open_sample(r, f);
            label(r, "cause", tw_cause_name(cause));
            label(r, "source", lost->role);
            label(r, "phase", tw_phase_name(phase));
            close_seconds(r, ns[phase][cause]);
        }
    }
}

static void stream_seconds(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->lost_count; i++) source_seconds(r, f, &r->snapshot->lost[i]);
}

/* ---- engine steps ----------------------------------------------------------------------------------- */

static bool any_steps(const renderer *r) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++)
        if (r->snapshot->process[p].step_count) return true;
    return false;
}

static void label_step(renderer *r, uint32_t process, const tw_snapshot_step *step) {
    label_process(r, process);
    label(r, "step", step->name);
}

/* `of` is the tw_step_phase. */
static void step_histogram(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        const tw_snapshot_process *process = &r->snapshot->process[p];
        tw_give_way(&r->gave_way_ns);
        for (uint32_t i = 0; i < process->step_count; i++) {
            open_sample(r, f);
            label_step(r, p, &process->steps[i]);
            close_histogram(r, f, process->steps[i].spent[f->of], tw_step_layout((int)f->of));
        }
    }
}

/* A single number; `of` is its offset. */
static void step_totals(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        const tw_snapshot_process *process = &r->snapshot->process[p];
        for (uint32_t i = 0; i < process->step_count; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&process->steps[i] + f->of, sizeof value);
            open_sample(r, f);
            label_step(r, p, &process->steps[i]);
            if (tw_unit_of(f->head.name)) close_seconds(r, value);
            else close_count(r, value);
        }
    }
}

/* Time, [phase][cause]; `of` is the array's offset. */
static void step_causes(renderer *r, const family *f, uint32_t process, const tw_snapshot_step *step) {
    uint64_t ns[TW_STEP_PHASES][TW_CAUSES];
    memcpy(ns, (const char *)step + f->of, sizeof ns);
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        for (int phase = 0; phase < TW_STEP_PHASES; phase++) {
            if (!ns[phase][cause] && !always_shown(cause)) continue;
            open_sample(r, f);
            label_step(r, process, step);
            label(r, "cause", tw_cause_name(cause));
            label(r, "phase", tw_step_phase_name(phase));
            close_seconds(r, ns[phase][cause]);
        }
    }
}

static void step_seconds(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        const tw_snapshot_process *process = &r->snapshot->process[p];
        for (uint32_t i = 0; i < process->step_count; i++) step_causes(r, f, p, &process->steps[i]);
    }
}

/* ---- the collector's policy -------------------------------------------------------------------------- */

static const tw_policy *policy_of(const renderer *r, uint32_t process) { return &r->snapshot->process[process].policy; }

/* Whether it collects out of band, or has: else it has nothing to tell of slices. */
static bool sweeps(const tw_policy *policy) {
    uint64_t any = policy->now.kind == TW_POLICY_OUT_OF_BAND;
    for (int i = 0; i < TW_MOMENTS; i++) any |= policy->counts.slices[i] | policy->counts.passes[i];
    return any != 0;
}

static bool any_sweeps(const renderer *r) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++)
        if (sweeps(policy_of(r, p))) return true;
    return false;
}

/* Of those that live and have said it. */
static void policy_info(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        const tw_policy_now *now = &policy_of(r, p)->now;
        if (now->kind == TW_POLICY_UNKNOWN) continue;
        open_sample(r, f);
        label_process(r, p);
        label(r, "policy", tw_policy_kind_name((int)now->kind));
        label(r, "mode", tw_policy_mode_name((int)now->mode));
        label(r, "fallback", tw_policy_why_name((int)now->why));
        close_count(r, 1);
    }
}

typedef struct policy_list {
    const char *label;
    size_t at;                   /* of tw_policy_counts */
    int n;
    const char *(*name)(int);
    int first, last;             /* those that are always shown */
} policy_list;

#define POLICY(member) offsetof(tw_policy_counts, member)
enum { LIST_PASSES, LIST_DRIFT, LIST_SLICES, LIST_CEILINGS };
static const policy_list POLICY_LISTS[] = {
    [LIST_PASSES] = {"reason", POLICY(passes), TW_PASSES, tw_pass_name, TW_PASS_AUTOMATIC, TW_PASS_FOREIGN},
    [LIST_DRIFT] = {"call", POLICY(drift), TW_DRIFTS, tw_drift_name, 0, TW_DRIFTS - 1},
    [LIST_SLICES] = {"reason", POLICY(slices), TW_MOMENTS, tw_moment_name, 0, TW_MOMENTS - 1},
    [LIST_CEILINGS] = {"ceiling", POLICY(ceilings), TW_CEILINGS, tw_ceiling_name, 0, TW_CEILINGS - 1},
};

static void policy_counts(renderer *r, const family *f, uint32_t process, const policy_list *list) {
    const char *counts = (const char *)&policy_of(r, process)->counts + list->at;
    for (int i = 0; i < list->n; i++) {
        uint64_t value;
        memcpy(&value, counts + (size_t)i * sizeof value, sizeof value);
        if (value == 0 && (i < list->first || i > list->last)) continue;
        open_sample(r, f);
        label_process(r, process);
        label(r, list->label, list->name(i));
        close_count(r, value);
    }
}

/* `of` is the list. */
static void policy_named(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) policy_counts(r, f, p, &POLICY_LISTS[f->of]);
}

static void sweep_named(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++)
        if (sweeps(policy_of(r, p))) policy_counts(r, f, p, &POLICY_LISTS[f->of]);
}

/* A single number of tw_policy_counts; `of` is its offset. */
static void sweep_totals(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        uint64_t value;
        if (!sweeps(policy_of(r, p))) continue;
        memcpy(&value, (const char *)&policy_of(r, p)->counts + f->of, sizeof value);
        open_sample(r, f);
        label_process(r, p);
        if (tw_unit_of(f->head.name)) close_seconds(r, value);
        else close_count(r, value);
    }
}

/* 1 + a number of tw_policy_now, 0: not known; `of` is its offset. */
static void policy_size(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        uint64_t value;
        memcpy(&value, (const char *)&policy_of(r, p)->now + f->of, sizeof value);
        if (value == 0) continue;
        open_sample(r, f);
        label_process(r, p);
        close_count(r, value - 1);
    }
}

static void sweep_debt(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        if (policy_of(r, p)->now.mode != TW_POLICY_SWEEP) continue;
        open_sample(r, f);
        label_process(r, p);
        close_count(r, policy_of(r, p)->now.debt);
    }
}

/* ---- about ourselves -------------------------------------------------------------------------------- */

static void named_counts(renderer *r, const family *f, const char *name, const uint64_t *counts, int n,
                         const char *(*value_name)(int)) {
    for (int i = 0; i < n; i++) {
        open_sample(r, f);
        label(r, name, value_name(i));
        close_count(r, counts[i]);
    }
}

static void arrivals(renderer *r, const family *f) {
    named_counts(r, f, "source", r->snapshot->arrivals, TW_ARRIVALS, tw_arrival_name);
}
static void drops(renderer *r, const family *f) {
    named_counts(r, f, "reason", r->snapshot->drops, TW_DROPS, tw_drop_name);
}
static void errors(renderer *r, const family *f) {
    named_counts(r, f, "where", r->snapshot->errors, TW_ERRORS, tw_error_name);
}

static void sse_fallbacks(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->fallback_count; i++) {
        open_sample(r, f);
        label(r, "shape", r->snapshot->fallbacks[i].shape);
        label(r, "reason", r->snapshot->fallbacks[i].reason);
        close_count(r, r->snapshot->fallbacks[i].count);
    }
}

static void memory(renderer *r, const family *f) {
    uint64_t bytes = r->info->extra_bytes;
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) bytes += r->snapshot->process[p].bytes;
    open_sample(r, f);
    close_count(r, bytes);
}

static void registry_render(renderer *r, const family *f) {
    double ns = r->info->registry_seconds * 1e9;
    if (!(ns >= 0 && ns < 1e18)) return;
    open_sample(r, f);
    close_seconds(r, (uint64_t)(ns + 0.5));
}

static void build_info(renderer *r, const family *f) {
    open_sample(r, f);
    label(r, "version", r->info->version);
    label(r, "python", r->info->python);
    close_count(r, 1);
}

/* ---- for routers ------------------------------------------------------------------------------------ */

/* `of` is a double's offset; below 0: not known, no sample. */
static void load_number(renderer *r, const family *f) {
    double value;
    memcpy(&value, (const char *)r->info->load + f->of, sizeof value);
    if (!(value >= 0 && value < 1e9)) return;
    open_sample(r, f);
    close_seconds(r, (uint64_t)(value * 1e9 + 0.5)); /* nine digits after the point, of whatever unit */
}

/* One sample: how the search for the healthy concurrency ended. */
static void load_verdict(renderer *r, const family *f) {
    open_sample(r, f);
    label(r, "verdict", r->info->load->verdict);
    close_count(r, 1);
}

/* The label is rounded to a whole number of streams: points lie at least so far apart. */
static void load_curve(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->info->load->point_count; i++) {
        const tw_crowd_point *point = &r->info->load->points[i];
        char text[24];
        snprintf(text, sizeof text, "%llu", (unsigned long long)(point->streams + 0.5));
        open_sample(r, f);
        label(r, "streams", text);
        close_seconds(r, (uint64_t)(point->ttft_s * 1e9 + 0.5));
    }
}

/* ---- the table -------------------------------------------------------------------------------------- */

#define SNAPSHOT(member) offsetof(tw_snapshot, member)
#define LOST(field) offsetof(tw_snapshot_lost, field)
#define TOTALS(member) offsetof(tw_pause_totals, member)

static const family FAMILIES[] = {
    {{"tailwatch_time_to_first_token_seconds", HISTOGRAM,
      "From a request's arrival to its first generated token."},
     series_histogram, TW_METRIC_TTFT},
    {{"tailwatch_inter_token_latency_seconds", HISTOGRAM,
      "Gap between two token-bearing messages of a stream, as they are handed to the server."},
     series_histogram, TW_METRIC_ITL},
    {{"tailwatch_inter_token_latency_without_gc_seconds", HISTOGRAM,
      "The same gaps without their late part: an estimate of what they would be if nothing had paused."},
     series_histogram, TW_METRIC_ITL_WITHOUT_GC},
    {{"tailwatch_time_per_output_token_seconds", HISTOGRAM,
      "(Last token - first token) / (output tokens - 1), finished requests."},
     series_histogram, TW_METRIC_TPOT},
    {{"tailwatch_e2e_request_latency_seconds", HISTOGRAM,
      "From a request's arrival to its last byte, finished requests."},
     series_histogram, TW_METRIC_E2E},
    {{"tailwatch_queue_seconds", HISTOGRAM,
      "What a request waited before the app saw it: behind a proxy, and accepted by the kernel but not read."},
     queue_stages, 0},
    {{"tailwatch_abandoned_wait_seconds", HISTOGRAM,
      "What clients waited that went away before their first token."},
     wait_histogram, TW_METRIC_ABANDONED_WAIT},
    {{"tailwatch_send_wait_seconds", HISTOGRAM,
      "How long sends were blocked by clients that do not read."},
     wait_histogram, TW_METRIC_SEND_WAIT},
    {{"tailwatch_requests", COUNTER,
      "Requests ended, by verdict: good and miss make the attainment, excluded is counted beside it."},
     series_requests, 0},
    {{"tailwatch_requests_good", COUNTER,
      "Requests finished without error within every bound of the SLO."},
     requests_good, 0},
    {{"tailwatch_goodput_requests_per_second", GAUGE,
      "Good requests per second over the rolling window."},
     window_goodput, 0},
    {{"tailwatch_throughput_requests_per_second", GAUGE,
      "Finished requests per second over the rolling window."},
     window_throughput, 0},
    {{"tailwatch_slo_attainment_ratio", GAUGE,
      "good / (good + miss) over the rolling window; absent where nothing was judged."},
     window_attainment, 0},
    {{"tailwatch_requests_in_flight", GAUGE,
      "Requests open now."},
     snapshot_count, SNAPSHOT(in_flight)},
    {{"tailwatch_output_tokens", COUNTER,
      "Output tokens of all choices."},
     series_tokens, 0},
    {{"tailwatch_fluidity_deadlines", COUNTER,
      "Token deadlines that came due, slack carried forward, reset after a miss."},
     snapshot_count, SNAPSHOT(deadlines_due)},
    {{"tailwatch_fluidity_deadlines_met", COUNTER,
      "Token deadlines that were met."},
     snapshot_count, SNAPSHOT(deadlines_met)},
    {{"python_gc_duration_seconds", HISTOGRAM,
      "Length of garbage collections, process time. Those inside our own passes are in tailwatch_policy_pause_seconds."},
     process_gc_histogram, 0},
    {{"tailwatch_policy_pause_seconds", HISTOGRAM,
      "Length of tailwatch's own freeze and sweep passes, process time."},
     process_policy_histogram, 0},
    {{"tailwatch_gc_short_pauses_seconds", COUNTER,
      "Process time in pauses under 50 us, which are charged to no stream."},
     process_gc_totals, TOTALS(short_ns)},
    {{"tailwatch_gc_callbacks_seconds", COUNTER,
      "Part of the pauses that was spent in other people's gc.callbacks."},
     process_gc_totals, TOTALS(callbacks_ns)},
    {{"tailwatch_gc_cpu_seconds", COUNTER,
      "Thread CPU time of collections, where it is measured (generations 1 and 2, our own passes)."},
     process_gc_totals, TOTALS(cpu_ns)},
    {{"tailwatch_gc_collected_objects", COUNTER,
      "Objects that collections freed."},
     process_gc_totals, TOTALS(collected)},
    {{"tailwatch_gc_uncollectable_objects", COUNTER,
      "Objects that collections found and could not free."},
     process_gc_totals, TOTALS(uncollectable)},
    {{"tailwatch_stream_overlap_seconds", COUNTER,
      "Stream time (summed over streams) that coincided with pauses of at least 50 us, by the role of who paused: an upper bound of their blame."},
     stream_seconds, LOST(overlap_ns)},
    {{"tailwatch_stream_late_seconds", COUNTER,
      "Stream time (summed over streams) that pauses cost beyond each stream's typical gap, by the role of who paused: an estimate."},
     stream_seconds, LOST(late_ns)},
    {{"tailwatch_arrivals", COUNTER,
      "Requests by where their arrival time came from."},
     arrivals, 0},
    {{"tailwatch_dropped_events", COUNTER,
      "What could not be kept or measured."},
     drops, 0},
    {{"tailwatch_label_overflow", COUNTER,
      "Requests whose labels became \"other\" because max_label_sets was reached."},
     snapshot_count, SNAPSHOT(label_overflow)},
    {{"tailwatch_internal_errors", COUNTER,
      "Errors inside tailwatch, which were kept from the host."},
     errors, 0},
    {{"tailwatch_sse_fallback", COUNTER,
      "Times that the fast SSE path went back to the server's own serialisation, by shape of the frame."},
     sse_fallbacks, 0},
    {{"tailwatch_memory_bytes", GAUGE,
      "Memory that tailwatch holds, all processes."},
     memory, 0},
    {{"tailwatch_registry_render_seconds", GAUGE,
      "What rendering the host's own Prometheus registry took last."},
     registry_render, 0},
    {{"tailwatch_build", INFO,
      "Versions of tailwatch and of the interpreter."},
     build_info, 0},
};

#define STEP(member) offsetof(tw_snapshot_step, member)

/* Written where a process has made steps. */
static const family STEP_FAMILIES[] = {
    {{"tailwatch_step_seconds", HISTOGRAM,
      "Length of an engine's steps (iterations), from begin to end on the host."},
     step_histogram, TW_STEP_INSIDE},
    {{"tailwatch_step_host_gap_seconds", HISTOGRAM,
      "From the end of a step to the begin of the next, where that end left requests with work to do."},
     step_histogram, TW_STEP_GAP},
    {{"tailwatch_step_unknown_gap_seconds", COUNTER,
      "Time between steps of which nobody said whether work was waiting (no waiting=): idle or a host gap."},
     step_totals, STEP(unknown_ns)},
    {{"tailwatch_step_requests", COUNTER,
      "Requests in the steps' batches, summed over the steps."},
     step_totals, STEP(batch)},
    {{"tailwatch_step_overlap_seconds", COUNTER,
      "Time of steps, and of host gaps, that coincided with the process's pauses of at least 50 us: an upper bound of their blame."},
     step_seconds, STEP(overlap_ns)},
    {{"tailwatch_step_request_overlap_seconds", COUNTER,
      "tailwatch_step_overlap_seconds_total times the requests in the batch, or left waiting at the gap: an upper bound."},
     step_seconds, STEP(request_ns)},
};

#define NOW(member) offsetof(tw_policy_now, member)

/* Of whatever policy. */
static const family POLICY_FAMILIES[] = {
    {{"tailwatch_gc_policy", INFO,
      "The option gc of each process; mode and fallback: how out-of-band collects, and why not in slices."},
     policy_info, 0},
    {{"tailwatch_gc_policy_passes", COUNTER,
      "Collections outside slices: automatic, foreign (somebody called for it), untold (one of the two); and whole passes of tailwatch's own, by what gave the moment."},
     policy_named, LIST_PASSES},
    {{"tailwatch_gc_policy_drift", COUNTER,
      "What others did to the collector. freeze_blind: of freeze, those without a full collection just before: garbage may have been frozen, how much is not known."},
     policy_named, LIST_DRIFT},
    {{"tailwatch_gc_policy_unfrozen_objects", GAUGE,
      "Tracked objects that are not frozen, as the collector and the sweep book them: an estimate. Absent where the books are not known."},
     policy_size, NOW(unfrozen)},
};

/* Written where a process collects out of band. */
static const family SWEEP_FAMILIES[] = {
    {{"tailwatch_gc_policy_slices", COUNTER, "Slices of the sweep, by what gave the moment."}, sweep_named, LIST_SLICES},
    {{"tailwatch_gc_policy_ceilings", COUNTER, "Times that a ceiling (gc_ceiling) was met, each until it was kept again."},
     sweep_named, LIST_CEILINGS},
    {{"tailwatch_gc_policy_slice_seconds", COUNTER, "What slices took, process time."}, sweep_totals, POLICY(slice_ns)},
    {{"tailwatch_gc_policy_predicted_seconds", COUNTER, "What the same slices had been predicted to take."},
     sweep_totals, POLICY(predicted_ns)},
    {{"tailwatch_gc_policy_pass_seconds", COUNTER, "What whole passes of tailwatch's own took, process time."}, sweep_totals, POLICY(pass_ns)},
    {{"tailwatch_gc_policy_moved_objects", COUNTER, "Old objects that slices handed to the collector, as they seemed dead."}, sweep_totals, POLICY(moved)},
    {{"tailwatch_gc_policy_freed_objects", COUNTER, "Objects that slices freed."}, sweep_totals, POLICY(freed)},
    {{"tailwatch_gc_policy_pass_freed_objects", COUNTER, "Objects that whole passes of tailwatch's own freed."}, sweep_totals, POLICY(pass_freed)},
    {{"tailwatch_gc_policy_rounds", COUNTER, "Times that slices went through the whole old heap."}, sweep_totals, POLICY(rounds)},
    {{"tailwatch_gc_policy_frozen_objects", GAUGE, "Objects known to be frozen, which slices pass over."}, policy_size, NOW(frozen)},
    {{"tailwatch_gc_policy_debt_objects", GAUGE, "Looks at old objects that are owed: some ten go through one object."}, sweep_debt, 0},
};

#define LOAD(member) offsetof(tw_load_gauges, member)

/* Written where there is somebody who looks after them. */
static const family LOAD_FAMILIES[] = {
    {{"tailwatch_streams_running", GAUGE, "Requests in flight whose first token was seen."}, load_number, LOAD(running)},
    {{"tailwatch_streams_waiting", GAUGE,
      "Requests in flight whose first token was not seen yet; an answer that is not streamed shows none before its end."},
     load_number, LOAD(waiting)},
    {{"tailwatch_healthy_concurrency", GAUGE,
      "Streams in flight above which TTFT leaves its first straight line upwards; absent where no inflection was seen."},
     load_number, LOAD(healthy)},
    {{"tailwatch_healthy_concurrency_confidence_ratio", GAUGE,
      "Share of resamplings of the data that find the healthy concurrency within 10 % of it; absent where there is none."},
     load_number, LOAD(confidence)},
    {{"tailwatch_healthy_concurrency_verdict", GAUGE,
      "1 for how the search for it ended: found, no inflection, few data, one level."}, load_verdict, 0},
    {{"tailwatch_load_ratio", GAUGE,
      "Requests in flight / healthy concurrency: above 1 TTFT grows with each more. Absent where that is not known."},
     load_number, LOAD(ratio)},
    {{"tailwatch_load_utilization_ratio", GAUGE, "The same, at most 1, for balancers that take no more."}, load_number, LOAD(utilization)},
    {{"tailwatch_load_headroom_streams", GAUGE, "Streams that may be added before the healthy concurrency is reached."},
     load_number, LOAD(headroom)},
    {{"tailwatch_predicted_ttft_seconds", GAUGE, "Median TTFT to expect of a request that arrives now: an estimate."},
     load_number, LOAD(predicted_s)},
    {{"tailwatch_admission_within_slo", GAUGE,
      "1 where that is within the TTFT bound of the SLO, else 0. Absent where either is not known."}, load_number, LOAD(within_slo)},
    {{"tailwatch_ttft_by_concurrency_seconds", GAUGE,
      "Median TTFT by about how many streams were in flight when the request arrived, itself included; the last half hour."},
     load_curve, 0},
};

static void prepare(renderer *r) {
    uint32_t window_s = r->info->goodput_window_s;
    if (window_s < 1) window_s = 1;
    if (window_s > TW_SECONDS) window_s = TW_SECONDS;
    tw_snapshot_window(r->snapshot, window_s, &r->window);
    if (!r->window.seconds) r->window.seconds = 1;
}

static void put_families(renderer *r, const family *families, size_t n) {
    tw_writer *w = r->writer;
    for (size_t i = 0; i < n && !w->out->failed; i++) {
        w->family = &families[i].head;
        w->syntax->begin(w);
        families[i].samples(r, &families[i]);
        w->syntax->end(w);
    }
}

int tw_exposition_render(const tw_snapshot *s, const tw_exposition_info *info, int format, tw_buffer *out) {
    tw_writer writer;
    renderer r = {.snapshot = s, .info = info, .writer = &writer};
    tw_writer_init(&writer, format, out);
    prepare(&r);
    put_families(&r, FAMILIES, sizeof FAMILIES / sizeof *FAMILIES);
    put_families(&r, POLICY_FAMILIES, sizeof POLICY_FAMILIES / sizeof *POLICY_FAMILIES);
    if (any_sweeps(&r)) put_families(&r, SWEEP_FAMILIES, sizeof SWEEP_FAMILIES / sizeof *SWEEP_FAMILIES);
    if (any_steps(&r)) put_families(&r, STEP_FAMILIES, sizeof STEP_FAMILIES / sizeof *STEP_FAMILIES);
    if (info->load != NULL) put_families(&r, LOAD_FAMILIES, sizeof LOAD_FAMILIES / sizeof *LOAD_FAMILIES);
    return out->failed;
}
