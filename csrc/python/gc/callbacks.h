/* Collections as gc.callbacks sees them: recorded as pauses. */
#ifndef TAILWATCH_PYTHON_GC_CALLBACKS_H
#define TAILWATCH_PYTHON_GC_CALLBACKS_H

#include "python/core.h"

/* A pause that is open although nothing is left to close it is forgotten, so that it charges no stream. */
void core_verify_pause(CoreObject *core);

/* methods of Core */
PyObject *core_gc_first(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_gc_last(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_watch_gc(PyObject *op, PyObject *args);
PyObject *core_cancel_pause(PyObject *op, PyObject *unused);
PyObject *core_paused_now(PyObject *op, PyObject *unused);
PyObject *core_last_was_full(PyObject *op, void *unused);
PyObject *core_unfrozen(PyObject *op, void *unused);
PyObject *core_promoted(PyObject *op, void *unused);
PyObject *core_heap_is_frozen(PyObject *op, PyObject *objects);
PyObject *core_count_heap(PyObject *op, PyObject *unused);

#endif
