/* Stalls of a loop: how long it ran without waiting for events, by what took it.
 *
 * Thread rule: any thread, with or without the interpreter lock; several at a time.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"

TW_BEGIN_C

/* Records that the thread of a track, which has a point of this instant, was busy in [from_ns, to_ns]: each cause that took
 * TW_SPAN_LEAST_NS of it or more in the segment's histogram of that cause. Not pauses: those are recorded as they end; code
 * of requests is callback here. 2 to 10 us. */
void tw_stall_record(tw_segment *g, uint32_t track, uint64_t from_ns, uint64_t to_ns);

/* The process was stopped for so long while its loop waited for events. */
void tw_stall_record_stop(tw_segment *g, uint64_t ns);

TW_END_C
