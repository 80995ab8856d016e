/* What tailwatch._cold shows of the core's headers, which say what each thing means. Read by cffi, not by a
 * C compiler: "..." asks the compiler for the rest of a struct or the size of an array. Every call drops the
 * GIL, so a struct that is passed in must not be changed by another thread meanwhile. */

/* enums.h */
#define TW_CAUSES ...
#define TW_PHASES ...
#define TW_REASONS ...
#define TW_OUTCOMES ...
#define TW_ARRIVALS ...
#define TW_DROPS ...
#define TW_ERRORS ...

const char *tw_cause_name(int cause);
const char *tw_phase_name(int phase);
const char *tw_reason_name(int reason);
const char *tw_outcome_name(int outcome);
const char *tw_arrival_name(int arrival);
const char *tw_drop_name(int drop);
const char *tw_error_name(int error);
int tw_reason_outcome(int reason);

/* clock.h */
typedef struct tw_clock_pair {
    uint64_t monotonic_ns, realtime_ns;
} tw_clock_pair;

tw_clock_pair tw_clock_pair_now(void);

/* histogram.h */
#define TW_LAYOUT_TTFT ...
#define TW_LAYOUT_E2E ...
#define TW_LAYOUT_ITL ...
#define TW_LAYOUT_PAUSE ...
#define TW_LAYOUTS ...
#define TW_SLOTS_MAX ...

typedef struct tw_layout {
    uint32_t slots, bounds;
    const uint64_t *bound_ns;
    const uint16_t *bound_slot;
    ...;
} tw_layout;

typedef struct tw_histogram {
    uint64_t sum_low, sum_high, min_ns, max_ns;
    uint64_t slot[...];
    ...;
} tw_histogram;

typedef struct tw_counts {
    uint64_t count, sum_low, sum_high, min_ns, max_ns;
    uint64_t slot[...];
} tw_counts;

const tw_layout *tw_layout_of(int kind);
uint64_t tw_layout_hash(void);
uint32_t tw_slot_of(const tw_layout *layout, uint64_t value_ns);
void tw_slot_edges(const tw_layout *layout, uint32_t slot, uint64_t *lower_ns, uint64_t *upper_ns);
void tw_histogram_init(tw_histogram *h);
void tw_histogram_record(tw_histogram *h, const tw_layout *layout, uint64_t value_ns);
void tw_histogram_record_all(tw_histogram *h, const tw_layout *layout, const uint64_t *values_ns, size_t n);
void tw_histogram_record_gaps(tw_histogram *h, const tw_layout *layout, const uint64_t *stamps_ns, size_t n);
void tw_histogram_read(const tw_histogram *h, tw_counts *out);
void tw_counts_init(tw_counts *c);
void tw_counts_add(tw_counts *a, const tw_counts *b);
void tw_counts_subtract(tw_counts *a, const tw_counts *b, const tw_layout *layout);
uint64_t tw_counts_quantile(const tw_counts *c, const tw_layout *layout, double q);
uint64_t tw_counts_below(const tw_counts *c, const tw_layout *layout, uint32_t bound);
double tw_counts_sum_seconds(const tw_counts *c);

/* pause_clock.h */
typedef struct tw_pause_totals {
    uint64_t count, max_ns, short_count, short_ns, evicted_count, evicted_ns;
    uint64_t collected, uncollectable, cpu_ns, callbacks_ns;
} tw_pause_totals;

#define TW_PAUSE_RING ...

typedef struct tw_pause_record {
    uint64_t seq, start_ns, stop_ns, cause, collected, uncollectable, cpu_ns, callbacks_ns;
    uint64_t streams, overlap_ns, late_ns;
} tw_pause_record;

typedef struct tw_pause_clock {
    uint64_t head;
    tw_pause_totals totals[...];
    ...;
} tw_pause_clock;

bool tw_pause_read(const tw_pause_clock *p, uint64_t n, tw_pause_record *out);

/* engine_step.h */
#define TW_STEP_INSIDE ...
#define TW_STEP_GAP ...

const tw_layout *tw_step_layout(int phase);

/* segment.h */
#define TW_SECONDS ...
#define TW_SLOW_RING ...
#define TW_OCTAVES ...
#define TW_NAME_BYTES ...

typedef struct tw_slo {
    uint64_t ttft_ns, tpot_ns, itl_ns, e2e_ns, attainment_ppm;
} tw_slo;

typedef struct tw_name {
    uint64_t word[...];
} tw_name;

typedef struct tw_second {
    uint64_t second, good_miss, excluded_finished;
    ...;
} tw_second;

typedef struct tw_tail {
    uint64_t count, time_ns;
    uint64_t late_ns[...];
    uint64_t client_ns, accept_ns, unexplained_ns;
} tw_tail;

typedef struct tw_share {
    uint64_t source, cause, overlap_ns, late_ns;
} tw_share;

typedef struct tw_slow_record {
    uint64_t seq, end_ns, phase, gap_ns, typical_ns;
    uint64_t overlap_ns[...];
    uint64_t late_ns[...];
    tw_share share[...];
    uint64_t client_ns, accept_ns, unexplained_ns, complete, series, token;
    uint64_t request_id[...];
    uint64_t trace_id[...];
} tw_slow_record;

typedef struct tw_series {
    tw_name model, route;
    ...;
} tw_series;

typedef struct tw_lost {
    uint64_t role[...];
    ...;
} tw_lost;

typedef struct tw_segment {
    tw_pause_clock pause;
    tw_lost lost[...];
    uint64_t opened, slow_head, series_count;
    ...;
} tw_segment;

tw_series *tw_segment_series(const tw_segment *g, uint32_t i);
bool tw_segment_slow_read(const tw_segment *g, uint64_t n, tw_slow_record *out);

/* group.h, member_list.h */
typedef enum tw_group_problem { TW_GROUP_FINE, TW_GROUP_SYSTEM, ... } tw_group_problem;

typedef struct tw_member {
    const tw_segment *segment;
    ...;
} tw_member;

typedef struct tw_members {
    uint32_t n;
    uint64_t refused;
    tw_member member[...];
    ...;
} tw_members;

const char *tw_group_problem_text(tw_group_problem problem);
int tw_group_open_dir(const char *dir, tw_group_problem *problem);
tw_group_problem tw_members_renew(tw_members *members, int dir, const char *except);
void tw_members_clear(tw_members *members);

/* clock_sync.h, event_ring.h, trace_trigger.h */
#define TW_CLOCK_REALTIME ...
#define TW_CLOCK_KEPT ...
#define TW_RINGS ...

typedef struct tw_clock_snapshot {
    uint64_t at[...];
    uint64_t width_ns;
    ...;
} tw_clock_snapshot;

typedef struct tw_trace {
    uint64_t ring_size[...];
    uint64_t pid, start_time, joined_ns;
    ...;
} tw_trace;

typedef struct tw_trigger {
    uint64_t gap_ns, ttft_ns;
    bool slo;
    ...;
} tw_trigger;

typedef struct tw_trigger_found {
    uint64_t matches, first_ns, last_ns, lost;
} tw_trigger_found;

typedef struct tw_ring_event {
    uint64_t time_ns, what, id, value;
} tw_ring_event;

size_t tw_ring_read(const tw_trace *t, uint32_t ring, uint64_t *next, uint64_t until, tw_ring_event *out, size_t room,
                    uint64_t *lost);
uint64_t tw_ring_thread(const tw_trace *t, uint32_t ring, char *name);
void tw_trace_label(const tw_trace *t, uint32_t labels, char *model, char *route);
void tw_trace_step(const tw_trace *t, uint32_t step, char *out);

size_t tw_trace_bytes(uint64_t events, uint32_t label_sets);
uint64_t tw_ring_size(uint64_t events, uint32_t i);
bool tw_trace_open(const void *bytes, size_t len, tw_trace *out);
int tw_trace_map(const char *path, tw_trace *out);
void tw_trace_close(tw_trace *t);

/* deferred_free.h */
void tw_close_aside(int fd);
bool tw_trace_is_over(const tw_trace *t);
void tw_trace_process(const tw_trace *t, char *out);
uint64_t tw_ring_bounds(const tw_trace *t, uint32_t ring, uint64_t *first, uint64_t *end);
size_t tw_trace_clocks(const tw_trace *t, tw_clock_snapshot *out);
void tw_trigger_look(tw_trigger *trigger, const tw_trace *t, tw_trigger_found *out);
void tw_trigger_skip(tw_trigger *trigger, const tw_trace *t);

/* gc_policy_counters.h */
#define TW_MOMENTS ...
#define TW_PASSES ...
#define TW_DRIFTS ...
#define TW_CEILINGS ...
#define TW_POLICY_KINDS ...
#define TW_POLICY_MODES ...
#define TW_WHYS ...

typedef struct tw_policy_counts {
    uint64_t slices[...];
    uint64_t passes[...];
    uint64_t moved, freed, slice_ns, predicted_ns, pass_ns, pass_freed, rounds, freezes;
    uint64_t drift[...];
    uint64_t ceilings[...];
    uint64_t ignored;
} tw_policy_counts;

typedef struct tw_policy_now {
    uint64_t kind, mode, why, unfrozen, frozen, debt, bytes, cost_ns, answered, answer;
} tw_policy_now;

typedef struct tw_policy {
    tw_policy_counts counts;
    tw_policy_now now;
} tw_policy;

const char *tw_policy_kind_name(int kind);
const char *tw_policy_mode_name(int mode);
const char *tw_policy_why_name(int why);
const char *tw_moment_name(int moment);
const char *tw_pass_name(int pass);
const char *tw_drift_name(int drift);
const char *tw_ceiling_name(int ceiling);

/* snapshot.h */
#define TW_METRIC_TTFT ...
#define TW_METRIC_ITL ...
#define TW_METRIC_ITL_WITHOUT_GC ...
#define TW_METRIC_TPOT ...
#define TW_METRIC_E2E ...
#define TW_METRIC_QUEUE_PROXY ...
#define TW_METRIC_QUEUE_ACCEPT ...
#define TW_METRIC_ABANDONED_WAIT ...
#define TW_METRIC_SEND_WAIT ...
#define TW_METRIC_PAUSE ...
#define TW_METRICS ...

const tw_layout *tw_metric_layout(int metric);

#define TW_SERVED_TTFT ...
#define TW_SERVED_TPOT ...
#define TW_SERVED_FAILED ...
#define TW_FAILURES ...

const char *tw_failure_name(int failure);
const tw_layout *tw_served_layout(int metric);

typedef struct tw_snapshot_series {
    char model[...];
    char route[...];
    tw_counts *metric[...];
    tw_counts *served[...];
    uint64_t reasons[...];
    uint64_t output_tokens;
    ...;
} tw_snapshot_series;

typedef struct tw_snapshot_step {
    char name[...];
    tw_counts *spent[...];
    uint64_t batch, unknown_ns;
    uint64_t overlap_ns[...][...];
    uint64_t request_ns[...][...];
} tw_snapshot_step;

typedef struct tw_snapshot_process {
    char role[...];
    uint64_t index, lives, pid, created_ns;
    uint64_t pause_ns[...];
    tw_pause_totals pause[...];
    uint64_t pauses_lost;
    tw_counts *pauses[...];
    uint64_t bytes, last_stop_ns;
    uint64_t standing_ns, standing_cause;
    tw_policy policy;
    tw_snapshot_step *steps;
    uint32_t step_count;
    ...;
} tw_snapshot_process;

typedef struct tw_snapshot_fallback {
    char shape[...];
    char reason[...];
    uint64_t count;
} tw_snapshot_fallback;

typedef struct tw_snapshot_lost {
    char role[...];
    uint64_t overlap_ns[...][...];
    uint64_t late_ns[...][...];
} tw_snapshot_lost;

typedef struct tw_snapshot {
    tw_clock_pair taken;
    uint64_t window_ns;
    uint32_t series_count, process_count;
    tw_snapshot_series *series;
    tw_snapshot_process *process;
    tw_snapshot_lost lost[...];
    uint32_t lost_count;
    uint64_t in_flight, opened, label_overflow, deadlines_due, deadlines_met;
    uint64_t arrivals[...];
    uint64_t drops[...];
    uint64_t errors[...];
    tw_slo slo;
    tw_tail tail[...][...];
    tw_second *seconds;
    tw_slow_record *slow;
    uint32_t slow_count;
    tw_name *slow_series;
    tw_snapshot_fallback *fallbacks;
    uint32_t fallback_count;
    ...;
} tw_snapshot;

typedef struct tw_window {
    uint64_t good, miss, excluded, finished, ttft_ok, tpot_ok, itl_ok, e2e_ok, due, met, seconds;
} tw_window;

int tw_snapshot_take(tw_snapshot **out, const tw_segment *const *segments, size_t n);
int tw_snapshot_subtract(tw_snapshot **out, const tw_snapshot *later, const tw_snapshot *earlier);
void tw_snapshot_free(tw_snapshot *s);
bool tw_snapshot_metric(const tw_snapshot *s, int metric, const char *model, const char *route, tw_counts *out);
void tw_snapshot_window(const tw_snapshot *s, uint32_t window_s, tw_window *out);

typedef struct tw_history tw_history;
int tw_history_create(tw_history **out);
void tw_history_free(tw_history *h);
size_t tw_history_bytes(void);
int tw_history_push(tw_history *h, const tw_snapshot *s);
int tw_history_window(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot **out);

/* ttft_by_concurrency.h, concurrency_knee.h */
#define TW_CROWD_LEVELS ...
#define TW_HEALTHY_FOUND ...

typedef struct tw_healthy {
    uint64_t verdict;
    double streams, confidence;
    uint64_t fitted;
    double base_s, slope_s, bend_s, bend_at, median_s;
    uint64_t samples, levels, lowest, highest, window_s;
} tw_healthy;

typedef struct tw_crowd_point {
    double streams, ttft_s;
    uint64_t samples;
} tw_crowd_point;

typedef struct tw_crowd {
    uint64_t running, shared;
    ...;
} tw_crowd;

void tw_crowd_note(tw_crowd *crowd, uint64_t streams, uint64_t ttft_ns, uint64_t now_ns);
void tw_crowd_share(tw_crowd *crowd, int shared);
int tw_healthy_find(tw_healthy *out, const tw_crowd *const *crowds, size_t n, uint64_t now_ns);
const char *tw_healthy_name(int verdict);
double tw_healthy_ttft(const tw_healthy *h, double x);
int tw_healthy_take(tw_healthy *out, tw_crowd_point *points, uint32_t *count, const tw_segment *const *segments, size_t n,
                    uint64_t now_ns);

typedef struct tw_load_gauges {
    double running, waiting, healthy, confidence, ratio, utilization, headroom, predicted_s, within_slo;
    const char *verdict;
    const tw_crowd_point *points;
    uint32_t point_count;
} tw_load_gauges;

/* metrics.h */
typedef struct tw_metrics_info {
    const char *version, *python, *slo;
    uint64_t extra_bytes;
    double registry_seconds;
    uint32_t goodput_window_s;
    const tw_load_gauges *load;
} tw_metrics_info;

typedef struct tw_instrument {
    const char *prometheus, *otlp, *unit, *help;
    ...;
} tw_instrument;

const tw_instrument *tw_instruments(size_t *count);

/* otlp.h */
typedef struct tw_otlp_own {
    uint64_t start_unix_ns, exported, failed, skipped, spans, spans_dropped, span_events_dropped, hold_ns;
} tw_otlp_own;

typedef struct tw_otlp_info {
    tw_metrics_info metrics;
    const char *provider;
    const void *resource;
    size_t resource_len;
    const char *resource_schema_url;
    uint64_t start_unix_ns, since_unix_ns, time_unix_ns;
    bool delta_histograms, delta_sums, exponential;
    uint32_t max_buckets;
    tw_otlp_own own, own_since;
} tw_otlp_info;

#define TW_OTLP_MAX_BUCKETS ...

/* prom_exposition.h */
#define TW_FORMAT_TEXT ...
#define TW_FORMAT_OPENMETRICS ...
#define TW_FORMAT_PROTOBUF ...
#define TW_FORMAT_PROTOBUF_NATIVE ...

typedef struct tw_buffer {
    char *data;
    size_t length;
    ...;
} tw_buffer;

void tw_buffer_free(tw_buffer *b);

int tw_exposition_render(const tw_snapshot *s, const tw_metrics_info *info, int format, tw_buffer *out);
int tw_otlp_metrics(const tw_snapshot *now, const tw_snapshot *since, const tw_otlp_info *info, tw_buffer *out);
const char *tw_otlp_operation(const char *route);
