/* The closure sweep: the old heap collected in slices, by the collector itself.
 *
 * A slice takes seeds, follows what they refer to over tracked objects that are not frozen, up to a budget, moves what
 * it found to the young generation, and has that collected. A cycle that is dead and wholly inside dies; what lives is
 * old again, behind all others. Only what the collector itself finds unreachable is freed.
 */
#ifndef TAILWATCH_HOT_SWEEP_H
#define TAILWATCH_HOT_SWEEP_H

#include "hot_group.h"

#include "tailwatch/addresses.h"
#include "tailwatch/pace.h"

typedef struct gc_list gc_list;

typedef struct SweepObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *collect;         /* gc.collect as it was when this was made */
    PyObject *zero;
    PyObject *marker;          /* nobody refers to it but this: it comes up once in a round */
    gc_list *lists;            /* generations 0, 1, 2; NULL: their layout is not known */
    tw_addresses frozen;
    PyObject **found;          /* of the slice being made: borrowed, all untracked */
    size_t n, budget, room;
    int busy;                  /* a finalizer may run whatever it likes, us too */
    int on;                    /* idle moments are used */
    int force;                 /* sweep_force: a ceiling was met */
    uint64_t forced_until_ns;  /* of the time, forced slices take half at most */
    unsigned long every;       /* of so many engine steps one gives a moment */
    size_t others_young;       /* when a collection that is not ours began */
    tw_pace pace;
    PyTypeObject *idle_type, *uv_type;
} SweepObject;

extern PyType_Spec tw_sweep_spec;

/* What a moment is used for, whether it fits or not: what is due; a slice; a whole pass, once. */
enum sweep_force { SWEEP_WHAT_FITS, SWEEP_SLICES, SWEEP_PASS };

/* One slice. seeds: a list, emptied; or NULL. Objects moved and freed into *done. 0; 1: none, as a collection is under
 * way; -1: an exception is set. */
typedef struct sweep_done { size_t young, moved, freed; uint64_t ns; } sweep_done;
int sweep_run(SweepObject *self, tw_moment moment, PyObject *seeds, size_t budget, sweep_done *done);

/* A wait for events begins: until one is there at the descriptor, or the time is up, slices run that are predicted to end
 * before. wait_ns: how long the loop means to wait, UINT64_MAX: for ever. Exceptions of ours go to sys.unraisablehook. Whether there
 * was anything to do. */
int sweep_idle(SweepObject *self, int fd, uint64_t wait_ns);

/* Whether sweep_idle may find something to do: a glance without the GIL. */
int sweep_may_be_due(const SweepObject *self);

/* A moment in which a slice of a tenth of since_ns disturbs nobody more than a tenth: an engine's step that took so long is
 * over, or (waiting 0) nobody waits at all. number: of the step. Ranks that step together use the same numbers, those that
 * `every` divides, so that not each of them delays another step. */
void sweep_step(SweepObject *self, uint64_t number, uint64_t since_ns, uint64_t waiting);

/* A collection that is not ours begins; it has ended, and freed so many. The collector's books are told to the pace. */
void sweep_other_begins(SweepObject *self);
void sweep_other_ended(SweepObject *self, int whole, uint64_t freed);

#endif
