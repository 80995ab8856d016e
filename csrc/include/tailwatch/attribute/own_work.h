/* What a request's own code did while its first token was being made. Each of its handles is split as it ends: the points
 * and spans of that time may be overwritten long before a token that takes its time is there.
 *
 * Thread rule: the segment's single writer, on the thread whose handles these are.
 */
#pragma once

#include "tailwatch/attribute/parts.h"
#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/pause_clock.h"

TW_BEGIN_C

/* All zero: nothing yet. The loop's latest sleep divides it: what came after it is split anew with the token. */
typedef struct tw_own_work {
    uint64_t slept_until_ns;       /* of the loop, as the latest handle ended */
    uint64_t before_ns, since_ns;  /* when the latest of each ended */
    tw_parts before, since;
} tw_own_work;

/* A handle of the request, numbered as in tw_span_request(), ran in [from_ns, to_ns] and ends now: its point and span are
 * there. Pauses are no part of it. */
void tw_own_work_add(tw_own_work *work, const tw_host *host, uint32_t track, const tw_pause_clock *pauses,
                     uint64_t from_ns, uint64_t to_ns, uint64_t request);

/* Adds to *out what those handles did that had ended by at_ns, the end of a sleep or a stamp of the engine. Where a sleep
 * of the loop does not divide them at at_ns, fewer. Returns its sum. */
uint64_t tw_own_work_by(const tw_own_work *work, uint64_t at_ns, tw_parts *out);

TW_END_C
