/* What the rings of a host have of an interval: evidence by kind and name, stops, throttled time, and of a thread with engine
 * steps what its samples miss of waits.
 *
 * Thread rule: one user at a time.
 */
#pragma once

#include "attribute/evidence.h"
#include "tailwatch/attribute/parts.h"

#define TW_EVIDENCE_SHARE 4 /* samples of one part in so many of a sleep name all of it */

/* Whose handles are own ones. */
typedef struct tw_owner {
    uint64_t task;    /* whose step runs at the interval's end; 0: not known */
    uint64_t request; /* 0: not known */
    uint64_t context; /* in which it runs; 0: not known */
} tw_owner;

/* Of one step, of which the latest samples are read first. */
typedef struct tw_sampled_waits {
    uint64_t end_ns, point; /* of the step, and that point's number */
    uint64_t gil_ns, others_ns, ran_ns;
} tw_sampled_waits;

typedef struct tw_findings {
    /* which interval, of what; the rest begins as 0 */
    uint64_t from_ns, to_ns;
    uint32_t track;             /* TW_ALL_TRACKS: only what is of the whole process */
    const tw_host_track *steps; /* whose spans no counter scales: a thread with engine steps; NULL: none */
    tw_owner own;
    /* what was found */
    tw_evidence_table seen;
    uint64_t stopped_ns, throttled_ns, gil_measured_ns; /* stopped: as the ring with most has it */
    uint64_t waiting_stopped_ns;  /* of a loop that waited for events, before that: estimated */
    uint64_t starved_ns;          /* the watchdog waited for a CPU, and took no samples */
    uint64_t throttled_evenly_ns; /* as if that went on all the time between two readings of the counter */
    uint64_t waits_met;         /* sampled waits; those that follow one another count once */
    uint64_t unseen_ns;         /* of steps: waits for the interpreter lock of which no sample is */
    /* its own */
    uint64_t stop_from_ns, stop_to_ns; /* the longest stop */
    uint64_t next_ns;           /* of a ring that is read: when the sampled span after this one begins */
    bool is_wait_next;          /* whether that sampled span is such a wait */
    uint64_t point, point_ns, begin_ns, end_ns; /* of find_step(): where it has come to, with which instant; the step */
    tw_sampled_waits waits;
} tw_findings;

/* Whether a handle is an own one. */
bool tw_owner_has(const tw_owner *own, const tw_host_span *handle);

/* Adds what a ring has. The watchdog's, which has the stops, before the loops', which has measured waits. */
void tw_findings_add(tw_findings *f, const tw_span_ring *ring);

/* What a thread was runnable for, of what its counters have. Linux counts a sleep now and then: from 6.12 on a task that
 * begins to sleep may stay on its run queue for a while, and if it is moved to another CPU then, it counts as waiting until
 * it runs again. A thread that is sampled in a system call is not runnable: where it is counted as that for most of 100 ms
 * or more in which it was on no CPU, and samples of waits leave room for less than half of it, it is no more than that room.
 * A span of samples may go on through what the watchdog did not see, as it had no CPU or the process had no quota left: that
 * leaves room. */
uint64_t tw_findings_runnable(const tw_findings *f, const tw_usage *u);

/* Adds ns to *out, dealt out to the evidence of the kinds from first to last in proportion, exactly. code: the cause of what
 * ran. */
void tw_findings_deal(const tw_findings *f, tw_parts *out, tw_span_kind first, tw_span_kind last, uint64_t ns, int code);

/* Adds ns that a thread was runnable for: throttled as far as that was found, else cpu. */
void tw_findings_run_delay(const tw_findings *f, tw_parts *out, uint64_t ns);
