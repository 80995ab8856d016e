/* The table of metrics. A new one is a row here, and a sampler (metric_samples.c) where none reads it yet. */
#include "tailwatch/export/metrics.h"

#include <stddef.h>

#include "export/metric_samples.h"

#define COUNTER TW_INSTRUMENT_COUNTER
#define UP_DOWN TW_INSTRUMENT_UP_DOWN
#define GAUGE TW_INSTRUMENT_GAUGE
#define HISTOGRAM TW_INSTRUMENT_HISTOGRAM
#define INFO TW_INSTRUMENT_INFO
#define IDLE_GC TW_USE_IDLE_GC
#define STEPS TW_USE_STEPS
#define LOAD TW_USE_LOAD

#define SNAPSHOT(member) offsetof(tw_snapshot, member)
#define TOTALS(member) offsetof(tw_pause_totals, member)
#define LOST(member) offsetof(tw_snapshot_lost, member)
#define STEP(member) offsetof(tw_snapshot_step, member)
#define COUNTS(member) offsetof(tw_policy_counts, member)
#define NOW(member) offsetof(tw_policy_now, member)
#define GAUGES(member) offsetof(tw_load_gauges, member)

/* Those of OpenTelemetry's semantic conventions. */
static const double TTFT_BOUNDS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25,
                                     0.5, 0.75, 1, 2.5, 5, 7.5, 10, 0};
static const double TPOT_BOUNDS[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 0};
static const double DURATION_BOUNDS[] = {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28,
                                         2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 0};

static const tw_instrument INSTRUMENTS[] = {
    /* The GenAI conventions define TTFT and TPOT for answered requests only, and durations by error type: other numbers
     * than Prometheus's. */
    {"tailwatch_time_to_first_token_seconds", NULL, HISTOGRAM, "s",
     "Time from a request's arrival to its first generated token.",
     .samples = tw_sample_series_histogram, TW_METRIC_TTFT},
    {NULL, "gen_ai.server.time_to_first_token", HISTOGRAM, "s",
     "Time to the first generated token, successful responses only.",
     .samples = tw_sample_served_histogram, TW_SERVED_TTFT, .bounds = TTFT_BOUNDS},
    {"tailwatch_inter_token_latency_seconds", "gen_ai.server.inter_token_latency", HISTOGRAM, "s",
     "Gap between two token-bearing messages of a stream, at the hand-over to the server.",
     .samples = tw_sample_series_histogram, TW_METRIC_ITL},
    {"tailwatch_inter_token_latency_without_gc_seconds", "tailwatch.inter_token_latency_without_gc", HISTOGRAM, "s",
     "The same gaps without the estimated delay by pauses: an estimate of the gaps without any pause.",
     .samples = tw_sample_series_histogram, TW_METRIC_ITL_WITHOUT_GC},
    {"tailwatch_time_per_output_token_seconds", NULL, HISTOGRAM, "s",
     "(Last token - first token) / (output tokens - 1), finished requests only.",
     .samples = tw_sample_series_histogram, TW_METRIC_TPOT},
    {NULL, "gen_ai.server.time_per_output_token", HISTOGRAM, "s",
     "Time per output token after the first, successful responses only.",
     .samples = tw_sample_served_histogram, TW_SERVED_TPOT, .bounds = TPOT_BOUNDS},
    {"tailwatch_e2e_request_latency_seconds", NULL, HISTOGRAM, "s",
     "Time from a request's arrival to its last byte, finished requests only.",
     .samples = tw_sample_series_histogram, TW_METRIC_E2E},
    {NULL, "gen_ai.server.request.duration", HISTOGRAM, "s",
     "Request duration up to the last byte.",
     .samples = tw_sample_request_durations, TW_METRIC_E2E, .bounds = DURATION_BOUNDS},
    {"tailwatch_queue_seconds", "tailwatch.queue.duration", HISTOGRAM, "s",
     "Wait of a request before the app was entered: at a proxy, or after the kernel accepted it.",
     .samples = tw_sample_queue_stages, TW_METRIC_QUEUE_PROXY},
    {"tailwatch_abandoned_wait_seconds", "tailwatch.abandoned_wait", HISTOGRAM, "s",
     "Wait of requests that were aborted before their first token.",
     .samples = tw_sample_wait_histogram, TW_METRIC_ABANDONED_WAIT},
    {"tailwatch_send_wait_seconds", "tailwatch.send_wait", HISTOGRAM, "s",
     "Time that sends were blocked by clients that do not read.",
     .samples = tw_sample_wait_histogram, TW_METRIC_SEND_WAIT},
    {"tailwatch_requests", "tailwatch.requests", COUNTER, "{request}",
     "Requests ended, by outcome. Attainment = good / (good + miss); excluded requests are not part of it.",
     .samples = tw_sample_series_requests},
    {"tailwatch_requests_good", "tailwatch.requests_good", COUNTER, "{request}",
     "Requests finished without error within every bound of the SLO.",
     .samples = tw_sample_requests_good},
    {"tailwatch_goodput_requests_per_second", "tailwatch.goodput", GAUGE, "{request}/s",
     "Good requests per second over the rolling window.",
     .samples = tw_sample_window_goodput},
    {"tailwatch_throughput_requests_per_second", "tailwatch.throughput", GAUGE, "{request}/s",
     "Finished requests per second over the rolling window.",
     .samples = tw_sample_window_throughput},
    {"tailwatch_slo_attainment_ratio", "tailwatch.slo.attainment", GAUGE, "1",
     "good / (good + miss) over the rolling window. Absent until a request was judged.",
     .samples = tw_sample_window_attainment},
    {"tailwatch_requests_in_flight", "tailwatch.requests_in_flight", UP_DOWN, "{request}",
     "Requests in flight now.",
     .samples = tw_sample_snapshot_word, SNAPSHOT(in_flight)},
    {"tailwatch_output_tokens", "tailwatch.output_tokens", COUNTER, "{token}",
     "Output tokens of all choices.",
     .samples = tw_sample_series_tokens},
    {"tailwatch_fluidity_deadlines", "tailwatch.fluidity.deadlines", COUNTER, "{deadline}",
     "Token deadlines due. Slack is carried forward and reset after a miss.",
     .samples = tw_sample_snapshot_word, SNAPSHOT(deadlines_due)},
    {"tailwatch_fluidity_deadlines_met", "tailwatch.fluidity.deadlines_met", COUNTER, "{deadline}",
     "Token deadlines met.",
     .samples = tw_sample_snapshot_word, SNAPSHOT(deadlines_met)},
    {"python_gc_duration_seconds", "cpython.gc.duration", HISTOGRAM, "s",
     "Length of garbage collections, process time. Collections started by tailwatch are in "
     "tailwatch_gc_own_pause_seconds.",
     .samples = tw_sample_gc_histograms},
    {NULL, "cpython.gc.collections", COUNTER, "{collection}", /* Prometheus: python_gc_duration_seconds_count */
     "Garbage collections, by generation.",
     .samples = tw_sample_gc_collections, TOTALS(count)},
    {"tailwatch_gc_own_pause_seconds", "tailwatch.gc.own_pause.duration", HISTOGRAM, "s",
     "Length of tailwatch's own freezes, slices and full collections, process time.",
     .samples = tw_sample_policy_histograms},
    {"tailwatch_gc_short_pauses_seconds", "tailwatch.gc.short_pause_time", COUNTER, "s",
     "Process time in pauses under 50 us, which are charged to no stream.",
     .samples = tw_sample_gc_totals, TOTALS(short_ns)},
    {"tailwatch_gc_callbacks_seconds", "tailwatch.gc.callback_time", COUNTER, "s",
     "Part of the pauses that was spent in gc.callbacks of other code.",
     .samples = tw_sample_gc_totals, TOTALS(callbacks_ns)},
    {"tailwatch_gc_cpu_seconds", "tailwatch.gc.cpu_time", COUNTER, "s",
     "Thread CPU time of collections, where it is measured (generations 1 and 2, tailwatch's own work).",
     .samples = tw_sample_gc_totals, TOTALS(cpu_ns)},
    {"tailwatch_gc_collected_objects", "cpython.gc.collected_objects", COUNTER, "{object}",
     "Objects freed by collections.",
     .samples = tw_sample_gc_totals, TOTALS(collected)},
    {"tailwatch_gc_uncollectable_objects", "cpython.gc.uncollectable_objects", COUNTER, "{object}",
     "Objects found unreachable by collections and not freed (uncollectable).",
     .samples = tw_sample_gc_totals, TOTALS(uncollectable)},
    {"tailwatch_stream_overlap_seconds", "tailwatch.stream.overlap", COUNTER, "s",
     "Stream time (summed over streams) that coincided with pauses of at least 50 us, by the role of the paused "
     "process: an upper bound of their effect.",
     .samples = tw_sample_stream_seconds, LOST(overlap_ns)},
    {"tailwatch_stream_delay_seconds", "tailwatch.stream.delay", COUNTER, "s",
     "Stream time (summed over streams) that pauses added beyond each stream's typical gap, by the role of the "
     "paused process: an estimate.",
     .samples = tw_sample_stream_seconds, LOST(delay_ns)},
    {"tailwatch_arrivals", "tailwatch.arrivals", COUNTER, "{request}",
     "Requests by the source of their arrival time.",
     .samples = tw_sample_snapshot_list, TW_LIST_ARRIVALS},
    {"tailwatch_dropped_events", "tailwatch.dropped_events", COUNTER, "{event}",
     "Events and measurements dropped, by reason.",
     .samples = tw_sample_snapshot_list, TW_LIST_DROPS},
    {"tailwatch_label_overflow", "tailwatch.label_overflow", COUNTER, "{request}",
     "Requests counted under the labels \"other\" because max_label_sets was reached.",
     .samples = tw_sample_snapshot_word, SNAPSHOT(label_overflow)},
    {"tailwatch_internal_errors", "tailwatch.internal_errors", COUNTER, "{error}",
     "Errors inside tailwatch, by place. They did not reach the server's code.",
     .samples = tw_sample_snapshot_list, TW_LIST_ERRORS},
    {"tailwatch_sse_fallback", "tailwatch.sse_fallback", COUNTER, "{frame}",
     "Frames that the fast SSE path returned to the server's own serialiser, by shape of the frame.",
     .samples = tw_sample_sse_fallbacks},
    {"tailwatch_memory_bytes", "tailwatch.memory", GAUGE, "By",
     "Memory used by tailwatch, all processes.",
     .samples = tw_sample_memory},
    {"tailwatch_registry_render_seconds", "tailwatch.registry_render", GAUGE, "s",
     "Time of the last rendering of the app's own Prometheus registry.",
     .samples = tw_sample_registry_render},
    {"tailwatch_build", "tailwatch.build", INFO, "1",
     "Versions of tailwatch and of the Python interpreter.",
     .samples = tw_sample_build_info},
    {NULL, "tailwatch.otel.exports", COUNTER, "{export}",
     "Exports made by this exporter, without the current one.",
     .samples = tw_sample_otlp_exports},
    {NULL, "tailwatch.otel.spans", COUNTER, "{span}",
     "Request spans of this process, by result.",
     .samples = tw_sample_otlp_spans},
    {NULL, "tailwatch.otel.longest_hold", GAUGE, "s",
     "CPU time of the longest uninterrupted work for an exporter of the app.",
     .samples = tw_sample_otlp_longest_hold},

    /* The collector's policy, whatever it is. */
    {"tailwatch_gc_policy", "tailwatch.gc.policy", INFO, "1",
     "GC policy in force in each process. mode: how idle-time GC collects; reason: why gc=auto chose the policy, or why "
     "slices are not used.",
     .samples = tw_sample_policy_info},
    {"tailwatch_gc_collections", "tailwatch.gc.collections", COUNTER, "{collection}",
     "Collections outside slices, of any generation, by trigger: automatic (thresholds), external (gc.collect() by "
     "other code), unknown; or full collections started by tailwatch (idle, step, ...).",
     .samples = tw_sample_policy_list, TW_LIST_COLLECTIONS},
    {"tailwatch_gc_interference", "tailwatch.gc.interference", COUNTER, "{call}",
     "gc.* calls made by other code, by function. freeze_blind: gc.freeze() not preceded by a full collection, so "
     "garbage may have been frozen.",
     .samples = tw_sample_policy_list, TW_LIST_INTERFERENCE},
    {"tailwatch_gc_unfrozen_objects", "tailwatch.gc.unfrozen_objects", GAUGE, "{object}",
     "Tracked objects that are not frozen: an estimate. Absent where the count is unknown.",
     .samples = tw_sample_heap_size, NOW(unfrozen)},

    {"tailwatch_gc_idle_slices", "tailwatch.gc.idle.slices", COUNTER, "{slice}",
     "Slices of the idle-time collector, by the idle slot they used.",
     .samples = tw_sample_policy_list, TW_LIST_SLICES, IDLE_GC},
    {"tailwatch_gc_memory_limit", "tailwatch.gc.memory_limit", COUNTER, "{time}",
     "Times that a memory limit (gc_memory_limit) was exceeded, each counted once until it held again.",
     .samples = tw_sample_policy_list, TW_LIST_MEMORY_LIMITS, IDLE_GC},
    {"tailwatch_gc_idle_slice_seconds", "tailwatch.gc.idle.slice_time", COUNTER, "s",
     "Process time of slices.",
     .samples = tw_sample_idle_gc_word, COUNTS(slice_ns), IDLE_GC},
    {"tailwatch_gc_idle_predicted_seconds", "tailwatch.gc.idle.predicted_time", COUNTER, "s",
     "Process time that was predicted for the same slices.",
     .samples = tw_sample_idle_gc_word, COUNTS(predicted_ns), IDLE_GC},
    {"tailwatch_gc_idle_full_seconds", "tailwatch.gc.idle.full_time", COUNTER, "s",
     "Process time of full collections started by tailwatch.",
     .samples = tw_sample_idle_gc_word, COUNTS(full_ns), IDLE_GC},
    {"tailwatch_gc_idle_moved_objects", "tailwatch.gc.idle.moved_objects", COUNTER, "{object}",
     "Objects found unreachable and moved to generation 0.",
     .samples = tw_sample_idle_gc_word, COUNTS(moved), IDLE_GC},
    {"tailwatch_gc_idle_freed_objects", "tailwatch.gc.idle.freed_objects", COUNTER, "{object}",
     "Objects freed by slices.",
     .samples = tw_sample_idle_gc_word, COUNTS(freed), IDLE_GC},
    {"tailwatch_gc_idle_full_freed_objects", "tailwatch.gc.idle.full_freed_objects", COUNTER, "{object}",
     "Objects freed by full collections started by tailwatch.",
     .samples = tw_sample_idle_gc_word, COUNTS(full_freed), IDLE_GC},
    {"tailwatch_gc_idle_cycles", "tailwatch.gc.idle.cycles", COUNTER, "{cycle}",
     "Times that slices covered the whole old heap.",
     .samples = tw_sample_idle_gc_word, COUNTS(cycles), IDLE_GC},
    {"tailwatch_gc_frozen_objects", "tailwatch.gc.frozen_objects", GAUGE, "{object}",
     "Objects known to be frozen; slices skip them.",
     .samples = tw_sample_heap_size, NOW(frozen), IDLE_GC},
    {"tailwatch_gc_idle_backlog_visits", "tailwatch.gc.idle.backlog", GAUGE, "{visit}",
     "Object visits still owed by the idle-time collector (about 10 per object).",
     .samples = tw_sample_idle_gc_backlog, 0, IDLE_GC},

    {"tailwatch_step_seconds", "tailwatch.step.duration", HISTOGRAM, "s",
     "Length of an engine's steps (iterations), from begin to end on the host.",
     .samples = tw_sample_step_histogram, TW_STEP_INSIDE, STEPS},
    {"tailwatch_step_host_gap_seconds", "tailwatch.step.host_gap", HISTOGRAM, "s",
     "Time from the end of a step to the start of the next, while work was waiting.",
     .samples = tw_sample_step_histogram, TW_STEP_GAP, STEPS},
    {"tailwatch_step_unknown_gap_seconds", "tailwatch.step.unknown_gap", COUNTER, "s",
     "Time after steps made without waiting=: idle time or a host gap, unknown which.",
     .samples = tw_sample_step_word, STEP(unknown_ns), STEPS},
    {"tailwatch_step_requests", "tailwatch.step.requests", COUNTER, "{request}",
     "Requests in the steps' batches, summed over the steps.",
     .samples = tw_sample_step_word, STEP(batch), STEPS},
    {"tailwatch_step_overlap_seconds", "tailwatch.step.overlap", COUNTER, "s",
     "Time of steps and host gaps that coincided with pauses of at least 50 us in the same process: an upper bound "
     "of their effect.",
     .samples = tw_sample_step_seconds, STEP(overlap_ns), STEPS},
    {"tailwatch_step_request_overlap_seconds", "tailwatch.step.request_overlap", COUNTER, "s",
     "tailwatch_step_overlap_seconds_total multiplied by the requests in the batch, or waiting during the gap: an "
     "upper bound.",
     .samples = tw_sample_step_seconds, STEP(request_ns), STEPS},

    {"tailwatch_streams_running", "tailwatch.streams.running", GAUGE, "{stream}",
     "Requests in flight after their first token.",
     .samples = tw_sample_load_number, GAUGES(running), LOAD},
    {"tailwatch_streams_waiting", "tailwatch.streams.waiting", GAUGE, "{stream}",
     "Requests in flight before their first token. A response that is not streamed counts as waiting until it "
     "ends.",
     .samples = tw_sample_load_number, GAUGES(waiting), LOAD},
    {"tailwatch_healthy_concurrency", "tailwatch.healthy_concurrency", GAUGE, "{stream}",
     "Concurrent streams above which median TTFT starts to grow faster. Absent until that number is found.",
     .samples = tw_sample_load_number, GAUGES(healthy), LOAD},
    {"tailwatch_healthy_concurrency_confidence_ratio", "tailwatch.healthy_concurrency_confidence", GAUGE, "1",
     "Share of resamplings that find healthy concurrency within 10 % of its value. Absent until it is found.",
     .samples = tw_sample_load_number, GAUGES(confidence), LOAD},
    {"tailwatch_healthy_concurrency_verdict", "tailwatch.healthy_concurrency_verdict", GAUGE, "1",
     "1 for the result of the search for healthy concurrency: found, no_inflection, few_data, single_level.",
     .samples = tw_sample_load_verdict, 0, LOAD},
    {"tailwatch_load_ratio", "tailwatch.load.ratio", GAUGE, "1",
     "Requests in flight / healthy concurrency; above 1, each further request raises TTFT. Absent until healthy "
     "concurrency is found.",
     .samples = tw_sample_load_number, GAUGES(ratio), LOAD},
    {"tailwatch_load_utilization_ratio", "tailwatch.load.utilization", GAUGE, "1",
     "tailwatch_load_ratio, capped at 1 for load balancers that accept no larger value.",
     .samples = tw_sample_load_number, GAUGES(utilization), LOAD},
    {"tailwatch_load_headroom_streams", "tailwatch.load.headroom", GAUGE, "{stream}",
     "Streams that can be added before healthy concurrency is reached.",
     .samples = tw_sample_load_number, GAUGES(headroom), LOAD},
    {"tailwatch_predicted_ttft_seconds", "tailwatch.predicted_ttft", GAUGE, "s",
     "Predicted median TTFT of a request that arrives now: an estimate.",
     .samples = tw_sample_load_number, GAUGES(predicted_s), LOAD},
    {"tailwatch_admission_within_slo", "tailwatch.admission_within_slo", GAUGE, "1",
     "1 if tailwatch_predicted_ttft_seconds is within the TTFT bound of the SLO, else 0. Absent if either is "
     "unknown.",
     .samples = tw_sample_load_number, GAUGES(within_slo), LOAD},
    {"tailwatch_ttft_by_concurrency_seconds", "tailwatch.ttft_by_concurrency", GAUGE, "s",
     "Median TTFT by requests in flight at a request's arrival (rounded, the request included), last half hour.",
     .samples = tw_sample_load_curve, 0, LOAD},
};

const tw_instrument *tw_instruments(size_t *count) {
    *count = sizeof INSTRUMENTS / sizeof *INSTRUMENTS;
    return INSTRUMENTS;
}
