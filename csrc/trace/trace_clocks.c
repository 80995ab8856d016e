/* The clock snapshots of several processes of one machine as one list. */
#include "trace/trace_parts.h"

#include <stdlib.h>

#include "base/tw_malloc.h"

#define APART_NS (TW_NS_PER_SECOND / 2)
#define STEP_NS 100000 /* less is how far apart a snapshot's clocks may have been read */

static int by_time(const void *a, const void *b) {
    const uint64_t x = ((const tw_clock_snapshot *)a)->at[TW_CLOCK_MONOTONIC];
    const uint64_t y = ((const tw_clock_snapshot *)b)->at[TW_CLOCK_MONOTONIC];
    return x < y ? -1 : x > y;
}

__extension__ typedef __int128 wide;

/* REALTIME went another way than MONOTONIC between the two. */
static bool stepped(const tw_clock_snapshot *a, const tw_clock_snapshot *b) {
    const wide mono = (wide)b->at[TW_CLOCK_MONOTONIC] - a->at[TW_CLOCK_MONOTONIC];
    const wide real = (wide)b->at[TW_CLOCK_REALTIME] - a->at[TW_CLOCK_REALTIME];
    const wide off = real > mono ? real - mono : mono - real;
    return off > mono / 1000000 * TW_CLOCK_SLEW_PPM + STEP_NS;
}

size_t tw_trace_clocks_merged(const tw_trace *const *files, size_t n, tw_clock_snapshot *out, size_t room) {
    tw_clock_snapshot *all = tw_malloc(n * TW_CLOCK_KEPT * sizeof *all + 1);
    if (all == NULL) return 0;
    size_t found = 0, kept = 0;
    for (size_t i = 0; i < n; i++) found += tw_trace_clocks(files[i], all + found);
    if (found > 1) qsort(all, found, sizeof *all, by_time);
    for (size_t i = 0; i < found && kept < room; i++) {
        const tw_clock_snapshot *last = kept != 0 ? &out[kept - 1] : NULL;
        const bool far = last == NULL || all[i].at[TW_CLOCK_MONOTONIC] - last->at[TW_CLOCK_MONOTONIC] >= APART_NS;
        if (far || stepped(last, &all[i])) out[kept++] = all[i];
    }
    tw_free(all);
    return kept;
}
