/* How much of the old heap is to be swept when, so that its garbage stays a bounded part of it and no slice is longer than
 * the moment it was meant for. Virtual time: nothing here reads a clock. One user at a time; nothing fails.
 *
 * Debt: objects to be swept. Each object that grew old adds TW_PACE_PER_OBJECT of them: garbage among the old then stays
 * below about half of the living, as with the interpreter's own rule (a full pass each quarter).
 */
#ifndef TAILWATCH_PACE_H
#define TAILWATCH_PACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_PACE_PER_OBJECT 3
#define TW_PACE_COSTS 8         /* slices whose cost is remembered */
#define TW_PACE_WAITS 32        /* waits for events whose length is remembered */
#define TW_PACE_FEWEST 400      /* objects: a smaller slice is not worth its collection */
#define TW_PACE_MOST 3000       /* objects of one slice: some 0.3 ms */
#define TW_PACE_LEAST_NS 300000
#define TW_PACE_REFUSALS 256    /* moments in which no slice fits until costs are believed to be half of what they were */
#define TW_PACE_YOUNG 700       /* young objects that make a slice due without any debt */

/* What gave the moment for a slice. */
typedef enum tw_moment {
    TW_MOMENT_IDLE,     /* a loop waited for events */
    TW_MOMENT_STEP,     /* an engine's step was over */
    TW_MOMENT_REQUEST,  /* a request was over, and no other in flight */
    TW_MOMENT_OVERDUE,  /* none of these for too long */
    TW_MOMENT_CEILING,  /* a ceiling was met */
    TW_MOMENT_ASKED,    /* somebody asked for it */
    TW_MOMENTS
} tw_moment;

/* "idle", "step", ...; "unknown" out of range. Any thread. */
const char *tw_moment_name(int moment);

typedef struct tw_pace {
    uint64_t cost_ns[TW_PACE_COSTS]; /* per 1024 objects, of the last slices */
    uint64_t slices;
    uint64_t refusals;               /* moments since the last slice in which none fitted */
    uint64_t wait_ns[TW_PACE_WAITS];
    uint64_t waits;
    uint64_t debt;
    uint64_t rounds, round_moved;    /* times that the whole old heap was gone through; objects moved since the last */
    uint64_t old;                    /* tracked objects that are neither young nor frozen: an estimate */
    uint64_t made[TW_MOMENTS];       /* slices */
    uint64_t moved, freed, ns;       /* of all slices */
    uint64_t predicted_ns;           /* what they were predicted to take */
} tw_pace;

/* A slice looked at so many young and moved so many old objects, and freed so many. */
void tw_pace_slice(tw_pace *p, tw_moment moment, size_t young, size_t moved, size_t freed, uint64_t ns);

/* A whole pass of what is not frozen: nothing is owed after it. */
void tw_pace_pass(tw_pace *p, size_t young, size_t freed);

/* A collection that was not ours: so many young objects were there, and so many were freed. whole: all were looked at. */
void tw_pace_other(tw_pace *p, int whole, size_t young, size_t freed);

/* What a fork child begins with: the costs and waits it knows from its parent, and what is old. */
void tw_pace_begin_again(tw_pace *p);

/* The sweep has come round. */
void tw_pace_rounded(tw_pace *p);

/* The whole old heap is to be looked at, as soon as may be. */
void tw_pace_round(tw_pace *p);

/* A wait for events took so long. May be called beside the others, by one thread at a time. */
void tw_pace_wait(tw_pace *p, uint64_t ns);

/* What 1024 objects are predicted to cost, ns: the dearest of the last slices. */
uint64_t tw_pace_cost(const tw_pace *p);

/* How much longer a wait that has lasted so long is predicted to last, ns: what four in five of those remembered did
 * that lasted as long; at least TW_PACE_LEAST_NS, for a slice that delays nobody noticeably. */
uint64_t tw_pace_left(const tw_pace *p, uint64_t lasted_ns);

/* Old objects to move in a slice that is to be over in left_ns, with so many young ones to look at beside them; -1: none
 * fits, or none is due. */
int64_t tw_pace_budget(const tw_pace *p, size_t young, uint64_t left_ns);

/* A slice was due and none fitted. One that was dear because its thread was kept from running must not be the last: what
 * is remembered of costs fades, until one fits and tells what it costs now. */
void tw_pace_refused(tw_pace *p);

/* Whether the debt is so large, or the young so many, that a slice must be made where nobody waits for events. */
static inline int tw_pace_overdue(const tw_pace *p, size_t young) {
    return young >= 8 * TW_PACE_YOUNG || p->debt >= 64 * TW_PACE_MOST;
}

/* Whether anything is to be done, given so many young objects. */
static inline int tw_pace_due(const tw_pace *p, size_t young) { return young >= TW_PACE_YOUNG || p->debt >= TW_PACE_FEWEST; }

#ifdef __cplusplus
}
#endif
#endif
