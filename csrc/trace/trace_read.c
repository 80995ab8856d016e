/* The rings of a file read side by side, the oldest event first. */
#include "trace/trace_parts.h"

#include <string.h>

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
