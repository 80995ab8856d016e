/* What this process records of its host threads: the tracks of its loops, their clocks, and the watchdog. */
#pragma once

#include "python/core.h"

#include "tailwatch/stall/watchdog.h"

enum { STALLS_OFF, STALLS_CLOCK, STALLS_AUTO };

/* A loop's clock: made and ended on its thread, under the GIL. */
typedef struct loop_clock {
    CoreObject *core;
    tw_host_track *track;    /* NULL: none */
    uint32_t number;
    uint64_t epoch;          /* a fork child's core has another: nothing is recorded there */
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

/* It has the GIL again, which it waited for since since_ns. Under the GIL. */
void loop_clock_has_gil(const loop_clock *clock, uint64_t since_ns, uint64_t now_ns);

/* A stream was opened: the watchdog may sleep. */
static inline void core_stream_opened(CoreObject *core) {
    if (core->host.watchdog != NULL && tw_watchdog_sleeps(core->host.watchdog)) tw_watchdog_call(core->host.watchdog);
}

/* All begins anew; in a fork child the parent's watchdog is not there. */
void core_host_reborn(CoreObject *core);
void core_host_free(CoreObject *core);

PyObject *core_stalls(PyObject *op, PyObject *args);
PyObject *core_own_frames(PyObject *op, PyObject *unused);
PyObject *core_trust_frames(PyObject *op, PyObject *trusted);
PyObject *core_host_status(PyObject *op, PyObject *unused);

/* [(cause, ns, certainty, name, holder)] of parts whose names are of host->names; NULL: an error is set. */
PyObject *parts_list(const tw_host *host, const tw_parts *parts);
PyObject *core_split_host(PyObject *op, PyObject *args);
