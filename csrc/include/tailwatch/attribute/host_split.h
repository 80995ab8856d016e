/* What the thread that a token waited for did in an interval: exclusive parts, by the kernel's own identity
 *
 *     time = on CPU + runnable + asleep (+ waiting for events, which is no part)
 *
 * On CPU: collections first (the pause clock), then page faults where they took more than a fifth, then code: the request's
 * own in the handle that runs now, in earlier steps of its task and in other handles of the request, where the handle clock
 * is known; as far as samples were taken in its context, where it is not; else of callbacks.
 * Each handle of some length is split by itself, so what one slept or ran is not the other's. Runnable: throttled as far
 * as the cgroup has it, else cpu; a sleep that the kernel counts there, as samples show, is none. Asleep: by the spans of
 * that time, scaled to the sleep, since a wait's wall time contains run-queue time; stopped where nothing but the
 * watchdog's own silence covers it. Waits for the interpreter lock are one by their holder: a long one of them names where
 * the thread waited. Waiting for events is no part, but for what the process was stopped of it.
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

TW_END_C
