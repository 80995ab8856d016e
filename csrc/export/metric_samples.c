/* The functions that read the samples of a metric from a snapshot. `of` is the metric's own: see each. */
#include "export/sample_values.h"

#include <inttypes.h>
#include <stdio.h>

/* Whether a process collects in idle slots, or has. */
static bool collects_when_idle(const tw_policy *policy) {
    uint64_t any = policy->now.kind == TW_POLICY_IDLE_GC;
    for (int i = 0; i < TW_SLICE_REASONS; i++) any |= policy->counts.slices[i] | policy->counts.collections[i];
    return any != 0;
}

bool tw_sampling_has(const tw_sampling *s, tw_instrument_use use) {
    bool any = use == TW_USE_ALWAYS || (use == TW_USE_LOAD && s->info->load != NULL);
    for (uint32_t p = 0; p < s->latest->process_count; p++) {
        any = any || (use == TW_USE_IDLE_GC && collects_when_idle(&s->latest->process[p].policy));
        any = any || (use == TW_USE_STEPS && s->latest->process[p].step_count > 0);
        any = any || (use == TW_USE_ENGINE && s->latest->process[p].engine != NULL);
    }
    return any;
}

void tw_process_name(char *to, const tw_snapshot_process *process) {
    snprintf(to, TW_PROCESS_NAME_ROOM, "%s-%" PRIu64, process->role, process->index);
}

double tw_number_value(const tw_number *number) {
    if (number->kind == TW_NUMBER_COUNT) return (double)number->a;
    if (number->kind == TW_NUMBER_BILLIONTHS) return tw_seconds_of(number->a, 0);
    return (double)number->a / (double)number->b;
}

/* ---- values of the group ---- */

static tw_sample of_series(const sampling *s, uint32_t i) {
    tw_sample sample = PLAIN;
    sample.series = &s->snapshot->series[i];
    return sample;
}

static void emit_ratio(sampling *s, uint64_t numerator, uint64_t denominator) {
    tw_sample sample = PLAIN;
    sample.number = (tw_number){TW_NUMBER_RATIO, numerator, denominator};
    emit(s, &sample);
}

/* ---- requests ---- */

static bool in_use(const tw_snapshot_series *series) {
    if (series->output_tokens) return true;
    for (int i = 0; i < TW_SERIES_METRICS; i++)
        if (series->metric[i]) return true;
    for (int i = 0; i < TW_REASONS; i++)
        if (series->reasons[i]) return true;
    return false;
}

/* Those of one histogram are adjacent. */
static void find_exemplars(const sampling *s, uint32_t series, size_t metric, tw_sample *sample) {
    const uint32_t n = s->latest->series[series].exemplar_count;
    if (n == 0) return;
    const tw_snapshot_exemplar *all = s->latest->exemplars + s->latest->series[series].exemplars_at;
    uint32_t from = 0;
    while (from < n && all[from].metric < metric) from++;
    uint32_t to = from;
    while (to < n && all[to].metric == metric) to++;
    sample->exemplars = all + from;
    sample->exemplar_count = to - from;
}

void tw_sample_series_histogram(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->series_count; i++) {
        tw_sample sample = of_series(s, i);
        if (!in_use(sample.series)) continue;
        find_exemplars(s, i, m->of, &sample);
        emit_counts(s, &sample, sample.series->metric[m->of], tw_metric_layout((int)m->of));
    }
}

void tw_sample_served_histogram(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->series_count; i++) {
        tw_sample sample = of_series(s, i);
        emit_counts(s, &sample, sample.series->served[m->of], tw_served_layout((int)m->of));
    }
}

/* Of answered requests, and of the others by what went wrong. */
void tw_sample_request_durations(sampling *s, const instrument *m) {
    tw_sample_series_histogram(s, m);
    for (uint32_t i = 0; i < s->snapshot->series_count; i++)
        for (int failure = 0; failure < TW_FAILURES; failure++) {
            const int metric = TW_SERVED_FAILED + failure;
            tw_sample sample = of_series(s, i);
            sample.error_type = tw_failure_name(failure);
            sample.scale = TW_BRIEF_SCALE;
            emit_counts(s, &sample, sample.series->served[metric], tw_served_layout(metric));
        }
}

/* Every reason of a label set in use: rate() does not see the first of a series that begins with it. */
void tw_sample_series_requests(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->series_count; i++) {
        tw_sample sample = of_series(s, i);
        for (int reason = 0; in_use(sample.series) && reason < TW_REASONS; reason++) {
            sample.label[0] = (tw_label){"outcome", tw_outcome_name(tw_reason_outcome((tw_reason)reason))};
            sample.label[1] = (tw_label){"reason", tw_reason_name(reason)};
            emit_word(s, m, &sample, sample.series->reasons[reason]);
        }
    }
}

void tw_sample_series_tokens(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->series_count; i++) {
        tw_sample sample = of_series(s, i);
        if (in_use(sample.series)) emit_word(s, m, &sample, sample.series->output_tokens);
    }
}

void tw_sample_requests_good(sampling *s, const instrument *m) {
    uint64_t good = 0;
    for (uint32_t i = 0; i < s->snapshot->series_count; i++) good += s->snapshot->series[i].reasons[TW_REASON_GOOD];
    tw_sample sample = PLAIN;
    sample.label[0] = (tw_label){"slo", s->info->slo};
    emit_word(s, m, &sample, good);
}

void tw_sample_window_goodput(sampling *s, const instrument *m) {
    (void)m;
    emit_ratio(s, s->window.good, s->window.seconds);
}

void tw_sample_window_throughput(sampling *s, const instrument *m) {
    (void)m;
    emit_ratio(s, s->window.finished, s->window.seconds);
}

/* No sample where nothing was judged in the window. */
void tw_sample_window_attainment(sampling *s, const instrument *m) {
    (void)m;
    const uint64_t judged = s->window.good + s->window.miss;
    if (judged) emit_ratio(s, s->window.good, judged);
}

/* of: offset of a word. */
void tw_sample_snapshot_word(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    emit_word_at(s, m, &sample, s->snapshot);
}

void tw_sample_wait_histogram(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    emit_counts(s, &sample, s->snapshot->wait[m->of - TW_METRIC_QUEUE_PROXY], tw_metric_layout((int)m->of));
}

void tw_sample_queue_stages(sampling *s, const instrument *m) {
    static const char *const stages[] = {"proxy", "accept"};
    for (size_t i = 0; i < 2; i++) {
        tw_sample sample = PLAIN;
        sample.label[0] = (tw_label){"stage", stages[i]};
        emit_counts(s, &sample, s->snapshot->wait[i], tw_metric_layout((int)(m->of + i)));
    }
}

/* ---- pauses ---- */

/* A cause is always shown where rate() would otherwise miss its first event; the two that only one
 * interpreter line has are shown once they happened. */
static bool always_shown(int cause) { return cause != TW_CAUSE_GC_FULL && cause != TW_CAUSE_GC_INCREMENT; }

void tw_sample_gc_histograms(sampling *s, const instrument *m) {
    (void)m;
    for (uint32_t p = 0; p < s->snapshot->process_count; p++)
        for (int cause = 0; cause < TW_CAUSE_GC_OWN; cause++) {
            tw_sample sample = of_process(s, p);
            sample.cause = cause;
            const tw_counts *counts = sample.process->stalls[cause];
            if (counts || always_shown(cause)) emit_counts(s, &sample, counts, tw_metric_layout(TW_METRIC_PAUSE));
        }
}

void tw_sample_policy_histograms(sampling *s, const instrument *m) {
    (void)m;
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        tw_sample sample = of_process(s, p);
        emit_counts(s, &sample, sample.process->stalls[TW_CAUSE_GC_OWN], tw_metric_layout(TW_METRIC_PAUSE));
    }
}

/* Causes of stalls that no pause is, once they took something. */
void tw_sample_stalls(sampling *s, const instrument *m) {
    (void)m;
    for (uint32_t p = 0; p < s->snapshot->process_count; p++)
        for (int cause = TW_CAUSES; cause < TW_STALLS; cause++) {
            tw_sample sample = of_process(s, p);
            const tw_counts *counts = sample.process->stalls[cause];
            sample.label[0] = (tw_label){"cause", tw_stall_name(cause)};
            if (counts) emit_counts(s, &sample, counts, tw_metric_layout(TW_METRIC_PAUSE));
        }
}

/* of: offset in tw_pause_totals. */
static void gc_totals_below(sampling *s, const instrument *m, int causes) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++)
        for (int cause = 0; cause < causes; cause++) {
            tw_sample sample = of_process(s, p);
            sample.cause = cause;
            sample.counted = sample.process->pause[cause].count > 0;
            if (sample.counted || cause <= TW_CAUSE_GC2) emit_word_at(s, m, &sample, &sample.process->pause[cause]);
        }
}

void tw_sample_gc_totals(sampling *s, const instrument *m) { gc_totals_below(s, m, TW_CAUSES); }

/* A pass of our own is not a collection. */
void tw_sample_gc_collections(sampling *s, const instrument *m) { gc_totals_below(s, m, TW_CAUSE_GC_OWN); }

void tw_sample_stream_overlap(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->lost_count; i++) {
        const tw_snapshot_lost *lost = &s->snapshot->lost[i];
        for (int cause = 0; cause < TW_CAUSES; cause++)
            for (int phase = 0; phase < TW_PHASES; phase++) {
                if (!lost->overlap_ns[phase][cause] && !always_shown(cause)) continue;
                tw_sample sample = PLAIN;
                sample.label[0] = (tw_label){"cause", tw_cause_name(cause)};
                sample.label[1] = (tw_label){"source", lost->role};
                sample.label[2] = (tw_label){"phase", tw_phase_name(phase)};
                sample.counted = lost->overlap_ns[phase][cause] > 0;
                emit_word(s, m, &sample, lost->overlap_ns[phase][cause]);
            }
    }
}

static void emit_delay(sampling *s, const instrument *m, const tw_snapshot_lost *lost, int phase, int cause) {
    for (int certainty = 0; certainty < TW_CERTAINTIES; certainty++) {
        const bool shown = cause < TW_CAUSES && certainty != TW_SAMPLED && always_shown(cause);
        if (lost->delay_ns[phase][cause][certainty] == 0 && !shown) continue;
        tw_sample sample = PLAIN;
        sample.label[0] = (tw_label){"cause", tw_delay_cause_name(cause)};
        sample.label[1] = (tw_label){"source", lost->role};
        sample.label[2] = (tw_label){"phase", tw_phase_name(phase)};
        sample.label[3] = (tw_label){"certainty", tw_certainty_name(certainty)};
        emit_word(s, m, &sample, lost->delay_ns[phase][cause][certainty]);
    }
}

void tw_sample_stream_delay(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->lost_count; i++)
        for (int at = 0; at < TW_DELAYS * TW_PHASES; at++)
            emit_delay(s, m, &s->snapshot->lost[i], at % TW_PHASES, at / TW_PHASES);
}

void tw_sample_unexplained(sampling *s, const instrument *m) {
    for (int at = 0; at < TW_PHASES * TW_UNEXPLAINED_REASONS; at++) {
        const int phase = at / TW_UNEXPLAINED_REASONS, reason = at % TW_UNEXPLAINED_REASONS;
        const uint64_t ns = s->snapshot->unexplained_ns[phase][reason];
        if (ns == 0) continue;
        tw_sample sample = PLAIN;
        sample.label[0] = (tw_label){"phase", tw_phase_name(phase)};
        sample.label[1] = (tw_label){"reason", tw_unexplained_name(reason)};
        emit_word(s, m, &sample, ns);
    }
}

/* ---- engine steps ---- */

typedef void (*step_samples)(sampling *, const instrument *, tw_sample *, const tw_snapshot_step *);

static void each_step(sampling *s, const instrument *m, step_samples samples) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        const tw_snapshot_process *process = &s->snapshot->process[p];
        for (uint32_t i = 0; i < process->step_count; i++) {
            tw_sample sample = PLAIN;
            sample.process = process;
            sample.label[0] = (tw_label){"step", process->steps[i].name};
            samples(s, m, &sample, &process->steps[i]);
        }
    }
}

static void one_step_histogram(sampling *s, const instrument *m, tw_sample *sample, const tw_snapshot_step *step) {
    emit_counts(s, sample, step->spent[m->of], tw_step_layout((int)m->of));
}

static void one_step_word(sampling *s, const instrument *m, tw_sample *sample, const tw_snapshot_step *step) {
    emit_word_at(s, m, sample, step);
}

static void one_step_seconds(sampling *s, const instrument *m, tw_sample *sample, const tw_snapshot_step *step) {
    uint64_t ns[TW_STEP_PHASES][TW_CAUSES];
    memcpy(ns, (const char *)step + m->of, sizeof ns);
    for (int cause = 0; cause < TW_CAUSES; cause++)
        for (int phase = 0; phase < TW_STEP_PHASES; phase++) {
            if (!ns[phase][cause] && !always_shown(cause)) continue;
            sample->label[1] = (tw_label){"cause", tw_cause_name(cause)};
            sample->label[2] = (tw_label){"phase", tw_step_phase_name(phase)};
            emit_word(s, m, sample, ns[phase][cause]);
        }
}

/* of: tw_step_phase. */
void tw_sample_step_histogram(sampling *s, const instrument *m) { each_step(s, m, one_step_histogram); }
/* of: offset of a word. */
void tw_sample_step_word(sampling *s, const instrument *m) { each_step(s, m, one_step_word); }
/* of: offset of [phase][cause]. */
void tw_sample_step_seconds(sampling *s, const instrument *m) { each_step(s, m, one_step_seconds); }

/* ---- the collector's policy ---- */

/* Of living processes whose policy is known. */
void tw_sample_policy_info(sampling *s, const instrument *m) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        const tw_policy_now *now = &s->snapshot->process[p].policy.now;
        if (now->kind == TW_POLICY_UNKNOWN) continue;
        tw_sample sample = of_process(s, p);
        sample.label[0] = (tw_label){"policy", tw_policy_kind_name((int)now->kind)};
        sample.label[1] = (tw_label){"mode", tw_policy_mode_name((int)now->mode)};
        sample.label[2] = (tw_label){"reason", tw_policy_why_name((int)now->why)};
        emit_word(s, m, &sample, 1);
    }
}

#define COUNTS(member) offsetof(tw_policy_counts, member)
static const named_list POLICY_LISTS[] = {
    [TW_LIST_COLLECTIONS] = {"reason", COUNTS(collections), TW_COLLECTION_REASONS, tw_collection_reason_name, TW_COLLECTION_AUTOMATIC, TW_COLLECTION_EXTERNAL},
    [TW_LIST_INTERFERENCE] = {"call", COUNTS(interference), TW_INTERFERENCES, tw_interference_name, 0, TW_INTERFERENCES - 1},
    [TW_LIST_SLICES] = {"reason", COUNTS(slices), TW_SLICE_REASONS, tw_slice_reason_name, 0, TW_SLICE_REASONS - 1},
    [TW_LIST_MEMORY_LIMITS] = {"limit", COUNTS(memory_limits), TW_MEMORY_LIMITS, tw_memory_limit_name, 0, TW_MEMORY_LIMITS - 1},
};

/* of: the list. */
void tw_sample_policy_list(sampling *s, const instrument *m) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        tw_sample sample = of_process(s, p);
        if (m->use == TW_USE_IDLE_GC && !collects_when_idle(&sample.process->policy)) continue;
        emit_list(s, m, &sample, &sample.process->policy.counts, &POLICY_LISTS[m->of]);
    }
}

/* of: offset in tw_policy_counts. */
void tw_sample_idle_gc_word(sampling *s, const instrument *m) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        tw_sample sample = of_process(s, p);
        if (collects_when_idle(&sample.process->policy)) emit_word_at(s, m, &sample, &sample.process->policy.counts);
    }
}

/* of: offset in tw_policy_now of 1 + a number; 0: not known. */
void tw_sample_heap_size(sampling *s, const instrument *m) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        tw_sample sample = of_process(s, p);
        uint64_t value;
        memcpy(&value, (const char *)&sample.process->policy.now + m->of, sizeof value);
        if (value != 0) emit_word(s, m, &sample, value - 1);
    }
}

void tw_sample_idle_gc_backlog(sampling *s, const instrument *m) {
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) {
        tw_sample sample = of_process(s, p);
        const tw_policy_now *now = &sample.process->policy.now;
        if (now->mode == TW_POLICY_SLICES) emit_word(s, m, &sample, now->backlog);
    }
}

/* ---- about ourselves ---- */

#define SNAPSHOT(member) offsetof(tw_snapshot, member)
static const named_list SNAPSHOT_LISTS[] = {
    [TW_LIST_ARRIVALS] = {"source", SNAPSHOT(arrivals), TW_ARRIVALS, tw_arrival_name, 0, TW_ARRIVALS - 1},
    [TW_LIST_DROPS] = {"reason", SNAPSHOT(drops), TW_DROPS, tw_drop_name, 0, TW_DROPS - 1},
    [TW_LIST_ERRORS] = {"where", SNAPSHOT(errors), TW_ERRORS, tw_error_name, 0, TW_ERRORS - 1},
};

/* of: the list. */
void tw_sample_snapshot_list(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    emit_list(s, m, &sample, s->snapshot, &SNAPSHOT_LISTS[m->of]);
}

void tw_sample_sse_fallbacks(sampling *s, const instrument *m) {
    for (uint32_t i = 0; i < s->snapshot->fallback_count; i++) {
        tw_sample sample = PLAIN;
        sample.label[0] = (tw_label){"shape", s->snapshot->fallbacks[i].shape};
        sample.label[1] = (tw_label){"reason", s->snapshot->fallbacks[i].reason};
        emit_word(s, m, &sample, s->snapshot->fallbacks[i].count);
    }
}

void tw_sample_memory(sampling *s, const instrument *m) {
    uint64_t bytes = s->info->extra_bytes;
    for (uint32_t p = 0; p < s->snapshot->process_count; p++) bytes += s->snapshot->process[p].bytes;
    tw_sample sample = PLAIN;
    emit_word(s, m, &sample, bytes);
}

void tw_sample_registry_render(sampling *s, const instrument *m) {
    (void)m;
    tw_sample sample = PLAIN;
    emit_real(s, &sample, s->info->registry_seconds);
}

void tw_sample_build_info(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    sample.label[0] = (tw_label){"version", s->info->version};
    sample.label[1] = (tw_label){"python", s->info->python};
    emit_word(s, m, &sample, 1);
}

static void own_outcomes(sampling *s, const instrument *m, const tw_label *outcomes, const uint64_t *counts) {
    for (int i = 0; i < 3; i++) {
        tw_sample sample = PLAIN;
        sample.label[0] = outcomes[i];
        sample.start_unix_ns = s->own.start_unix_ns;
        emit_word(s, m, &sample, counts[i]);
    }
}

void tw_sample_otlp_exports(sampling *s, const instrument *m) {
    static const tw_label outcomes[] = {{"outcome", "exported"}, {"outcome", "failed"}, {"outcome", "skipped"}};
    own_outcomes(s, m, outcomes, (const uint64_t[]){s->own.exported, s->own.failed, s->own.skipped});
}

void tw_sample_otlp_spans(sampling *s, const instrument *m) {
    static const tw_label outcomes[] = {{"outcome", "made"}, {"outcome", "dropped"}, {"outcome", "event_dropped"}};
    own_outcomes(s, m, outcomes, (const uint64_t[]){s->own.spans, s->own.spans_dropped, s->own.span_events_dropped});
}

void tw_sample_otlp_longest_hold(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    if (s->own.hold_ns > 0) emit_word(s, m, &sample, s->own.hold_ns);
}

/* ---- for routers ---- */

/* of: offset of a double; below 0: not known, no sample. */
void tw_sample_load_number(sampling *s, const instrument *m) {
    double value;
    tw_sample sample = PLAIN;
    memcpy(&value, (const char *)s->info->load + m->of, sizeof value);
    emit_real(s, &sample, value);
}

/* One sample: how the search for the healthy concurrency ended. */
void tw_sample_load_verdict(sampling *s, const instrument *m) {
    tw_sample sample = PLAIN;
    sample.label[0] = (tw_label){"verdict", s->info->load->verdict};
    emit_word(s, m, &sample, 1);
}

/* The label is rounded to a whole number of streams: points lie at least so far apart. */
void tw_sample_load_curve(sampling *s, const instrument *m) {
    (void)m;
    for (uint32_t i = 0; i < s->info->load->point_count; i++) {
        const tw_ttft_point *point = &s->info->load->points[i];
        tw_sample sample = PLAIN;
        char streams[24];
        snprintf(streams, sizeof streams, "%llu", (unsigned long long)(point->streams + 0.5));
        sample.label[0] = (tw_label){"streams", streams};
        emit_real(s, &sample, point->ttft_s);
    }
}
