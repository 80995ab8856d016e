/* What the threads that tokens wait for did: an event loop, an engine loop. One track a thread.
 *
 * Points: a ring of the thread's own cumulative counters. Any interval between two points is split exactly by
 * subtracting them: wall = on CPU + runnable but not running + asleep. What a thread that did not sleep was neither is
 * runnable, too: its CPU was the hypervisor's (steal) or an interrupt's, which a kernel may count as none of them.
 * Spans: intervals that carry a name or a state; recorded only when something was slow.
 *
 * Thread rule: the points and the clock of a track are written by its own thread; spans by any thread, those of the
 * watchdog in a ring of their own. Readers, of any process: records are valid when seq == running number + 1.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/record/delay_cause.h"
#include "tailwatch/record/name_table.h"

#include <stdbool.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_TRACKS 4         /* threads of a process that are followed; more loops are not, and are counted */
#define TW_STEP_TRACKS 2    /* of those, threads with engine steps; they give their place to a loop */
#define TW_POINTS 256       /* a power of two */
#define TW_SPANS 256        /* a power of two; of each ring */

/* Cumulative counters of one thread at one instant, as the thread itself read them. */
typedef struct tw_host_point {
    uint64_t seq;
    uint64_t at_ns;
    uint64_t cpu_ns;        /* on CPU */
    uint64_t run_delay_ns;  /* runnable, not running */
    uint64_t idle_ns;       /* asleep in the loop's own wait for events, as its clock measured it */
    uint64_t minor_faults, major_faults;
    uint64_t wake_ns;       /* when its latest wait for events before had ended, or its step began; 0: not known */
    uint64_t switches;      /* how often it gave up its CPU of its own accord: to sleep; 0: not known */
    uint64_t stolen_ns;     /* neither of the above, without such a switch: set as the point is added */
    uint64_t step;          /* of a thread with steps: the kind that ended */
} tw_host_point;

typedef enum tw_span_kind {
    TW_SPAN_HANDLE,         /* a handle of the loop ran this long: name; detail: its task as in handle_task; measured */
    TW_SPAN_RUN,            /* the watchdog's samples: on CPU or runnable in name; detail: what identifies the context;
                             * 0: it is not known, or handles are timed */
    TW_SPAN_GIL,            /* waiting for the interpreter lock; detail: the name of what its holder ran */
    TW_SPAN_IO, TW_SPAN_LOCK, TW_SPAN_SLEEP, /* in a system call in name; detail: its number */
    TW_SPAN_SILENCE,        /* the watchdog itself did not run; detail: tw_silence */
    TW_SPAN_THROTTLED,      /* the cgroup's throttled time grew by detail ns within the span */
    TW_SPAN_KINDS
} tw_span_kind;

/* In a system call, or for the interpreter lock. */
static inline bool tw_span_is_wait(tw_span_kind kind) { return kind >= TW_SPAN_GIL && kind <= TW_SPAN_SLEEP; }

/* Why the watchdog did not run, by its own counters. */
typedef enum tw_silence {
    TW_SILENCE_STARVED,     /* it was runnable: too few CPUs, or a quota */
    TW_SILENCE_STOPPED      /* the whole process stood still and none of it was runnable */
} tw_silence;

#define TW_ALL_TRACKS UINT8_MAX /* a span of the whole process */

typedef struct tw_host_span {
    uint64_t seq;
    uint64_t from_ns, to_ns;
    uint64_t what;          /* tw_span_what() */
    uint64_t name;          /* of the process's name table; 0: none */
    uint64_t detail;
    uint64_t frames[2];     /* of a sample's stack, the innermost first: tw_span_frame(); of a handle: tw_span_request() */
} tw_host_span;

#define TW_STACK 8 /* frames of a span */

/* Frame k of its stack, k < TW_STACK: a number of the host's frames; 0: none. */
static inline uint32_t tw_span_frame(const uint64_t frames[2], uint32_t k) {
    return (uint32_t)(frames[k / 4] >> k % 4 * 16 & 0xFFFF);
}
static inline void tw_span_frame_set(uint64_t frames[2], uint32_t k, uint32_t number) {
    frames[k / 4] |= (uint64_t)(number & 0xFFFF) << k % 4 * 16;
}

/* Of a handle: the request for which it ran, by its number among those of the process; 0: of none that is known. */
static inline uint64_t tw_span_request(const tw_host_span *s) { return s->frames[1]; }

static inline uint64_t tw_span_what(tw_span_kind kind, uint32_t track, tw_certainty certainty) {
    return (uint64_t)kind | (uint64_t)(track & 255) << 8 | (uint64_t)certainty << 16;
}
static inline tw_span_kind tw_span_kind_of(const tw_host_span *s) { return (tw_span_kind)(s->what & 255); }
static inline tw_certainty tw_span_certainty(const tw_host_span *s) { return (tw_certainty)(s->what >> 16 & 255); }
static inline bool tw_span_is_of(const tw_host_span *s, uint32_t track) {
    return (s->what >> 8 & 255) == track || (s->what >> 8 & 255) == TW_ALL_TRACKS;
}

typedef struct tw_host_track {
    uint64_t thread;        /* kernel's thread id; 0: not in use */
    uint64_t schedstat;     /* of its own process: the thread's descriptor of /proc/.../schedstat + 1; 0: none */
    /* the loop's clock, stored at both sides of its wait for events */
    uint64_t waiting_since_ns; /* 0: it is busy */
    uint64_t wake_ns;       /* end of the latest wait: when an event was there, not when the thread ran again */
    uint64_t slept_until_ns;/* the same of the latest wait of at least TW_SLEPT_NS: nothing was ready before it */
    uint64_t called_ns;     /* when the latest wait ended with what call_soon_threadsafe() wrote; 0: none was seen */
    uint64_t handle_since_ns; /* when the handle that runs began; 0: not known */
    uint64_t handle_task;   /* what identifies the task whose step it is; 0: of none */
    uint64_t idle_ns;       /* all waits so far */
    uint64_t iterations;
    /* of a thread with engine steps that runs no loop: a step, or the time after one that may have left work, begins at
     * wake_ns; the thread has nothing to do since waiting_since_ns */
    uint64_t step_limit_ns; /* what that takes beyond is a stall; 0: it is a loop's */
    uint64_t step;          /* the kind of the step; TW_STEP_BETWEEN or more: of the time after one */
    uint64_t point_ns;      /* of the newest point */
    uint64_t point_head;
    tw_host_point point[TW_POINTS];
} tw_host_track;

/* A loop that looks for tokens by a timer (LitServe's: every 100 us) sleeps while they are there. */
#define TW_SLEPT_NS UINT64_C(2000000)
#define TW_POINT_EVERY_NS UINT64_C(1000000) /* at most so often is a point taken */
#define TW_POINT_NEAR_NS UINT64_C(50000)    /* nor of an instant so near to the newest */
#define TW_SLOW_NS UINT64_C(2000000)        /* an iteration of more is slow: a point at its end */
#define TW_STEP_STALL_NS UINT64_C(4000000)  /* a shorter step is none */
#define TW_SPAN_LEAST_NS UINT64_C(200000)   /* shorter waits and handles have no span */

typedef struct tw_span_ring {
    uint64_t head;
    tw_host_span span[TW_SPANS];
} tw_span_ring;

/* What is known of the host in a process; why a source of it is missing stands beside it. */
typedef enum tw_knowledge { TW_KNOWN, TW_USELESS, TW_ABSENT, TW_SWITCHED_OFF, TW_KNOWLEDGES } tw_knowledge;
typedef enum tw_host_source {
    TW_HOST_SCHEDSTAT, TW_HOST_SYSCALL, TW_HOST_STACKS, TW_HOST_CGROUP, TW_HOST_LOOP_CLOCK, TW_HOST_HANDLE_CLOCK,
    TW_HOST_SOURCES
} tw_host_source;

/* What was found out as the process began. */
typedef struct tw_host_facts {
    uint64_t knowledge[TW_HOST_SOURCES]; /* tw_knowledge + 1; 0: not looked at yet */
    uint64_t fault_ns;                   /* what a minor page fault takes; 0: not measured */
    uint64_t quota_ppm;                  /* CPUs that the cgroup's quota gives, 10^-6; 0: no quota, or not known */
    uint64_t cpus;                       /* that the process may run on; 0: not known */
} tw_host_facts;

/* What a thread of another process was runnable for until at_ns, as it was read for tokens with one stamp of their engine. */
typedef struct tw_delay_reading {
    uint64_t thread, key_ns, at_ns, run_delay_ns; /* run_delay_ns 0: not known */
} tw_delay_reading;

typedef struct tw_host {
    tw_host_facts facts;
    uint64_t tracks_refused;             /* threads beyond TW_TRACKS */
    /* the watchdog */
    uint64_t watchdog_cpu_ns, watchdog_wakeups;
    uint64_t watchdog_turn_ns;           /* end of its latest turn; 0: it sleeps, or there is none */
    uint64_t watchdog_due_ns;            /* when the next one is due */
    uint64_t watchdog_process_cpu_ns;    /* of the whole process, then */
    uint64_t watchdog_throttled_ns;      /* throttled_ns then */
    uint64_t samples, samples_skipped;   /* skipped: the budget was spent */
    uint64_t stacks_refused;             /* walks that met memory which was no frame any more */
    uint64_t cgroup_stat;                /* of its own process: the descriptor of its cgroup's cpu.stat + 1; 0: none */
    uint64_t throttled_ns, throttled_at_ns; /* what that counted, and when it was read last */
    uint64_t stop_noted_ns;              /* when the latest stop began that loops have recorded */
    tw_delay_reading engine_delay;       /* the latest; the thread that stamps */
    tw_host_track track[TW_TRACKS];
    tw_span_ring by_loop, by_watchdog, by_handle;
    tw_name_table names;
    uint64_t stacks_wanted;              /* not 0: samples keep their frames, for the event ring */
    tw_name_table frames;                /* "function  file.py:12" each */
} tw_host;

/* "schedstat", ...; "known", "useless", "absent", "off", ...; "unknown" out of range. Any thread. */
const char *tw_host_source_name(int source);
const char *tw_knowledge_name(int knowledge);

/* ---- the writer's ---- */

/* The track of a thread that runs a loop, taken if it has none; -1: all are taken, counted. Under the GIL. */
int tw_host_take(tw_host *host, uint64_t thread);

/* Likewise of a thread with engine steps, for as long as it or another one runs no loop; -1: there is no place, or it
 * does. Not counted. */
int tw_host_take_steps(tw_host *host, uint64_t thread);

/* Whose a track is. */
static inline bool tw_host_is_of_steps(const tw_host_track *t) {
    return tw_load(&t->thread) != 0 && tw_load(&t->step_limit_ns) != 0;
}
static inline bool tw_host_is_of_loop(const tw_host_track *t) {
    return tw_load(&t->thread) != 0 && tw_load(&t->step_limit_ns) == 0;
}

/* Its thread is followed no more. Its points stay until the track is taken again. */
void tw_host_release(tw_host *host, uint32_t track);

/* The track of the loop of the calling thread, -1: it has none. A system call. */
int tw_host_own_track(const tw_host *host);

/* What is usual for the steps of a thread, with one more: a running median. 0: none was. */
static inline uint64_t tw_host_usual_step(uint64_t usual_ns, uint64_t length_ns) {
    if (usual_ns == 0) return length_ns;
    return length_ns > usual_ns ? usual_ns + usual_ns / 16 + 1 : usual_ns - usual_ns / 16;
}

/* Beyond this a step is a stall, usual_ns being usual; and what is usual, at most, where that is the limit. */
static inline uint64_t tw_host_step_limit(uint64_t usual_ns) {
    const uint64_t half = usual_ns / 2, limit = usual_ns + (half > TW_SLOW_NS ? half : TW_SLOW_NS);
    return limit > TW_STEP_STALL_NS ? limit : TW_STEP_STALL_NS;
}
static inline uint64_t tw_host_step_usual(uint64_t limit_ns) {
    return limit_ns - (limit_ns / 3 > TW_SLOW_NS ? limit_ns / 3 : TW_SLOW_NS);
}

/* A step begins, and ends, on the thread of a track that was taken for that; usual_ns is usual for its kind. The kind is
 * stored before a step of another one begins. Under the GIL. */
static inline void tw_host_step_begins(tw_host_track *t, uint64_t now_ns) {
    tw_store(&t->wake_ns, now_ns);
    tw_store_release(&t->waiting_since_ns, 0);
}
static inline void tw_host_step_ends(tw_host_track *t, uint64_t now_ns, uint64_t usual_ns) {
    tw_store_release(&t->waiting_since_ns, now_ns);
    tw_store_release(&t->step_limit_ns, tw_host_step_limit(usual_ns)); /* who sees this sees that the step has ended */
}
static inline void tw_host_step_is_of(tw_host_track *t, uint64_t step, uint64_t usual_ns) {
    tw_store(&t->step, step);
    tw_store_release(&t->step_limit_ns, tw_host_step_limit(usual_ns));
}

/* The loop begins to wait for events; an event was there: the wait ends. Its own thread; without the GIL. */
static inline void tw_host_track_waits(tw_host_track *t, uint64_t now_ns) { tw_store_release(&t->waiting_since_ns, now_ns); }
void tw_host_track_wakes(tw_host_track *t, uint64_t now_ns);

/* The thread was runnable for so long before its latest wait ended, by counters read since: the event was there by so
 * much earlier. Never before the wait began. */
void tw_host_track_woke_earlier(tw_host_track *t, uint64_t since_ns, uint64_t run_delay_ns);

/* Adds a point, its seq and stolen_ns apart. Its own thread. */
void tw_host_track_add(tw_host_track *t, const tw_host_point *point);

/* Adds a span, its seq apart, and returns its number. Any thread. */
uint64_t tw_span_add(tw_span_ring *ring, const tw_host_span *span);

/* Writes span number n anew, if its place is still its own: it has grown. The thread that added it. */
void tw_span_replace(tw_span_ring *ring, uint64_t n, const tw_host_span *span);

/* Reads the calling thread's own counters: CPU time, run delay where the track has a descriptor, faults, switches. About
 * 1.5 us. */
void tw_host_point_read(const tw_host_track *t, tw_host_point *out);

/* What a thread of any process of this PID namespace was runnable for so far, ns, by its /proc/TID/schedstat: opened, read
 * and closed in 10 us. 0: not known. */
uint64_t tw_thread_run_delay_ns(uint64_t thread);

/* Adds a point of this instant to the track of the calling thread, unless the newest is near. Slow path only: 1.6 us. */
void tw_host_point_now(tw_host *host, uint32_t track);

#define TW_STILL 20 /* a process that used less than one part in so many of a silence stood still */

/* Whether this process has hardly run since the watchdog's latest turn, which was TW_STILL_LEAST_NS ago or more, while the
 * next one has been due for TW_SILENCE_NS. */
bool tw_host_stood_still(const tw_host *host, uint64_t now_ns);
#define TW_STILL_LEAST_NS UINT64_C(15000000)
#define TW_SILENCE_NS UINT64_C(5000000) /* so much later than it was due the watchdog was silent */

/* ---- readers: any thread or process; never torn ---- */

/* Copies point or span number n (0 is the first ever). False: overwritten, or not there yet. */
bool tw_host_track_read(const tw_host_track *t, uint64_t n, tw_host_point *out);
bool tw_span_read(const tw_span_ring *ring, uint64_t n, tw_host_span *out);

/* What a thread was runnable for, not running, between two points of it. */
uint64_t tw_host_delay_between(const tw_host_point *p, const tw_host_point *q);

/* What a thread did in an interval. The times sum to its length. */
typedef struct tw_usage {
    uint64_t cpu_ns, run_delay_ns, idle_ns, asleep_ns;
    uint64_t unknown_ns;    /* before the oldest point, or after the newest */
    uint64_t minor_faults, major_faults;
} tw_usage;

/* [from_ns, to_ns] of a track, from its points. Within one segment between two points a busy thread is taken to have done
 * each evenly; one that waited for events ran first, then slept, then was runnable, then waited for the interpreter. */
void tw_host_track_usage(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns, tw_usage *out);

TW_END_C
