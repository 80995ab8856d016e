/* The closure sweep: the old heap collected in slices, by the collector itself.
 *
 * A slice takes seeds, follows what they refer to over tracked objects that are not frozen, up to a budget, moves what
 * it found to the young generation, and has that collected. A cycle that is dead and wholly inside dies; what lives is
 * old again, behind all others. Only what the collector itself finds unreachable is freed.
 *
 * Old objects are taken the oldest first, and in one round each once: a closure does not go through what was seen in this
 * round. So a living object that much refers to is not moved with each of them, and a dead cycle is still found whole: of
 * its objects one is seen first, and from it all others are reached. A closure for which a slice has no room left is left to
 * the next; only one that no slice has room for is cut. Among the dead one may hold another that was seen before it: what
 * lost a reference by a slice is suspected, and the next one takes it first.
 */
#ifndef TAILWATCH_HOT_SWEEP_H
#define TAILWATCH_HOT_SWEEP_H

#include "hot_group.h"

#include "tailwatch/addresses.h"
#include "tailwatch/pace.h"

typedef struct gc_list gc_list;

#define SWEEP_EDGES 256
#define SWEEP_SUSPECTS 64

typedef struct SweepObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *collect;         /* gc.collect as it was when this was made */
    PyObject *zero;
    PyObject *marker;          /* nobody refers to it but this: it comes up once in a round */
    gc_list *lists;            /* generations 0, 1, 2; NULL: their layout is not known */
    tw_addresses frozen;
    tw_addresses seen;         /* in this round: closures stop there */
    tw_addresses loose;        /* of the slice being made: what was named or suspected, with what that leads to */
    PyObject **found;          /* of the slice being made: borrowed */
    size_t n, room, allocated; /* objects found, places for them in this slice, and ever */
    size_t budget;             /* objects that it may move */
    size_t loosely;            /* of the found, those that are not there because they were old */
    size_t cut_from, cut_until; /* of the found, a closure that is not whole */
    size_t left;               /* objects that were looked at and not moved */
    int rounded;               /* the marker is among them */
    int put_off;               /* slices in a row that were too small for the closure that was due */
    struct sweep_edge { PyObject *object; Py_ssize_t references; } edge[SWEEP_EDGES]; /* a hash table; held while it collects */
    size_t edges;
    PyObject *suspect[SWEEP_SUSPECTS]; /* held until the next slice */
    size_t suspects;
    int busy;                  /* a finalizer may run whatever it likes, us too */
    int on;                    /* idle moments are used */
    tw_pace pace;
    PyTypeObject *idle_type, *uv_type;
} SweepObject;

extern PyType_Spec tw_sweep_spec;

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
 * over, or (waiting 0) nobody waits at all. */
void sweep_step(SweepObject *self, uint64_t since_ns, uint64_t waiting);

#endif
