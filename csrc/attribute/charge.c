#include "tailwatch/attribute/charge.h"

#include <string.h>

#include "tailwatch/base/atomic.h"

#include "base/arithmetic.h"

#define LEAVES_WITHIN_NS TW_NS_PER_MS /* of its stamp, and of the usual way, a token has left the engine's process */
#define CALLS_WITHIN_NS (10 * TW_NS_PER_MS) /* of its process's pause, a thread that waited for it calls the loop */

static void own_overlap(const tw_segment *g, uint64_t from, uint64_t to, tw_overlap_by_source *out) {
    tw_overlap own;
    tw_pause_overlap(&g->pause, from, to, &own);
    memcpy(out->overlap_ns[0], own.by_cause, sizeof out->overlap_ns[0]);
    out->total_ns = own.total_ns;
    out->complete = own.complete;
}

/* What the pauses of [from, to] were; false when there were none. */
static bool find(tw_segment *g, tw_served_by by, uint64_t from, uint64_t to, tw_charge *d) {
    memset(d, 0, sizeof *d);
    d->by_source.complete = true;
    d->sources = 1;
    const bool alone = by.peer_set == NULL || tw_peers_idle_since(by.peer_set, by.engine, from);
    if (alone && tw_pause_quiet_since(&g->pause, from)) return false;
    if (!alone) {
        d->sources = TW_SOURCES;
        tw_gap_overlap(&g->pause, by.peer_set->peer, by.peer_set->n, by.engine, from, to, &d->by_source);
    } else {
        own_overlap(g, from, to, &d->by_source);
    }
    if (!d->by_source.complete) tw_add(&g->drops[TW_DROP_PAUSE_RING_OVERFLOW], 1);
    return d->by_source.total_ns > 0;
}

/* engine: 0: of any. */
static bool is_of(const tw_peer *peer, uint64_t engine) { return engine == 0 || peer->engine == engine; }

bool tw_engine_is_elsewhere(const tw_segment *g, tw_served_by by) {
    if (by.peer_set == NULL || tw_load(&g->step_ring.head) != 0) return false;
    for (uint32_t i = 0; i < by.peer_set->n; ++i) {
        const tw_peer *peer = &by.peer_set->peer[i];
        if (peer->engine != TW_ENGINE_SHARED && is_of(peer, by.engine)) return true;
    }
    return false;
}

static void add_delay(tw_charge *d, bool certain, uint32_t source, uint32_t cause, uint64_t ns) {
    d->delay[source][cause] += ns;
    d->delay_ns += ns;
    if (certain) d->certain[source][cause] += ns;
}

/* Adds at most most_ns of some overlaps, over sources and causes in proportion. By differences of a running share: the
 * parts sum to the whole, and none exceeds its overlap. */
static void add_share(tw_charge *d, bool certain, const tw_overlap_by_source *of, uint64_t most_ns) {
    const uint64_t ns = least(of->total_ns, most_ns);
    uint64_t seen = 0, given = 0;
    for (uint32_t i = 0; i < d->sources * TW_CAUSES && ns > 0; ++i) {
        seen += of->overlap_ns[i / TW_CAUSES][i % TW_CAUSES];
        const uint64_t share = (uint64_t)((wide)ns * seen / of->total_ns);
        add_delay(d, certain, i / TW_CAUSES, i % TW_CAUSES, share - given);
        given = share;
    }
}

/* All of the own process's pauses in [from, to]. */
static uint64_t add_own(tw_charge *d, bool certain, const tw_segment *g, uint64_t from, uint64_t to) {
    tw_overlap own;
    if (from >= to || tw_pause_quiet_since(&g->pause, from)) return 0;
    tw_pause_overlap(&g->pause, from, to, &own);
    for (uint32_t cause = 0; cause < TW_CAUSES; ++cause) add_delay(d, certain, 0, cause, own.by_cause[cause]);
    return own.total_ns;
}

static void overlap_in(const tw_charge *d, const tw_segment *g, tw_served_by by, uint64_t from, uint64_t to,
                       tw_overlap_by_source *out) {
    if (d->sources > 1) tw_gap_overlap(&g->pause, by.peer_set->peer, by.peer_set->n, by.engine, from, to, out);
    else own_overlap(g, from, to, out);
}

/* Takes a cell out of some overlaps, or a part of it. */
static void take_out(tw_overlap_by_source *of, uint32_t source, int cause, uint64_t ns) {
    const uint64_t taken = least(ns, of->overlap_ns[source][cause]);
    of->overlap_ns[source][cause] -= taken;
    of->total_ns -= taken;
}

/* Pauses of those that tokens of all engines pass through, without what coincides with the own process's. */
static void passing(const tw_charge *d, const tw_segment *g, tw_served_by by, uint64_t from, uint64_t to,
                    tw_overlap_by_source *out) {
    memset(out, 0, sizeof *out);
    if (d->sources == 1 || from >= to) return;
    tw_gap_overlap(&g->pause, by.peer_set->peer, by.peer_set->n, TW_ENGINE_SHARED, from, to, out);
    for (int cause = 0; cause < TW_CAUSES; ++cause) take_out(out, 0, cause, UINT64_MAX);
}

/* Pauses before the token was ready, at most ns of them. Those of the own process count unless nothing of it is needed to
 * make the token and to bring it; those of processes behind the engine where it is not known when it was done. Those of
 * the engine may lie before the gap: a token before this one had that part of the wait. */
static void add_before(tw_charge *d, const tw_segment *g, tw_served_by by, bool needs_none, bool by_engine,
                       uint64_t from, uint64_t to, uint64_t ns) {
    tw_overlap_by_source before, behind;
    if (from >= to || (ns == 0 && !by_engine)) return;
    overlap_in(d, g, by, from, to, &before);
    if (needs_none)
        for (int cause = 0; cause < TW_CAUSES; ++cause) take_out(&before, 0, cause, UINT64_MAX);
    if (by_engine) {
        passing(d, g, by, from, to, &behind);
        for (uint32_t i = TW_CAUSES; i < d->sources * TW_CAUSES; ++i)
            take_out(&before, i / TW_CAUSES, (int)(i % TW_CAUSES), behind.overlap_ns[i / TW_CAUSES][i % TW_CAUSES]);
    }
    add_share(d, by_engine, &before, ns);
    d->beyond_ns = by_engine ? since(before.total_ns, ns) : 0;
}

/* The process that sends the engine's tokens: it has the steps. NULL: it is not known, or has no source of its own. */
static const tw_peer *sender_of(tw_served_by by) {
    const tw_peer *sender = NULL;
    for (uint32_t i = 0; i < by.peer_set->n; ++i) {
        const tw_segment *segment = by.peer_set->segment[i];
        if (!is_of(&by.peer_set->peer[i], by.engine) || segment == NULL || tw_load(&segment->step_ring.head) == 0) continue;
        if (sender != NULL) return NULL;
        sender = &by.peer_set->peer[i];
    }
    for (uint32_t i = 0; i < by.peer_set->n && sender != NULL; ++i) {
        const tw_peer *peer = &by.peer_set->peer[i];
        if (peer != sender && is_of(peer, by.engine) && peer->source == sender->source) return NULL;
    }
    return sender != NULL && sender->source > 0 && sender->source < TW_SOURCE_OTHER ? sender : NULL;
}

/* Whether the engine's process paused before the token had left it, as far as is known. */
static bool pauses_before_it_leaves(const tw_peer *sender, const tw_ready *ready) {
    tw_overlap own;
    if (sender == NULL) return false;
    tw_pause_overlap(sender->clock, ready->hi_ns, ready->hi_ns + ready->way_ns + LEAVES_WITHIN_NS, &own);
    return own.total_ns > 0;
}

/* What the engine's process paused before the token had left it: at most what its way took beyond that of the one before. */
static void add_leaving(tw_charge *d, const tw_segment *g, tw_served_by by, uint64_t from_ns, const tw_ready *ready) {
    tw_overlap_by_source of;
    const uint64_t beyond = since(since(ready->recv_ns, from_ns), ready->way_ns + d->passing_ns);
    const tw_peer *sender = d->sources > 1 && beyond > 0 ? sender_of(by) : NULL;
    if (!pauses_before_it_leaves(sender, ready)) return;
    overlap_in(d, g, by, from_ns, ready->recv_ns, &of);
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i)
        if (i / TW_CAUSES != sender->source) take_out(&of, i / TW_CAUSES, (int)(i % TW_CAUSES), UINT64_MAX);
    add_share(d, false, &of, beyond);
    d->leaving_ns = least(of.total_ns, beyond);
}

/* What paused between the engine and this process while the token was on its way, from from_ns on: several tokens of a
 * stream may be on their way in one pause, and each gap has its own part of it. */
static void add_passing(tw_charge *d, const tw_segment *g, tw_served_by by, uint64_t from_ns, const tw_ready *ready) {
    tw_overlap_by_source behind;
    if (ready->recv_ns == 0) return;
    passing(d, g, by, from_ns, ready->recv_ns, &behind);
    add_share(d, true, &behind, UINT64_MAX);
    d->passing_ns = behind.total_ns;
    add_leaving(d, g, by, from_ns, ready);
    d->passing_ns += d->leaving_ns;
}

/* Whether the process was paused shortly before lo: a thread of it that had the token then could call the loop no
 * sooner. One whose token comes later than is usual after the pause had none. */
static bool may_have_held_a_thread(const tw_segment *g, uint64_t lo, uint64_t typical_ns) {
    tw_overlap own;
    tw_pause_overlap(&g->pause, since(lo, typical_ns + CALLS_WITHIN_NS), lo, &own);
    return own.total_ns > 0;
}

/* By the chain: certain is what paused once the token was ready, and what paused its engine while it made it. */
static void split_by_chain(const tw_segment *g, tw_served_by by, uint64_t from, uint64_t to, uint64_t base,
                           const tw_ready *ready, tw_charge *d) {
    const uint64_t hi = least(most(ready->hi_ns, from), to), lo = least(most(ready->lo_ns, from), hi);
    const bool elsewhere = tw_engine_is_elsewhere(g, by);
    const bool needs_none = elsewhere && !(ready->by_thread && may_have_held_a_thread(g, lo, since(base, from)));
    uint64_t own = 0;
    add_own(d, true, g, hi, to);
    if (needs_none && base != 0) own = add_own(d, false, g, most(lo, base), hi);
    if (elsewhere) add_passing(d, g, by, hi, ready);
    if (ready->by_engine && elsewhere)
        add_before(d, g, by, true, true, ready->engine_from_ns, least(ready->hi_ns, to), since(to - from, d->delay_ns));
    else if (base != 0) add_before(d, g, by, needs_none, false, from, hi, since(since(hi, base), own));
}

static void book(tw_segment *g, tw_phase phase, const tw_charge *d) {
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i) {
        const uint32_t source = i / TW_CAUSES, cause = i % TW_CAUSES;
        const uint64_t certain = d->certain[source][cause], delay = d->delay[source][cause];
        if (d->by_source.overlap_ns[source][cause] == 0 && delay == 0) continue;
        tw_lost *lost = &g->lost[source];
        tw_add(&lost->overlap_ns[phase][cause], d->by_source.overlap_ns[source][cause]);
        tw_add(&lost->delay_ns[phase][cause][TW_MEASURED], certain);
        tw_add(&lost->delay_ns[phase][cause][TW_ESTIMATED], delay - certain);
    }
}

static uint64_t sum_of_causes(const uint64_t *by_cause) {
    uint64_t sum = 0;
    for (int cause = 0; cause < TW_CAUSES; ++cause) sum += by_cause[cause];
    return sum;
}

void tw_charge_gap(tw_segment *g, tw_served_by by, uint64_t from_ns, uint64_t to_ns, uint64_t typical_ns,
                   const tw_ready *ready, tw_charge *d) {
    if (!find(g, by, from_ns, to_ns, d)) return;
    const bool usable = typical_ns != 0 && d->by_source.complete;
    if (ready->known) split_by_chain(g, by, from_ns, to_ns, usable ? from_ns + typical_ns : 0, ready, d);
    else if (usable) add_share(d, false, &d->by_source, since(to_ns - from_ns, typical_ns));
    book(g, TW_PHASE_ITL, d);
    const uint64_t own_ns = sum_of_causes(d->by_source.overlap_ns[0]);
    if (own_ns > 0) tw_pause_charge(&g->pause, from_ns, to_ns, own_ns, sum_of_causes(d->delay[0]));
}

/* Between entry and the token's being ready a pause may be hidden behind the model's work; behind the engine, where it
 * is known when that was done, nothing of it delays the token. */
static void add_after_entry(tw_charge *d, const tw_segment *g, tw_served_by by, bool by_engine, uint64_t entry,
                            uint64_t hi, uint64_t most_ns) {
    tw_overlap_by_source after, behind;
    if (entry >= hi || !d->by_source.complete) return;
    overlap_in(d, g, by, entry, hi, &after);
    passing(d, g, by, entry, by_engine ? hi : entry, &behind);
    for (uint32_t i = TW_CAUSES; i < d->sources * TW_CAUSES; ++i)
        take_out(&after, i / TW_CAUSES, (int)(i % TW_CAUSES), behind.overlap_ns[i / TW_CAUSES][i % TW_CAUSES]);
    add_share(d, false, &after, most_ns);
}

void tw_charge_first_token(tw_segment *g, tw_served_by by, uint64_t arrival_ns, uint64_t entry_ns, uint64_t to_ns,
                           uint64_t typical_ns, const tw_ready *ready, tw_charge *d) {
    if (!find(g, by, arrival_ns, to_ns, d)) return;
    const uint64_t before_ns = d->by_source.complete ? add_own(d, true, g, arrival_ns, entry_ns) : 0;
    d->before_entry_ns = before_ns;
    const uint64_t hi = ready->known ? least(most(ready->hi_ns, entry_ns), to_ns) : to_ns;
    const bool by_engine = ready->recv_ns != 0 && tw_engine_is_elsewhere(g, by);
    add_own(d, true, g, hi, to_ns);
    if (by_engine) add_passing(d, g, by, hi, ready);
    add_after_entry(d, g, by, by_engine, entry_ns, hi, since(since(to_ns - arrival_ns, d->delay_ns), typical_ns));
    book(g, TW_PHASE_TTFT, d);
    if (before_ns > 0) tw_pause_charge(&g->pause, arrival_ns, entry_ns, before_ns, before_ns);
    const uint64_t after_ns = sum_of_causes(d->by_source.overlap_ns[0]) - before_ns;
    if (after_ns > 0)
        tw_pause_charge(&g->pause, before_ns > 0 ? entry_ns : arrival_ns, to_ns, after_ns,
                        sum_of_causes(d->delay[0]) - before_ns);
}
