/* Metrics as text. One table of families; each family names the function that writes its samples.
 *
 * Numbers are formatted here, from integers: no locale, no floating point, and a sum of nanoseconds is
 * written as the exact decimal it is. A histogram's lines share one prefix, which is written once and copied.
 */
#include "tailwatch/exposition.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "give_way.h"
#include "tw_malloc.h"

__extension__ typedef unsigned __int128 u128;

#define NUMBER_ROOM 64   /* the longest number: 39 digits, a point, 9 digits */
#define BOUND_ROOM 32    /* a bound in seconds: 11 digits, a point, 9 digits */
#define RATIO_DIGITS 17  /* what a double needs to come back unchanged */
#define BUFFER_START (64u * 1024u)

typedef enum kind { COUNTER, GAUGE, HISTOGRAM, INFO } kind;

typedef struct bound_texts {
    char text[TW_BOUNDS_MAX][BOUND_ROOM];
    size_t length[TW_BOUNDS_MAX];
} bound_texts;

typedef struct renderer {
    const tw_snapshot *snapshot;
    const tw_exposition_info *info;
    bool openmetrics;
    tw_buffer *out;
    tw_window window;
    uint32_t labels;             /* of the sample being written */
    size_t line, labels_at;      /* where it starts, and its labels */
    bound_texts bounds[TW_LAYOUTS];
    uint64_t gave_way_ns;        /* when it last let others have the core */
} renderer;

typedef struct family family;
struct family {
    const char *name;            /* as OpenMetrics has it: a counter without _total */
    kind kind;
    void (*samples)(renderer *, const family *);
    size_t of;                   /* which metric, field or member: what `samples` makes of it */
    const char *help;
};

/* ---- the buffer ------------------------------------------------------------------------------------- */

void tw_buffer_free(tw_buffer *b) {
    tw_free(b->data);
    memset(b, 0, sizeof *b);
}

static bool grow(tw_buffer *b, size_t more) {
    size_t capacity = b->capacity ? b->capacity : BUFFER_START;
    while (capacity - b->length < more) {
        if (capacity > SIZE_MAX / 2) return false;
        capacity *= 2;
    }
    char *data = tw_realloc(b->data, capacity);
    if (!data) return false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

static bool reserve(tw_buffer *b, size_t more) {
    if (b->failed) return false;
    if (b->capacity - b->length >= more || grow(b, more)) return true;
    b->failed = ENOMEM;
    return false;
}

static void put_bytes(tw_buffer *b, const char *bytes, size_t n) {
    if (!reserve(b, n)) return;
    memcpy(b->data + b->length, bytes, n);
    b->length += n;
}

static void put(tw_buffer *b, const char *text) { put_bytes(b, text, strlen(text)); }

/* A label value: backslash, quote and newline are the three that the formats escape. */
static void put_escaped(tw_buffer *b, const char *text) {
    size_t plain;
    for (;; text += plain + 1) {
        plain = strcspn(text, "\\\"\n");
        put_bytes(b, text, plain);
        if (!text[plain]) return;
        put(b, text[plain] == '\\' ? "\\\\" : text[plain] == '"' ? "\\\"" : "\\n");
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------- */

static const char DIGIT_PAIRS[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

static size_t format_count(char *at, uint64_t value) {
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
    if (value < chunk) return format_count(at, (uint64_t)value);
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
    size_t n = format_count(at, whole), significant = whole ? n : 0;
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

static const char *suffix_of(const family *f) { return f->kind == COUNTER ? "_total" : f->kind == INFO ? "_info" : ""; }

/* Text 0.0.4 knows neither the family name without its suffix nor the type info. */
static void put_header(renderer *r, const family *f, const char *keyword, const char *value) {
    put(r->out, keyword);
    put(r->out, f->name);
    if (!r->openmetrics) put(r->out, suffix_of(f));
    put(r->out, " ");
    put(r->out, value);
    put(r->out, "\n");
}

static const char *unit_of(const char *name) {
    static const char *const units[] = {"seconds", "bytes"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i]);
        if (length > n && name[length - n - 1] == '_' && !strcmp(name + length - n, units[i])) return units[i];
    }
    return NULL;
}

static void put_headers(renderer *r, const family *f) {
    static const char *const types[] = {"counter", "gauge", "histogram", "info"};
    put_header(r, f, "# HELP ", f->help);
    put_header(r, f, "# TYPE ", f->kind == INFO && !r->openmetrics ? "gauge" : types[f->kind]);
    if (r->openmetrics && unit_of(f->name)) put_header(r, f, "# UNIT ", unit_of(f->name));
}

static void open_line(renderer *r, const family *f, const char *suffix) {
    r->line = r->out->length;
    r->labels = 0;
    put(r->out, f->name);
    put(r->out, suffix);
    r->labels_at = r->out->length;
}

static void open_sample(renderer *r, const family *f) { open_line(r, f, suffix_of(f)); }

static void label(renderer *r, const char *name, const char *value) {
    put(r->out, r->labels++ ? "," : "{");
    put(r->out, name);
    put(r->out, "=\"");
    put_escaped(r->out, value ? value : "");
    put(r->out, "\"");
}

static void label_process(renderer *r, uint32_t process) {
    const tw_snapshot_process *all = r->snapshot->process;
    char text[TW_ROLE_WORDS * 8 + 24];
    size_t n = strlen(all[process].role);
    memcpy(text, all[process].role, n);
    text[n++] = '-';
    n += format_count(text + n, all[process].index);
    text[n] = '\0';
    label(r, "process", text);
}

static void close_number(renderer *r, const char *number, size_t n) {
    put(r->out, r->labels ? "} " : " ");
    put_bytes(r->out, number, n);
    put(r->out, "\n");
}

static void close_count(renderer *r, uint64_t value) {
    char number[NUMBER_ROOM];
    close_number(r, number, format_count(number, value));
}

static void close_seconds(renderer *r, u128 ns) {
    char number[NUMBER_ROOM];
    close_number(r, number, format_seconds(number, ns));
}

static void close_ratio(renderer *r, uint64_t numerator, uint64_t denominator) {
    char number[NUMBER_ROOM];
    close_number(r, number, format_ratio(number, numerator, denominator));
}

/* ---- histograms ------------------------------------------------------------------------------------- */

static void format_bounds(renderer *r) {
    for (int k = 0; k < TW_LAYOUTS; k++) {
        const tw_layout *layout = tw_layout_of(k);
        for (uint32_t i = 0; i < layout->bounds; i++)
            r->bounds[k].length[i] = format_seconds(r->bounds[k].text[i], layout->bound_ns[i]);
    }
}

static const bound_texts *bounds_of(const renderer *r, const tw_layout *layout) {
    int k = 0;
    while (tw_layout_of(k) != layout) k++;
    return &r->bounds[k];
}

static void open_histogram(renderer *r, const family *f) { open_line(r, f, "_bucket"); }

/* One bucket line into room already reserved: the prefix stands at `line`, `at` is where this one goes. */
static char *put_bucket(char *at, const char *line, size_t prefix, const char *bound, size_t bound_length, uint64_t count) {
    memmove(at, line, prefix);
    at += prefix;
    memcpy(at, bound, bound_length);
    at += bound_length;
    memcpy(at, "\"} ", 3);
    at += 3 + format_count(at + 3, count);
    *at++ = '\n';
    return at;
}

/* Cumulative counts in one pass over the slots; equal to tw_counts_below at each bound. */
static void put_buckets(renderer *r, const tw_counts *c, const tw_layout *layout) {
    const bound_texts *texts = bounds_of(r, layout);
    size_t prefix = r->out->length - r->line;
    if (!reserve(r->out, (layout->bounds + 1) * (prefix + BOUND_ROOM + NUMBER_ROOM))) return;
    char *line = r->out->data + r->line, *at = line;
    uint64_t below = 0;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < layout->bounds; i++) {
        for (; c && slot <= layout->bound_slot[i]; slot++) below += c->slot[slot];
        at = put_bucket(at, line, prefix, texts->text[i], texts->length[i], below);
    }
    at = put_bucket(at, line, prefix, "+Inf", 4, c ? c->count : 0);
    r->out->length = (size_t)(at - r->out->data);
}

/* `_count` or `_sum`, with the labels that stand at labels_at in the first bucket line. */
static void open_total(renderer *r, const family *f, const char *suffix, size_t labels_length) {
    put(r->out, f->name);
    put(r->out, suffix);
    if (!reserve(r->out, labels_length)) return;
    memcpy(r->out->data + r->out->length, r->out->data + r->labels_at, labels_length);
    r->out->length += labels_length;
}

static void close_histogram(renderer *r, const family *f, const tw_counts *c, const tw_layout *layout) {
    size_t labels_length = r->out->length - r->labels_at;
    put(r->out, r->labels ? ",le=\"" : "{le=\"");
    put_buckets(r, c, layout);
    open_total(r, f, "_count", labels_length);
    close_count(r, c ? c->count : 0);
    open_total(r, f, "_sum", labels_length);
    close_seconds(r, c ? (u128)c->sum_high << 64 | c->sum_low : 0);
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

static void series_histogram(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) {
        const tw_snapshot_series *s = &r->snapshot->series[i];
        tw_give_way(&r->gave_way_ns);
        if (!in_use(s)) continue;
        open_histogram(r, f);
        label_series(r, s);
        close_histogram(r, f, s->metric[f->of], tw_metric_layout((int)f->of));
    }
}

static void series_requests(renderer *r, const family *f) {
    for (uint32_t i = 0; i < r->snapshot->series_count; i++) {
        const tw_snapshot_series *s = &r->snapshot->series[i];
        for (int reason = 0; in_use(s) && reason < TW_REASONS; reason++) {
            if (!s->reasons[reason] && reason != TW_REASON_GOOD) continue;
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
        open_histogram(r, f);
        label(r, "stage", stages[i]);
        close_histogram(r, f, r->snapshot->wait[i], tw_metric_layout(TW_METRIC_QUEUE_PROXY + i));
    }
}

static void wait_histogram(renderer *r, const family *f) {
    open_histogram(r, f);
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
            open_histogram(r, f);
            label(r, "generation", generation_name(cause));
            label_process(r, p);
            close_histogram(r, f, c, tw_metric_layout(TW_METRIC_PAUSE + cause));
        }
    }
}

static void process_policy_histogram(renderer *r, const family *f) {
    for (uint32_t p = 0; p < r->snapshot->process_count; p++) {
        open_histogram(r, f);
        label_process(r, p);
        close_histogram(r, f, r->snapshot->process[p].pauses[TW_CAUSE_POLICY],
                        tw_metric_layout(TW_METRIC_PAUSE + TW_CAUSE_POLICY));
    }
}

/* One member of tw_pause_totals for each process and cause; `of` is its offset. */
static void process_gc_totals(renderer *r, const family *f) {
    bool seconds = unit_of(f->name) != NULL;
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
            open_histogram(r, f);
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
            if (unit_of(f->name)) close_seconds(r, value);
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

/* ---- the table -------------------------------------------------------------------------------------- */

#define SNAPSHOT(member) offsetof(tw_snapshot, member)
#define LOST(field) offsetof(tw_snapshot_lost, field)
#define TOTALS(member) offsetof(tw_pause_totals, member)

static const family FAMILIES[] = {
    {"tailwatch_time_to_first_token_seconds", HISTOGRAM, series_histogram, TW_METRIC_TTFT,
     "From a request's arrival to its first generated token."},
    {"tailwatch_inter_token_latency_seconds", HISTOGRAM, series_histogram, TW_METRIC_ITL,
     "Gap between two token-bearing messages of a stream, as they are handed to the server."},
    {"tailwatch_inter_token_latency_without_gc_seconds", HISTOGRAM, series_histogram, TW_METRIC_ITL_WITHOUT_GC,
     "The same gaps without their late part: an estimate of what they would be if nothing had paused."},
    {"tailwatch_time_per_output_token_seconds", HISTOGRAM, series_histogram, TW_METRIC_TPOT,
     "(Last token - first token) / (output tokens - 1), finished requests."},
    {"tailwatch_e2e_request_latency_seconds", HISTOGRAM, series_histogram, TW_METRIC_E2E,
     "From a request's arrival to its last byte, finished requests."},
    {"tailwatch_queue_seconds", HISTOGRAM, queue_stages, 0,
     "What a request waited before the app saw it: behind a proxy, and accepted by the kernel but not read."},
    {"tailwatch_abandoned_wait_seconds", HISTOGRAM, wait_histogram, TW_METRIC_ABANDONED_WAIT,
     "What clients waited that went away before their first token."},
    {"tailwatch_send_wait_seconds", HISTOGRAM, wait_histogram, TW_METRIC_SEND_WAIT,
     "How long sends were blocked by clients that do not read."},
    {"tailwatch_requests", COUNTER, series_requests, 0,
     "Requests ended, by verdict: good and miss make the attainment, excluded is counted beside it."},
    {"tailwatch_requests_good", COUNTER, requests_good, 0, "Requests finished without error within every bound of the SLO."},
    {"tailwatch_goodput_requests_per_second", GAUGE, window_goodput, 0,
     "Good requests per second over the rolling window."},
    {"tailwatch_throughput_requests_per_second", GAUGE, window_throughput, 0,
     "Finished requests per second over the rolling window."},
    {"tailwatch_slo_attainment_ratio", GAUGE, window_attainment, 0,
     "good / (good + miss) over the rolling window; absent where nothing was judged."},
    {"tailwatch_requests_in_flight", GAUGE, snapshot_count, SNAPSHOT(in_flight), "Requests open now."},
    {"tailwatch_output_tokens", COUNTER, series_tokens, 0, "Output tokens of all choices."},
    {"tailwatch_fluidity_deadlines", COUNTER, snapshot_count, SNAPSHOT(deadlines_due),
     "Token deadlines that came due, slack carried forward, reset after a miss."},
    {"tailwatch_fluidity_deadlines_met", COUNTER, snapshot_count, SNAPSHOT(deadlines_met), "Token deadlines that were met."},
    {"python_gc_duration_seconds", HISTOGRAM, process_gc_histogram, 0,
     "Length of garbage collections, process time. Those inside our own passes are in tailwatch_policy_pause_seconds."},
    {"tailwatch_policy_pause_seconds", HISTOGRAM, process_policy_histogram, 0,
     "Length of tailwatch's own freeze and sweep passes, process time."},
    {"tailwatch_gc_short_pauses_seconds", COUNTER, process_gc_totals, TOTALS(short_ns),
     "Process time in pauses under 50 us, which are charged to no stream."},
    {"tailwatch_gc_callbacks_seconds", COUNTER, process_gc_totals, TOTALS(callbacks_ns),
     "Part of the pauses that was spent in other people's gc.callbacks."},
    {"tailwatch_gc_cpu_seconds", COUNTER, process_gc_totals, TOTALS(cpu_ns),
     "Thread CPU time of collections, where it is measured (generations 1 and 2)."},
    {"tailwatch_gc_collected_objects", COUNTER, process_gc_totals, TOTALS(collected), "Objects that collections freed."},
    {"tailwatch_gc_uncollectable_objects", COUNTER, process_gc_totals, TOTALS(uncollectable),
     "Objects that collections found and could not free."},
    {"tailwatch_stream_overlap_seconds", COUNTER, stream_seconds, LOST(overlap_ns),
     "Stream time (summed over streams) that coincided with pauses of at least 50 us, by the role of who paused: an upper bound of their blame."},
    {"tailwatch_stream_late_seconds", COUNTER, stream_seconds, LOST(late_ns),
     "Stream time (summed over streams) that pauses cost beyond each stream's typical gap, by the role of who paused: an estimate."},
    {"tailwatch_arrivals", COUNTER, arrivals, 0, "Requests by where their arrival time came from."},
    {"tailwatch_dropped_events", COUNTER, drops, 0, "What could not be kept or measured."},
    {"tailwatch_label_overflow", COUNTER, snapshot_count, SNAPSHOT(label_overflow),
     "Requests whose labels became \"other\" because max_label_sets was reached."},
    {"tailwatch_internal_errors", COUNTER, errors, 0, "Errors inside tailwatch, which were kept from the host."},
    {"tailwatch_sse_fallback", COUNTER, sse_fallbacks, 0,
     "Times that the fast SSE path went back to the server's own serialisation, by shape of the frame."},
    {"tailwatch_memory_bytes", GAUGE, memory, 0, "Memory that tailwatch holds, all processes."},
    {"tailwatch_registry_render_seconds", GAUGE, registry_render, 0,
     "What rendering the host's own Prometheus registry took last."},
    {"tailwatch_build", INFO, build_info, 0, "Versions of tailwatch and of the interpreter."},
};

#define STEP(member) offsetof(tw_snapshot_step, member)

/* Written where a process has made steps. */
static const family STEP_FAMILIES[] = {
    {"tailwatch_step_seconds", HISTOGRAM, step_histogram, TW_STEP_INSIDE,
     "Length of an engine's steps (iterations), from begin to end on the host."},
    {"tailwatch_step_host_gap_seconds", HISTOGRAM, step_histogram, TW_STEP_GAP,
     "From the end of a step to the begin of the next, where that end left requests with work to do."},
    {"tailwatch_step_unknown_gap_seconds", COUNTER, step_totals, STEP(unknown_ns),
     "Time between steps of which nobody said whether work was waiting (no waiting=): idle or a host gap."},
    {"tailwatch_step_requests", COUNTER, step_totals, STEP(batch), "Requests in the steps' batches, summed over the steps."},
    {"tailwatch_step_overlap_seconds", COUNTER, step_seconds, STEP(overlap_ns),
     "Time of steps, and of host gaps, that coincided with the process's pauses of at least 50 us: an upper bound of their blame."},
    {"tailwatch_step_request_overlap_seconds", COUNTER, step_seconds, STEP(request_ns),
     "tailwatch_step_overlap_seconds_total times the requests in the batch, or left waiting at the gap: an upper bound."},
};

static void prepare(renderer *r) {
    uint32_t window_s = r->info->goodput_window_s;
    if (window_s < 1) window_s = 1;
    if (window_s > TW_SECONDS) window_s = TW_SECONDS;
    tw_snapshot_window(r->snapshot, window_s, &r->window);
    if (!r->window.seconds) r->window.seconds = 1;
    format_bounds(r);
}

static void put_families(renderer *r, const family *families, size_t n) {
    for (size_t i = 0; i < n && !r->out->failed; i++) {
        put_headers(r, &families[i]);
        families[i].samples(r, &families[i]);
    }
}

int tw_exposition_render(const tw_snapshot *s, const tw_exposition_info *info, int format, tw_buffer *out) {
    renderer r = {.snapshot = s, .info = info, .openmetrics = format == TW_FORMAT_OPENMETRICS, .out = out};
    prepare(&r);
    put_families(&r, FAMILIES, sizeof FAMILIES / sizeof *FAMILIES);
    if (any_steps(&r)) put_families(&r, STEP_FAMILIES, sizeof STEP_FAMILIES / sizeof *STEP_FAMILIES);
    return out->failed;
}
