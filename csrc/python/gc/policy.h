/* Collections of our own, and the counters of the collector's policy. */
#ifndef TAILWATCH_PYTHON_GC_POLICY_H
#define TAILWATCH_PYTHON_GC_POLICY_H

#include "python/core.h"

/* An interval of our own begins and ends: collections inside it are booked as policy. The end returns its length in ns, 0 where
 * an outer one is still open. */
void core_policy_open(CoreObject *core);
uint64_t core_policy_close(CoreObject *core);

/* methods of Core */
PyObject *core_policy_begin(PyObject *op, PyObject *unused);
PyObject *core_policy_end(PyObject *op, PyObject *unused);
PyObject *core_policy_is(PyObject *op, PyObject *args);
PyObject *core_count_full_collection(PyObject *op, PyObject *args);
PyObject *core_count_interference(PyObject *op, PyObject *interference);
PyObject *core_count_memory_limit(PyObject *op, PyObject *memory_limit);
PyObject *core_count_ignored(PyObject *op, PyObject *unused);
PyObject *core_policy_answer(PyObject *op, PyObject *args);
PyObject *core_count_freeze(PyObject *op, PyObject *unused);

#endif
