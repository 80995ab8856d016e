/* An export that is under way. Private. */
#pragma once

#include "trace/trace_parts.h"

#include <string.h>

/* Every text that is the same for all files. */
#define TEXTS(text)                                                                                                      \
    text(GC, "GC") text(REQUESTS, "requests") text(STEPS, "steps") text(LOST, "lost") text(REQUEST, "request")           \
    text(QUEUE, "queue") text(WAIT, "until first token") text(ANSWER, "answer") text(FIRST, "first token")               \
    text(TOKEN, "token") text(HOST_GAP, "host gap") text(HOST_GAPS, "host gaps") text(EVENTS_LOST, "events lost")  \
    text(STALLS_LOST, "stalls lost") text(GC_KIND, "gc")                                                                 \
    text(NUMBER, "number") text(MODEL, "model") text(ROUTE, "route") text(ARRIVAL, "arrival") text(OUTCOME, "outcome")   \
    text(REASON, "reason") text(TOKENS, "tokens") text(CHOICE, "choice")                             \
    text(OVERLAP, "overlap_us") text(LATE, "delay_us") text(BEGINNING_LOST, "beginning lost") text(BATCH, "batch")        \
    text(WAITING, "waiting") text(COLLECTED, "collected") text(UNCOLLECTABLE, "uncollectable") text(RING, "ring")        \
    text(HOW_MANY, "count") text(STANDS, "no end yet") text(INSIDE, "inside another") \
    text(STALLS, "stalls") text(SAMPLES, "stalls, sampled") text(STALL, "stall") text(CAUSE, "cause")                    \
    text(CERTAINTY, "certainty") text(FUNCTION, "function") text(FILE, "file") text(CALLER, "caller")                    \
    text(CALL, "call") text(HOLDER, "holder") text(THROTTLED, "throttled_us")

#define TEXT_NUMBER(name, text) T_##name,
enum { TEXTS(TEXT_NUMBER) T_TEXTS };

#define PENDING_GAPS 64 /* host gaps that may still turn out to be inside a step */

typedef enum phase { PHASE_NONE, PHASE_WAIT, PHASE_ANSWER } phase;

typedef struct host_gap {
    uint64_t from_ns, to_ns, waiting;
} host_gap;

/* What one thread's steps have come to. */
typedef struct step_lane {
    uint32_t track, gap_track;
    uint32_t thread;          /* track of the thread */
    uint64_t tid;
    uint64_t end_ns, waiting; /* of the latest step; end_ns 0: none */
    host_gap pending[PENDING_GAPS];
    uint32_t pending_n;
} step_lane;

/* One row: its slices lie beside each other. */
typedef struct stall_row {
    uint32_t track;
    uint64_t end_ns;            /* of its slices */
    tw_ring_event stall, frames; /* read last: it may grow yet. time_ns 0: none */
} stall_row;

/* A row for what was measured, one for samples. */
typedef struct stall_rows {
    uint64_t tid;               /* 0: of the process */
    stall_row row[2];
} stall_rows;

typedef struct exporter {
    tw_timeline *timeline;
    const tw_trace *const *files;
    size_t n;
    uint64_t from_ns, until_ns;
    tw_trace_account *account;
    tw_ends *ends;
    bool *waited;                /* whether streams wait for a process */
    uint32_t engines;            /* processes that are one */
    tw_pauses pauses;
    tw_reader reader;
    uint32_t text[T_TEXTS];
    uint32_t cause[TW_CAUSES], reason[TW_REASONS], outcome[TW_OUTCOMES], arrival[TW_ARRIVALS];
    uint64_t gave_way_ns;
    int error;

    /* the process at hand */
    uint32_t process;
    const tw_trace *file;
    uint64_t first_ns;           /* time of its first event; else when it began to record */
    uint32_t sequence;
    uint32_t *process_track, *gc_track; /* of each */
    uint32_t requests_track, counter_track[TW_COUNTERS];
    tw_requests requests;
    step_lane lane[TW_RINGS];
    uint32_t step_name[TW_STEPS];
    uint32_t (*label)[2];        /* model and route, once they were asked for */
    tw_ring_event delay[TW_RINGS]; /* the last one of each ring */
    stall_rows stalls[TW_TRACE_STALL_THREADS + 1]; /* the last one takes those that are not drawn */
    uint32_t stall_threads;
} exporter;

static inline uint32_t name_of(exporter *x, const char *text) { return tw_timeline_name(x->timeline, text, strlen(text)); }

static inline uint32_t track(exporter *x, tw_track_kind kind, uint32_t parent, uint32_t name, uint32_t rank, int64_t tid) {
    const tw_track described = {.kind = kind, .sequence = x->sequence, .parent = parent, .rank = rank, .name = name,
                                .pid = (int32_t)x->file->pid, .tid = tid};
    return tw_timeline_track(x->timeline, &described);
}

static inline void point(exporter *x, uint64_t at_ns, uint32_t on, tw_point_type type, uint32_t name, uint32_t category,
                  const tw_arg *args, size_t n) {
    const tw_point p = {.at_ns = at_ns, .track = on, .type = type, .name = name, .category = category, .args = (uint16_t)n};
    tw_timeline_points(x->timeline, &p, 1, args, n, NULL, 0);
}

static inline void begin(exporter *x, uint64_t at_ns, uint32_t on, uint32_t name, uint32_t category) {
    point(x, at_ns, on, TW_POINT_BEGIN, name, category, NULL, 0);
}
static inline void end(exporter *x, uint64_t at_ns, uint32_t on) { point(x, at_ns, on, TW_POINT_END, 0, 0, NULL, 0); }

static inline void add_arg(const exporter *x, tw_arg *args, uint32_t *n, uint32_t text, tw_arg_kind kind, uint64_t value) {
    args[(*n)++] = (tw_arg){x->text[text], (uint32_t)kind, value};
}

static inline bool in_range(const exporter *x, uint64_t time_ns) { return time_ns >= x->from_ns && time_ns <= x->until_ns; }

/* A stamp that the timeline takes: times are below 2^63. */
static inline bool fine(uint64_t time_ns) { return time_ns >> 63 == 0; }

/* ---- trace_stalls.c ---- */

/* A stall as far as it is known; its frames stand behind it. */
void tw_export_stall(exporter *x, const tw_ring_event *e);

/* No stall follows: each has its end. */
void tw_export_stalls_end(exporter *x);

/* ---- trace_steps.c ---- */

/* The track of a thread of the process at hand; of the process where tid is 0. */
uint32_t tw_export_thread_track(exporter *x, uint64_t tid, const char *name);

/* Events of a step that ended, and of the thread that has the ring from now on. */
void tw_export_step(exporter *x, const tw_ring_event *e);
void tw_export_thread(exporter *x, const tw_ring_event *e);

/* No step follows: what is a gap now, is one. */
void tw_export_steps_end(exporter *x);
