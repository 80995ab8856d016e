#include "tailwatch/pace.h"

#include "tailwatch/atomic.h"

#include <string.h>

#define PER 1024
#define COST_AT_FIRST (200 * PER) /* ns: out of the cache */
#define WAIT_AT_FIRST 1000000

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

const char *tw_moment_name(int moment) {
    static const char *const names[TW_MOMENTS] = {"idle", "step", "request_end", "overdue", "ceiling", "asked"};
    return moment >= 0 && moment < TW_MOMENTS ? names[moment] : "unknown";
}

/* Of the freed, those who were young: by their share. */
static void grow(tw_pace *p, size_t young, size_t moved, size_t freed) {
    const size_t all = young + moved;
    const uint64_t died = all == 0 ? 0 : (uint64_t)freed * young / all;
    const uint64_t grown = young > died ? young - died : 0;
    p->debt += grown * TW_PACE_PER_OBJECT;
    p->debt -= least(p->debt, moved);
    p->old += young;
    p->old -= least(p->old, freed);
}

void tw_pace_slice(tw_pace *p, tw_moment moment, size_t young, size_t moved, size_t freed, uint64_t ns) {
    const size_t all = young + moved;
    p->predicted_ns += tw_pace_cost(p) * all / PER;
    if (all >= TW_PACE_FEWEST / 2) p->cost_ns[p->slices++ % TW_PACE_COSTS] = ns * PER / all;
    p->made[moment] += 1;
    p->refusals = 0;
    p->moved += moved;
    p->round_moved += moved;
    p->freed += freed;
    p->ns += ns;
    grow(p, young, moved, freed);
}

static void pay_all(tw_pace *p, size_t young, size_t freed) {
    p->debt = p->round_moved = 0;
    p->old += young;
    p->old -= least(p->old, freed);
}

void tw_pace_pass(tw_pace *p, size_t young, size_t freed) { pay_all(p, young, freed); }

void tw_pace_other(tw_pace *p, int whole, size_t young, size_t freed) {
    if (whole) pay_all(p, young, freed);
    else grow(p, young, 0, freed);
}

void tw_pace_begin_again(tw_pace *p) {
    memset(p->made, 0, sizeof p->made);
    p->moved = p->freed = p->ns = p->predicted_ns = p->rounds = 0;
}

/* Objects that died by their count are not seen to: the round knows better. */
void tw_pace_rounded(tw_pace *p) {
    p->old = least(p->old, p->round_moved);
    p->round_moved = 0;
    p->rounds += 1;
}

void tw_pace_round(tw_pace *p) {
    if (p->debt < p->old) p->debt = p->old;
}

void tw_pace_wait(tw_pace *p, uint64_t ns) {
    const uint64_t n = tw_load(&p->waits);
    tw_store(&p->wait_ns[n % TW_PACE_WAITS], ns);
    tw_store(&p->waits, n + 1);
}

uint64_t tw_pace_cost(const tw_pace *p) {
    uint64_t dearest = 0;
    for (size_t i = 0; i < TW_PACE_COSTS && i < p->slices; ++i)
        if (p->cost_ns[i] > dearest) dearest = p->cost_ns[i];
    return p->slices == 0 ? COST_AT_FIRST : dearest;
}

/* The fifth of those that lasted longer, counted from the shortest. */
uint64_t tw_pace_left(const tw_pace *p, uint64_t lasted_ns) {
    uint64_t longer[TW_PACE_WAITS];
    size_t n = 0;
    for (size_t i = 0; i < TW_PACE_WAITS && i < tw_load(&p->waits); ++i) {
        const uint64_t ns = tw_load(&p->wait_ns[i]);
        if (ns <= lasted_ns) continue;
        size_t at = n++;
        for (; at > 0 && longer[at - 1] > ns; --at) longer[at] = longer[at - 1];
        longer[at] = ns;
    }
    const uint64_t left_ns = n > 0 ? longer[n / 5] - lasted_ns : tw_load(&p->waits) == 0 ? WAIT_AT_FIRST : lasted_ns / 2;
    return left_ns > TW_PACE_LEAST_NS ? left_ns : TW_PACE_LEAST_NS;
}

void tw_pace_refused(tw_pace *p) {
    if (++p->refusals % TW_PACE_REFUSALS != 0) return;
    for (size_t i = 0; i < TW_PACE_COSTS; ++i) p->cost_ns[i] /= 2;
}

int64_t tw_pace_budget(const tw_pace *p, size_t young, uint64_t left_ns) {
    const uint64_t cost = tw_pace_cost(p), fit = cost == 0 ? TW_PACE_MOST : left_ns / 2 * PER / cost;
    if (!tw_pace_due(p, young) || fit < young || fit < TW_PACE_FEWEST) return -1;
    return (int64_t)least(least(fit - young, TW_PACE_MOST), p->debt);
}
