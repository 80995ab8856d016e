/* Part of tw_snapshot_take(). Private. */
#ifndef TAILWATCH_AGGREGATE_SNAPSHOT_EXEMPLARS_H
#define TAILWATCH_AGGREGATE_SNAPSHOT_EXEMPLARS_H

#include "tailwatch/aggregate/snapshot.h"

/* Collects the exemplars of segments into s, whose label sets are there. Returns 0 or ENOMEM. */
int tw_snapshot_take_exemplars(tw_snapshot *s, const tw_segment *const *segments, size_t n);

#endif
