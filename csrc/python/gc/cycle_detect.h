/* One cycle: the old heap is gone through in small steps, and what is dead is found.
 *
 * Walks over the collector's own lists, each interrupted and taken up again as it comes:
 *   count: of each old object, how many references come from old objects;
 *   reach: an object that more refer to than that is held from outside: it lives, and so does what it leads to;
 *   take:  the others are looked at in chunks, each judged again by all references as they are now, and what nothing
 *          outside of its chunk holds is to be moved to the young generation, where the collector decides. A chunk that one
 *          elsewhere in the dead holds is left, and tried again once that is gone.
 * Where chunks fail, as the dead hold each other across them (requests in a list that end one after the other), they are put
 * in order instead (python/gc/garbage_scc.h), and taken part by part: nothing that is left holds a part whose turn it is.
 *
 * A short cycle goes through what grew old in the last SLICER_WINDOW cycles; a whole one through the tenured, too, which lived
 * longer: when there are a quarter more of them, when short cycles find little, or when asked. What is dead does not change:
 * all of it that a cycle goes through, and was dead as it began, is found in it, whatever the living do meanwhile; but what
 * stands where a frozen object had died, and what that leads to, a short cycle leaves to the next. Left to a full
 * collection: a reference cycle of more objects than a chunk has, one that alone holds more than 16 000 others, and what is
 * held beyond the first 1 024 references of one object.
 *
 * No object is held (python/gc/idle_gc.h, References) but those that are put in order, until they are taken or other code
 * collects the whole heap.
 */
#ifndef TAILWATCH_PYTHON_GC_CYCLE_DETECT_H
#define TAILWATCH_PYTHON_GC_CYCLE_DETECT_H

#include "python/gc/idle_gc.h"

/* Goes on for about so many looks, until self->until_ns at the latest; but a chunk of the dead that was begun is gone
 * through. What is to be moved is in self->found, self->n; it is tracked. How many objects were looked at. Nothing runs
 * meanwhile but tp_traverse. */
size_t walk_on(SlicerObject *self, size_t budget);

/* What an object leads to, itself first, is to be moved: so many objects at most. */
void walk_closure(SlicerObject *self, PyObject *object, size_t most);

/* What was found becomes young. */
void walk_move_found(SlicerObject *self);

/* The cycle is given up: the lists will not be what they were. */
void walk_abandon(SlicerObject *self);

/* What was held is no longer: after each of these, once nothing is to be moved any more. Its end may run anything. How many
 * of the dead ended with it, those aside that they held. */
size_t walk_let_go(SlicerObject *self);

#endif
