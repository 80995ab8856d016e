/* One process's page of memory: everything it measured, in one mapping of fixed size.
 *
 * Its address space has room for all label sets at once; memory is taken, and a file grows (group.h), as they come into
 * use: a process without requests needs one. Nothing touches what lies beyond the series_count that are in use.
 *
 * One writer (the process, under its GIL), any readers. It holds no pointers, so that it may be a file that other
 * processes map (group.h): magic, version, layout hash, owner and clocks show what it is. It is never unmapped
 * while the process lives, so an address of it may cross between extension modules.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/record/ttft_by_concurrency.h"
#include "tailwatch/record/delay_cause.h"
#include "tailwatch/record/engine_sums.h"
#include "tailwatch/record/enums.h"
#include "tailwatch/record/exemplar.h"
#include "tailwatch/record/histogram.h"
#include "tailwatch/record/pause_clock.h"
#include "tailwatch/record/gc_policy_counters.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/genai_counters.h"
#include "tailwatch/record/step_ring.h"
#include "tailwatch/record/step_stats.h"

TW_BEGIN_C

#define TW_SEGMENT_MAGIC UINT64_C(0x31574c4941543e21) /* "!>TAILW1" */
#define TW_SEGMENT_VERSION 27
#define TW_NAME_WORDS 16            /* 128 bytes: a model name or route, UTF-8, NUL-terminated, cut at a character */
#define TW_NAME_BYTES (TW_NAME_WORDS * 8)
#define TW_ROLE_WORDS 4
#define TW_ID_WORDS 8               /* 64 bytes: a request id, cut to 63 */
#define TW_SECONDS 3600             /* rolling windows: one slot a second, up to an hour */
#define TW_SLOW_RING 256            /* the last slow gaps; a power of two */
#define TW_SLOW_MINUTES 60          /* of each phase the longest of the last minutes, */
#define TW_SLOW_HOURS 24            /* of the last hours, */
#define TW_SLOW_RUN 8               /* and of the run are kept beside them: record/slow_gaps.h */
#define TW_SLOW_PERIODS (TW_SLOW_MINUTES + TW_SLOW_HOURS + TW_SLOW_RUN)
#define TW_SLOW_LONGEST (TW_PHASES * TW_SLOW_PERIODS)
#define TW_SHARES 4                 /* of a slow gap's delay, by other processes: kept apart */
#define TW_PERIODS 16               /* of a label set: four minutes */
#define TW_OCTAVES 32               /* octave o: gaps in [2^o, 2^(o+1)) us; the first and last are open-ended */
#define TW_LABEL_SETS_LIMIT 4096
#define TW_SHAPE_WORDS 8            /* 64 bytes: which frames, of which class or function; cut to 63 */
#define TW_FALLBACK_REASON_WORDS 4  /* 32 bytes: why, cut to 31 */
#define TW_FALLBACKS 32             /* kinds of fallback kept apart; the last is ("other", "other") */

/* Bounds on one request, ns; 0 = no bound. */
typedef struct tw_slo {
    uint64_t ttft_ns, tpot_ns, itl_ns, e2e_ns;
    uint64_t attainment_ppm;        /* asked for: 990000 = 99 % */
} tw_slo;

/* Text held in words, so that it is written and read without a data race. */
typedef struct tw_name { uint64_t word[TW_NAME_WORDS]; } tw_name;

/* The field tables: what a process, and each of its label sets, counts. One line declares a field, and has it summed
 * over processes (aggregate/), subtracted, kept in the history and kept when its process is dead
 * (group/retired_segment.c). CONTRIBUTING.md, "Adding a counter".
 *
 * Counters, FIELD(name, dims): one word, or an array of words; the snapshot has a field of the same name.
 * Histograms, HISTOGRAM(name, metric, layout): a tw_histogram; the snapshot has it as TW_METRIC_<metric>, in the layout
 * TW_LAYOUT_<layout>. Those of a process stand in the order of their metrics. */
#define TW_PROCESS_COUNTERS(FIELD)                                                           \
    FIELD(opened, )                 /* requests ever opened */                               \
    FIELD(arrivals, [TW_ARRIVALS])                                                           \
    FIELD(drops, [TW_DROPS])                                                                 \
    FIELD(errors, [TW_ERRORS])                                                               \
    FIELD(label_overflow, )         /* requests whose labels became "other" */               \
    FIELD(unexplained_ns, [TW_PHASES][TW_UNEXPLAINED_REASONS])                               \
    FIELD(deadlines_due, )                                                                   \
    FIELD(deadlines_met, )
#define TW_PROCESS_HISTOGRAMS(HISTOGRAM)                                                     \
    HISTOGRAM(queue_proxy, QUEUE_PROXY, TTFT)                                                \
    HISTOGRAM(queue_accept, QUEUE_ACCEPT, TTFT)                                              \
    HISTOGRAM(abandoned_wait, ABANDONED_WAIT, TTFT)                                          \
    HISTOGRAM(send_wait, SEND_WAIT, TTFT)
#define TW_SERIES_COUNTERS(FIELD)                                                            \
    FIELD(reasons, [TW_REASONS])                                                             \
    FIELD(output_tokens, )
#define TW_SERIES_HISTOGRAMS(HISTOGRAM)                                                      \
    HISTOGRAM(ttft, TTFT, TTFT)                                                              \
    HISTOGRAM(itl, ITL, ITL)                                                                 \
    HISTOGRAM(itl_shift, ITL_WITHOUT_GC, ITL) /* itl + itl_shift = the same gaps without their delay part */ \
    HISTOGRAM(tpot, TPOT, ITL)                                                               \
    HISTOGRAM(e2e, E2E, E2E)
#define TW_HISTOGRAM_FIELD(name, metric, layout) tw_histogram name;

/* What one (model, route) measured. */
typedef struct tw_series {
    tw_name model, route;
    TW_SERIES_HISTOGRAMS(TW_HISTOGRAM_FIELD)
    TW_SERIES_COUNTERS(TW_COUNTER_FIELD)
    uint64_t typical_ns[16];        /* the last typical gaps that streams found: a new stream's first idea */
    uint64_t typical_next;
    uint64_t period_ns[TW_PERIODS]; /* what was typical in each of the last periods of 15 s; 0: nothing */
    uint64_t period;                /* number of the running one + 1 */
    uint64_t typical_most_ns;       /* no stream's typical gap exceeds this; 0: not known yet */
    uint64_t typical_ttft_ns;       /* a running median; 0: not known yet */
} tw_series;

/* One second of finished requests. Pairs of 32-bit counts share a word: low half, high half. */
typedef struct tw_second {
    uint64_t second;                /* monotonic second + 1 this slot holds; 0 = never used */
    uint64_t good_miss;
    uint64_t excluded_finished;
    uint64_t ttft_tpot;             /* requests within that bound, judged requests only */
    uint64_t itl_e2e;
    uint64_t due_met;               /* token deadlines (fluidity) */
} tw_second;

/* Gaps that were longer than usual, by octave of their length: where their time went. */
typedef struct tw_tail {
    uint64_t count, time_ns;
    uint64_t delay_ns[TW_CAUSES];
    uint64_t client_ns;             /* waiting for a slow client to read */
    uint64_t accept_ns;             /* ttft: waited unseen before the app was entered, pauses not counted */
    uint64_t host_ns, engine_ns;    /* callback .. stopped, transport .. device of tw_delay_cause */
    uint64_t unexplained_ns;        /* the rest of what exceeds the typical gap: upstream too */
} tw_tail;

/* Stream time that coincided with the pauses of one role, and what its processes added to waits; summed over streams.
 * Delay by pauses: of all waits; by other causes: of slow ones. */
typedef struct tw_lost {
    uint64_t role[TW_ROLE_WORDS];
    uint64_t overlap_ns[TW_PHASES][TW_CAUSES];
    uint64_t delay_ns[TW_PHASES][TW_DELAYS][TW_CERTAINTIES];
} tw_lost;

/* What another process's pauses of one cause did to one gap. */
typedef struct tw_share {
    uint64_t source;                /* of the segment's lost[] */
    uint64_t cause;
    uint64_t overlap_ns, delay_ns;   /* overlap_ns 0: this share is empty */
} tw_share;

/* One slow wait, or one for the log. Valid when seq == its running number + 1. */
typedef struct tw_slow_record {
    uint64_t seq;
    uint64_t end_ns;                /* monotonic */
    uint64_t phase;                 /* tw_phase */
    uint64_t gap_ns, typical_ns;
    uint64_t overlap_ns[TW_CAUSES]; /* of all processes */
    uint64_t delay_ns[TW_CAUSES];
    tw_share share[TW_SHARES];      /* what others' pauses are of it, the largest; the rest is this process's own */
    uint64_t client_ns, accept_ns, unexplained_ns;
    uint64_t complete;              /* 0: the pause ring wrapped, overlap is a lower bound and delay unknown */
    uint64_t series;                /* label set */
    uint64_t token;                 /* which token of its stream, 1 = the first */
    uint64_t request_id[TW_ID_WORDS];
    uint64_t trace_id[TW_TRACE_WORDS];
    tw_parts parts;                 /* they sum to what exceeds the typical gap; names are of this segment's host.names,
                                     * sources of its lost[] */
} tw_slow_record;

/* Frames of one shape that a template could have made and the server made itself, for one reason. */
typedef struct tw_fallback {
    uint64_t shape[TW_SHAPE_WORDS], reason[TW_FALLBACK_REASON_WORDS];
    uint64_t count;
} tw_fallback;

typedef struct tw_header {
    uint64_t magic, version, layout_hash;
    uint64_t bytes;                 /* of the whole segment, all label sets in use */
    uint64_t pid;
    uint64_t start_time;            /* field 22 of /proc/PID/stat: distinguishes a reused pid */
    uint64_t boot_id[2];
    uint64_t role[TW_ROLE_WORDS];   /* "api", "engine", ... */
    tw_clock_pair created;
    uint64_t max_label_sets;
    uint64_t place;                 /* 1 + the process's index among those of its role; 0: it has none (yet) */
    uint64_t pid_namespace;         /* tw_process_namespace(): in another one the pid means nothing */
    uint64_t image;                 /* tw_process_image(): what a process measured before an exec() is of the dead */
    uint64_t ended;                 /* not 0: its process writes here no more, though it may live */
    uint64_t locked;                /* not 0: its file is locked for as long as its process lives: group/member_lock.h */
    uint64_t engine;                /* it works for, whose streams its pauses may delay; 0: no engine */
    uint64_t is_front;              /* not 0: requests are stamped here, by its app or by hand */
    uint64_t series_bytes;          /* from one label set to the next: sizeof(tw_series), plus a tw_served's if kept */
} tw_header;

typedef struct tw_segment {
    tw_header header;
    tw_slo slo;
    uint64_t slow_ns;               /* waits this long are kept for the log, whatever is slow; 0: none */
    tw_pause_clock pause;
    tw_histogram stalls[TW_STALLS]; /* by tw_cause lengths of closed pauses: their sum is the pause word when none is open;
                                     * further on what other causes took of each stall of a loop (attribute/stalls.h), zeros until the
                                     * first */
    TW_PROCESS_HISTOGRAMS(TW_HISTOGRAM_FIELD)
    tw_lost lost[TW_SOURCES];       /* 0: to this process's own pauses */
    uint64_t in_flight;             /* requests open now */
    TW_PROCESS_COUNTERS(TW_COUNTER_FIELD)
    tw_second seconds[TW_SECONDS];
    tw_tail tail[TW_PHASES][TW_OCTAVES];
    uint64_t slow_head;             /* slow records ever written */
    tw_slow_record slow[TW_SLOW_RING];
    tw_slow_record slow_longest[TW_SLOW_LONGEST];
    uint64_t fallback_count;        /* kinds in use; release-stored after the kind is written */
    tw_fallback fallbacks[TW_FALLBACKS];
    tw_steps steps;
    tw_ttft_by_concurrency ttft_by_concurrency;
    tw_policy policy;               /* the collector's */
    tw_host host;                   /* what the threads that tokens wait for did */
    tw_step_ring step_ring;         /* of the engine's loop in this process */
    tw_engine_sums engine;          /* what its steps add up to */
    tw_exemplar exemplars[TW_EXEMPLARS]; /* of requests whose trace is known and kept */
    uint64_t series_count;          /* label sets in use; release-stored after the set is written */
    /* tw_series[max_label_sets] follow, header.series_bytes apart */
} tw_segment;

/* Bytes of the label sets in use and of all that stands before them: what a copy must hold. At most header.bytes,
 * whatever series_count is. */
size_t tw_segment_used(const tw_segment *g);

/* Maps and fills a private segment owned by this process, for 1 .. TW_LABEL_SETS_LIMIT label sets; label set 0 is
 * ("other", "other"). served: with a tw_served for each. role is cut to 31 bytes. Returns 0, EINVAL or ENOMEM. */
int tw_segment_create(tw_segment **out, const char *role, uint32_t max_label_sets, bool served, const tw_slo *slo,
                      uint64_t slow_ns);

/* The same in zeroed memory of the caller, as large as header.bytes becomes. Returns 0 or EINVAL. */
int tw_segment_create_in(void *memory, const char *role, uint32_t max_label_sets, bool served, const tw_slo *slo,
                         uint64_t slow_ns);

/* Returns the mapping. Only for tests and for an install that failed half way: see above. */
void tw_segment_destroy(tw_segment *g);

/* Forgets all that was measured, keeps the options, takes the calling process as owner: for a fork child,
 * whose counters must start from zero. Single writer. */
void tw_segment_reset(tw_segment *g);

/* Another role from now on; cut to 31 bytes. Single writer. */
void tw_segment_set_role(tw_segment *g, const char *role);

/* Whether its process lives and writes to it. About 3 us. One of another PID namespace lives until its `ended` is set,
 * or the machine has booted: tw_members_note_ended() sets it in the reader's own copy. */
bool tw_segment_lives(const tw_segment *g);

/* Whether its pid means nothing here: it is of another PID namespace, or one of the two is unknown. */
bool tw_segment_is_elsewhere(const tw_header *header);

/* Whether it was made since the machine booted. */
bool tw_segment_is_of_this_boot(const tw_header *header);

/* Whether the magic, version, layout and size are ours, and bytes of it are enough for the label sets in use. For a
 * reader of another process's segment: a series_count above max_label_sets, or beyond those bytes, is refused. */
bool tw_segment_valid(const tw_segment *g, size_t bytes);

/* Label set number i; i < series_count. */
tw_series *tw_segment_series(const tw_segment *g, uint32_t i);

/* What is kept of it for OTLP; NULL where the segment was made without. */
tw_served *tw_segment_served(const tw_segment *g, const tw_series *series);

/* Number of the label set with these names, made if there is room; else 0 ("other", "other"), counted in
 * label_overflow. Names longer than TW_NAME_BYTES - 1 are cut at a UTF-8 character; bytes that are not
 * UTF-8, and control characters, become '?'. Cost: a scan of the sets in use; call once a request. */
uint32_t tw_segment_label(tw_segment *g, const char *model, size_t model_len, const char *route, size_t route_len);

/* Adds to the fallbacks of the fast SSE path: where shape and reason are known, else as a new kind, and as
 * ("other", "other") where there is no room. Texts are cleaned and cut as label names are. Not on the token path. */
void tw_segment_fallback(tw_segment *g, const char *shape, size_t shape_len, const char *reason, size_t reason_len,
                         uint64_t times);

/* Number of the source with this role, 1 .. TW_SOURCE_OTHER - 1, made if there is room; else TW_SOURCE_OTHER. */
uint32_t tw_segment_source(tw_segment *g, const char *role);

/* Number of the engine step with this name, made if there is room; else, and for an empty one, TW_STEP_OTHER. Names are
 * cleaned as labels are, and cut to 31 bytes. */
uint32_t tw_segment_step(tw_segment *g, const char *name, size_t len);

/* The slot of monotonic time t, emptied if it held an older second. NULL for a time older than the slot's.
 * A reader takes a slot whose second it sees unchanged before (acquire) and after its counts. */
tw_second *tw_segment_second(tw_segment *g, uint64_t t_ns);
static inline uint64_t tw_low(uint64_t pair) { return pair & UINT32_MAX; }
static inline uint64_t tw_high(uint64_t pair) { return pair >> 32; }

/* Octave of a gap, 0 .. TW_OCTAVES - 1. */
uint32_t tw_octave_of(uint64_t gap_ns);

/* Copies slow record number n; false when overwritten or not written yet. Any thread, never torn. */
bool tw_segment_slow_read(const tw_segment *g, uint64_t n, tw_slow_record *out);

/* Closes a pause (see pause_clock.h) and records its length in stalls[cause]. */
uint64_t tw_segment_pause_end(tw_segment *g, uint64_t now_ns, const tw_pause_result *result);

/* Copies text into words (NUL-padded, cut at a character to words * 8 - 1 bytes) and out of them (always
 * NUL-terminated; out holds words * 8 bytes). */
void tw_words_set(uint64_t *words, uint32_t n, const char *text, size_t len);
void tw_words_get(const uint64_t *words, uint32_t n, char *out);

TW_END_C
