/* What happened, event by event: the trace file of one process, and how it is read.
 *
 *     DIR/PID-START-JOINED.trace   beside the segment PID-START-JOINED.seg (group.h), made when `trace` is on
 *
 * Memory of fixed size, all of whose pages are taken when it is made: a head, the names that events refer to by number,
 * clock snapshots, and TW_RINGS rings of events. It outlives its process (kill -9 too). The file names it
 * (base/shared_memory.h) until the process is merged (merge_dead.h), and from then on holds it.
 * The writing half is event_recorder.h.
 *
 * Rings. 0 .. 7 belong to a thread each, in the order in which threads first stamped; the last one, TW_RING_SHARED, takes
 * what threads without a ring of their own do (collections on threads that never stamped, the ninth stamping thread, counters).
 * Ring 0 has half of the events, the others equal parts of the rest. A ring keeps its newest events; what it has lost is
 * head - kept, exactly. Each has one producer at any time: under the GIL.
 *
 * An event has number n (from 0) and place n % size. Its words are release-stored, then head = n + 1 is release-stored. So
 * of a ring with head h the events [h - (size - 1), h) are whole, also if the writer was killed in the middle of one; the
 * place after the newest is never believed. While it is written, a reader copies (acquire), looks at head again, and
 * drops what may have been overwritten meanwhile: tw_ring_read.
 *
 * Threads: events of one ring are in the order of their writing, which is that of time_ns but for stamps with a time given
 * by the user (`at=`). Events of one request may lie in several rings: a stream may move between threads, and each thread
 * writes to its own ring only.
 *
 * Nothing of a file is believed: tw_trace_open checks all that a reader relies on and keeps a copy of it, so that a file
 * that changes later costs wrong events, never a crash or a hang. Names and ids in events may be out of range: use
 * tw_trace_label and tw_trace_step.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/record/segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* ---- events ---- */

/* The fields of an event by kind. Label sets: an OPEN has the one that it was opened under, which is mostly 0; the true ones
 * stand in FIRST and CLOSE. A TOKEN whose gap is 0 may be of the same message as the event before it, for another
 * choice. `request` is its number among those that its process ever opened, from 1; NVTX tools are sent the same. `pid,
 * start_time, joined_ns` of the file make it unique in a machine. `labels` is a number of the names, see
 * tw_trace_label. */
typedef enum tw_kind {
    TW_KIND_NONE,      /* never written */
    TW_KIND_OPEN,      /* a request was entered.      a: tw_arrival  b: labels  c: -        id: request  value: arrival_ns */
    TW_KIND_FIRST,     /* its first token.            a: choice      b: labels  c: tokens   id: request  value: arrival_ns */
    TW_KIND_TOKEN,     /* another message of tokens.  a: choice      b: -       c: tokens   id: request  value: the gap before it, ns */
    TW_KIND_DELAY,     /* pauses fell into the wait for the token of this request and time, whose event may come after.
                        *                             a: tw_phase    b: engine  c: overlap  id: request  value: delay_ns
                        *                             (overlap in us, saturating; delay 0: it cost nothing, or is not known;
                        *                             engine: tw_engine_tag() of the one that serves it) */
    TW_KIND_CLOSE,     /* it ended.                   a: tw_reason   b: labels  c: tokens   id: request  value: arrival_ns */
    TW_KIND_PAUSE,     /* a pause ended at time_ns.   a: tw_cause    b: flags   c: uncollectable, saturating
                        *                             id: start_ns   value: objects collected.  b: TW_PAUSE_INNER */
    TW_KIND_STEP,      /* an engine step ended.       a: step name   b: -       c: batch    id: start_ns value: waiting, or TW_STEP_UNKNOWN */
    TW_KIND_COUNTER,   /* a sample.                   a: tw_counter  b: -       c: -        id: -        value: see tw_counter */
    TW_KIND_THREAD,    /* events after this one in this ring are of another thread.
                        *                             a: -           b: -       c: -        id: tid      value: name, 8 bytes of it */
    TW_KIND_STALL,     /* a thread that tokens wait for stood still until time_ns, as far as is known: one of the same
                        * start and the same words, written after it, is the same stall, grown.
                        *                             a: tw_delay_cause  b: name  c: tid, 0: the process
                        *                             id: start_ns  value: tw_certainty | detail << 8
                        *                             (detail: of gil the name of what its holder ran; of throttled ns) */
    TW_KIND_FRAMES,    /* the stack of the stall before it in its ring.
                        *                             a: -           b: -       c: -  id, value: as tw_span_frame() has it */
    TW_KINDS
} tw_kind;

#define TW_PAUSE_INNER 1 /* inside another pause: a collection in a pass of ours */

/* Gauges, sampled by the daemon when they have changed; at most 4 times a second. */
typedef enum tw_counter {
    TW_COUNTER_IN_FLIGHT, /* requests open in this process */
    TW_COUNTER_GOODPUT,   /* good requests in the last 10 whole seconds, per 1000 s: 2500 = 2.5 requests/s */
    TW_COUNTER_UNFROZEN,  /* objects that a full collection would look at, as the collector books them: CPython 3.10 to 3.13 */
    TW_COUNTER_OVERLAP,   /* ns: stream time that coincided with pauses so far, of all causes and sources */
    TW_COUNTER_DELAY,      /* ns: what it cost so far, an estimate */
    TW_COUNTERS
} tw_counter;

/* "streams in flight", "goodput", ...: also the unit, "requests", "requests/1000 s", "objects", "ns". "unknown" out of
 * range. */
const char *tw_counter_name(int counter);
const char *tw_counter_unit(int counter);
const char *tw_kind_name(int kind);

/* 32 bytes. what: kind | a << 8 | b << 16 | c << 32. */
typedef struct tw_ring_event {
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint64_t what;
    uint64_t id;
    uint64_t value;
} tw_ring_event;

static inline uint64_t tw_what(tw_kind kind, uint32_t a, uint32_t b, uint32_t c) {
    return (uint64_t)kind | (uint64_t)(a & 0xFF) << 8 | (uint64_t)(b & 0xFFFF) << 16 | (uint64_t)c << 32;
}
static inline tw_kind tw_what_kind(uint64_t what) { return (tw_kind)(what & 0xFF); } /* may be TW_KINDS or more: pass over */
static inline uint32_t tw_what_a(uint64_t what) { return (uint32_t)(what >> 8 & 0xFF); }
static inline uint32_t tw_what_b(uint64_t what) { return (uint32_t)(what >> 16 & 0xFFFF); }
static inline uint32_t tw_what_c(uint64_t what) { return (uint32_t)(what >> 32); }

/* ---- the file ---- */

#define TW_TRACE_MAGIC UINT64_C(0x3143415254215754) /* "TW!TRAC1" */
#define TW_TRACE_VERSION 2
#define TW_RINGS 9
#define TW_RING_SHARED (TW_RINGS - 1)
#define TW_RING_LEAST 16                        /* events of the smallest ring */
#define TW_TRACE_EVENTS_LEAST (16 * TW_RING_LEAST) /* of a file: 256 */
#define TW_TRACE_EVENTS_MOST (UINT64_C(1) << 28) /* 8 GiB */
#define TW_CLOCK_FINE 1024                      /* snapshots kept of the last: one a second */
#define TW_CLOCK_COARSE 512                     /* and one of each TW_CLOCK_EVERY of those before them */
#define TW_CLOCK_EVERY 64
#define TW_THREAD_NAME_WORDS 2                  /* 16 bytes, NUL-terminated */

/* One ring, on cache lines of its own. */
typedef struct tw_ring_entry {
    uint64_t head;        /* events ever written; release-stored after each */
    uint64_t first, size; /* its events in the file's array: constant */
    uint64_t tid;         /* kernel's thread id of its owner, the last one; 0: it has none (yet), or is shared */
    uint64_t claimed_ns;  /* since when */
    uint64_t name[TW_THREAD_NAME_WORDS];
    uint64_t spare[9];
} tw_ring_entry;

typedef struct tw_trace_labels { tw_name model, route; } tw_trace_labels;

/* Those of the process's host_track.h, by their numbers there, that stalls of this file refer to. */
typedef struct tw_trace_stalls { tw_name_table names, frames; } tw_trace_stalls;

typedef struct tw_trace_head {
    uint64_t magic, version;  /* the magic is release-stored last */
    uint64_t bytes;           /* of the file */
    uint64_t events;          /* of all rings together */
    uint64_t label_sets;      /* room for names */
    uint64_t at_labels, at_clocks, at_events; /* offsets in the file, multiples of 64 */
    /* the owner, as in tw_header */
    uint64_t pid, start_time, joined_ns, boot_id[2], pid_namespace, image;
    uint64_t role[TW_ROLE_WORDS], place;
    uint64_t ended;           /* not 0: its process writes here no more, though it may live */
    uint64_t pause_open_ns;   /* start of the outermost pause that is open; 0: none */
    uint64_t pause_open_cause;
    uint64_t labels;          /* sets in use; release-stored after the names */
    uint64_t steps[TW_STEPS][TW_STEP_NAME_WORDS]; /* a name is there when its word 0 is not 0 */
    uint64_t clocks;          /* snapshots ever taken: number n at n % TW_CLOCK_FINE, and where n % TW_CLOCK_EVERY == 0
                               * also at TW_CLOCK_FINE + n / TW_CLOCK_EVERY % TW_CLOCK_COARSE. Published as events are. */
    uint64_t engine;            /* what its process works for, by its own name (engine_id.h); 0: no engine, or not known */
    uint64_t at_stalls;         /* an offset as those above */
    uint64_t stalls_lost;       /* overwritten before they were written to a ring */
    uint64_t spare[20];
    tw_ring_entry ring[TW_RINGS];
} tw_trace_head;

/* Bytes of a file, 0 where events or label_sets are out of range. */
size_t tw_trace_bytes(uint64_t events, uint32_t label_sets);

/* Events of ring number i: (events / 2) for 0, (events / 16) for each other. */
uint64_t tw_ring_size(uint64_t events, uint32_t i);

/* Fills in version, sizes, offsets and rings of a new file; both numbers are in range. */
void tw_trace_lay_out(tw_trace_head *h, uint64_t events, uint32_t label_sets);

/* Name of a process's trace file: its segment's with another ending. out: TW_GROUP_NAME bytes. */
void tw_trace_name(char *out, uint64_t pid, uint64_t start_time, uint64_t joined_ns);

/* ---- reading ---- */

/* A file that is mapped, and what of it is relied on. Any number of readers, in any process; none of them writes. */
typedef struct tw_trace {
    const tw_trace_head *head;
    size_t bytes;
    const tw_trace_labels *labels;
    const tw_clock_snapshot *clocks;
    const tw_trace_stalls *stalls;
    const tw_ring_event *events;
    uint64_t ring_first[TW_RINGS], ring_size[TW_RINGS];
    uint32_t label_sets;
    uint64_t pid, start_time, joined_ns;
    char role[TW_ROLE_WORDS * 8];
} tw_trace;

/* Whether these bytes (8-aligned; they stay mapped while *out is used) are a trace file: magic, version, sizes and
 * offsets are those that tw_trace_bytes gives for its numbers, and the bytes are all there. */
bool tw_trace_open(const void *bytes, size_t len, tw_trace *out);

/* The same of a file by its path: a plain file of this user with one name. What it names is mapped read-only, or else a
 * copy of what it holds, until tw_trace_close.
 * Returns 0, or an errno: EINVAL where it is no trace file of this version. */
int tw_trace_map(const char *path, tw_trace *out);
void tw_trace_close(tw_trace *t);

/* Whether it is certain that no process writes to it: its process has ended, or marked it. What another pid namespace
 * wrote is never certain; what an earlier boot did, is. */
bool tw_trace_is_over(const tw_trace *t);

/* Name of its process: "engine-0", or "engine" where it has no index. out: 48 bytes. */
void tw_trace_process(const tw_trace *t, char *out);

/* Model and route of a label set; "other" for one that is not known. out: TW_NAME_BYTES each. */
void tw_trace_label(const tw_trace *t, uint32_t labels, char *model, char *route);

/* Name of an engine step; "other" for one that is not known. out: TW_STEP_NAME_WORDS * 8 bytes. */
void tw_trace_step(const tw_trace *t, uint32_t step, char *out);

/* A name that a stall or its frames refer to. out: TW_NAME_TEXT bytes; "" for 0, "other" for one that is not known. */
static inline void tw_trace_stall_name(const tw_trace *t, uint32_t name, char *out) {
    tw_name_copy(&t->stalls->names, name, out, TW_NAME_TEXT);
}
static inline void tw_trace_frame(const tw_trace *t, uint32_t frame, char *out) {
    tw_name_copy(&t->stalls->frames, frame, out, TW_NAME_TEXT);
}

/* The numbers of the events that a ring holds now: [*first, *end). Returns how many it has lost: *first. */
uint64_t tw_ring_bounds(const tw_trace *t, uint32_t ring, uint64_t *first, uint64_t *end);

/* Copies events from number *next on and below until (an end of tw_ring_bounds), at most room (>= 1) of them, and moves
 * *next behind the last copied one. What was overwritten before it could be copied is passed over and added to *lost (may be
 * NULL). Returns how many; 0: there are no more. With *next = 0 first, all that was ever overwritten counts as lost.
 * Never waits, and called until it returns 0 it ends after at most the ring's size of events, however fast the writer
 * is and whatever the file holds. */
size_t tw_ring_read(const tw_trace *t, uint32_t ring, uint64_t *next, uint64_t until, tw_ring_event *out, size_t room,
                    uint64_t *lost);

/* The owner's thread of a ring, now: 0 where there is none. name: 16 bytes. */
uint64_t tw_ring_thread(const tw_trace *t, uint32_t ring, char *name);

/* All clock snapshots that are kept, the oldest first. out: TW_CLOCK_COARSE + TW_CLOCK_FINE of them. Returns how many. */
#define TW_CLOCK_KEPT (TW_CLOCK_COARSE + TW_CLOCK_FINE)
size_t tw_trace_clocks(const tw_trace *t, tw_clock_snapshot *out);

TW_END_C
