/* Engine steps: how long one iteration takes, what stood still meanwhile, and what passes between two of them.
 *
 * A step runs from its begin to its end, as the engine's own loop calls them: the time of one iteration on the host, in
 * which it may itself wait for the device. Its batch is the number of requests in it. One of batch 0 ran nothing: it is
 * no step, and its time belongs to the gap that it stands in.
 *
 * Host gap: from the end of a step to the begin of the next, if that end had work waiting. An end gives how many
 * requests it leaves with work to do: none, then what follows is no gap (a request that comes meanwhile does not make it
 * one); some; or unknown, then the time is kept apart in unknown_ns and called nothing. The end before a begin is the
 * latest of the same thread, whatever its name, or of the same name, whatever its thread: loops that change their thread
 * are followed, and of engines that share a name the gaps are counted only where all of them stand. While a step of that
 * thread or name is open (steps nest, and run on several threads) there is no gap.
 *
 * overlap: how long steps, and host gaps, coincided with this process's recorded pauses (at least TW_PAUSE_SHORT_NS
 * long): an upper bound of their blame, as a pause on another thread while a step waits for the device delays nothing.
 * requests: the same, each times the requests that it may have delayed: the step's batch; of a gap what was waiting.
 * A step within a step has its own share, which is the outer one's too.
 *
 * Thread rule: one writer (the GIL); readers see whole words. Nothing here allocates, locks or fails. All times are given
 * by the caller.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/pause_clock.h"
#include "tailwatch/record/step_stats.h"

TW_BEGIN_C

#define TW_STEP_BATCH_MOST (1U << 24) /* a larger batch, or number waiting, counts as this */
#define TW_STEP_LANES 16             /* threads whose last end is remembered; of more the oldest is forgotten */

/* When a step ended, and with how many requests left. at_ns 0: none did. */
typedef struct tw_step_mark { uint64_t at_ns, waiting; } tw_step_mark;

/* Where steps follow each other: a thread, or a name. */
typedef struct tw_step_track {
    uint64_t open;
    tw_step_mark last;
} tw_step_track;

typedef struct tw_step_lane {
    uint64_t thread;      /* 0: free */
    tw_step_track track;
    uint64_t usual_ns[2 * TW_STEPS]; /* of its steps by name, and of the time after each, while it is followed */
    uint32_t name;        /* of the latest; TW_STEP_BETWEEN or more: it has ended, and may have left work */
    int followed;         /* its track of the host, + 1; 0: that was not asked; TW_STEP_UNFOLLOWED */
    uint32_t turns;       /* steps since that was asked first */
} tw_step_lane;

#define TW_STEP_UNFOLLOWED (-1)
#define TW_STEP_LANE_OF_RANK TW_STEP_LANES /* of the thread that computes a rank's part of each step; they are not counted */

/* The writer's own: what a process holds while it steps. Filled by tw_stepper_init. */
typedef struct tw_stepper {
    tw_steps *steps;
    const tw_pause_clock *pauses;
    uint64_t *incomplete; /* steps whose overlap is a lower bound: the pause ring wrapped inside */
    tw_step_track name[TW_STEPS];
    uint32_t lane_last;   /* the lane used last */
    tw_step_lane lane[TW_STEP_LANES + 1];
} tw_stepper;

/* Forgets all steps that are open or have ended: in a new process, too. */
void tw_stepper_init(tw_stepper *s, tw_steps *steps, const tw_pause_clock *pauses, uint64_t *incomplete);

/* One step, between its begin and its end. */
typedef struct tw_step {
    uint64_t start_ns;
    tw_step_mark before;  /* the end that a gap may have followed; at_ns 0: no gap */
    uint32_t name, lane;
    uint64_t thread;
} tw_step;

/* Begins a step. name: below TW_STEPS; thread: which thread this is, any number but 0. */
void tw_step_begin(tw_stepper *s, tw_step *step, uint32_t name, uint64_t thread, uint64_t now_ns);

/* Ends it, once, on any thread. batch: its requests; waiting: how many are left with work to do, in this step's batch or
 * queued, or TW_STEP_UNKNOWN. A time before its begin counts as that. */
void tw_step_end(tw_stepper *s, const tw_step *step, uint64_t now_ns, uint64_t batch, uint64_t waiting);

TW_END_C
