/* What this process records of its host threads: the tracks of its loops, their clocks, and the watchdog. */
#pragma once

#include "python/core.h"

#include <sys/epoll.h>

#include "tailwatch/stall/watchdog.h"

enum { STALLS_OFF, STALLS_CLOCK, STALLS_AUTO };

/* A loop's clock: made and ended on its thread, under the GIL. */
typedef struct loop_clock {
    CoreObject *core;
    tw_host_track *track;    /* NULL: none */
    uint32_t number;
    uint64_t epoch;          /* a fork child's core has another: nothing is recorded there */
    int calls_fd;            /* that call_soon_threadsafe() makes readable; -1: it is not known */
} loop_clock;

/* Takes a track for the calling thread, which runs the loop; none where stalls are off, or too many are followed. */
void loop_clock_begin(loop_clock *clock, CoreObject *core);

void loop_clock_end(loop_clock *clock);

static inline int loop_clock_runs(const loop_clock *clock) {
    return clock->track != NULL && *clock->core->epoch == clock->epoch;
}

/* Before a wait for events, and as soon as it is over: on the loop's thread, with or without the GIL. */
void loop_clock_waits(const loop_clock *clock, uint64_t now_ns);
void loop_clock_wakes(const loop_clock *clock, uint64_t now_ns);

/* The n events that ended it. Where the thread was, as above. */
static inline void loop_clock_events(const loop_clock *clock, const struct epoll_event *events, int n, uint64_t now_ns) {
    for (int i = 0; i < n; i++)
        if (events[i].data.fd == clock->calls_fd && tw_load(&clock->track->thread) != 0)
            tw_store(&clock->track->called_ns, now_ns);
}

/* It has the GIL again, which it waited for since since_ns. Under the GIL. */
void loop_clock_has_gil(const loop_clock *clock, uint64_t since_ns, uint64_t now_ns);

/* A stream was opened, or a step that streams waited for has ended: the watchdog may sleep. */
static inline void core_wake_watchdog(CoreObject *core) {
    if (core->host.watchdog != NULL && tw_watchdog_sleeps(core->host.watchdog)) tw_watchdog_call(core->host.watchdog);
}

#define STEP_TURNS 16 /* steps between two looks at whose a lane is: a thread's number may be that of one that has ended */

/* Follows the calling thread, which has steps: in a process with a loop that is followed, or with streams. */
void core_follow_steps(CoreObject *core, tw_step_lane *lane);

/* The steps of a lane are of another kind from now on. */
void core_step_is_of(tw_step_lane *lane, tw_host_track *track, uint32_t name, uint64_t now_ns);

/* The latest step of a lane that is followed has ended. */
void core_followed_step_ends(CoreObject *core, tw_step_lane *lane, const tw_step *step, uint64_t now_ns, int learns,
                             uint64_t waiting);

/* A step of the calling thread begins: the watchdog looks at it once it takes longer than is usual. */
static inline void core_step_begins(CoreObject *core, const tw_step *step) {
    tw_step_lane *lane = &core->steps.stepper.lane[step->lane];
    if (__builtin_expect(core->host.mode != STALLS_AUTO, 0)) return;
    if (lane->followed == 0 || lane->turns++ % STEP_TURNS == 0) core_follow_steps(core, lane);
    if (lane->followed <= 0 || lane->track.open != 1) return;
    tw_host_track *track = &core->segment->host.track[lane->followed - 1];
    if (lane->name != step->name) core_step_is_of(lane, track, step->name, step->start_ns);
    tw_host_step_begins(track, step->start_ns);
}

/* It has ended. learns: whether it ran something; waiting: as of tw_step_end(). If it is not 0, the watchdog also looks at
 * what the thread does until its next step. */
static inline void core_step_ends(CoreObject *core, const tw_step *step, uint64_t now_ns, int learns,
                                  uint64_t waiting) {
    tw_step_lane *lane = &core->steps.stepper.lane[step->lane];
    if (lane->followed <= 0 || lane->thread != step->thread || lane->track.open != 0) return;
    core_followed_step_ends(core, lane, step, now_ns, learns, waiting);
}

/* What identifies the context in which the calling thread runs code; 0: none, or not known. Under the GIL. */
uint64_t own_context(void);

/* All begins anew; in a fork child the parent's watchdog is not there. */
void core_host_reborn(CoreObject *core);
void core_host_free(CoreObject *core);

PyObject *core_stalls(PyObject *op, PyObject *args);
PyObject *core_works(PyObject *op, PyObject *needed);
PyObject *core_state_words(PyObject *op, PyObject *unused);
PyObject *core_contexts_at(PyObject *op, PyObject *word);
PyObject *core_own_frames(PyObject *op, PyObject *unused);
PyObject *core_trust_frames(PyObject *op, PyObject *trusted);
PyObject *core_host_status(PyObject *op, PyObject *unused);

/* [(cause, ns, certainty, name, holder)] of parts whose names are of host->names; NULL: an error is set. */
PyObject *parts_list(const tw_host *host, const tw_parts *parts);
PyObject *core_split_host(PyObject *op, PyObject *args);
