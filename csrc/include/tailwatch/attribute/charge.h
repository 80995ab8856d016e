/* Charges the pauses that a wait of a stream coincided with: their overlap, and the delay they caused, added to the
 * segment's counters by source and to the pauses themselves.
 *
 * overlap, typical gap and delay are defined in stamp/stream.h. Thread rule: the segment's single writer.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"

#include "tailwatch/attribute/overlap_by_source.h"

TW_BEGIN_C

/* When a token was ready for the process that sends it: not before lo_ns, not after hi_ns. */
typedef struct tw_ready {
    bool known;                     /* false: nothing is known of it */
    bool by_engine;                 /* lo_ns = hi_ns is the stamp of the engine, engine_from_ns that of the token before */
    bool by_thread;                 /* the loop was called at lo_ns or later: a thread of the process may have brought it,
                                       and have been held up by a pause before lo_ns */
    uint64_t lo_ns, hi_ns, engine_from_ns;
    uint64_t recv_ns;               /* when it came here from the engine; 0: not known */
    uint64_t way_ns;                /* what its way took for the token before; 0: not known */
} tw_ready;

typedef struct tw_charge {
    tw_overlap_by_source by_source;
    uint32_t sources;               /* in use: those from here on are empty */
    uint64_t delay[TW_SOURCES][TW_CAUSES];  /* of that: */
    uint64_t certain[TW_SOURCES][TW_CAUSES];
    uint64_t delay_ns;              /* at most the wait */
    uint64_t before_entry_ns;       /* of a first token: what of it lies before the app was entered */
    uint64_t passing_ns;            /* what of it held the token up on its way, elsewhere: pauses behind the engine, and of
                                       the engine before the token had left */
    uint64_t leaving_ns;            /* of that, the latter: an estimate */
    uint64_t beyond_ns;             /* not of it: pauses of the engine as it made the token, that are more than the gap */
} tw_charge;

/* The peers whose pauses count beside those of the segment's own process: see tw_stream_join. */
typedef struct tw_served_by {
    const tw_peer_set *peer_set; /* NULL: none */
    uint64_t engine;
} tw_served_by;

/* Whether the engine is another process than the segment's own: its own pauses delay no token that is not ready, unless
 * a thread of it brings the token to its loop. */
bool tw_engine_is_elsewhere(const tw_segment *g, tw_served_by by);

/* A gap [from_ns, to_ns] whose typical length is known, or 0. */
void tw_charge_gap(tw_segment *g, tw_served_by by, uint64_t from_ns, uint64_t to_ns, uint64_t typical_ns,
                   const tw_ready *ready, tw_charge *out);

/* The wait [arrival_ns, to_ns] for a first token; until entry_ns only the segment's own process can have delayed it.
 * typical_ns: of such waits without their delay part; 0: not known, and all that overlapped is charged. */
void tw_charge_first_token(tw_segment *g, tw_served_by by, uint64_t arrival_ns, uint64_t entry_ns, uint64_t to_ns,
                           uint64_t typical_ns, const tw_ready *ready, tw_charge *out);

TW_END_C
