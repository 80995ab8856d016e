/* What the collector's policy of a process is, does and did; and what others did to its collector meanwhile.
 *
 * One writer (its process, under the GIL), any readers: every word is stored whole, none belongs to another. Counts only
 * grow, and those of the dead are kept (retired_segment.h); what is under `now` says how things stand, of the living.
 */
#ifndef TAILWATCH_RECORD_GC_POLICY_COUNTERS_H
#define TAILWATCH_RECORD_GC_POLICY_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#include "tailwatch/gc/slice_pacer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The option gc. */
typedef enum tw_policy_kind {
    TW_POLICY_UNKNOWN,      /* nobody has said */
    TW_POLICY_OFF,
    TW_POLICY_OBSERVE,
    TW_POLICY_FREEZE,
    TW_POLICY_IDLE_GC,
    TW_POLICY_KINDS
} tw_policy_kind;

/* How idle collects. */
typedef enum tw_policy_mode {
    TW_POLICY_WAITS,        /* not yet: the heap is not frozen, or it is another policy */
    TW_POLICY_SWEEP,        /* slices of the old heap */
    TW_POLICY_WHOLE,        /* whole passes of what is not frozen: the sweep did not prove itself */
    TW_POLICY_MODES
} tw_policy_mode;

/* Why idle makes whole passes; or why gc="auto" chose this policy. */
typedef enum tw_policy_why {
    TW_WHY_NOT,
    TW_WHY_VERSION,         /* the collector's lists of this Python are not known */
    TW_WHY_LISTS,           /* they are not where this version has them */
    TW_WHY_PROOF,           /* a planted cycle did not die, or a living one did */
    TW_WHY_STARTUP,         /* auto begins with it */
    TW_WHY_HOST_FROZE,      /* the host froze its heap itself: another freeze saves nothing */
    TW_WHY_COLLECTIONS,     /* collections made tokens wait longer than WORTH_SECONDS of tailwatch/gc/auto.py */
    TW_WHY_SLICES,          /* slices made tokens wait as long as the collections before them */
    TW_WHY_REVIEW,          /* the policy before is measured again */
    TW_WHYS
} tw_policy_why;

/* Why there was a collection that is not a slice: a whole pass of ours, by what gave the moment (tw_moment), or none of
 * ours. */
enum {
    TW_PASS_AUTOMATIC = TW_MOMENTS, /* the interpreter's own, as its thresholds say */
    TW_PASS_EXTERNAL,                /* somebody else called for it */
    TW_PASS_UNKNOWN,                 /* one of the two: this interpreter's books are not known */
    TW_PASSES
};

/* What somebody else did to the collector. */
typedef enum tw_interference {
    TW_INTERFERENCE_ENABLE,
    TW_INTERFERENCE_DISABLE,
    TW_INTERFERENCE_THRESHOLD,     /* gc.set_threshold() */
    TW_INTERFERENCE_FREEZE,
    TW_INTERFERENCE_FREEZE_BLIND,  /* of these: without a full collection just before, so garbage may have been frozen, and how
                             * much nobody knows */
    TW_INTERFERENCE_UNFREEZE,
    TW_INTERFERENCE_CALLBACKS,     /* our brackets had to be put back into gc.callbacks */
    TW_INTERFERENCES
} tw_interference;

typedef enum tw_memory_limit { TW_MEMORY_LIMIT_RSS, TW_MEMORY_LIMIT_OBJECTS, TW_MEMORY_LIMITS } tw_memory_limit;

/* The names that labels show; "unknown" out of range. Any thread. */
const char *tw_policy_kind_name(int kind);
const char *tw_policy_mode_name(int mode);
const char *tw_policy_why_name(int why);
const char *tw_pass_name(int pass);
const char *tw_interference_name(int interference);
const char *tw_memory_limit_name(int memory_limit);

typedef struct tw_policy_counts {
    uint64_t slices[TW_MOMENTS];
    uint64_t collections[TW_PASSES];
    uint64_t moved, freed;            /* objects, of all slices */
    uint64_t slice_ns, predicted_ns;  /* what the slices took, and had been predicted to take */
    uint64_t full_ns, full_freed;     /* of the whole passes of ours */
    uint64_t cycles;                  /* times that the sweep went through the whole old heap */
    uint64_t freezes;                 /* ours */
    uint64_t interference[TW_INTERFERENCES];
    uint64_t memory_limits[TW_MEMORY_LIMITS];   /* episodes */
    uint64_t ignored;                 /* files that stood where orders of an operator do, and were none */
} tw_policy_counts;

/* Sizes: 1 + the number, 0: not known. */
typedef struct tw_policy_now {
    uint64_t kind, mode, why;         /* tw_policy_kind, tw_policy_mode, tw_policy_why */
    uint64_t unfrozen, frozen;        /* objects: those tracked and not frozen, an estimate; those known to be frozen */
    uint64_t backlog;                    /* looks at old objects that are owed: some ten go through one */
    uint64_t bytes;                   /* memory that it takes outside the segment */
    uint64_t cost_ns;                 /* what 1024 looks of a slice are predicted to take; 0: not known */
    uint64_t answered, answer;        /* number of the last order that was carried out (release-stored last; 0: none
                                       * was), and what came of it: see tailwatch/gc/remote_commands.py */
} tw_policy_now;

typedef struct tw_policy {
    tw_policy_counts counts;
    tw_policy_now now;
} tw_policy;

/* What it is from now on. */
void tw_policy_is(tw_policy *p, tw_policy_kind kind, tw_policy_mode mode, tw_policy_why why);

/* A slice was made, and this is how the pace stands after it. Before: the same before it. */
void tw_policy_slice(tw_policy *p, const tw_pace *before, const tw_pace *after, tw_moment moment);

/* A whole pass of ours was made. */
void tw_policy_pass(tw_policy *p, tw_moment moment, uint64_t ns, uint64_t freed);

/* An order was carried out, or could not be. number: not 0. */
void tw_policy_answer(tw_policy *p, uint64_t number, uint64_t answer);

/* How large the heap is. */
void tw_policy_heap(tw_policy *p, uint64_t unfrozen);

/* The same of what is frozen. */
void tw_policy_frozen(tw_policy *p, uint64_t frozen);

#ifdef __cplusplus
}
#endif
#endif
