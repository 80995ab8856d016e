#include "tailwatch/attribute/overlap_by_source.h"

#include <string.h>

#include "base/arithmetic.h"

/* Newest first, disjoint. */
typedef struct span {
    uint64_t from_ns, to_ns;
} span;

typedef struct spans {
    uint32_t n;
    span at[TW_OVERLAP_SPANS];
} spans;

/* The pauses of one clock. */
typedef struct found {
    spans spans;
    uint8_t cause[TW_OVERLAP_SPANS];
    bool all;
} found;

static void find(void *to, uint64_t from_ns, uint64_t to_ns, tw_cause cause) {
    found *f = to;
    if (f->spans.n == TW_OVERLAP_SPANS) {
        f->all = false;
        return;
    }
    f->spans.at[f->spans.n] = (span){from_ns, to_ns};
    f->cause[f->spans.n++] = (uint8_t)cause;
}

/* How much of a span is in none of the others. *next: the first of them that may reach it; it only grows as older spans
 * are asked for. */
static uint64_t outside(const span *s, const spans *others, uint32_t *next) {
    uint64_t inside = 0;
    while (*next < others->n && others->at[*next].from_ns >= s->to_ns) ++*next;
    for (uint32_t i = *next; i < others->n && others->at[i].to_ns > s->from_ns; ++i)
        inside += least(s->to_ns, others->at[i].to_ns) - most(s->from_ns, others->at[i].from_ns);
    return s->to_ns - s->from_ns - inside;
}

/* Adds a span that begins no later than the last, joining it to that one where they touch. */
static bool append(spans *to, const span *s) {
    span *last = to->n > 0 ? &to->at[to->n - 1] : NULL;
    if (last != NULL && s->to_ns >= last->from_ns) {
        last->from_ns = least(last->from_ns, s->from_ns);
        return true;
    }
    if (to->n == TW_OVERLAP_SPANS) return false;
    to->at[to->n++] = *s;
    return true;
}

/* The union of both, newest first. */
static bool join(const spans *a, const spans *b, spans *out) {
    uint32_t i = 0, k = 0;
    bool all = true;
    out->n = 0;
    while (i < a->n || k < b->n) {
        const bool first = k == b->n || (i < a->n && a->at[i].to_ns >= b->at[k].to_ns);
        all &= append(out, first ? &a->at[i++] : &b->at[k++]);
    }
    return all;
}

/* What one clock adds to what is already charged to others. */
typedef struct tally {
    spans covered, joined;
    found found;
    uint64_t from_ns, to_ns;
    tw_overlap_by_source *out;
} tally;

static void add(tally *t, const tw_pause_clock *clock, uint32_t source) {
    uint32_t next = 0;
    t->found.spans.n = 0;
    t->found.all = true;
    if (!tw_pause_each(clock, t->from_ns, t->to_ns, find, &t->found) || !t->found.all) t->out->complete = false;
    for (uint32_t i = 0; i < t->found.spans.n; ++i) {
        const uint64_t more_ns = outside(&t->found.spans.at[i], &t->covered, &next);
        t->out->overlap_ns[source][t->found.cause[i]] += more_ns;
        t->out->total_ns += more_ns;
    }
    if (!join(&t->covered, &t->found.spans, &t->joined)) t->out->complete = false;
    t->covered.n = t->joined.n;
    memcpy(t->covered.at, t->joined.at, t->joined.n * sizeof *t->joined.at);
}

static uint32_t source_of(const tw_peer *peer) {
    return peer->source > 0 && peer->source < TW_SOURCE_OTHER ? peer->source : TW_SOURCE_OTHER;
}

static bool is_quiet(const tw_peer *peer, uint64_t from_ns) {
    return peer->engine == 0 || tw_pause_quiet_since(peer->clock, from_ns);
}

static void add_engine(tally *t, const tw_peer *peers, uint32_t n, uint64_t engine) {
    for (uint32_t i = 0; i < n; ++i)
        if (peers[i].engine == engine && !is_quiet(&peers[i], t->from_ns)) add(t, peers[i].clock, source_of(&peers[i]));
}

/* Own pauses, those of peers that work for all, then those of one engine's (0: of none). */
static void overlap_with_engine(tally *t, const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t engine) {
    t->covered.n = 0;
    memset(t->out, 0, sizeof *t->out);
    t->out->complete = true;
    if (!tw_pause_quiet_since(own, t->from_ns)) add(t, own, 0);
    add_engine(t, peers, n, TW_ENGINE_SHARED);
    if (engine != TW_ENGINE_SHARED) add_engine(t, peers, n, engine);
}

/* The one engine there is; 0: none; UINT64_MAX: several. */
static uint64_t only_engine(const tw_peer *peers, uint32_t n) {
    uint64_t only = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (peers[i].engine == 0 || peers[i].engine == TW_ENGINE_SHARED || peers[i].engine == only) continue;
        if (only != 0) return UINT64_MAX;
        only = peers[i].engine;
    }
    return only;
}

/* What goes beyond the part that is certain. That was looked at earlier: a ring may have wrapped meanwhile. */
static void rename_unbound(tw_overlap_by_source *found, const tw_overlap_by_source *certain) {
    for (uint32_t source = 1; source < TW_SOURCE_UNBOUND; ++source)
        for (int cause = 0; cause < TW_CAUSES; ++cause) {
            const uint64_t sure_ns = least(certain->overlap_ns[source][cause], found->overlap_ns[source][cause]);
            found->overlap_ns[TW_SOURCE_UNBOUND][cause] += found->overlap_ns[source][cause] - sure_ns;
            found->overlap_ns[source][cause] = sure_ns;
        }
}

/* Of each engine once, at its first peer that did not keep still; the largest is kept. */
static void overlap_with_any(tally *t, const tw_pause_clock *own, const tw_peer *peers, uint32_t n) {
    tw_overlap_by_source certain, largest, *out = t->out, tried;
    bool complete = true;
    overlap_with_engine(t, own, peers, n, 0);
    certain = largest = *out;
    t->out = &tried;
    for (uint32_t i = 0; i < n; ++i) {
        if (peers[i].engine == TW_ENGINE_SHARED || is_quiet(&peers[i], t->from_ns)) continue;
        overlap_with_engine(t, own, peers, n, peers[i].engine);
        complete &= tried.complete;
        if (tried.total_ns > largest.total_ns) largest = tried;
    }
    rename_unbound(&largest, &certain);
    largest.complete &= complete;
    *out = largest;
}

void tw_gap_overlap(const tw_pause_clock *own, const tw_peer *peers, uint32_t n, uint64_t engine, uint64_t from_ns,
                    uint64_t to_ns, tw_overlap_by_source *out) {
    tally t;
    t.from_ns = from_ns, t.to_ns = to_ns, t.out = out;
    if (engine == 0) engine = only_engine(peers, n);
    if (engine == UINT64_MAX) overlap_with_any(&t, own, peers, n);
    else overlap_with_engine(&t, own, peers, n, engine);
}
