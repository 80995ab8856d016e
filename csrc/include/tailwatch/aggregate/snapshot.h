/* Numbers at rest: many segments copied and merged into one, and what can be asked of it.
 *
 * Cold path: allocates, is called without the GIL. A snapshot is immutable once made; any thread may read it.
 * Counts and sums are exact; merging is associative and commutative.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* Which histogram of a label set, or (model and route ignored) of the process. */
typedef enum tw_metric {
    TW_METRIC_TTFT,
    TW_METRIC_ITL,
    TW_METRIC_ITL_WITHOUT_GC,
    TW_METRIC_TPOT,
    TW_METRIC_E2E,
    TW_SERIES_METRICS,
    TW_METRIC_QUEUE_PROXY = TW_SERIES_METRICS,
    TW_METRIC_QUEUE_ACCEPT,
    TW_METRIC_ABANDONED_WAIT,
    TW_METRIC_SEND_WAIT,
    TW_METRIC_PAUSE,                         /* + tw_cause; of a stall, + TW_CAUSES and more: see tw_segment.stalls */
    TW_METRICS = TW_METRIC_PAUSE + TW_STALLS
} tw_metric;

const tw_layout *tw_metric_layout(int metric);

/* What is kept for OTLP: of answered requests, and how long the others took, by tw_failure. */
typedef enum tw_served_metric {
    TW_SERVED_TTFT,
    TW_SERVED_TPOT,
    TW_SERVED_FAILED,                        /* + tw_failure; in buckets of TW_BRIEF_SCALE */
    TW_SERVED_METRICS = TW_SERVED_FAILED + TW_FAILURES
} tw_served_metric;

const tw_layout *tw_served_layout(int metric);

typedef struct tw_snapshot_series {
    char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
    tw_counts *metric[TW_SERIES_METRICS];    /* NULL: empty */
    tw_counts *served[TW_SERVED_METRICS];    /* likewise */
    TW_SERIES_COUNTERS(TW_COUNTER_FIELD)
    uint32_t exemplars_at, exemplar_count;   /* of the snapshot's exemplars: its own */
} tw_snapshot_series;

/* A request that stands for a bucket of one of a label set's histograms. */
typedef struct tw_snapshot_exemplar {
    uint32_t metric, bound;                  /* tw_metric; the classic bound, see exemplar.h */
    uint64_t value_ns, unix_ns;              /* what was measured, and when */
    char trace_id[TW_TRACE_WORDS * 8];       /* a good one: tw_exemplar_id_is_good() */
} tw_snapshot_exemplar;

/* The engine steps of one name, of one process: see engine_step.h. */
typedef struct tw_snapshot_step {
    char name[TW_STEP_NAME_WORDS * 8];
    tw_counts *spent[TW_STEP_PHASES];        /* lengths of the steps, and of the host gaps before them; NULL: empty */
    TW_STEP_COUNTERS(TW_COUNTER_FIELD)
} tw_snapshot_step;

#define TW_SNAPSHOT_STEPS 256                /* of the last ones, with their records */

/* The step of an engine, read off its scheduler. */
typedef struct tw_snapshot_engine_step {
    tw_step_record record;                   /* prefill_name: nothing */
    char prefill_of[TW_REQUEST_NAME_WORDS * 8]; /* the request with the most prefill tokens; "": none, or not known */
} tw_snapshot_engine_step;

/* An engine whose steps are read off its scheduler: see record/engine_sums.h. */
typedef struct tw_snapshot_engine {
    uint64_t steps;
    tw_counts *length[TW_STEP_WORKS];        /* NULL: empty */
    TW_ENGINE_COUNTERS(TW_COUNTER_FIELD)
    tw_step_cost cost;                       /* of the latest that had the name */
    tw_snapshot_engine_step *last;           /* oldest first; likewise */
    uint32_t last_count;
} tw_snapshot_engine;

/* A process in the snapshot: what carries the label `process`. What had this role and index before it, and is dead,
 * counts here too: so what a name has counted never goes back. */
typedef struct tw_snapshot_process {
    char role[TW_ROLE_WORDS * 8];
    uint64_t index;                          /* among those of its role; for life */
    uint64_t lives;                          /* 0: all that had the name are dead */
    uint64_t created_unix_ns;                /* created_ns as time of day */
    uint64_t pid, created_ns;                /* pid: the living one's, else the last known of the dead, 0 if none is;
                                                created: the first's */
    uint64_t pause_ns[TW_CAUSES];            /* the words, an open pause included up to taken_ns */
    tw_pause_totals pause[TW_CAUSES];
    uint64_t pauses_lost;
    tw_counts *stalls[TW_STALLS];            /* NULL: empty */
    uint64_t bytes;                          /* memory of its segment, of those of the dead, and of its policy */
    uint64_t last_stop_ns;
    uint64_t standing_ns;                    /* how long it had been standing still then; 0: it was not */
    uint64_t standing_cause;                 /* tw_cause; nothing where standing_ns is 0 */
    tw_policy policy;                        /* counts of all that had the name; now: the living one's */
    tw_snapshot_step *steps;                 /* those that it made, as they are named; NULL: none. A window of the past
                                                (tw_history_window) has none */
    uint32_t step_count;
    tw_snapshot_engine *engine;              /* NULL: none of its steps was read, or a window of the past */
} tw_snapshot_process;

/* Frames of one shape that the server made itself, for one reason. */
typedef struct tw_snapshot_fallback {
    char shape[TW_SHAPE_WORDS * 8], reason[TW_FALLBACK_REASON_WORDS * 8];
    uint64_t count;
} tw_snapshot_fallback;

/* Stream time that coincided with the pauses of one role, and what its processes added to waits. */
typedef struct tw_snapshot_lost {
    char role[TW_ROLE_WORDS * 8];
    uint64_t overlap_ns[TW_PHASES][TW_CAUSES], delay_ns[TW_PHASES][TW_DELAYS][TW_CERTAINTIES];
} tw_snapshot_lost;

typedef struct tw_snapshot {
    tw_clock_pair taken;
    uint64_t created_ns;                     /* when the oldest segment was made, unix time: all counts were 0 then */
    uint64_t window_ns;                      /* since the oldest segment's creation, or of a difference */
    uint32_t series_count, process_count;
    tw_snapshot_series *series;              /* sorted by model, then route */
    tw_snapshot_process *process;            /* the oldest first */
    tw_counts *wait[TW_METRIC_PAUSE - TW_METRIC_QUEUE_PROXY]; /* TW_METRIC_QUEUE_PROXY .. SEND_WAIT; NULL: empty */
    tw_snapshot_lost lost[TW_SOURCES];       /* each role once, in the order they came; more than fit are "other" */
    uint32_t lost_count;
    uint64_t in_flight;
    TW_PROCESS_COUNTERS(TW_COUNTER_FIELD)
    tw_slo slo;
    tw_tail tail[TW_PHASES][TW_OCTAVES];
    tw_second *seconds;                      /* TW_SECONDS of them, merged by second, ascending; unused at the front */
    tw_slow_record *slow;                    /* newest last; .series indexes slow_series, .share[].source and those of its
                                                parts lost[] */
    tw_name_table *names;                    /* that the parts of slow refer to; NULL: there are none */
    uint8_t *slow_longest;                   /* of each, whether it is the longest of a minute, an hour or the run;
                                                those that are not are among the last TW_SLOW_RING */
    uint32_t slow_count;
    tw_name *slow_series;                    /* pairs: model, route of each slow record */
    tw_snapshot_exemplar *exemplars;         /* of the living processes: by label set, metric and bound, each once, the
                                                newest. A difference has none */
    tw_snapshot_fallback *fallbacks;         /* by shape, then reason, each once; NULL: none */
    uint32_t fallback_count;
} tw_snapshot;

/* Copies and merges n >= 1 segments, their writers going on. The bounds are those of the first. Returns 0, EINVAL or
 * ENOMEM. */
int tw_snapshot_take(tw_snapshot **out, const tw_segment *const *segments, size_t n);

/* later - earlier, a new snapshot: counts and slow records in between; gauges and seconds are later's.
 * Label sets that earlier lacks count from zero. */
int tw_snapshot_subtract(tw_snapshot **out, const tw_snapshot *later, const tw_snapshot *earlier);

void tw_snapshot_free(tw_snapshot *s);

/* Histogram of a metric, merged over the label sets that match (NULL matches all) or over processes.
 * false: no sample; out is then empty. */
bool tw_snapshot_metric(const tw_snapshot *s, int metric, const char *model, const char *route, tw_counts *out);

/* Sum of the seconds in (taken - window, taken]; window in whole seconds, 1 .. TW_SECONDS. The current,
 * unfinished second counts. */
typedef struct tw_window {
    uint64_t good, miss, excluded, finished, ttft_ok, tpot_ok, itl_ok, e2e_ok, due, met;
    uint64_t seconds;                        /* the window, cut to the time there are numbers for (at least 1) */
} tw_window;
void tw_snapshot_window(const tw_snapshot *s, uint32_t window_s, tw_window *out);

/* The past, so that percentiles of the last minutes can be asked: label-merged histograms and totals every
 * 5 s for 65 s and every 60 s for 61 minutes, as 32-bit counts (a difference of fewer than 2^32 samples is exact).
 * Fixed memory. One writer (tw_history_push); a lock inside, never taken on a token path. */
typedef struct tw_history tw_history;
int tw_history_create(tw_history **out);
void tw_history_free(tw_history *h);
size_t tw_history_bytes(void);
/* Keeps s if one of the two grids is due at s->taken; call it at least every 5 s. Returns 0 or ENOMEM. */
int tw_history_push(tw_history *h, const tw_snapshot *s);
/* now - the kept one whose age is nearest to window_ns: a snapshot with one label set ("*", "*"), whose
 * window_ns is what it really covers. ENODATA when nothing was kept yet (then out = a copy of now, merged). */
int tw_history_window(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot **out);
/* From now on marks keep each label set, too, as long as there are at most 64: a few kilobytes each, allocated as it is
 * pushed. */
void tw_history_keep_labels(tw_history *h);
size_t tw_history_label_bytes(const tw_history *h);
/* now - the kept one whose age is nearest to window_ns, or the start: the histograms and counters of its label sets,
 * and window_ns, are of the window; all else is not. ENODATA: that one has no label sets (then out = NULL). */
int tw_history_window_of_labels(const tw_history *h, const tw_snapshot *now, uint64_t window_ns, tw_snapshot **out);

TW_END_C
