/* The parts of an export that use each other. Private. */
#pragma once

#include "tailwatch/trace/trace_export.h"

/* ---- reading: the rings of a file in one order (trace_read.c) ---- */

#define TW_READ_AHEAD 512

typedef struct tw_cursor {
    uint64_t next, end;                 /* numbers of events */
    uint64_t lost;
    uint32_t at, n;                     /* in the buffer */
    tw_ring_event event[TW_READ_AHEAD];
} tw_cursor;

typedef struct tw_reader {
    const tw_trace *file;
    uint32_t ring;                      /* of the event that was read last */
    tw_cursor cursor[TW_RINGS];
} tw_reader;

/* Ends of the rings, captured once for all passes. */
typedef struct tw_ends { uint64_t end[TW_RINGS]; } tw_ends;
void tw_ends_take(const tw_trace *file, tw_ends *out);

void tw_reader_start(tw_reader *r, const tw_trace *file, const tw_ends *ends);

/* The oldest event that no ring has given yet, by time; NULL at the end. Valid until the next call. */
const tw_ring_event *tw_reader_next(tw_reader *r);

/* The event behind that one in its ring, or NULL. */
const tw_ring_event *tw_reader_peek(const tw_reader *r);

/* ---- pauses, and what they delayed (trace_pauses.c) ---- */

typedef struct tw_long_pause {
    uint64_t start_ns, stop_ns;         /* stop: UINT64_MAX while open */
    uint64_t collected;
    uint32_t uncollectable, arrows;
    uint16_t process;
    uint8_t cause;
} tw_long_pause;

typedef struct tw_stretch { uint64_t from_ns, to_ns; } tw_stretch;

typedef struct tw_pauses {
    tw_long_pause *pause;               /* by process, then start, once sorted */
    uint32_t n, room;
    uint64_t shortest_ns;
    uint64_t left_out;
    uint32_t *first;                    /* of each process: its pauses are first[p] .. first[p + 1] */
    uint32_t processes;
    /* whose pauses may delay streams of the process at hand */
    uint16_t *waited, own;
    uint16_t *engine;                     /* tw_engine_tag() of each process; 0: not known */
    uint32_t waited_n;
    tw_stretch *still;                  /* union of their pauses, in order */
    uint32_t still_n, still_room, hint; /* hint: stretches that begin before the last gap's end */
    /* what was delayed by which pause */
    uint32_t *arrow;                    /* number of a pause, for each arrow, in the order they were drawn */
    uint32_t arrow_n, arrow_room;
    uint64_t arrows_left_out;
} tw_pauses;

int tw_pauses_add(tw_pauses *p, const tw_long_pause *pause);
int tw_pauses_sort(tw_pauses *p, uint32_t processes);
void tw_pauses_free(tw_pauses *p);

/* From now on gaps are of this process. waits[i]: whether streams wait for process i. */
int tw_pauses_for(tw_pauses *p, uint32_t process, const bool *waits);

/* Whether any of them coincides with the gap. Amortised constant for gaps in the order of their ends. */
bool tw_pauses_touch(tw_pauses *p, uint64_t from_ns, uint64_t to_ns);

/* Draws an arrow for each pause that coincides with the gap for long enough: their numbers into ids, how long together
 * into *overlap_ns (where pauses of several processes coincide, once). engine: TW_ENGINE_NONE: those of its own
 * process; a tw_engine_tag(): and of those that work for it, or may; 0: and of all. Returns how many. */
#define TW_ENGINE_NONE UINT32_MAX
uint32_t tw_pauses_hit(tw_pauses *p, uint64_t from_ns, uint64_t to_ns, uint32_t engine,
                       uint64_t ids[TW_TRACE_ARROWS_EACH], uint64_t *overlap_ns);

/* The id of an arrow, from 1 on. */
uint64_t tw_arrow_id(uint32_t arrow);

/* ---- requests (trace_requests.c) ---- */

typedef struct tw_request {
    uint64_t id;                        /* 0: the place is free */
    uint64_t last_ns;                   /* its newest point */
    uint32_t lane;
    uint16_t phase;
    bool labelled;                      /* its slice shows model and route */
} tw_request;

typedef struct tw_lane {
    uint32_t track;
    uint64_t free_ns;                   /* when its last request ended */
} tw_lane;

typedef struct tw_requests {
    tw_request *place;                  /* open addressing, a power of two */
    uint32_t places, used;
    tw_lane *lane;
    uint32_t lanes, lane_room;
    uint32_t *idle;                     /* lanes that are empty */
    uint32_t idle_n, idle_room;
} tw_requests;

/* NULL: not known. */
tw_request *tw_requests_find(tw_requests *r, uint64_t id);

/* A new one on a lane that is free since from_ns, or on a new lane: *made then, and its track is to be set. NULL: no
 * memory. */
tw_request *tw_requests_open(tw_requests *r, uint64_t id, uint64_t from_ns, bool *made);
void tw_requests_close(tw_requests *r, tw_request *request, uint64_t at_ns);
void tw_requests_free(tw_requests *r);
