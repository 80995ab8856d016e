/* Tokens that came from an engine, in the process that sends them on. */
#pragma once

#include "python/core.h"

/* methods of Core */
PyObject *core_expect(PyObject *op, PyObject *args);
PyObject *core_received(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_received_message(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
