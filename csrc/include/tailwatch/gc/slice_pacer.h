/* How much of the old heap is to be collected when, so that its garbage stays a bounded part of it and no slice is longer than
 * the idle slot it was meant for. Virtual time: nothing here reads a clock. One user at a time; nothing fails.
 *
 * Backlog: visits of old objects that are still to be made. A cycle takes some ten of each object (once of itself and of each reference to
 * it, in each of its walks). The next one begins when as many objects have grown old as a part of those that it looked at,
 * the tenured aside, so that as many are dead as live, in the long run; what it is predicted to cost is spread over the first
 * quarter of them: the sooner it is over, the fewer dead wait for the next. A cycle that is not over when that is to begin goes
 * on in every idle slot. Never more is due than a cycle of all.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* Looks due for one that grew old, until cycles have shown what they cost. */
#define TW_PACE_PER_OBJECT 30
/* A cycle goes on so many times as fast as it must to be over when the next one begins: what is dead waits less for it. */
#define TW_PACE_SPRINT 4
/* Eighths of what a cycle looks at, the tenured aside, that may grow old in it; and where few of them die in reference cycles. */
#define TW_PACE_MANY_DIE 6
#define TW_PACE_FEW_DIE 9
#define TW_PACE_LEAST_ROOM 16000 /* objects that may grow old in a cycle, however few live */
#define TW_PACE_OF_A_CYCLE 24   /* looks at each old object that surely go through all of them from the beginning */
#define TW_PACE_OF_A_TENURED 8  /* looks at each tenured object in a whole cycle: it lives, most likely */
#define TW_PACE_MOVES 4         /* objects that are moved and collected: they show what each costs */
#define TW_PACE_COSTS 8         /* slices whose cost is remembered */
#define TW_PACE_WAITS 32        /* waits for events whose length is remembered */
#define TW_PACE_FEWEST 2000     /* looks: a smaller slice is not worth its while */
#define TW_PACE_MOST 16000      /* looks of one slice: some 0.3 ms */
#define TW_PACE_LEAST_NS 300000
#define TW_PACE_YOUNG 350       /* young objects that make a slice due without any backlog */

/* Why a slice was made. */
typedef enum tw_slice_reason {
    TW_SLICE_IDLE,     /* a loop waited for events */
    TW_SLICE_STEP,     /* an engine's step was over */
    TW_SLICE_REQUEST_END,  /* a request was over, and no other in flight */
    TW_SLICE_OVERDUE,  /* none of these for too long */
    TW_SLICE_MEMORY_LIMIT,  /* a memory limit was met */
    TW_SLICE_REQUESTED,    /* it was asked for */
    TW_SLICE_REASONS
} tw_slice_reason;

/* "idle", "step", ...; "unknown" out of range. Any thread. */
const char *tw_slice_reason_name(int reason);

/* What a slice does: the walks of a cycle cost differently, as memory is in their way or not. */
typedef enum tw_walk {
    TW_WALK_COUNT,      /* references are counted; or the young alone collected */
    TW_WALK_REACH,      /* what lives is followed, a little further than was given */
    TW_WALK_ORDER,      /* the dead are put in order */
    TW_WALK_PARTS,      /* and taken part by part, and let go of */
    TW_WALKS
} tw_walk;

typedef struct tw_pace {
    uint64_t cost_ns[TW_WALKS][TW_PACE_COSTS]; /* per 1024 looks, of the last slices */
    uint64_t slices[TW_WALKS];
    uint64_t young_ns[TW_PACE_COSTS]; /* per 1024 objects, of the last collections of the young alone */
    uint64_t youngs;
    uint64_t dead_ns[TW_PACE_COSTS]; /* per object, of the last collections of some that were moved, the young aside */
    uint64_t moves;
    uint64_t wait_ns[TW_PACE_WAITS];
    uint64_t waits;
    uint64_t backlog, ahead;         /* of both, one is 0: to be collected, collected before it had to be */
    uint64_t grown, dead;            /* objects, since this cycle began: that grew old, that it found dead */
    uint64_t grown_before;           /* that grew old between the beginning of the one before and its own: the dead are of those */
    uint64_t room;                   /* of those that grow old, so many until the next one begins */
    uint64_t price;                  /* looks due for each of them */
    uint64_t begun_looks;            /* of all slices, as this cycle began */
    uint64_t per_object;             /* looks that the last cycle took for each 1024 objects not tenured */
    uint64_t lately;                 /* of these, as many as it left */
    uint64_t share[2];               /* of what grew old, sixteenths that were found dead, in the last two cycles */
    uint64_t cycles, shorts;         /* times that the whole old heap was gone through; that what grew old lately was */
    uint64_t old;                    /* tracked objects that are neither young nor frozen: an estimate */
    uint64_t made[TW_SLICE_REASONS];       /* slices */
    uint64_t looks, moved, freed, ns; /* of all slices */
    uint64_t predicted_ns;           /* what they were predicted to take */
} tw_pace;

/* What a slice did: young objects that were there and were collected, looks at old ones, old ones that it ended or moved to
 * the young as they seemed dead, objects freed of both; of the moved, those that it collected (the slice before may have
 * moved them, and left that to this one), and how long that took, the young included; what it did; and by how many objects
 * the heap had grown since the one before: those that died by their count, the old too, are not among them. */
typedef struct tw_slice {
    size_t young, looks, moved, freed, collected;
    uint64_t collected_ns;
    tw_walk walk;
    size_t more;
} tw_slice;

/* It took so long. */
void tw_pace_slice(tw_pace *p, tw_slice_reason reason, const tw_slice *slice, uint64_t ns);

/* A full collection of what is not frozen: nothing is due after it. */
void tw_pace_full_collection(tw_pace *p, size_t young, size_t freed);

/* A collection that was not ours: so many young objects were there, the last slice had moved so many others to them, and
 * so many were freed. whole: all were looked at. */
void tw_pace_other(tw_pace *p, int whole, size_t young, size_t moved, size_t freed);

/* What a fork child begins with: the costs and waits it has from its parent, and what is old. */
void tw_pace_begin_again(tw_pace *p);

/* A cycle begins, which goes through so many tenured objects, too (0: a short one): what it will cost falls due by the
 * time that as many objects have grown old as may meanwhile. */
void tw_pace_begin_cycle(tw_pace *p, size_t tenured);

/* It has ended: so many objects are tenured, and so many others are old, those that it found dead included. whole: it
 * left none out. */
void tw_pace_cycle_ended(tw_pace *p, size_t tenured, size_t others, int whole);

/* A slice more is due. */
void tw_pace_more(tw_pace *p);

/* The whole old heap is to be looked at, as soon as may be. */
void tw_pace_want_cycle(tw_pace *p);

/* A wait for events took so long. May be called beside the others, by one thread at a time. */
void tw_pace_wait(tw_pace *p, uint64_t ns);

/* No slice of a kind fitted: what was dear may not stay so, and counts a little less. */
void tw_pace_unfit(tw_pace *p, tw_walk walk);

/* What 1024 looks are predicted to cost, ns: the second dearest of the last slices of that kind. */
uint64_t tw_pace_cost(const tw_pace *p, tw_walk walk);

/* Of the dearest kind that there was; of none, what it is taken to be at first. */
uint64_t tw_pace_dearest(const tw_pace *p);

/* What a collection of so many young objects is predicted to take, ns: the second dearest of the last, and no more than they
 * can cost: a price that was raised by delaying a slice must not have them wait, as they become more meanwhile. */
uint64_t tw_pace_young_ns(const tw_pace *p, size_t young);

/* What the collection of each object that was moved is predicted to take, ns, at least 1: the second dearest of the last. */
uint64_t tw_pace_dead_ns(const tw_pace *p);

/* How much longer a wait that has lasted so long is predicted to last, ns: what four in five of those remembered did
 * that lasted as long; at least TW_PACE_LEAST_NS, for a slice that delays nothing noticeably. */
uint64_t tw_pace_left(const tw_pace *p, uint64_t lasted_ns);

/* Looks for a slice that is to be over in left_ns, with so many young ones to look at beside them; -1: none
 * fits, or none is due. */
int64_t tw_pace_budget(const tw_pace *p, tw_walk walk, size_t young, uint64_t left_ns);

/* Whether the young are so many that they must be collected where nothing waits for events. */
static inline int tw_pace_many_young(size_t young) { return young >= 2 * TW_PACE_YOUNG; }

/* Whether a cycle under way is to be over by now; or the backlog so large that a slice must be made there, too. */
static inline int tw_pace_late(const tw_pace *p) { return p->room > 0 && p->grown > p->room; }
static inline int tw_pace_in_backlog(const tw_pace *p) { return p->backlog >= 32 * TW_PACE_MOST || (tw_pace_late(p) && p->backlog > 0); }

/* Whether anything is to be done, given so many young objects. */
static inline int tw_pace_due(const tw_pace *p, size_t young) { return young >= TW_PACE_YOUNG || p->backlog >= TW_PACE_FEWEST; }

TW_END_C
