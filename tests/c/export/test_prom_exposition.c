/* The metrics: families, labels, numbers, and what happens when memory runs out.
 *
 * The renderers are compiled into this file, so that their allocations can be made to fail. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

static size_t allocations, fail_at; /* fail_at: number of the allocation that fails, 0 = none */

static void *tw_realloc(void *memory, size_t size) { return ++allocations == fail_at ? NULL : realloc(memory, size); }
static void tw_free(void *memory) { free(memory); }
#define TW_MALLOC_INCLUDE <stddef.h>
#include "../../csrc/base/buffer.c"
#include "../../csrc/export/prom_text.c"
#include "../../csrc/export/prom_protobuf.c"
#include "../../csrc/export/prom_exposition.c"

#include "segment_tools.h"
#include "tw_test.h"

static const tw_metrics_info INFO_PLAIN = {
    .version = "1.2.3", .python = "3.11.7", .slo = "ttft<=2s@99%", .extra_bytes = 1000,
    .registry_seconds = -1, .goodput_window_s = 60};

/* ---- a snapshot made by hand ------------------------------------------------------------------------ */

typedef struct fixture {
    tw_snapshot snapshot;
    tw_snapshot_series series[2];
    tw_snapshot_process process[3];
    tw_second seconds[TW_SECONDS];
    tw_counts ttft, itl, gc2, policy;
} fixture;

static void record(tw_counts *c, const tw_layout *layout, uint64_t ns) {
    c->slot[tw_slot_of(layout, ns)]++;
    c->count++;
    c->sum_low += ns;
    c->sum_high += c->sum_low < ns;
}

static fixture *make_fixture(void) {
    fixture *f = calloc(1, sizeof *f);
    TW_REQUIRE(f != NULL);
    f->snapshot.series = f->series;
    f->snapshot.series_count = 2;
    f->snapshot.process = f->process;
    f->snapshot.process_count = 1;
    f->snapshot.seconds = f->seconds;
    f->snapshot.taken.monotonic_ns = 5000 * TW_NS_PER_SECOND;
    f->snapshot.window_ns = 4000 * TW_NS_PER_SECOND;
    strcpy(f->series[0].model, "llama");
    strcpy(f->series[0].route, "/v1/chat");
    strcpy(f->series[1].model, "other");
    strcpy(f->series[1].route, "other");
    strcpy(f->process[0].role, "api");
    f->snapshot.lost_count = 1;
    strcpy(f->snapshot.lost[0].role, "api");
    tw_counts_init(&f->ttft);
    tw_counts_init(&f->itl);
    tw_counts_init(&f->gc2);
    tw_counts_init(&f->policy);
    return tw_test_own(free, f);
}

static char *render(const tw_snapshot *s, const tw_metrics_info *info, int format) {
    tw_buffer b = {0};
    TW_REQUIRE(tw_exposition_render(s, info, format, &b) == 0);
    char *text = malloc(b.length + 2);
    TW_REQUIRE(text != NULL);
    text[0] = '\n'; /* so that the first line is found like any other */
    memcpy(text + 1, b.data, b.length);
    text[b.length + 1] = '\0';
    tw_buffer_free(&b);
    return tw_test_own(free, text);
}

static bool has_line(const char *text, const char *line) {
    char wanted[1024];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    if (strstr(text, wanted)) return true;
    fprintf(stderr, "no line: %s\n", line);
    return false;
}

#define CHECK_LINE(line) TW_CHECK(has_line(text, line))
#define LLAMA "model_name=\"llama\",route=\"/v1/chat\"" /* the first label set */
#define DECODE "process=\"engine-0\",step=\"decode\""

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

static char *render_plain(fixture *f, int format) { return render(&f->snapshot, &INFO_PLAIN, format); }

/* ---- families --------------------------------------------------------------------------------------- */

TW_TEST(every_family_has_one_help_and_one_type) {
    fixture *f = make_fixture();
    size_t n;
    const tw_instrument *all = tw_instruments(&n);
    for (int format = 0; format <= TW_FORMAT_OPENMETRICS; format++) {
        char *text = render_plain(f, format);
        for (size_t i = 0; i < n; i++) {
            if (!all[i].prometheus) continue;
            char line[128];
            const char *suffix = format == TW_FORMAT_TEXT ? tw_suffix_of(&all[i]) : "";
            const size_t written = all[i].use == TW_USE_ALWAYS;
            snprintf(line, sizeof line, "\n# TYPE %s%s ", all[i].prometheus, suffix);
            TW_CHECK_EQ(written, count_of(text, line));
            snprintf(line, sizeof line, "\n# HELP %s%s ", all[i].prometheus, suffix);
            TW_CHECK_EQ(written, count_of(text, line));
        }
        TW_CHECK_EQ('\n', text[strlen(text) - 1]);
        TW_CHECK_EQ(0, count_of(text, "# EOF"));
        TW_CHECK_EQ(0, count_of(text, "\n\n"));
    }
}

TW_TEST(types_follow_the_format) {
    fixture *f = make_fixture();
    char *text = render_plain(f, TW_FORMAT_TEXT);
    CHECK_LINE("# TYPE tailwatch_requests_total counter");
    CHECK_LINE("# TYPE tailwatch_build_info gauge");
    TW_CHECK_EQ(0, count_of(text, "# UNIT"));
    CHECK_LINE("tailwatch_build_info{version=\"1.2.3\",python=\"3.11.7\"} 1");
    text = render_plain(f, TW_FORMAT_OPENMETRICS);
    CHECK_LINE("# TYPE tailwatch_requests counter");
    CHECK_LINE("# TYPE tailwatch_build info");
    CHECK_LINE("# UNIT tailwatch_stream_delay_seconds seconds");
    CHECK_LINE("# UNIT tailwatch_memory_bytes bytes");
    TW_CHECK_EQ(0, count_of(text, "# UNIT tailwatch_goodput_requests_per_second"));
    CHECK_LINE("tailwatch_build_info{version=\"1.2.3\",python=\"3.11.7\"} 1");
    CHECK_LINE("tailwatch_requests_good_total{slo=\"ttft<=2s@99%\"} 0");
}

TW_TEST(an_unused_label_set_is_not_shown) {
    fixture *f = make_fixture();
    f->series[0].reasons[TW_REASON_429] = 3;
    f->series[0].output_tokens = 12;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(0, count_of(text, "route=\"other\""));
    CHECK_LINE("tailwatch_requests_total{" LLAMA ",outcome=\"good\",reason=\"good\"} 0");
    CHECK_LINE("tailwatch_requests_total{" LLAMA ",outcome=\"miss\",reason=\"429\"} 3");
    CHECK_LINE("tailwatch_requests_total{" LLAMA ",outcome=\"miss\",reason=\"late\"} 0"); /* for rate() */
    TW_CHECK_EQ(TW_REASONS, count_of(text, "\ntailwatch_requests_total{"));
    CHECK_LINE("tailwatch_output_tokens_total{" LLAMA "} 12");
    CHECK_LINE("tailwatch_time_per_output_token_seconds_bucket{" LLAMA ",le=\"+Inf\"} 0");
    CHECK_LINE("tailwatch_time_per_output_token_seconds_sum{" LLAMA "} 0.0");
}

TW_TEST(the_window_gives_rates_and_attainment) {
    fixture *f = make_fixture();
    char *text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(0, count_of(text, "\ntailwatch_slo_attainment_ratio "));
    CHECK_LINE("tailwatch_goodput_requests_per_second 0.0");
    tw_second *second = &f->seconds[TW_SECONDS - 1]; /* ascending: the newest is last */
    second->second = 4990 + 1;
    second->good_miss = 19 | UINT64_C(1) << 32;
    second->excluded_finished = 5 | UINT64_C(21) << 32;
    tw_window window;
    tw_snapshot_window(&f->snapshot, 60, &window);
    TW_CHECK_EQ(19, window.good);
    TW_CHECK_EQ(60, window.seconds);
    text = render_plain(f, TW_FORMAT_TEXT);
    CHECK_LINE("tailwatch_slo_attainment_ratio 0.95");
    CHECK_LINE("tailwatch_goodput_requests_per_second 0.31666666666666666");
    CHECK_LINE("tailwatch_throughput_requests_per_second 0.35");
}

/* ---- histograms ------------------------------------------------------------------------------------- */

static void check_buckets(const char *text, const char *name, const char *labels, const tw_counts *c,
                          const tw_layout *layout) {
    char line[256];
    for (uint32_t i = 0; i < layout->bounds; i++) {
        char bound[NUMBER_ROOM];
        bound[format_seconds(bound, layout->bound_ns[i])] = '\0';
        const uint64_t below = counts_below(c, layout, i);
        snprintf(line, sizeof line, "%s_bucket{%s,le=\"%s\"} %" PRIu64, name, labels, bound, below);
        CHECK_LINE(line);
    }
    snprintf(line, sizeof line, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64, name, labels, c->count);
    CHECK_LINE(line);
    snprintf(line, sizeof line, "%s_count{%s} %" PRIu64, name, labels, c->count);
    CHECK_LINE(line);
}

TW_TEST(buckets_are_cumulative_and_exact_at_their_bounds) {
    fixture *f = make_fixture();
    const tw_layout *layout = tw_metric_layout(TW_METRIC_TTFT);
    uint64_t state = 3;
    for (uint32_t i = 0; i < layout->bounds; i++) {
        record(&f->ttft, layout, layout->bound_ns[i]);
        record(&f->ttft, layout, layout->bound_ns[i] + 1);
    }
    for (int i = 0; i < 1000; i++)
        record(&f->ttft, layout, tw_test_random_below(&state, UINT64_C(2000) * TW_NS_PER_SECOND));
    f->series[0].metric[TW_METRIC_TTFT] = &f->ttft;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    check_buckets(text, "tailwatch_time_to_first_token_seconds", LLAMA, &f->ttft, layout);
}

TW_TEST(bounds_and_sums_read_as_prometheus_writes_them) {
    fixture *f = make_fixture();
    record(&f->itl, tw_metric_layout(TW_METRIC_ITL), 7500000);
    f->itl.sum_high = 1;
    f->itl.sum_low = 0;
    f->series[0].metric[TW_METRIC_ITL] = &f->itl;
    record(&f->ttft, tw_metric_layout(TW_METRIC_QUEUE_ACCEPT), 1000);
    f->snapshot.wait[TW_METRIC_QUEUE_ACCEPT - TW_METRIC_QUEUE_PROXY] = &f->ttft;
    char *text = render_plain(f, TW_FORMAT_OPENMETRICS);
    static const char *const bounds[] = {"0.0005", "0.0075", "0.01", "1.0", "10.0"};
    for (int i = 0; i < 5; i++) {
        char line[256];
        snprintf(line, sizeof line, "tailwatch_inter_token_latency_seconds_bucket{" LLAMA ",le=\"%s\"} %d",
                 bounds[i], i > 0);
        CHECK_LINE(line);
    }
    CHECK_LINE("tailwatch_inter_token_latency_seconds_sum{" LLAMA "} 18446744073.709551616");
    CHECK_LINE("tailwatch_send_wait_seconds_bucket{le=\"+Inf\"} 0");
    CHECK_LINE("tailwatch_send_wait_seconds_count 0");
    CHECK_LINE("tailwatch_queue_seconds_count{stage=\"proxy\"} 0");
    CHECK_LINE("tailwatch_queue_seconds_count{stage=\"accept\"} 1");
}

TW_TEST(label_values_are_escaped) {
    fixture *f = make_fixture();
    strcpy(f->series[0].model, "a\"b\\c\nd");
    strcpy(f->series[0].route, "\\");
    f->series[0].output_tokens = 1;
    tw_metrics_info info = INFO_PLAIN;
    info.slo = "\"\"\n\\";
    info.version = NULL;
    info.python = "\xc3\xa9";
    char *text = render(&f->snapshot, &info, TW_FORMAT_TEXT);
    CHECK_LINE("tailwatch_output_tokens_total{model_name=\"a\\\"b\\\\c\\nd\",route=\"\\\\\"} 1");
    CHECK_LINE("tailwatch_requests_good_total{slo=\"\\\"\\\"\\n\\\\\"} 0");
    CHECK_LINE("tailwatch_build_info{version=\"\",python=\"\xc3\xa9\"} 1");
    CHECK_LINE("tailwatch_time_to_first_token_seconds_count{model_name=\"a\\\"b\\\\c\\nd\",route=\"\\\\\"} 0");
}

TW_TEST(a_process_is_its_role_and_index) {
    fixture *f = make_fixture();
    strcpy(f->process[1].role, "engine");
    strcpy(f->process[2].role, "api");
    f->process[2].index = 1;
    f->snapshot.process_count = 3;
    for (uint64_t i = 0; i < 3; i++) f->process[i].pause[TW_CAUSE_GC2].collected = 10 + i;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    CHECK_LINE("tailwatch_gc_collected_objects_total{generation=\"2\",process=\"api-0\"} 10");
    CHECK_LINE("tailwatch_gc_collected_objects_total{generation=\"2\",process=\"engine-0\"} 11");
    CHECK_LINE("tailwatch_gc_collected_objects_total{generation=\"2\",process=\"api-1\"} 12");
}

TW_TEST(pauses_are_shown_by_generation_and_ours_apart) {
    fixture *f = make_fixture();
    const tw_layout *layout = tw_metric_layout(TW_METRIC_PAUSE);
    record(&f->gc2, layout, 100000);
    record(&f->policy, layout, 2 * TW_NS_PER_SECOND);
    f->process[0].stalls[TW_CAUSE_GC2] = &f->gc2;
    f->process[0].stalls[TW_CAUSE_GC_OWN] = &f->policy;
    f->process[0].pause[TW_CAUSE_GC2] = (tw_pause_totals){
        .count = 1, .cpu_ns = 90000, .callbacks_ns = 1000, .uncollectable = 4};
    f->process[0].pause[TW_CAUSE_GC_OWN] = (tw_pause_totals){.count = 1, .collected = 70};
    f->process[0].pause[TW_CAUSE_GC0].short_ns = 40000;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    check_buckets(text, "python_gc_duration_seconds", "generation=\"2\",process=\"api-0\"", &f->gc2, layout);
    check_buckets(text, "tailwatch_gc_own_pause_seconds", "process=\"api-0\"", &f->policy, layout);
    CHECK_LINE("python_gc_duration_seconds_sum{generation=\"2\",process=\"api-0\"} 0.0001");
    CHECK_LINE("python_gc_duration_seconds_count{generation=\"0\",process=\"api-0\"} 0");
    TW_CHECK_EQ(0, count_of(text, "generation=\"full\""));
    TW_CHECK_EQ(0, count_of(text, "python_gc_duration_seconds_count{generation=\"own\""));
    CHECK_LINE("tailwatch_gc_cpu_seconds_total{generation=\"2\",process=\"api-0\"} 0.00009");
    CHECK_LINE("tailwatch_gc_callbacks_seconds_total{generation=\"2\",process=\"api-0\"} 0.000001");
    CHECK_LINE("tailwatch_gc_short_pauses_seconds_total{generation=\"0\",process=\"api-0\"} 0.00004");
    CHECK_LINE("tailwatch_gc_collected_objects_total{generation=\"own\",process=\"api-0\"} 70");
    CHECK_LINE("tailwatch_gc_uncollectable_objects_total{generation=\"2\",process=\"api-0\"} 4");
}

TW_TEST(stalls_are_shown_by_cause_once_they_happened) {
    fixture *f = make_fixture();
    const tw_layout *layout = tw_metric_layout(TW_METRIC_PAUSE);
    record(&f->gc2, layout, 80 * TW_NS_PER_MS);
    record(&f->policy, layout, 3 * TW_NS_PER_MS);
    f->process[0].stalls[TW_DELAY_IO] = &f->gc2;
    f->process[0].stalls[TW_STALL_UNEXPLAINED] = &f->policy;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    check_buckets(text, "tailwatch_stall_seconds", "process=\"api-0\",cause=\"io\"", &f->gc2, layout);
    CHECK_LINE("tailwatch_stall_seconds_sum{process=\"api-0\",cause=\"unexplained\"} 0.003");
    TW_CHECK_EQ(2, count_of(text, "\ntailwatch_stall_seconds_count{"));
}

TW_TEST(stream_time_is_given_by_the_role_whose_pauses_took_it) {
    fixture *f = make_fixture();
    f->snapshot.lost_count = 2;
    strcpy(f->snapshot.lost[1].role, "en\"gine");
    f->snapshot.lost[1].overlap_ns[TW_PHASE_ITL][TW_CAUSE_GC2] = 268000000;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(16, count_of(text, "\ntailwatch_stream_overlap_seconds_total{"));
    CHECK_LINE("tailwatch_stream_overlap_seconds_total{cause=\"gc2\",source=\"en\\\"gine\",phase=\"itl\"} 0.268");
    CHECK_LINE("tailwatch_stream_overlap_seconds_total{cause=\"gc2\",source=\"api\",phase=\"itl\"} 0.0");
}

TW_TEST(stream_time_has_rows_before_the_first_pause) {
    fixture *f = make_fixture();
    f->snapshot.lost[0].overlap_ns[TW_PHASE_TTFT][TW_CAUSE_GC_FULL] = 1500000000;
    f->snapshot.lost[0].delay_ns[TW_PHASE_ITL][TW_CAUSE_GC2][TW_ESTIMATED] = 250000000;
    f->snapshot.lost[0].delay_ns[TW_PHASE_ITL][TW_DELAY_GIL][TW_SAMPLED] = 500000000;
    f->snapshot.unexplained_ns[TW_PHASE_TTFT][TW_UNEXPLAINED_NO_SCHEDSTAT] = 750000000;
    char *text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(17, count_of(text, "\ntailwatch_stream_delay_seconds_total{"));
    TW_CHECK_EQ(9, count_of(text, "\ntailwatch_stream_overlap_seconds_total{"));
    CHECK_LINE("tailwatch_stream_delay_seconds_total{cause=\"gc2\",source=\"api\",phase=\"itl\",certainty=\"estimated\"} 0.25");
    CHECK_LINE("tailwatch_stream_delay_seconds_total{cause=\"gil\",source=\"api\",phase=\"itl\",certainty=\"sampled\"} 0.5");
    CHECK_LINE("tailwatch_unexplained_seconds_total{phase=\"ttft\",reason=\"no_schedstat\"} 0.75");
    CHECK_LINE("tailwatch_stream_overlap_seconds_total{cause=\"gc_full\",source=\"api\",phase=\"ttft\"} 1.5");
}

TW_TEST(what_concerns_ourselves_is_shown) {
    fixture *f = make_fixture();
    f->snapshot.drops[TW_DROP_UNREADABLE_BODY] = 2;
    f->snapshot.errors[TW_ERROR_REGISTRY] = 5;
    f->snapshot.arrivals[TW_ARRIVAL_TCP] = 9;
    f->snapshot.label_overflow = 6;
    f->snapshot.in_flight = 8;
    f->snapshot.deadlines_due = 100;
    f->snapshot.deadlines_met = 97;
    f->process[0].bytes = 234;
    tw_metrics_info info = INFO_PLAIN;
    info.registry_seconds = 0.0125;
    char *text = render(&f->snapshot, &info, TW_FORMAT_TEXT), line[128];
    snprintf(line, sizeof line, "tailwatch_dropped_events_total{reason=\"%s\"} 2", tw_drop_name(TW_DROP_UNREADABLE_BODY));
    CHECK_LINE(line);
    snprintf(line, sizeof line, "tailwatch_internal_errors_total{where=\"%s\"} 5", tw_error_name(TW_ERROR_REGISTRY));
    CHECK_LINE(line);
    snprintf(line, sizeof line, "tailwatch_arrivals_total{source=\"%s\"} 9", tw_arrival_name(TW_ARRIVAL_TCP));
    CHECK_LINE(line);
    TW_CHECK_EQ(TW_DROPS, count_of(text, "\ntailwatch_dropped_events_total{"));
    CHECK_LINE("tailwatch_label_overflow_total 6");
    CHECK_LINE("tailwatch_requests_in_flight 8");
    CHECK_LINE("tailwatch_fluidity_deadlines_total 100");
    CHECK_LINE("tailwatch_fluidity_deadlines_met_total 97");
    CHECK_LINE("tailwatch_memory_bytes 1234");
    CHECK_LINE("tailwatch_registry_render_seconds 0.0125");
    text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(0, count_of(text, "\ntailwatch_registry_render_seconds "));
}

static void check_fallback_lines(const char *text, const char *help) {
    TW_CHECK_EQ(1, count_of(text, help));
    TW_CHECK_EQ(3, count_of(text, "\ntailwatch_sse_fallback_total{"));
    CHECK_LINE("tailwatch_sse_fallback_total{shape=\"chat \\\"a\\\"\",reason=\"back\\\\slash\"} 18446744073709551615");
    CHECK_LINE("tailwatch_sse_fallback_total{shape=\"caf\xc3\xa9\",reason=\"extra\"} 1");
    CHECK_LINE("tailwatch_sse_fallback_total{shape=\"line\\nend\",reason=\"\"} 2");
}

TW_TEST(fallbacks_are_shown_by_shape_and_reason) {
    fixture *f = make_fixture();
    char *text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(1, count_of(text, "\n# TYPE tailwatch_sse_fallback_total counter\n"));
    TW_CHECK_EQ(0, count_of(text, "\ntailwatch_sse_fallback_total{"));
    tw_snapshot_fallback rows[] = {
        {"chat \"a\"", "back\\slash", UINT64_MAX}, {"caf\xc3\xa9", "extra", 1}, {"line\nend", "", 2}};
    f->snapshot.fallbacks = rows;
    f->snapshot.fallback_count = 3;
    text = render_plain(f, TW_FORMAT_TEXT);
    check_fallback_lines(text, "\n# HELP tailwatch_sse_fallback_total ");
    text = render_plain(f, TW_FORMAT_OPENMETRICS);
    check_fallback_lines(text, "\n# TYPE tailwatch_sse_fallback counter\n");
}

/* ---- protobuf --------------------------------------------------------------------------------------- */

/* How often the bytes of one message stand in the output. Whole messages are read by protobuf's own runtime, in
 * tests/export/test_protobuf.py. */
static size_t count_bytes(const tw_buffer *b, const void *bytes, size_t n) {
    size_t found = 0;
    for (size_t at = 0; at + n <= b->length; at++) found += memcmp(b->data + at, bytes, n) == 0;
    return found;
}

static tw_buffer render_proto(fixture *f, int format) {
    tw_buffer b = {0};
    TW_REQUIRE(tw_exposition_render(&f->snapshot, &INFO_PLAIN, format, &b) == 0);
    return b;
}

TW_TEST(short_gaps_between_buckets_are_filled_and_long_ones_begin_a_span) {
    native of = {.n = 0};
    static const int32_t indices[] = {-5, -4, -1, 3, 32769};
    for (size_t i = 0; i < 5; i++) native_add(&of, indices[i], i + 1);
    native_add(&of, 40000, 0);
    TW_CHECK_EQ(7, of.n); /* -5 -4 (-3 -2) -1, 3, 32769 */
    tw_buffer b = {0};
    put_spans(&b, &of);
    put_deltas(&b, &of);
    static const char expected[] = "\x62\x04\x08\x09\x10\x05" /* from -5: five */
                                   "\x62\x04\x08\x06\x10\x01" /* three further: one */
                                   "\x62\x06\x08\xfa\xff\x03\x10\x01"
                                   "\x6a\x07\x02\x02\x03\x00\x06\x02\x02";
    TW_CHECK_EQ(sizeof expected - 1, b.length);
    TW_CHECK_MEM(expected, b.data, sizeof expected - 1);
    tw_buffer_free(&b);
}

TW_TEST(protobuf_leaves_out_families_without_metrics) {
    fixture *f = make_fixture();
    tw_buffer b = render_proto(f, TW_FORMAT_PROTOBUF);
    TW_CHECK_EQ(0, count_bytes(&b, "tailwatch_time_to_first_token_seconds", 37));
    TW_CHECK_EQ(1, count_bytes(&b, "tailwatch_requests_good_total", 29));
    TW_CHECK_EQ(1, count_bytes(&b, "tailwatch_build_info", 20));
    tw_buffer_free(&b);
}

TW_TEST(exemplars_follow_their_buckets) {
    fixture *f = make_fixture();
    tw_snapshot_exemplar exemplars[] = {
        {TW_METRIC_TTFT, 0, 900000, UINT64_C(1700000001500000000), "trace-1"},
        {TW_METRIC_TTFT, 20, UINT64_C(170000000000), UINT64_C(1700000000000000000), "trace-2"},
        {TW_METRIC_E2E, 3, 70000000, UINT64_C(1700000002000000001), "trace-3"},
        {TW_METRIC_E2E, 4, 90000000, UINT64_C(1700000002000000001), "trace-4"}, /* at the same time */
    };
    record(&f->ttft, tw_metric_layout(TW_METRIC_TTFT), 900000);
    f->series[0].metric[TW_METRIC_TTFT] = &f->ttft;
    f->series[0].exemplar_count = 4;
    f->snapshot.exemplars = exemplars;
    char *text = render_plain(f, TW_FORMAT_OPENMETRICS);
    TW_CHECK_EQ(4, count_of(text, " # {"));
    CHECK_LINE("tailwatch_time_to_first_token_seconds_bucket{" LLAMA ",le=\"0.001\"} 1 "
               "# {trace_id=\"trace-1\"} 0.0009 1700000001.5");
    CHECK_LINE("tailwatch_time_to_first_token_seconds_bucket{" LLAMA ",le=\"+Inf\"} 1 "
               "# {trace_id=\"trace-2\"} 170.0 1700000000.0");
    CHECK_LINE("tailwatch_e2e_request_latency_seconds_bucket{" LLAMA ",le=\"0.08\"} 0 "
               "# {trace_id=\"trace-3\"} 0.07 1700000002.000000001");
    text = render_plain(f, TW_FORMAT_TEXT);
    TW_CHECK_EQ(0, count_of(text, " # {"));
    tw_buffer b = render_proto(f, TW_FORMAT_PROTOBUF_NATIVE); /* by time: the one above all came first */
    const char *first = memmem(b.data, b.length, "trace-1", 7), *last = memmem(b.data, b.length, "trace-2", 7);
    TW_CHECK(first != NULL && last != NULL && last < first);
    TW_CHECK_EQ(1, count_bytes(&b, "trace-3", 7));
    TW_CHECK_EQ(1, count_bytes(&b, "trace-4", 7));
    tw_buffer_free(&b);
    b = render_proto(f, TW_FORMAT_PROTOBUF);
    TW_CHECK_EQ(2, count_bytes(&b, "trace-3", 7)); /* classic bucket and native histogram */
    tw_buffer_free(&b);
}

TW_TEST(the_output_is_appended) {
    fixture *f = make_fixture();
    tw_buffer b = {0};
    TW_CHECK_EQ(0, tw_exposition_render(&f->snapshot, &INFO_PLAIN, TW_FORMAT_TEXT, &b));
    size_t once = b.length;
    TW_CHECK_EQ(0, tw_exposition_render(&f->snapshot, &INFO_PLAIN, TW_FORMAT_TEXT, &b));
    TW_CHECK_EQ(2 * once, b.length);
    TW_CHECK_MEM(b.data, b.data + once, once);
    tw_buffer_free(&b);
    TW_CHECK(b.data == NULL && b.length == 0 && b.capacity == 0);
}

TW_TEST(every_failed_allocation_is_reported) {
    fixture *f = make_fixture();
    tw_snapshot_series *many = calloc(200, sizeof *many);
    TW_REQUIRE(many != NULL);
    for (uint64_t i = 0; i < 200; i++) many[i].output_tokens = i + 1;
    f->snapshot.series = many;
    f->snapshot.series_count = 200;
    for (int format = 0; format < TW_FORMATS; format++) {
        int result = ENOMEM;
        size_t n = 0;
        while (result == ENOMEM) {
            tw_buffer b = {0};
            allocations = 0;
            fail_at = ++n;
            result = tw_exposition_render(&f->snapshot, &INFO_PLAIN, format, &b);
            TW_CHECK_EQ(result, b.failed);
            if (result) TW_CHECK_EQ(n, allocations); /* nothing was tried after the failure */
            else TW_CHECK_EQ(n - 1, allocations);
            tw_buffer_free(&b);
        }
        fail_at = 0;
        TW_CHECK_EQ(0, result);
        TW_CHECK(n > 2);
    }
    free(many);
}

TW_TEST(a_failed_buffer_stays_failed) {
    fixture *f = make_fixture();
    tw_buffer b = {.failed = ENOMEM};
    TW_CHECK_EQ(ENOMEM, tw_exposition_render(&f->snapshot, &INFO_PLAIN, TW_FORMAT_TEXT, &b));
    TW_CHECK(b.data == NULL && b.length == 0);
}

TW_TEST(steps_are_shown_where_there_are_any) {
    fixture *f = make_fixture();
    char *text = render_plain(f, TW_FORMAT_OPENMETRICS);
    TW_CHECK_EQ(0, count_of(text, "tailwatch_step_"));
    tw_snapshot_step steps[2] = {{.name = "decode", .batch = 40, .unknown_ns = 2 * TW_NS_PER_SECOND}, {.name = "a\"b"}};
    tw_counts *spent = tw_test_own(free, calloc(1, sizeof *spent));
    tw_counts_init(spent);
    record(spent, tw_step_layout(TW_STEP_INSIDE), 20 * TW_NS_PER_MS);
    steps[0].spent[TW_STEP_INSIDE] = spent;
    steps[0].overlap_ns[TW_STEP_INSIDE][TW_CAUSE_GC2] = 250 * TW_NS_PER_MS;
    steps[0].request_ns[TW_STEP_GAP][TW_CAUSE_GC_FULL] = 3 * TW_NS_PER_SECOND;
    strcpy(f->process[0].role, "engine");
    f->process[0].steps = steps;
    f->process[0].step_count = 2;
    text = render_plain(f, TW_FORMAT_OPENMETRICS);
    CHECK_LINE("# TYPE tailwatch_step_seconds histogram");
    CHECK_LINE("# UNIT tailwatch_step_overlap_seconds seconds");
    CHECK_LINE("# TYPE tailwatch_step_requests counter");
    CHECK_LINE("tailwatch_step_seconds_bucket{" DECODE ",le=\"0.015\"} 0");
    CHECK_LINE("tailwatch_step_seconds_bucket{" DECODE ",le=\"0.02\"} 1");
    CHECK_LINE("tailwatch_step_seconds_sum{" DECODE "} 0.02");
    CHECK_LINE("tailwatch_step_seconds_count{process=\"engine-0\",step=\"a\\\"b\"} 0");
    CHECK_LINE("tailwatch_step_host_gap_seconds_bucket{" DECODE ",le=\"0.0001\"} 0");
    CHECK_LINE("tailwatch_step_requests_total{" DECODE "} 40");
    CHECK_LINE("tailwatch_step_unknown_gap_seconds_total{" DECODE "} 2.0");
    CHECK_LINE("tailwatch_step_overlap_seconds_total{" DECODE ",cause=\"gc2\",phase=\"step\"} 0.25");
    CHECK_LINE("tailwatch_step_overlap_seconds_total{" DECODE ",cause=\"gc2\",phase=\"host_gap\"} 0.0");
    CHECK_LINE("tailwatch_step_request_overlap_seconds_total{" DECODE ",cause=\"gc_full\",phase=\"host_gap\"} 3.0");
    TW_CHECK_EQ(0, count_of(text, "cause=\"gc_full\",phase=\"step\"} "));
}

TW_TEST(a_policy_is_given_and_slices_where_there_are_any) {
    fixture *f = make_fixture();
    tw_policy *policy = &f->process[0].policy;
    tw_policy_is(policy, TW_POLICY_FREEZE, TW_POLICY_WAITS, TW_WHY_NOT);
    policy->counts.collections[TW_COLLECTION_AUTOMATIC] = 12;
    policy->counts.interference[TW_INTERFERENCE_FREEZE_BLIND] = 2;
    strcpy(f->process[0].role, "api");
    char *text = render_plain(f, TW_FORMAT_OPENMETRICS);
    CHECK_LINE("# TYPE tailwatch_gc_policy info");
    CHECK_LINE("tailwatch_gc_policy_info{process=\"api-0\",policy=\"freeze\",mode=\"\",reason=\"\"} 1");
    CHECK_LINE("tailwatch_gc_collections_total{process=\"api-0\",reason=\"automatic\"} 12");
    CHECK_LINE("tailwatch_gc_collections_total{process=\"api-0\",reason=\"external\"} 0");
    CHECK_LINE("tailwatch_gc_interference_total{process=\"api-0\",call=\"freeze_blind\"} 2");
    CHECK_LINE("tailwatch_gc_interference_total{process=\"api-0\",call=\"enable\"} 0");
    TW_CHECK_EQ(0, count_of(text, "tailwatch_gc_idle_slice"));
    TW_CHECK_EQ(0, count_of(text, "reason=\"unknown\"") + count_of(text, "_unfrozen_objects{"));
    tw_policy_is(policy, TW_POLICY_IDLE_GC, TW_POLICY_SLICES, TW_WHY_NOT);
    tw_policy_heap(policy, 90000);
    policy->counts.slices[TW_SLICE_IDLE] = 7;
    policy->counts.slice_ns = 2500 * TW_NS_PER_MS;
    policy->counts.collections[TW_SLICE_MEMORY_LIMIT] = policy->counts.memory_limits[TW_MEMORY_LIMIT_RSS] = 1;
    policy->now.backlog = 5;
    text = render_plain(f, TW_FORMAT_OPENMETRICS);
    CHECK_LINE("tailwatch_gc_idle_slices_total{process=\"api-0\",reason=\"idle\"} 7");
    CHECK_LINE("tailwatch_gc_idle_slices_total{process=\"api-0\",reason=\"step\"} 0");
    CHECK_LINE("tailwatch_gc_idle_slice_seconds_total{process=\"api-0\"} 2.5");
    CHECK_LINE("tailwatch_gc_collections_total{process=\"api-0\",reason=\"memory_limit\"} 1");
    CHECK_LINE("tailwatch_gc_memory_limit_total{process=\"api-0\",limit=\"rss\"} 1");
    CHECK_LINE("tailwatch_gc_unfrozen_objects{process=\"api-0\"} 90000");
    CHECK_LINE("tailwatch_gc_idle_backlog_visits{process=\"api-0\"} 5");
}
