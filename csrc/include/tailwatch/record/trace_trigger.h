/* What in a trace is worth keeping the seconds around it: a gap, a wait for a first token, or a request that missed. */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/event_ring.h"

TW_BEGIN_C

typedef struct tw_trigger {
    uint64_t gap_ns, ttft_ns; /* longer than this; 0: never */
    bool slo;                 /* a request that was judged a miss */
    uint64_t next[TW_RINGS];  /* how far it has looked */
} tw_trigger;

/* What a look found. */
typedef struct tw_trigger_found {
    uint64_t matches;
    uint64_t first_ns, last_ns; /* when; 0: there were none */
    uint64_t lost;              /* events overwritten before they were looked at */
} tw_trigger_found;

/* Looks at what was written since the last look; the first one begins with what is there. Any thread, beside the writer. */
void tw_trigger_look(tw_trigger *trigger, const tw_trace *t, tw_trigger_found *out);

/* Passes over all that is there. */
void tw_trigger_skip(tw_trigger *trigger, const tw_trace *t);

TW_END_C
