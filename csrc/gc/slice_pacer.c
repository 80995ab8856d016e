#include "tailwatch/gc/slice_pacer.h"

#include "tailwatch/base/atomic.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/names.h"

#define PER 1024
#define COST_AT_FIRST (30 * PER) /* ns: out of the cache */
#define OF_A_DEAD_AT_FIRST 3000 /* ns: it may hold a large body */
#define FIRST_CYCLES 12 /* what is loaded as a server begins shows nothing about its requests */
#define WAIT_AT_FIRST 1000000
#define MOST_PER_OBJECT (100 * PER)
#define YOUNG_AT_FIRST (90 * PER) /* ns */
#define MOST_OF_A_YOUNG (4 * YOUNG_AT_FIRST) /* one that was made just now */

TW_NAMES(tw_slice_reason_name, TW_SLICE_REASONS, "idle", "step", "request_end", "overdue", "memory_limit", "requested")

static int few_die(const tw_pace *p) {
    return p->cycles + p->shorts >= FIRST_CYCLES && p->share[0] == 0 && p->share[1] == 0;
}

/* What an object that grew old adds to the backlog. */
static uint64_t price_of(const tw_pace *p) { return p->price > 0 ? p->price : TW_PACE_PER_OBJECT; }

/* A slice looks at more than is due where that is hard to cut. */
static void charge(tw_pace *p, uint64_t more, uint64_t done) {
    const uint64_t due = least(p->backlog + more, most(p->old * TW_PACE_OF_A_CYCLE, 4 * TW_PACE_MOST)), had = p->ahead + done;
    p->backlog = due > had ? due - had : 0;
    p->ahead = due > had ? 0 : least(had - due, most(p->ahead, TW_PACE_MOST));
}

/* What was freed beside those that were moved had been young. */
static void grow(tw_pace *p, const tw_slice *slice) {
    const uint64_t died = slice->freed > slice->moved ? slice->freed - slice->moved : 0;
    const uint64_t grown = slice->more > died ? slice->more - died : 0;
    p->old += slice->more;
    p->old -= least(p->old, slice->freed);
    p->grown += grown;
    p->dead += slice->moved;
    charge(p, grown * price_of(p), slice->looks);
    if (tw_pace_late(p)) tw_pace_more(p);
}

/* The second largest of a ring that n were written to: one is an exception. */
static uint64_t second_of(const uint64_t *ring, uint64_t n) {
    uint64_t largest = 0, second = 0;
    for (size_t i = 0; i < TW_PACE_COSTS && i < n; ++i) {
        if (ring[i] > second) second = ring[i] > largest ? largest : ring[i];
        if (ring[i] > largest) largest = ring[i];
    }
    return n == 1 ? largest : second;
}

/* What so many young ones took on average, ns. */
static uint64_t mean_young_ns(const tw_pace *p, size_t young) {
    const uint64_t n = least(p->youngs, TW_PACE_COSTS);
    uint64_t all = 0;
    for (size_t i = 0; i < n; ++i) all += p->young_ns[i];
    return (n == 0 ? YOUNG_AT_FIRST : least(all / n, MOST_OF_A_YOUNG)) * young / PER;
}

/* Of some that were moved it shows what each of them costs, of the young alone what these do. */
static void learn_collection(tw_pace *p, const tw_slice *slice) {
    const uint64_t ns = slice->collected_ns, of_young_ns = mean_young_ns(p, slice->young);
    if (slice->collected >= most(TW_PACE_MOVES, slice->young / 2))
        p->dead_ns[p->moves++ % TW_PACE_COSTS] = (ns - least(ns, of_young_ns)) / slice->collected;
    else if (slice->collected < TW_PACE_MOVES && slice->young >= TW_PACE_YOUNG / 2)
        p->young_ns[p->youngs++ % TW_PACE_COSTS] = ns * PER / slice->young;
}

static void learn_walk(tw_pace *p, const tw_slice *slice, uint64_t ns) {
    if (slice->looks < TW_PACE_FEWEST / 2) return;
    p->cost_ns[slice->walk][p->slices[slice->walk]++ % TW_PACE_COSTS] = ns * PER / slice->looks;
}

void tw_pace_slice(tw_pace *p, tw_slice_reason reason, const tw_slice *slice, uint64_t ns) {
    p->predicted_ns += tw_pace_cost(p, slice->walk) * slice->looks / PER + tw_pace_young_ns(p, slice->young) + slice->collected * tw_pace_dead_ns(p);
    learn_collection(p, slice);
    learn_walk(p, slice, ns - least(ns, slice->collected_ns));
    p->made[reason] += 1;
    p->looks += slice->looks;
    p->moved += slice->moved;
    p->freed += slice->freed;
    p->ns += ns;
    grow(p, slice);
}

static void pay_all(tw_pace *p, size_t young, size_t freed) {
    p->backlog = 0;
    p->old += young;
    p->old -= least(p->old, freed);
}

void tw_pace_full_collection(tw_pace *p, size_t young, size_t freed) { pay_all(p, young, freed); }

void tw_pace_other(tw_pace *p, int whole, size_t young, size_t moved, size_t freed) {
    if (whole) pay_all(p, young, freed);
    else grow(p, &(tw_slice){.young = young, .moved = moved, .freed = freed, .walk = TW_WALK_COUNT, .more = young});
}

void tw_pace_begin_again(tw_pace *p) {
    memset(p->made, 0, sizeof p->made);
    p->looks = p->begun_looks = p->moved = p->freed = p->ns = p->predicted_ns = p->cycles = p->shorts = 0;
    p->grown = p->grown_before = p->dead = 0;
}

void tw_pace_begin_cycle(tw_pace *p, size_t tenured) {
    const uint64_t late = p->lately + p->grown, cost = late * p->per_object / PER + tenured * TW_PACE_OF_A_TENURED;
    const uint64_t alive = p->lately + least(p->lately, p->grown); /* what a late cycle leaves to the next one is no reason to wait */
    p->room = most(alive * (few_die(p) ? TW_PACE_FEW_DIE : TW_PACE_MANY_DIE) / 8, TW_PACE_LEAST_ROOM);
    p->price = p->per_object == 0 ? 0 : (cost * TW_PACE_SPRINT + p->room - 1) / p->room;
    p->begun_looks = p->looks;
    p->grown_before = p->grown;
    p->grown = p->dead = 0;
}

/* Objects that died by their count are not seen to: the cycle finds them. */
void tw_pace_cycle_ended(tw_pace *p, size_t tenured, size_t others, int whole) {
    const uint64_t took = p->looks - p->begun_looks, of_tenured = whole ? tenured * TW_PACE_OF_A_TENURED : 0;
    if (others > 0) p->per_object = least((took - least(took, of_tenured)) * PER / others, MOST_PER_OBJECT);
    p->lately = others - least(others, p->dead);
    p->old = tenured + p->lately + p->grown;
    p->backlog = p->grown < p->room ? 0 : least(p->backlog, p->grown * price_of(p)); /* all else was looked at */
    p->ahead = (p->room - least(p->room, p->grown)) * price_of(p);
    p->share[(p->cycles + p->shorts) % 2] = p->grown_before == 0 ? 0 : p->dead * 16 / p->grown_before;
    if (whole) p->cycles += 1;
    else p->shorts += 1;
}

void tw_pace_more(tw_pace *p) {
    if (p->backlog < TW_PACE_FEWEST) p->backlog = TW_PACE_FEWEST;
}

void tw_pace_want_cycle(tw_pace *p) {
    p->backlog = most(p->backlog, most(p->old * TW_PACE_OF_A_CYCLE, TW_PACE_FEWEST));
    p->ahead = 0;
}

void tw_pace_wait(tw_pace *p, uint64_t ns) {
    const uint64_t n = tw_load(&p->waits);
    tw_store(&p->wait_ns[n % TW_PACE_WAITS], ns);
    tw_store(&p->waits, n + 1);
}

void tw_pace_unfit(tw_pace *p, tw_walk walk) {
    for (size_t i = 0; i < TW_PACE_COSTS; ++i) p->cost_ns[walk][i] -= p->cost_ns[walk][i] / 16;
}

uint64_t tw_pace_cost(const tw_pace *p, tw_walk walk) {
    return p->slices[walk] == 0 ? COST_AT_FIRST : second_of(p->cost_ns[walk], p->slices[walk]);
}

uint64_t tw_pace_dearest(const tw_pace *p) {
    uint64_t dearest = 0;
    for (int walk = 0; walk < TW_WALKS; ++walk) dearest = most(dearest, second_of(p->cost_ns[walk], p->slices[walk]));
    return dearest > 0 ? dearest : COST_AT_FIRST;
}

uint64_t tw_pace_young_ns(const tw_pace *p, size_t young) {
    return (p->youngs == 0 ? YOUNG_AT_FIRST : least(second_of(p->young_ns, p->youngs), MOST_OF_A_YOUNG)) * young / PER;
}

uint64_t tw_pace_dead_ns(const tw_pace *p) {
    return p->moves == 0 ? OF_A_DEAD_AT_FIRST : most(second_of(p->dead_ns, p->moves), 1);
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

/* Of what fits: one that follows what lives may go on for half as much again. */
static uint64_t without_more(tw_walk walk, uint64_t looks) { return walk == TW_WALK_REACH ? looks * 2 / 3 : looks; }

/* Of an idle slot half is used, as no two slices cost the same. */
int64_t tw_pace_budget(const tw_pace *p, tw_walk walk, size_t young, uint64_t left_ns) {
    const uint64_t cost = tw_pace_cost(p, walk), young_ns = tw_pace_young_ns(p, young);
    if (!tw_pace_due(p, young) || left_ns / 2 < young_ns || left_ns / 2 * PER < TW_PACE_FEWEST * cost) return -1;
    const uint64_t fit = cost == 0 ? TW_PACE_MOST : (left_ns / 2 - young_ns) * PER / cost;
    const uint64_t rest = p->backlog == 0 ? 0 : without_more(walk, fit);
    if (rest < TW_PACE_FEWEST) return young >= TW_PACE_YOUNG ? 0 : -1;
    return (int64_t)least(rest, TW_PACE_MOST);
}
