#include "tailwatch/attribute/charge.h"

#include <string.h>

#include "tailwatch/base/atomic.h"

#include "base/arithmetic.h"

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

/* Splits delay over sources and causes in proportion to their overlap. By differences of a running share: the parts
 * sum to the whole, and none exceeds its overlap. */
static void split(tw_charge *d, uint64_t delay_ns) {
    uint64_t seen = 0, given = 0;
    d->delay_ns = delay_ns;
    for (uint32_t i = 0; i < d->sources * TW_CAUSES && delay_ns > 0; ++i) {
        seen += d->by_source.overlap_ns[i / TW_CAUSES][i % TW_CAUSES];
        uint64_t share = (uint64_t)((wide)delay_ns * seen / d->by_source.total_ns);
        d->delay[i / TW_CAUSES][i % TW_CAUSES] = share - given;
        given = share;
    }
}

static void book(tw_segment *g, tw_phase phase, const tw_charge *d) {
    for (uint32_t i = 0; i < d->sources * TW_CAUSES; ++i) {
        const uint32_t source = i / TW_CAUSES, cause = i % TW_CAUSES;
        if (d->by_source.overlap_ns[source][cause] == 0) continue;
        tw_add(&g->lost[source].overlap_ns[phase][cause], d->by_source.overlap_ns[source][cause]);
        tw_add(&g->lost[source].delay_ns[phase][cause], d->delay[source][cause]);
    }
}

static uint64_t sum_of_causes(const uint64_t *by_cause) {
    uint64_t sum = 0;
    for (int cause = 0; cause < TW_CAUSES; ++cause) sum += by_cause[cause];
    return sum;
}

void tw_charge_gap(tw_segment *g, tw_served_by by, uint64_t from_ns, uint64_t to_ns, uint64_t typical_ns,
                     tw_charge *d) {
    if (!find(g, by, from_ns, to_ns, d)) return;
    split(d, least(d->by_source.total_ns, typical_ns != 0 && d->by_source.complete ? since(to_ns - from_ns, typical_ns) : 0));
    book(g, TW_PHASE_ITL, d);
    const uint64_t own_ns = sum_of_causes(d->by_source.overlap_ns[0]);
    if (own_ns > 0) tw_pause_charge(&g->pause, from_ns, to_ns, own_ns, sum_of_causes(d->delay[0]));
}

void tw_charge_first_token(tw_segment *g, tw_served_by by, uint64_t arrival_ns, uint64_t entry_ns, uint64_t to_ns,
                       tw_charge *d) {
    tw_overlap_by_source before;
    if (!find(g, by, arrival_ns, to_ns, d)) return;
    memset(&before, 0, sizeof before);
    if (d->by_source.complete && entry_ns > arrival_ns) own_overlap(g, arrival_ns, entry_ns, &before);
    memcpy(d->delay[0], before.overlap_ns[0], sizeof d->delay[0]);
    d->delay_ns = before.total_ns;
    book(g, TW_PHASE_TTFT, d);
    if (d->delay_ns > 0) tw_pause_charge(&g->pause, arrival_ns, entry_ns, d->delay_ns, d->delay_ns);
    const uint64_t after_ns = sum_of_causes(d->by_source.overlap_ns[0]) - d->delay_ns;
    if (after_ns > 0) tw_pause_charge(&g->pause, d->delay_ns > 0 ? entry_ns : arrival_ns, to_ns, after_ns, 0);
}
