/* One cycle: the old heap is gone through in small steps, and what is dead is found.
 *
 * Walks over the collector's own lists, each interrupted and taken up again as it comes:
 *   count: of each old object, how many references come from old objects;
 *   reach: an object that more refer to than that is held from outside: it lives, and so does what it leads to;
 *   order: the others are dead, and are put in order (python/gc/garbage_scc.h), so that
 *   parts: they are taken part by part: nothing that is left holds a part whose turn it is. One that only we hold is let go
 *          of. A part that is a reference cycle is moved to the young generation, where the collector decides; what it alone
 *          holds does not end with it, however much that is, but is let go of, one after the other.
 *
 * A short cycle goes through what grew old in the last SLICER_WINDOW cycles; a whole one through the tenured, too, which lived
 * longer: when there are a quarter more of them, when short cycles find little, or when asked. What is dead does not change:
 * all of it that a cycle goes through, and was dead as it began, is found in it, whatever the living do meanwhile; but what
 * stands where a frozen object had died, and what that leads to, a short cycle leaves to the next. Left to a full
 * collection: a reference cycle of more than 1 600 objects, and one that is held beyond the first 1 024 references of an
 * object. What else is held there ends with that object.
 *
 * No object is held (python/gc/idle_gc.h, References) but those that are put in order, until they are taken, and what these
 * lead to, until it is let go of, or until other code collects the whole heap.
 */
#ifndef TAILWATCH_PYTHON_GC_CYCLE_DETECT_H
#define TAILWATCH_PYTHON_GC_CYCLE_DETECT_H

#include "python/gc/idle_gc.h"

/* Goes on for about self->most_looks of the slice, until self->until_ns at the latest. What is to be moved is in self->found, self->n; it
 * is tracked, and what it alone leads to is held. Nothing runs meanwhile but tp_traverse. */
void walk_on(SlicerObject *self);

/* What an object leads to, itself first, is to be moved: so many objects at most. */
void walk_closure(SlicerObject *self, PyObject *object, size_t most);

/* What was found becomes young. */
void walk_move_found(SlicerObject *self);

/* The cycle is given up: the lists will not be what they were. */
void walk_abandon(SlicerObject *self);

/* What is to be let go of is, while there is time. Its end may run anything. How many ended. */
size_t walk_let_go(SlicerObject *self);

/* What was found, and has become young, is held no longer. Its end may run anything. How many ended with that. */
size_t walk_let_go_of_found(SlicerObject *self);

#endif
