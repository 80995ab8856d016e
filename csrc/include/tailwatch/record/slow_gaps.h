/* Which slow gaps a segment keeps: the last TW_SLOW_RING, and of each phase the longest of each of the last minutes, of
 * each of the last hours, and of the run. Of a record only its number, phase, length and end are looked at.
 *
 * Minutes and hours are those of the monotonic clock. A minute without a slow gap leaves an older one's in place.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"

TW_BEGIN_C

#define TW_SLOW_KEPT (TW_SLOW_RING + TW_SLOW_LONGEST)

/* Copies the record into those of the TW_SLOW_LONGEST slots whose record is shorter or of an earlier minute or hour. A
 * record of no phase, or without a number, is not kept. Single writer; no lock, no allocation. */
void tw_slow_keep(tw_slow_record *longest, const tw_slow_record *record);

/* Copies all slow gaps that the segment keeps, each once, in no order; one that is being written is left out. out has
 * room for TW_SLOW_KEPT. Returns how many. Any thread, never torn. */
size_t tw_slow_gaps_read(const tw_segment *g, tw_slow_record *out);

TW_END_C
