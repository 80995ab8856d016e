/* The classic protobuf exposition: io.prometheus.client.MetricFamily messages, each with its length before it.
 *
 * A histogram has its native form at full resolution (schema 5: the layout's own buckets) and, unless switched off,
 * the classic buckets beside it. What lies at or below the layout's range is the zero bucket, whose threshold is the
 * range's lower edge; what lies above it has no upper edge, and stands in the bucket above the largest double.
 */
#include "export/prom_writer.h"

#include <math.h>
#include <string.h>

#include "base/protobuf.h"

/* Field numbers of metrics.proto. */
enum { FAMILY_NAME = 1, FAMILY_HELP, FAMILY_TYPE, FAMILY_METRIC, FAMILY_UNIT };
enum { TYPE_COUNTER = 0, TYPE_GAUGE = 1, TYPE_HISTOGRAM = 4 };
enum { METRIC_LABEL = 1, METRIC_GAUGE = 2, METRIC_COUNTER = 3, METRIC_HISTOGRAM = 7 };
enum { PAIR_NAME = 1, PAIR_VALUE };
enum { NUMBER_VALUE = 1, COUNTER_CREATED = 3 };
enum {
    HISTOGRAM_COUNT = 1,
    HISTOGRAM_SUM = 2,
    HISTOGRAM_BUCKET = 3,
    HISTOGRAM_SCHEMA = 5,
    HISTOGRAM_ZERO_THRESHOLD = 6,
    HISTOGRAM_ZERO_COUNT = 7,
    HISTOGRAM_SPAN = 12,
    HISTOGRAM_DELTA = 13,
    HISTOGRAM_CREATED = 15,
    HISTOGRAM_EXEMPLAR = 16
};
enum { BUCKET_COUNT = 1, BUCKET_BOUND = 2, BUCKET_EXEMPLAR = 3 };
enum { SPAN_OFFSET = 1, SPAN_LENGTH = 2 };
enum { EXEMPLAR_LABEL = 1, EXEMPLAR_VALUE = 2, EXEMPLAR_TIME = 3 };
enum { TIME_SECONDS = 1, TIME_NANOS = 2 };

/* Prometheus numbers a bucket by its upper edge, 2^(n / 32): ours begin at TW_BUCKET_MIN. */
#define FIRST_NATIVE (TW_BUCKET_MIN + 1)
#define ABOVE_ALL (1024 * (1 << TW_SCALE) + 1) /* (largest double, +Inf] */
#define GAP_FILLED 2 /* so many empty buckets cost less as zeros than as the beginning of a span */

/* ---- families and samples ---- */

static void proto_begin(tw_writer *w) {
    static const uint64_t types[] = {TYPE_COUNTER, TYPE_GAUGE, TYPE_GAUGE, TYPE_HISTOGRAM, TYPE_GAUGE};
    const tw_instrument *f = w->family;
    const size_t name = strlen(f->prometheus), suffix = strlen(tw_suffix_of(f));
    w->family_at = tw_pb_open_delimited(w->out);
    tw_pb_tag(w->out, FAMILY_NAME, TW_WIRE_BYTES);
    tw_pb_varint(w->out, name + suffix);
    tw_buffer_put(w->out, f->prometheus, name);
    tw_buffer_put(w->out, tw_suffix_of(f), suffix);
    tw_pb_text(w->out, FAMILY_HELP, f->help);
    tw_pb_uint(w->out, FAMILY_TYPE, types[f->kind]);
    w->labels = 0;
}

/* A family of no metric is an error to those who read them one by one: it is left out. */
static void proto_end(tw_writer *w) {
    if (w->labels == 0) {
        if (!w->out->failed) w->out->length = w->family_at;
        return;
    }
    if (tw_prom_unit(w->family)) tw_pb_text(w->out, FAMILY_UNIT, tw_prom_unit(w->family));
    tw_pb_close(w->out, w->family_at);
}

static void proto_open(tw_writer *w) {
    w->labels = 1; /* here: that there is a metric */
    w->sample_at = tw_pb_open(w->out, FAMILY_METRIC);
}

static void put_pair(tw_buffer *b, uint32_t field, const char *name, const char *value) {
    const size_t at = tw_pb_open(b, field);
    tw_pb_text(b, PAIR_NAME, name);
    tw_pb_text(b, PAIR_VALUE, value);
    tw_pb_close(b, at);
}

static void proto_label(tw_writer *w, const char *name, const char *value) {
    put_pair(w->out, METRIC_LABEL, name, value);
}

static void put_time(tw_buffer *b, uint32_t field, uint64_t unix_ns) {
    const size_t at = tw_pb_open(b, field);
    tw_pb_uint(b, TIME_SECONDS, unix_ns / TW_NS_PER_SECOND);
    tw_pb_uint(b, TIME_NANOS, unix_ns % TW_NS_PER_SECOND);
    tw_pb_close(b, at);
}

static void proto_number(tw_writer *w) {
    const bool counter = w->family->kind == TW_INSTRUMENT_COUNTER;
    const size_t at = tw_pb_open(w->out, counter ? METRIC_COUNTER : METRIC_GAUGE);
    tw_pb_double(w->out, NUMBER_VALUE, tw_number_value(&w->sample->number));
    if (counter && w->created_ns) put_time(w->out, COUNTER_CREATED, w->created_ns);
    tw_pb_close(w->out, at);
    tw_pb_close(w->out, w->sample_at);
}

/* ---- histograms ---- */

static void put_exemplar_message(tw_buffer *b, uint32_t field, const tw_snapshot_exemplar *e) {
    const size_t at = tw_pb_open(b, field);
    put_pair(b, EXEMPLAR_LABEL, "trace_id", e->trace_id);
    tw_pb_double(b, EXEMPLAR_VALUE, tw_seconds_of(e->value_ns, 0));
    put_time(b, EXEMPLAR_TIME, e->unix_ns);
    tw_pb_close(b, at);
}

static void put_classic_bucket(tw_writer *w, uint64_t below, double bound, uint32_t i) {
    const tw_snapshot_exemplar *e = tw_writer_exemplar(w, i);
    const size_t at = tw_pb_open(w->out, HISTOGRAM_BUCKET);
    tw_pb_uint(w->out, BUCKET_COUNT, below);
    tw_pb_double(w->out, BUCKET_BOUND, bound);
    if (e) put_exemplar_message(w->out, BUCKET_EXEMPLAR, e);
    tw_pb_close(w->out, at);
}

static void put_classic(tw_writer *w, const tw_counts *c, const tw_layout *layout) {
    uint64_t below = 0;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < layout->bounds; i++) {
        for (; slot <= layout->bound_slot[i]; slot++) below += c->slot[slot];
        put_classic_bucket(w, below, tw_seconds_of(layout->bound_ns[i], 0), i);
    }
    put_classic_bucket(w, c->count, INFINITY, layout->bounds);
}

/* The buckets that are written, ascending: those in use, and the zeros of short gaps between them. */
typedef struct native {
    uint32_t n;
    int32_t index[TW_BUCKETS + 1];
    uint64_t count[TW_BUCKETS + 1];
} native;

static void native_add(native *to, int32_t index, uint64_t count) {
    if (count == 0) return;
    int32_t next = to->n ? to->index[to->n - 1] + 1 : index;
    for (int32_t gap = index - next; to->n && gap > 0 && gap <= GAP_FILLED; gap--, next++) {
        to->index[to->n] = next;
        to->count[to->n++] = 0;
    }
    to->index[to->n] = index;
    to->count[to->n++] = count;
}

static void native_of(const tw_counts *c, const tw_layout *layout, native *out) {
    const uint32_t above = layout->slots - 1;
    out->n = 0;
    for (int b = 0; b < TW_BUCKETS; b++) {
        const uint32_t end = b + 1 < TW_BUCKETS ? layout->bucket_slot[b + 1] : above;
        uint64_t count = 0;
        for (uint32_t slot = layout->bucket_slot[b]; slot < end; slot++) count += c->slot[slot];
        native_add(out, FIRST_NATIVE + b, count);
    }
    native_add(out, ABOVE_ALL, c->slot[above]);
}

static void put_spans(tw_buffer *b, const native *of) {
    int32_t next = 0;
    for (uint32_t i = 0, length; i < of->n; i += length) {
        for (length = 1; i + length < of->n && of->index[i + length] == of->index[i] + (int32_t)length;) length++;
        const size_t at = tw_pb_open(b, HISTOGRAM_SPAN);
        tw_pb_sint(b, SPAN_OFFSET, of->index[i] - next);
        tw_pb_uint(b, SPAN_LENGTH, length);
        tw_pb_close(b, at);
        next = of->index[i] + (int32_t)length;
    }
}

static void put_deltas(tw_buffer *b, const native *of) {
    uint64_t before = 0;
    if (of->n == 0) return;
    const size_t at = tw_pb_open(b, HISTOGRAM_DELTA);
    for (uint32_t i = 0; i < of->n; before = of->count[i++])
        tw_pb_varint(b, tw_zigzag((int64_t)(of->count[i] - before)));
    tw_pb_close(b, at);
}

/* Those who read native histograms take exemplars in the order of their times. */
static void put_native_exemplars(tw_writer *w) {
    const tw_snapshot_exemplar *all = w->sample->exemplars, *sorted[TW_BOUNDS_MAX + 1];
    uint32_t n = 0;
    for (; n < w->sample->exemplar_count && n <= TW_BOUNDS_MAX; n++) {
        uint32_t at = n;
        for (; at > 0 && sorted[at - 1]->unix_ns > all[n].unix_ns; at--) sorted[at] = sorted[at - 1];
        sorted[at] = &all[n];
    }
    for (uint32_t i = 0; i < n; i++) put_exemplar_message(w->out, HISTOGRAM_EXEMPLAR, sorted[i]);
}

static void put_native(tw_writer *w, const tw_counts *c, const tw_layout *layout) {
    native buckets;
    native_of(c, layout, &buckets);
    tw_pb_sint(w->out, HISTOGRAM_SCHEMA, TW_SCALE);
    tw_pb_double(w->out, HISTOGRAM_ZERO_THRESHOLD, exp2((double)TW_BUCKET_MIN / (1 << TW_SCALE)));
    tw_pb_uint(w->out, HISTOGRAM_ZERO_COUNT, c->slot[0]);
    put_spans(w->out, &buckets);
    put_deltas(w->out, &buckets);
    put_native_exemplars(w);
}

static void proto_histogram(tw_writer *w) {
    const tw_counts *c = w->sample->counts;
    const size_t at = tw_pb_open(w->out, METRIC_HISTOGRAM);
    tw_pb_uint(w->out, HISTOGRAM_COUNT, c->count);
    tw_pb_double(w->out, HISTOGRAM_SUM, tw_counts_sum_seconds(c));
    if (w->classic) put_classic(w, c, w->sample->layout);
    put_native(w, c, w->sample->layout);
    if (w->created_ns) put_time(w->out, HISTOGRAM_CREATED, w->created_ns);
    tw_pb_close(w->out, at);
    tw_pb_close(w->out, w->sample_at);
}

const tw_syntax tw_syntax_proto = {proto_begin, proto_open, proto_label, proto_number, proto_histogram, proto_end};
