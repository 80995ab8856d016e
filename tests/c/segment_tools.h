/* Sizes and counts that tests compare with. */
#ifndef TAILWATCH_SEGMENT_TOOLS_H
#define TAILWATCH_SEGMENT_TOOLS_H

#include "tailwatch/record/segment.h"

/* Bytes of a segment of so many label sets. */
static inline size_t segment_bytes(uint32_t label_sets) { return sizeof(tw_segment) + label_sets * sizeof(tw_series); }

/* Samples at or below classic bound i. */
static inline uint64_t counts_below(const tw_counts *c, const tw_layout *layout, uint32_t bound) {
    uint64_t below = 0;
    const uint32_t last = bound < layout->bounds ? layout->bound_slot[bound] : layout->slots - 1;
    for (uint32_t i = 0; i <= last; i++) below += c->slot[i];
    return below;
}

#endif
