/* What the thread that a token waited for did in an interval: exclusive parts, by the kernel's own identity
 *
 *     time = on CPU + runnable + asleep (+ waiting for events, which is no part)
 *
 * On CPU: collections first (the pause clock), then page faults where they took more than a fifth, then code: the request's
 * own in the handle that runs now, in earlier steps of its task and in other handles of the request, where the handle clock
 * is known; as far as samples were taken in its context, where it is not; else of callbacks.
 * Each handle of some length is split by itself, so what one slept or ran is not the other's. Runnable: throttled as far
 * as the cgroup has it, else cpu. Asleep: by the spans of that time, scaled to the sleep, since a wait's wall time
 * contains run-queue time; stopped where nothing but the watchdog's own silence covers it. Waits for the interpreter lock
 * are one by their holder: a long one of them names where the thread waited.
 *
 * Thread rule: any thread, any process; a track's own thread adds a point before (tw_host_point_now), or the newest
 * milliseconds are unknown.
 */
#pragma once

#include "tailwatch/attribute/parts.h"
#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/pause_clock.h"

TW_BEGIN_C

/* Whose code is its own. */
typedef struct tw_whose {
    uint64_t request; /* tw_span_request() of its handles; 0: not known */
    uint64_t context; /* detail of samples of it; 0: not known */
} tw_whose;

/* Adds the parts of [from_ns, to_ns] of a track to *out. pauses: of the same process; NULL: none. Names are
 * numbers of host->names. What no source explains is a part of cause TW_DELAY_UNEXPLAINED. Returns the time in which the
 * thread waited for events, ns: the added parts and it sum to the interval, exactly. */
uint64_t tw_host_split(const tw_host *host, uint32_t track, const tw_pause_clock *pauses, uint64_t from_ns,
                       uint64_t to_ns, tw_whose whose, tw_parts *out);

/* Adds to *out what kept a process from going on in [from_ns, to_ns], whichever of its threads tokens wait for: stopped;
 * of its first thread with engine steps, waits for a CPU beyond the usual and for the interpreter lock, less what its
 * own pauses have of the interval. Of a step that has ended, what the thread slept beyond the usual is shared out by
 * the samples, where those of the lock are a quarter of it or more and waits for a CPU are counted apart. The holder
 * of the lock is throttled for as large a part of those waits as the process is of the interval, beyond what the thread
 * itself waited for a CPU then: estimated. The
 * usual wait for a CPU is that of the quarter of the points with least, per time in steps; of few points their mean.
 * For a process of which the steps themselves are known (engine_split.h): the parts may overlap what these have, and
 * do not sum to anything. Names are numbers of host->names. */
void tw_host_held(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns, tw_parts *out);

/* The same as a sum, with its own pauses; at most the interval. */
uint64_t tw_host_held_ns(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns);

/* The first thread of a process with engine steps, as its TID; 0: none is followed. */
uint64_t tw_host_step_thread(const tw_host *host);

/* What that thread waited for a CPU in [from_ns, to_ns] beyond the usual and its process's own pauses, ns, where its points
 * end before to_ns: now is its counter, tw_thread_run_delay_ns(), as it was read at to_ns or later; its growth since the
 * newest point is spread evenly over the time since. An estimate. */
uint64_t tw_host_delayed_since(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns,
                               const tw_delay_reading *now);

/* How long a CPU of the process's cgroup was throttled in [from_ns, to_ns], ns, as if that went on evenly between two
 * readings: the counter is a sum over CPUs, so this is its growth over how many the process may run on. 0: not known. */
uint64_t tw_host_throttled_ns(const tw_host *host, uint64_t from_ns, uint64_t to_ns);

TW_END_C
