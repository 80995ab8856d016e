#include "tailwatch/attribute/last_rank.h"

#include <string.h>

#include "base/arithmetic.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/segment.h"

#define USUAL_STEPS 16  /* of which the usual is the median, */
#define USUAL_STRIDE 32 /* so many steps apart: what lasts a while does not become usual */
#define SEARCHED 8      /* steps by which one rank's events may be ahead of another's */

/* A rank's events, newest first: those below `before` are to come. */
typedef struct rank {
    const tw_step_ring *ring;
    uint64_t before;
    uint32_t peer, number, group;
} rank;

typedef struct ranks {
    uint32_t n;
    rank of[TW_RANKS];
} ranks;

/* A step, by the entries of its ranks. */
typedef struct met {
    uint32_t last;              /* of the ranks */
    uint64_t median_ns, last_ns; /* of the others' entries; its own */
} met;

static bool read_rank(const tw_step_ring *ring, uint64_t n, tw_step_event *event) {
    return tw_step_event_read(ring, n, event) && event->what == TW_EVENT_RANK;
}

static void find_ranks(const tw_peer_set *peers, uint64_t engine, ranks *found) {
    tw_step_event newest;
    found->n = 0;
    for (uint32_t i = 0; i < peers->n && found->n < TW_RANKS; ++i) {
        if (peers->peer[i].engine != engine || peers->segment[i] == NULL) continue;
        const tw_step_ring *ring = &peers->segment[i]->step_ring;
        const uint64_t head = tw_load_acquire(&ring->event_head);
        if (head == 0 || !read_rank(ring, head - 1, &newest)) continue;
        found->of[found->n++] = (rank){ring, head, i, tw_rank_of(&newest), tw_rank_group(&newest)};
    }
}

/* Takes the ranks of the first one's group out of `all`. */
static void take_group(ranks *all, ranks *group) {
    const uint32_t which = all->of[0].group;
    uint32_t left = 0;
    group->n = 0;
    for (uint32_t i = 0; i < all->n; ++i) {
        ranks *to = all->of[i].group == which ? group : all;
        to->of[to == group ? group->n++ : left++] = all->of[i];
    }
    all->n = left;
}

/* The same step in another rank; false: it has not entered it, or it is not known. */
static bool find_same(rank *r, uint64_t mark, uint64_t *entered_ns) {
    tw_step_event event;
    for (uint64_t n = r->before; n > since(r->before, SEARCHED); --n) {
        if (!read_rank(r->ring, n - 1, &event) || event.request != mark) continue;
        *entered_ns = event.from_ns;
        r->before = n - 1;
        return true;
    }
    return false;
}

static void sort(uint64_t *values, uint32_t n) {
    for (uint32_t i = 1; i < n; ++i) {
        const uint64_t value = values[i];
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > value; --at) values[at] = values[at - 1];
        values[at] = value;
    }
}

static met met_at(uint64_t *entered_ns, uint32_t n) {
    met m = {0, 0, entered_ns[0]};
    for (uint32_t i = 1; i < n; ++i)
        if (entered_ns[i] > m.last_ns) m.last = i, m.last_ns = entered_ns[i];
    sort(entered_ns, n);
    m.median_ns = entered_ns[(n - 2) / 2];
    return m;
}

/* The next step back that all of them have entered; false: none is near. */
static bool step_back(ranks *r, met *m) {
    uint64_t entered_ns[TW_RANKS];
    tw_step_event event;
    rank *first = &r->of[0];
    for (int i = 0; i < SEARCHED && first->before > 0 && read_rank(first->ring, first->before - 1, &event); ++i) {
        uint32_t found = 1;
        --first->before;
        entered_ns[0] = event.from_ns;
        while (found < r->n && find_same(&r->of[found], event.request, &entered_ns[found])) ++found;
        if (found < r->n) continue;
        *m = met_at(entered_ns, r->n);
        return true;
    }
    return false;
}

/* The lower median of how late the last one was. */
static uint64_t usual_ns(ranks *r) {
    uint64_t behind_ns[USUAL_STEPS];
    uint32_t n = 0;
    met m;
    while (n < USUAL_STEPS && step_back(r, &m)) {
        behind_ns[n++] = m.last_ns - m.median_ns;
        for (uint32_t i = 0; i < r->n; ++i) r->of[i].before = since(r->of[i].before, USUAL_STRIDE - 1);
    }
    sort(behind_ns, n);
    return n == 0 ? 0 : behind_ns[(n - 1) / 2];
}

/* What came of one group of ranks. */
typedef struct late_steps {
    uint32_t n;
    uint64_t sum_ns;
    tw_late_rank of[TW_LATE_STEPS];
} late_steps;

/* Before what is usual is taken off. */
static void find_late(ranks *r, uint64_t from_ns, uint64_t to_ns, late_steps *out) {
    met m;
    out->n = 0;
    for (int i = 0; i < TW_LATE_STEPS && step_back(r, &m) && m.last_ns > from_ns;) {
        if (m.last_ns > to_ns) continue; /* later steps are no token's of these */
        ++i;
        if (m.last_ns - m.median_ns < TW_SPAN_LEAST_NS) continue;
        out->of[out->n++] = (tw_late_rank){r->of[m.last].peer, r->of[m.last].number, m.median_ns, m.last_ns};
    }
}

/* Takes off what is usual, and what a later step has already. */
static void trim(late_steps *late, uint64_t usual, uint64_t from_ns) {
    const uint32_t n = late->n;
    uint64_t until = UINT64_MAX;
    late->n = 0;
    late->sum_ns = 0;
    for (uint32_t i = 0; i < n; ++i) {
        tw_late_rank one = late->of[i];
        if (one.to_ns - one.from_ns < usual + TW_SPAN_LEAST_NS) continue;
        one.from_ns = most(one.from_ns + usual, from_ns);
        one.to_ns = least(one.to_ns, until);
        if (one.from_ns >= one.to_ns) continue;
        until = one.from_ns;
        late->sum_ns += one.to_ns - one.from_ns;
        late->of[late->n++] = one;
    }
}

uint64_t tw_rank_inside_ns(const tw_step_ring *ring, uint64_t from_ns, uint64_t to_ns) {
    const uint64_t head = tw_load_acquire(&ring->event_head);
    uint64_t inside_ns = 0;
    tw_step_event event;
    if (head == 0 || !read_rank(ring, head - 1, &event)) return UINT64_MAX;
    for (uint64_t n = head; n > 0 && read_rank(ring, n - 1, &event); --n) {
        const uint64_t left_ns = event.to_ns == event.from_ns ? to_ns : event.to_ns; /* it has not left yet */
        if (left_ns <= from_ns) break;
        inside_ns += since(least(left_ns, to_ns), most(event.from_ns, from_ns));
    }
    return inside_ns;
}

/* Of an engine in stages each has ranks of its own, which meet in its layers: the stage that waited longest counts. */
uint32_t tw_late_ranks(const tw_peer_set *peer_set, uint64_t engine, uint64_t from_ns, uint64_t to_ns,
                       tw_late_rank out[TW_LATE_STEPS]) {
    ranks all, group;
    late_steps late, longest = {.n = 0, .sum_ns = 0};
    find_ranks(peer_set, engine, &all);
    while (all.n > 1) {
        take_group(&all, &group);
        if (group.n < 2) continue;
        find_late(&group, from_ns, to_ns, &late);
        if (late.n == 0) continue;
        trim(&late, usual_ns(&group), from_ns);
        if (late.sum_ns > longest.sum_ns) longest = late;
    }
    memcpy(out, longest.of, longest.n * sizeof *out);
    return longest.n;
}
