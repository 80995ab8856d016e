/* What pauses cost one wait of a stream: overlap, and delay as an estimate, booked where both are counted.
 *
 * The definitions of overlap, typical and delay stand in stamp/stream.h. Thread rule: the segment's single writer.
 */
#ifndef TAILWATCH_ATTRIBUTE_DELAY_H
#define TAILWATCH_ATTRIBUTE_DELAY_H

#include "tailwatch/record/segment.h"

#include "tailwatch/attribute/attribution.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What pauses did to one wait, by the source they came from. */
typedef struct tw_delay {
    tw_attribution blame;
    uint32_t sources;               /* those from here on have nothing */
    uint64_t delay[TW_SOURCES][TW_CAUSES];
    uint64_t delay_ns;
} tw_delay;

/* Whose pauses a wait may coincide with beside those of the segment's own process: see tw_stream_join. */
typedef struct tw_served_by {
    const tw_peer_set *peer_set; /* NULL: nobody's */
    uint64_t unit;
} tw_served_by;

/* A gap [from_ns, to_ns] whose typical length is known, or 0. */
void tw_delay_of_gap(tw_segment *g, tw_served_by by, uint64_t from_ns, uint64_t to_ns, uint64_t typical_ns,
                     tw_delay *out);

/* The wait [arrival_ns, to_ns] for a first token; until entry_ns only the segment's own process can have delayed it. */
void tw_delay_of_first(tw_segment *g, tw_served_by by, uint64_t arrival_ns, uint64_t entry_ns, uint64_t to_ns,
                       tw_delay *out);

#ifdef __cplusplus
}
#endif
#endif
