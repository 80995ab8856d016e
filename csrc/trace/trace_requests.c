/* The requests in flight while a file is read, and the rows they are drawn on. */
#include "trace/trace_parts.h"

#include <errno.h>
#include <string.h>

#include "base/grow.h"
#include "base/tw_malloc.h"

#define PLACES_START 256
#define LANES_LOOKED_AT 64 /* of those that are empty; a file that lies must not make each request look at all */

static uint32_t place_of(const tw_requests *r, uint64_t id) {
    return (uint32_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (r->places - 1);
}

tw_request *tw_requests_find(tw_requests *r, uint64_t id) {
    if (id == 0 || r->places == 0) return NULL;
    for (uint32_t i = place_of(r, id); r->place[i].id != 0; i = (i + 1) & (r->places - 1))
        if (r->place[i].id == id) return &r->place[i];
    return NULL;
}

static tw_request *insert(tw_requests *r, tw_request request) {
    uint32_t i = place_of(r, request.id);
    while (r->place[i].id != 0) i = (i + 1) & (r->places - 1);
    r->place[i] = request;
    return &r->place[i];
}

static bool grow(tw_requests *r) {
    tw_requests larger = *r;
    larger.places = r->places != 0 ? 2 * r->places : PLACES_START;
    larger.place = tw_calloc(larger.places, sizeof *larger.place);
    if (larger.place == NULL) return false;
    for (uint32_t i = 0; i < r->places; i++)
        if (r->place[i].id != 0) insert(&larger, r->place[i]);
    tw_free(r->place);
    *r = larger;
    return true;
}

/* A lane that is empty since from_ns; lanes: there is none. */
static uint32_t idle_lane(tw_requests *r, uint64_t from_ns) {
    const uint32_t least = r->idle_n > LANES_LOOKED_AT ? r->idle_n - LANES_LOOKED_AT : 0;
    uint32_t best = r->idle_n;
    for (uint32_t i = r->idle_n; i-- > least;)
        if (r->lane[r->idle[i]].free_ns <= from_ns && (best == r->idle_n || r->idle[i] < r->idle[best])) best = i;
    if (best == r->idle_n) return r->lanes;
    const uint32_t lane = r->idle[best];
    r->idle[best] = r->idle[--r->idle_n];
    return lane;
}

static bool new_lane(tw_requests *r) {
    if (!tw_grow(&r->lane, r->lanes, &r->lane_room, sizeof *r->lane)) return false;
    if (!tw_grow(&r->idle, r->lanes, &r->idle_room, sizeof *r->idle)) return false; /* all may be idle at once */
    r->lane[r->lanes++] = (tw_lane){0};
    return true;
}

tw_request *tw_requests_open(tw_requests *r, uint64_t id, uint64_t from_ns, bool *made) {
    if (2 * r->used >= r->places && !grow(r)) return NULL;
    const uint32_t lane = idle_lane(r, from_ns);
    *made = lane == r->lanes;
    if (*made && !new_lane(r)) return NULL;
    r->used++;
    return insert(r, (tw_request){.id = id, .last_ns = from_ns, .lane = lane});
}

void tw_requests_close(tw_requests *r, tw_request *request, uint64_t at_ns) {
    r->lane[request->lane].free_ns = at_ns;
    r->idle[r->idle_n++] = request->lane;
    r->used--;
    /* What stands behind it moves up, so that searches may end at a free place. */
    uint32_t hole = (uint32_t)(request - r->place), i = hole;
    for (;;) {
        r->place[hole].id = 0;
        for (;;) {
            i = (i + 1) & (r->places - 1);
            if (r->place[i].id == 0) return;
            const uint32_t home = place_of(r, r->place[i].id);
            if (((i - home) & (r->places - 1)) >= ((i - hole) & (r->places - 1))) break;
        }
        r->place[hole] = r->place[i];
        hole = i;
    }
}

void tw_requests_free(tw_requests *r) {
    tw_free(r->place);
    tw_free(r->lane);
    tw_free(r->idle);
}
