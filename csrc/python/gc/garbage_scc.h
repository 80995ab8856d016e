/* The dead of a cycle, in an order in which each may be taken: nothing in the old heap refers to a part of it but what was
 * taken before.
 *
 * The parts are the strongly connected components of what was walked and not reached (Tarjan 1972, "Depth-first search and
 * linear graph algorithms"), which come out with those first that lead nowhere, and are taken from the other end. The search
 * is interrupted and taken up again as the walks are. From when it comes upon an object until that is taken it holds it: what
 * is dead stays as it is, but a weak reference or a finalizer may bring it back meanwhile, and whatever they do the search
 * must not stand at memory that was freed. All references that it has are given back by order_let_go or order_let_go_of_all,
 * or part by part.
 */
#ifndef TAILWATCH_PYTHON_GC_GARBAGE_SCC_H
#define TAILWATCH_PYTHON_GC_GARBAGE_SCC_H

#include "python/gc/idle_gc.h"

/* A cycle's search begins: it has nothing. */
void order_begin(SlicerObject *self);

/* An object of the list: if it is dead, and was not come upon yet, the search is to go on from it. */
void order_from(SlicerObject *self, PyObject *object);

/* One step of the search. 0: there is nothing to go on with. Nothing runs but tp_traverse. */
int order_step(SlicerObject *self);

/* How many objects the next part has, counted up to so many (0: there is none left). Those that nothing else
 * holds are in none. */
size_t order_size(const SlicerObject *self, size_t most);

/* So many objects of it, the references to them now the caller's. */
void order_next(SlicerObject *self, PyObject **to, size_t n);

/* The first object of it; and it alone is no longer in the order, the reference to it now the caller's. */
PyObject *order_peek(const SlicerObject *self);
void order_drop(SlicerObject *self);

/* The next part is left out, and given up: so many of its objects at once. */
void order_skip(SlicerObject *self, size_t most);

/* Whether that was not all of it. */
int order_skips(const SlicerObject *self);

/* All is given up; nothing is let go of yet. */
void order_abandon(SlicerObject *self);

/* A reference of the caller's to an object is given back later. 0: there is no memory for that; it stays the caller's. */
int order_let_go_later(SlicerObject *self, PyObject *object);

/* What those found, from that one on, alone hold is held by us, too, and let go of later: the end of one is its own. */
void order_hold_led_to(SlicerObject *self, size_t from);

/* How many objects are to be let go of. */
size_t order_gone(const SlicerObject *self);

/* The last of them is let go of; there must be one. What it alone holds is to be let go of in its place. Its end may run
 * anything, this too. Whether it ended. */
int order_let_go(SlicerObject *self);

/* All of them are, and what they alone hold ends with them. */
void order_let_go_of_all(SlicerObject *self);

/* How many objects it holds. */
size_t order_held(const SlicerObject *self);

/* Bytes that it takes. */
size_t order_bytes(const SlicerObject *self);

/* With the Slicer object. */
void order_free(SlicerObject *self);

#endif
