/* What kept a process that tokens wait for from going on, as far as the host has it: stops, waits for a CPU and for the
 * interpreter lock, a quota of CPU time.
 *
 * Thread rule: any thread, any process.
 */
#pragma once

#include "tailwatch/attribute/parts.h"
#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/pause_clock.h"

TW_BEGIN_C

/* Adds to *out what kept a process from going on in [from_ns, to_ns], whichever of its threads tokens wait for: stopped;
 * of its first thread with engine steps, waits for a CPU beyond the usual and for the interpreter lock, less what its
 * own pauses have of the interval. Of a step that has ended, what the thread slept beyond the usual is shared out by
 * the samples, where those of the lock are a quarter of it or more and waits for a CPU are counted apart; what it
 * computed beyond the usual and no sample shows is waiting for the lock, too, up to a twentieth. The holder of the lock is
 * throttled for as large a part of those waits as the process is of the interval, beyond what the thread itself waited for
 * a CPU then: estimated. The usual wait for a CPU is that of the quarter of the points with least, per time in steps; of few
 * points their mean.
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
