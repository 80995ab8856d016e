/* How a trace file is divided: the one place that says so, for who makes it and who checks it. */
#ifndef TAILWATCH_RECORD_EVENT_RING_LAYOUT_H
#define TAILWATCH_RECORD_EVENT_RING_LAYOUT_H

#include "tailwatch/record/event_ring.h"

/* Fills in version, sizes, offsets and rings; both numbers are in range. */
void tw_trace_lay_out(tw_trace_head *h, uint64_t events, uint32_t label_sets);

#endif
