/* Prometheus text 0.0.4 and OpenMetrics 1.0.
 *
 * Numbers are formatted here, from integers: no locale, no floating point, and a sum of nanoseconds is
 * written as the exact decimal it is. A histogram's lines share one prefix, which is written once and copied.
 */
#include "export/prom_writer.h"

#include <string.h>

__extension__ typedef unsigned __int128 u128;

#define NUMBER_ROOM 64    /* the longest number: 39 digits, a point, 9 digits */
#define RATIO_DIGITS 17   /* what a double needs to come back unchanged */
#define EXEMPLAR_ROOM 192 /* names, trace id, value and time of one */

_Static_assert(sizeof "trace_id" - 1 + TW_TRACE_WORDS * 8 - 1 <= 128,
               "OpenMetrics: the labels of an exemplar, in characters");

static void put(tw_buffer *b, const char *text) { tw_buffer_put(b, text, strlen(text)); }

/* A label value: backslash, quote and newline are the three that the formats escape. */
static void put_escaped(tw_buffer *b, const char *text) {
    size_t plain;
    for (;; text += plain + 1) {
        plain = strcspn(text, "\\\"\n");
        tw_buffer_put(b, text, plain);
        if (!text[plain]) return;
        put(b, text[plain] == '\\' ? "\\\\" : text[plain] == '"' ? "\\\"" : "\\n");
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

static const char DIGIT_PAIRS[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

size_t tw_format_count(char *at, uint64_t value) {
    char digits[20];
    size_t i = sizeof digits;
    for (; value >= 100; value /= 100) {
        i -= 2;
        memcpy(digits + i, DIGIT_PAIRS + 2 * (value % 100), 2);
    }
    if (value >= 10) memcpy(digits + (i -= 2), DIGIT_PAIRS + 2 * value, 2);
    else digits[--i] = (char)('0' + value);
    memcpy(at, digits + i, sizeof digits - i);
    return sizeof digits - i;
}

static size_t format_padded(char *at, uint64_t value, size_t width) {
    for (size_t i = width; i-- > 0; value /= 10) at[i] = (char)('0' + value % 10);
    return width;
}

static size_t format_wide(char *at, u128 value) {
    const uint64_t chunk = UINT64_C(10000000000000000000); /* 10^19: the largest power of ten in a word */
    if (value < chunk) return tw_format_count(at, (uint64_t)value);
    size_t n = format_wide(at, value / chunk);
    return n + format_padded(at + n, (uint64_t)(value % chunk), 19);
}

/* Nanoseconds as seconds: exact, at least one digit after the point. */
static size_t format_seconds(char *at, u128 ns) {
    size_t n = format_wide(at, ns / TW_NS_PER_SECOND);
    at[n++] = '.';
    n += format_padded(at + n, (uint64_t)(ns % TW_NS_PER_SECOND), 9);
    while (at[n - 1] == '0' && at[n - 2] != '.') n--;
    return n;
}

/* numerator / denominator by long division, cut after RATIO_DIGITS significant digits. */
static size_t format_ratio(char *at, uint64_t numerator, uint64_t denominator) {
    uint64_t whole = numerator / denominator;
    u128 rest = numerator % denominator;
    size_t n = tw_format_count(at, whole), significant = whole ? n : 0;
    at[n++] = '.';
    do {
        rest *= 10;
        char digit = (char)(rest / denominator);
        at[n++] = (char)('0' + digit);
        rest %= denominator;
        significant += significant || digit;
    } while (rest && significant < RATIO_DIGITS && n < NUMBER_ROOM - 1);
    return n;
}

/* ---- families and samples --------------------------------------------------------------------------- */

/* Text 0.0.4 has neither the family name without its suffix nor the type info. */
static void put_header(tw_writer *w, const char *keyword, const char *value) {
    put(w->out, keyword);
    put(w->out, w->family->prometheus);
    if (!w->openmetrics) put(w->out, tw_suffix_of(w->family));
    put(w->out, " ");
    put(w->out, value);
    put(w->out, "\n");
}

static void text_begin(tw_writer *w) {
    static const char *const types[] = {"counter", "gauge", "gauge", "histogram", "info"};
    const tw_instrument *f = w->family;
    put_header(w, "# HELP ", f->help);
    put_header(w, "# TYPE ", f->kind == TW_INSTRUMENT_INFO && !w->openmetrics ? "gauge" : types[f->kind]);
    if (w->openmetrics && tw_prom_unit(f)) put_header(w, "# UNIT ", tw_prom_unit(f));
}

static void text_end(tw_writer *w) { (void)w; }

static void text_open(tw_writer *w) {
    w->sample_at = w->out->length;
    w->labels = 0;
    put(w->out, w->family->prometheus);
    put(w->out, w->family->kind == TW_INSTRUMENT_HISTOGRAM ? "_bucket" : tw_suffix_of(w->family));
    w->labels_at = w->out->length;
}

static void text_label(tw_writer *w, const char *name, const char *value) {
    put(w->out, w->labels++ ? "," : "{");
    put(w->out, name);
    put(w->out, "=\"");
    put_escaped(w->out, value);
    put(w->out, "\"");
}

static void put_value(tw_writer *w, const char *number, size_t n) {
    put(w->out, w->labels ? "} " : " ");
    tw_buffer_put(w->out, number, n);
    put(w->out, "\n");
}

static void text_number(tw_writer *w) {
    const tw_number *value = &w->sample->number;
    char number[NUMBER_ROOM];
    size_t n = value->kind == TW_NUMBER_COUNT        ? tw_format_count(number, value->a)
               : value->kind == TW_NUMBER_BILLIONTHS ? format_seconds(number, value->a)
                                                     : format_ratio(number, value->a, value->b);
    put_value(w, number, n);
}

/* ---- histograms ------------------------------------------------------------------------------------- */

static const tw_bound_texts *bounds_of(const tw_writer *w, const tw_layout *layout) {
    int k = 0;
    while (tw_layout_of(k) != layout) k++;
    return &w->bounds[k];
}

void tw_bound_texts_fill(tw_bound_texts *texts, const tw_layout *layout) {
    for (uint32_t i = 0; i < layout->bounds; i++)
        texts->length[i] = format_seconds(texts->text[i], layout->bound_ns[i]);
}

static char *copy_text(char *at, const char *text) {
    const size_t n = strlen(text);
    memcpy(at, text, n);
    return at + n;
}

/* What stands behind a bucket's count, into EXEMPLAR_ROOM: the trace id needs no escape. */
static char *put_exemplar(char *at, const tw_snapshot_exemplar *e) {
    at = copy_text(at, " # {trace_id=\"");
    at = copy_text(at, e->trace_id);
    at = copy_text(at, "\"} ");
    at += format_seconds(at, e->value_ns);
    *at++ = ' ';
    return at + format_seconds(at, e->unix_ns);
}

/* One bucket line into room already reserved: the prefix stands at `line`, `at` is where this one goes. */
static char *put_bucket(char *at, const char *line, size_t prefix, const char *bound, size_t bound_length,
                        uint64_t count, const tw_snapshot_exemplar *exemplar) {
    memmove(at, line, prefix);
    at += prefix;
    memcpy(at, bound, bound_length);
    at += bound_length;
    memcpy(at, "\"} ", 3);
    at += 3 + tw_format_count(at + 3, count);
    if (exemplar) at = put_exemplar(at, exemplar);
    *at++ = '\n';
    return at;
}

/* Cumulative counts in one pass over the slots. */
static void put_buckets(tw_writer *w, const tw_counts *c, const tw_layout *layout) {
    const tw_bound_texts *texts = bounds_of(w, layout);
    const size_t prefix = w->out->length - w->sample_at;
    const size_t extra = w->openmetrics ? w->sample->exemplar_count * EXEMPLAR_ROOM : 0;
    if (!tw_buffer_reserve(w->out, (layout->bounds + 1) * (prefix + TW_BOUND_ROOM + NUMBER_ROOM) + extra)) return;
    char *line = w->out->data + w->sample_at, *at = line;
    uint64_t below = 0;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < layout->bounds; i++) {
        for (; slot <= layout->bound_slot[i]; slot++) below += c->slot[slot];
        const tw_snapshot_exemplar *e = w->openmetrics ? tw_writer_exemplar(w, i) : NULL;
        at = put_bucket(at, line, prefix, texts->text[i], texts->length[i], below, e);
    }
    const tw_snapshot_exemplar *e = w->openmetrics ? tw_writer_exemplar(w, layout->bounds) : NULL;
    at = put_bucket(at, line, prefix, "+Inf", 4, c->count, e);
    w->out->length = (size_t)(at - w->out->data);
}

/* `_count` or `_sum`, with the labels that stand at labels_at in the first bucket line. */
static void open_total(tw_writer *w, const char *suffix, size_t labels_length) {
    put(w->out, w->family->prometheus);
    put(w->out, suffix);
    if (!tw_buffer_reserve(w->out, labels_length)) return;
    memcpy(w->out->data + w->out->length, w->out->data + w->labels_at, labels_length);
    w->out->length += labels_length;
}

static void text_histogram(tw_writer *w) {
    const tw_counts *c = w->sample->counts;
    const size_t labels_length = w->out->length - w->labels_at;
    char number[NUMBER_ROOM];
    put(w->out, w->labels ? ",le=\"" : "{le=\"");
    put_buckets(w, c, w->sample->layout);
    open_total(w, "_count", labels_length);
    put_value(w, number, tw_format_count(number, c->count));
    open_total(w, "_sum", labels_length);
    put_value(w, number, format_seconds(number, (u128)c->sum_high << 64 | c->sum_low));
}

const tw_syntax tw_syntax_text = {text_begin, text_open, text_label, text_number, text_histogram, text_end};
