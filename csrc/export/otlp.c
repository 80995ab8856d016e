/* OTLP metrics. One table of metrics; each names the function that writes its data points.
 *
 * Field numbers are those of opentelemetry-proto's metrics.proto; they are written in ascending order.
 */
#include "tailwatch/export/otlp.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/yield.h"
#include "base/protobuf.h"
#include "base/utf8.h"

enum { DELTA = 1, CUMULATIVE = 2 }; /* AggregationTemporality */

typedef enum kind { HISTOGRAM, COUNTER, UP_DOWN, GAUGE } kind;

/* Which of a layout's bounds an explicit histogram has. */
typedef struct chosen_bounds {
    const tw_layout *layout;
    const double *wanted;             /* NULL: all */
    uint32_t n, at[TW_BOUNDS_MAX];
    double seconds[TW_BOUNDS_MAX];
} chosen_bounds;

typedef struct encoder {
    const tw_snapshot *now, *since;   /* since: what delta points tell of */
    const tw_otlp_info *info;
    tw_buffer *out;
    tw_window window;
    chosen_bounds bounds;             /* of the last explicit histogram */
    bool any;                         /* whether the metric being written has a point */
    uint64_t gave_way_ns;
} encoder;

typedef struct metric metric;
struct metric {
    const char *name;
    kind kind;
    const char *unit;
    void (*points)(encoder *, const metric *);
    size_t of;                        /* which histogram, or field: what `points` makes of it */
    const double *bounds;             /* of an explicit histogram; NULL: the layout's own */
    const char *help;
};

static void served_histogram(encoder *e, const metric *m);
static void exports(encoder *e, const metric *m);
static void spans(encoder *e, const metric *m);

/* ---- attributes ---- */

static bool is_utf8(const char *text, size_t len) {
    for (size_t at = 0, n; at < len; at += n)
        if ((n = tw_utf8_length((const unsigned char *)text + at, len - at)) == 0) return false;
    return true;
}

/* A receiver refuses a whole request for one byte that is no UTF-8. */
static void put_text(tw_buffer *b, uint32_t field, const char *text) {
    const size_t len = strlen(text);
    tw_pb_tag(b, field, TW_PB_BYTES);
    tw_pb_varint(b, len);
    if (is_utf8(text, len)) {
        tw_buffer_put(b, text, len);
        return;
    }
    for (size_t at = 0, n; at < len; at += n ? n : 1) {
        n = tw_utf8_length((const unsigned char *)text + at, len - at);
        tw_buffer_put(b, n ? text + at : "?", n ? n : 1);
    }
}

/* The points' messages number their attributes differently. */
typedef struct attributes {
    tw_buffer *b;
    uint32_t field;
} attributes;

static void attribute(attributes a, const char *key, const char *value) {
    const size_t pair = tw_pb_open(a.b, a.field);
    put_text(a.b, 1, key);
    const size_t any = tw_pb_open(a.b, 2);
    put_text(a.b, 1, value);
    tw_pb_close(a.b, any);
    tw_pb_close(a.b, pair);
}

static void attribute_number(attributes a, const char *key, uint64_t value) {
    const size_t pair = tw_pb_open(a.b, a.field);
    put_text(a.b, 1, key);
    const size_t any = tw_pb_open(a.b, 2);
    tw_pb_uint(a.b, 3, value);
    tw_pb_close(a.b, any);
    tw_pb_close(a.b, pair);
}

static bool holds(const char *text, const char *part) { return strstr(text, part) != NULL; }

static bool ends(const char *text, const char *tail) {
    const size_t len = strlen(text), n = strlen(tail);
    return len >= n && strcmp(text + len - n, tail) == 0;
}

const char *tw_otlp_operation(const char *route) {
    if (holds(route, "chat") || ends(route, "/messages") || ends(route, "/responses")) return "chat";
    if (holds(route, "embed")) return "embeddings";
    if (holds(route, "generateContent") || holds(route, "generate_content")) return "generate_content";
    return holds(route, "completion") || holds(route, "generate") ? "text_completion" : "generate_content";
}

/* Who a point tells of. */
typedef struct subject {
    const tw_snapshot_series *series; /* NULL: of no label set */
    const char *error_type;
    const tw_snapshot_process *process;
    int cause;                        /* -1: of none */
    const char *key[3], *value[3];    /* further ones */
} subject;

static const subject NOBODY = {.cause = -1};

static void series_attributes(const encoder *e, attributes a, const tw_snapshot_series *series) {
    attribute(a, "gen_ai.operation.name", tw_otlp_operation(series->route));
    attribute(a, "gen_ai.provider.name", e->info->provider);
    if (strcmp(series->model, "unknown") != 0) attribute(a, "gen_ai.response.model", series->model);
    attribute(a, "http.route", series->route);
}

static void process_attribute(attributes a, const tw_snapshot_process *process) {
    char name[TW_ROLE_WORDS * 8 + 24];
    snprintf(name, sizeof name, "%s-%llu", process->role, (unsigned long long)process->index);
    attribute(a, "tailwatch.process", name);
}

static void put_attributes(const encoder *e, uint32_t field, const subject *of) {
    const attributes a = {e->out, field};
    if (of->series) series_attributes(e, a, of->series);
    if (of->error_type) attribute(a, "error.type", of->error_type);
    if (of->process) process_attribute(a, of->process);
    if (of->cause >= 0) attribute(a, "tailwatch.cause", tw_cause_name(of->cause));
    if (of->cause >= 0 && of->cause <= TW_CAUSE_GC2) attribute_number(a, "cpython.gc.generation", (uint64_t)of->cause);
    for (int i = 0; i < 3 && of->key[i]; i++) attribute(a, of->key[i], of->value[i]);
}

/* ---- numbers ---- */

static bool is_delta(const encoder *e, kind kind) {
    return kind == HISTOGRAM ? e->info->delta_histograms : kind == COUNTER && e->info->delta_sums;
}

/* The numbers that a metric of this kind tells of. */
static const tw_snapshot *source(const encoder *e, kind kind) { return is_delta(e, kind) ? e->since : e->now; }

/* Since when a cumulative point counts. */
static uint64_t start_of(const encoder *e, const metric *m) {
    const bool own = m->points == exports || m->points == spans;
    return own && e->info->own.start_unix_ns != 0 ? e->info->own.start_unix_ns : e->info->start_unix_ns;
}

static void put_times(const encoder *e, const metric *m) {
    if (m->kind != GAUGE) tw_pb_fixed64(e->out, 2, is_delta(e, m->kind) ? e->info->since_unix_ns : start_of(e, m));
    tw_pb_fixed64(e->out, 3, e->info->time_unix_ns);
}

static size_t open_point(encoder *e) {
    e->any = true;
    return tw_pb_open(e->out, 1);
}

/* Nothing is said of a counter that did not move since. */
static void count_point(encoder *e, const metric *m, const subject *of, uint64_t value) {
    if (value == 0 && is_delta(e, m->kind)) return;
    const size_t point = open_point(e);
    put_times(e, m);
    tw_pb_fixed64(e->out, 6, value < INT64_MAX ? value : INT64_MAX);
    put_attributes(e, 7, of);
    tw_pb_close(e->out, point);
}

static void real_point(encoder *e, const metric *m, const subject *of, double value) {
    if (value <= 0 && is_delta(e, m->kind)) return;
    const size_t point = open_point(e);
    put_times(e, m);
    tw_pb_double(e->out, 4, value);
    put_attributes(e, 7, of);
    tw_pb_close(e->out, point);
}

static void seconds_point(encoder *e, const metric *m, const subject *of, uint64_t ns) { real_point(e, m, of, (double)ns / 1e9); }

/* ---- exemplars ---- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* OTLP has no other trace ids than those of 16 bytes. */
static bool trace_of(const char *text, char *bytes) {
    if (strlen(text) != 32) return false;
    for (int i = 0; i < 16; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        bytes[i] = (char)(high << 4 | low);
    }
    return true;
}

static void put_exemplar(encoder *e, uint32_t field, const tw_snapshot_exemplar *exemplar) {
    char trace[16];
    if (!trace_of(exemplar->trace_id, trace)) return;
    const size_t begin = tw_pb_open(e->out, field);
    tw_pb_fixed64(e->out, 2, exemplar->unix_ns);
    tw_pb_double(e->out, 3, (double)exemplar->value_ns / 1e9);
    tw_pb_bytes(e->out, 5, trace, sizeof trace);
    tw_pb_close(e->out, begin);
}

/* Of the histograms that hold the very values: what is of answered requests only has none. A difference's are those since. */
static void put_exemplars(encoder *e, const metric *m, const subject *of, uint32_t field) {
    if (!of->series || of->error_type || m->points == served_histogram) return;
    const tw_snapshot_series *series = &e->now->series[of->series - source(e, HISTOGRAM)->series];
    const uint64_t since_ns = is_delta(e, HISTOGRAM) ? e->info->since_unix_ns : 0;
    for (uint32_t i = 0; i < series->exemplar_count; i++) {
        const tw_snapshot_exemplar *exemplar = &e->now->exemplars[series->exemplars_at + i];
        if (exemplar->metric == m->of && exemplar->unix_ns >= since_ns) put_exemplar(e, field, exemplar);
    }
}

/* ---- explicit histograms ---- */

/* Of a packed field; the machines this runs on store words as the wire has them. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian");
static void put_word(tw_buffer *b, uint64_t value) { tw_buffer_put(b, &value, sizeof value); }

static const double TTFT_BOUNDS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 0};
static const double TPOT_BOUNDS[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 0};
static const double DURATION_BOUNDS[] = {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 0};

static bool is_wanted(const double *wanted, uint64_t bound_ns) {
    if (!wanted) return true;
    while (*wanted != 0 && llround(*wanted * 1e9) != (long long)bound_ns) wanted++;
    return *wanted != 0;
}

/* The same for all points of a metric. */
static const chosen_bounds *choose_bounds(encoder *e, const tw_layout *layout, const double *wanted) {
    chosen_bounds *chosen = &e->bounds;
    if (chosen->layout == layout && chosen->wanted == wanted) return chosen;
    chosen->layout = layout;
    chosen->wanted = wanted;
    chosen->n = 0;
    for (uint32_t i = 0; i < layout->bounds; i++) {
        if (!is_wanted(wanted, layout->bound_ns[i])) continue;
        chosen->seconds[chosen->n] = (double)layout->bound_ns[i] / 1e9;
        chosen->at[chosen->n++] = i;
    }
    return chosen;
}

static void put_explicit_counts(encoder *e, const tw_counts *c, const chosen_bounds *chosen) {
    const size_t counts = tw_pb_open(e->out, 6);
    uint64_t left = c->count;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < chosen->n; i++) {
        uint64_t here = 0;
        for (; slot <= chosen->layout->bound_slot[chosen->at[i]]; slot++) here += c->slot[slot];
        put_word(e->out, here);
        left -= here;
    }
    put_word(e->out, left);
    tw_pb_close(e->out, counts);
    tw_pb_bytes(e->out, 7, chosen->seconds, chosen->n * sizeof *chosen->seconds);
}

static void put_extremes(encoder *e, const tw_counts *c, uint32_t field) {
    if (is_delta(e, HISTOGRAM)) return;
    tw_pb_double(e->out, field, (double)c->min_ns / 1e9);
    tw_pb_double(e->out, field + 1, (double)c->max_ns / 1e9);
}

static void explicit_point(encoder *e, const metric *m, const subject *of, const tw_counts *c, const tw_layout *layout) {
    put_times(e, m);
    tw_pb_fixed64(e->out, 4, c->count);
    tw_pb_double(e->out, 5, tw_counts_sum_seconds(c));
    put_explicit_counts(e, c, choose_bounds(e, layout, m->bounds));
    put_exemplars(e, m, of, 8);
    put_attributes(e, 9, of);
    put_extremes(e, c, 11);
}

/* ---- exponential histograms ---- */

#define BUCKETS (TW_BUCKETS + 1) /* and one for what lies above the range */

typedef struct exponential {
    uint64_t zero, bucket[BUCKETS];
    int lowest, highest; /* of the used ones; highest < lowest: none */
    int scale, offset, n;
} exponential;

static void spread(const tw_counts *c, const tw_layout *layout, exponential *x) {
    memset(x, 0, sizeof *x);
    x->zero = c->slot[0];
    x->lowest = BUCKETS;
    x->highest = -1;
    for (int b = 0; b < BUCKETS; b++) {
        const uint32_t first = b < TW_BUCKETS ? layout->bucket_slot[b] : layout->slots - 1;
        const uint32_t end = b + 1 < TW_BUCKETS ? layout->bucket_slot[b + 1] : b < TW_BUCKETS ? layout->slots - 1 : layout->slots;
        for (uint32_t slot = first; slot < end; slot++) x->bucket[b] += c->slot[slot];
        if (x->bucket[b] == 0) continue;
        if (b < x->lowest) x->lowest = b;
        x->highest = b;
    }
}

/* One scale coarser joins two buckets: the index is halved, downwards. */
static void coarsen(exponential *x, uint32_t most, int finest) {
    const int lowest = x->lowest + TW_BUCKET_MIN, highest = x->highest + TW_BUCKET_MIN;
    int shift = TW_SCALE - finest;
    while ((highest >> shift) - (lowest >> shift) + 1 > (int)most) shift++;
    x->scale = TW_SCALE - shift;
    x->offset = lowest >> shift;
    x->n = (highest >> shift) - x->offset + 1;
    if (shift == 0 && x->lowest == 0) return;
    for (int b = x->lowest; b <= x->highest; b++) {
        const uint64_t count = x->bucket[b];
        const int to = ((b + TW_BUCKET_MIN) >> shift) - x->offset;
        x->bucket[b] = 0;
        x->bucket[to] += count; /* to <= b: what is there has been read */
    }
}

static void put_positive(encoder *e, const exponential *x) {
    const size_t positive = tw_pb_open(e->out, 8);
    if (x->offset != 0) tw_pb_sint(e->out, 1, x->offset);
    const size_t counts = tw_pb_open(e->out, 2);
    for (int i = 0; i < x->n; i++) tw_pb_varint(e->out, x->bucket[i]);
    tw_pb_close(e->out, counts);
    tw_pb_close(e->out, positive);
}

static void exponential_point(encoder *e, const metric *m, const subject *of, const tw_counts *c, const tw_layout *layout,
                              int finest) {
    exponential x;
    spread(c, layout, &x);
    const bool any = x.highest >= x.lowest;
    if (any) coarsen(&x, e->info->max_buckets, finest);
    put_attributes(e, 1, of);
    put_times(e, m);
    tw_pb_fixed64(e->out, 4, c->count);
    tw_pb_double(e->out, 5, tw_counts_sum_seconds(c));
    if (any && x.scale != 0) tw_pb_sint(e->out, 6, x.scale);
    if (x.zero != 0) tw_pb_fixed64(e->out, 7, x.zero);
    if (any) put_positive(e, &x);
    put_exemplars(e, m, of, 11);
    put_extremes(e, c, 12);
    tw_pb_double(e->out, 14, exp2((double)TW_BUCKET_MIN / (1 << TW_SCALE)));
}

static void histogram_point(encoder *e, const metric *m, const subject *of, const tw_counts *c, const tw_layout *layout,
                            int finest) {
    if (!c || c->count == 0) return;
    tw_give_way(&e->gave_way_ns);
    const size_t point = open_point(e);
    if (e->info->exponential) exponential_point(e, m, of, c, layout, finest);
    else explicit_point(e, m, of, c, layout);
    tw_pb_close(e->out, point);
}

/* ---- requests ---- */

static void served_histogram(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, HISTOGRAM);
    for (uint32_t i = 0; i < s->series_count; i++) {
        subject of = NOBODY;
        of.series = &s->series[i];
        histogram_point(e, m, &of, s->series[i].served[m->of], tw_served_layout((int)m->of), TW_SCALE);
    }
}

static void series_histogram(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, HISTOGRAM);
    for (uint32_t i = 0; i < s->series_count; i++) {
        subject of = NOBODY;
        of.series = &s->series[i];
        histogram_point(e, m, &of, s->series[i].metric[m->of], tw_metric_layout((int)m->of), TW_SCALE);
    }
}

static void durations(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, HISTOGRAM);
    series_histogram(e, m);
    for (uint32_t i = 0; i < s->series_count; i++)
        for (int failure = 0; failure < TW_FAILURES; failure++) {
            subject of = NOBODY;
            of.series = &s->series[i];
            of.error_type = tw_failure_name(failure);
            const int metric = TW_SERVED_FAILED + failure;
            histogram_point(e, m, &of, s->series[i].served[metric], tw_served_layout(metric), TW_BRIEF_SCALE);
        }
}

static void wait_histogram(encoder *e, const metric *m) {
    static const char *const stages[] = {"proxy", "accept"};
    const size_t which = m->of - TW_METRIC_QUEUE_PROXY;
    subject of = NOBODY;
    if (which < 2) of.key[0] = "tailwatch.stage", of.value[0] = stages[which];
    histogram_point(e, m, &of, source(e, HISTOGRAM)->wait[which], tw_metric_layout((int)m->of), TW_SCALE);
}

static void queue_histograms(encoder *e, const metric *m) {
    for (size_t i = 0; i < 2; i++) {
        metric stage = *m;
        stage.of = m->of + i;
        wait_histogram(e, &stage);
    }
}

static void requests(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t i = 0; i < s->series_count; i++)
        for (int reason = 0; reason < TW_REASONS; reason++) {
            if (s->series[i].reasons[reason] == 0) continue;
            subject of = NOBODY;
            of.series = &s->series[i];
            of.key[0] = "tailwatch.outcome", of.value[0] = tw_outcome_name((int)tw_reason_outcome((tw_reason)reason));
            of.key[1] = "tailwatch.reason", of.value[1] = tw_reason_name(reason);
            count_point(e, m, &of, s->series[i].reasons[reason]);
        }
}

static void tokens(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t i = 0; i < s->series_count; i++) {
        subject of = NOBODY;
        of.series = &s->series[i];
        if (s->series[i].output_tokens > 0) count_point(e, m, &of, s->series[i].output_tokens);
    }
}

static void in_flight(encoder *e, const metric *m) { count_point(e, m, &NOBODY, e->now->in_flight); }

static void goodput(encoder *e, const metric *m) { real_point(e, m, &NOBODY, (double)e->window.good / (double)e->window.seconds); }

static void throughput(encoder *e, const metric *m) {
    real_point(e, m, &NOBODY, (double)e->window.finished / (double)e->window.seconds);
}

static void attainment(encoder *e, const metric *m) {
    const uint64_t judged = e->window.good + e->window.miss;
    if (judged > 0) real_point(e, m, &NOBODY, (double)e->window.good / (double)judged);
}

/* ---- pauses ---- */

static void pause_histogram(encoder *e, const metric *m, const tw_snapshot_process *process, int cause) {
    subject of = NOBODY;
    of.process = process;
    if (cause != TW_CAUSE_POLICY) of.cause = cause;
    histogram_point(e, m, &of, process->pauses[cause], tw_metric_layout(TW_METRIC_PAUSE), TW_SCALE);
}

static void gc_histograms(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, HISTOGRAM);
    for (uint32_t i = 0; i < s->process_count; i++)
        for (int cause = 0; cause < TW_CAUSE_POLICY; cause++) pause_histogram(e, m, &s->process[i], cause);
}

static void policy_histograms(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, HISTOGRAM);
    for (uint32_t i = 0; i < s->process_count; i++) pause_histogram(e, m, &s->process[i], TW_CAUSE_POLICY);
}

/* of: where in tw_pause_totals. */
static void gc_totals(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t i = 0; i < s->process_count; i++)
        for (int cause = 0; cause < TW_CAUSE_POLICY; cause++) {
            subject of = NOBODY;
            uint64_t value;
            of.process = &s->process[i];
            of.cause = cause;
            memcpy(&value, (const char *)&s->process[i].pause[cause] + m->of, sizeof value);
            if (s->process[i].pause[cause].count > 0) count_point(e, m, &of, value);
        }
}

/* of: one of the lists. */
static void policy_counts(encoder *e, const metric *m) {
    static const struct { const char *key; size_t at; int n; const char *(*name)(int); } lists[] = {
        {"tailwatch.reason", offsetof(tw_policy_counts, slices), TW_MOMENTS, tw_moment_name},
        {"tailwatch.reason", offsetof(tw_policy_counts, passes), TW_PASSES, tw_pass_name},
        {"tailwatch.call", offsetof(tw_policy_counts, drift), TW_DRIFTS, tw_drift_name},
        {"tailwatch.ceiling", offsetof(tw_policy_counts, ceilings), TW_CEILINGS, tw_ceiling_name},
    };
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t p = 0; p < s->process_count; p++)
        for (int i = 0; i < lists[m->of].n; i++) {
            subject of = NOBODY;
            uint64_t value;
            memcpy(&value, (const char *)&s->process[p].policy.counts + lists[m->of].at + (size_t)i * sizeof value, sizeof value);
            of.process = &s->process[p];
            of.key[0] = lists[m->of].key, of.value[0] = lists[m->of].name(i);
            if (value > 0) count_point(e, m, &of, value);
        }
}

/* of: where in tw_policy_counts. */
static void policy_totals(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t p = 0; p < s->process_count; p++) {
        subject of = NOBODY;
        uint64_t value;
        of.process = &s->process[p];
        memcpy(&value, (const char *)&s->process[p].policy.counts + m->of, sizeof value);
        if (value == 0) continue;
        if (strcmp(m->unit, "s") == 0) seconds_point(e, m, &of, value);
        else count_point(e, m, &of, value);
    }
}

/* of: where in tw_policy_now, 1 + a number. */
static void policy_sizes(encoder *e, const metric *m) {
    for (uint32_t p = 0; p < e->now->process_count; p++) {
        subject of = NOBODY;
        uint64_t value;
        of.process = &e->now->process[p];
        memcpy(&value, (const char *)&e->now->process[p].policy.now + m->of, sizeof value);
        if (value > 0) count_point(e, m, &of, value - 1);
    }
}

static void policy_info(encoder *e, const metric *m) {
    for (uint32_t p = 0; p < e->now->process_count; p++) {
        const tw_policy_now *now = &e->now->process[p].policy.now;
        subject of = NOBODY;
        of.process = &e->now->process[p];
        of.key[0] = "tailwatch.policy", of.value[0] = tw_policy_kind_name((int)now->kind);
        of.key[1] = "tailwatch.mode", of.value[1] = tw_policy_mode_name((int)now->mode);
        of.key[2] = "tailwatch.fallback", of.value[2] = tw_policy_why_name((int)now->why);
        if (now->kind != TW_POLICY_UNKNOWN) count_point(e, m, &of, 1);
    }
}

/* of: 0 overlap, 1 late. */
static void stream_seconds(encoder *e, const metric *m) {
    const tw_snapshot *s = source(e, COUNTER);
    for (uint32_t i = 0; i < s->lost_count; i++)
        for (int phase = 0; phase < TW_PHASES; phase++)
            for (int cause = 0; cause < TW_CAUSES; cause++) {
                const tw_snapshot_lost *lost = &s->lost[i];
                if (lost->overlap_ns[phase][cause] == 0) continue;
                subject of = NOBODY;
                of.key[0] = "tailwatch.cause", of.value[0] = tw_cause_name(cause);
                of.key[1] = "tailwatch.phase", of.value[1] = tw_phase_name(phase);
                of.key[2] = "tailwatch.source", of.value[2] = lost->role;
                seconds_point(e, m, &of, (m->of ? lost->late_ns : lost->overlap_ns)[phase][cause]);
            }
}

/* ---- about ourselves ---- */

static void named_counts(encoder *e, const metric *m, const char *key, const uint64_t *counts, int n, const char *(*name)(int)) {
    for (int i = 0; i < n; i++) {
        subject of = NOBODY;
        of.key[0] = key, of.value[0] = name(i);
        if (counts[i] > 0) count_point(e, m, &of, counts[i]);
    }
}

static void drops(encoder *e, const metric *m) {
    named_counts(e, m, "tailwatch.reason", source(e, COUNTER)->drops, TW_DROPS, tw_drop_name);
}

static void errors(encoder *e, const metric *m) {
    named_counts(e, m, "tailwatch.where", source(e, COUNTER)->errors, TW_ERRORS, tw_error_name);
}

static void label_overflow(encoder *e, const metric *m) {
    const uint64_t overflow = source(e, COUNTER)->label_overflow;
    if (overflow > 0) count_point(e, m, &NOBODY, overflow);
}

static uint64_t moved(const encoder *e, uint64_t now, uint64_t before) { return e->info->delta_sums ? now - before : now; }

static void exports(encoder *e, const metric *m) {
    const tw_otlp_own *own = &e->info->own, *before = &e->info->own_since;
    const uint64_t counts[] = {moved(e, own->exported, before->exported), moved(e, own->failed, before->failed),
                               moved(e, own->skipped, before->skipped)};
    static const char *const outcomes[] = {"exported", "failed", "skipped"};
    for (int i = 0; i < 3; i++) {
        subject of = NOBODY;
        of.key[0] = "tailwatch.outcome", of.value[0] = outcomes[i];
        if (counts[i] > 0) count_point(e, m, &of, counts[i]);
    }
}

static void spans(encoder *e, const metric *m) {
    const tw_otlp_own *own = &e->info->own, *before = &e->info->own_since;
    const uint64_t counts[] = {moved(e, own->spans, before->spans), moved(e, own->spans_dropped, before->spans_dropped),
                               moved(e, own->span_events_dropped, before->span_events_dropped)};
    static const char *const outcomes[] = {"made", "dropped", "event_dropped"};
    for (int i = 0; i < 3; i++) {
        subject of = NOBODY;
        of.key[0] = "tailwatch.outcome", of.value[0] = outcomes[i];
        if (counts[i] > 0) count_point(e, m, &of, counts[i]);
    }
}

static void hold(encoder *e, const metric *m) {
    if (e->info->own.hold_ns > 0) seconds_point(e, m, &NOBODY, e->info->own.hold_ns);
}

/* ---- the metrics ---- */

#define SUM(field) offsetof(tw_policy_counts, field)
#define STANDS(field) offsetof(tw_policy_now, field)
#define TOTAL(field) offsetof(tw_pause_totals, field)

static const metric metrics[] = {
    {"gen_ai.server.time_to_first_token", HISTOGRAM, "s", served_histogram, TW_SERVED_TTFT, TTFT_BOUNDS,
     "Time to generate the first token, of successful responses."},
    {"gen_ai.server.time_per_output_token", HISTOGRAM, "s", served_histogram, TW_SERVED_TPOT, TPOT_BOUNDS,
     "Time per output token after the first, of successful responses."},
    {"gen_ai.server.request.duration", HISTOGRAM, "s", durations, TW_METRIC_E2E, DURATION_BOUNDS,
     "Request duration, to the last byte."},
    {"gen_ai.server.inter_token_latency", HISTOGRAM, "s", series_histogram, TW_METRIC_ITL, NULL,
     "Each gap between token-bearing messages, one sample."},
    {"tailwatch.queue.duration", HISTOGRAM, "s", queue_histograms, TW_METRIC_QUEUE_PROXY, NULL,
     "What requests waited before the app saw them."},
    {"tailwatch.abandoned_wait", HISTOGRAM, "s", wait_histogram, TW_METRIC_ABANDONED_WAIT, NULL,
     "How long the requests waited that were given up before their first token."},
    {"tailwatch.send_wait", HISTOGRAM, "s", wait_histogram, TW_METRIC_SEND_WAIT, NULL,
     "Sends that were blocked by a client that did not read."},
    {"tailwatch.requests", COUNTER, "{request}", requests, 0, NULL, "Requests that ended, by outcome and reason."},
    {"tailwatch.output_tokens", COUNTER, "{token}", tokens, 0, NULL, "Output tokens."},
    {"tailwatch.requests_in_flight", UP_DOWN, "{request}", in_flight, 0, NULL, "Requests open now."},
    {"tailwatch.goodput", GAUGE, "{request}/s", goodput, 0, NULL, "Good requests per second, rolling."},
    {"tailwatch.throughput", GAUGE, "{request}/s", throughput, 0, NULL, "Completed requests per second, rolling."},
    {"tailwatch.slo.attainment", GAUGE, "1", attainment, 0, NULL, "Good requests of those judged, rolling."},
    {"cpython.gc.duration", HISTOGRAM, "s", gc_histograms, 0, NULL, "Pauses by garbage collection, process time."},
    {"cpython.gc.collections", COUNTER, "{collection}", gc_totals, TOTAL(count), NULL, "Collections."},
    {"cpython.gc.collected_objects", COUNTER, "{object}", gc_totals, TOTAL(collected), NULL, "Objects collected."},
    {"cpython.gc.uncollectable_objects", COUNTER, "{object}", gc_totals, TOTAL(uncollectable), NULL,
     "Objects that could not be collected."},
    {"tailwatch.policy.duration", HISTOGRAM, "s", policy_histograms, 0, NULL, "Pauses by our own freeze and sweep passes."},
    {"tailwatch.gc.policy", GAUGE, "1", policy_info, 0, NULL, "1 for the policy of each process, and how it collects."},
    {"tailwatch.gc.policy.slices", COUNTER, "{slice}", policy_counts, 0, NULL, "Slices of the sweep, by what gave the moment."},
    {"tailwatch.gc.policy.passes", COUNTER, "{collection}", policy_counts, 1, NULL,
     "Collections outside slices: whole passes of our own, automatic and foreign ones."},
    {"tailwatch.gc.policy.drift", COUNTER, "{call}", policy_counts, 2, NULL, "What others did to the collector."},
    {"tailwatch.gc.policy.ceilings", COUNTER, "{time}", policy_counts, 3, NULL, "Times that a ceiling was met."},
    {"tailwatch.gc.policy.slice_time", COUNTER, "s", policy_totals, SUM(slice_ns), NULL, "What slices took, process time."},
    {"tailwatch.gc.policy.predicted_time", COUNTER, "s", policy_totals, SUM(predicted_ns), NULL, "What they had been predicted to take."},
    {"tailwatch.gc.policy.pass_time", COUNTER, "s", policy_totals, SUM(pass_ns), NULL, "What whole passes of our own took."},
    {"tailwatch.gc.policy.moved_objects", COUNTER, "{object}", policy_totals, SUM(moved), NULL, "Old objects that slices looked at."},
    {"tailwatch.gc.policy.freed_objects", COUNTER, "{object}", policy_totals, SUM(freed), NULL, "Objects that slices freed."},
    {"tailwatch.gc.policy.pass_freed_objects", COUNTER, "{object}", policy_totals, SUM(pass_freed), NULL,
     "Objects that whole passes of our own freed."},
    {"tailwatch.gc.policy.rounds", COUNTER, "{round}", policy_totals, SUM(rounds), NULL, "Times that slices went through the whole old heap."},
    {"tailwatch.gc.policy.unfrozen_objects", GAUGE, "{object}", policy_sizes, STANDS(unfrozen), NULL,
     "Tracked objects that are not frozen: an estimate."},
    {"tailwatch.gc.policy.frozen_objects", GAUGE, "{object}", policy_sizes, STANDS(frozen), NULL, "Objects known to be frozen."},
    {"tailwatch.stream.overlap", COUNTER, "s", stream_seconds, 0, NULL,
     "Stream time that coincided with pauses: an upper bound of their blame."},
    {"tailwatch.stream.late", COUNTER, "s", stream_seconds, 1, NULL, "Stream time that pauses cost: an estimate."},
    {"tailwatch.dropped_events", COUNTER, "{event}", drops, 0, NULL, "What was dropped, by reason."},
    {"tailwatch.internal_errors", COUNTER, "{error}", errors, 0, NULL, "Where something of tailwatch went wrong."},
    {"tailwatch.label_overflow", COUNTER, "{request}", label_overflow, 0, NULL,
     "Requests whose labels became \"other\" because max_label_sets was reached."},
    {"tailwatch.otel.exports", COUNTER, "{export}", exports, 0, NULL, "Rounds of this exporter, up to the one before."},
    {"tailwatch.otel.spans", COUNTER, "{span}", spans, 0, NULL, "Request spans of this process."},
    {"tailwatch.otel.longest_hold", GAUGE, "s", hold, 0, NULL,
     "The longest piece of work on behalf of an exporter of the host's, CPU time."},
};

/* Field of Metric.data by kind. */
static uint32_t data_field(const encoder *e, kind kind) {
    if (kind == HISTOGRAM) return e->info->exponential ? 10 : 9;
    return kind == GAUGE ? 5 : 7;
}

static void put_metric(encoder *e, const metric *m) {
    const size_t before = e->out->length, begin = tw_pb_open(e->out, 2);
    put_text(e->out, 1, m->name);
    put_text(e->out, 2, m->help);
    put_text(e->out, 3, m->unit);
    const size_t data = tw_pb_open(e->out, data_field(e, m->kind));
    e->any = false;
    m->points(e, m);
    if (m->kind != GAUGE) tw_pb_uint(e->out, 2, is_delta(e, m->kind) ? DELTA : CUMULATIVE);
    if (m->kind == COUNTER) tw_pb_uint(e->out, 3, 1);
    tw_pb_close(e->out, data);
    tw_pb_close(e->out, begin);
    if (!e->any) e->out->length = before;
}

static void put_scope(encoder *e) {
    const size_t scope = tw_pb_open(e->out, 1);
    put_text(e->out, 1, "tailwatch");
    put_text(e->out, 2, e->info->version);
    tw_pb_close(e->out, scope);
}

static void put_request(encoder *e) {
    const size_t resource_metrics = tw_pb_open(e->out, 1);
    tw_pb_bytes(e->out, 1, e->info->resource, e->info->resource_len);
    const size_t scope_metrics = tw_pb_open(e->out, 2);
    put_scope(e);
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) put_metric(e, &metrics[i]);
    tw_pb_close(e->out, scope_metrics);
    if (e->info->resource_schema_url[0] != '\0') put_text(e->out, 3, e->info->resource_schema_url);
    tw_pb_close(e->out, resource_metrics);
}

int tw_otlp_metrics(const tw_snapshot *now, const tw_snapshot *since, const tw_otlp_info *info, tw_buffer *out) {
    if (!now || !info || !out || info->max_buckets < 2) return EINVAL;
    encoder e = {.now = now, .since = since ? since : now, .info = info, .out = out};
    tw_snapshot_window(now, info->goodput_window_s, &e.window);
    put_request(&e);
    return out->failed;
}
