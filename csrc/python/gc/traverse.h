/* The references of one object, as many of them as are followed. */
#ifndef TAILWATCH_PYTHON_GC_TRAVERSE_H
#define TAILWATCH_PYTHON_GC_TRAVERSE_H

#include "python/gc/idle_gc.h"

#define WIDE 1024  /* references of one object that are followed: 0.3 ms where each must be fetched from memory */

/* The first references of an object, always the same: what it refers to beyond is held from outside, for all that is known.
 * So no object takes longer than a slice, however wide; one that is dead, and held by what stands beyond, is left to a
 * full collection. */
static inline void walk_traverse(SlicerObject *self, PyObject *object, visitproc visit) {
    const traverseproc look = (traverseproc)PyType_GetSlot(Py_TYPE(object), Py_tp_traverse);
    self->width = 0;
    if (look != NULL) look(object, visit, self);
    self->width = 0;
}

/* Asked once for each of them, by visit. */
static inline int walk_is_too_wide(SlicerObject *self) { return self->width++ == WIDE; }

#endif
