/* The GC policy of a process: what it is now, what it did, and what other code did to the collector meanwhile.
 *
 * One writer (the process, under the GIL), any readers: every word is stored whole and independent of the others. Counts
 * only grow, and are kept when the process is dead (retired_segment.h); `now` is of living processes only.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stddef.h>
#include <stdint.h>

#include "tailwatch/gc/slice_pacer.h"

TW_BEGIN_C

/* The option gc. */
typedef enum tw_policy_kind {
    TW_POLICY_UNKNOWN,      /* not set yet */
    TW_POLICY_OFF,
    TW_POLICY_OBSERVE,
    TW_POLICY_FREEZE,
    TW_POLICY_IDLE_GC,
    TW_POLICY_KINDS
} tw_policy_kind;

/* How gc=idle collects. */
typedef enum tw_policy_mode {
    TW_POLICY_WAITS,        /* not yet: the heap is not frozen, or the policy is another */
    TW_POLICY_SLICES,       /* in slices of the old heap */
    TW_POLICY_FULL,         /* by full collections of what is not frozen: slices failed their self-test */
    TW_POLICY_MODES
} tw_policy_mode;

/* Why it uses full collections; or why gc="auto" chose this policy. */
typedef enum tw_policy_why {
    TW_WHY_NOT,
    TW_WHY_VERSION,         /* the layout of this Python's collector is unknown */
    TW_WHY_LISTS,           /* the collector's lists are not where this version has them */
    TW_WHY_PROOF,           /* self-test: a planted reference cycle was not freed, or a living one was */
    TW_WHY_STARTUP,         /* auto begins with it */
    TW_WHY_HOST_FROZE,      /* the host froze its heap itself: another freeze saves nothing */
    TW_WHY_COLLECTIONS,     /* collections made tokens wait longer than WORTH_SECONDS of tailwatch/gc/auto.py */
    TW_WHY_SLICES,          /* slices made tokens wait as long as the collections before them */
    TW_WHY_REVIEW,          /* the policy before is measured again */
    TW_WHYS
} tw_policy_why;

/* The reason of a collection outside slices: below TW_SLICE_REASONS a full collection that tailwatch made, by its
 * tw_slice_reason; else a collection that tailwatch did not make. */
enum {
    TW_COLLECTION_AUTOMATIC = TW_SLICE_REASONS, /* the interpreter's thresholds */
    TW_COLLECTION_EXTERNAL,               /* gc.collect() by other code */
    TW_COLLECTION_UNKNOWN,                /* one of the two: this interpreter's counters are not known */
    TW_COLLECTION_REASONS
};

/* Calls of gc.* by other code. */
typedef enum tw_interference {
    TW_INTERFERENCE_ENABLE,
    TW_INTERFERENCE_DISABLE,
    TW_INTERFERENCE_THRESHOLD,     /* gc.set_threshold() */
    TW_INTERFERENCE_FREEZE,
    TW_INTERFERENCE_FREEZE_BLIND,  /* of these: not preceded by a full collection, so garbage may have been frozen */
    TW_INTERFERENCE_UNFREEZE,
    TW_INTERFERENCE_CALLBACKS,     /* tailwatch's callables had to be put back into gc.callbacks */
    TW_INTERFERENCES
} tw_interference;

typedef enum tw_memory_limit { TW_MEMORY_LIMIT_RSS, TW_MEMORY_LIMIT_OBJECTS, TW_MEMORY_LIMITS } tw_memory_limit;

/* The names that labels show; "unknown" out of range. Any thread. */
const char *tw_policy_kind_name(int kind);
const char *tw_policy_mode_name(int mode);
const char *tw_policy_why_name(int why);
const char *tw_collection_reason_name(int reason);
const char *tw_interference_name(int interference);
const char *tw_memory_limit_name(int memory_limit);

typedef struct tw_policy_counts {
    uint64_t slices[TW_SLICE_REASONS];
    uint64_t collections[TW_COLLECTION_REASONS];
    uint64_t moved, freed;            /* objects, of all slices */
    uint64_t slice_ns, predicted_ns;  /* what the slices took, and had been predicted to take */
    uint64_t full_ns, full_freed;     /* of full collections that tailwatch made */
    uint64_t cycles;                  /* of slices over the whole old heap */
    uint64_t freezes;                 /* made by tailwatch */
    uint64_t interference[TW_INTERFERENCES];
    uint64_t memory_limits[TW_MEMORY_LIMITS]; /* times a limit was exceeded, until it held again */
    uint64_t ignored;                 /* files in place of an operator's command that were none */
    uint64_t early_full, early_external; /* before the first request of the process and its group, so that they delayed none:
                                          * collections of all generations; of any, those counted as external */
} tw_policy_counts;

/* Sizes: 1 + the number, 0: not known. */
typedef struct tw_policy_now {
    uint64_t kind, mode, why;         /* tw_policy_kind, tw_policy_mode, tw_policy_why */
    uint64_t unfrozen, frozen;        /* objects: those tracked and not frozen, an estimate; those known to be frozen */
    uint64_t backlog;                 /* visits of objects still to be made; about 10 per object */
    uint64_t bytes;                   /* memory outside the segment */
    uint64_t cost_ns;                 /* predicted for 1024 visits of a slice; 0: not known */
    uint64_t answered, answer;        /* number of the last command executed (release-stored last; 0: none), and its
                                       * result: see tailwatch/gc/remote_commands.py */
} tw_policy_now;

typedef struct tw_policy {
    tw_policy_counts counts;
    tw_policy_now now;
} tw_policy;

/* Sets the policy. */
void tw_policy_is(tw_policy *p, tw_policy_kind kind, tw_policy_mode mode, tw_policy_why why);

/* Counts a slice: before, after: the pacer's state around it. */
void tw_policy_slice(tw_policy *p, const tw_pace *before, const tw_pace *after, tw_slice_reason reason);

/* Counts a full collection that tailwatch made: its length, and the objects it freed. */
void tw_policy_full_collection(tw_policy *p, tw_slice_reason reason, uint64_t ns, uint64_t freed);

/* Publishes the result of an operator's command. number: not 0. */
void tw_policy_answer(tw_policy *p, uint64_t number, uint64_t answer);

/* The heap's tracked objects: those that are not frozen (UINT64_MAX: not known), those known to be frozen. */
void tw_policy_heap(tw_policy *p, uint64_t unfrozen);
void tw_policy_frozen(tw_policy *p, uint64_t frozen);

TW_END_C
