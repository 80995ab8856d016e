/* What a wait was made of: exclusive parts, each with a cause, a certainty and what is known of it. Filled by the
 * splits of a host thread's time (host_split.h) and of an engine's steps (engine_split.h); a slow gap keeps them.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/delay_cause.h"

#include <stdint.h>

TW_BEGIN_C

/* Adds a part: to the part of the same cause, certainty, source and name where there is one, or of the same holder of the
 * interpreter lock. No time is lost: where all places are taken, it joins the smallest part of its cause and source, else
 * the smallest of all makes room, and what it was becomes unexplained. */
void tw_parts_add(tw_parts *to, const tw_part *part);

/* Adds a measured part of which no more than its cause is known. */
void tw_parts_measured(tw_parts *to, int cause, uint64_t ns);

/* The sum of all parts, ns. */
uint64_t tw_parts_sum(const tw_parts *parts);

/* The sum of those of the causes from first to last, ns. */
uint64_t tw_parts_sum_of(const tw_parts *parts, int first, int last);

/* Scales all parts so that they sum to at most ns, in proportion; exact by differences of a running share. */
void tw_parts_clip(tw_parts *parts, uint64_t ns);

TW_END_C
