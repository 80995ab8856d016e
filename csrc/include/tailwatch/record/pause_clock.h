/* The pause clock: when, for how long and why this process stood still.
 *
 * Per cause one 64-bit word. Even: the nanoseconds paused so far. Odd: a pause is open, and the word is that
 * count minus its start (mod 2^64, lowest bit set). Times are therefore kept even: the lowest bit of every
 * clock reading is cleared before use. One store at each edge; no lock, no torn read.
 *
 * Beside the words stands a ring of the closed pauses of at least TW_PAUSE_SHORT_NS. For each cause, exactly:
 *
 *     word = sum of the ring's records + evicted_ns + short_ns
 *
 * Pauses nest: the outermost one gives the cause and the edges, what happens inside it is booked there.
 *
 * Thread rule: begin and end under one writer (the GIL); everything else from any thread or process.
 * The writer's functions allocate nothing, take no lock and call nothing but the clock they are given.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/record/enums.h"

TW_BEGIN_C

#define TW_PAUSE_SHORT_NS UINT64_C(50000)
#define TW_PAUSE_RING 1024          /* a power of two */
#define TW_PAUSE_OPEN UINT64_MAX    /* last_stop_ns while a pause is open */

/* One closed pause. A record is valid when seq == its running number + 1. */
typedef struct tw_pause_record {
    uint64_t seq;
    uint64_t start_ns, stop_ns;
    uint64_t cause;          /* tw_cause */
    uint64_t collected, uncollectable; /* by the levels inside it too */
    uint64_t cpu_ns;         /* thread CPU time, 0 where not measured */
    uint64_t callbacks_ns;   /* part spent in other people's gc.callbacks */
    uint64_t streams;        /* gaps charged with it so far (written by this process's streams) */
    uint64_t overlap_ns;     /* their overlap, summed */
    uint64_t delay_ns;        /* their delay, summed */
} tw_pause_record;

/* What the writer learns at the end of a pause. */
typedef struct tw_pause_result {
    uint64_t collected, uncollectable, cpu_ns, callbacks_ns;
} tw_pause_result;

/* Sums per cause. */
typedef struct tw_pause_totals {
    uint64_t count;          /* closed pauses, short ones too */
    uint64_t max_ns;
    uint64_t short_count, short_ns;
    uint64_t evicted_count, evicted_ns;
    uint64_t collected, uncollectable, cpu_ns, callbacks_ns;
} tw_pause_totals;

typedef struct tw_pause_clock {
    uint64_t last_stop_ns;   /* stop of the latest recorded outermost pause; TW_PAUSE_OPEN while one is open.
                                A short pause leaves it as it was: short ones are charged to no gap. */
    uint64_t word[TW_CAUSES];
    uint64_t head;           /* records ever written */
    uint64_t lost;           /* pauses that began and never reported an end; they are booked nowhere */
    tw_pause_totals totals[TW_CAUSES];
    /* the writer's own */
    uint64_t depth, open_cause, open_start_ns, closed_stop_ns;
    uint64_t open_streams, open_overlap_ns, open_delay_ns; /* charged so far with the open pause */
    uint64_t open_collected, open_uncollectable;          /* found so far by the levels inside it */
    tw_pause_record ring[TW_PAUSE_RING];
} tw_pause_clock;

/* Zeroed memory is an empty clock; this makes one of any memory. */
void tw_pause_init(tw_pause_clock *p);

/* Opens a pause, or goes one level deeper into the open one. */
void tw_pause_begin(tw_pause_clock *p, tw_cause cause, uint64_t now_ns);

/* Leaves one level; closing the outermost books it. Returns its length in ns and its cause through *cause
 * (may be NULL), or 0 when an outer level is still open or none was. result may be NULL. An end before its
 * begin (a clock that a caller made up) counts as length 0. */
uint64_t tw_pause_end(tw_pause_clock *p, uint64_t now_ns, const tw_pause_result *result, tw_cause *cause);

/* Forgets the open pause and its depth: its end will never come. The words return to their last closed
 * value; lost is counted. Nothing happens when none is open. */
void tw_pause_cancel(tw_pause_clock *p);

/* Whether a pause is open. */
bool tw_pause_is_open(const tw_pause_clock *p);

/* Nanoseconds this process was paused for a cause up to now_ns, an open pause included. Any thread, wait-free
 * for the writer. */
uint64_t tw_pause_total_ns(const tw_pause_clock *p, tw_cause cause, uint64_t now_ns);

/* Whether nothing of at least TW_PAUSE_SHORT_NS paused after since_ns, and none is open. One load. */
static inline bool tw_pause_quiet_since(const tw_pause_clock *p, uint64_t since_ns) {
    return __atomic_load_n(&p->last_stop_ns, __ATOMIC_RELAXED) <= since_ns;
}

/* How long [from_ns, to_ns] coincides with recorded pauses and the open one. */
typedef struct tw_overlap {
    uint64_t by_cause[TW_CAUSES];
    uint64_t total_ns;       /* at most to - from */
    bool complete;           /* false: the ring wrapped inside the interval, so the sums are lower bounds */
} tw_overlap;
void tw_pause_overlap(const tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, tw_overlap *out);

/* Calls touch with each recorded pause that touches [from_ns, to_ns], and the open one, cut to it, newest first; they
 * do not overlap. Returns what tw_overlap calls complete. Any thread or process: of a clock that lies come stretches
 * that lie, never one outside the interval, and at most TW_PAUSE_RING + 1. */
typedef void (*tw_pause_touch)(void *to, uint64_t from_ns, uint64_t to_ns, tw_cause cause);
bool tw_pause_each(const tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, tw_pause_touch touch, void *to);

/* Books on every recorded pause that touches [from_ns, to_ns], and on the open one, one stream, its overlap, and
 * its share of delay_ns in proportion. Same writer rule as begin and end. */
void tw_pause_charge(tw_pause_clock *p, uint64_t from_ns, uint64_t to_ns, uint64_t overlap_ns, uint64_t delay_ns);

/* Copies record number n (0 is the first ever). False when it was overwritten or does not exist yet. Any
 * thread; a record changed meanwhile is never returned torn. */
bool tw_pause_read(const tw_pause_clock *p, uint64_t n, tw_pause_record *out);

TW_END_C
