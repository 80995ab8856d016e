/* How large the heap is by the collector's count: read off its own books, where their layout is the known one. */
#ifndef TAILWATCH_PYTHON_GC_GC_STATE_H
#define TAILWATCH_PYTHON_GC_GC_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

typedef struct heap_books heap_books;

/* The books of this interpreter, for as long as it lives. NULL: its layout is not known (other than CPython 3.10 to 3.13),
 * or it does not answer to the two lists that must stand in it: gc.callbacks and gc.garbage. No exception is left. */
const heap_books *heap_find(PyObject *callbacks);

/* Objects that a full collection would look at: those that survived the last one, those that grew old since, and the young.
 * As the collector books them: what grew old and died by its count since is still in it, some thousand that are between
 * young and old are not. O(1), under the GIL. */
uint64_t heap_unfrozen(const heap_books *books);

/* Objects that grew old since the last full collection, as the collector books them. O(1), under the GIL. */
uint64_t heap_promoted(const heap_books *books);

/* The old and the young objects, counted: a walk over at most so many old ones. UINT64_MAX: there are more, or a
 * collection runs. 1 to 80 ns an object, under the GIL. */
uint64_t heap_count(const heap_books *books, uint64_t most);

/* Whether the interpreter itself would collect this generation now: asked in gc.callbacks as the collection begins, a
 * "no" is a call of gc.collect(). Under the GIL. */
int heap_is_due(const heap_books *books, int generation);

#endif
