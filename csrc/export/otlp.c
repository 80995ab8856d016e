/* OTLP metrics: the data points of every metric that has a name there.
 *
 * Field numbers are those of opentelemetry-proto's metrics.proto; they are written in ascending order.
 */
#include "tailwatch/export/otlp.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/protobuf.h"
#include "base/text.h"
#include "export/metric_samples.h"

enum { DELTA = 1, CUMULATIVE = 2 }; /* AggregationTemporality */

/* Which of a layout's bounds an explicit histogram has. */
typedef struct chosen_bounds {
    const tw_layout *layout;
    const double *wanted;             /* NULL: all */
    uint32_t n, at[TW_BOUNDS_MAX];
    double seconds[TW_BOUNDS_MAX];
} chosen_bounds;

typedef struct encoder {
    const tw_otlp_info *info;
    tw_buffer *out;
    const tw_instrument *metric;      /* the one being written */
    chosen_bounds bounds;             /* of the last explicit histogram */
    bool any;                         /* whether the metric being written has a point */
} encoder;

/* ---- attributes ---- */

static bool is_utf8(const char *text, size_t len) {
    for (size_t at = 0, n; at < len; at += n)
        if ((n = tw_utf8_length((const unsigned char *)text + at, len - at)) == 0) return false;
    return true;
}

/* A receiver refuses a whole request for one byte that is no UTF-8. */
static void put_text(tw_buffer *b, uint32_t field, const char *text) {
    const size_t len = strlen(text);
    tw_pb_tag(b, field, TW_WIRE_BYTES);
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

static void attribute(attributes a, const char *prefix, const char *key, const char *value) {
    const size_t pair = tw_pb_open(a.b, a.field), before = strlen(prefix), len = strlen(key);
    tw_pb_tag(a.b, 1, TW_WIRE_BYTES);
    tw_pb_varint(a.b, before + len);
    tw_buffer_put(a.b, prefix, before);
    tw_buffer_put(a.b, key, len);
    const size_t any = tw_pb_open(a.b, 2);
    put_text(a.b, 1, value ? value : "");
    tw_pb_close(a.b, any);
    tw_pb_close(a.b, pair);
}

static void number_attribute(attributes a, const char *key, uint64_t value) {
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

static void put_server(const encoder *e, attributes a) {
    if (!e->info->server_address || e->info->server_address[0] == '\0') return;
    attribute(a, "", "server.address", e->info->server_address);
    if (e->info->server_port != 0) number_attribute(a, "server.port", e->info->server_port);
}

static void put_attributes(const encoder *e, uint32_t field, const tw_sample *sample) {
    const attributes a = {e->out, field};
    const tw_snapshot_series *series = sample->series;
    if (series) {
        attribute(a, "", "gen_ai.operation.name", tw_otlp_operation(series->route));
        attribute(a, "", "gen_ai.provider.name", e->info->provider);
        if (strcmp(series->model, "unknown") != 0) attribute(a, "", "gen_ai.response.model", series->model);
        attribute(a, "", "http.route", series->route);
        put_server(e, a);
    }
    if (sample->error_type) attribute(a, "", "error.type", sample->error_type);
    if (sample->process) {
        char name[TW_PROCESS_NAME_ROOM];
        tw_process_name(name, sample->process);
        attribute(a, "", "tailwatch.process", name);
    }
    if (sample->cause >= 0) attribute(a, "", "tailwatch.cause", tw_cause_name(sample->cause));
    if (sample->cause >= 0 && sample->cause <= TW_CAUSE_GC2)
        number_attribute(a, "cpython.gc.generation", (uint64_t)sample->cause);
    for (int i = 0; i < TW_SAMPLE_LABELS && sample->label[i].name; i++)
        attribute(a, "tailwatch.", sample->label[i].name, sample->label[i].value);
}

/* ---- numbers ---- */

static bool is_gauge(const encoder *e) {
    return e->metric->kind == TW_INSTRUMENT_GAUGE || e->metric->kind == TW_INSTRUMENT_INFO;
}

static bool is_delta(const encoder *e) {
    if (e->metric->kind == TW_INSTRUMENT_HISTOGRAM) return e->info->delta_histograms;
    return e->metric->kind == TW_INSTRUMENT_COUNTER && e->info->delta_sums;
}

static void put_times(const encoder *e, const tw_sample *sample) {
    const uint64_t start = sample->start_unix_ns ? sample->start_unix_ns : e->info->start_unix_ns;
    if (!is_gauge(e)) tw_pb_fixed64(e->out, 2, is_delta(e) ? e->info->since_unix_ns : start);
    tw_pb_fixed64(e->out, 3, e->info->time_unix_ns);
}

/* Has no point: a counter that has not counted, or did not move since the last export. */
static bool is_silent(const encoder *e, const tw_sample *sample) {
    return e->metric->kind == TW_INSTRUMENT_COUNTER && sample->number.a == 0 && (is_delta(e) || !sample->counted);
}

static void number_point(encoder *e, const tw_sample *sample) {
    const tw_number *number = &sample->number;
    put_times(e, sample);
    if (number->kind == TW_NUMBER_COUNT) tw_pb_fixed64(e->out, 6, number->a < INT64_MAX ? number->a : INT64_MAX);
    else tw_pb_double(e->out, 4, tw_number_value(number));
    put_attributes(e, 7, sample);
}

/* ---- exemplars ---- */

/* OTLP has no other trace ids than those of 16 bytes. */
static bool trace_of(const char *text, char *bytes) {
    if (strlen(text) != 32) return false;
    for (int i = 0; i < 16; i++) {
        const int high = tw_hex_digit(text[2 * i]), low = tw_hex_digit(text[2 * i + 1]);
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

/* Those of a difference are the ones since. */
static void put_exemplars(encoder *e, const tw_sample *sample, uint32_t field) {
    const uint64_t since_ns = is_delta(e) ? e->info->since_unix_ns : 0;
    for (uint32_t i = 0; i < sample->exemplar_count; i++)
        if (sample->exemplars[i].unix_ns >= since_ns) put_exemplar(e, field, &sample->exemplars[i]);
}

/* ---- explicit histograms ---- */

/* Of a packed field; the machines this runs on store words as the wire has them. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian");
static void put_word(tw_buffer *b, uint64_t value) { tw_buffer_put(b, &value, sizeof value); }

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
    if (is_delta(e)) return;
    tw_pb_double(e->out, field, (double)c->min_ns / 1e9);
    tw_pb_double(e->out, field + 1, (double)c->max_ns / 1e9);
}

static void explicit_point(encoder *e, const tw_sample *sample) {
    const tw_counts *c = sample->counts;
    put_times(e, sample);
    tw_pb_fixed64(e->out, 4, c->count);
    tw_pb_double(e->out, 5, tw_counts_sum_seconds(c));
    put_explicit_counts(e, c, choose_bounds(e, sample->layout, e->metric->bounds));
    put_exemplars(e, sample, 8);
    put_attributes(e, 9, sample);
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
        const uint32_t end = b + 1 < TW_BUCKETS ? layout->bucket_slot[b + 1]
                             : b < TW_BUCKETS   ? layout->slots - 1
                                                : layout->slots;
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

static void exponential_point(encoder *e, const tw_sample *sample) {
    const tw_counts *c = sample->counts;
    exponential x;
    spread(c, sample->layout, &x);
    const bool any = x.highest >= x.lowest;
    if (any) coarsen(&x, e->info->max_buckets, sample->scale);
    put_attributes(e, 1, sample);
    put_times(e, sample);
    tw_pb_fixed64(e->out, 4, c->count);
    tw_pb_double(e->out, 5, tw_counts_sum_seconds(c));
    if (any && x.scale != 0) tw_pb_sint(e->out, 6, x.scale);
    if (x.zero != 0) tw_pb_fixed64(e->out, 7, x.zero);
    if (any) put_positive(e, &x);
    put_exemplars(e, sample, 11);
    put_extremes(e, c, 12);
    tw_pb_double(e->out, 14, exp2((double)TW_BUCKET_MIN / (1 << TW_SCALE)));
}

/* ---- the metrics ---- */

static void put_point(void *to, const tw_sample *sample) {
    encoder *e = to;
    const bool histogram = e->metric->kind == TW_INSTRUMENT_HISTOGRAM;
    if (histogram ? sample->counts->count == 0 : is_silent(e, sample)) return;
    e->any = true;
    const size_t point = tw_pb_open(e->out, 1);
    if (!histogram) number_point(e, sample);
    else if (e->info->exponential) exponential_point(e, sample);
    else explicit_point(e, sample);
    tw_pb_close(e->out, point);
}

/* Field of Metric.data. */
static uint32_t data_field(const encoder *e) {
    if (e->metric->kind == TW_INSTRUMENT_HISTOGRAM) return e->info->exponential ? 10 : 9;
    return is_gauge(e) ? 5 : 7;
}

static void put_metric(encoder *e, tw_sampling *sampling) {
    const size_t before = e->out->length, begin = tw_pb_open(e->out, 2);
    put_text(e->out, 1, e->metric->otlp);
    put_text(e->out, 2, e->metric->help);
    put_text(e->out, 3, e->metric->unit);
    const size_t data = tw_pb_open(e->out, data_field(e));
    e->any = false;
    e->metric->samples(sampling, e->metric);
    if (!is_gauge(e)) tw_pb_uint(e->out, 2, is_delta(e) ? DELTA : CUMULATIVE);
    if (e->metric->kind == TW_INSTRUMENT_COUNTER) tw_pb_uint(e->out, 3, 1);
    tw_pb_close(e->out, data);
    tw_pb_close(e->out, begin);
    if (!e->any) e->out->length = before;
}

static void put_scope(encoder *e) {
    const size_t scope = tw_pb_open(e->out, 1);
    put_text(e->out, 1, "tailwatch");
    put_text(e->out, 2, e->info->metrics.version ? e->info->metrics.version : "");
    tw_pb_close(e->out, scope);
}

static tw_otlp_own own_of(const tw_otlp_info *info) {
    tw_otlp_own own = info->own;
    if (!info->delta_sums) return own;
    own.exported -= info->own_since.exported;
    own.failed -= info->own_since.failed;
    own.skipped -= info->own_since.skipped;
    own.spans -= info->own_since.spans;
    own.spans_dropped -= info->own_since.spans_dropped;
    own.span_events_dropped -= info->own_since.span_events_dropped;
    return own;
}

static void put_metrics(encoder *e, const tw_snapshot *now, const tw_snapshot *since) {
    size_t n;
    const tw_instrument *metrics = tw_instruments(&n);
    tw_sampling sampling = {.latest = now, .info = &e->info->metrics, .own = own_of(e->info)};
    sampling.emit = put_point;
    sampling.to = e;
    tw_snapshot_window(now, e->info->metrics.goodput_window_s, &sampling.window);
    for (size_t i = 0; i < n; i++) {
        if (!metrics[i].otlp || !tw_sampling_has(&sampling, metrics[i].use)) continue;
        e->metric = &metrics[i];
        sampling.snapshot = is_delta(e) ? since : now;
        put_metric(e, &sampling);
    }
}

int tw_otlp_metrics(const tw_snapshot *now, const tw_snapshot *since, const tw_otlp_info *info, tw_buffer *out) {
    if (!now || !info || !out || info->max_buckets < 2) return EINVAL;
    encoder e = {.info = info, .out = out};
    const size_t resource_metrics = tw_pb_open(out, 1);
    tw_pb_bytes(out, 1, info->resource, info->resource_len);
    const size_t scope_metrics = tw_pb_open(out, 2);
    put_scope(&e);
    put_metrics(&e, now, since ? since : now);
    tw_pb_close(out, scope_metrics);
    if (info->resource_schema_url[0] != '\0') put_text(out, 3, info->resource_schema_url);
    tw_pb_close(out, resource_metrics);
    return out->failed;
}
