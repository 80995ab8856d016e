/* The samples of a metric, as its encoders receive them: labels and a value, in no format. Private. */
#pragma once

#include "tailwatch/export/metrics.h"

#include <stdbool.h>

#define TW_SAMPLE_LABELS 4
#define TW_PROCESS_NAME_ROOM (TW_ROLE_WORDS * 8 + 24)

/* a; a billionths; a / b with b > 0. */
typedef struct tw_number {
    enum { TW_NUMBER_COUNT, TW_NUMBER_BILLIONTHS, TW_NUMBER_RATIO } kind;
    uint64_t a, b;
} tw_number;

typedef struct tw_label {
    const char *name, *value;            /* OTLP puts "tailwatch." before the name */
} tw_label;

/* Labels come in the order of these members. */
typedef struct tw_sample {
    const tw_snapshot_series *series;    /* model and route; NULL: not by label set */
    const char *error_type;              /* of failed requests; OTLP only */
    int cause;                           /* tw_cause, as the label of a garbage collection's generation; -1: none */
    const tw_snapshot_process *process;  /* NULL: of the group */
    tw_label label[TW_SAMPLE_LABELS];    /* further ones; name NULL: no more */
    tw_number number;
    bool counted;                        /* whether a counter at 0 has a point in OTLP: its subject has occurred */
    uint64_t start_unix_ns;              /* when it was 0; 0: with the snapshot or process */
    const tw_counts *counts;             /* of a histogram, never NULL there */
    const tw_layout *layout;
    int scale;                           /* the finest that its buckets are exact at */
    const tw_snapshot_exemplar *exemplars; /* by bound */
    uint32_t exemplar_count;
} tw_sample;

typedef struct tw_sampling {
    const tw_snapshot *snapshot;         /* totals, or a difference of two */
    const tw_snapshot *latest;           /* has the exemplars; its label sets are the snapshot's, in the same order */
    const tw_metrics_info *info;
    tw_otlp_own own;                     /* OTLP only */
    tw_window window;
    uint64_t gave_way_ns;                /* when the core was last offered to other threads */
    void (*emit)(void *to, const tw_sample *); /* the sample, and what it points to, is valid in that call only */
    void *to;
} tw_sampling;

/* Whether metrics of a use are written. */
bool tw_sampling_has(const tw_sampling *sampling, tw_instrument_use use);

/* The role and index of a process, "api-0", into TW_PROCESS_NAME_ROOM. */
void tw_process_name(char *to, const tw_snapshot_process *process);

/* Nearest double. */
double tw_number_value(const tw_number *number);

/* What engine_list reads. */
enum { TW_LIST_PARTS, TW_LIST_TOKENS, TW_LIST_DRAFTS, TW_LIST_GRAPHS };

/* What snapshot_list and policy_list read. */
enum { TW_LIST_ARRIVALS, TW_LIST_DROPS, TW_LIST_ERRORS };
enum { TW_LIST_COLLECTIONS, TW_LIST_INTERFERENCE, TW_LIST_SLICES, TW_LIST_MEMORY_LIMITS };

tw_sampler tw_sample_series_histogram, tw_sample_served_histogram, tw_sample_request_durations,
    tw_sample_series_requests, tw_sample_series_tokens, tw_sample_requests_good, tw_sample_window_goodput,
    tw_sample_window_throughput, tw_sample_window_attainment, tw_sample_snapshot_word, tw_sample_wait_histogram,
    tw_sample_queue_stages, tw_sample_gc_histograms, tw_sample_policy_histograms, tw_sample_stalls, tw_sample_gc_totals,
    tw_sample_gc_collections, tw_sample_stream_overlap, tw_sample_stream_delay, tw_sample_unexplained,
    tw_sample_step_histogram, tw_sample_step_word,
    tw_sample_step_seconds, tw_sample_engine_lengths, tw_sample_engine_word, tw_sample_engine_list,
    tw_sample_engine_requests, tw_sample_engine_kv_use, tw_sample_engine_cost, tw_sample_policy_info, tw_sample_policy_list, tw_sample_idle_gc_word,
    tw_sample_heap_size, tw_sample_idle_gc_backlog, tw_sample_snapshot_list, tw_sample_sse_fallbacks,
    tw_sample_memory, tw_sample_registry_render, tw_sample_build_info, tw_sample_otlp_exports, tw_sample_otlp_spans,
    tw_sample_otlp_longest_hold, tw_sample_load_number, tw_sample_load_verdict, tw_sample_load_curve;
