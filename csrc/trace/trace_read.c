/* The rings of a file read side by side, the oldest event first; the clock snapshots of several files as one list. */
#include "trace/trace_parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/tw_malloc.h"

void tw_ends_take(const tw_trace *file, tw_ends *out) {
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        uint64_t first;
        tw_ring_bounds(file, i, &first, &out->end[i]);
    }
}

/* Fills the buffer behind what is left in it. */
static void refill(tw_reader *r, uint32_t ring) {
    tw_cursor *c = &r->cursor[ring];
    const uint32_t left = c->n - c->at;
    if (c->at == 0 && left != 0) return; /* the last event, seen before */
    memmove(c->event, c->event + c->at, left * sizeof *c->event);
    c->at = 0;
    c->n = left;
    c->n += (uint32_t)tw_ring_read(r->file, ring, &c->next, c->end, c->event + left, TW_READ_AHEAD - left, &c->lost);
}

void tw_reader_start(tw_reader *r, const tw_trace *file, const tw_ends *ends) {
    r->file = file;
    r->ring = TW_RINGS;
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        tw_cursor *c = &r->cursor[i];
        c->next = c->lost = c->at = c->n = 0;
        c->end = ends->end[i];
        refill(r, i);
    }
}

const tw_ring_event *tw_reader_next(tw_reader *r) {
    if (r->ring < TW_RINGS) {
        tw_cursor *c = &r->cursor[r->ring];
        if (++c->at + 1 >= c->n) refill(r, r->ring); /* two stay in sight, for the peek */
    }
    const tw_ring_event *oldest = NULL;
    for (uint32_t i = 0; i < TW_RINGS; i++) {
        const tw_cursor *c = &r->cursor[i];
        if (c->at >= c->n || (oldest != NULL && c->event[c->at].time_ns >= oldest->time_ns)) continue;
        oldest = &c->event[c->at];
        r->ring = i;
    }
    if (oldest == NULL) r->ring = TW_RINGS;
    return oldest;
}

const tw_ring_event *tw_reader_peek(const tw_reader *r) {
    const tw_cursor *c = &r->cursor[r->ring];
    return c->at + 1 < c->n ? &c->event[c->at + 1] : NULL;
}

/* ---- clock snapshots ---- */

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
