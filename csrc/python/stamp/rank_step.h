/* The steps of a rank, in a worker of an engine. */
#pragma once

#include "python/core.h"

/* methods of Core */
PyObject *core_rank_enters(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_rank_leaves(PyObject *op, PyObject *number);
