/* Every metric that is exported: its names, unit, description and samples, each written once. Prometheus's formats and
 * OTLP are encoders over this table.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/aggregate/concurrency_knee.h"
#include "tailwatch/aggregate/snapshot.h"

#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* The load signal, for routers. Numbers below 0 are not known: their metrics have no sample. */
typedef struct tw_load_gauges {
    double running, waiting;             /* requests in flight, whole group */
    double healthy, confidence;          /* see concurrency_knee.h */
    double ratio, utilization, headroom; /* in flight / healthy; the same, at most 1; streams left below it */
    double predicted_s;                  /* TTFT of a request admitted now */
    double within_slo;                   /* 1 or 0: whether that is within the SLO's bound */
    const char *verdict;                 /* tw_healthy_name() */
    const tw_ttft_point *points;        /* the median TTFT by concurrency, ascending */
    uint32_t point_count;
} tw_load_gauges;

/* What is exported beside the snapshot. All strings UTF-8, any content; NULL is "". */
typedef struct tw_metrics_info {
    const char *version, *python, *slo;  /* slo: the text the user gave */
    uint64_t extra_bytes;                /* memory outside segments */
    double registry_seconds;             /* last rendering of the application's own registry; < 0: none */
    uint32_t goodput_window_s;           /* of goodput, throughput and attainment */
    const tw_load_gauges *load;          /* NULL: not known */
} tw_metrics_info;

/* What an OTLP exporter did, since it began. */
typedef struct tw_otlp_own {
    uint64_t start_unix_ns;              /* when that was; 0: with the numbers */
    uint64_t exported, failed, skipped;  /* rounds: taken by the receiver, not taken, left out as one still ran */
    uint64_t spans, spans_dropped;       /* made, and not made for want of room */
    uint64_t span_events_dropped;        /* of spans that were made: past what one may have */
    uint64_t hold_ns;                    /* the longest piece of work under the GIL; 0: none */
} tw_otlp_own;

/* Prometheus has neither UP_DOWN nor (in text and protobuf) INFO: both are gauges there. OTLP has no INFO: a gauge. */
typedef enum tw_instrument_kind {
    TW_INSTRUMENT_COUNTER,
    TW_INSTRUMENT_UP_DOWN,
    TW_INSTRUMENT_GAUGE,
    TW_INSTRUMENT_HISTOGRAM,
    TW_INSTRUMENT_INFO                   /* always 1: its labels are the value */
} tw_instrument_kind;

/* Of which snapshots a metric is written. */
typedef enum tw_instrument_use {
    TW_USE_ALWAYS,
    TW_USE_IDLE_GC,                      /* where a process collects garbage while idle, or has */
    TW_USE_STEPS,                        /* where a process has made engine steps */
    TW_USE_ENGINE,                       /* where the steps of an engine are read off its scheduler */
    TW_USE_LOAD,                         /* where the load signal is known */
} tw_instrument_use;

struct tw_sampling;
struct tw_instrument;
typedef void tw_sampler(struct tw_sampling *, const struct tw_instrument *);

typedef struct tw_instrument {
    const char *prometheus;              /* family, as OpenMetrics has it: a counter without _total; NULL: OTLP only */
    const char *otlp;                    /* NULL: Prometheus only */
    tw_instrument_kind kind;
    const char *unit;                    /* in UCUM; "s" and "By" end Prometheus names as _seconds and _bytes */
    const char *help;                    /* Prometheus's HELP, OTLP's description */
    tw_sampler *samples;
    size_t of;                           /* which histogram, list or offset it reads */
    tw_instrument_use use;
    const double *bounds;                /* of explicit histograms in OTLP, seconds, ending in 0; NULL: the layout's */
} tw_instrument;

/* All metrics, those of one use together. */
const tw_instrument *tw_instruments(size_t *count);

TW_END_C
