/* libFuzzer entry for the renderers; fuzz.sh builds and runs it. The input makes requests in a segment: their models,
 * routes and trace ids, what they measured, and rubbish in the table of exemplars. Whatever it is: text is lines of the
 * form that the formats have, and protobuf is messages whose lengths fit, whose texts are UTF-8, and whose native buckets
 * sum to the count.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/export/prom_exposition.h"
#include "tailwatch/stamp/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void demand(bool held) {
    if (!held) abort();
}

/* ---- the input ---- */

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint64_t take(input *in, size_t n) {
    uint64_t value = 0;
    for (; n > 0 && in->at < in->end; n--) value = value << 8 | *in->at++;
    return value;
}

static const char *take_text(input *in, size_t *len) {
    const size_t wanted = take(in, 1), there = (size_t)(in->end - in->at);
    const char *text = (const char *)in->at;
    *len = wanted < there ? wanted : there;
    in->at += *len;
    return text;
}

/* Up to a day, over all octaves. */
static uint64_t take_time(input *in) { return take(in, 6) >> take(in, 1) % 40; }

static void request(tw_segment *g, input *in, uint64_t now) {
    tw_stream s;
    size_t model_len, route_len, trace_len;
    const char *model = take_text(in, &model_len), *route = take_text(in, &route_len), *trace = take_text(in, &trace_len);
    tw_stream_open(&s, g, now, now, 0, TW_ARRIVAL_ASGI);
    tw_stream_label(&s, tw_segment_label(g, model, model_len, route, route_len));
    tw_stream_identify(&s, "", 0, trace, trace_len);
    tw_stream_exemplify(&s);
    for (uint64_t tokens = take(in, 1) % 8; tokens > 0; tokens--) tw_stream_token(&s, now += take_time(in), 1, 0);
    tw_stream_close(&s, now, (tw_end)(take(in, 1) % 4));
}

static void rubbish(tw_segment *g, input *in) {
    uint64_t *words = (uint64_t *)&g->exemplars[take(in, 1) % TW_EXEMPLARS];
    for (size_t i = 0; i < sizeof(tw_exemplar) / sizeof *words; i++) words[i] = take(in, 1 + take(in, 1) % 8);
}

/* ---- text ---- */

static const char *name_end(const char *at) {
    while ((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '_') at++;
    return at;
}

/* Behind the closing quote. */
static const char *value_end(const char *at) {
    for (; *at != '"'; at++) {
        demand(*at != '\n' && *at != '\0');
        if (*at == '\\') demand(*++at == '\\' || *at == '"' || *at == 'n');
    }
    return at + 1;
}

static const char *labels_end(const char *at) {
    demand(*at++ == '{');
    for (;; at++) {
        const char *name = at;
        at = name_end(at);
        demand(at > name && at[0] == '=' && at[1] == '"');
        at = value_end(at + 2);
        if (*at == '}') return at + 1;
        demand(*at == ',');
    }
}

static const char *number_end(const char *at) {
    const char *start = at;
    while ((*at >= '0' && *at <= '9') || *at == '.') at++;
    demand(at > start);
    return at;
}

static const char *sample_end(const char *at, bool openmetrics) {
    const char *name = at;
    at = name_end(at);
    demand(at > name);
    if (*at == '{') at = labels_end(at);
    demand(*at == ' ');
    at = number_end(at + 1);
    if (openmetrics && strncmp(at, " # ", 3) == 0) {
        at = labels_end(at + 3);
        demand(*at == ' ');
        at = number_end(at + 1);
        demand(*at == ' ');
        at = number_end(at + 1);
    }
    return at;
}

static void check_text(const char *text, bool openmetrics) {
    for (const char *at = text; *at; at++) {
        at = *at == '#' ? at + strcspn(at, "\n") : sample_end(at, openmetrics);
        demand(*at == '\n');
    }
}

/* ---- protobuf ---- */

typedef struct field {
    uint64_t number, value;    /* value: of a varint, or the length */
    const uint8_t *body;
} field;

static uint64_t varint(input *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        demand(in->at < in->end);
        const uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    abort();
}

static bool next_field(input *in, field *out) {
    if (in->at == in->end) return false;
    const uint64_t tag = varint(in);
    const unsigned wire = tag & 7;
    out->number = tag >> 3;
    demand(out->number > 0 && (wire == 0 || wire == 1 || wire == 2));
    out->value = wire == 1 ? 8 : varint(in);
    out->body = in->at;
    if (wire != 0) {
        demand((uint64_t)(in->end - in->at) >= out->value);
        in->at += out->value;
    }
    return true;
}

static input inside(const field *of) { return (input){of->body, of->body + of->value}; }

static void check_utf8(const field *text) {
    for (const uint8_t *at = text->body, *end = at + text->value; at < end;) {
        const int more = *at < 0x80 ? 0 : *at >= 0xc2 && *at < 0xe0 ? 1 : *at >= 0xe0 && *at < 0xf0 ? 2 : *at >= 0xf0 && *at < 0xf5 ? 3 : -1;
        demand(more >= 0 && end - at > more);
        for (int i = 1; i <= more; i++) demand((at[i] & 0xc0) == 0x80);
        at += more + 1;
    }
}

static void check_pair(const field *pair) {
    input in = inside(pair);
    for (field f; next_field(&in, &f);) check_utf8(&f);
}

static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static uint64_t sum_of_deltas(const field *deltas, uint64_t *buckets) {
    input in = inside(deltas);
    uint64_t sum = 0;
    for (int64_t count = 0; in.at < in.end; ++*buckets) {
        count += unzigzag(varint(&in));
        demand(count >= 0);
        sum += (uint64_t)count;
    }
    return sum;
}

static void check_histogram(const field *histogram) {
    input in = inside(histogram);
    uint64_t count = 0, native = 0, buckets = 0, spans = 0, below = 0;
    for (field f; next_field(&in, &f);) {
        field part;
        input of = inside(&f);
        if (f.number == 1) count = f.value;
        if (f.number == 7) native += f.value;
        if (f.number == 13) native += sum_of_deltas(&f, &buckets);
        while (f.number == 12 && next_field(&of, &part)) spans += part.number == 2 ? part.value : 0;
        while (f.number == 3 && next_field(&of, &part))
            if (part.number == 1) demand(part.value >= below), below = part.value;
    }
    demand(native == count && buckets == spans && (below == 0 || below == count));
}

static void check_metric(const field *metric) {
    input in = inside(metric);
    for (field f; next_field(&in, &f);) {
        if (f.number == 1) check_pair(&f);
        else if (f.number == 7) check_histogram(&f);
        else demand(f.number == 2 || f.number == 3);
    }
}

static void check_proto(const tw_buffer *b) {
    input in = {(const uint8_t *)b->data, (const uint8_t *)b->data + b->length};
    while (in.at < in.end) {
        const uint64_t length = varint(&in);
        demand((uint64_t)(in.end - in.at) >= length);
        input family = {in.at, in.at + length};
        in.at += length;
        int metrics = 0;
        for (field f; next_field(&family, &f);) {
            if (f.number == 4) metrics++, check_metric(&f);
            else if (f.number != 3) check_utf8(&f);
        }
        demand(metrics > 0);
    }
}

/* ---- all ---- */

static void check_formats(const tw_snapshot *s, const char *slo) {
    const tw_metrics_info info = {
        .version = "1", .python = "3", .slo = slo, .registry_seconds = 0.5, .goodput_window_s = 60};
    for (int format = 0; format < TW_FORMATS; format++) {
        tw_buffer b = {0};
        demand(tw_exposition_render(s, &info, format, &b) == 0);
        if (format <= TW_FORMAT_OPENMETRICS) {
            tw_buffer_put(&b, "", 1);
            check_text(b.data, format == TW_FORMAT_OPENMETRICS);
        } else {
            check_proto(&b);
        }
        tw_buffer_free(&b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static tw_segment *g;
    static const tw_slo slo = {500000000, 0, 200000000, 0, 990000};
    static const char *const slos[] = {"", "ttft<=2s", "\"\\\n{}", "\xc3\xa9"};
    input in = {bytes, bytes + size};
    tw_snapshot *s;
    if (g == NULL) demand(tw_segment_create(&g, "api", 8, false, &slo, 0) == 0);
    tw_segment_reset(g);
    const uint64_t now = tw_now_ns();
    const char *text = slos[take(&in, 1) % 4];
    while (in.at < in.end) {
        if (take(&in, 1) % 8 == 0) rubbish(g, &in);
        else request(g, &in, now);
    }
    demand(tw_snapshot_take(&s, (const tw_segment *const *)&g, 1) == 0);
    check_formats(s, text);
    tw_snapshot_free(s);
    return 0;
}
